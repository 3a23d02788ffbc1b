"""Plain values that functions read from around them: of their closures, of globals, of objects that are called, and of settings one level within those."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import types
from typing import Any, Callable, Iterator

import torch

__all__ = ["PLAIN", "outside"]

#: Values of these types are settings; others (tables, functions, caches) are not looked at.
PLAIN = (bool, int, float, str)
_ABSENT = object()
#: A value by its name, and how to see what it is by now.
Read = tuple[str, Callable[[], Any]]


def outside(called: Any) -> Iterator[Read]:
    """Values that are read when something is called."""
    while isinstance(called, functools.partial):
        yield from _within("", called.keywords)
        called = called.func
    if isinstance(called, torch.nn.Module) or (getattr(called, "__module__", None) or "").partition(".")[0] == "torch":
        return
    owner = getattr(called, "__self__", None)
    if isinstance(called, types.MethodType):
        called = called.__func__
    elif not isinstance(called, types.FunctionType):
        owner, called = called, getattr(type(called), "__call__", None)
    if owner is not None and not isinstance(owner, (torch.nn.Module, types.ModuleType)) and hasattr(owner, "__dict__"):
        yield from _within(f"{type(owner).__name__}.", vars(owner))
    if not isinstance(called, types.FunctionType):
        return
    for name, cell in zip(called.__code__.co_freevars, called.__closure__ or ()):
        yield from _seen(name, functools.partial(_of_cell, cell))
    for name in called.__code__.co_names:
        if name in called.__globals__:
            yield from _seen(name, functools.partial(called.__globals__.get, name, _ABSENT))


def _of_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # Nothing is in it yet.
        return _ABSENT


def _seen(name: str, read: Callable[[], Any]) -> Iterator[Read]:
    value = read()
    if type(value) in PLAIN:
        yield name, read
    elif type(value) is dict:
        yield from _within(f"{name}.", value)
    elif isinstance(value, (types.SimpleNamespace, argparse.Namespace)) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        yield from _within(f"{name}.", getattr(value, "__dict__", {}))


def _within(before: str, held: dict[Any, Any]) -> Iterator[Read]:
    for key, value in held.items():
        if type(value) in PLAIN:
            yield f"{before}{key}", functools.partial(held.get, key, value)
