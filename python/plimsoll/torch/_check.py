"""One step's gradients of an exported program against those of eager PyTorch: a difference is refused.

A custom ``autograd.Function`` leaves no trace of its backward in an exported program: only numbers tell.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Iterator

import torch

from plimsoll.errors import PlimsollError
from plimsoll.torch._export import LayerDrop
from plimsoll.torch._program import Batch, Program, array, own_name

__all__ = ["Checked", "check"]

#: Samples that are compared: few, since PyTorch keeps all that it computes of them.
_SAMPLES = 4
#: How far gradients of PyTorch's own kernels may be apart, as a share of the largest.
_SAME_KERNELS = 1e-3
#: How far those of other kernels may be, at one of so many points.
_OTHER_KERNELS = 1e-2
_POINTS = 3
#: Where a module computes in 16 bits, kernels round apart: by as many times what rounding the weights makes of eager PyTorch's own gradients. Those of the first layers of a deep
#: net may be all rounding, of which nothing can be said; those of its last are not.
_ROUNDINGS = 4.0


@dataclasses.dataclass
class Checked:
    """What was found."""

    #: Parameters that the loss does not depend on.
    unused: set[str]
    #: The largest difference of gradients between eager PyTorch and the engine, as a share of each one's norm; none where random ops forbid it.
    apart: float | None


def check(program: Program, native: Any, batch: Batch, trained: set[str]) -> Checked:
    """Compares; buffers and PyTorch's random state are put back as they were."""
    try:
        return _checked(program, native, batch, trained)
    finally:
        # What PyTorch keeps of a card for later would be memory that nobody has.
        if any(tensor.is_cuda for tensor in program.tensors.values()):
            torch.cuda.empty_cache()


def _checked(program: Program, native: Any, batch: Batch, trained: set[str]) -> Checked:
    tensors = [tensor.detach() for tensor in (batch.first(_SAMPLES) if _is_open(program, batch) else batch.tensors)]
    module = program.module
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    names = [name for name in program.tensors if name in trained]
    parameters = [program.tensors[name] for name in names]

    def restored() -> None:
        with torch.no_grad():
            for name, value in module.named_buffers():
                value.copy_(buffers[name])

    def gradients(call: Callable[..., Any]) -> tuple[float, list[torch.Tensor | None]]:
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(0)
            loss = call(*tensors)
            loss = loss[0] if isinstance(loss, (tuple, list)) else loss
            if not loss.requires_grad:
                raise PlimsollError("the loss depends on no parameter that is trained")
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
        restored()
        return loss.item(), list(found)

    def eager(*given: torch.Tensor) -> Any:
        with LayerDrop(rewinds=True):
            return module(*given)

    wanted_loss, wanted = gradients(eager)
    noise = [0.0] * len(names)
    if program.has_sixteen_bits:
        with _moved(parameters, 1):
            noise = _differences(wanted, gradients(eager)[1])
    loss, found = gradients(_functional(program))
    _compare(names, (wanted_loss, wanted), (loss, found), _SAME_KERNELS, noise, "the exported program")
    del found
    unused = {name for name, gradient in zip(names, wanted) if gradient is None}
    if program.is_random:
        return Checked(unused, None)

    def ours() -> tuple[float, list[torch.Tensor | None]]:
        loss, own = native.gradients([array(tensor) for tensor in tensors])
        by_name, made = dict(own), []
        for name, parameter in zip(names, parameters):
            data = by_name.get(name)
            tensor = None if data is None else torch.frombuffer(bytearray(data), dtype=parameter.dtype).reshape(parameter.shape)
            made.append(None if tensor is None else tensor.to(parameter.device))
        return loss, made

    # Where an activation stands at the kink of a ReLU, rounding decides on which side: other weights beside these have other kinks.
    for last in range(_POINTS):
        with _moved(parameters, last):
            wanted_here = (wanted_loss, wanted) if last == 0 else gradients(eager)
            try:
                return Checked(unused, _compare(names, wanted_here, ours(), _OTHER_KERNELS, noise, "the engine"))
            except PlimsollError:
                if last == _POINTS - 1:
                    raise
    raise AssertionError


@contextlib.contextmanager
def _moved(parameters: list[torch.Tensor], point: int) -> Iterator[None]:
    """Parameters a thousandth of themselves away, and back again; at the first point they are as they are."""
    if point == 0:
        yield
        return
    kept = [parameter.detach().clone() for parameter in parameters]
    generator = torch.Generator().manual_seed(point)
    try:
        with torch.no_grad():
            for parameter in parameters:
                step = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter)
                parameter.mul_(1 + 1e-3 * step)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept):
                parameter.copy_(value)


def _functional(program: Program) -> Callable[..., torch.Tensor]:
    """The program as a function of a batch that gives the loss: over the module's own tensors, of which it changes none."""
    signature = program.exported.graph_signature
    held = program.tensors

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        rest, given = iter(tensors), []
        for spec in signature.input_specs:
            target = None if spec.target is None else own_name(spec.target)
            if target in held:
                tensor = held[target]
                given.append(tensor if isinstance(tensor, torch.nn.Parameter) else tensor.clone())
            else:
                given.append(next(rest))
        outputs = program.exported.graph_module(*given)
        return next(made for spec, made in zip(signature.output_specs, outputs) if spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT"))

    return call


def _is_open(program: Program, batch: Batch) -> bool:
    """Whether it takes batches of other sizes than the one it was exported with: each tensor of a batch must be open, since a module may fix the size of one alone."""
    given = set(program.exported.graph_signature.user_inputs)
    inputs = [node.meta["val"] for node in program.exported.graph.nodes if node.op == "placeholder" and node.name in given]
    pairs = [(own, tensor) for own, tensor in zip(inputs, batch.tensors) if isinstance(own, torch.Tensor) and tensor.dim() and len(tensor) == batch.samples]
    # A size that was fixed on the way is a symbol that stands for a number.
    return bool(pairs) and not any(str(own.shape[0]).isdigit() for own, _ in pairs)


def _apart(wanted: torch.Tensor | None, found: torch.Tensor | None, floor: float) -> float:
    """The norm of a difference as a share of the norm of what is wanted, or of a small share of all gradients where that is larger."""
    if wanted is None and found is None:
        return 0.0
    zero = torch.zeros(())
    wanted = zero if wanted is None else wanted.detach().double()
    found = zero if found is None else found.detach().double()
    apart = float((wanted - found).norm() / max(float(wanted.norm()), floor, 1e-30))
    return apart if apart == apart else float("inf")


def _differences(wanted: list[torch.Tensor | None], found: list[torch.Tensor | None]) -> list[float]:
    """How far gradients are apart, one by one."""
    whole = sum(float(gradient.double().norm()) ** 2 for gradient in wanted if gradient is not None) ** 0.5
    return [_apart(one, other, 1e-4 * whole) for one, other in zip(wanted, found)]


def _compare(
    names: list[str],
    wanted: tuple[float, list[torch.Tensor | None]],
    found: tuple[float, list[torch.Tensor | None]],
    most: float,
    noise: list[float],
    who: str,
) -> float:
    """The largest difference, or a refusal."""
    if not abs(wanted[0] - found[0]) <= most * max(1.0, abs(wanted[0])):
        raise PlimsollError(f"the loss of {who} is {found[0]:.7g} where eager PyTorch has {wanted[0]:.7g}: it would train something else, so it is refused")
    apart = _differences(wanted[1], found[1])
    beyond = [own / max(most, _ROUNDINGS * rounding) for own, rounding in zip(apart, noise)]
    worst = max(range(len(apart)), key=beyond.__getitem__)
    if beyond[worst] <= 1.0:
        return max(apart)
    raise PlimsollError(
        f"the gradient of {names[worst]} by {who} is {apart[worst]:.2g} of its norm away from that of eager PyTorch, so it is refused: gradients of a custom "
        "autograd.Function do not pass through torch.export; if there is none, please report it (check=False trains all the same)"
    )
