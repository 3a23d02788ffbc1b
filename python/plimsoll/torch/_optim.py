"""An optimizer of ``torch.optim`` as the engine has it: its groups, and its state in and out."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import torch

from plimsoll.errors import PlimsollError
from plimsoll.torch._batch import array

__all__ = ["Optimizer"]

#: Of each class the settings that are followed, what settings must be, and its state by PyTorch's names and the engine's.
_RULES: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, str]]] = {
    "SGD": (("momentum", "weight_decay", "nesterov"), {"dampening": 0}, {"momentum_buffer": "momentum"}),
    "Adam": (("betas", "eps", "weight_decay", "decoupled_weight_decay"), {"amsgrad": False}, {"exp_avg": "m", "exp_avg_sq": "v"}),
    "AdamW": (("betas", "eps", "weight_decay", "decoupled_weight_decay"), {"amsgrad": False}, {"exp_avg": "m", "exp_avg_sq": "v"}),
    "Adamax": (("betas", "eps", "weight_decay"), {}, {"exp_avg": "m", "exp_inf": "largest"}),
    "NAdam": (
        ("betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay"),
        {},
        {"exp_avg": "m", "exp_avg_sq": "v", "mu_product": "product"},
    ),
    "RAdam": (("betas", "eps", "weight_decay", "decoupled_weight_decay"), {}, {"exp_avg": "m", "exp_avg_sq": "v"}),
    "RMSprop": (
        ("alpha", "eps", "momentum", "centered", "weight_decay"),
        {},
        {"square_avg": "square", "grad_avg": "mean", "momentum_buffer": "momentum"},
    ),
    "Adagrad": (("lr_decay", "eps", "weight_decay", "initial_accumulator_value"), {}, {"sum": "sum"}),
    "Lion": (("betas", "weight_decay"), {}, {"exp_avg": "m"}),
}
#: What every class has: hints about kernels change nothing here, and these must be off.
_OFF = {"maximize": False, "differentiable": False}
#: Settings that older or other classes leave out.
_USUAL = {"decoupled_weight_decay": False, "nesterov": False, "initial_accumulator_value": 0.0}
#: What schedulers turn with the learning rate (``OneCycleLR``, ``CyclicLR``), by class.
_TURNED = {"SGD": "momentum", "Adam": "beta1", "AdamW": "beta1"}


class Optimizer:
    """The groups of an optimizer, with parameters by name."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str]) -> None:
        self._optimizer = optimizer
        self.rule = type(optimizer).__name__
        is_torch = type(optimizer) is getattr(torch.optim, self.rule, None)
        if self.rule not in _RULES or not (is_torch or self.rule == "Lion"):
            raise PlimsollError(f"the optimizer {self.rule} is not known here; there are {', '.join(_RULES)}")
        self.names: list[list[str]] = []
        for place, group in enumerate(optimizer.param_groups):
            unknown = [parameter for parameter in group["params"] if parameter not in names]
            if unknown:
                shape = tuple(unknown[0].shape)
                raise PlimsollError(f"group {place} of the optimizer has a parameter of shape {shape} that is not in the module")
            self.names.append([names[parameter] for parameter in group["params"]])
        self._is_cycled = any("max_momentum" in group or "base_momentum" in group for group in optimizer.param_groups) and self.rule in _TURNED
        self._began_with: list[dict[str, float]] = []
        self.begin()

    def begin(self) -> None:
        """Takes the settings as those of a training that begins now."""
        self._began_with = [self._settings(place) for place in range(len(self.names))]

    def _now(self) -> list[dict[str, float]]:
        return [self._settings(place) for place in range(len(self.names))]

    def turns(self) -> bool:
        """Whether a scheduler has begun to turn momentum, which the training takes as fixed: then it must begin anew."""
        turned = _TURNED.get(self.rule)
        if self._is_cycled or turned is None or all(now[turned] == before[turned] for now, before in zip(self._now(), self._began_with)):
            return False
        self._is_cycled = True
        return True

    def _settings(self, place: int) -> dict[str, float]:
        """The settings of a group as numbers; what cannot be followed is refused by name."""
        group = self._optimizer.param_groups[place]
        followed, must, _ = _RULES[self.rule]
        for name, wanted in {**must, **_OFF}.items():
            if group.get(name, wanted) != wanted:
                raise PlimsollError(f"{name}={group[name]} of {self.rule} is not followed here; make it {wanted}")
        numbers = {"decoupled_weight_decay": 0.0}
        for name in followed:
            value = group[name] if name in group else self._optimizer.defaults.get(name, _USUAL.get(name))
            if value is None:
                raise PlimsollError(f"group {place} of {self.rule} has no setting {name}")
            if name == "betas":
                numbers["beta1"], numbers["beta2"] = (float(beta) for beta in value)
            else:
                numbers[name] = float(value)
        return numbers

    def rates(self) -> list[float]:
        """The learning rates as they are now, each with its momentum where that is turned too. Other settings must be what they were at the first step."""
        groups = self._optimizer.param_groups
        if [len(group["params"]) for group in groups] != [len(names) for names in self.names]:
            raise PlimsollError("the optimizer has other parameter groups than when the Trainer was made: call sync(), and make a new Trainer")
        turned, rates = _TURNED[self.rule] if self._is_cycled else None, []
        for place, (before, now) in enumerate(zip(self._began_with, self._now())):
            for name, value in now.items():
                if before[name] != value and name != turned:
                    raise PlimsollError(
                        f"{name} of group {place} changed from {before[name]} to {value}; only learning rates and momentum may change while a Trainer is at "
                        "work: call sync(), and make a new Trainer"
                    )
            rates.append(float(self._optimizer.param_groups[place]["lr"]))
            rates += [] if turned is None else [now[turned]]
        return rates

    def groups(self, trained: set[str]) -> list[dict[str, Any]]:
        """The groups as the engine is told of them."""
        self.rates()
        groups = zip(self._now(), self._optimizer.param_groups, self.names)
        return [
            {"rule": self.rule, "settings": {**numbers, "lr": float(group["lr"])}, "names": [name for name in names if name in trained], "cycled": self._is_cycled}
            for numbers, group, names in groups
        ]

    @property
    def counts(self) -> bool:
        """Whether its state says how many updates it has done."""
        return self.rule not in ("SGD", "Lion")

    def _held(self) -> list[tuple[str, torch.Tensor, dict[str, Any]]]:
        pairs = zip(self.names, self._optimizer.param_groups)
        return [(name, parameter, self._optimizer.state.get(parameter, {})) for names, group in pairs for name, parameter in zip(names, group["params"])]

    def updates(self, trained: set[str], unused: set[str]) -> int:
        """How many updates the optimizer has done, as far as it counts them."""
        held = [state for name, _, state in self._held() if name in trained and name not in unused]
        counts = {int(state["step"]) if "step" in state else 0 for state in held} if self.counts else set()
        if len(counts) > 1:
            raise PlimsollError(f"parameters of the optimizer have done different numbers of steps ({sorted(counts)}), and here all do the same")
        return counts.pop() if counts else 0

    def load(self, write: Callable[..., None], trained: set[str], unused: set[str]) -> None:
        """Gives the engine what the optimizer has of state."""
        slots = _RULES[self.rule][2]
        held = [(name, state) for name, _, state in self._held() if name in trained and name not in unused]
        count = self.updates(trained, unused)
        for name, state in held:
            for key, slot in slots.items():
                if isinstance(state.get(key), torch.Tensor):
                    write(name, array(state[key].float()).reshape(-1) if state[key].dim() == 0 else array(state[key]), slot)
        if count:
            write("training.updates", np.array([count], dtype="float64"))

    def store(self, read: Callable[..., bytes], trained: set[str], unused: set[str]) -> None:
        """Gives the optimizer what the engine has of state."""
        (count,) = np.frombuffer(read("training.updates"), "float64")
        if count == 0:
            return
        for name, parameter, _ in self._held():
            if name not in trained or name in unused or not (self.counts or self._slots(name)):
                continue
            state = self._optimizer.state[parameter]
            if self.counts:
                known = state.get("step")
                if isinstance(known, torch.Tensor):
                    known.fill_(float(count))
                else:
                    state["step"] = torch.tensor(float(count), dtype=torch.get_default_dtype())
            for key, slot in self._slots(name):
                is_scalar = key == "mu_product"
                data = bytearray(read(name, slot))
                # The module may have been moved to another type since.
                wide = {4: torch.float32, 8: torch.float64}.get(len(data) // max(1, parameter.numel()), parameter.dtype)
                value = torch.frombuffer(data, dtype=torch.float32 if is_scalar else wide).reshape(() if is_scalar else parameter.shape)
                state[key] = value.to(parameter.device).clone(memory_format=torch.preserve_format)

    def _slots(self, name: str) -> list[tuple[str, str]]:
        """What is kept for a parameter with its group's settings."""
        settings = next(numbers for numbers, names in zip(self._began_with, self.names) if name in names)
        kept = dict(_RULES[self.rule][2])
        if "momentum_buffer" in kept and settings["momentum"] == 0 and not self._is_cycled:
            del kept["momentum_buffer"]
        if "grad_avg" in kept and not settings["centered"]:
            del kept["grad_avg"]
        return list(kept.items())

    def told_before_state(self, hook: Callable[..., None]) -> None:
        """Has a function called before the optimizer's state is asked for."""
        self._optimizer.register_state_dict_pre_hook(hook)

    def stepped(self) -> None:
        """Says that a step was done: schedulers warn where none was before their own."""
        self._optimizer._opt_called = True
