"""What a program has of its module once and for all: which parts are in training mode, what is frozen, plain settings. A change since is an error or a warning."""

from __future__ import annotations

import warnings
from typing import Any

from plimsoll.errors import PlimsollError
from plimsoll.torch._program import Program, own_name

__all__ = ["Settled"]

#: Attributes of these types are settings; others (tables, functions, caches) are not looked at.
_PLAIN = (bool, int, float, str)
_AGAIN = "call sync() and make a new Trainer"


class Settled:
    """A module's settings when it was exported."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._root = program.module.model
        named = [(own_name(name), part) for name, part in self._root.named_modules(prefix="model")]
        self._modes = [(name, part, part.training) for name, part in named if part is not self._root]
        self._learns = {name: tensor.requires_grad for name, tensor in program.tensors.items()}
        parts = [(own_name(name), vars(part)) for name, part in program.module.named_modules() if name]
        self._plain = [(name, held, key, value) for name, held in parts for key, value in held.items() if key != "training" and type(value) in _PLAIN]

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
        changed = [(name, held, key, value) for name, held, key, value in self._plain if held.get(key, value) is not value and held[key] != value]
        for name, held, key, value in changed:
            warnings.warn(
                f"{name}.{key} was {value!r} when the Trainer was made and is {held[key]!r} by now: an exported program does not follow that. Where it matters, keep it in a buffer, or {_AGAIN}",
                stacklevel=4,
            )
        if changed:
            self._plain = [one for one in self._plain if not any(one[1] is held and one[2] == key for _, held, key, _ in changed)]
