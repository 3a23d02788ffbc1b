"""Ops of PyTorch as others: those that the engine does not know, or not in the way in which they are called."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from plimsoll import _native
from plimsoll.torch._algebra import ALGEBRA
from plimsoll.torch._special import SPECIAL

__all__ = ["taken_apart"]

aten = torch.ops.aten
#: How PyTorch numbers ways to sample and what is outside.
_NEAREST = 1
_ZEROS, _BORDER = 0, 1


def taken_apart(program: Any) -> dict[Any, Any]:
    """How ops of a program are made of others, for those that the engine does not know, or not in the way in which they are called."""
    known = set(_native.torch_ops())
    calls = [node for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule) for node in part.graph.nodes if node.op == "call_function"]
    unknown = {node.target for node in calls if isinstance(node.target, torch._ops.OpOverload) and (str(node.target) not in known or _is_other(node))}
    if not unknown:
        return {}
    named = [aten.grid_sampler_2d.default, aten.affine_grid_generator.default]
    table = {**torch._decomp.get_decompositions(named), **torch.export.default_decompositions(), **SPECIAL, **ALGEBRA, **_OWN}
    return {op: table[op] for op in unknown if op in table}


def _is_other(node: torch.fx.Node) -> bool:
    """Whether an op that the engine knows is called in a way that it does not know."""
    if node.target in (aten.grid_sampler.default, aten.grid_sampler_2d.default):
        _, grid, mode, outside = node.args[:4]
        # Volumes, cubics, and mirrors at the edges.
        return grid.meta["val"].dim() == 5 or mode == 2 or outside == 2
    if node.target is aten.affine_grid_generator.default:
        return len(node.args[1]) == 5
    if node.target is aten.copy.default:
        # PyTorch has no gradient of it, and the comparison with eager would end there.
        return True
    if node.target is aten.lstm.input:
        weights, biased, layers, bidirectional = node.args[2], node.args[3], node.args[4], node.args[7]
        # With projections each direction has one weight more.
        return len(weights) != (4 if biased else 2) * layers * (2 if bidirectional else 1)
    if node.target is aten.instance_norm.default:
        return node.args[3] is not None
    return False


def _copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """What is assigned to a part of a tensor, in its type and shape."""
    return source.to(x.dtype).expand(x.shape)


def _angle(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        return torch.atan2(x.imag, x.real)
    return torch.where(x.isnan(), x, torch.where(x < 0, math.pi, 0.0).to(x.dtype))


def _pdist(x: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """The distance of each row to those behind it."""
    rows = int(x.shape[0])
    apart = [x[at : at + 1] - x[at + 1 :] for at in range(rows - 1)]
    return torch.linalg.vector_norm(torch.cat(apart), p, -1) if apart else x.new_zeros(0)


def _grid_sampler_3d(x: torch.Tensor, grid: torch.Tensor, mode: int, outside: int, corners: bool) -> torch.Tensor:
    """A volume at the places of a grid, of which the last axis has across, down and deep."""
    n, channels = x.shape[:2]
    sizes = x.shape[2:]
    shape = grid.shape[1:4]
    places = [_place(grid[..., 2 - axis].reshape(n, -1), sizes[axis], outside, corners) for axis in range(3)]
    flat = x.reshape(n, channels, -1)

    def read(corner: list[torch.Tensor]) -> torch.Tensor:
        """What is at whole places; nothing outside."""
        inside = torch.ones_like(corner[0], dtype=torch.bool)
        index = torch.zeros_like(corner[0], dtype=torch.int64)
        for at, size in zip(corner, sizes):
            inside = inside & (at >= 0) & (at <= size - 1)
            index = index * size + at.clamp(0, size - 1).to(torch.int64)
        found = flat.gather(2, index.unsqueeze(1).expand(n, channels, index.shape[1]))
        return torch.where(inside.unsqueeze(1), found, torch.zeros((), dtype=x.dtype, device=x.device)) if outside == _ZEROS else found

    if mode == _NEAREST:
        return read([torch.round(place) for place in places]).reshape(n, channels, *shape)
    low = [place.detach().floor() for place in places]
    made = None
    for sides in itertools.product((0, 1), repeat=3):
        weight = None
        for place, least, side in zip(places, low, sides):
            share = place - least if side else least + 1 - place
            weight = share if weight is None else weight * share
        part = read([least + side for least, side in zip(low, sides)]) * weight.unsqueeze(1)
        made = part if made is None else made + part
    return made.reshape(n, channels, *shape)


def _place(x: torch.Tensor, size: int, outside: int, corners: bool) -> torch.Tensor:
    """Where a number from -1 to 1 is along an axis, in elements."""
    at = (x + 1) / 2 * (size - 1) if corners else ((x + 1) * size - 1) / 2
    if outside == _ZEROS:
        return at
    if outside != _BORDER:
        low, span = (0.0, float(size - 1)) if corners else (-0.5, float(size))
        if span == 0.0:
            return torch.zeros_like(at)
        far = (at - low).abs()
        turns = (far / span).detach().floor()
        rest = far - turns * span
        at = low + torch.where(turns % 2 == 0, rest, span - rest)
    return at.clamp(0, size - 1)


#: Those of which PyTorch itself does not say what they are made of.
_OWN = {aten.copy.default: _copy, aten.angle.default: _angle, aten._pdist_forward.default: _pdist, aten.grid_sampler_3d.default: _grid_sampler_3d}
