"""A part of the coverage table, so that what was equal to Keras stays equal; ``python python/coverage`` tries all of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.keras
# One case each of what is not in other tests: the name and the beginning of the label.
EQUAL = [
    ("Hinge", "as it is"), ("BinaryFocalCrossentropy", "apply_class_balancing"), ("CategoricalFocalCrossentropy", "alpha=["),
    ("Tversky", "alpha"), ("Dice", "axis"), ("SparseCategoricalCrossentropy", "ignore_class=0"), ("CosineSimilarity", "axis=1"),
    ("MeanSquaredError", "reduction=sum"), ("Huber", "delta"), ("F1Score", "average=weighted"), ("PrecisionAtRecall", "recall"),
    ("AUC", "thresholds"), ("IoU", "num_classes"), ("R2Score", "class_aggregation=variance"), ("Precision", "top_k"),
    ("Lamb", "as it is"), ("Muon", "as it is"),
    ("Adam", "use_ema=True, ema_momentum"), ("SGD", "gradient_accumulation_steps"), ("LossScaleOptimizer", "around SGD"),
    ("Conv3D", "filters=6, kernel_size=3, padding=same"), ("Conv2DTranspose", "filters=6, kernel_size=3, strides=2, output_padding"),
    ("AdaptiveAveragePooling2D", "output_size=3"), ("Resizing", "height=4, width=4, crop"), ("CenterCrop", "height=4"),
    ("Discretization", "multi_hot"), ("IntegerLookup", "multi_hot"), ("CategoryEncoding", "count"), ("RandomFlip", "mode=horizontal"),
    ("Add", "masks"), ("Attention", "causal"), ("MultiHeadAttention", "with scores"), ("RNN", "of a list"),
    ("sparsemax", "of a layer"), ("where", "where constant"), ("einsum", "einsum"), ("take", "take one"), ("pad", "pad reflect"),
    ("Dense", "units=4, activation=LeakyReLU"), ("Dense", "units=4, kernel_regularizer=OrthogonalRegularizer"), ("CTC", "as it is"),
    ("Adafactor", "clip_threshold"), ("ScheduleFreeAdamW", "weight_decay"), ("MultiOptimizer", "as it is"), ("LossScaleOptimizer", "around Adam"),
    ("SpectralNormalization", "layer=Dense, power_iterations=2"), ("ReversibleEmbedding", "both ways, tie_weights=False"),
    ("Pipeline", "as it is"), ("STFTSpectrogram", "mode=magnitude"), ("MelSpectrogram", "num_mel_bins"), ("Resizing", "height=12, width=12, pad"),
    ("RandomRotation", "factor=(0.07, 0.07), fill_mode=wrap"), ("RandomTranslation", "height_factor=(0.23"), ("RandomZoom", "height_factor=(0.13"),
    ("RandomSaturation", "factor=(0.7"), ("RandomSharpness", "factor=(0.9"), ("RandomPosterization", "factor=(3"), ("RandomGaussianBlur", "factor=(1.0"),
    ("RandomContrast", "factor=(0.3"), ("MixUp", "as it is"), ("Equalization", "as it is"), ("Precision", "thresholds=["), ("F1Score", "average=None"),
    ("Dense", "units=4, lora_rank"), ("Dense", "units=4, activation=PReLU"), ("Conv2D", "filters=6, kernel_size=3, groups=2, lora_rank"), ("Embedding", "lora_rank"),
    ("BatchNormalization", "renorm=True, scale"), ("BatchNormalization", "renorm, mask"), ("TimeDistributed", "of a model with"), ("Hashing", "salted"),
    ("Hashing", "mask_value"), ("LSTM", "stateful"), ("HashedCrossing", "integers"), ("IntegerLookup", "its own words first"), ("IntegerLookup", "adapted"), ("IntegerLookup", "two out"),
]
# Keras itself computes these otherwise on TensorFlow than on PyTorch, which the table is made with.
ONLY_TORCH = {"ScheduleFreeAdamW", "RandomRotation"}
REFUSED = [("UpSampling2D", "interpolation=bicubic", "bicubic")]


def found(name: str, label: str):
    """The first case of a name whose label begins so."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "coverage"))
    import functions
    import images
    import layers
    import operations
    import optimizers
    import training

    lists = (layers, images, operations, training, optimizers, functions)
    return next(case for module in lists for case in module.CASES if case.name == name and case.label.startswith(label))


@pytest.mark.parametrize(("name", "label"), EQUAL)
def test_what_is_in_the_table_as_equal_is_equal(name: str, label: str) -> None:
    import keras

    if name in ONLY_TORCH and keras.backend.backend() != "torch":
        pytest.skip("Keras's backends differ in it; it is held against the one on PyTorch")
    case = found(name, label)
    from case import attempt

    result, why = attempt(case)
    assert result == "equal", why


@pytest.mark.parametrize(("name", "label", "expected"), REFUSED)
def test_what_cannot_be_equal_is_refused_by_name(name: str, label: str, expected: str) -> None:
    case = found(name, label)
    from case import attempt

    result, why = attempt(case)
    assert result == "refused" and expected in why, (result, why)
