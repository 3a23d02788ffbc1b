"""What a program has of its module and its loss once and for all: which parts are in training mode, what is frozen, plain settings. A change since is an error or a warning."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from plimsoll.errors import PlimsollError
from plimsoll.torch._outside import PLAIN, outside
from plimsoll.torch._program import Program, own_name

__all__ = ["Settled"]

_AGAIN = "call sync() and make a new Trainer"


class Settled:
    """A module's settings when it was exported."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._root = program.module.model
        named = [(own_name(name), part) for name, part in self._root.named_modules(prefix="model")]
        self._modes = [(name, part, part.training) for name, part in named if part is not self._root]
        self._learns = {name: tensor.requires_grad for name, tensor in program.tensors.items()}
        parts = [(own_name(name), part) for name, part in program.module.named_modules() if name]
        reads = [
            (f"{name}.{key}" if name else key, functools.partial(vars(part).get, key, value))
            for name, part in parts
            for key, value in vars(part).items()
            if key != "training" and type(value) in PLAIN
        ]
        # A weight of a part of the loss that a loop changes is often no attribute of a module.
        functions = [program.module.loss_fn] if hasattr(program.module, "loss_fn") else []
        functions += {kind.forward: None for kind in (type(part) for _, part in parts) if not kind.__module__.startswith("torch.")}
        reads += [read for function in functions if function is not None for read in outside(function)]
        self._plain = [(name, read, read()) for name, read in reads]

    def check(self) -> None:
        """Refuses a module of which something else is trained by now, and warns once of each setting that is another."""
        for name, learns in self._learns.items():
            tensor = self._program.tensors[name]
            if tensor.requires_grad != learns:
                raise PlimsollError(f"{name} has requires_grad={tensor.requires_grad} by now, and the Trainer was made when it was {learns}: {_AGAIN}")
        if self._root.training:
            for name, part, mode in self._modes:
                if part.training != mode:
                    modes = ["train()" if is_training else "eval()" for is_training in (part.training, mode)]
                    raise PlimsollError(f"{name} is in {modes[0]} by now, and the Trainer was made when it was in {modes[1]}: {_AGAIN}")
        changed = [(name, value, now) for name, read, value in self._plain if (now := read()) is not value and now != value]
        for name, value, now in changed:
            warnings.warn(
                f"{name} was {value!r} when the Trainer was made and is {now!r} by now: an exported program does not follow that. Where it matters, keep it in a buffer, or {_AGAIN}",
                stacklevel=4,
            )
        if changed:
            names = {name for name, _, _ in changed}
            self._plain = [one for one in self._plain if one[0] not in names]
