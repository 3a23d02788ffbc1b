"""Functions of PyTorch that the engine has no op for, made of those that it has: special functions, extremes and sums along an axis."""

from __future__ import annotations

import math
from typing import Any

import torch

__all__ = ["SPECIAL"]

aten = torch.ops.aten
#: From here on a series in 1/x² of the logarithm of the gamma function is exact to the last digit.
_FAR = 10.0
#: B₂ₖ of Bernoulli's numbers, from B₂ on.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_SHIFTS = 10


def _widened(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def _fmax(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(b.isnan(), a, torch.where(a.isnan(), b, torch.maximum(a, b)))


def _fmin(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(b.isnan(), a, torch.where(a.isnan(), b, torch.minimum(a, b)))


def _std_mean(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    mean = x.mean() if dim is None and not keepdim else x.mean(dim if dim is not None else list(range(x.dim())), keepdim)
    return torch.std(x, dim, correction=1 if correction is None else correction, keepdim=keepdim), mean


def _sinc(x: torch.Tensor) -> torch.Tensor:
    x = _widened(x)
    angle = torch.where(x == 0, 1.0, x * math.pi)
    return torch.where(x == 0, torch.ones_like(x), angle.sin() / angle)


def _xlogy(x: Any, y: Any) -> torch.Tensor:
    is_none = (x == 0) & ~y.isnan() if isinstance(y, torch.Tensor) else x == 0
    never = is_none & (y <= 0)
    logs = torch.log(torch.where(never, torch.ones_like(y), y)) if isinstance(y, torch.Tensor) else math.log(y) if y > 0 else 0.0
    return x * logs


def _erfinv(x: torch.Tensor) -> torch.Tensor:
    x = _widened(x)
    at = x.detach()
    is_end = at.abs() >= 1
    inner = torch.where(is_end, torch.zeros_like(at), at)
    # A first guess, good to some thousandths, and steps of Newton's, of which the last has the gradient.
    a = 0.147
    log = torch.log1p(-inner * inner)
    half = 2 / (math.pi * a) + log / 2
    y = inner.sign() * ((half * half - log / a).sqrt() - half).clamp(min=0).sqrt()
    for _ in range(3):
        y = y - (torch.erf(y) - inner) * (math.sqrt(math.pi) / 2) * torch.exp(y * y)
    y = y.detach()
    y = y - (torch.erf(y) - torch.where(is_end, inner, x)) * (math.sqrt(math.pi) / 2) * torch.exp(y * y)
    ends = torch.where(at.abs() == 1, at.sign() * math.inf, math.nan).to(x.dtype)
    return torch.where(is_end, ends, y)


def _moved(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers of at least one half, mirrored where they are less: whether they were, they themselves, and so much further that a series is exact."""
    is_low = x < 0.5
    own = torch.where(is_low, 1 - x, x)
    return is_low, own, own + _SHIFTS


def _lgamma(x: torch.Tensor) -> torch.Tensor:
    x = _widened(x)
    is_low, own, far = _moved(x)
    series = (far - 0.5) * far.log() - far + 0.5 * math.log(2 * math.pi)
    for k, number in enumerate(_BERNOULLI, 1):
        series = series + number / (2 * k * (2 * k - 1)) * far ** (1 - 2 * k)
    product = own
    for k in range(1, _SHIFTS):
        product = product * (own + k)
    value = series - product.log()
    angle = torch.where(is_low, x - x.detach().round(), 0.5) * math.pi
    return torch.where(is_low, math.log(math.pi) - angle.sin().abs().log() - value, value)


def _digamma(x: torch.Tensor) -> torch.Tensor:
    x = _widened(x)
    is_low, own, far = _moved(x)
    value = far.log() - 0.5 / far
    for k, number in enumerate(_BERNOULLI, 1):
        value = value - number / (2 * k) * far ** (-2 * k)
    for k in range(_SHIFTS):
        value = value - 1 / (own + k)
    angle = torch.where(is_low, x - x.detach().round(), 0.25) * math.pi
    return torch.where(is_low, value - math.pi * angle.cos() / angle.sin(), value)


def _polygamma(n: int, x: torch.Tensor) -> torch.Tensor:
    if n == 0:
        return _digamma(x)
    if n != 1:
        raise NotImplementedError(f"polygamma of order {n}")
    is_low, own, far = _moved(_widened(x))
    value = 1 / far + 0.5 / far**2
    for k, number in enumerate(_BERNOULLI, 1):
        value = value + number * far ** (-2 * k - 1)
    for k in range(_SHIFTS):
        value = value + 1 / (own + k) ** 2
    sine = (torch.where(is_low, x - x.detach().round(), 0.5) * math.pi).sin()
    return torch.where(is_low, (math.pi / sine) ** 2 - value, value)


def _logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Pairs, then pairs of pairs: as often as the length has bits, so that no sum outgrows its numbers."""
    length, by = x.shape[dim] if x.dim() else 1, 1
    while by < length:
        low = x.narrow(dim, 0, by)
        x = torch.cat([low, torch.logaddexp(x.narrow(dim, by, length - by), x.narrow(dim, 0, length - by))], dim)
        by *= 2
    return x


def _cumulative(x: torch.Tensor, dim: int, is_max: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The extreme so far, and where it was last."""
    if not x.dim():
        return x, torch.zeros((), dtype=torch.int64, device=x.device)
    length, by = x.shape[dim], 1
    shape = [length if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    at, best = torch.arange(length, device=x.device).reshape(shape).expand(x.shape), x.detach()
    while by < length:
        later, former = (best.narrow(dim, start, length - by) for start in (by, 0))
        places, before = (at.narrow(dim, start, length - by) for start in (by, 0))
        keeps = (later >= former) if is_max else (later <= former)
        best = torch.cat([best.narrow(dim, 0, by), torch.where(keeps, later, former)], dim)
        at = torch.cat([at.narrow(dim, 0, by), torch.where(keeps, places, before)], dim)
        by *= 2
    return x.gather(dim, at), at


def _round_to(x: torch.Tensor, *, decimals: int) -> torch.Tensor:
    scale = 10.0 ** abs(decimals)
    return torch.round(x * scale) / scale if decimals >= 0 else torch.round(x / scale) * scale


def _dist(a: torch.Tensor, b: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    return torch.linalg.vector_norm(a - b, p)


def _shifted(is_left: bool) -> Any:
    def shifted(x: torch.Tensor, by: Any) -> torch.Tensor:
        powers = torch.pow(2, by) if isinstance(by, torch.Tensor) else 2**by
        return x * powers if is_left else torch.div(x, powers, rounding_mode="floor")

    return shifted


def _spread_rows(x: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    shape = [1] * x.dim()
    shape[dim] = index.numel()
    return index.reshape(shape).expand(x.shape)


def _index_reduce(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True) -> torch.Tensor:
    return torch.scatter_reduce(x, dim, _spread_rows(source, index, dim), source, reduce, include_self=include_self)


def _put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    return x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate).reshape(x.shape)


def _diagonal_scatter(x: torch.Tensor, source: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    lengths = x.shape[dim1], x.shape[dim2]
    rows, columns = (torch.arange(length, device=x.device) for length in lengths)
    is_on = columns.unsqueeze(0) - rows.unsqueeze(1) == offset
    axes = [axis for axis in range(x.dim()) if axis not in (dim1 % x.dim(), dim2 % x.dim())]
    last = x.permute([*axes, dim1, dim2])
    below = max(0, -offset)
    at = (columns.clamp(max=lengths[1]) - max(0, offset)).clamp(0, source.shape[-1] - 1) if below == 0 else rows.sub(below).clamp(0, source.shape[-1] - 1)
    along = source.index_select(-1, at)
    put = torch.where(is_on, along.unsqueeze(-2) if below == 0 else along.unsqueeze(-1), last)
    back = [0] * x.dim()
    for place, axis in enumerate([*axes, dim1 % x.dim(), dim2 % x.dim()]):
        back[axis] = place
    return put.permute(back)


SPECIAL: dict[Any, Any] = {
    aten.fmax.default: _fmax,
    aten.fmin.default: _fmin,
    aten.std_mean.correction: _std_mean,
    aten.sinc.default: _sinc,
    aten.xlogy.Tensor: _xlogy,
    aten.xlogy.Scalar_Other: _xlogy,
    aten.erfinv.default: _erfinv,
    aten.lgamma.default: _lgamma,
    aten.digamma.default: _digamma,
    aten.polygamma.default: _polygamma,
    aten.logcumsumexp.default: _logcumsumexp,
    aten.cummax.default: lambda x, dim: _cumulative(x, dim, True),
    aten.cummin.default: lambda x, dim: _cumulative(x, dim, False),
    aten.round.decimals: _round_to,
    aten.dist.default: _dist,
    aten.ldexp.Tensor: lambda x, by: x * torch.pow(2.0, by),
    aten.signbit.default: lambda x: x < 0,
    aten.index_reduce.default: _index_reduce,
    aten.put.default: _put,
    aten.diagonal_scatter.default: _diagonal_scatter,
}
for _name, _is_left in (("__lshift__", True), ("bitwise_left_shift", True), ("__rshift__", False), ("bitwise_right_shift", False)):
    for _form in ("Scalar", "Tensor", "Tensor_Scalar"):
        if hasattr(getattr(aten, _name), _form):
            SPECIAL[getattr(getattr(aten, _name), _form)] = _shifted(_is_left)
