"""What can go wrong, as exceptions that carry their figures."""

from __future__ import annotations

from typing import Sequence

__all__ = ["PlimsollError", "MemoryLimitError", "OutOfMemoryError"]


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
        super().__init__(text)
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
