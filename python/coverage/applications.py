"""Cases of ``keras.applications``: as small as each can be."""

from __future__ import annotations

from typing import Any

import keras

from case import SAMPLES, Case, classes, shares

CASES: list[Case] = []


def application(name: str) -> tuple[Any, Any, Any]:
    side = 75 if name.startswith(("Inception", "Xception")) else 331 if name == "NASNetLarge" else 224 if name == "NASNetMobile" else 64
    model = getattr(keras.applications, name)(weights=None, classes=4, input_shape=(side, side, 3))
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    return model, shares(1, SAMPLES, side, side, 3), classes(2, 4, SAMPLES)


for name, value in sorted(vars(keras.applications).items()):
    if callable(value) and name[0].isupper():
        CASES.append(Case("applications", name, "", lambda name=name: application(name)))
