"""Trains neural networks inside a memory limit that you name.

>>> import plimsoll                                                     # doctest: +SKIP
>>> history = plimsoll.fit(model, x, y, epochs=3, memory="2GiB")        # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from plimsoll._native import Net, Tape, Tensor, __version__, concat, einsum, from_dlpack
from plimsoll.errors import MemoryLimitError, OutOfMemoryError, PlimsollError

if TYPE_CHECKING:
    from plimsoll._data import Dataset
    from plimsoll._engine import Callback, EarlyStopping, Optimizer, Schedule, Sequential, Trainer
    from plimsoll._fit import evaluate, fit, plan, predict, report
    from plimsoll._plan import Explanation, Plan, Report, explain

__all__ = [
    "Callback",
    "Dataset",
    "EarlyStopping",
    "Explanation",
    "MemoryLimitError",
    "Net",
    "Optimizer",
    "OutOfMemoryError",
    "Plan",
    "PlimsollError",
    "Report",
    "Schedule",
    "Sequential",
    "Tape",
    "Tensor",
    "Trainer",
    "__version__",
    "concat",
    "einsum",
    "evaluate",
    "explain",
    "fit",
    "from_dlpack",
    "plan",
    "predict",
    "report",
]

# Loaded when they are first used: the command needs no NumPy, and its memory counts.
_PLACES = {
    **dict.fromkeys(("evaluate", "fit", "plan", "predict", "report"), "plimsoll._fit"),
    "Dataset": "plimsoll._data",
    **dict.fromkeys(("Callback", "EarlyStopping", "Optimizer", "Schedule", "Sequential", "Trainer"), "plimsoll._engine"),
    **dict.fromkeys(("Explanation", "Plan", "Report", "explain"), "plimsoll._plan"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'plimsoll' has no attribute {name!r}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
