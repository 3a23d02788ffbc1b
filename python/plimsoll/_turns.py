"""What gives batches - generators, PyDatasets, tf.data, DataLoaders - as epochs of them."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any, Callable, Iterator

import numpy as np


def is_batches(x: Any) -> bool:
    """Whether it gives batches, and is no array."""
    if isinstance(x, Begun):
        return True
    if x is None or isinstance(x, (np.ndarray, list, tuple, dict, str)) or hasattr(x, "__array__") or hasattr(x, "__dlpack__"):
        return False
    # Ragged and sparse ones are arrays too, which are refused as such.
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return False
    return hasattr(x, "__next__") or hasattr(x, "__iter__") or hasattr(x, "__getitem__")


def _is_numbered(x: Any) -> bool:
    """Whether it is a PyDataset of Keras, whose batches have numbers."""
    return hasattr(x, "num_batches") and hasattr(x, "on_epoch_end") and hasattr(x, "__getitem__")


def _length(batch: Any) -> int:
    """How many samples a batch has."""
    while isinstance(batch, (tuple, list, dict)) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return int(batch.shape[0]) if getattr(batch, "shape", None) else 0


def _numbered(x: Any, order: np.random.Generator | None) -> Callable[[], Iterator[Any]]:
    """The batches of a PyDataset, as Keras does it: with an order, in another one in every pass. A last batch that is smaller than others stays the last,
    and in the first pass nobody knows yet whether it is."""
    workers = getattr(x, "workers", 1)
    if workers > 1 or workers == 1 and getattr(x, "use_multiprocessing", False):
        warnings.warn(
            f"this PyDataset asks for {workers} worker{'s' if workers > 1 else ''} of its own; its batches are made one after the other in one thread, "
            "so that no more of them are held than the plan counts", stacklevel=2,
        )
    lengths: dict[int, int] = {}

    def begin() -> Iterator[Any]:
        count = x.num_batches
        if count is None:
            yield from map(x.__getitem__, itertools.count())
            return
        numbers = np.arange(count)
        if order is not None:
            is_even = 0 < lengths.get(0, 0) == lengths.get(count - 1)
            order.shuffle(numbers if is_even else numbers[:-1])
        for number in numbers.tolist():
            batch = x[number]
            if number in (0, count - 1):
                lengths[number] = _length(batch)
            yield batch

    return begin


def passes_of(x: Any, order: np.random.Generator | None = None) -> tuple[Callable[[], Iterator[Any]], int | None, bool]:
    """What gives the batches of a pass, how many those are, and whether every pass begins anew. Batches that have numbers can be given in another order."""
    if _is_numbered(x):
        return _numbered(x, order), x.num_batches, True
    if hasattr(x, "__next__"):
        return (lambda: x), None, False
    try:
        count = len(x)
    except TypeError:
        count = None
    if hasattr(x, "cardinality") and int(x.cardinality()) == -1:
        return (lambda: iter(x)), math.inf, True  # type: ignore[return-value]
    # A tf.data.Dataset says -1 and -2 for what it does not know.
    return (lambda: iter(x)), count if count is None or count >= 0 else None, True


def ran_out(steps: int, count: int) -> None:
    """What Keras says where an epoch has fewer batches than it should."""
    warnings.warn(f"the data ran out: an epoch was to have {steps} batches and had {count}", stacklevel=2)


class Turns:
    """Batches in epochs. Without ``steps``, an epoch is a pass over the data. With them it has so many batches and goes on where the one before
    ended; where a pass ends in its middle, it ends too, with a warning, and the next one begins anew. So does Keras. Evaluations (``is_fresh``) all begin with
    the first batch."""

    def __init__(
        self, begin: Callable[[], Iterator[Any]], count: int | None, steps: int | None, is_anew: bool,
        at_begin: Callable[[], None] | None = None, at_end: Callable[[], None] | None = None,
        is_fresh: bool = False,
    ) -> None:
        self.begin, self.count, self.steps, self.is_anew, self.at_begin, self.at_end = begin, count, steps, is_anew, at_begin, at_end
        self.iterator: Iterator[Any] | None = None
        self.ahead: list[Any] = []
        self.seen = 0
        self.is_fresh = is_fresh

    def peek(self) -> Any:
        """The first batch, which is given again in its turn: the first epoch has begun."""
        if self.at_begin is not None:
            self.at_begin()
        self.iterator = iter(self.begin())
        try:
            self.ahead = [next(self.iterator)]
        except StopIteration:
            raise ValueError("the data has no batches") from None
        return self.ahead[0]

    def lengths(self, epochs: int) -> list[int] | None:
        """How many batches each epoch has, where that is known."""
        if self.count is None or self.steps is None:
            return None
        found, seen = [], 0
        for _ in range(epochs):
            length = min(self.steps, self.count - seen)
            found.append(length)
            seen = (seen + length) % self.count
        return found

    def _next(self) -> Any:
        if self.ahead:
            return self.ahead.pop()
        if self.iterator is None:
            self.iterator, self.seen = iter(self.begin()), 0
        return next(self.iterator)

    def epoch(self) -> Iterator[Any]:
        """The batches of the next epoch."""
        if self.at_begin is not None and not self.ahead:
            self.at_begin()
        yield from self._epoch()
        if self.at_end is not None:
            self.at_end()

    def _epoch(self) -> Iterator[Any]:
        if self.steps is None:
            if not self.ahead:
                self.iterator = None
            while True:
                try:
                    batch = self._next()
                except StopIteration:
                    self.iterator = None
                    return
                yield batch
        if self.is_fresh and not self.ahead:
            self.iterator, self.seen = None, 0
        n = 0
        while n < self.steps:
            if self.count is not None and self.seen >= self.count:
                ran_out(self.steps, n)
                break
            try:
                batch = self._next()
            except StopIteration:
                if n == 0 and (not self.is_anew or self.seen == 0):
                    raise ValueError(f"the data has ended, and an epoch of {self.steps} batches is still to come") from None
                self.iterator = None
                if n == 0:
                    # It ended with the last epoch.
                    continue
                ran_out(self.steps, n)
                break
            n, self.seen = n + 1, self.seen + 1
            yield batch
        if self.count is not None and self.seen >= self.count:
            self.iterator, self.seen = None, 0


def parts_of(batch: Any, n_inputs: int, labels: bool) -> tuple[Any, Any, Any]:
    """The inputs, labels and weights of a batch. Where no labels are wanted, a tuple of as many as there are inputs is those."""
    if isinstance(batch, (tuple, list)) and not (n_inputs == len(batch) > 1 and not labels):
        if len(batch) > 3 or not batch:
            raise ValueError(f"a batch is a tuple of {len(batch)}; x, y and sample_weight belong there")
        return (*batch, None, None)[:3]  # type: ignore[return-value]
    return batch, None, None


class Begun:
    """Batches of which the first is there already, so that it can be looked at: it says shapes that the model leaves open. It is given in its turn all the same.
    ``passes`` are the epochs of a training; where there are none they are for evaluations."""

    def __init__(self, x: Any, *, steps: int | None, passes: int | None, order: np.random.Generator | None = None) -> None:
        is_fresh, self.passes = passes is None, passes or 1
        begin, count, is_anew = passes_of(x, order)
        if count == math.inf:
            if steps is None:
                raise ValueError("the dataset repeats without end; give steps_per_epoch (steps of an evaluation)")
            count = None
        if not is_anew and steps is None and self.passes > 1:
            raise ValueError("a generator does not say where an epoch ends; give steps_per_epoch")
        self.steps = steps if steps is not None else count
        self.turns = Turns(begin, count, steps, is_anew, getattr(x, "on_epoch_begin", None), getattr(x, "on_epoch_end", None), is_fresh)
        self.turns.peek()

    def first(self, n_inputs: int, labels: bool) -> tuple[Any, Any, Any]:
        """Inputs, labels and weights of the first batch."""
        return parts_of(self.turns.ahead[0], n_inputs, labels)
