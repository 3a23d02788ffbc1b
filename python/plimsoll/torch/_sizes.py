"""Batches of other sizes than the one that a program was exported with: whether its way through the module is theirs too."""

from __future__ import annotations

import math
import re
from typing import Any, Callable

import torch
from torch.utils import _pytree as pytree

from plimsoll.errors import PlimsollError
from plimsoll.torch._batch import Batch
from plimsoll.torch._export import LayerDrop
from plimsoll.torch._kept import Kept
from plimsoll.torch._program import Program, functional

__all__ = ["Sizes", "broken"]

#: How far what a program gives may be from what the module gives, as a share of the largest.
_SAME = 1e-3


def broken(program: Program, tensors: list[torch.Tensor]) -> list[str]:
    """What a program takes for granted of the sizes of a batch, and does not hold for these tensors."""
    exported, found = program.exported, []
    given = {"L": {"tensors": tensors}, "math": math, "torch": torch, "__builtins__": {"min": min, "max": max, "abs": abs, "int": int, "float": float}}
    for guard in getattr(exported, "_guards_code", None) or []:
        try:
            # The exporter writes what it has relied upon as Python; the exported program of PyTorch runs it the same way.
            is_so = eval(guard, dict(given))
        except Exception:  # One about something that is no size.
            continue
        if not is_so:
            found.append(re.sub(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]", r"the length of axis \2 of tensor \1", guard))
    if found:
        return found
    own = set(exported.graph_signature.user_inputs)
    inputs = [node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder" and node.name in own]
    ranges = {str(symbol): between for symbol, between in exported.range_constraints.items()}
    for number, (held, tensor) in enumerate(zip(inputs, tensors)):
        for axis, length in enumerate(held.shape if isinstance(held, torch.Tensor) else ()):
            between = ranges.get(str(length))
            if between is not None and not between.lower <= tensor.shape[axis] <= between.upper:
                limit = f"at least {between.lower}" if tensor.shape[axis] < between.lower else f"at most {between.upper}"
                found.append(f"the length of axis {axis} of tensor {number} is {limit}")
    return found


class Sizes:
    """The sizes of batches that a program was seen to be right for.

    ``if x.shape[0] > 3`` is decided once, when a module is exported. Most of what an exporter relies upon makes no difference (that there is more than one sample, say), so a batch for
    which it does not hold is run once by PyTorch, by the module and by the program.
    """

    def __init__(self, program: Program, within: Callable[[Callable[[], Any]], Any] | None = None) -> None:
        self._program = program
        #: Calls something with the module in the mode that the program is of.
        self._within = within or (lambda call: call())
        self._seen: set[Any] = set()

    def follow(self, batch: Batch) -> None:
        """Refuses a batch that goes another way through the module."""
        key = tuple(tuple(shape) for shape in batch.shapes)
        if key in self._seen:
            return
        tensors = [tensor.detach() for tensor in batch.tensors]
        if reasons := broken(self._program, tensors):
            self._within(lambda: self._compare(tensors, reasons))
        self._seen.add(key)

    def _compare(self, tensors: list[torch.Tensor], reasons: list[str]) -> None:
        module, shapes = self._program.module, ", ".join(str(list(tensor.shape)) for tensor in tensors)
        written = {spec.target for spec in self._program.exported.graph_signature.output_specs if spec.kind.name == "PARAMETER_MUTATION"}
        held = [*module.named_buffers(), *(named for named in module.named_parameters() if named[0] in written)]

        def made(call: Callable[..., Any]) -> list[torch.Tensor]:
            with torch.random.fork_rng(), LayerDrop(rewinds=True):
                torch.manual_seed(0)
                return [leaf for leaf in pytree.tree_leaves(call(*tensors)) if isinstance(leaf, torch.Tensor)]

        with Kept(module), torch.no_grad():
            # Over copies of what it writes to: a change of the module's own tensors would be taken for the user's.
            wanted = made(lambda *given: torch.func.functional_call(module, {name: value.clone() for name, value in held}, given))
            try:
                found = made(functional(self._program, all_outputs=True))
            except (RuntimeError, IndexError):
                found = []
        if len(wanted) == len(found) and all(_is_same(one, other) for one, other in zip(wanted, found)):
            return
        raise PlimsollError(
            f"a batch of {shapes} goes another way through the module than the one that it was exported with, which took for granted: {'; '.join(reasons)}. "
            "Leave such a batch out (DataLoader(drop_last=True)), or make a new Trainer for it"
        )


def _is_same(wanted: torch.Tensor, found: torch.Tensor) -> bool:
    if wanted.shape != found.shape:
        return False
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return bool((wanted == found).all())
    scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
    return bool(torch.allclose(wanted, found.to(wanted.dtype), rtol=0.0, atol=_SAME * scale, equal_nan=True))
