"""Cases of convolutions, pooling, sizes, and the layers of images and features that prepare data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers as L

from case import SAMPLES, Case, classes, numbers, shares
from layers import CASES as _LAYERS
from layers import case, compiled, layer, settings
import recurrent  # noqa: F401  (its cases go into the same list)

# They are all in one list, which `layers` begins.
CASES: list[Case] = []
del _LAYERS

SPACE: dict[int, tuple[int, ...]] = {1: (8,), 2: (8, 7), 3: (5, 6, 5)}


def firsts(axes: int) -> tuple[int, ...]:
    return (4, *SPACE[axes])


for axes in (1, 2, 3):
    shape, first = (*SPACE[axes], 4), firsts(axes)
    own: list[dict[str, Any]] = [
        {}, {"strides": 2}, {"padding": "same"}, {"padding": "same", "strides": 2}, {"dilation_rate": 2}, {"groups": 2}, {"use_bias": False},
        {"activation": "relu", "kernel_regularizer": keras.regularizers.L2(0.01)},
    ]
    own = own[:-3] + own[-2:] if axes == 3 else own
    name = f"Conv{axes}D"
    settings(name, shape, *({"filters": 6, "kernel_size": 3, **config} for config in own))
    settings(name, first, {"filters": 6, "kernel_size": 3, "data_format": "channels_first"}, front=False)
    settings(name, shape, {"filters": 6, "kernel_size": 2, "kernel_constraint": keras.constraints.MaxNorm(1.0, axis=list(range(axes + 1)))})
    name = f"Conv{axes}DTranspose"
    settings(
        name, shape,
        *({"filters": 6, "kernel_size": 3, **config} for config in
          ({}, {"strides": 2}, {"padding": "same", "strides": 2}, {"strides": 2, "output_padding": 1}, {"padding": "same", "strides": 2, "output_padding": 1}, {"dilation_rate": 2}, {"use_bias": False})),
        {"filters": 6, "kernel_size": 2, "strides": 3},
    )
    settings(name, first, {"filters": 6, "kernel_size": 3, "data_format": "channels_first"}, front=False)
    for kind in ("Max", "Average"):
        name = f"{kind}Pooling{axes}D"
        settings(name, shape, {"pool_size": 2}, {"pool_size": 3, "strides": 2}, {"pool_size": 2, "padding": "same"}, {"pool_size": 3, "strides": 1, "padding": "same"})
        settings(name, first, {"pool_size": 2, "data_format": "channels_first"}, front=False, back=True)
        settings(f"Global{kind}Pooling{axes}D", shape, {}, {"keepdims": True})
        settings(f"Global{kind}Pooling{axes}D", first, {"data_format": "channels_first"}, front=False, back=True)
        name = f"Adaptive{kind}Pooling{axes}D"
        if hasattr(L, name):
            settings(name, shape, {"output_size": 2}, {"output_size": 3})
            settings(name, first, {"output_size": 2, "data_format": "channels_first"}, front=False, back=True)
    settings(f"UpSampling{axes}D", shape, {}, {"size": 3})
    settings(f"ZeroPadding{axes}D", shape, {}, {"padding": 2})
    settings(f"Cropping{axes}D", shape, {}, {"cropping": 2})
    if axes > 1:
        for name in ("UpSampling", "ZeroPadding", "Cropping"):
            settings(f"{name}{axes}D", first, {"data_format": "channels_first"}, front=False, back=True)
settings("Conv1D", (8, 4), {"filters": 6, "kernel_size": 3, "padding": "causal", "dilation_rate": 2})
settings("Conv1D", (8, 4), {"filters": 6, "kernel_size": 3, "activation": L.PReLU(shared_axes=[1])}, {"filters": 6, "kernel_size": 3, "lora_rank": 2})
settings("Conv2D", (8, 7, 4), {"filters": 6, "kernel_size": 3, "activation": L.PReLU()}, {"filters": 6, "kernel_size": 3, "groups": 2, "lora_rank": 2})
settings("Conv2D", (4, 8, 7), {"filters": 6, "kernel_size": 3, "data_format": "channels_first", "activation": L.PReLU(shared_axes=[2, 3])}, front=False)
settings("Conv3D", (5, 6, 5, 4), {"filters": 6, "kernel_size": 2, "lora_rank": 1, "lora_alpha": 3.0})
settings("UpSampling2D", (4, 5, 3), {"interpolation": "bilinear"}, {"interpolation": "bicubic"})
for axes in (1, 2):
    shape, first = (*SPACE[axes], 4), firsts(axes)
    settings(f"DepthwiseConv{axes}D", shape, {"kernel_size": 3}, {"kernel_size": 3, "depth_multiplier": 2, "padding": "same"}, {"kernel_size": 3, "strides": 2, "use_bias": False})
    settings(f"DepthwiseConv{axes}D", first, {"kernel_size": 3, "data_format": "channels_first"}, front=False)
    settings(f"SeparableConv{axes}D", shape, {"filters": 6, "kernel_size": 3}, {"filters": 6, "kernel_size": 3, "depth_multiplier": 2, "padding": "same"}, {"filters": 6, "kernel_size": 3, "strides": 2})
    settings(f"SeparableConv{axes}D", first, {"filters": 6, "kernel_size": 3, "data_format": "channels_first"}, front=False)
settings("BatchNormalization", (4, 6, 5), {"axis": 1}, front=False)

PIXELS = (shares(1, SAMPLES, 8, 9, 3) * 255).astype(np.float32)
DRAWN = "trained: the same distribution"


def picture(name: str, *configs: dict[str, Any], untrained: str = "", pixels: np.ndarray = PIXELS, shape: tuple[int, ...] = (8, 9, 3), backend: str = "torch") -> None:
    for config in configs:
        label = ", ".join(f"{key}={value}" for key, value in config.items()) or "as it is"

        def made(config: dict[str, Any] = config) -> tuple[Any, Any, Any]:
            inputs = keras.Input(shape)
            x = L.Rescaling(1 / 255)(getattr(L, name)(**config)(inputs))
            return compiled(keras.Model(inputs, L.Dense(2)(x)), pixels)

        case(name, label, made, untrained, backend)


picture("Rescaling", {"scale": 0.01}, {"scale": 0.01, "offset": -1.0}, {"scale": [0.1, 0.2, 0.3], "offset": [1.0, 2.0, 3.0]})
picture("CenterCrop", {"height": 4, "width": 5}, {"height": 6, "width": 20}, {"height": 12, "width": 12})
picture(
    "Resizing", {"height": 4, "width": 5}, {"height": 12, "width": 13}, {"height": 12, "width": 13, "interpolation": "nearest"}, {"height": 12, "width": 13, "interpolation": "bicubic"},
    {"height": 4, "width": 4, "crop_to_aspect_ratio": True}, {"height": 12, "width": 12, "pad_to_aspect_ratio": True}, {"height": 12, "width": 5, "pad_to_aspect_ratio": True, "fill_value": 9.0}, {"height": 4, "width": 4, "antialias": True},
)
for name, config in (
    ("RandomBrightness", {"factor": 0.2}), ("RandomContrast", {"factor": 0.2}), ("RandomFlip", {}), ("RandomRotation", {"factor": 0.1}),
    ("RandomTranslation", {"height_factor": 0.1, "width_factor": 0.1}), ("RandomZoom", {"height_factor": 0.1}), ("RandomCrop", {"height": 8, "width": 9}),
    ("RandomColorDegeneration", {"factor": 0.3}), ("RandomColorJitter", {"value_range": (0, 255), "brightness_factor": 0.2}), ("RandomElasticTransform", {}), ("RandomErasing", {}),
    ("RandomGaussianBlur", {}), ("RandomGrayscale", {}), ("RandomHue", {"factor": 0.2}), ("RandomInvert", {}), ("RandomPerspective", {}), ("RandomPosterization", {"factor": 4}),
    ("RandomSaturation", {"factor": 0.3}), ("RandomSharpness", {"factor": 0.3}), ("RandomShear", {"x_factor": 0.2}), ("AugMix", {}), ("MixUp", {}), ("CutMix", {}),
):
    picture(name, config, untrained=DRAWN)
picture("RandomFlip", {"mode": "horizontal"}, {"mode": "vertical"}, untrained=DRAWN)
picture("RandomContrast", {"factor": (0.3, 0.1)}, {"factor": (0.0, 0.0)}, untrained=DRAWN)
picture("RandomZoom", {"height_factor": (0.1, 0.2), "width_factor": (0.0, 0.1), "fill_mode": "nearest"}, untrained=DRAWN)
picture("RandomRotation", {"factor": 0.1, "fill_mode": "constant", "interpolation": "nearest"}, untrained=DRAWN)
picture("RandomColorJitter", {"contrast_factor": 0.3, "saturation_factor": 0.4, "hue_factor": 0.2}, untrained=DRAWN)
picture("RandomErasing", {"factor": 0.7, "scale": (0.1, 0.5), "fill_value": 9.0}, {"factor": 1.0, "fill_value": (10.0, 20.0, 30.0)}, untrained=DRAWN)
picture("RandomGaussianBlur", {"factor": 0.5, "kernel_size": 5, "sigma": (0.3, 0.9)}, untrained=DRAWN)
picture("RandomElasticTransform", {"factor": 0.6, "scale": (0.4, 1.0), "fill_mode": "nearest"}, untrained=DRAWN)
picture("RandomPerspective", {"factor": 0.6, "scale": 0.5, "fill_value": 7.0, "interpolation": "nearest"}, untrained=DRAWN)
# On PyTorch Keras changes images in place here, also those that were not chosen.
picture("RandAugment", {}, {"num_ops": 1, "factor": 0.3}, untrained=DRAWN, backend="tensorflow")
picture("AugMix", {"num_chains": 2, "chain_depth": 1, "all_ops": False}, untrained=DRAWN)
picture("MixUp", {"alpha": 2.0}, untrained=DRAWN)
picture("CutMix", {"factor": (0.5, 0.9)}, untrained=DRAWN)
picture("RandomShear", {"x_factor": (0.1, 0.4), "y_factor": 0.3, "fill_mode": "wrap"}, untrained=DRAWN)
# Between two equal numbers nothing is left to chance, so that five steps can be compared.
for fill in ("reflect", "nearest", "wrap", "constant"):
    for how in ("bilinear", "nearest"):
        given = {"fill_mode": fill, "interpolation": how, "fill_value": 3.0}
        picture("RandomRotation", {"factor": (0.07, 0.07), **given})
        picture("RandomTranslation", {"height_factor": (0.23, 0.23), "width_factor": (-0.31, -0.31), **given})
        picture("RandomZoom", {"height_factor": (0.13, 0.13), "width_factor": (-0.27, -0.27), **given})
picture("RandomZoom", {"height_factor": (0.37, 0.37)})
picture("RandomBrightness", {"factor": (0.1, 0.1)})
picture("RandomColorDegeneration", {"factor": (0.4, 0.4)})
picture("RandomSaturation", {"factor": (0.3, 0.3)}, {"factor": (0.7, 0.7)})
picture("RandomSharpness", {"factor": (0.2, 0.2)}, {"factor": (0.9, 0.9)})
picture("RandomPosterization", {"factor": (3, 3)}, {"factor": (7, 7)})
picture("RandomInvert", {"factor": (1.0, 1.0)})
picture("RandomGrayscale", {"factor": 1.0})
picture("RandomGaussianBlur", {"factor": (1.0, 1.0), "sigma": (0.6, 0.6)}, {"factor": (1.0, 1.0), "kernel_size": 5, "sigma": (0.9, 0.9)})
picture("RandomPerspective", {"factor": (1.0, 1.0), "scale": 0.0})
picture("RandomErasing", {"factor": (0.0, 0.0)})
picture("RandomRotation", {"factor": (0.07, 0.07), "data_format": "channels_first"}, shape=(3, 8, 9), pixels=np.moveaxis(PIXELS, -1, 1).copy())
picture("AutoContrast", {})
picture("Equalization", {})
picture("Solarization", {"addition_factor": 0.1, "threshold_factor": 0.5}, untrained=DRAWN)
# On PyTorch Keras repeats the last pixel where it should mirror the image.
picture("ContrastLimitedAdaptiveHistogramEqualization", {}, {"clip_limit": 0.0, "tile_grid_size": (2, 3)}, backend="tensorflow")


def pipeline() -> tuple[Any, Any, Any]:
    inputs = keras.Input((8, 9, 3))
    x = L.Pipeline([L.CenterCrop(6, 6), L.Rescaling(1 / 255)])(inputs)
    return compiled(keras.Model(inputs, L.Dense(2)(x)), PIXELS)


case("Pipeline", "as it is", pipeline)


def adapted(make: Any, data: np.ndarray) -> Any:
    own = make()
    own.adapt(data)
    return own


layer("Normalization", "adapted", lambda: adapted(lambda: L.Normalization(), numbers(1, SAMPLES, 6) * 3 + 1), 6, front=False, back=True)
layer("Normalization", "adapted, axis=None", lambda: adapted(lambda: L.Normalization(axis=None), numbers(1, SAMPLES, 6) * 3 + 1), 6, front=False, back=True)
layer("Normalization", "mean, variance", lambda: L.Normalization(mean=[1.0] * 6, variance=[2.0] * 6), 6, back=True)
layer("Normalization", "inverted", lambda: L.Normalization(mean=2.0, variance=3.0, axis=None, invert=True), 6, back=True)
layer("Discretization", "boundaries", lambda: keras.Sequential([L.Discretization([-0.5, 0.0, 0.7]), L.Embedding(4, 3)]), 6, front=False, back=True)
layer("Discretization", "adapted", lambda: keras.Sequential([adapted(lambda: L.Discretization(num_bins=4), numbers(1, SAMPLES, 6)), L.Embedding(4, 3)]), 6, front=False, back=True)
layer("Discretization", "one_hot", lambda: L.Discretization([-0.5, 0.0, 0.7], output_mode="one_hot"), 1, front=False, back=True)
layer("Discretization", "multi_hot", lambda: L.Discretization([-0.5, 0.0, 0.7], output_mode="multi_hot"), 6, front=False, back=True)
layer("Discretization", "count", lambda: L.Discretization([-0.5, 0.0, 0.7], output_mode="count"), 6, front=False, back=True)
for mode in ("one_hot", "multi_hot", "count"):
    layer("CategoryEncoding", mode, lambda mode=mode: L.CategoryEncoding(num_tokens=5, output_mode=mode), 1 if mode == "one_hot" else 3, dtype="int32", data=classes(1, 5, SAMPLES, 1 if mode == "one_hot" else 3))
layer("IntegerLookup", "vocabulary", lambda: keras.Sequential([L.IntegerLookup(vocabulary=[12, 5, 9]), L.Embedding(5, 3)]), 4, dtype="int64", data=classes(1, 14, SAMPLES, 4))
layer("IntegerLookup", "two out of it", lambda: keras.Sequential([L.IntegerLookup(vocabulary=[12, 5, 9], num_oov_indices=2), L.Embedding(6, 3)]), 4, dtype="int64", data=classes(1, 14, SAMPLES, 4))
layer("IntegerLookup", "multi_hot", lambda: L.IntegerLookup(vocabulary=[12, 5, 9], output_mode="multi_hot"), 4, dtype="int64", data=classes(1, 14, SAMPLES, 4))
layer("IntegerLookup", "its own words first, a mask", lambda: keras.Sequential([L.IntegerLookup(vocabulary=[0, -1, -1, 12, 5, 9], mask_token=0, num_oov_indices=2), L.Embedding(6, 3)]), 4, dtype="int64", data=classes(1, 14, SAMPLES, 4))
layer("IntegerLookup", "adapted", lambda: keras.Sequential([adapted(L.IntegerLookup, classes(2, 9, 30)), L.Embedding(11, 3)]), 4, dtype="int64", data=classes(1, 14, SAMPLES, 4))
layer("IntegerLookup", "oov_method=farmhash", lambda: keras.Sequential([L.IntegerLookup(vocabulary=[12, 5, 9], num_oov_indices=3, oov_method="farmhash"), L.Embedding(6, 3)]), 4, dtype="int64", data=classes(1, 14, SAMPLES, 4))
layer("Hashing", "integers", lambda: keras.Sequential([L.Hashing(7), L.Embedding(7, 3)]), 4, dtype="int64", data=classes(1, 100, SAMPLES, 4))
layer("Hashing", "salted", lambda: keras.Sequential([L.Hashing(7, salt=5), L.Embedding(7, 3)]), 4, dtype="int64", data=classes(1, 100, SAMPLES, 4))

layer("Hashing", "mask_value, one_hot", lambda: L.Hashing(5, mask_value=3, output_mode="one_hot"), 1, dtype="int64", data=classes(1, 9, SAMPLES, 1))


def crossed() -> tuple[Any, Any, Any]:
    a, b = keras.Input((1,), dtype="int64"), keras.Input((1,), dtype="int64")
    x = L.HashedCrossing(6, output_mode="one_hot")([a, b])
    return compiled(keras.Model([a, b], L.Dense(2)(x)), [classes(1, 9, SAMPLES, 1), classes(2, 9, SAMPLES, 1)])


case("HashedCrossing", "integers", crossed)


for mode in ("log", "magnitude", "real", "imag", "stft"):
    settings("STFTSpectrogram", (64, 1), {"mode": mode, "frame_length": 16, "frame_step": 8, "fft_length": 16, "window": None})
settings("STFTSpectrogram", (64, 2), {"mode": "real", "frame_length": 12, "frame_step": 5, "padding": "same", "window": None}, {"mode": "magnitude", "frame_length": 12, "expand_dims": True, "window": None})
settings("STFTSpectrogram", (64, 1), {"mode": "psd", "frame_length": 16, "window": None}, data=numbers(1, SAMPLES, 64, 1) * 0.02)
settings("MelSpectrogram", (256,), {"num_mel_bins": 4, "sampling_rate": 1000, "sequence_stride": 32, "fft_length": 64, "min_freq": 20.0, "max_freq": 400.0}, front=False, back=True)
