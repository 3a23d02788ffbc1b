"""Runs a module's code for somebody else than its owner: buffers that it replaces are written to instead, and nothing else of it is left in the module."""

from __future__ import annotations

import collections
import copy
import functools
from typing import Any, Callable

import torch

from plimsoll.errors import PlimsollError

__all__ = ["Kept", "Places", "Resized", "fill_tables", "with_buffers_written"]


#: Tables of a module that are looked at by themselves, or never changed.
_ASIDE = ("_parameters", "_buffers", "_modules")


class Resized(PlimsollError):
    """A buffer has another shape or type after the module has run."""


class Places:
    """Where a module has its parameters and buffers, so that it is quickly seen which it has by now."""

    def __init__(self, module: torch.nn.Module, called: Callable[[str], str] = str) -> None:
        self._module, self._called = module, called
        self._look()

    def _look(self) -> None:
        parts = list(self._module.named_modules(remove_duplicate=False))
        self._parts = [(part._modules, key, inner) for _, part in parts for key, inner in part._modules.items()]
        self._tables = {self._called(_name(prefix, key)): (table, key) for prefix, part in parts for table in (part._parameters, part._buffers) for key in table}

    def now(self) -> dict[str, torch.Tensor | None]:
        """What it has at each place."""
        if any(table.get(key) is not inner for table, key, inner in self._parts):
            self._look()
        return {name: table.get(key) for name, (table, key) in self._tables.items()}


class Kept:
    """Puts back which tensors and other attributes the parts of a module have, and what is in their lists and dictionaries, once it is left. What is in tensors is not looked at."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._attributes = [(name, part.__dict__, dict(part.__dict__)) for name, part in module.named_modules()]
        self._buffers = [(part._buffers, dict(part._buffers)) for part in module.modules()]
        # A cache of tables, say, in which an export leaves what is no tensor; or hooks, which a module puts in once and would put in again.
        self._inside = [
            (_name(prefix, key), value, copy.copy(value))
            for prefix, _, then in self._attributes
            for key, value in then.items()
            if key not in _ASIDE and type(value) in (dict, list, set, collections.OrderedDict, collections.defaultdict, collections.deque)
        ]

    def changed(self) -> list[str]:
        """Attributes that are new, or others by now, or have other things in them. Buffers are none of them."""
        others = [_name(prefix, key) for prefix, now, then in self._attributes for key, value in now.items() if key not in then or then[key] is not value]
        return others + [name for name, value, before in self._inside if not _has(value, before)]

    def counted(self) -> list[str]:
        """Numbers among the attributes that are others by now."""
        return [_name(prefix, key) for prefix, now, then in self._attributes for key, value in now.items() if type(value) in (int, float, bool) and then.get(key, value) != value]

    def restore(self, buffers_alone: bool = False) -> None:
        """Puts back what there was, or the buffers of it."""
        attributes = [] if buffers_alone else [(now, then) for _, now, then in self._attributes]
        for now, then in attributes + self._buffers:
            for key in [key for key in now if key not in then]:
                del now[key]
            now.update({key: value for key, value in then.items() if key not in now or now[key] is not value})
        for _, value, before in [] if buffers_alone else self._inside:
            if not _has(value, before):
                value.clear()
                (value.extend if isinstance(value, (list, collections.deque)) else value.update)(before)

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: Any) -> None:
        self.restore()


def _has(value: Any, before: Any) -> bool:
    """Whether a container has the very things in it that it had."""
    if len(value) != len(before):
        return False
    if isinstance(value, dict):
        return all(key in value and value[key] is one for key, one in before.items())
    return all(one is other for one, other in zip(value, before)) if not isinstance(value, set) else value == before


def with_buffers_written(module: torch.nn.Module, forward: Callable[..., Any], replaced: set[str] | None = None) -> Callable[..., Any]:
    """A module's ``forward``, after which every buffer is the tensor that it was, with what the code made of it.

    ``self.mean = 0.9 * self.mean + …`` puts another tensor in the place of a buffer. ``torch.export`` follows that for the outermost module, and forgets it for those
    inside: the buffer would stay as it is without a word. The names of other tensors that were replaced are added to ``replaced``.
    """

    @functools.wraps(forward)
    def written(*args: Any, **kwargs: Any) -> Any:
        parts = list(module.named_modules())
        buffers = [(prefix, part, key, buffer) for prefix, part in parts for key, buffer in part._buffers.items()]
        others = [(prefix, part, key, value) for prefix, part in parts for key, value in vars(part).items() if isinstance(value, torch.Tensor)]
        made = forward(*args, **kwargs)
        for prefix, part, key, buffer in buffers:
            now = part._buffers.get(key)
            if now is buffer:
                continue
            name = _name(prefix, key)
            if buffer is None or now is None:
                when = "before" if buffer is None else "after"
                raise PlimsollError(f"{name} is a buffer that has no tensor {when} the module has run: register it with a tensor of the size that it will have, and keep that")
            if now.shape != buffer.shape or now.dtype != buffer.dtype:
                forms = [f"{tensor.dtype} {list(tensor.shape)}" for tensor in (buffer, now)]
                raise Resized(f"{name} is a buffer that the module makes {forms[1]} of {forms[0]}: a step that is planned keeps shape and type")
            buffer.copy_(now.detach())
            part._buffers[key] = buffer
        if replaced is not None:
            replaced.update(_name(prefix, key) for prefix, part, key, value in others if vars(part).get(key) is not value)
        return made

    return written


def fill_tables(module: torch.nn.Module, tensors: tuple[torch.Tensor, ...]) -> bool:
    """Lets a module make buffers of the size that a batch wants, as its first run would: tables of places, say, which ``state_dict`` leaves out. Whether there were such.

    Everything else of it is as it was.
    """
    tables = [(part, key) for part in module.modules() for key in part._non_persistent_buffers_set if key in part._buffers]
    before = {id(part): dict(part._buffers) for part, _ in tables}
    values = [(buffer, buffer.clone()) for buffer in module.buffers()]
    with Kept(module), torch.no_grad(), torch.random.fork_rng():
        try:
            module(*tensors)
        except Exception:  # What is wrong with it is said by the export.
            return False
        finally:
            for buffer, value in values:
                buffer.copy_(value)
        made = [(part, key, part._buffers.get(key)) for part, key in tables]
    is_any = False
    for part, key, now in made:
        then = before[id(part)][key]
        if now is not None and now is not then and (then is None or now.shape != then.shape):
            part._buffers[key], is_any = now.detach(), True
    return is_any


def _name(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key
