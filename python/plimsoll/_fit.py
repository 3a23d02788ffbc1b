"""``plan``, ``fit``, ``evaluate``, ``predict`` and ``report`` for live Keras models, with Keras's arguments and meaning."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll import _callbacks, _data, _native, _own_losses, _store, _traced
from plimsoll._plan import Plan, Report
from plimsoll.errors import MemoryLimitError, PlimsollError

__all__ = ["plan", "fit", "evaluate", "predict", "report"]


def _build(model: Any, x: Any) -> None:
    """Gives a Sequential model without an Input its weights, by the shape of the data, as Keras does when it first meets it."""
    import keras

    if not isinstance(model, keras.Sequential) or model.built or not model.layers or x is None:
        return
    if isinstance(x, _data.Dataset):
        raise PlimsollError(f"the model {model.name} has no weights yet, and files do not say their shape; give it an Input, or call build()")
    model.build((None, *_data.as_array(_data._parts(x, ["x"], "x")[0], "x")[0].shape[1:]))


def _shapes(model: Any) -> list[tuple[int | None, ...]]:
    """The shapes of a model's inputs, without the batch."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise PlimsollError(f"the model {model.name} is no Sequential or Functional model; its layers cannot be read")
    return [tuple(tensor.shape[1:]) for tensor in inputs]


def _begun(
    x: Any, y: Any, weight: Any, batch_size: int | None, *, steps: int | None = None, passes: int | None = None,
    order: np.random.Generator | None = None,
) -> Any:
    """What gives batches with the first of them made; anything else as it is."""
    if not _data.is_batches(x):
        return x
    for name, value in (("y", y), ("sample_weight", weight), ("batch_size", batch_size)):
        if value is not None:
            raise ValueError(f"{name} is given beside data that comes in batches, which bring their own")
    if steps is not None:
        steps = _data.whole(steps, "steps", 1)
    return x if isinstance(x, _data.Begun) else _data.Begun(x, steps=steps, passes=passes, order=order)


class _Bound:
    """A Keras model as the engine reads it, for samples like these."""

    def __init__(self, model: Any, x: Any, y: Any = None, *, trained: bool, labels: bool, precision: str | None) -> None:
        if precision is not None:
            _data.texts(precision=precision)
        if isinstance(x, _data.Begun):
            # The first batch says what arrays would.
            x, y, _ = x.first(len(getattr(model, "inputs", None) or [None]), labels)
        _build(model, x)
        _store.check(model)
        if labels and not getattr(model, "compiled", False):
            raise PlimsollError(f"the model {model.name} was not compiled; call model.compile() with a loss and an optimizer first")
        with _traced.following(model, x) as read:
            shapes = _shapes(read)
            lengths = self._lengths(read, shapes, x) if any(None in shape for shape in shapes) else None
            self.native = _store.live(model, read, y=y, trained=trained, inputs=lengths, precision=precision)
        labelled = self.native.labelled() if labels else []
        self.wanted = _data.Wanted(self.native.inputs(), shapes, self.native.outputs(), labelled)

    @staticmethod
    def _lengths(model: Any, shapes: list[tuple[int | None, ...]], x: Any) -> list[tuple[int, ...]] | None:
        """The shapes of samples where the model leaves axes open: the data says them."""
        if x is None or isinstance(x, _data.Dataset):
            raise PlimsollError(f"an input of {model.name} has an axis of unknown length; give arrays or batches, whose shape says it")
        parts = _data._parts(x, [tensor.name for tensor in model.inputs], "x")
        arrays = [_data.fitted(_data.as_array(part, "x")[0], shape, "x") for part, shape in zip(parts, shapes)]
        return [array.shape[1:] for array in arrays]

    def source(
        self, x: Any, y: Any, weight: Any, *, batch_size: int | None, steps: int | None, labels: bool,
        class_weight: dict[int, float] | None = None, weights: bool | None = None, passes: int | None = None,
        order: np.random.Generator | None = None,
    ) -> tuple[_data.Source, bool]:
        """The data, and whether weights come with its samples. ``passes`` are the epochs of a training; others have one."""
        if steps is not None:
            steps = _data.whole(steps, "steps", 1)
        if x is None:
            raise ValueError("there is no data; give x")
        if _data.is_batches(x):
            begun = _begun(x, y, weight, batch_size, steps=steps, passes=passes, order=order)
            return _data.from_batches(self.wanted, begun, labels=labels, class_weight=class_weight, weights=weights)
        if isinstance(x, _data.Dataset):
            for name, value in (("y", y), ("sample_weight", weight), ("class_weight", class_weight), ("steps", steps)):
                if value is not None:
                    raise ValueError(f"{name} is given beside a plimsoll.Dataset, which has its own")
            if weights:
                raise ValueError("a plimsoll.Dataset has no sample weights, and the training data has")
            return _data.from_files(self.wanted, x, batch_size=batch_size, labels=labels), False
        weighted = (weight is not None or class_weight is not None) if weights is None else weights
        source = _data.from_arrays(
            self.wanted, x, y, weight, batch_size=batch_size, labels=labels, class_weight=class_weight, weights=weighted,
            steps=steps, order=order, passes=passes,
        )
        return source, weighted


def _asked(
    source: _data.Source | None, *, batch_size: int, memory: str | int | None, device: str, weighted: bool,
    shuffle: bool = False, seed: int = 0, exact: str = "reassociated", validation: _data.Source | None = None,
) -> dict[str, Any]:
    _data.texts(device=device, exact=exact)
    return {
        "exact": exact,
        "validation_batch_size": None if validation is None else validation.batch_size,
        "memory": _data.limit(memory),
        "device": device,
        "batch_size": source.batch_size if source else batch_size,
        "weighted": weighted,
        "shuffle": shuffle,
        "seed": seed,
    }


def _warn(bound: _Bound, weighted: bool, *, trained: bool) -> None:
    for notice in bound.native.notices(weighted, trained):
        warnings.warn(notice, stacklevel=3)


def plan(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int | None = None,
    memory: str | int | None = None,
    device: str = "cpu",
    precision: str | None = None,
    exact: str = "reassociated",
    sample_weight: Any = None,
    validation_data: Any = None,
) -> Plan:
    """Plans a training step of a compiled Keras model inside a memory limit. Nothing runs, and nothing is changed.

    Args:
        model: a compiled Sequential or Functional model.
        x, y: the data, if its shapes are not all in the model. A generator loses its first batch.
        batch_size: samples of a step; 32 without a word.
        memory: the memory limit, as in ``"2GiB"``, or in bytes. It counts what is taken beside what Python, NumPy, Keras and your
            arrays hold already (``Plan.python``). Without one, the plan says what the fastest step takes.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        precision: ``"f32"``, ``"f64"``, ``"mixed-bf16"`` or ``"mixed-f16"``, in place of the layers' policies.
        exact: how far a plan may depart from an unlimited run: ``"bitwise"`` not at all; ``"reassociated"`` may split batches where that
            changes nothing but the order of sums; ``"approximate"`` also where each micro-batch has batch-norm statistics of its own.

    Raises:
        MemoryLimitError: no plan keeps to the limit; ``least`` says what would do.
    """
    x = _begun(x, y, sample_weight, batch_size)
    bound = _Bound(model, x, y, trained=True, labels=True, precision=precision)
    if x is None:
        for name, value in (("y", y), ("sample_weight", sample_weight), ("validation_data", validation_data)):
            if value is not None:
                raise ValueError(f"{name} is given without x")
        size = _data._batch_size(batch_size)
        asked = _asked(None, batch_size=size, memory=memory, device=device, weighted=False, exact=exact)
        try:
            return Plan(_native.plan(bound.native, asked))
        except MemoryLimitError:
            raise
        except PlimsollError as error:
            if not _own_losses.has_own(model):
                raise
            raise PlimsollError(f"{error}; {_own_losses.GUESSED}") from error
    source, weighted = bound.source(x, y, sample_weight, batch_size=batch_size, steps=None, labels=True)
    validation = _validation(bound, validation_data, source.batch_size if _data.is_batches(x) else batch_size, weighted, None)
    asked = _asked(
        source, batch_size=source.batch_size, memory=memory, device=device, weighted=weighted, exact=exact, validation=validation
    )
    return Plan(_native.plan(bound.native, asked, source.data, validation.data if validation else None))


def report(model: Any, x: Any = None, y: Any = None, **settings: Any) -> Report:
    """A page that shows where the memory of a training step goes, instruction by instruction. Takes what :func:`plan` takes."""
    return plan(model, x, y, **settings).report


def _parts_of(validation_data: Any) -> tuple[Any, Any, Any] | None:
    """Arrays for validation with their labels and weights; nothing of what comes in batches or files."""
    if not isinstance(validation_data, (tuple, list)):
        return None
    if len(validation_data) not in (2, 3):
        raise ValueError(f"validation_data has {len(validation_data)} parts; (x, y) or (x, y, sample_weight) belong there")
    return (*validation_data, None)[:3]  # type: ignore[return-value]


def _validation(
    bound: _Bound, validation_data: Any, batch_size: int | None, weighted: bool, steps: int | None
) -> _data.Source | None:
    if validation_data is None:
        return None
    parts = _parts_of(validation_data)
    x, y, weight = (validation_data, None, None) if parts is None else parts
    if parts is None and not _data.is_batches(x) and not isinstance(x, _data.Dataset):
        raise ValueError(f"validation_data is a {type(x).__name__}; (x, y), (x, y, sample_weight) or what gives batches belongs there")
    if _data.is_batches(x):
        batch_size = None
    try:
        # Where training samples bring weights and these do not, each counts once.
        return bound.source(x, y, weight, batch_size=batch_size, steps=steps, labels=True, weights=weighted)[0]
    except (TypeError, ValueError) as error:
        # What data of the user's own raises stays as it is.
        if parts is None or type(error) not in (TypeError, ValueError):
            raise
        raise type(error)(f"validation_data: {error}") from error


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | list[int] = 1,
    *,
    memory: str | int | None = None,
    device: str = "cpu",
    precision: str | None = None,
    exact: str = "reassociated",
    seed: int | None = None,
    checkpoints: str | Path | None = None,
) -> Any:
    """Trains a compiled Keras model inside a memory limit: ``model.fit`` with ``memory=``.

    The model's own weights, statistics and optimizer state are what is trained: afterwards ``model.evaluate``, ``model.save`` and
    ``model.fit`` go on from there. Arrays are read where they lie; generators, PyDatasets, ``tf.data`` datasets and DataLoaders give one
    batch at a time. ``Ctrl-C`` ends the run after the step at hand: the model has the state of that step, and where ``checkpoints``
    names a folder, a checkpoint is in it.

    Args:
        memory: the memory limit, as in ``"2GiB"``; see :func:`plan`.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        precision: ``"f32"``, ``"f64"``, ``"mixed-bf16"`` or ``"mixed-f16"``, in place of the layers' policies.
        exact: how far a plan may depart from an unlimited run; see :func:`plan`.
        seed: where shuffling and dropout start; without one, NumPy's global state says it.
        checkpoints: a folder for checkpoints of the engine, one after every epoch.

    All others mean what they mean in ``keras.Model.fit``. Shuffling is of whole arrays and files, and of the batches of a ``PyDataset``; what comes
    in other batches keeps its order.

    Returns:
        Keras's ``History``, with the plan of the run as ``history.plan`` and the samples a second of every epoch as ``history.samples_s``.

    Raises:
        MemoryLimitError: no plan keeps to the limit; nothing was trained.
    """
    import keras

    if not isinstance(validation_split, (int, float, np.number)) or not 0.0 <= validation_split < 1.0:
        raise ValueError(f"validation_split is {validation_split!r}; it must be at least 0 and below 1")
    if steps_per_epoch is not None:
        steps_per_epoch = _data.whole(steps_per_epoch, "steps_per_epoch", 1)
    epochs, initial_epoch = _data.whole(epochs, "epochs", 0), _data.whole(initial_epoch, "initial_epoch", 0)
    _data.check_flag(shuffle, "shuffle")
    if class_weight is not None and sample_weight is not None:
        raise ValueError("class_weight and sample_weight cannot both be given")
    every = _callbacks.validated_every(validation_freq)
    listed = _callbacks.checked(callbacks)
    if validation_split and validation_data is None:
        if _data.is_batches(x) or isinstance(x, _data.Dataset):
            raise ValueError("validation_split is for arrays; give validation_data")
        (x, y, sample_weight), validation_data = _data.split((x, y, sample_weight), validation_split)
    seed = int(np.random.randint(2**31)) if seed is None else _data.whole(seed, "seed", 0)
    passes, order = max(epochs - initial_epoch, 1), np.random.default_rng(seed) if shuffle else None
    x = _begun(x, y, sample_weight, batch_size, steps=steps_per_epoch, passes=passes, order=order)
    bound = _Bound(model, x, y, trained=True, labels=True, precision=precision)
    parts = _parts_of(validation_data)
    # Where samples for validation bring weights, those of the training count once each.
    is_weighed = parts is not None and parts[2] is not None
    source, weighted = bound.source(
        x, y, sample_weight, batch_size=batch_size, steps=steps_per_epoch, labels=True, class_weight=class_weight,
        weights=True if is_weighed and not _data.is_batches(x) else None, passes=passes, order=order,
    )
    _warn(bound, weighted, trained=True)
    if is_weighed and not weighted:
        raise ValueError("validation_data brings sample weights, and the training data in batches has none; let the batches bring weights too")
    if validation_batch_size is not None and (validation_data is None or _data.is_batches(validation_data)):
        raise ValueError("validation_batch_size is for validation data in arrays or files")
    if validation_steps is not None and validation_data is None:
        raise ValueError("validation_steps is given, and there is no validation_data")
    if hasattr(validation_data, "__next__") and validation_steps is None:
        times = sum(_callbacks.is_validated(every, epoch) for epoch in range(initial_epoch, epochs))
        if times > 1:
            raise ValueError(
                f"validation_data is a generator, which gives its batches once, and {times} epochs end with an evaluation; give validation_steps, "
                "or what begins anew: arrays, a PyDataset, a tf.data.Dataset"
            )
    if validation_batch_size is not None:
        validation_batch_size = _data.whole(validation_batch_size, "validation_batch_size", 1)
    size = validation_batch_size or (source.batch_size if _data.is_batches(x) else batch_size)
    validation = _validation(bound, validation_data, size, weighted, validation_steps)
    verbose = _callbacks.shown(verbose)
    told_to = keras.callbacks.CallbackList(
        listed, add_history=True, add_progbar=verbose != 0, verbose=verbose, epochs=epochs, steps=source.steps, model=model
    )
    told = _callbacks.Told(model, told_to, epochs, initial_epoch, source, every)
    wants = {
        "steps": verbose != 0 or any(_callbacks.overrides(callback, *_callbacks.STEP_METHODS) or _callbacks.may_stop(callback) for callback in listed),
        "step_weights": any(_callbacks.reads_weights(callback) for callback in listed),
        "epoch_weights": bool(listed),
        "validates": every != 1,
        "tests": any(_callbacks.overrides(callback, *_callbacks.TEST_METHODS) for callback in listed),
    }
    asked = _asked(
        source, batch_size=source.batch_size, memory=memory, device=device, weighted=weighted, shuffle=bool(shuffle), seed=seed,
        exact=exact, validation=validation,
    )
    held_back = validation.data if validation else None
    if initial_epoch < epochs:
        folder = None if checkpoints is None else os.fspath(checkpoints)
        _native.fit(bound.native, asked, source.data, epochs - initial_epoch, told, wants, held_back, folder)
    else:
        # Nothing is left to train, which Keras takes without a word.
        told.plan = Plan(_native.plan(bound.native, asked, source.data, held_back))
        told_to.on_train_begin()
    # Where the optimizer keeps averages of the weights, Keras puts them in the weights' place when a run is over.
    if initial_epoch < epochs and hasattr(model.optimizer, "finalize_variable_values"):
        model.optimizer.finalize_variable_values(model.trainable_variables)
    stopped_in = told.in_epoch
    if stopped_in is not None and stopped_in[1] and validation is not None and told.validates(stopped_in[0] - initial_epoch):
        # An epoch that was stopped in its middle is validated too.
        vx, vy, weight = (validation_data, None, None) if parts is None else parts
        found = evaluate(
            model, vx, vy, None if _data.is_batches(vx) else size, 0, weight, validation_steps, return_dict=True, memory=memory, device=device, precision=precision,
        )
        stopped_in[1].update({f"val_{name}": value for name, value in found.items()})
    told.end()
    history = model.history
    history.plan, history.samples_s = told.plan, told.samples_s
    return history


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
    *,
    memory: str | int | None = None,
    device: str = "cpu",
    precision: str | None = None,
) -> Any:
    """The loss and the metrics of a compiled Keras model on data, inside a memory limit: ``model.evaluate`` with ``memory=``.

    >>> plimsoll.evaluate(model, x, y, verbose=0, memory="1GiB", return_dict=True)["loss"] > 0
    True

    Returns:
        The loss, or a list of it and the metrics; with ``return_dict`` all of them by name.
    """
    x = _begun(x, y, sample_weight, batch_size, steps=steps)
    bound = _Bound(model, x, y, trained=False, labels=True, precision=precision)
    source, weighted = bound.source(x, y, sample_weight, batch_size=batch_size, steps=steps, labels=True)
    _warn(bound, weighted, trained=False)
    asked = _asked(source, batch_size=source.batch_size, memory=memory, device=device, weighted=weighted)
    told_to = _callbacks.listeners(model, callbacks, verbose, source.steps)
    wants = {"steps": False, "step_weights": False, "epoch_weights": False, "validates": False, "tests": told_to is not None}
    found = list(_callbacks.gathered(dict(_native.evaluate(bound.native, asked, source.data, _callbacks.ToldOfTest(told_to), wants))).items())
    if return_dict:
        return dict(found)
    values = [value for _, value in found]
    return values[0] if len(values) == 1 else values


class _Rows:
    """Takes predictions batch by batch into arrays that are made once, where the number of samples is known."""

    def __init__(self, source: _data.Source, callbacks: Any) -> None:
        self.samples, self.size, self.at = source.samples, source.batch_size, 0
        self.callbacks, self.batch, self.pieces = callbacks, 0, 0
        self.arrays: list[np.ndarray] = []
        self.parts: list[list[np.ndarray]] = []

    def __call__(self, outputs: list[tuple[str, list[int], bytes]]) -> None:
        batch = [np.frombuffer(value, dtype=dtype).reshape(shape) for dtype, shape, value in outputs]
        rows = len(batch[0])
        if self.callbacks is not None and self.pieces == 0:
            self.callbacks.on_predict_batch_begin(self.batch)
        if self.samples is None:
            self.parts.append(batch)
        else:
            if not self.arrays:
                self.arrays = [np.empty((self.samples, *part.shape[1:]), part.dtype) for part in batch]
            for array, part in zip(self.arrays, batch):
                array[self.at : self.at + rows] = part
        self.at += rows
        self.pieces += rows
        # A batch that does not fit comes in pieces.
        if self.pieces >= self.size:
            self.end_batch(batch if rows == self.pieces else None)

    def end_batch(self, batch: list[np.ndarray] | None = None) -> None:
        if self.callbacks is not None and self.pieces:
            if batch is None:
                batch = [array[self.at - self.pieces : self.at] for array in self.all()]
            self.callbacks.on_predict_batch_end(self.batch, {"outputs": batch[0] if len(batch) == 1 else batch})
        self.batch, self.pieces = self.batch + 1, 0

    def all(self) -> list[np.ndarray]:
        if self.samples is None:
            return [np.concatenate(column) for column in zip(*self.parts)]
        return self.arrays


def predict(
    model: Any,
    x: Any,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    steps: int | None = None,
    callbacks: Any = None,
    *,
    memory: str | int | None = None,
    device: str = "cpu",
    precision: str | None = None,
) -> Any:
    """What a Keras model makes of data, inside a memory limit: ``model.predict`` with ``memory=``.

    Where a whole batch does not fit, fewer samples run at a time. What is returned is yours and not counted in the limit.

    >>> plimsoll.predict(model, x, verbose=0, memory="1GiB").shape
    (64, 3)
    """
    import keras

    x = _begun(x, None, None, batch_size, steps=steps)
    bound = _Bound(model, x, trained=False, labels=False, precision=precision)
    source, _ = bound.source(x, None, None, batch_size=batch_size, steps=steps, labels=False, weights=False)
    told_to = _callbacks.listeners(model, callbacks, verbose, source.steps)
    rows = _Rows(source, told_to)
    asked = _asked(source, batch_size=source.batch_size, memory=memory, device=device, weighted=False)
    if told_to is not None:
        told_to.on_predict_begin()
    _native.predict(bound.native, asked, source.data, rows)
    if told_to is not None:
        rows.end_batch()
        told_to.on_predict_end()
    outputs = rows.all()
    structure = getattr(model, "_outputs_struct", None)
    if structure is not None:
        return keras.tree.pack_sequence_as(structure, outputs)
    return outputs[0] if len(outputs) == 1 else outputs
