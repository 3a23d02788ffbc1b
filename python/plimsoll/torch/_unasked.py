"""What PyTorch's own layers and losses ask of the numbers in a tensor, which an export cannot answer, computed without asking."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.overrides import TorchFunctionMode

from plimsoll.errors import PlimsollError
from plimsoll.torch._picked import Picked
from plimsoll.torch._sampled import in_front

__all__ = ["Unasked", "without_checkpoints"]

#: The logarithm of a chance that is none, and finite, so that its gradient is a number.
_NEVER = -1e30


class Unasked(TorchFunctionMode):
    """While it is entered, functions and layers of PyTorch look at no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._patched = contextlib.ExitStack()

    def __enter__(self) -> Unasked:
        for own, name, other in (
            (nn.modules.transformer, "_detect_is_causal_mask", _is_causal),
            (nn.modules.batchnorm._BatchNorm, "forward", _averaged(nn.modules.batchnorm._BatchNorm.forward)),
            (nn.AdaptiveLogSoftmaxWithLoss, "forward", _by_clusters),
            (torch._VF, "_pack_padded_sequence", _packed),
            (nn.Module, "to", _as_it_is(nn.Module.to)),
            (torch.utils.checkpoint, "CheckpointFunction", _Whole),
            *((torch.autograd, name, _derived) for name in ("grad", "backward")),
            *((torch.func, name, _derived) for name in ("grad", "grad_and_value", "vjp", "jvp", "jacrev", "jacfwd", "hessian")),
        ):
            self._patched.enter_context(_patched(own, name, other))
        super().__enter__()
        return self

    def __exit__(self, *why: Any) -> None:
        super().__exit__(*why)
        self._patched.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _FUNCTIONS.get(func, func)(*args, **(kwargs or {}))


@contextlib.contextmanager
def _patched(where: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    own = getattr(where, name, None)
    if own is None:
        yield
        return
    setattr(where, name, other)
    try:
        yield
    finally:
        setattr(where, name, own)


def without_checkpoints() -> contextlib.AbstractContextManager[None]:
    """What is wrapped in ``checkpoint(use_reentrant=True)`` runs as it is: gradients of named parameters cannot be asked of it otherwise."""
    return _patched(torch.utils.checkpoint, "CheckpointFunction", _Whole)


class _Whole:
    """In the place of a function whose forward runs without gradients: what runs again for less memory is the plan's to say."""

    @staticmethod
    def apply(run: Callable[..., Any], _: bool, *args: Any) -> Any:
        # Where none of its inputs has a gradient, what is inside gets none.
        with torch.set_grad_enabled(any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)):
            return run(*args)


def _is_causal(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """A mask is used as it is, without looking whether it is the causal one."""
    return bool(is_causal)


def _packed(*_: Any) -> Any:
    raise PlimsollError(
        "pack_padded_sequence takes as many rows a step as the lengths say, and a plan must know all sizes before: run the layer over padded sequences, and read with gather what it gives at the "
        "last step that counts (of a backward direction, sequences flipped within their lengths)"
    )


def _as_it_is(own: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """A module that is moved to the type and the device that it has is not moved."""

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        tensors = [*self.parameters(), *self.buffers()]
        is_there = all(device is None or tensor.device.type == torch.device(device).type for tensor in tensors)
        is_so = all(dtype is None or tensor.dtype == dtype or not tensor.is_floating_point() for tensor in tensors)
        return self if is_there and is_so and memory_format is None else own(self, *args, **kwargs)

    return to


def _derived(*_: Any, **__: Any) -> Any:
    raise PlimsollError(
        "forward asks for a gradient (torch.autograd.grad, torch.func.grad and the like), and gradients of gradients are not known here: leave such a penalty out, "
        "or write the derivative as a formula, or as a difference of two calls"
    )


def _averaged(own: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A batch norm whose running numbers are the mean over all batches so far, of which the weight of one is a number in a buffer."""

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        if self.momentum is not None or not self.training or not self.track_running_stats or self.num_batches_tracked is None:
            return own(self, input)
        self._check_input_dim(input)
        self.num_batches_tracked.add_(1)
        mean, var = torch.zeros_like(self.running_mean), torch.ones_like(self.running_var)
        made = F.batch_norm(input, mean, var, self.weight, self.bias, True, 1.0, self.eps)
        share = (1.0 / self.num_batches_tracked.to(torch.float64)).to(mean.dtype)
        for running, batch in ((self.running_mean, mean), (self.running_var, var)):
            running.copy_(share * batch.detach() + (1 - share) * running)
        return made

    return forward


def _by_clusters(self: Any, input_: torch.Tensor, target_: torch.Tensor) -> Any:
    """``AdaptiveLogSoftmaxWithLoss``, with every cluster over all rows: which rows are of which is in the labels."""
    if (target_.dim(), input_.dim()) not in ((1, 2), (0, 1)) or target_.shape != input_.shape[:-1]:
        raise RuntimeError(f"AdaptiveLogSoftmaxWithLoss takes rows [N, features] with labels [N], not {list(input_.shape)} with {list(target_.shape)}")
    x, target = (input_, target_) if target_.dim() else (input_.unsqueeze(0), target_.unsqueeze(0))
    place, output = target, x.new_zeros(x.shape[0])
    bounds = [0, *self.cutoffs]
    for number, (low, high) in enumerate(zip(bounds[1:], bounds[2:])):
        is_own = (target >= low) & (target < high)
        logs = F.log_softmax(self.tail[number](x), 1)
        own = logs.gather(1, (target - low).clamp(0, high - low - 1).unsqueeze(1)).squeeze(1)
        output = torch.where(is_own, own, output)
        place = torch.where(is_own, torch.full_like(target, self.shortlist_size + number), place)
    output = output + F.log_softmax(self.head(x), 1).gather(1, place.unsqueeze(1)).squeeze(1)
    return nn.modules.adaptive._ASMoutput(output if target_.dim() else output.squeeze(0), (-output).mean())


def _gaussian_nll_loss(
    input: torch.Tensor, target: torch.Tensor, var: torch.Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> torch.Tensor:
    """``F.gaussian_nll_loss`` without the question whether a variance is below 0: of such a one the loss is no number, which ends the step by name."""
    if not isinstance(var, torch.Tensor):
        var = torch.full_like(input, var)
    if var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    var = torch.where(var < 0, float("nan"), var)
    # The least is set without a gradient of its own: that of the variance passes it by.
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.9189385332046727
    return _reduced(loss, reduction)


def _ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
) -> torch.Tensor:
    """``F.ctc_loss`` as steps along time, so that lengths may be numbers of the batch. Its gradient is PyTorch's: that of the scores before a ``log_softmax``."""
    is_batch = log_probs.dim() == 3
    x = log_probs if is_batch else log_probs.unsqueeze(1)
    time, n, _ = x.shape
    longest = [length if isinstance(length, torch.Tensor) else torch.tensor(length) for length in (input_lengths, target_lengths)]
    steps, count = (length.to(x.device, torch.int64).reshape(-1) for length in longest)
    if not is_batch and targets.dim() == 1:
        targets = targets.unsqueeze(0)
    if isinstance(targets, Picked):
        # Labels of all samples one after the other, as a mask picks them from rows with a filling.
        rows = in_front(targets.rows, targets.mask)
        targets = targets.rows if rows is None else rows
    if targets.dim() != 2:
        raise PlimsollError("ctc_loss is given labels in one row, of which how many are of which sample must be known before: give them as a tensor [samples, longest], padded")
    labels = targets.to(torch.int64)
    places = 2 * labels.shape[1] + 1
    # A blank before each label, and one at the end.
    spelled = torch.cat([torch.stack([torch.full_like(labels, blank), labels], 2).flatten(1), torch.full_like(labels[:, :1], blank)], 1)
    spelled = spelled.clamp(0, x.shape[2] - 1)
    scores = x.gather(2, spelled.unsqueeze(0).expand(time, n, places)).clamp(min=_NEVER)
    never = lambda wide: torch.full((n, wide), _NEVER, dtype=x.dtype, device=x.device)
    # A label may follow the one before it without a blank where they differ.
    skips = torch.cat([never(2), torch.where(spelled[:, 2:] != spelled[:, :-2], 0.0, _NEVER).to(x.dtype)], 1)[:, :places]
    alpha = torch.cat([scores[0, :, :2], never(places - 2)], 1) if places > 1 else scores[0]
    for t in range(1, time):
        one = torch.cat([never(1), alpha[:, :-1]], 1)
        two = torch.cat([never(2), alpha[:, :-2]], 1)[:, :places] + skips
        further = (torch.logsumexp(torch.stack([alpha, one, two.clamp(min=_NEVER)]), 0) + scores[t]).clamp(min=_NEVER)
        alpha = torch.where((t < steps).unsqueeze(1), further, alpha)
    end = (2 * count).unsqueeze(1)
    ends = torch.cat([alpha.gather(1, end), torch.where(end > 0, alpha.gather(1, (end - 1).clamp(min=0)), _NEVER)], 1)
    loss = -torch.logsumexp(ends, 1)
    # PyTorch takes what it is given for logarithms of shares that sum to 1, and has that in its gradient.
    is_read = torch.arange(time, device=x.device).unsqueeze(1) < steps
    shares = torch.where(is_read.unsqueeze(2), x.exp(), 0.0).sum((0, 2))
    loss = loss + (shares - shares.detach())
    is_never = loss > -0.5 * _NEVER
    loss = torch.where(is_never, torch.zeros_like(loss) if zero_infinity else torch.full_like(loss, float("inf")), loss)
    if reduction == "mean":
        loss = loss / count.clamp(min=1).to(loss.dtype)
    loss = _reduced(loss, reduction)
    return loss if is_batch or reduction != "none" else loss.squeeze(0)


def _reduced(loss: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _fill_diagonal(x: torch.Tensor, value: float, wrap: bool = False) -> torch.Tensor:
    """Without a view of the diagonal, which no op of ours gives. Wrapped, it goes on below in a matrix that is higher than wide."""
    if x.dim() != 2:
        places = [torch.arange(length, device=x.device).reshape([-1 if own == axis else 1 for own in range(x.dim())]) for axis, length in enumerate(x.shape)]
        is_on = torch.stack(torch.broadcast_tensors(*[place == places[0] for place in places])).all(0)
        return x.masked_fill_(is_on, value)
    rows, columns = (torch.arange(length, device=x.device) for length in x.shape)
    rows = rows % (x.shape[1] + 1) if wrap else rows
    return x.masked_fill_(rows.unsqueeze(1) == columns.unsqueeze(0), value)


_FUNCTIONS = {F.gaussian_nll_loss: _gaussian_nll_loss, F.ctc_loss: _ctc_loss, torch.Tensor.fill_diagonal_: _fill_diagonal}
