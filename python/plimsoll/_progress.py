"""The progress of a run as one line that is written over, in a terminal or a notebook; as a line an epoch anywhere else."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

#: A line is written over so many times a second at most: steps must not wait for it.
_TIMES = 5.0


def _in_notebook() -> bool:
    """Whether output is shown by a notebook, which writes lines over as a terminal does."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


def notice_words(text: str) -> str | None:
    """What a notice of the engine says, as a sentence with its step; nothing for one that is no warning."""
    notice = json.loads(text)
    words = {
        "skipped": "a step was left out, because its loss or a gradient was not finite",
        "replanned": f"the step was planned anew: {notice.get('why')}",
        "remarked": str(notice.get("why")),
    }.get(notice.get("event"))
    return None if words is None else f"after step {notice.get('step')}: {words}"


def _numbers(logs: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in logs.items())


class Progress:
    """Shows steps and epochs.

    >>> shown = Progress(10, stream=sys.stdout)
    >>> shown.epoch(0, {"loss": 0.5})
    epoch 1: loss 0.5
    """

    def __init__(self, steps: int | None, stream: Any = None) -> None:
        self.steps, self.stream = steps, sys.stdout if stream is None else stream
        is_terminal = getattr(self.stream, "isatty", lambda: False)()
        self.is_live = is_terminal or (stream is None and _in_notebook())
        self.said, self.width = 0.0, 0

    def _write(self, line: str, end: str) -> None:
        self.stream.write(("\r" if self.is_live else "") + line.ljust(self.width if self.is_live else 0) + end)
        self.stream.flush()
        self.width = len(line) if not end else 0

    def step(self, epoch: int, done: int, logs: dict[str, float]) -> None:
        """After a step: so many of an epoch are done."""
        now = time.monotonic()
        if not self.is_live or now - self.said < 1 / _TIMES:
            return
        self.said = now
        of = f"/{self.steps}" if self.steps else ""
        self._write(f"epoch {epoch + 1}, step {done}{of}: {_numbers(logs)}", "")

    def epoch(self, number: int, logs: dict[str, float]) -> None:
        """After an epoch."""
        self._write(f"epoch {number + 1}: {_numbers(logs)}", "\n")
