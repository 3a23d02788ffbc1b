"""The ``plimsoll`` command, as the package installs it."""

from __future__ import annotations

import signal
import sys

from plimsoll import _native


def main() -> int:
    """Runs the command with the words of this process, and returns its exit code."""
    # The command has its own way with Ctrl-C: the interpreter's would never be asked.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    return _native.command(["plimsoll", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
