"""Cases of ``keras.losses`` and ``keras.metrics``."""

from __future__ import annotations

from typing import Any, Callable

import keras
import numpy as np
from keras import layers as L
from keras import losses, metrics

from case import SAMPLES, Case, classes, numbers, one_hot, shares

CASES: list[Case] = []
# What is learned: the labels, and the activation of the outputs that goes with them.
TASKS: dict[str, tuple[Callable[[], np.ndarray], str, tuple[int, ...]]] = {
    "numbers": (lambda: numbers(3, SAMPLES, 4), "linear", (4,)),
    "number": (lambda: numbers(3, SAMPLES, 1), "linear", (1,)),
    "shares": (lambda: shares(3, SAMPLES, 4), "sigmoid", (4,)),
    "share": (lambda: shares(3, SAMPLES, 1), "sigmoid", (1,)),
    "positive": (lambda: shares(3, SAMPLES, 4) * 3, "softplus", (4,)),
    "classes": (lambda: classes(3, 4, SAMPLES), "softmax", (4,)),
    "class logits": (lambda: classes(3, 4, SAMPLES), "linear", (4,)),
    "one-hot": (lambda: one_hot(3, 4, SAMPLES), "softmax", (4,)),
    "one-hot logits": (lambda: one_hot(3, 4, SAMPLES), "linear", (4,)),
    "yes or no": (lambda: classes(3, 2, SAMPLES, 1).astype(np.float32), "sigmoid", (1,)),
    "yes or no logits": (lambda: classes(3, 2, SAMPLES, 1).astype(np.float32), "linear", (1,)),
    "several yes or no": (lambda: classes(3, 2, SAMPLES, 4).astype(np.float32), "sigmoid", (4,)),
    "sequence of classes": (lambda: classes(3, 4, SAMPLES, 3), "softmax", (3, 4)),
    "sequence one-hot": (lambda: one_hot(3, 4, SAMPLES, 3), "softmax", (3, 4)),
    "sequence of numbers": (lambda: numbers(3, SAMPLES, 3, 4), "linear", (3, 4)),
    # Outputs are often exactly 0, and so are labels.
    "numbers of classes": (lambda: np.maximum(np.round(numbers(3, SAMPLES, 4)), 0), "relu", (4,)),
}


def task(kind: str, loss: Any, measured: list[Any]) -> tuple[Any, Any, Any]:
    labels, activation, shape = TASKS[kind]
    inputs = keras.Input((*shape[:-1], 5))
    x = L.Dense(shape[-1])(L.Dense(6, activation="tanh")(inputs))
    model = keras.Model(inputs, L.Activation(activation)(x))
    # Sums have gradients so much larger.
    rate = 0.001 if getattr(loss, "reduction", "") == "sum" else 0.1
    model.compile(keras.optimizers.SGD(rate), loss, metrics=measured)
    return model, numbers(1, SAMPLES, *shape[:-1], 5), labels()


def loss(name: str, kind: str, label: str = "", **config: Any) -> None:
    label = label or (", ".join(f"{key}={value}" for key, value in config.items()) or "as it is") + f" on {kind}"
    CASES.append(Case("losses", name, label, lambda: task(kind, getattr(losses, name)(**config), [])))


def word(name: str, kind: str, *words: str) -> None:
    for text in words:
        CASES.append(Case("losses", name, f'"{text}" on {kind}', lambda text=text: task(kind, text, [])))


for name, kinds in (
    ("MeanSquaredError", ("numbers", "sequence of numbers")), ("MeanAbsoluteError", ("numbers",)), ("MeanAbsolutePercentageError", ("positive",)),
    ("MeanSquaredLogarithmicError", ("positive",)), ("Huber", ("numbers",)), ("LogCosh", ("numbers",)), ("Poisson", ("positive",)),
    ("KLDivergence", ("one-hot", "shares")), ("CosineSimilarity", ("numbers", "sequence of numbers")), ("Hinge", ("several yes or no", "yes or no logits")),
    ("SquaredHinge", ("several yes or no",)), ("CategoricalHinge", ("one-hot", "one-hot logits")), ("BinaryCrossentropy", ("yes or no", "several yes or no")),
    ("CategoricalCrossentropy", ("one-hot", "sequence one-hot")), ("SparseCategoricalCrossentropy", ("classes", "sequence of classes")),
    ("BinaryFocalCrossentropy", ("yes or no", "several yes or no")), ("CategoricalFocalCrossentropy", ("one-hot",)),
    ("CategoricalGeneralizedCrossEntropy", ("classes",)), ("Dice", ("several yes or no", "sequence one-hot")), ("Tversky", ("several yes or no", "sequence one-hot")),
    ("Circle", ("classes",)),
):
    for kind in kinds:
        loss(name, kind)
    for reduction in ("sum", "mean", "mean_with_sample_weight"):
        loss(name, kinds[0], reduction=reduction)
loss("Huber", "numbers", delta=0.3)
for name in ("CosineSimilarity",):
    loss(name, "sequence of numbers", axis=1)
for name in ("BinaryCrossentropy", "BinaryFocalCrossentropy"):
    loss(name, "yes or no logits", from_logits=True)
    loss(name, "yes or no", label_smoothing=0.1)
    loss(name, "sequence one-hot", axis=1)
loss("BinaryFocalCrossentropy", "yes or no", apply_class_balancing=True, alpha=0.3, gamma=1.5)
for name in ("CategoricalCrossentropy", "CategoricalFocalCrossentropy"):
    loss(name, "one-hot logits", from_logits=True)
    loss(name, "one-hot", label_smoothing=0.1)
    loss(name, "sequence one-hot", axis=1)
loss("CategoricalFocalCrossentropy", "one-hot", alpha=[0.1, 0.2, 0.3, 0.4], gamma=1.5)
loss("SparseCategoricalCrossentropy", "class logits", from_logits=True)
loss("SparseCategoricalCrossentropy", "classes", ignore_class=1)
loss("SparseCategoricalCrossentropy", "sequence of classes", ignore_class=0)
loss("CategoricalGeneralizedCrossEntropy", "classes", q=0.7)
loss("Dice", "sequence one-hot", axis=(1, 2))
loss("Tversky", "several yes or no", alpha=0.3, beta=0.7)
loss("Tversky", "sequence one-hot", axis=(1, 2))
loss("Circle", "classes", gamma=10, margin=0.2)
word("MeanSquaredError", "numbers", "mse", "MSE", "mean_squared_error")
word("MeanAbsoluteError", "numbers", "mae", "MAE")
word("MeanAbsolutePercentageError", "positive", "mape", "MAPE")
word("MeanSquaredLogarithmicError", "positive", "msle", "MSLE")
word("BinaryCrossentropy", "yes or no", "bce", "BCE", "binary_crossentropy", "BinaryCrossentropy")
word("KLDivergence", "one-hot", "kld", "KLD", "kl_divergence")
word("LogCosh", "numbers", "log_cosh")
word("Huber", "numbers", "huber")
word("CosineSimilarity", "numbers", "cosine_similarity")
word("Dice", "several yes or no", "dice")
word("Hinge", "several yes or no", "hinge")


def ctc() -> tuple[Any, Any, Any]:
    inputs = keras.Input((6, 5))
    model = keras.Model(inputs, L.Dense(4)(inputs))
    model.compile(keras.optimizers.SGD(0.1), losses.CTC())
    return model, numbers(1, SAMPLES, 6, 5), classes(3, 3, SAMPLES, 2) + 1


CASES.append(Case("losses", "CTC", "as it is", ctc))

LOSS_OF = {
    "classes": "sparse_categorical_crossentropy", "one-hot": "categorical_crossentropy", "yes or no": "binary_crossentropy", "several yes or no": "binary_crossentropy",
    "sequence of classes": "sparse_categorical_crossentropy", "sequence one-hot": "categorical_crossentropy",
}


def metric(name: str, kind: str, **config: Any) -> None:
    label = (", ".join(f"{key}={value}" for key, value in config.items()) or "as it is") + f" on {kind}"
    CASES.append(Case("metrics", name, label, lambda: task(kind, LOSS_OF.get(kind, "mse"), [getattr(metrics, name)(**config)]), metric=name))


for name in ("MeanSquaredError", "MeanAbsoluteError", "RootMeanSquaredError", "LogCoshError", "CosineSimilarity", "R2Score", "ConcordanceCorrelation", "PearsonCorrelation"):
    metric(name, "numbers")
metric("R2Score", "number")
metric("R2Score", "numbers", class_aggregation=None)
metric("R2Score", "numbers", class_aggregation="variance_weighted_average")
metric("R2Score", "number", num_regressors=2)
metric("CosineSimilarity", "sequence of numbers", axis=1)
for name in ("MeanAbsolutePercentageError", "MeanSquaredLogarithmicError", "Poisson"):
    metric(name, "positive")
metric("KLDivergence", "one-hot")
for name in ("Hinge", "SquaredHinge"):
    metric(name, "several yes or no")
metric("CategoricalHinge", "one-hot")
metric("Accuracy", "numbers of classes")
metric("BinaryAccuracy", "several yes or no")
metric("BinaryAccuracy", "yes or no", threshold=0.4)
for name in ("CategoricalAccuracy", "CategoricalCrossentropy"):
    metric(name, "one-hot")
for name in ("SparseCategoricalAccuracy", "SparseCategoricalCrossentropy"):
    metric(name, "classes")
    metric(name, "sequence of classes")
metric("TopKCategoricalAccuracy", "one-hot", k=2)
metric("SparseTopKCategoricalAccuracy", "classes", k=2)
metric("SparseTopKCategoricalAccuracy", "sequence of classes", k=3)
metric("BinaryCrossentropy", "yes or no", label_smoothing=0.1)
metric("CategoricalCrossentropy", "one-hot", label_smoothing=0.1)
for name in ("Precision", "Recall"):
    metric(name, "several yes or no")
    metric(name, "several yes or no", thresholds=0.4)
    metric(name, "one-hot", class_id=1)
    metric(name, "one-hot", top_k=2)
    metric(name, "several yes or no", thresholds=[0.3, 0.6])
for name in ("TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives"):
    metric(name, "several yes or no")
    metric(name, "yes or no", thresholds=0.4)
    metric(name, "yes or no", thresholds=[0.3, 0.6])
metric("AUC", "yes or no")
metric("AUC", "several yes or no", multi_label=True)
metric("AUC", "yes or no", curve="PR")
metric("AUC", "yes or no", num_thresholds=20, summation_method="minoring")
metric("AUC", "yes or no", thresholds=[0.2, 0.5, 0.7])
metric("AUC", "several yes or no", multi_label=True, label_weights=[0.1, 0.2, 0.3, 0.4])
for name, key in (("PrecisionAtRecall", "recall"), ("RecallAtPrecision", "precision"), ("SensitivityAtSpecificity", "specificity"), ("SpecificityAtSensitivity", "sensitivity")):
    metric(name, "yes or no", **{key: 0.5})
    metric(name, "several yes or no", **{key: 0.6}, num_thresholds=50)
for name, extra in (("F1Score", {}), ("FBetaScore", {"beta": 2.0})):
    for average in (None, "micro", "macro", "weighted"):
        metric(name, "one-hot", average=average, **extra)
    metric(name, "several yes or no", average="macro", threshold=0.5, **extra)
metric("BinaryIoU", "several yes or no")
metric("BinaryIoU", "several yes or no", target_class_ids=[1], threshold=0.4)
metric("IoU", "classes", num_classes=4, target_class_ids=[0, 2], sparse_y_pred=False)
metric("OneHotIoU", "one-hot", num_classes=4, target_class_ids=[0, 2])
metric("MeanIoU", "classes", num_classes=4, sparse_y_pred=False)
metric("MeanIoU", "sequence of classes", num_classes=4, sparse_y_pred=False, ignore_class=0)
metric("OneHotMeanIoU", "one-hot", num_classes=4)
for text, kind, name in (("accuracy", "classes", "SparseCategoricalAccuracy"), ("accuracy", "one-hot", "CategoricalAccuracy"), ("accuracy", "several yes or no", "BinaryAccuracy"), ("acc", "yes or no", "BinaryAccuracy"), ("mse", "numbers", "MeanSquaredError"), ("MAE", "numbers", "MeanAbsoluteError"), ("cosine_similarity", "numbers", "CosineSimilarity"), ("bce", "yes or no", "BinaryCrossentropy")):
    CASES.append(Case("metrics", name, f'"{text}" on {kind}', lambda text=text, kind=kind: task(kind, LOSS_OF.get(kind, "mse"), [text]), metric=text))
