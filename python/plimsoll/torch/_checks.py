"""What a module only checks (``assert``, ``if …: raise``) of numbers in tensors, which an export cannot know, taken as passed."""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import sys
import warnings
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Iterator

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Checks"]

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
#: Instructions that change nothing of what is asked.
_BESIDE = ("CACHE", "COPY", "EXTENDED_ARG", "NOP", "PRECALL", "TO_BOOL")
#: How many places a warning names.
_NAMED = 3
_QUESTIONS = (torch.Tensor.__bool__, torch.Tensor.item)


class Checks(TorchFunctionMode):
    """While it is entered, the truth of a tensor is answered where it decides of nothing but an error: so that there is none.

    A planned step cannot stop in the middle to raise an error; a check that fails in eager PyTorch fails before the first step, when gradients are compared.
    Those that are left out are warned of by :meth:`tell`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left_out: dict[str, None] = {}

    def tell(self) -> None:
        """Warns of the checks that were left out, once they all are known."""
        if self._left_out:
            places = list(self._left_out)
            more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
            message = "what is checked of numbers in tensors at %s%s is looked at for the first batch alone: steps leave it out"
            warnings.warn(message % (", ".join(places[:_NAMED]), more), stacklevel=2)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _QUESTIONS and args and args[0].dtype == torch.bool:
            frame = _asking(sys._getframe(1))
            answer = None if frame is None else _answers(frame.f_code).get(frame.f_lasti)
            if frame is not None and answer is not None:
                self._left_out[f"{frame.f_code.co_filename}:{frame.f_lineno}"] = None
                return answer
        return func(*args, **(kwargs or {}))


def _asking(frame: FrameType | None) -> FrameType | None:
    """The frame of the module's own code that asks."""
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


@functools.lru_cache(maxsize=1024)
def _answers(code: CodeType) -> dict[int, bool]:
    """By the place in a function's bytecode that asks for a truth, what it must be so that nothing is raised."""
    instructions = list(dis.get_instructions(code))
    jumps = [place for place, at in enumerate(instructions) if "JUMP" in at.opname and "_IF_" in at.opname]
    found: dict[int, bool] = {}
    for test, leaves in _checks(code.co_filename):
        own = [place for place in jumps if test.lineno <= _line(code, instructions[place].offset) <= (test.end_lineno or test.lineno)]
        # The compiler asks one part after the other, each once.
        if len(own) != len(leaves):
            continue
        for place, answer in zip(own, leaves):
            found[instructions[place].offset] = answer
            has_called = False
            for before in reversed(instructions[:place]):
                # item() and bool() right before it are the question.
                is_call = "CALL" in before.opname and before.opname not in _BESIDE
                if before.opname not in _BESIDE and (has_called or not is_call):
                    break
                has_called |= is_call
                found[before.offset] = answer
    return found


def _line(code: CodeType, offset: int) -> int:
    """The line of the source that a place of the bytecode is of."""
    return max((start, line) for start, line in dis.findlinestarts(code) if start <= offset and line is not None)[1]


@functools.lru_cache(maxsize=256)
def _checks(file: str) -> list[tuple[ast.expr, list[bool]]]:
    """What is tested in a file before an error alone, and what each part of it must be so that there is none."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found.append((node.test, list(_leaves(node.test, True))))
        elif isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Raise) and all(isinstance(one, (ast.Expr, ast.Assign)) for one in node.body[:-1]):
            found.append((node.test, list(_leaves(node.test, False))))
    return found


def _leaves(test: ast.expr, answer: bool) -> Iterator[bool]:
    """What parts of a test must be for the whole to be so: each of them, where one would do too."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _leaves(test.operand, not answer)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _leaves(value, answer)
    else:
        yield answer
