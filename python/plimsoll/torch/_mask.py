"""Which rows a mask picks, and how many those are: numbers that only a step has, as tensors of it."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.errors import PlimsollError

__all__ = ["Count", "Mask", "refuse"]


class Mask:
    """Which rows are picked, and the tensor that said so; with those that were put behind it."""

    def __init__(self, flat: torch.Tensor, source: torch.Tensor | None = None) -> None:
        self.flat, self.source = flat, source
        #: Whether the module asked if there are any: then it left out what follows where there were none, and a mean over none is 0.
        self.is_asked = False
        self._joined: dict[tuple[Mask, ...], Mask] = {}

    def count(self) -> torch.Tensor:
        count = self.flat.sum()
        return count.clamp(min=1) if self.is_asked else count

    def joined(self, others: tuple[Mask, ...]) -> Mask:
        if others not in self._joined:
            self._joined[others] = Mask(torch.cat([self.flat, *(other.flat for other in others)]))
        return self._joined[others]

    def beside(self, rows: torch.Tensor) -> torch.Tensor:
        """In a shape that fits to rows."""
        return self.flat.reshape(self.flat.shape[0], *[1] * (rows.dim() - 1))


class Count:
    """How many elements are picked: a number that only a step has. Sums may be divided by it, and rows viewed with it.

    Asked whether there are any it says yes: sums over none are 0 all the same, and means over none are then.
    """

    def __init__(self, mask: Mask, times: int = 1) -> None:
        self.mask, self.times = mask, times

    def tensor(self) -> torch.Tensor:
        return self.mask.count() * self.times

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.tensor()

    def __mul__(self, other: Any) -> Any:
        return Count(self.mask, self.times * other) if isinstance(other, int) else self.tensor() * other

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Count:
        return _Part(self.mask)

    def __bool__(self) -> bool:
        self.mask.is_asked = True
        return True

    def _compared(self, other: Any, answer: bool, least: int = 0) -> Any:
        if type(other) is not int or other != least:
            refuse("a comparison of how many there are")
        self.mask.is_asked = True
        return answer

    def __eq__(self, other: object) -> Any:
        return self._compared(other, False)

    def __ne__(self, other: object) -> Any:
        return self._compared(other, True)

    def __gt__(self, other: Any) -> Any:
        return self._compared(other, True)

    def __le__(self, other: Any) -> Any:
        return self._compared(other, False)

    def __ge__(self, other: Any) -> Any:
        return self._compared(other, True, 1)

    def __lt__(self, other: Any) -> Any:
        return self._compared(other, False, 1)

    def __index__(self) -> int:
        return int(refuse("a number of how many there are"))

    __int__ = __float__ = __index__  # type: ignore[assignment]
    __hash__ = object.__hash__


class _Part(Count):
    """How many there are for each of something: asked alone whether there are any."""

    def tensor(self) -> torch.Tensor:
        return refuse("a share of how many there are")  # type: ignore[no-any-return]

    __mul__ = __rmul__ = lambda self, _: self.tensor()  # type: ignore[assignment]


def refuse(name: str) -> Any:
    raise PlimsollError(
        f"{name} is asked of rows that a mask picks (x[mask], masked_select, nonzero), and how many those are no plan can know: here they can be computed with row by row, summed, averaged and put back "
        "where they came from; keep all rows for the rest, and choose with torch.where or a product with the mask"
    )
