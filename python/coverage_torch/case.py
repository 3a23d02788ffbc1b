"""One model of the table: exported, read by the engine, and compared with eager PyTorch."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import nn
from verdict import verdict

RATE = 1e-3
STEPS = 5
DRAWS = 3
#: Where a module has more elements than this, it is not compared in f64 as well.
MOST_IN_F64 = 40_000_000
#: Seconds after which no further draw is begun.
PATIENCE = 40.0


def without_dropout(module: nn.Module) -> None:
    """Random streams differ between systems: what is compared draws nothing."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        # Some read their rates from their settings each time.
        settings = getattr(part, "config", None)
        for name, value in list(getattr(settings, "__dict__", {}).items()):
            if "drop" in name and isinstance(value, float):
                setattr(settings, name, 0.0)
        for name, value in list(vars(part).items()):
            is_rate = any(word in name for word in ("drop", "layerdrop")) and isinstance(value, float)
            if is_rate or (name == "p" and isinstance(value, float) and "rop" in type(part).__name__):
                setattr(part, name, 0.0)
            # Stochastic depth of torchvision is a module with a mode of its own.
        if type(part).__name__ in ("StochasticDepth", "DropPath", "DropBlock2d"):
            part.eval()


def eager(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[float, dict[str, torch.Tensor | None], list[float]]:
    """The loss and gradients of one pass, and the losses of a few steps, of which the module keeps nothing."""
    before = copy.deepcopy(module.state_dict())
    loss = module(*inputs)
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    module.load_state_dict(before)
    optimizer, losses = torch.optim.SGD([p for _, p in named], RATE), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = module(*inputs)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    module.load_state_dict(before)
    module.zero_grad()
    return loss.item(), {name: gradient for (name, _), gradient in zip(named, gradients)}, losses


class Own:
    """A module in the engine."""

    def __init__(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        from plimsoll.torch._batch import Batch
        from plimsoll.torch._program import loss_program

        self.program = loss_program(module, None, Batch(inputs))
        self.again(inputs)

    def again(self, inputs: tuple[torch.Tensor, ...]) -> None:
        """From the beginning, with the weights that the module has now and other inputs."""
        from plimsoll import _native
        from plimsoll.torch._batch import Batch
        from plimsoll.torch._optim import Optimizer

        self.batch = Batch(inputs)
        settings = dict.fromkeys(("memory", "host_memory", "micro_batch", "clip_norm", "clip_value"))
        settings |= {"name": "model", "device": "cpu", "exact": "reassociated", "accumulate": 1, "scaled": False, "seed": 0, "frozen": []}
        self.native = _native.TorchTraining(self.program.handed(), settings)
        self.trained = set(self.native.names()[0])
        parameters = {self.program.tensors[name]: name for name in self.trained}
        self.optimizer = Optimizer(torch.optim.SGD(list(parameters), RATE), parameters)

    def gradients(self) -> tuple[float, dict[str, torch.Tensor | None]]:
        loss, found = self.native.gradients(self.batch.arrays())
        made = {}
        for name, data in found:
            like = self.program.tensors[name]
            made[name] = None if data is None else torch.frombuffer(bytearray(data), dtype=like.dtype).reshape(like.shape)
        return loss, made

    def losses(self) -> list[float]:
        self.native.begin([{**group, "average": None} for group in self.optimizer.groups(self.trained)], self.batch.shapes)
        return [self.native.step(self.batch.arrays(), self.optimizer.rates())[0] for _ in range(STEPS)]


def apart(found: dict[str, torch.Tensor | None], wanted: dict[str, torch.Tensor | None], least: float = 1e-3) -> tuple[float, str]:
    """The largest difference of a gradient's element as a share of the largest element of that gradient, and where.

    A gradient that is zero but for rounding, of a bias before a normalization say, is compared with the others: with so much of the largest of all.
    """
    largest = max((float(gradient.abs().max()) for gradient in wanted.values() if gradient is not None and gradient.numel()), default=0.0)
    worst, where = 0.0, ""
    for name, expected in wanted.items():
        name = name.removeprefix("model.") if name not in found else name
        if name not in found:
            continue  # A tied weight under its second name.
        own = found[name]
        zero = torch.zeros(())
        expected = zero if expected is None else expected.double()
        own = zero if own is None else own.double()
        scale = max(float(expected.abs().max()), least * largest, 1e-12)
        off = float((own - expected).abs().max()) / scale
        if not off <= worst:
            worst, where = off, name
    return worst, where


def off(found: list[float], wanted: list[float]) -> float:
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, wanted))


def compared(make: Any) -> dict[str, Any]:
    """The row of a model. What failed says so in the field of what was tried.

    Where an activation stands at the kink of a ReLU, rounding decides on which side, in PyTorch as here. How much PyTorch makes of its own rounding is
    seen by letting it compute the same in other orders; and in f32 up to three draws of weights and inputs are tried, of which the nearest counts.
    """
    start = time.monotonic()
    module, inputs = _made(make, 0)
    elements = sum(p.numel() for p in module.parameters())
    row: dict[str, Any] = {"elements": elements, "seconds": 0.0}
    try:
        own = Own(module, inputs)
    except Exception as error:
        words = str(error).strip().split("\n")[0][:200]
        return {**row, ("exports" if "torch.export cannot" in words else "loads"): words}
    row["loads"] = True
    is_small = elements <= MOST_IN_F64
    for seed in range(DRAWS):
        if seed:
            other, inputs = _made(make, seed)
            module.load_state_dict(other.state_dict())
            own.again(inputs)
        wide = copy.deepcopy(module).double() if is_small else None
        found = _drawn(own, module, wide, inputs, row)
        if seed == 0 and wide is not None and "no_f64" not in found:
            row |= _in_f64(wide, _widened(inputs), found["exact"], found["exact_losses"])
        del found["exact"], found["exact_losses"]
        if seed == 0 or max(found["gradients"], found["steps"]) < max(row["gradients"], row["steps"]):
            row |= {**found, "draws": seed + 1}
        if verdict(row)["all"] or time.monotonic() - start > PATIENCE:
            break
    return {**row, "seconds": time.monotonic() - start}


def _made(make: Any, seed: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(seed)
    module, inputs = make()
    module.train()
    without_dropout(module)
    return module, inputs


def _widened(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


def _drawn(own: Own, module: nn.Module, wide: nn.Module | None, inputs: tuple[torch.Tensor, ...], row: dict[str, Any]) -> dict[str, Any]:
    """What is found at one draw of weights and inputs."""
    found: dict[str, Any] = {}
    loss, gradients, losses = eager(module, inputs)
    exact, exact_losses = gradients, losses
    if wide is not None:
        try:
            _, exact, exact_losses = eager(wide, _widened(inputs))
        except Exception as error:  # Some kernels of PyTorch have no f64: then its f32 is what there is.
            found["no_f64"] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    own_loss, own_gradients = own.gradients()
    found["forward"] = abs(own_loss - loss) / max(1.0, abs(loss))
    found["gradients"], found["where"] = apart(own_gradients, exact)
    steps = own.losses()
    found["steps"] = off(steps, exact_losses)
    found["noise"], found["steps_noise"] = apart(_own_names(gradients), exact)[0], off(losses, exact_losses)
    for way in WAYS:
        if verdict({**row, **found, "f64": 0.0})["all"]:
            break
        _, gradients, losses = way(module, inputs)
        found["noise"] = max(found["noise"], apart(_own_names(gradients), exact)[0])
        found["steps_noise"] = max(found["steps_noise"], off(losses, exact_losses))
    return {**found, "exact": exact, "exact_losses": exact_losses}


def _own_names(gradients: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    return {name.removeprefix("model."): gradient for name, gradient in gradients.items()}


def _backwards(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    """The batch from its last sample to its first: the same mean, summed in another order."""
    samples = len(inputs[0])
    return eager(module, tuple(x.flip(0) if x.dim() and len(x) == samples else x for x in inputs))


def _with_other_kernels(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    with torch.backends.mkldnn.flags(enabled=False):
        return eager(module, inputs)


def _with_weights_beside(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    """Every weight so little beside itself as rounding it once may put it: what that makes of gradients, no other order of sums can be held to."""
    kept = [(parameter, parameter.detach().clone()) for parameter in module.parameters()]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for parameter, value in kept:
                side = torch.rand(value.shape, generator=generator) * 2 - 1
                parameter.copy_(value * (1 + side.to(value.dtype) * torch.finfo(value.dtype).eps / 2))
        return eager(module, inputs)
    finally:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)


#: Ways in which PyTorch computes the same with other rounding.
WAYS = (_backwards, _with_other_kernels, _with_weights_beside)


def _in_f64(wide: nn.Module, inputs: tuple[torch.Tensor, ...], exact: dict[str, torch.Tensor | None], losses: list[float]) -> dict[str, Any]:
    """Gradients and steps in f64, where rounding hides nothing."""
    row: dict[str, Any] = {}
    try:
        own = Own(wide, inputs)
        _, found = own.gradients()
        row["f64"], row["f64_where"] = apart(found, exact, 1e-4)
        row["steps_f64"] = off(own.losses(), losses)
        # Some models compute a part in f32 whatever they are given: their loss, say.
        calls = [node for node in own.program.exported.graph.nodes if node.op == "call_function"]
        made = [node.meta.get("val") for node in calls]
        row["f32_inside"] = any(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in made)
        # PyTorch's gradient of a hard sigmoid is a sixth as f32 has it, in f64 too.
        row["f32_inside"] |= any("hardsigmoid" in str(node.target) for node in calls)
    except Exception as error:
        row["f64"] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    return row
