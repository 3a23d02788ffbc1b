"""One model of the table: exported, read by the engine, and compared with eager PyTorch."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import nn

RATE = 1e-3
STEPS = 5
DRAWS = 3
#: Where a module has more elements than this, it is not compared in f64 as well.
MOST_IN_F64 = 40_000_000


def without_dropout(module: nn.Module) -> None:
    """Random streams differ between systems: what is compared draws nothing."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name, value in list(vars(part).items()):
            is_rate = any(word in name for word in ("drop", "layerdrop")) and isinstance(value, float)
            if is_rate or (name == "p" and isinstance(value, float) and "rop" in type(part).__name__):
                setattr(part, name, 0.0)
            # Stochastic depth of torchvision is a module with a mode of its own.
        if type(part).__name__ in ("StochasticDepth", "DropPath", "DropBlock2d"):
            part.eval()


def eager(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[float, dict[str, torch.Tensor | None], list[float]]:
    """The loss and gradients of one pass, and the losses of a few steps, of which the module keeps nothing."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
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
        from plimsoll import _native
        from plimsoll.torch._optim import Optimizer
        from plimsoll.torch._program import Batch, loss_program

        self.batch = Batch(inputs)
        self.program = loss_program(module, None, self.batch)
        settings = dict.fromkeys(("memory", "host_memory", "micro_batch", "clip_norm", "clip_value"))
        settings |= {"name": "model", "device": "cpu", "exact": "reassociated", "accumulate": 1, "seed": 0, "frozen": []}
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
        self.native.begin(self.optimizer.groups(self.trained), self.batch.shapes)
        return [self.native.step(self.batch.arrays(), self.optimizer.rates())[0] for _ in range(STEPS)]


def apart(found: dict[str, torch.Tensor | None], wanted: dict[str, torch.Tensor | None]) -> tuple[float, str]:
    """The largest difference of a gradient's element as a share of the largest element of that gradient, and where."""
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
        # A gradient that is zero but for rounding is compared with the others.
        scale = max(float(expected.abs().max()), 1e-4 * largest, 1e-12)
        off = float((own - expected).abs().max()) / scale
        if not off <= worst:
            worst, where = off, name
    return worst, where


def off(found: list[float], wanted: list[float]) -> float:
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, wanted))


def compared(make: Any) -> dict[str, Any]:
    """The row of a model. What failed says so in the field of what was tried.

    Where an activation stands at the kink of a ReLU, rounding decides on which side, in PyTorch as here: in f32 up to three draws of weights and inputs are
    tried, and the nearest counts.
    """
    start, row = time.monotonic(), {}
    for seed in range(DRAWS):
        found = _drawn(make, seed)
        is_nearer = "gradients" in found and max(found["gradients"], found["steps"]) < max(row.get("gradients", 2.0), row.get("steps", 2.0))
        if seed == 0 or is_nearer:
            row = {**row, **found, "draws": seed + 1}
        if "gradients" not in found or (found["gradients"] <= 1e-3 and found["steps"] <= 1e-3):
            break
    return {**row, "seconds": time.monotonic() - start}


def _drawn(make: Any, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    module, inputs = make()
    module.train()
    without_dropout(module)
    elements = sum(p.numel() for p in module.parameters())
    row: dict[str, Any] = {"elements": elements}
    wide = copy.deepcopy(module).double()
    wide_inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    loss, gradients, losses = eager(module, inputs)
    try:
        _, exact, exact_losses = eager(wide, wide_inputs)
    except Exception as error:  # Some kernels of PyTorch have no f64: then its f32 is what there is.
        row["no_f64"] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        exact, exact_losses = gradients, losses
    try:
        own = Own(module, inputs)
    except Exception as error:
        words = str(error).strip().split("\n")[0][:200]
        return {**row, ("exports" if "torch.export cannot" in words else "loads"): words}
    row["loads"] = True
    found_loss, found = own.gradients()
    row["forward"] = abs(found_loss - loss) / max(1.0, abs(loss))
    row["gradients"], row["where"] = apart(found, exact)
    row["noise"], _ = apart({name.removeprefix("model."): g for name, g in gradients.items()}, exact)
    steps = own.losses()
    row["steps"], row["steps_noise"] = off(steps, exact_losses), off(losses, exact_losses)
    if seed == 0 and elements <= MOST_IN_F64 and "no_f64" not in row:
        try:
            own = Own(wide, wide_inputs)
            _, found = own.gradients()
            row["f64"], row["f64_where"] = apart(found, exact)
            # Some models compute a part in f32 whatever they are given: their loss, say.
            calls = [node for node in own.program.exported.graph.nodes if node.op == "call_function"]
            made = [node.meta.get("val") for node in calls]
            row["f32_inside"] = any(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in made)
            # PyTorch's gradient of a hard sigmoid is a sixth as f32 has it, in f64 too.
            row["f32_inside"] |= any("hardsigmoid" in str(node.target) for node in calls)
        except Exception as error:
            row["f64"] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    return row
