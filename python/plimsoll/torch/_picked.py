"""Rows that a mask picks (``x[mask]``, ``masked_select``, ``nonzero``), of which nobody knows how many there are, as all rows and the mask.

What is computed row by row is computed of all; sums and means over rows count those that are picked. A row that is not picked stands as the first one that is, so
that it gives no infinities. What mixes rows in another way is refused by name.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator

import torch
from torch.utils import _pytree as pytree

from plimsoll.torch._mask import Count, Mask, refuse
from plimsoll.torch._sampled import Sampled, places

__all__ = ["Picked"]

#: Functions that see each element by itself, by name.
_ELEMENTS = set(
    """add sub rsub subtract mul multiply div divide true_divide pow neg negative exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square abs absolute sign sgn sigmoid tanh sin cos tan atan relu
    relu_ relu6 gelu silu elu selu celu mish leaky_relu softplus logsigmoid hardtanh hardswish hardsigmoid erf clamp clamp_min clamp_max clip minimum maximum fmax fmin where eq ne lt le gt ge
    logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_not floor ceil round trunc frac reciprocal float double half bfloat16 long int bool to type type_as detach clone
    contiguous dropout masked_fill nan_to_num isnan isinf isfinite lerp addcmul addcdiv remainder fmod xlogy atan2 zeros_like ones_like full_like one_hot threshold softsign
    __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__ __div__ __rdiv__ __pow__ __rpow__ __neg__ __pos__ __abs__ __invert__
    __and__ __rand__ __or__ __ror__ __xor__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __mod__ __floordiv__ floor_divide""".split()
)
#: Functions over one axis or several, which are named.
_ALONG = set(
    """sum mean prod amax amin max min argmax argmin softmax log_softmax logsumexp norm vector_norm var std cumsum any all topk sort argsort squeeze unsqueeze normalize cosine_similarity
    softmin flip glu chunk split unbind select narrow count_nonzero gather""".split()
)
#: Functions of rows, which are samples to them.
_SAMPLES = set(
    """linear embedding layer_norm rms_norm group_norm conv1d conv2d conv3d conv_transpose1d conv_transpose2d max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d
    adaptive_avg_pool2d _max_pool1d _max_pool2d interpolate pairwise_distance bilinear""".split()
)
_LOSSES = set(
    """mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss poisson_nll_loss cosine_embedding_loss margin_ranking_loss
    triplet_margin_loss hinge_embedding_loss multi_margin_loss kl_div""".split()
)
_LABELLED = ("cross_entropy", "nll_loss")


class Picked:
    """Rows of which a mask says which are there."""

    def __init__(self, rows: torch.Tensor, mask: Mask) -> None:
        self.rows, self.mask = rows, mask

    @classmethod
    def of(cls, x: torch.Tensor, mask: torch.Tensor, held: Mask) -> Picked:
        """Those of ``x`` where a mask over its first axes is true."""
        if tuple(x.shape[: mask.dim()]) != tuple(mask.shape):
            raise IndexError(f"the mask {list(mask.shape)} is none of the first axes of {list(x.shape)}")
        rows = x.reshape(-1, *x.shape[mask.dim() :])
        first = rows.index_select(0, held.flat.to(torch.int32).argmax(0, keepdim=True)).detach()
        return cls(torch.where(held.beside(rows), rows, first), held)

    def with_rows(self, rows: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda one: Picked(one, self.mask), rows)

    def held(self, value: float) -> torch.Tensor:
        """All rows, with a number in those that are not picked."""
        return torch.where(self.mask.beside(self.rows), self.rows, torch.full((), value, dtype=self.rows.dtype, device=self.rows.device))

    @property
    def shape(self) -> tuple[Any, ...]:
        return (Count(self.mask), *self.rows.shape[1:])

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.rows.dim()

    def numel(self) -> Any:
        return Count(self.mask, self.rows[0].numel())

    nelement = numel

    def item(self, *_: Any) -> Any:
        refuse("a number")

    __len__ = __bool__ = __iter__ = tolist = item
    __hash__ = object.__hash__
    ndim = property(dim)
    dtype = property(lambda self: self.rows.dtype)
    device = property(lambda self: self.rows.device)
    requires_grad = property(lambda self: self.rows.requires_grad)

    def __getattr__(self, name: str) -> Any:
        own = getattr(torch.Tensor, name)
        if not callable(own):
            refuse(name)
        return functools.partial(_called, own, self)

    def __getitem__(self, key: Any) -> Any:
        return _called(torch.Tensor.__getitem__, self, key)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, *args, **(kwargs or {}))


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *others: _called(getattr(torch.Tensor, name), self, *others)


for _name in _ELEMENTS:
    if _name.startswith("__") and hasattr(torch.Tensor, _name):
        setattr(Picked, _name, _operator(_name))
setattr(Picked, "__matmul__", _operator("__matmul__"))


def _all(value: Any) -> Iterator[Picked]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Picked))


def _plain(value: Any) -> Any:
    return pytree.tree_map_only(Picked, lambda one: one.rows, value)


def _called(func: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of PyTorch, of which some arguments are picked rows."""
    name = getattr(func, "__name__", str(func))
    first = next(_all((args, kwargs)))
    if name in ("cat", "concat") and _axis(args, kwargs, 1, first.dim() + 0, "dim", 0) == 0:
        parts = list(args[0])
        if not all(isinstance(part, Picked) for part in parts):
            refuse(name)
        return Picked(torch.cat([part.rows for part in parts]), first.mask.joined(tuple(part.mask for part in parts[1:])))
    if name in ("index_add", "index_add_") and len(args) == 4 and all(isinstance(one, Picked) for one in args[2:]):
        return func(args[0], args[1], args[2].rows, args[3].held(0), **kwargs)
    if any(one.mask is not first.mask for one in _all((args, kwargs))):
        refuse(f"{name} of rows that several masks pick")
    rows = lambda: first.with_rows(func(*_plain(args), **_plain(kwargs)))
    if name == "__getitem__":
        return _indexed(args[0], args[1], first, rows)
    others = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    is_pair = name in ("max", "min") and len(args) == 2 and not isinstance(args[1], int)
    if name in _ELEMENTS or is_pair:
        # What stands beside picked rows must have no rows of its own.
        deepest = max(one.dim() for one in _all((args, kwargs)))
        if all(other.dim() < deepest or other.shape[0] == 1 for other in others):
            return rows()
    elif name in ("cat", "concat", "stack"):
        if _axis(args, kwargs, 1, first.dim() + (name == "stack"), "dim", 0) != 0 and not others:
            return rows()
    elif name in ("view", "reshape", "flatten"):
        return _viewed(name, first, args, kwargs)
    elif name in _LOSSES or name in _LABELLED:
        return _loss(func, name, first, args, kwargs)
    elif name in _SAMPLES and isinstance(args[0], Picked):
        within = {"embedding": 0, "layer_norm": None, "rms_norm": None, "interpolate": 2}.get(name, int(name[-2]) + 1 if name.endswith("d") else 1)
        if within is None:
            shape = args[1] if len(args) > 1 else kwargs["normalized_shape"]
            within = len(shape) if isinstance(shape, (tuple, list)) else 1
        if args[0].dim() > within:
            return rows()
    elif name in ("matmul", "mm", "__matmul__"):
        if isinstance(args[0], Picked) and args[0].dim() == 2 and not isinstance(args[1], Picked) and args[1].dim() <= 2:
            return rows()
    elif name in _ALONG and isinstance(args[0], Picked):
        place = {"norm": 2, "vector_norm": 2, "normalize": 2, "cosine_similarity": 2, "chunk": 2, "split": 2, "topk": 2}.get(name, 1)
        default = {"normalize": 1, "cosine_similarity": 1, "topk": -1, "sort": -1, "argsort": -1, "glu": -1, "chunk": 0, "split": 0, "unbind": 0}.get(name)
        axes = _axes(args, kwargs, place, args[0].dim() + (name == "unsqueeze"), default)
        if axes is not None and 0 not in axes and all(other.dim() < args[0].dim() for other in others):
            return rows()
        return _over_rows(name, first, args, kwargs, axes)
    return refuse(name)


def _axis(args: Any, kwargs: Any, place: int, rank: int, name: str, default: int) -> int:
    return (args[place] if len(args) > place else kwargs.get(name, default)) % rank


def _axes(args: Any, kwargs: Any, place: int, rank: int, default: int | None) -> list[int] | None:
    """The axes that a function is over; none where it is over all."""
    given = args[place] if len(args) > place else kwargs.get("dim", kwargs.get("axis", default))
    if given is None:
        return None
    return [axis % rank for axis in (given if isinstance(given, (tuple, list)) else [given])]


def _over_rows(name: str, first: Picked, args: Any, kwargs: Any, axes: list[int] | None) -> Any:
    """A sum, a mean or an extreme over the rows that are picked."""
    over = list(range(first.dim())) if axes is None else axes
    keep = bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
    limit = torch.finfo if first.rows.is_floating_point() else torch.iinfo
    if name == "sum":
        return first.held(0).sum(over, keep)
    if name == "mean":
        rest = 1
        for axis in over:
            rest *= 1 if axis == 0 else int(first.rows.shape[axis])
        return first.held(0).sum(over, keep) / (first.mask.count() * rest).to(first.rows.dtype)
    if name in ("any", "all"):
        is_true = torch.where(first.mask.beside(first.rows), first.rows.bool(), name == "all")
        return is_true.any() if name == "any" and axes is None else is_true.all() if axes is None else refuse(name)
    if name in ("amax", "amin") or (name in ("max", "min") and axes is None):
        is_most = name in ("amax", "max")
        held = first.held(float(limit(first.rows.dtype).min if is_most else limit(first.rows.dtype).max))
        return held.amax(over, keep) if is_most else held.amin(over, keep)
    if name in ("var", "std") and len(args) <= 2 and not set(kwargs) - {"dim"}:
        apart = (first - _over_rows("mean", first, (first,), {"keepdim": True}, over)).held(0)
        count = first.mask.count()
        for axis in over:
            count = count * (1 if axis == 0 else int(first.rows.shape[axis]))
        var = (apart * apart).sum(over) / (count - 1).to(apart.dtype)
        return var if name == "var" else var.sqrt()
    return refuse(f"{name} over rows")


def _loss(func: Any, name: str, first: Picked, args: Any, kwargs: Any) -> Any:
    reduction = kwargs.pop("reduction", "mean")
    if kwargs.pop("size_average", None) is not None or kwargs.pop("reduce", None) is not None or len(args) > 3 or (len(args) == 3 and name in ("mse_loss", "l1_loss")):
        refuse(f"{name} with further arguments that are not named")
    if any(not isinstance(one, Picked) for one in args[:2]) or any(word in ("input", "target") and not isinstance(value, Picked) for word, value in kwargs.items()):
        refuse(f"{name} of these and others")
    losses = first.with_rows(func(*_plain(args), **_plain(kwargs), reduction="none"))
    if reduction == "none":
        return losses
    if reduction == "batchmean":
        return losses.sum() / first.mask.count()
    if reduction == "sum" or name not in _LABELLED:
        return losses.sum() if reduction == "sum" else losses.mean()
    labels = _plain(kwargs.get("target", args[1] if len(args) > 1 else None))
    if labels.is_floating_point():
        return losses.mean()
    ignored, weight = kwargs.get("ignore_index", -100), kwargs.get("weight", args[2] if len(args) > 2 else None)
    share = (labels != ignored).to(losses.rows.dtype)
    if weight is not None:
        share = share * weight[torch.where(labels == ignored, 0, labels)]
    shares = first.with_rows(share).sum()
    return losses.sum() / (shares.clamp(min=torch.finfo(shares.dtype).tiny) if first.mask.is_asked else shares)


def _viewed(name: str, first: Picked, args: Any, kwargs: Any) -> Any:
    if name == "flatten":
        start = args[1] if len(args) > 1 else kwargs.get("start_dim", 0)
        if start % first.dim() or first.dim() == 1:
            return first.with_rows(torch.flatten(first.rows, *args[1:], **kwargs))
        lengths: list[Any] = [-1]
    else:
        lengths = list(args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:])
    if lengths and isinstance(lengths[0], Count):
        return first.with_rows(first.rows.reshape(first.rows.shape[0], *lengths[1:]))
    rest = 1
    for length in first.rows.shape[1:]:
        rest *= length
    behind = 1
    for length in lengths[1:]:
        behind *= length
    if lengths and lengths[0] == -1 and behind == rest:
        return first.with_rows(first.rows.reshape(first.rows.shape[0], *lengths[1:]))
    where = places(first.mask)
    if where is not None and len(lengths) > 2 and lengths[1] == -1 and lengths[0] == where.shape[0] and tuple(lengths[2:]) == tuple(first.rows.shape[1:]):
        return Sampled(first.rows, where)
    if lengths == [-1]:
        # Every element is a row of its own.
        flat = first.rows.reshape(-1)
        return Picked(flat, Mask(first.mask.beside(first.rows).expand(first.rows.shape).reshape(-1)))
    return refuse(name)


def _indexed(x: Any, key: Any, first: Picked, rows: Callable[[], Any]) -> Any:
    parts = key if isinstance(key, tuple) else (key,)
    if not isinstance(x, Picked):
        # Places that were found in a mask: of each the row that is there.
        head = next(place for place, part in enumerate(parts) if isinstance(part, Picked))
        is_led = all(isinstance(part, (Picked, type(None), int)) or part is Ellipsis or part == slice(None) for part in parts) and not head
        return rows() if is_led and all(not part.dtype == torch.bool for part in _all(parts)) else refuse("an index beside others")
    if isinstance(parts[0], Picked) and parts[0].dtype == torch.bool and len(parts) == 1 and parts[0].dim() == 1:
        return Picked(x.rows, Mask(x.mask.flat & parts[0].rows))
    is_all = isinstance(parts[0], slice) and parts[0] == slice(None)
    is_last = parts[0] is Ellipsis and sum(part is not None for part in parts) - 1 < x.dim()
    return rows() if is_all or is_last else refuse("an index of rows")
