"""An ``AveragedModel`` whose averages are kept inside the step."""

from __future__ import annotations

from typing import Callable, Iterator

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel

from plimsoll.errors import PlimsollError
from plimsoll.torch._batch import array

__all__ = ["Average"]

#: The engine's name of a parameter's average.
_SLOT = "average"


class Average:
    """Exponential averages of a module's weights (EMA), as an ``AveragedModel`` has them."""

    def __init__(self, averaged: AveragedModel, model: torch.nn.Module) -> None:
        if not isinstance(averaged, AveragedModel):
            raise TypeError(f"averaged is a torch.optim.swa_utils.AveragedModel, not {type(averaged).__name__}")
        if averaged.use_buffers:
            raise PlimsollError("an AveragedModel with use_buffers=True averages buffers too, and here averages are of parameters; leave it out, and buffers are copied")
        shapes = lambda module: {name: tensor.shape for name, tensor in _parameters(module).items()}
        if shapes(averaged.module) != shapes(model):
            raise PlimsollError("averaged is an AveragedModel of another module: make it by AveragedModel(model, ...)")
        self.model, self._decay = averaged, _decay(averaged)
        #: How many updates it has averaged as far as the engine knows, and after how many of the optimizer's the engine begins; none where it goes on.
        self._count, self._begins = 0, None

    def settings(self, updates: int) -> tuple[float, int | None]:
        """The decay, and after how many updates the averages begin, where they have not."""
        return self._decay, None if int(self.model.n_averaged) else updates

    def begin(self, updates: int) -> None:
        """The engine begins, with these settings."""
        _, self._begins = self.settings(updates)

    def turns(self, updates: int) -> bool:
        """Whether the next update needs other settings than the engine was given: averages were loaded since, or taken away."""
        if int(self.model.n_averaged):
            return self._begins is not None and updates <= self._begins
        return updates != self._begins

    def load(self, write: Callable[..., None], trained: set[str]) -> None:
        """Gives the engine the averages there are."""
        self._count = int(self.model.n_averaged)
        if self._count:
            for name, tensor in self._held(trained):
                write(name, array(tensor), _SLOT)

    def store(self, read: Callable[..., bytes], trained: set[str], model: torch.nn.Module, updates: int) -> None:
        """Takes the averages of so many updates more."""
        if not updates:
            return
        if int(self.model.n_averaged) != self._count:
            raise PlimsollError(f"{self.changed}: leave that call out")
        averaged = dict(self._held(trained))
        now, kept = {**_parameters(model), **_buffers(model)}, {**_parameters(self.model.module), **_buffers(self.model.module)}
        with torch.no_grad():
            for name, tensor in averaged.items():
                data = bytearray(read(name, _SLOT))
                wide = {4: torch.float32, 8: torch.float64}.get(len(data) // max(1, tensor.numel()), tensor.dtype)
                tensor.copy_(torch.frombuffer(data, dtype=wide).reshape(tensor.shape))
            for name, tensor in kept.items():
                # A tied weight has come by its first name.
                if any(tensor is own for own in averaged.values()):
                    continue
                if self._count and isinstance(tensor, torch.nn.Parameter):
                    # What is not trained has the same value after each of them.
                    tensor.lerp_(now[name].to(tensor), 1 - self._decay**updates)
                else:
                    tensor.copy_(now[name])
            self._count += updates
            self.model.n_averaged.fill_(self._count)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What nobody else may write while steps are done."""
        yield self.changed, self.model.n_averaged
        for name, tensor in _parameters(self.model.module).items():
            yield f"the average of {name} was changed", tensor

    changed = "update_parameters() of the AveragedModel was called, and the Trainer that was given it keeps its averages in every step"

    def _held(self, trained: set[str]) -> list[tuple[str, torch.Tensor]]:
        return [(name, tensor) for name, tensor in _parameters(self.model.module).items() if name in trained]


def _parameters(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters(remove_duplicate=False))


def _buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_buffers(remove_duplicate=False))


def _decay(averaged: AveragedModel) -> float:
    """The decay of an exponential average, found out by asking: a ← d a + (1 - d) w, whatever the number of updates."""

    def after(average: float, weight: float, count: int) -> float:
        a, w, n = torch.tensor(average, dtype=torch.float64), torch.tensor(weight, dtype=torch.float64), torch.tensor(count)
        if averaged.multi_avg_fn is not None:
            averaged.multi_avg_fn([a], [w], n)
            return float(a)
        if averaged.avg_fn is not None:
            return float(averaged.avg_fn(a, w, n))
        return average + (weight - average) / (count + 1)

    decay = after(1.0, 0.0, 1)
    tries = [(0.0, 1.0, 1), (1.0, 0.0, 1000), (2.0, 3.0, 7)]
    if not 0 <= decay < 1 or any(not np.isclose(after(a, w, n), decay * a + (1 - decay) * w, rtol=1e-9) for a, w, n in tries):
        raise PlimsollError(
            "averages that are kept in every step are exponential: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999)); for an average of another kind, "
            "call sync() and then update_parameters()"
        )
    return decay
