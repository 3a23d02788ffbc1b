"""Random numbers that a module draws from Python or NumPy: a program has those of one run, so a module whose loss hangs on them is refused."""

from __future__ import annotations

import random
import warnings
from typing import Any, Callable

import numpy as np

from plimsoll.errors import PlimsollError

__all__ = ["Drawn"]

#: How often a module runs again that drew numbers.
_RUNS = 8


class Drawn:
    """Sees whether something drew from ``random`` or ``numpy.random``, and puts both back as they were."""

    def __enter__(self) -> Drawn:
        self._before = _states()
        return self

    def __exit__(self, *_: Any) -> None:
        own, of_numpy = self._before
        random.setstate(own)
        np.random.set_state(of_numpy)

    def refuse(self, loss: float, again: Callable[[], float], most: float) -> None:
        """Refuses a module whose loss is another with other numbers; where a few runs show none, it is only said."""
        if _is_same(self._before, _states()):
            return
        for _ in range(_RUNS):
            other = again()
            if abs(other - loss) > most * max(1.0, abs(loss)):
                raise PlimsollError(
                    f"the module's loss hangs on random numbers of Python or NumPy (random, numpy.random): {loss:g}, then {other:g} on the same samples. They are drawn once, when the module is "
                    "exported, and would be the same in every step: draw them with torch, or give them as a part of the batch"
                )
        warnings.warn("the module draws random numbers of Python or NumPy (random, numpy.random): they are those of the export in every step; draw them with torch, or give them as a part of the batch", stacklevel=2)


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _is_same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return one[0] == other[0] and all(np.array_equal(a, b) for a, b in zip(one[1], other[1]))
