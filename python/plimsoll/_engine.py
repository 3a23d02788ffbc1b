"""Models written with the engine's own ops and layers, and the trainer that keeps them inside a memory limit."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np

from plimsoll import _native
from plimsoll._data import Dataset, as_array, check_flag, limit, texts, whole
from plimsoll._turns import Turns, is_batches, passes_of
from plimsoll._native import Net, Tensor
from plimsoll._plan import Plan
from plimsoll._progress import Progress, notice_words

Layer = Callable[[Net, Tensor], Tensor]


class Sequential:
    """Layers one after the other. Each call gives a longer model and leaves the shorter one as it was.

    >>> model = plimsoll.Sequential().dense(64).relu().dense(10)
    """

    def __init__(self, layers: Sequence[tuple[str, Layer]] = ()) -> None:
        self._layers = list(layers)

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        for _, layer in self._layers:
            x = layer(net, x)
        return x

    def __repr__(self) -> str:
        return f"plimsoll.Sequential({', '.join(name for name, _ in self._layers)})"

    def _then(self, kind: str, make: Callable[[str], Layer]) -> Sequential:
        name = f"{kind}{1 + sum(known.rstrip('0123456789') == kind for known, _ in self._layers)}"
        return Sequential([*self._layers, (name, make(name))])

    def layer(self, name: str, function: Layer) -> Sequential:
        """A layer of your own: ``function(net, x)``, with its name before those of its parameters."""
        return Sequential([*self._layers, (name, lambda net, x: net.scope(name, lambda net: function(net, x)))])

    def dense(self, units: int, bias: bool = True) -> Sequential:
        """A dense layer."""
        return self._then("dense", lambda name: lambda net, x: net.dense(name, x, units, bias))

    def conv2d(self, channels: int, window: int, **settings: Any) -> Sequential:
        """A convolution of images [N, H, W, C]; settings as of :meth:`Net.conv2d`."""
        return self._then("conv", lambda name: lambda net, x: net.conv2d(name, x, channels, window, **settings))

    def embedding(self, rows: int, width: int) -> Sequential:
        """Rows of a table by their numbers."""
        return self._then("embedding", lambda name: lambda net, x: net.embedding(name, x, rows, width))

    def lstm(self, units: int, **settings: Any) -> Sequential:
        """An LSTM over [N, T, C]; settings as of :meth:`Net.lstm`."""
        return self._then("lstm", lambda name: lambda net, x: net.lstm(name, x, units, **settings))

    def gru(self, units: int, **settings: Any) -> Sequential:
        """A GRU over [N, T, C]."""
        return self._then("gru", lambda name: lambda net, x: net.gru(name, x, units, **settings))

    def self_attention(self, heads: int, **settings: Any) -> Sequential:
        """Attention of a sequence to itself."""
        return self._then("attention", lambda name: lambda net, x: net.self_attention(name, x, heads, **settings))

    def batch_norm(self) -> Sequential:
        """Batch norm."""
        return self._then("norm", lambda name: lambda net, x: net.batch_norm(name, x))

    def layer_norm(self) -> Sequential:
        """Layer norm."""
        return self._then("norm", lambda name: lambda net, x: net.layer_norm(name, x))

    def dropout(self, rate: float) -> Sequential:
        """Dropout: off but in training."""
        return self._then("dropout", lambda name: lambda net, x: net.dropout(name, x, rate))

    def relu(self) -> Sequential:
        """max(x, 0)"""
        return self._then("relu", lambda _: lambda net, x: x.relu())

    def gelu(self) -> Sequential:
        """x · Φ(x)"""
        return self._then("gelu", lambda _: lambda net, x: x.gelu())

    def tanh(self) -> Sequential:
        """The hyperbolic tangent."""
        return self._then("tanh", lambda _: lambda net, x: x.tanh())

    def max_pool2d(self, window: int, **settings: Any) -> Sequential:
        """The largest pixel of each window."""
        return self._then("pool", lambda _: lambda net, x: x.max_pool2d(window, **settings))

    def global_avg_pool2d(self) -> Sequential:
        """The mean over all pixels."""
        return self._then("pool", lambda _: lambda net, x: x.global_avg_pool2d())

    def flatten(self) -> Sequential:
        """All axes but the first as one."""
        return self._then("flatten", lambda _: lambda net, x: x.reshape(x.shape[0], math.prod(x.shape[1:])))

    def residual(self, block: Sequential) -> Sequential:
        """What a block makes of its input, added to it."""

        def make(name: str) -> Layer:
            return lambda net, x: net.scope(name, lambda net: x + block(net, x))

        return self._then("residual", make)


class Optimizer:
    """An optimizer with settings beyond its learning rate.

    >>> plimsoll.Optimizer("sgd", 0.1, momentum=0.9, nesterov=True)
    plimsoll.Optimizer('sgd', 0.1, momentum=0.9, nesterov=True)

    | optimizer | settings, with their usual values |
    | --- | --- |
    | ``sgd``, ``momentum``, ``nesterov`` | ``momentum`` (0, else 0.9), ``nesterov``, ``weight_decay`` (0) |
    | ``adam``, ``adamw`` | ``beta1`` (0.9), ``beta2`` (0.999), ``eps`` (1e-8), ``weight_decay`` (0; 0.01 of ``adamw``, decoupled) |
    | ``rmsprop`` | ``alpha`` (0.99), ``eps`` (1e-8), ``momentum`` (0), ``centered``, ``weight_decay`` |
    | ``adagrad`` | ``lr_decay`` (0), ``start`` (0), ``eps`` (1e-10), ``weight_decay`` |
    | ``ftrl`` | ``power`` (-0.5), ``start`` (0.1), ``l1``, ``l2``, ``shrinkage``, ``beta`` (0) |
    | ``lion`` | ``beta1`` (0.9), ``beta2`` (0.99), ``weight_decay`` (0, decoupled) |
    | ``adafactor`` | ``beta2_decay`` (-0.8), ``eps1``, ``eps2`` (1e-3), ``clip`` (1), ``weight_decay`` |

    ``decay_matrices_only=True`` spares biases and the scales of norms.
    """

    def __init__(self, name: str, learning_rate: float = 1e-3, **settings: Any) -> None:
        self.name, self.learning_rate, self.settings = name, float(learning_rate), settings

    def __repr__(self) -> str:
        more = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"plimsoll.Optimizer({self.name!r}, {self.learning_rate!r}{more})"


class Schedule:
    """How the learning rate changes from step to step: a factor on the optimizer's own. Every shape takes ``warm_up``, the steps over which it
    rises evenly before.

    >>> plimsoll.Schedule("cosine", steps=1000, warm_up=100)
    plimsoll.Schedule('cosine', steps=1000, warm_up=100)

    | shape | settings |
    | --- | --- |
    | ``constant`` | |
    | ``step`` | multiplied by ``factor`` (0.1) after ``every`` so many steps |
    | ``exponential`` | multiplied by ``factor`` at every step |
    | ``cosine`` | to ``floor`` (0) in ``steps``, by half a wave |
    | ``polynomial`` | (1 - t / ``steps``) ^ ``power`` (1), to ``floor`` |
    | ``one_cycle`` | up for ``rise`` (0.3) of the ``steps``, and down; ``start_divisor`` (25), ``end_divisor`` (1e4) |
    | ``inverse`` | 1 / (1 + ``decay`` (1) · t / ``every``), in ``stairs`` or not |
    | ``pieces`` | one of ``factors`` up to each of the ``ends``, and one for the rest |
    | ``restarts`` | half a cosine down in ``first`` steps, again and again: ``longer`` (1) and ``lower`` (1) each time, to ``floor`` |

    A function from the step to a factor is a schedule too.
    """

    def __init__(self, shape: str, **settings: Any) -> None:
        self.shape, self.settings = shape, settings

    def __repr__(self) -> str:
        more = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"plimsoll.Schedule({self.shape!r}{more})"


class Callback:
    """Follows a run: make a class of it with the methods that you want.

    ``on_step_end(step, logs)`` and ``on_epoch_end(epoch, logs)`` are given the mean loss and metrics so far. Set ``self.trainer.stop`` to end the
    run, or ``self.trainer.learning_rate`` to change the rate from there on.
    """

    trainer: Trainer

    def on_begin(self) -> None: ...

    def on_end(self, history: list[dict[str, float]]) -> None: ...

    def on_step_end(self, step: int, logs: dict[str, float]) -> None: ...

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None: ...


class EarlyStopping(Callback):
    """Ends a run when a number has not become better for some epochs.

    >>> stop = plimsoll.EarlyStopping("val_loss", patience=2, min_delta=1e-3)

    Args:
        monitor: ``loss``, a metric, or either of the data for validation, as ``val_loss``.
        patience: so many epochs without progress end the run.
        min_delta: only what is better by more than this counts as progress.
        mode: whether ``min`` or ``max`` is better; without a word, losses and errors fall and everything else rises.
    """

    def __init__(self, monitor: str = "val_loss", patience: int = 3, *, min_delta: float = 0.0, mode: str | None = None) -> None:
        if mode not in (None, "min", "max"):
            raise ValueError(f"mode is {mode!r}; min or max belong there")
        falls = monitor.removeprefix("val_") in ("loss", "cross_entropy", "perplexity", "mae", "mse", "rmse")
        self.monitor, self.patience, self.min_delta = monitor, whole(patience, "patience", 1), abs(min_delta)
        self.sign = -1.0 if (mode or ("min" if falls else "max")) == "min" else 1.0
        self.best, self.waited = -math.inf, 0

    def on_begin(self) -> None:
        self.best, self.waited = -math.inf, 0

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        if self.monitor not in logs:
            raise ValueError(f"early stopping watches {self.monitor}, and there are {', '.join(logs)}")
        value = self.sign * logs[self.monitor]
        if value > self.best + self.min_delta:
            self.best, self.waited = value, 0
            return
        self.waited += 1
        self.trainer.stop = self.trainer.stop or self.waited >= self.patience


class _Told:
    """Hands what the engine says on to callbacks."""

    def __init__(self, trainer: Trainer, callbacks: Sequence[Callback], verbose: int, before: int, steps: int | None) -> None:
        self.trainer, self.callbacks, self.before = trainer, callbacks, before
        self.shown = Progress(steps) if verbose else None
        self.history: list[dict[str, float]] = []

    def _answer(self) -> tuple[bool, float | None]:
        return self.trainer.stop, self.trainer.learning_rate

    def step(self, number: int, logs: dict[str, float]) -> tuple[bool, float | None]:
        if self.shown is not None:
            self.shown.step(self.before + len(self.history), number + 1, logs)
        for callback in self.callbacks:
            callback.on_step_end(number, logs)
        return self._answer()

    def epoch(self, number: int, logs: dict[str, float], _speed: float) -> tuple[bool, float | None]:
        self.history.append(dict(logs))
        if self.shown is not None:
            self.shown.epoch(number, logs)
        for callback in self.callbacks:
            callback.on_epoch_end(number, logs)
        return self._answer()

    def notice(self, text: str) -> None:
        words = notice_words(text)
        if words is not None:
            warnings.warn(words, RuntimeWarning, stacklevel=2)


class Trainer:
    """Trains a model inside a memory limit.

    >>> x = np.random.default_rng(0).normal(size=(256, 2)).astype("float32")
    >>> y = (x[:, 1] > x[:, 0]).astype("int64")
    >>> trainer = plimsoll.Trainer(plimsoll.Sequential().dense(16).relu().dense(2), "softmax_cross_entropy", learning_rate=1e-2, memory="200MiB")
    >>> history = trainer.fit(x, y, epochs=5, verbose=0)
    >>> history[-1]["loss"] < history[0]["loss"]
    True

    Args:
        model: a function ``model(net, x)`` of a :class:`Net` and one tensor for each input, or a :class:`Sequential`. It is called while a
            step is traced, not while it runs.
        loss: ``softmax_cross_entropy``, ``binary_cross_entropy``, ``mse``, ``mae`` or ``huber``; or a function ``loss(output, label)``, of lists where
            there are several, that gives a mean over samples.
        optimizer: ``sgd``, ``momentum``, ``nesterov``, ``adam``, ``adamw``, ``rmsprop``, ``adagrad``, ``ftrl``, ``lion`` or ``adafactor``; or an
            :class:`Optimizer` with more settings, which has its learning rate with it.
        memory: the most that the run may take, beside what Python held before its first run: ``"2GiB"`` or a number of bytes.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        precision: ``f32``, ``mixed-bf16``, ``mixed-f16``, …: as ``plimsoll train --precision``.
        exact: how far plans may depart from the bits of a run without a limit: ``bitwise``, ``reassociated`` or ``approximate``.
        metrics: ``accuracy``, ``top5``, ``binary_accuracy``, ``precision``, ``recall``, ``auc`` (of logits), ``mean_iou``, ``cross_entropy``,
            ``perplexity``, ``mae``, ``mse``, ``rmse``, ``r2``; or functions ``metric(output, label)``, of whose elements the mean counts.
        schedule: how the learning rate changes: a :class:`Schedule`, or a function from the step to a factor.
        clip_norm: gradients longer than this, all together, are shortened to it.
        clip_value: every element of a gradient is held between minus and plus this.
        state: ``"bf16"`` keeps the optimizer's state in bf16, rounded stochastically, ``"8bit"`` as bytes; losses differ a little.
        micro_batch: so many samples run at a time; without a word, the plan says.
        host_memory: the most of the host's memory that a run on a card may take.
        labels: how many arrays of each sample are labels.
        checkpoints: a folder in which checkpoints are kept, for :meth:`resume`.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        loss: str | Callable[[Any, Any], Tensor],
        optimizer: str | Optimizer = "adam",
        learning_rate: float | None = None,
        *,
        memory: str | int | None = None,
        host_memory: str | int | None = None,
        device: str = "cpu",
        precision: str = "f32",
        exact: str = "reassociated",
        metrics: Sequence[str | Callable[[Tensor, Tensor], Tensor]] = (),
        schedule: Schedule | Callable[[int], float] | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        state: str | None = None,
        micro_batch: int | None = None,
        labels: int = 1,
        seed: int = 0,
        checkpoints: str | Path | None = None,
    ) -> None:
        if not callable(model):
            raise TypeError(f"a model is a function of a net and tensors, not {type(model).__name__}; a Keras model goes to plimsoll.fit")
        if isinstance(optimizer, Optimizer):
            if learning_rate is not None:
                raise ValueError("the learning rate is given twice; an Optimizer has its own")
            name, rate, more = optimizer.name, optimizer.learning_rate, optimizer.settings
        else:
            name, rate, more = optimizer, 1e-3 if learning_rate is None else float(learning_rate), {}
        if state not in (None, "f32", "bf16", "8bit"):
            raise ValueError(f"state is {state!r}; f32, bf16 or 8bit belongs there, or nothing")
        texts(device=device, precision=precision, exact=exact)
        labels, seed = whole(labels, "labels", 0), whole(seed, "seed", 0)
        for name_of, bound in (("clip_norm", clip_norm), ("clip_value", clip_value)):
            if bound is not None and not isinstance(bound, (int, float, np.number)):
                raise TypeError(f"{name_of} is {bound!r}; a number belongs there")
        self.stop = False
        is_constant = schedule is None or isinstance(schedule, Schedule) and (schedule.shape, schedule.settings) == ("constant", {})
        self.learning_rate: float | None = rate if is_constant else None
        self._labels, self._seed = labels, seed
        settings = {
            "name": getattr(model, "__name__", type(model).__name__),
            "optimizer": (name, more),
            "learning_rate": rate,
            "memory": limit(memory),
            "host_memory": limit(host_memory, "host_memory"),
            "device": device,
            "precision": precision,
            "exact": exact,
            "metrics": list(metrics),
            "schedule": (schedule.shape, schedule.settings) if isinstance(schedule, Schedule) else schedule,
            "clip_norm": clip_norm,
            "clip_value": clip_value,
            "state": state or "f32",
            "micro_batch": micro_batch,
            "seed": seed,
            "labels": labels,
            "checkpoints": None if checkpoints is None else os.fspath(checkpoints),
        }
        self._native = _native.Trainer(model, loss, settings)

    def _fields(self, x: Any, y: Any, what: str) -> list[tuple[str, str, np.ndarray]]:
        """The arrays of samples, each with its name and kind."""
        inputs = list(x) if isinstance(x, (list, tuple)) else [x]
        labels = [] if y is None else list(y) if isinstance(y, (list, tuple)) and self._labels > 1 else [y]
        if y is not None and len(labels) != self._labels:
            raise ValueError(f"y has {len(labels)} arrays, and the trainer was made for {self._labels} labels")
        fields = []
        for i, value in enumerate(inputs):
            array, _ = as_array(value, what)
            kind = "indices" if array.dtype.kind in "iu" and array.dtype != np.uint8 else "numbers"
            fields.append((f"x{i}" if i else "x", kind, array))
        for i, value in enumerate(labels):
            fields.append((f"y{i}" if i else "y", "label", as_array(value, "y")[0]))
        sizes = {len(array) for _, _, array in fields}
        if len(sizes) > 1:
            raise ValueError(f"arrays of {', '.join(map(str, sorted(sizes)))} samples; each must have a row for every sample")
        if sizes == {0}:
            raise ValueError("the data has no samples")
        return fields

    def _data(
        self, x: Any, y: Any, batch_size: int | None, what: str = "x", *, steps: int | None = None, passes: int = 1, labels: bool = True
    ) -> tuple[_native.Data, int, int | None]:
        """Arrays, files by their path, or batches that come one after the other, as data of the engine; how many samples a batch has, and how
        many batches there are, where that is known."""
        size = 32 if batch_size is None else whole(batch_size, "batch_size", 1)
        if isinstance(x, (str, Path)):
            x = Dataset(x)
        steps = None if steps is None else whole(steps, "steps", 1)
        if not is_batches(x) and steps is not None:
            raise ValueError("steps_per_epoch is for data that comes in batches; slice the arrays instead")
        if isinstance(x, Dataset):
            if y is not None:
                raise ValueError("files have their labels in them; y belongs to arrays")
            data = _native.open_files(str(x.path), x.part, self._labels > 0)
            samples = data.samples()
            return data, size, None if samples is None else math.ceil(samples / size)
        if not is_batches(x):
            if labels and self._labels and y is None:
                raise ValueError("there are no labels; give y" if what == "x" else f"{what} has no labels; (x, y) belongs there")
            fields = self._fields(x, y, what)
            # A batch is never larger than the data.
            size = min(size, len(fields[0][2]))
            return _native.arrays(fields), size, math.ceil(len(fields[0][2]) / size)
        for name, value in (("y", y), ("batch_size", batch_size)):
            if value is not None:
                raise ValueError(f"{name} is given beside data that comes in batches, which bring their own")
        begin, count, is_anew = passes_of(x)
        if steps is None and (count == math.inf or not is_anew and passes > 1):
            raise ValueError("the data does not say where an epoch ends; give steps_per_epoch")
        count = None if count == math.inf else count
        turns = Turns(begin, count, steps, is_anew, getattr(x, "on_epoch_begin", None), getattr(x, "on_epoch_end", None))

        def parts(batch: Any) -> list[tuple[str, str, np.ndarray]]:
            if isinstance(batch, (tuple, list)) and len(batch) == 2:
                return self._fields(batch[0], batch[1] if labels else None, what)
            if labels and self._labels:
                raise ValueError("a batch is a pair of inputs and labels, (x, y)")
            return self._fields(batch, None, what)

        first = parts(turns.peek())
        arrays = lambda batch: [array for _, _, array in parts(batch)]
        made = lambda: map(arrays, turns.epoch())
        data = _native.batches([field[:2] for field in first], [field[2] for field in first], made, passes)
        return data, len(first[0][2]), steps if steps is not None else count

    def plan(self, x: Any, y: Any = None, *, batch_size: int | None = None) -> Plan:
        """What a step would take, before anything runs. A generator loses its first batch."""
        data, size, _ = self._data(x, y, batch_size)
        return Plan(self._native.plan(data, size))

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int | None = None,
        steps_per_epoch: int | None = None,
        shuffle: bool = True,
        validation_data: Any = None,
        callbacks: Sequence[Callback] = (),
        verbose: int = 1,
    ) -> list[dict[str, float]]:
        """Trains for so many epochs more; the loss and metrics of each. Ctrl-C ends it after a step, with a checkpoint where there is a folder for
        one; the weights stay.

        Args:
            x, y: arrays, or lists of them; a :class:`Dataset` or the path of files; or what gives batches ``(x, y)`` one after the other: a
                generator, a ``tf.data.Dataset``, a DataLoader.
            batch_size: samples of a step; 32 without a word. Batches bring their own size.
            steps_per_epoch: how many batches of a generator are an epoch.
            shuffle: whether arrays and files come in another order in every epoch. Batches come as they are given.
            validation_data: ``(x, y)``, or any other such data, to evaluate the model on after every epoch.
        """
        check_flag(shuffle, "shuffle")
        epochs, (before, _) = whole(epochs, "epochs", 0), self._native.progress()
        data, size, steps = self._data(x, y, batch_size, steps=steps_per_epoch, passes=before + epochs)
        checked, checked_size = None, None
        if validation_data is not None:
            is_pair = isinstance(validation_data, (tuple, list)) and len(validation_data) == 2
            pair = validation_data if is_pair else (validation_data, None)
            checked, checked_size, _ = self._data(*pair, None if is_batches(pair[0]) else size, "validation_data")
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(f"callbacks has {type(callback).__name__}, which is no plimsoll.Callback")
            callback.trainer = self
        self.stop = False
        for callback in callbacks:
            callback.on_begin()
        told = _Told(self, callbacks, verbose, before, steps)
        wants = {"steps": bool(callbacks) or bool(verbose), "step_weights": False, "epoch_weights": False, "validates": False, "tests": False}
        shuffled = self._seed if shuffle else None
        self._native.fit(data, epochs, size, shuffled, told, wants, checked, checked_size)
        for callback in callbacks:
            callback.on_end(told.history)
        return told.history

    def evaluate(self, x: Any, y: Any = None, *, batch_size: int | None = None, steps: int | None = None) -> dict[str, float]:
        """The loss and the metrics over data."""
        data, size, _ = self._data(x, y, batch_size, steps=steps)
        return dict(self._native.evaluate(data, size))

    def predict(self, x: Any, *, batch_size: int | None = None, steps: int | None = None) -> Any:
        """What the model makes of data: an array, or a list of them."""
        parts: list[list[np.ndarray]] = []

        def take(outputs: list[tuple[str, list[int], bytes]]) -> None:
            parts.append([np.frombuffer(data, dtype).reshape(shape) for dtype, shape, data in outputs])

        data, size, _ = self._data(x, None, batch_size, steps=steps, labels=False)
        self._native.predict(data, size, take)
        whole = [np.concatenate(column) for column in zip(*parts)]
        return whole[0] if len(whole) == 1 else whole

    def save(self, path: str | Path) -> None:
        """Writes the parameters as safetensors, whole or not at all."""
        self._native.save(str(path))

    def load(self, path: str | Path, x: Any, y: Any = None, *, batch_size: int | None = None) -> None:
        """Reads parameters that :meth:`save` wrote, for data like this, and begins anew with them."""
        data, size, _ = self._data(x, y, batch_size)
        self._native.load(str(path), data, size)

    def resume(self, folder: str | Path, x: Any, y: Any = None, *, batch_size: int | None = None, shuffle: bool = True) -> bool:
        """Goes on from the last checkpoint of a folder, for the data and settings of that run; whether there was one."""
        data, size, _ = self._data(x, y, batch_size)
        return self._native.resume(str(folder), data, size, self._seed if shuffle else None)

    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, by name, once data was seen."""
        return {name: np.frombuffer(data, dtype).reshape(shape) for name, dtype, shape, data in self._native.parameters()}
