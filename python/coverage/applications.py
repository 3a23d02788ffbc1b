"""Cases of ``keras.applications``: as small as each can be."""

from __future__ import annotations

from typing import Any

import keras

from case import BATCH, SAMPLES, Case, classes, shares

CASES: list[Case] = []


# The smallest first, so that a run that is cut short has most of them.
FIRST = (
    "MobileNetV3Small", "MobileNet", "MobileNetV2", "MobileNetV3Large", "EfficientNetB0", "EfficientNetV2B0", "ResNet50", "ResNet50V2", "VGG16",
    "DenseNet121", "NASNetMobile", "Xception", "InceptionV3", "ConvNeXtTiny", "VGG19", "EfficientNetB1", "EfficientNetV2B1",
)
# Two steps in place of five: each takes minutes.
LARGE = (
    "NASNetLarge", "EfficientNetB5", "EfficientNetB6", "EfficientNetB7", "EfficientNetV2M", "EfficientNetV2L", "ConvNeXtLarge", "ConvNeXtXLarge",
    "InceptionResNetV2",
)


def application(name: str) -> tuple[Any, Any, Any]:
    # In f32 batch norms of few pixels make so much of the last bit that steps cannot be compared, and long steps make more of it.
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    side = 75 if name.startswith(("Inception", "Xception")) else 331 if name == "NASNetLarge" else 224 if name == "NASNetMobile" else 64
    model = getattr(keras.applications, name)(weights=None, classes=4, input_shape=(side, side, 3))
    # Without what draws random numbers, so that steps can be compared.
    for layer in model._flatten_layers():
        for rate in ("rate", "drop_path_rate"):
            if isinstance(getattr(layer, rate, None), float):
                setattr(layer, rate, 0.0)
    # To trace a step takes longer than to run it five times.
    model.compile(keras.optimizers.SGD(0.0001), "sparse_categorical_crossentropy", run_eagerly=True)
    samples = 2 * BATCH if name in LARGE else SAMPLES
    return model, shares(1, samples, side, side, 3).astype("float64"), classes(2, 4, samples)


def place(name: str) -> tuple[int, str]:
    return (FIRST.index(name) if name in FIRST else 1000 if name in LARGE else 100, name)


# On TensorFlow, where Keras rounds the factor of a Rescaling in a float64 model to float32, as is done here; on PyTorch it does not.
for name in sorted((name for name, value in vars(keras.applications).items() if callable(value) and name[0].isupper()), key=place):
    CASES.append(Case("applications", name, "", lambda name=name: application(name), longest=1800, backend="tensorflow"))
