"""Cases of ``keras.applications``: as small as each can be without losing an axis."""

from __future__ import annotations

from typing import Any

import keras

from case import STEPS, Case, classes, shares

CASES: list[Case] = []
# Two samples of few pixels: the layers and their order are what is compared, and batch norms still have several numbers each.
BATCH = 2

# The smallest first, so that a run that is cut short has most of them.
FIRST = (
    "MobileNetV3Small", "MobileNet", "MobileNetV2", "MobileNetV3Large", "EfficientNetB0", "EfficientNetV2B0", "ResNet50", "ResNet50V2", "VGG16",
    "DenseNet121", "NASNetMobile", "Xception", "InceptionV3", "ConvNeXtTiny", "VGG19", "EfficientNetB1", "EfficientNetV2B1", "EfficientNetV2B2",
    "EfficientNetB2", "EfficientNetV2B3", "EfficientNetB3", "ResNet101", "ResNet101V2", "DenseNet169", "DenseNet201", "EfficientNetV2S", "EfficientNetB4",
    "ConvNeXtSmall", "ResNet152", "ResNet152V2", "InceptionResNetV2",
)
LAST = ("ConvNeXtBase", "EfficientNetB5", "EfficientNetB6", "EfficientNetV2M", "EfficientNetB7", "NASNetLarge", "EfficientNetV2L", "ConvNeXtLarge", "ConvNeXtXLarge")


def side(name: str) -> int:
    """The side of the pictures: what Keras takes at least, or enough for several pixels in the last batch norms. With one pixel of two samples steps are
    chaos: DenseNet121 of Keras from weights that are 1e-14 apart ends a first step 4e-3 apart."""
    if name.startswith(("DenseNet", "ResNet", "EfficientNetV2")):
        return 64
    return 107 if name.startswith("Inception") else 71 if name == "Xception" else 48


# Learning rates of the deepest.
RATES = {
    "ResNet101": 3e-7, "ResNet152": 2e-8, "ResNet152V2": 1e-6, "InceptionResNetV2": 1e-6, "EfficientNetV2S": 1e-6, "EfficientNetV2M": 1e-8, "EfficientNetV2L": 1e-8,
    "EfficientNetB5": 1e-6, "EfficientNetB6": 1e-6, "EfficientNetB7": 1e-6, "NASNetLarge": 1e-6,
}  # fmt: skip


def rate(name: str) -> float:
    """The learning rate: from random weights some have gradients so large (1e4 in ResNet152) that steps of 1e-4 are chaos too. ResNet50 of Keras from weights that
    are 1e-14 apart ends four of them 1e-3 apart, and five steps of 1e-5 3e-7; ResNet101 five of 1e-6 3e-2."""
    return RATES.get(name, 1e-5 if name.startswith(("ResNet", "Inception", "EfficientNetV2")) else 1e-4)


# So deep that without batch norms that know their statistics a prediction is chaos: EfficientNetV2M of Keras from inputs that are 1e-14 apart gives logits
# of 1e5 that are 1e4 apart.
SETTLED = ("EfficientNetV2M", "EfficientNetV2L")


def settle(model: Any, x: Any) -> None:
    """Gives batch norms the statistics of these samples, as a training would."""
    norms = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    momentum = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    model(x, training=True)
    for layer, own in zip(norms, momentum):
        layer.momentum = own


def application(name: str) -> tuple[Any, Any, Any]:
    # In f32 batch norms of few pixels make so much of the last bit that steps cannot be compared. Layer norms do not, and their models are large.
    kind = "float32" if name.startswith("ConvNeXt") else "float64"
    keras.config.set_floatx(kind)
    keras.config.set_dtype_policy(kind)
    model = getattr(keras.applications, name)(weights=None, classes=4, input_shape=(side(name), side(name), 3))
    # Without what draws random numbers, so that steps can be compared.
    for layer in model._flatten_layers():
        for drops in ("rate", "drop_path_rate"):
            if isinstance(getattr(layer, drops, None), float):
                setattr(layer, drops, 0.0)
    # To trace a step takes longer than to run it five times.
    model.compile(keras.optimizers.SGD(rate(name)), "sparse_categorical_crossentropy", run_eagerly=True)
    samples = BATCH * STEPS
    x = shares(1, samples, side(name), side(name), 3).astype(kind)
    if name in SETTLED:
        settle(model, x)
    return model, x, classes(2, 4, samples)


def place(name: str) -> tuple[int, str]:
    known = FIRST + ("",) + LAST
    return (known.index(name) if name in known else len(FIRST), name)


# On TensorFlow, where Keras rounds the factor of a Rescaling in a float64 model to float32, as is done here; on PyTorch it does not.
for name in sorted((name for name, value in vars(keras.applications).items() if callable(value) and name[0].isupper()), key=place):
    CASES.append(Case("applications", name, "", lambda name=name: application(name), longest=1800, backend="tensorflow", batch=BATCH))
