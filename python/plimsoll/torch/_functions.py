"""Custom ``autograd.Function``s, whose backward leaves no trace in an export, as values with a slope where they see each element by itself."""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator

import torch

__all__ = ["Functions"]


class Functions:
    """While it is entered, custom functions are counted; with ``by_slope`` each is its value plus, for every input of its shape, slope times what changes in that.

    The slope is what backward makes of ones. That is the gradient where backward multiplies each element by a number (a reversed gradient, a rounding that lets
    gradients through); where it does more, the comparison with eager PyTorch finds a difference.
    """

    def __init__(self, by_slope: bool = False) -> None:
        self._by_slope = by_slope
        #: Names of those that were called.
        self.seen: set[str] = set()

    def __enter__(self) -> Functions:
        # apply may be held by the module as it is, so forward is what is another.
        self._own = [(cls, cls.__dict__["forward"]) for cls in _kinds(torch.autograd.Function) if "forward" in cls.__dict__]
        for cls, own in self._own:
            setattr(cls, "forward", staticmethod(functools.partial(self._called, cls, own.__func__)))
        return self

    def __exit__(self, *_: Any) -> None:
        for cls, own in self._own:
            setattr(cls, "forward", own)

    def _called(self, cls: Any, own: Callable[..., Any], *args: Any) -> Any:
        self.seen.add(cls.__name__)
        if not self._by_slope:
            return own(*args)
        has_context = cls.setup_context is torch.autograd.Function.setup_context
        if has_context:
            cls = getattr(type(args[0]), "_forward_cls", cls)
        return _sloped(cls, own, args[1:] if has_context else args, has_context)


def _kinds(cls: Any) -> Iterator[Any]:
    """Classes of others than PyTorch."""
    for kind in cls.__subclasses__():
        if not kind.__module__.startswith("torch.") and isinstance(kind.__dict__.get("forward", staticmethod(print)), staticmethod):
            yield kind
        yield from _kinds(kind)


class _Context:
    """What forward leaves for backward."""

    saved_tensors: tuple[Any, ...] = ()

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.needs_input_grad = tuple(isinstance(arg, torch.Tensor) and arg.is_floating_point() for arg in args)

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *_: Any) -> None:
        pass

    mark_dirty = set_materialize_grads = mark_non_differentiable


def _sloped(cls: Any, forward: Callable[..., Any], args: tuple[Any, ...], has_context: bool) -> Any:
    context = _Context(args)
    still = tuple(arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args)
    value = forward(context, *still) if has_context else forward(*still)
    if not has_context:
        cls.setup_context(context, still, value)
    if not isinstance(value, torch.Tensor):
        return value
    slopes = cls.backward(context, torch.ones_like(value))
    made = value.detach()
    for arg, slope in zip(args, slopes if isinstance(slopes, tuple) else (slopes,)):
        if isinstance(arg, torch.Tensor) and isinstance(slope, torch.Tensor) and arg.shape == value.shape:
            made = made + slope.detach() * (arg - arg.detach())
    return made
