"""Losses and metrics of the user's own, followed into the operations of Keras that they call on labels and outputs."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import numpy as np

from plimsoll._traced import FOLLOWING as _FOLLOWING
from plimsoll.errors import PlimsollError


#: What a refusal says where nobody has said what labels are like.
GUESSED = "without x and y labels were taken to be like the output; give both to plan where they are not"


def _own(loss: Any) -> Any:
    """What computes a loss of the user's own, as a function of labels and outputs; nothing where the loss is Keras's."""
    import keras
    from keras.src.losses.loss import squeeze_or_expand_to_same_rank
    from keras.src.losses.losses import LossFunctionWrapper

    if isinstance(loss, LossFunctionWrapper) and type(loss).__module__.startswith("keras."):
        return None if _is_kerass(loss.fn) else loss.call
    if isinstance(loss, keras.losses.Loss):
        return None if _is_kerass(type(loss)) else loss.call
    if not callable(loss) or isinstance(loss, type) or _is_kerass(loss):
        return None
    # As Keras calls a function.
    return lambda labels, outputs: loss(*squeeze_or_expand_to_same_rank(labels, outputs))


def _is_kerass(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).split(".")[0] == "keras"


def _labels(y: Any, names: list[str]) -> list[tuple[int, ...] | None]:
    """The shape of each output's labels, where the data says it."""
    if y is None:
        return [None] * len(names)
    parts = [y.get(name) for name in names] if isinstance(y, dict) else list(y) if isinstance(y, (list, tuple)) and len(names) > 1 else [y]
    if len(parts) != len(names):
        return [None] * len(names)
    return [None if part is None else tuple(int(n) for n in np.shape(part)[1:]) for part in parts]


@contextlib.contextmanager
def _means() -> Iterator[None]:
    """Has losses of Keras's own take the mean of symbolic tensors without asking how many samples there are, which nobody knows yet."""
    import keras

    kind = keras.losses.Loss
    original = kind.__call__

    def called(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if not isinstance(y_pred, keras.KerasTensor) or sample_weight is not None:
            return original(loss, y_true, y_pred, sample_weight)
        each = loss.call(y_true, y_pred)
        if loss.reduction in (None, "none"):
            return each
        return keras.ops.sum(each) if loss.reduction == "sum" else keras.ops.mean(each)

    with _FOLLOWING:
        kind.__call__ = called
        try:
            yield
        finally:
            kind.__call__ = original


def _followed(loss: Any, call: Any, output: Any, labels: tuple[int, ...] | None, is_metric: bool = False) -> dict[str, Any] | None:
    """A loss of the user's own as a model of labels and outputs; of a metric nothing where it is one number for the batch."""
    import keras

    name = getattr(loss, "name", None) or getattr(loss, "__name__", None) or type(loss).__name__
    width = tuple(output.shape[1:])
    is_guessed = labels is None
    if labels is None:
        labels = width
    # Labels have what an output has, or the number of a class in the place of the last axis.
    is_class = labels != width and len(width) > 0 and width[-1] != 1 and (labels == width[:-1] or labels == (*width[:-1], 1))
    kind = keras.config.floatx() if keras.backend.standardize_dtype(output.dtype) != "float64" else "float64"
    inputs = [keras.Input(shape=labels, dtype=kind, name="labels"), keras.Input(shape=width, dtype=kind, name="outputs")]
    try:
        with _means():
            result = call(*inputs)
        if is_metric and len(result.shape) == 0:
            return None
        graph = keras.Model(inputs, result, name="loss")
        whole = keras.saving.serialize_keras_object(graph)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        guessed = f"; {GUESSED}" if is_guessed else ""
        raise PlimsollError(
            f"the loss {name} is not followed here: {lines[0].strip()} (it is called on symbolic tensors, and may use keras.ops and Keras's own losses, and no values)"
            f"{guessed}"
        ) from error
    if any(size is None for size in labels):
        raise PlimsollError(f"the loss {name} is of labels with an axis of unknown length; give x and y, whose shapes say it")
    config = {"name": name, "graph": whole, "labels": list(labels), "classes": is_class, "reduction": getattr(loss, "reduction", None) or "sum_over_batch_size"}
    return {"module": "plimsoll", "class_name": "PlimsollLoss", "config": config, "registered_name": "PlimsollLoss"}


def _given(model: Any) -> dict[str, Any]:
    """What a model was compiled with, as it was given."""
    config = getattr(getattr(model, "_compile_config", None), "config", None)
    return config if isinstance(config, dict) else {}


def has_own(model: Any) -> bool:
    """Whether a loss of a model is of the user's own."""
    loss = _given(model).get("loss")
    every = list(loss.values()) if isinstance(loss, dict) else list(loss) if isinstance(loss, (list, tuple)) else [loss]
    return any(_own(one) for one in every)


@contextlib.contextmanager
def aside(model: Any) -> Iterator[bool]:
    """Takes losses of the user's own out of a model while its configuration is read: not every one can be stored. Gives whether there are such."""
    if not has_own(model):
        yield False
        return
    given = _given(model)
    loss = given.get("loss")
    given["loss"] = None
    try:
        yield True
    finally:
        given["loss"] = loss


def follow(model: Any, read: Any, y: Any) -> Any:
    """The losses of a model's outputs for its compile configuration, with what those of the user's own compute in the place of their names.

    Raises:
        PlimsollError: one computes in a way that cannot be followed.
    """
    import keras

    loss = _given(model).get("loss")
    outputs = list(read.outputs)
    names = [str(name) for name in (getattr(read, "output_names", None) or [f"output_{i}" for i in range(len(outputs))])]
    shapes = _labels(y, names)

    def put(one: Any, i: int) -> Any:
        call = _own(one)
        return keras.saving.serialize_keras_object(one) if call is None or i >= len(outputs) else _followed(one, call, outputs[i], shapes[i])

    if isinstance(loss, dict):
        return {name: put(one, names.index(name) if name in names else len(names)) for name, one in loss.items()}
    if isinstance(loss, (list, tuple)):
        return [put(one, i) for i, one in enumerate(loss)]
    return [put(loss, i) for i in range(len(outputs))]


def follow_metrics(model: Any, read: Any, compiled: dict[str, Any], y: Any) -> None:
    """Puts what functions of the user's own measure into the compile configuration. One that cannot be followed, or gives one number for a whole batch, stays
    as it is stored, and is named when it is not counted."""
    import keras

    outputs = list(read.outputs)
    names = [str(name) for name in (getattr(read, "output_names", None) or [f"output_{i}" for i in range(len(outputs))])]
    shapes = _labels(y, names)

    def put(own: Any, stored: Any, i: int | None) -> Any:
        if isinstance(own, (list, tuple)) and isinstance(stored, (list, tuple)):
            each = range(len(own)) if i is None else [i] * len(own)
            return [put(one, other, at) for one, other, at in zip(own, stored, each)]
        if isinstance(own, dict) and isinstance(stored, dict):
            return {name: put(one, stored[name], names.index(name)) if name in names else stored[name] for name, one in own.items()}
        is_function = callable(own) and not isinstance(own, (type, keras.metrics.Metric, keras.losses.Loss)) and not _is_kerass(own)
        if not is_function or i is None or i >= len(outputs):
            return stored
        try:
            followed = _followed(own, own, outputs[i], shapes[i], is_metric=True)
        except PlimsollError:
            return stored
        return followed or stored

    for key in ("metrics", "weighted_metrics"):
        given = _given(model).get(key)
        if given is not None and key in compiled:
            compiled[key] = put(given, compiled[key], 0 if len(outputs) == 1 else None)
