"""What can go wrong, as exceptions that carry their figures."""

from __future__ import annotations

import re
from typing import Sequence

__all__ = ["PlimsollError", "MemoryLimitError", "OutOfMemoryError"]


_ARGUMENTS = {"--memory": "memory", "--host-memory": "host memory", "--batch": "batch_size", "--exact": "exact", "--precision": "precision"}


def _in_python(text: str) -> str:
    """A refusal with the arguments of this package in the place of the command's flags."""

    def argument(flag: str, value: str) -> str:
        return f"{_ARGUMENTS[flag]}={value}" if value.isdigit() else f'{_ARGUMENTS[flag]}="{value}"'

    lines, ways = text.split("\n"), {}
    for i, line in enumerate(lines):
        way = re.match(r"  (--\S+) (\S+)\s+((?:least|enough) .*)$", line)
        if way and way[1] in _ARGUMENTS:
            ways[i] = (argument(way[1], way[2]), way[3].replace("with --memory raised", "with memory raised"))
    width = max((len(words) for words, _ in ways.values()), default=0)
    for i, (words, rest) in ways.items():
        lines[i] = f"  {words:<{width}}  {rest}"
    return "\n".join(lines)


class PlimsollError(RuntimeError):
    """The engine refused or failed; the text says what was wrong and what to do."""


class MemoryLimitError(PlimsollError):
    """No plan keeps to the memory limit.

    Nothing was run. ``least`` is the least limit that would do, to the byte.

    Attributes:
        least: the least memory limit for this step, in bytes.
        limit: the memory limit that was asked for, in bytes.
        holders: what holds memory at the least plan's peak, as ``(name, bytes)``.
        ways_out: changes that would lower the least, as ``(change, least)``.
    """

    def __init__(
        self,
        text: str,
        *,
        least: int = 0,
        limit: int | None = None,
        holders: Sequence[tuple[str, int]] = (),
        ways_out: Sequence[tuple[str, int]] = (),
    ) -> None:
        super().__init__(_in_python(text))
        self.least = least
        self.limit = limit
        self.holders = list(holders)
        self.ways_out = list(ways_out)


class OutOfMemoryError(PlimsollError):
    """The system or a device refused memory in the middle of a run.

    Attributes:
        requested: the bytes that were asked for.
        in_use: the bytes that were in use.
        limit: the most that may be in use.
        holders: the largest holders, as ``(name, bytes)``.
    """

    def __init__(
        self,
        text: str,
        *,
        requested: int = 0,
        in_use: int = 0,
        limit: int = 0,
        holders: Sequence[tuple[str, int]] = (),
    ) -> None:
        super().__init__(text)
        self.requested = requested
        self.in_use = in_use
        self.limit = limit
        self.holders = list(holders)
