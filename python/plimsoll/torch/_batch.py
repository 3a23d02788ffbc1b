"""A batch of tensors, however they are put together, as the arrays that the engine takes."""

from __future__ import annotations

import collections.abc
from typing import Any, Sequence

import numpy as np
import torch
from torch.utils import _pytree as pytree

from plimsoll import _native

__all__ = ["Batch", "array"]


class Batch:
    """A batch as a list of tensors, and what stands around them."""

    def __init__(self, batch: Any) -> None:
        if isinstance(batch, collections.abc.Mapping):
            batch = dict(batch)
        leaves, self.spec = pytree.tree_flatten(batch)
        leaves = [torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not self.tensors:
            raise TypeError(f"a batch is tensors, or a tuple, list or dict of them; {type(batch).__name__} has none in it")
        #: What is no tensor, with its place.
        self.others = [(place, leaf) for place, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)]
        self.samples = next((len(tensor) for tensor in self.tensors if tensor.dim()), 1)

    def around(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The batch with other tensors in the place of its own."""
        leaves = list(tensors)
        for place, leaf in self.others:
            leaves.insert(place, leaf)
        return pytree.tree_unflatten(leaves, self.spec)

    def first(self, samples: int) -> list[torch.Tensor]:
        """So many samples of each tensor that has as many as the batch."""
        return [tensor[:samples] if tensor.dim() and len(tensor) == self.samples else tensor for tensor in self.tensors]

    @property
    def shapes(self) -> list[list[int]]:
        return [list(tensor.shape) for tensor in self.tensors]

    def arrays(self, device: str = "cpu") -> list[Any]:
        """The tensors as the engine takes them: without a copy where they are in order, on the host or on the engine's own card."""
        return [_on_card(tensor) if tensor.is_cuda and _card(device) == tensor.get_device() else array(tensor) for tensor in self.tensors]

    def form(self) -> Any:
        """What batches of one program have in common."""
        return (self.spec, [str(tensor.dtype) for tensor in self.tensors], self.others)

    def words(self) -> str:
        """That for people: ``(float32 [*, 3], int64 [*])``."""
        named = [_Word(f"{str(tensor.dtype).removeprefix('torch.')} [{', '.join(['*', *map(str, tensor.shape[1:])][: tensor.dim()])}]") for tensor in self.tensors]
        return str(self.around(named))  # type: ignore[arg-type]


class _Word(str):
    """A text that stands without quotes where it is shown in something."""

    __repr__ = str.__str__


def _card(device: str) -> int:
    """The number of a card; of none for other devices."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else -1


def _on_card(tensor: torch.Tensor) -> Any:
    """A tensor where it lies on a card."""
    tensor = tensor.detach().contiguous()
    if tensor.is_complex():
        return array(tensor)
    # What begins between two lines of memory is not taken by others.
    tensor = tensor.clone() if tensor.data_ptr() % 64 else tensor
    return _native.from_dlpack(tensor) if tensor.numel() else array(tensor)


def array(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor as an array; of element types that NumPy lacks, as numbers of the same size; of complex numbers the pairs."""
    tensor = tensor.detach().cpu().resolve_conj().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape)
