"""What happens in a run as calls of Keras's callbacks, and what those want to be told."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np

from plimsoll import _data
from plimsoll._plan import Plan
from plimsoll._progress import notice_words


def overrides(callback: Any, *names: str) -> bool:
    """Whether a callback has a method of its own."""
    import keras

    for name in names:
        method, base = getattr(callback, name, None), getattr(keras.callbacks.Callback, name, None)
        if method is not None and getattr(method, "__func__", method) is not base:
            return True
    return False


TEST_METHODS = ("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end")
STEP_METHODS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def reads_weights(callback: Any) -> bool:
    """Whether a callback may look at the weights after a step: only those that are known not to do not."""
    import keras

    known = keras.callbacks
    if isinstance(callback, known.ModelCheckpoint):
        return callback.save_freq != "epoch"
    logs_only = tuple(
        getattr(known, name)
        for name in (
            "ProgbarLogger", "History", "TerminateOnNaN", "CSVLogger", "EarlyStopping", "LearningRateScheduler",
            "ReduceLROnPlateau", "RemoteMonitor", "TensorBoard",
        )
        if hasattr(known, name)
    )
    if isinstance(callback, logs_only) and type(callback).__module__.startswith("keras."):
        return False
    return overrides(callback, *STEP_METHODS)


def may_stop(callback: Any) -> bool:
    """Whether a callback may ask for the end of a run before a step: Keras looks for it after every one."""
    import keras

    is_own = not type(callback).__module__.startswith("keras.") or isinstance(callback, keras.callbacks.LambdaCallback)
    return is_own and overrides(callback, "on_train_begin", "on_epoch_begin", "on_test_end")


def checked(callbacks: Any) -> list[Any]:
    """The callbacks, none of which wants what is not done here."""
    import keras

    listed = list(callbacks) if isinstance(callbacks, (list, tuple)) else [] if callbacks is None else [callbacks]
    for callback in listed:
        for name, instead in (("BackupAndRestore", "give fit a folder with checkpoints="), ("SwapEMAWeights", "leave it out")):
            if hasattr(keras.callbacks, name) and isinstance(callback, getattr(keras.callbacks, name)):
                raise ValueError(f"the callback {name} is not supported; {instead}")
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"callbacks has {type(callback).__name__}, which is no keras.callbacks.Callback")
    return listed


_ONE_OF_SEVERAL = re.compile(r"(.+)\[(\d+)\]")


def gathered(logs: dict[str, Any]) -> dict[str, Any]:
    """Logs with the numbers of a metric that has several as one array, as Keras has it."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        one = _ONE_OF_SEVERAL.fullmatch(name)
        if one is None:
            found[name] = value
        else:
            found.setdefault(one[1], []).append(value)
    return {name: np.asarray(value, np.float32) if isinstance(value, list) else value for name, value in found.items()}


class Told:
    """Hands what happens in a run on to Keras's callbacks."""

    def __init__(
        self, model: Any, callbacks: Any, epochs: int, initial_epoch: int, source: _data.Source, validation_freq: int | list[int]
    ) -> None:
        self.model, self.callbacks, self.epochs, self.first = model, callbacks, epochs, initial_epoch
        self.source, self.validation_freq = source, validation_freq
        self.plan: Plan | None = None
        self.logs: dict[str, float] = {}
        self.samples_s: list[float] = []
        self.in_epoch: tuple[int, dict[str, float]] | None = None

    def begin(self, parts: dict[str, Any]) -> None:
        self.plan = Plan(parts)
        self.model.stop_training = False
        self.callbacks.on_train_begin()
        self._begin_epoch(self.first)

    def _begin_epoch(self, epoch: int) -> None:
        self.in_epoch = (epoch, {})
        self.callbacks.on_epoch_begin(epoch)
        self.callbacks.on_train_batch_begin(0)

    def _rate(self) -> float | None:
        """The learning rate as it stands; none where a schedule sets it."""
        import keras

        if getattr(self.model.optimizer, "_inner_optimizers", None):
            return None
        rate = self.model.optimizer._learning_rate
        inner = getattr(self.model.optimizer, "inner_optimizer", None)
        rate = inner._learning_rate if inner is not None else rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) or callable(rate) and not hasattr(rate, "assign"):
            return None
        return float(keras.ops.convert_to_numpy(rate))

    def step(self, number: int, logs: dict[str, float]) -> tuple[bool, float | None]:
        logs = gathered(logs)
        if self.in_epoch is not None:
            self.in_epoch = (self.in_epoch[0], logs)
        self.callbacks.on_train_batch_end(number, logs)
        stops = bool(self.model.stop_training)
        steps = self.source.steps
        if self.source.lengths is not None and self.in_epoch is not None:
            steps = self.source.lengths[self.in_epoch[0] - self.first]
        if not stops and (steps is None or number + 1 < steps):
            self.callbacks.on_train_batch_begin(number + 1)
        return stops, self._rate()

    def epoch(self, number: int, logs: dict[str, float], samples_s: float) -> tuple[bool, float | None]:
        epoch, logs = self.first + number, gathered(logs)
        self.samples_s.append(samples_s)
        self.in_epoch, self.logs = None, logs
        self.callbacks.on_epoch_end(epoch, logs)
        stops = bool(self.model.stop_training)
        if not stops and epoch + 1 < self.epochs:
            self._begin_epoch(epoch + 1)
        return stops, self._rate()

    def validates(self, number: int) -> bool:
        """Whether an epoch is followed by a validation."""
        return is_validated(self.validation_freq, self.first + number)

    def test(self, batches: int | None, logs: dict[str, float]) -> None:
        _tell_test(self.callbacks, batches, logs)

    def notice(self, text: str) -> None:
        words = notice_words(text)
        if words is not None:
            warnings.warn(words, stacklevel=2)

    def end(self) -> None:
        """What Keras tells callbacks when a run is over; an epoch that was stopped in its middle ends first."""
        if self.in_epoch is not None and self.in_epoch[1]:
            epoch, self.logs = self.in_epoch
            self.in_epoch = None
            self.callbacks.on_epoch_end(epoch, self.logs)
        self.callbacks.on_train_end(self.logs)


def _tell_test(callbacks: Any, batches: int | None, logs: dict[str, float]) -> None:
    """Hands the batches of an evaluation on to Keras's callbacks: none yet, so many, or that it is over."""
    logs = gathered(logs)
    if batches is None:
        callbacks.on_test_end(logs)
    elif batches == 0:
        callbacks.on_test_begin()
    else:
        callbacks.on_test_batch_begin(batches - 1)
        callbacks.on_test_batch_end(batches - 1, logs)


def validated_every(validation_freq: Any) -> int | list[int]:
    """After which epochs a validation is wanted, as Keras takes it."""
    if isinstance(validation_freq, (list, tuple, set)):
        return [int(epoch) for epoch in validation_freq]
    if isinstance(validation_freq, bool) or not isinstance(validation_freq, (int, np.integer)) or validation_freq < 1:
        raise ValueError(f"validation_freq is {validation_freq!r}; a number from 1 on or a list of epochs belongs there")
    return int(validation_freq)


def is_validated(every: int | list[int], epoch: int) -> bool:
    """Whether an epoch, counted from 0, is followed by a validation."""
    return (epoch + 1) % every == 0 if isinstance(every, int) else epoch + 1 in every


class ToldOfTest:
    """Hands the batches of an evaluation on to Keras's callbacks."""

    def __init__(self, callbacks: Any) -> None:
        self.callbacks = callbacks

    def test(self, batches: int | None, logs: dict[str, float]) -> None:
        _tell_test(self.callbacks, batches, logs)


def shown(verbose: str | int) -> int:
    """How much is shown: nothing, a bar, or a line an epoch."""
    if verbose not in ("auto", 0, 1, 2):
        raise ValueError(f"verbose is {verbose!r}; 'auto', 0, 1 or 2 belongs there")
    return 1 if verbose == "auto" else int(verbose)


def listeners(model: Any, callbacks: Any, verbose: str | int, steps: int | None) -> Any:
    """Keras's callbacks for an evaluation or a prediction; none where nobody listens."""
    import keras

    listed, verbose = checked(callbacks), shown(verbose)
    if not listed and not verbose:
        return None
    return keras.callbacks.CallbackList(listed, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=steps, model=model)
