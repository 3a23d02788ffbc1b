"""Plans, reports and explanations as objects that can be printed, and shown in a notebook."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from plimsoll import _native

__all__ = ["Plan", "Report", "Explanation"]


def _frame(page: str, height: int) -> str:
    """A whole page inside of another."""
    return (
        f'<iframe srcdoc="{html.escape(page, quote=True)}" width="100%" height="{height}" '
        'style="border: 0" sandbox="allow-scripts"></iframe>'
    )


def _size(count: int) -> str:
    """Bytes for people, in the units of the command."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


class Report:
    """A page that shows where the memory of a step goes: in a notebook, or as a file for any browser."""

    def __init__(self, document: str) -> None:
        self._document = document

    def html(self) -> str:
        """The page."""
        return _native.page(self._document)

    def save(self, path: str | Path) -> Path:
        """Writes the page to a file, and returns its path."""
        path = Path(path)
        path.write_text(self.html(), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        return _frame(self.html(), 720)

    def __repr__(self) -> str:
        return "<plimsoll.Report: shown in a notebook; save(path) writes it as a page>"


class Plan:
    """What a training step takes, before it runs. ``print(plan)`` shows it as text, a notebook as a page.

    Attributes:
        memory_limit: the limit that it keeps to, in bytes; ``None`` without one.
        planned: what it takes of that, in bytes.
        least: the least limit for which there is a plan, in bytes.
        python: what Python, NumPy, Keras and your arrays held before. The limit does not count it: the process as a whole takes
            ``planned + python`` at most.
        rows: what holds memory at the peak, as ``(name, bytes)``; ``python`` is the last row and stands beside the limit.
        micro_batches: into how many pieces a batch is split.
        recomputed_ops: how many ops run again instead of keeping their results.
        predicted_ms: predicted milliseconds of a step.
        figures: all figures, as ``plimsoll plan --json`` prints them.
    """

    def __init__(self, parts: dict[str, Any]) -> None:
        self._text: str = parts["text"]
        self._document: str = parts["document"]
        self.figures: dict[str, Any] = json.loads(parts["json"])
        self.python: int = parts["python_bytes"]
        self.memory_limit: int | None = self.figures["memory_limit_bytes"]
        self.planned: int = self.figures["planned_bytes"]
        self.least: int = self.figures["floor_bytes"]
        self.micro_batches: int = self.figures["micro_batches"]
        self.recomputed_ops: int = self.figures["recomputed_ops"]
        self.predicted_ms: float = self.figures["predicted_ms"]
        self.figures["python_bytes"] = self.python
        held = [(name, size) for name, size in self.figures["kinds"].items() if size]
        self.rows: list[tuple[str, int]] = [*held, ("python", self.python)]

    @property
    def transposes(self) -> tuple[int, float]:
        """How many tensors a step copies with their axes in another order, and the share of its predicted time that this takes, done again or not.

        Convolutions of PyTorch run channels-last here and keep what they give so: of a convolutional net one is left, that of its pictures.
        """
        steps = json.loads(self._document)["step"]["instructions"]
        found = [step for step in steps if step["op"] == "transpose"]
        took, whole = (sum(step.get("us", 0.0) for step in some) for some in (found, steps))
        return sum(step["what"] == "run" for step in found), took / whole if whole else 0.0

    @property
    def report(self) -> Report:
        """The plan as a page, step by step."""
        return Report(self._document)

    def __str__(self) -> str:
        row = f"  {'python':<12}{_size(self.python):>10}  held before by Python, NumPy, Keras and your arrays; not counted in the limit"
        # The command counts the whole process; here that is what comes beside Python.
        lines = self._text.replace("for the whole process", "beside Python", 1).rstrip().split("\n")
        at = next((i + 1 for i, line in enumerate(lines) if line.startswith("  planned ")), len(lines))
        return "\n".join([*lines[:at], row, *lines[at:]])

    def __repr__(self) -> str:
        limit = "no limit" if self.memory_limit is None else f"a limit of {_size(self.memory_limit)}"
        return (
            f"<plimsoll.Plan: {_size(self.planned)} of {limit}, at least {_size(self.least)}, "
            f"{self.predicted_ms:.1f} ms a step>"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>" + self.report._repr_html_()


class Explanation:
    """What another system's out-of-memory report says, in plain words.

    Attributes:
        figures: what was found, as ``plimsoll explain --json`` prints it.
    """

    def __init__(self, text: str, figures: str, page: str) -> None:
        self._text = text
        self._page = page
        self.figures: dict[str, Any] = json.loads(figures)

    def html(self) -> str:
        """The explanation as a page."""
        return self._page

    def __str__(self) -> str:
        return self._text.rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _frame(self._page, 480)


def explain(report: str | bytes | Path) -> Explanation:
    """Explains an out-of-memory report of TensorFlow, PyTorch or JAX: its text, or the path of a log or of a memory snapshot.

    >>> print(explain("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    ...     "15.89 GiB of which 1.10 GiB is free. Of the allocated memory 13.00 GiB is allocated by PyTorch, and 1.20 GiB is "
    ...     "reserved by PyTorch but unallocated.").figures["verdict"] != "")
    True
    """
    if isinstance(report, bytes):
        return Explanation(*_native.explain(report, "the report"))
    is_text = isinstance(report, str) and ("\n" in report or len(report) > 255 or not Path(report).is_file())
    if is_text:
        return Explanation(*_native.explain(str(report).encode(), "the report"))
    return Explanation(*_native.explain(Path(report).read_bytes(), str(report)))
