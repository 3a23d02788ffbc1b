"""Writes metrics.json beside itself.

usage: python make.py        (needs keras, tensorflow and numpy)

metrics.json: outputs and labels of some samples, and what Keras's metrics give for them, fed in batches of 7. Some
outputs are on thresholds exactly, some beyond 0 and 1.
"""
import json, os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import keras
import numpy as np
from keras import metrics as m

here = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(11)
N = 60


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


truth = (rng.random(N) < 0.4).astype(np.float32)
scores = np.clip(rng.normal(0.35 + 0.3 * truth, 0.25), 0, 1).astype(np.float32)
scores[:8] = np.asarray([0.0, 1.0, 0.5, 100 / 199, 17 / 199, -0.25, 1.25, 0.3], np.float32)
many = (rng.random((N, 3)) < [0.2, 0.5, 0.9]).astype(np.float32)
labels = rng.integers(0, 6, N)
logits = rng.normal(size=(N, 6)).astype(np.float32)
logits[np.arange(N), labels] += 0.8

SETS = {
    "scores": (scores, truth),
    "column": (scores[:, None], truth),
    "scores_logits": (rng.normal(truth - 0.5, 1.5).astype(np.float32), truth),
    "many": (np.clip(rng.normal(0.3 + 0.3 * many, 0.3), 0, 1).astype(np.float32), many),
    "sparse": (softmax(logits).astype(np.float32), labels.astype(np.float32)),
    "hot": (softmax(logits).astype(np.float32), np.eye(6, dtype=np.float32)[labels]),
    "never": (scores * 0.01, truth),
    "numbers": (rng.normal(size=(N, 2)).astype(np.float32), rng.normal(size=(N, 2)).astype(np.float32)),
}

CASES = {
    "auc": ("scores", lambda: m.AUC()),
    "auc_column": ("column", lambda: m.AUC()),
    "auc_logits": ("scores_logits", lambda: m.AUC(from_logits=True)),
    "auc_pr": ("scores", lambda: m.AUC(curve="PR")),
    "auc_pr_minoring": ("scores", lambda: m.AUC(curve="PR", summation_method="minoring")),
    "auc_majoring": ("scores", lambda: m.AUC(summation_method="majoring", num_thresholds=20)),
    "auc_minoring": ("scores", lambda: m.AUC(summation_method="minoring", num_thresholds=5)),
    "auc_many": ("many", lambda: m.AUC()),
    "auc_by_label": ("many", lambda: m.AUC(multi_label=True, num_thresholds=50)),
    "auc_pr_by_label": ("many", lambda: m.AUC(multi_label=True, curve="PR")),
    "auc_never": ("never", lambda: m.AUC()),
    "precision": ("scores", lambda: m.Precision()),
    "precision_30": ("scores", lambda: m.Precision(thresholds=0.3)),
    "precision_hot": ("hot", lambda: m.Precision(thresholds=0.2)),
    "precision_class": ("hot", lambda: m.Precision(class_id=2, thresholds=0.3)),
    "precision_never": ("never", lambda: m.Precision()),
    "recall": ("scores", lambda: m.Recall()),
    "recall_many": ("many", lambda: m.Recall(thresholds=0.25)),
    "recall_class": ("hot", lambda: m.Recall(class_id=4)),
    "recall_never": ("never", lambda: m.Recall()),
    "binary": ("column", lambda: m.BinaryAccuracy()),
    "binary_30": ("many", lambda: m.BinaryAccuracy(threshold=0.3)),
    "top2": ("hot", lambda: m.TopKCategoricalAccuracy(k=2)),
    "sparse_top3": ("sparse", lambda: m.SparseTopKCategoricalAccuracy(k=3)),
    "accuracy": ("hot", lambda: m.CategoricalAccuracy()),
    "sparse_accuracy": ("sparse", lambda: m.SparseCategoricalAccuracy()),
    "mean_iou": ("hot", lambda: m.OneHotMeanIoU(6)),
    "sparse_mean_iou": ("sparse", lambda: m.MeanIoU(6, sparse_y_pred=False)),
    "mse": ("numbers", lambda: m.MeanSquaredError()),
    "mae": ("numbers", lambda: m.MeanAbsoluteError()),
    "rmse": ("numbers", lambda: m.RootMeanSquaredError()),
}


def value(of, make):
    (x, t), metric = SETS[of], make()
    for at in range(0, N, 7):
        metric.update_state(t[at:at + 7], x[at:at + 7])
    return float(metric.result())


if __name__ == "__main__":
    flat = lambda a: {"shape": list(a.shape), "values": [float(x) for x in a.reshape(-1)]}
    sets = {name: {"outputs": flat(x), "labels": flat(t)} for name, (x, t) in SETS.items()}
    values = {name: {"set": of, "value": value(of, make)} for name, (of, make) in CASES.items()}
    with open(os.path.join(here, "metrics.json"), "w") as f:
        f.write(json.dumps({"sets": sets, "values": values}, indent=None, separators=(",", ":")) + "\n")
    for name, found in values.items():
        print(name, found["value"])
