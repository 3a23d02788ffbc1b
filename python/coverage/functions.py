"""Cases of ``keras.activations``."""

from __future__ import annotations

import inspect
from typing import Any

import keras
from keras import layers as L

from case import SAMPLES, Case, numbers

CASES: list[Case] = []


def with_activation(name: str, inside: bool) -> tuple[Any, Any, Any]:
    inputs = keras.Input((6,))
    x = L.Dense(4, activation=name)(inputs) if inside else L.Activation(name)(L.Dense(4)(inputs))
    # A gated unit halves its input, and does not say so where a layer's shape is found.
    x = L.Dense(2)(x) if name == "glu" and not inside else x
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model, numbers(1, SAMPLES, 6), numbers(2, SAMPLES, *x.shape[1:])


for name, value in sorted(vars(keras.activations).items()):
    if inspect.isfunction(value) and name == value.__name__ and name not in ("get", "serialize", "deserialize", "threshold"):
        for inside in (True, False):
            CASES.append(Case("activations", name, "of a layer" if inside else "as a layer", lambda name=name, inside=inside: with_activation(name, inside)))
