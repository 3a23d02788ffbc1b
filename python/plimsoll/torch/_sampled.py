"""Rows that a mask over places of samples picks, sample by sample: one of each by its number, or all of them moved to the front."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.torch._mask import Mask, refuse

__all__ = ["Sampled", "in_front", "places"]


def places(mask: Mask) -> torch.Tensor | None:
    """The mask as [samples, places]; none where it is of another form."""
    if mask.source is None or mask.source.dim() != 2:
        return None
    return mask.flat.reshape(mask.source.shape)


def in_front(rows: torch.Tensor, mask: Mask) -> torch.Tensor | None:
    """Single numbers as [samples, places], those that are picked first and in their order."""
    where = places(mask)
    if where is None or rows.dim() != 1:
        return None
    order = torch.argsort((~where).to(torch.int32), dim=1, stable=True)
    return rows.reshape(where.shape).gather(1, order)


class Sampled:
    """Picked rows as ``view(samples, -1, …)`` has them: as many of each sample. Which of them is asked for by number."""

    def __init__(self, rows: torch.Tensor, where: torch.Tensor) -> None:
        self._rows, self._where = rows.reshape(*where.shape, *rows.shape[1:]), where

    def __getitem__(self, key: Any) -> torch.Tensor:
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) < 2 or parts[0] != slice(None) or type(parts[1]) is not int:
            refuse("another part than one row of every sample")
        passed = self._where.to(torch.int32).cumsum(1)
        number = parts[1] + 1 if parts[1] >= 0 else passed[:, -1:] + (parts[1] + 1)
        # The only place of a sample at which so many were passed, and which is one of them.
        at = (self._where & (passed == number)).to(torch.int32).argmax(1)
        width = self._rows.shape[2:]
        index = at.reshape(-1, 1, *[1] * len(width)).expand(-1, 1, *width)
        row = self._rows.gather(1, index).squeeze(1)
        return row[(slice(None), *parts[2:])] if len(parts) > 2 else row

    def __getattr__(self, name: str) -> Any:
        return refuse(f"{name} of picked rows of every sample")
