"""What picks rows by a mask, as rows with that mask: an index, ``masked_select``, ``nonzero`` and ``where`` of one argument; and where picked rows are put back."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from plimsoll.torch._mask import Mask, refuse
from plimsoll.torch._picked import Picked

__all__ = ["Picking"]


class Picking(TorchFunctionMode):
    """While it is entered, rows that a mask picks are kept as all rows and the mask."""

    def __init__(self) -> None:
        super().__init__()
        #: What was computed of what, and the first result of it: masks that are computed twice are one.
        self._made: dict[Any, torch.Tensor] = {}
        self._same: dict[int, torch.Tensor] = {}
        self._masks: dict[tuple[int, int], Mask] = {}
        self._alive: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is torch.Tensor.__getitem__ and isinstance(args[0], torch.Tensor):
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            mask = parts[0] if parts else None
            if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and mask.dim():
                picked = self._picked(args[0], mask)
                return picked[(slice(None), *parts[1:])] if len(parts) > 1 else picked
        elif func is torch.Tensor.__setitem__ and isinstance(args[2], Picked):
            x, mask, value = args
            if not (isinstance(mask, torch.Tensor) and self._first(mask) is value.mask.source):
                refuse("a place other than they came from")
            rows = value.rows.reshape(*mask.shape, *value.rows.shape[1:]).expand(x.shape).to(x.dtype)
            return x.copy_(torch.where(mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim())), rows, x))
        elif func in (torch.masked_select, torch.Tensor.masked_select) and isinstance(args[0], torch.Tensor) and not kwargs:
            x, mask = args
            return self._picked(x, mask) if x.shape == mask.shape else self._picked(*torch.broadcast_tensors(x, mask))
        elif func in _PLACES and len(args) == 1 and isinstance(args[0], torch.Tensor):
            return self._places(args[0], func in _WHERES or bool(kwargs.get("as_tuple")))
        made = func(*args, **kwargs)
        if name in _REPEATED and isinstance(made, torch.Tensor):
            key = (func, *map(self._key, args), *((word, self._key(value)) for word, value in sorted(kwargs.items())))
            self._same[id(made)] = self._made.setdefault(key, made)
            self._alive.append((made, args))
        return made

    def _first(self, x: torch.Tensor) -> torch.Tensor:
        return self._same.get(id(x), x)

    def _key(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (id(self._first(value)), value._version)
        return tuple(map(self._key, value)) if isinstance(value, (tuple, list)) else (type(value), str(value))

    def _picked(self, x: torch.Tensor, mask: torch.Tensor) -> Picked:
        first = self._first(mask)
        key = (id(first), mask._version)
        self._alive.append(first)
        if key not in self._masks:
            self._masks[key] = Mask(mask.reshape(-1), first)
        return Picked.of(x, mask, self._masks[key])

    def _places(self, x: torch.Tensor, is_tuple: bool) -> Any:
        """Where a tensor is not 0: along each axis, or a row for each."""
        mask = x if x.dtype == torch.bool else x != 0
        along = lambda axis: [-1 if own == axis else 1 for own in range(x.dim())]
        found = [self._picked(torch.arange(length, device=x.device).reshape(along(axis)).expand(x.shape), mask) for axis, length in enumerate(x.shape)]
        return tuple(found) if is_tuple else found[0].with_rows(torch.stack([one.rows for one in found], 1))


_WHERES = (torch.where, torch.Tensor.where)
_PLACES = (*_WHERES, torch.nonzero, torch.Tensor.nonzero)
#: What masks are made by.
_REPEATED = set(
    """eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__ logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not __and__ __or__ __invert__ __xor__
    view reshape flatten squeeze unsqueeze bool __getitem__ isnan isfinite""".split()
)
