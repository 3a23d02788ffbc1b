"""One step's gradients of an exported program against those of eager PyTorch: a difference is refused.

A custom ``autograd.Function`` leaves no trace of its backward in an exported program: only numbers tell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from typing import Any, Callable, Iterator

import torch

from plimsoll.errors import PlimsollError
from plimsoll.torch._batch import Batch, array
from plimsoll.torch._drawn import Drawn
from plimsoll.torch._export import ALONE, LayerDrop
from plimsoll.torch._kept import Kept
from plimsoll.torch._program import Program, functional, own_name
from plimsoll.torch._sizes import broken
from plimsoll.torch._unasked import without_checkpoints

__all__ = ["Checked", "check"]

#: Samples that are compared: few, since PyTorch keeps all that it computes of them.
_SAMPLES = 4
#: How far gradients of PyTorch's own kernels may be apart, as a share of the largest.
_SAME_KERNELS = 1e-3
#: How far the loss may be from itself where a module runs twice.
_SAME_LOSS = 1e-6
#: How many attributes an error names.
_NAMED = 3
#: How far those of other kernels may be, at one of so many points.
_OTHER_KERNELS = 1e-2
_POINTS = 3
#: Where a module computes in 16 bits, kernels round apart: by as many times what rounding the weights makes of eager PyTorch's own gradients. Those of the first layers of a deep
#: net may be all rounding, of which nothing can be said; those of its last are not.
_ROUNDINGS = 4.0
#: The most that is taken for rounding where it computes in 32 bits.
_MOST_ROUNDING = 0.05


@dataclasses.dataclass
class Checked:
    """What was found."""

    #: Parameters that the loss does not depend on.
    unused: set[str]
    #: The largest difference of gradients between eager PyTorch and the engine, as a share of each one's norm; none where random ops forbid it.
    apart: float | None


def check(program: Program, native: Any, batch: Batch, trained: set[str]) -> Checked:
    """Compares; what the module has and PyTorch's random state are put back as they were."""
    _refuse_written(program, trained)
    try:
        with ALONE, Kept(program.module) as kept, Drawn() as drawn, without_checkpoints():
            return _checked(program, native, batch, trained, kept, drawn)
    finally:
        # What PyTorch keeps of a card for later would be memory that nobody has.
        if any(tensor.is_cuda for tensor in program.tensors.values()):
            torch.cuda.empty_cache()


def _refuse_written(program: Program, trained: set[str]) -> None:
    """A parameter that is trained and written to in ``forward``, under ``no_grad``, would be changed twice in a step, and its gradient end at the first."""
    for name in trained.intersection(_written(program)):
        raise PlimsollError(
            f"{name} is trained and forward writes to it: a planned step changes a trained parameter once, by its optimizer. Compute with a new tensor that is made of it "
            "(w = self.weight.clamp(-1, 1)), or change it after a step, with sync() before that"
        )


def _written(program: Program) -> list[str]:
    """Parameters that ``forward`` writes to."""
    return [own_name(spec.target) for spec in program.exported.graph_signature.output_specs if spec.kind.name == "PARAMETER_MUTATION"]


def _checked(program: Program, native: Any, batch: Batch, trained: set[str], kept: Kept, drawn: Drawn) -> Checked:
    few = [tensor.detach() for tensor in batch.first(_SAMPLES)]
    # A few that would go another way through the module than the whole batch say nothing of it.
    tensors = few if _is_open(program, batch) and not broken(program, few) else [tensor.detach() for tensor in batch.tensors]
    module = program.module
    # And frozen parameters that forward writes to, as those of a teacher that follows.
    written = [program.tensors[name] for name in _written(program)]
    buffers = [(value, value.clone()) for value in [*module.buffers(), *written]]
    names = [name for name in program.tensors if name in trained]
    parameters = [program.tensors[name] for name in names]

    def restored(buffers_alone: bool = False) -> None:
        kept.restore(buffers_alone)
        with torch.no_grad():
            for value, before in buffers:
                value.copy_(before)

    def loss_by(call: Callable[..., Any]) -> torch.Tensor:
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(0)
            loss = call(*tensors)
        return loss[0] if isinstance(loss, (tuple, list)) else loss

    def gradients(call: Callable[..., Any], is_first: bool = False) -> tuple[float, list[torch.Tensor | None]]:
        loss = loss_by(call)
        if not loss.requires_grad:
            raise PlimsollError("the loss depends on no parameter that is trained")
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        if is_first:
            _refuse_other_runs(program, kept, drawn, loss.item(), lambda: loss_by(call).item(), restored)
        restored()
        return loss.item(), list(found)

    def eager(*given: torch.Tensor) -> Any:
        with LayerDrop(rewinds=True):
            return module(*given)

    try:
        wanted_loss, wanted = gradients(eager, is_first=True)
        is_some = math.isfinite(wanted_loss)
    except (RuntimeError, IndexError, ValueError):
        is_some = False
        if tensors[0].shape == batch.tensors[0].shape:
            raise
    if not is_some and tensors[0].shape != batch.tensors[0].shape:
        # A batch of which a few samples are none by themselves: a graph, say, whose edges are numbers of all its nodes, or classes that none of the few has.
        restored()
        tensors = [tensor.detach() for tensor in batch.tensors]
        wanted_loss, wanted = gradients(eager, is_first=True)
    noise = [0.0] * len(names)
    if program.has_sixteen_bits:
        with _moved(parameters, 1):
            noise = _differences(wanted, gradients(eager)[1])

    def compare(wanted: Any, made: Any, most: float, who: str, is_last: bool = True) -> float:
        try:
            return _compare(names, wanted, made, most, noise, who)
        except PlimsollError:
            if program.has_sixteen_bits or not is_last:
                raise
        # Of a deep net a rounding may make a hundredth of a gradient, in PyTorch as here: which one is by chance.
        with _rounded(parameters):
            own = min(max(_differences(wanted[1], gradients(eager)[1])), _MOST_ROUNDING)
        return _compare(names, wanted, made, most, [own] * len(names), who)

    compare((wanted_loss, wanted), gradients(functional(program)), _SAME_KERNELS, "the exported program")
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
                return Checked(unused, compare(wanted_here, ours(), _OTHER_KERNELS, "the engine", is_last=last == _POINTS - 1))
            except PlimsollError:
                if last == _POINTS - 1:
                    raise
    raise AssertionError


def _refuse_other_runs(program: Program, kept: Kept, drawn: Drawn, first: float, again: Callable[[], float], restored: Callable[[bool], None]) -> None:
    """Refuses a module that computes otherwise when it runs again, with nothing changed but attributes of its own or random numbers of Python: an exported program has neither."""
    is_narrow = program.has_sixteen_bits or any(tensor.is_cuda for tensor in program.tensors.values())
    most = _SAME_KERNELS if is_narrow else _SAME_LOSS

    def from_the_beginning() -> float:
        restored(False)
        return again()

    names, counted = kept.changed(), kept.counted()
    drawn.refuse(first, from_the_beginning, most)
    restored(True)
    second = again()
    listed = lambda names: ", ".join(own_name(name) for name in names[:_NAMED])
    # Where nothing of its own changed, sums in another order are no other run.
    if abs(second - first) > (most if names else _SAME_KERNELS) * max(1.0, abs(first)):
        twice = f"the module's loss is another when it runs again on the same samples: {first:g}, then {second:g}. "
        if names:
            raise PlimsollError(
                f"{twice}It changes {listed(names)}, which a program without Python does not have: keep what is read again in a buffer (register_buffer), and leave out what counts calls"
            )
        raise PlimsollError(f"{twice}What it hangs on (a counter elsewhere, an iterator, a clock) is no tensor and no attribute of it, and a program without Python does not have it: make it a buffer or a part of the batch")
    if counted:
        warnings.warn(f"the module changes {listed(counted)} when it runs, which stays as it is in the steps of a program without Python: where what it computes hangs on that later, keep it in a buffer", stacklevel=2)


@contextlib.contextmanager
def _moved(parameters: list[torch.Tensor], point: int) -> Iterator[None]:
    """Parameters a thousandth of themselves away, or of 1 where they are zeros alone, and back again; at the first point they are as they are."""
    if point == 0:
        yield
        return
    generator = torch.Generator().manual_seed(point)

    def moved(parameter: torch.Tensor) -> torch.Tensor:
        step = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter)
        # What begins with zeros alone, as some routers of experts do, has ties, which are broken one way by PyTorch and another way here.
        return parameter * (1 + 1e-3 * step) if parameter.any() else 1e-3 * step

    with _with_others(parameters, moved):
        yield


def _rounded(parameters: list[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """Parameters a few roundings beside themselves, as the sums of other kernels are, and back again."""
    generator = torch.Generator().manual_seed(0)

    def moved(parameter: torch.Tensor) -> torch.Tensor:
        side = torch.rand(parameter.shape, generator=generator, dtype=torch.float32).to(parameter) * 2 - 1
        return parameter * (1 + side * torch.finfo(parameter.dtype).eps * 4)

    return _with_others(parameters, moved)


@contextlib.contextmanager
def _with_others(parameters: list[torch.Tensor], other: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Parameters with other values, and back again."""
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter in parameters:
                parameter.copy_(other(parameter))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept):
                parameter.copy_(value)


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
    return [_apart(one, other, 1e-3 * whole) for one, other in zip(wanted, found)]


def _compare(
    names: list[str],
    wanted: tuple[float, list[torch.Tensor | None]],
    found: tuple[float, list[torch.Tensor | None]],
    most: float,
    noise: list[float],
    who: str,
) -> float:
    """The largest difference, or a refusal."""
    if not math.isfinite(wanted[0]):
        raise PlimsollError(f"the loss of eager PyTorch is {wanted[0]:g} on the first batch, so nothing can be compared with it: look at the batch, and at the module's weights")
    if not abs(wanted[0] - found[0]) <= most * max(1.0, abs(wanted[0])):
        raise PlimsollError(f"the loss of {who} is {found[0]:.7g} where eager PyTorch has {wanted[0]:.7g}: it would train something else, so it is refused")
    apart = _differences(wanted[1], found[1])
    beyond = [own / max(most, _ROUNDINGS * rounding) for own, rounding in zip(apart, noise)]
    worst = max(range(len(apart)), key=beyond.__getitem__)
    if beyond[worst] <= 1.0:
        return max(apart)
    raise PlimsollError(
        f"the gradient of {names[worst]} by {who} is {apart[worst]:.2g} of its norm away from that of eager PyTorch, so it is refused: gradients of a custom "
        "autograd.Function, and what a hook (register_hook) makes of one, do not pass through torch.export; if there is neither, please report it (check=False trains all the same)"
    )
