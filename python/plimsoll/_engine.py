"""Models written with the engine's own ops and layers, and the trainer that keeps them inside a memory limit."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np

from plimsoll import _native
from plimsoll._data import Dataset, as_array
from plimsoll._native import Net, Tensor
from plimsoll._plan import Plan

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


class Callback:
    """Follows a run: make a class of it with the methods that you want.

    ``on_step_end(step, logs)`` and ``on_epoch_end(epoch, logs)`` are given the mean loss and metrics so far. Set ``self.trainer.stop`` to end the
    run, or ``self.trainer.learning_rate`` to change the rate from there on.
    """

    trainer: Trainer

    def on_step_end(self, step: int, logs: dict[str, float]) -> None: ...

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None: ...


class _Told:
    """Hands what the engine says on to callbacks."""

    def __init__(self, trainer: Trainer, callbacks: Sequence[Callback], verbose: int) -> None:
        self.trainer, self.callbacks, self.verbose = trainer, callbacks, verbose
        self.history: list[dict[str, float]] = []

    def _answer(self) -> tuple[bool, float | None]:
        return self.trainer.stop, self.trainer.learning_rate

    def step(self, number: int, logs: dict[str, float]) -> tuple[bool, float | None]:
        for callback in self.callbacks:
            callback.on_step_end(number, logs)
        return self._answer()

    def epoch(self, number: int, logs: dict[str, float]) -> tuple[bool, float | None]:
        self.history.append(dict(logs))
        if self.verbose:
            shown = ", ".join(f"{name} {value:.4g}" for name, value in logs.items())
            print(f"epoch {number + 1}: {shown}", flush=True)
        for callback in self.callbacks:
            callback.on_epoch_end(number, logs)
        return self._answer()

    def notice(self, text: str) -> None:
        notice = json.loads(text)
        if notice.get("event") != "saved":
            warnings.warn(f"plimsoll: {text}", RuntimeWarning, stacklevel=2)


def _count(value: int, name: str, least: int) -> int:
    if int(value) < least:
        raise ValueError(f"{name} is {value}; {least} is the least")
    return int(value)


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
        optimizer: ``sgd``, ``momentum``, ``nesterov``, ``adam``, ``adamw``, ``rmsprop``, ``adagrad``, ``ftrl``, ``lion`` or ``adafactor``.
        memory: the most that the run may take, beside what Python held before its first run: ``"2GiB"`` or a number of bytes.
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        precision: ``f32``, ``mixed-bf16``, ``mixed-f16``, …: as ``plimsoll train --precision``.
        exact: how far plans may depart from the bits of a run without a limit: ``bitwise``, ``reassociated`` or ``approximate``.
        metrics: ``accuracy``, ``top5``, ``binary_accuracy``, ``mean_iou``, ``perplexity``, ``mae``, ``mse``, ``rmse``, ``r2``.
        cosine_steps: the learning rate falls to zero over so many steps, by half a wave.
        warm_up_steps: it rises from zero over so many steps before.
        clip_norm: gradients longer than this are shortened to it.
        labels: how many arrays of each sample are labels.
        checkpoints: a folder in which checkpoints are kept, for :meth:`resume`.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        loss: str | Callable[[Any, Any], Tensor],
        optimizer: str = "adam",
        learning_rate: float = 1e-3,
        *,
        memory: str | int | None = None,
        device: str = "cpu",
        precision: str = "f32",
        exact: str = "reassociated",
        metrics: Sequence[str] = (),
        clip_norm: float | None = None,
        cosine_steps: int | None = None,
        warm_up_steps: int = 0,
        labels: int = 1,
        seed: int = 0,
        checkpoints: str | Path | None = None,
    ) -> None:
        if not callable(model):
            raise TypeError(f"a model is a function of a net and tensors, not {type(model).__name__}; a Keras model goes to plimsoll.fit")
        self.stop = False
        self.learning_rate: float | None = learning_rate if cosine_steps is None and not warm_up_steps else None
        self._labels, self._seed = labels, seed
        settings = {
            "name": getattr(model, "__name__", type(model).__name__),
            "optimizer": optimizer,
            "learning_rate": float(learning_rate),
            "memory": None if memory is None else str(memory),
            "device": device,
            "precision": precision,
            "exact": exact,
            "metrics": list(metrics),
            "clip_norm": clip_norm,
            "seed": seed,
            "cosine_steps": cosine_steps,
            "warm_up_steps": warm_up_steps,
            "labels": labels,
            "checkpoints": None if checkpoints is None else str(checkpoints),
        }
        self._native = _native.Trainer(model, loss, settings)

    def _data(self, x: Any, y: Any, what: str = "x") -> _native.Data:
        """Arrays, or files by their path, as data of the engine."""
        if isinstance(x, Dataset):
            if y is not None:
                raise ValueError("files have their labels in them; y belongs to arrays")
            return _native.open_files(str(x.path), x.part, self._labels > 0)
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
        return _native.arrays(fields)

    def plan(self, x: Any, y: Any = None, *, batch_size: int = 32) -> Plan:
        """What a step would take, before anything runs."""
        return Plan(self._native.plan(self._data(x, y), _count(batch_size, "batch_size", 1)))

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int = 32,
        shuffle: bool = True,
        validation_data: tuple[Any, Any] | Dataset | None = None,
        callbacks: Sequence[Callback] = (),
        verbose: int = 1,
    ) -> list[dict[str, float]]:
        """Trains for so many epochs more; the loss and metrics of each. Ctrl-C ends it after a step, with a checkpoint where there is a folder for
        one; the weights stay."""
        data = self._data(x, y)
        checked = None
        if validation_data is not None:
            pair = (validation_data, None) if isinstance(validation_data, Dataset) else validation_data
            checked = self._data(*pair, what="validation_data")
        self.stop = False
        for callback in callbacks:
            callback.trainer = self
        told = _Told(self, callbacks, verbose)
        wants = {"steps": bool(callbacks), "step_weights": False, "epoch_weights": False}
        shuffled = self._seed if shuffle else None
        self._native.fit(data, _count(epochs, "epochs", 0), _count(batch_size, "batch_size", 1), shuffled, told, wants, checked)
        return told.history

    def evaluate(self, x: Any, y: Any = None, *, batch_size: int = 32) -> dict[str, float]:
        """The loss and the metrics over data."""
        return dict(self._native.evaluate(self._data(x, y), _count(batch_size, "batch_size", 1)))

    def predict(self, x: Any, *, batch_size: int = 32) -> Any:
        """What the model makes of data: an array, or a list of them."""
        parts: list[list[np.ndarray]] = []

        def take(outputs: list[tuple[str, list[int], bytes]]) -> None:
            parts.append([np.frombuffer(data, dtype).reshape(shape) for dtype, shape, data in outputs])

        self._native.predict(self._data(x, None), _count(batch_size, "batch_size", 1), take)
        whole = [np.concatenate(column) for column in zip(*parts)]
        return whole[0] if len(whole) == 1 else whole

    def save(self, path: str | Path) -> None:
        """Writes the parameters as safetensors, whole or not at all."""
        self._native.save(str(path))

    def load(self, path: str | Path, x: Any, y: Any = None, *, batch_size: int = 32) -> None:
        """Reads parameters that :meth:`save` wrote, for data like this, and begins anew with them."""
        self._native.load(str(path), self._data(x, y), batch_size)

    def resume(self, folder: str | Path, x: Any, y: Any = None, *, batch_size: int = 32, shuffle: bool = True) -> bool:
        """Goes on from the last checkpoint of a folder, for the data and settings of that run; whether there was one."""
        return self._native.resume(str(folder), self._data(x, y), batch_size, self._seed if shuffle else None)

    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, by name, once data was seen."""
        return {name: np.frombuffer(data, dtype).reshape(shape) for name, dtype, shape, data in self._native.parameters()}
