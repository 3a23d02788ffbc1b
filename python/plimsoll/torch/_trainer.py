"""Turns a PyTorch module, its loss and its optimizer into a training of the engine inside a memory limit."""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Callable, Iterable

import numpy as np
import torch

from plimsoll import _native
from plimsoll._plan import Plan
from plimsoll.errors import PlimsollError
from plimsoll.torch._average import Average
from plimsoll.torch._batch import Batch
from plimsoll.torch._check import Checked, check
from plimsoll.torch._export import ALONE
from plimsoll.torch._functions import Functions
from plimsoll.torch._optim import Optimizer
from plimsoll.torch._program import Program, loss_program, output_program
from plimsoll.torch._settled import Settled
from plimsoll.torch._sizes import Sizes

__all__ = ["Trainer"]


class Trainer:
    """Trains a PyTorch module, unchanged, inside a memory limit.

    The module and its loss are exported once (``torch.export``), checked against eager PyTorch on a few samples of the first batch, and handed to the
    engine, which has its own kernels and keeps weights, buffers and the optimizer's state until :meth:`sync` gives them back. The
    module is trained in training mode; submodules that you put into ``eval()`` stay there.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    >>> trainer = Trainer(model, torch.nn.functional.cross_entropy, optimizer, memory="200MiB")
    >>> x = torch.randn(32, 2)
    >>> batch = (x, (x[:, 1] > x[:, 0]).long())
    >>> first = trainer.step(batch)
    >>> for _ in range(50):
    ...     last = trainer.step(batch)
    >>> last < first
    True
    >>> trainer.sync()

    Args:
        model: the module.
        loss_fn: of the module's output and the last part of a batch; ``None`` where the module returns its loss.
        optimizer: SGD, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop or Adagrad of ``torch.optim``, or a Lion, with its parameter groups. Learning rates that
            change between steps are followed, so schedulers work as they do.
        memory: the most that the run may take, beside what Python and PyTorch held before: ``"6GiB"`` or a number of bytes.
        device: ``cpu``, ``cuda`` or ``cuda:1``; without a word, where the module is.
        host_memory: the most of the host's memory that a run on a card may take.
        clip_norm: gradients longer than this, all together, are shortened to it, as by ``torch.nn.utils.clip_grad_norm_``.
        clip_value: every element of a gradient is held between minus and plus this.
        accumulate: so many steps make one update, with the mean of their gradients.
        scaler: where the module computes in float16 (``autocast``), its loss is scaled so that small gradients do not vanish, steps whose gradients are not finite are left out, and
            :meth:`sync` gives the scale back.
        averaged: an ``AveragedModel`` of the module with an exponential average (EMA): it is kept inside the step and in the limit, in the place of ``update_parameters()``, and
            :meth:`sync` gives it back.
        micro_batch: so many samples run at a time; without a word, the plan says.
        exact: how far plans may depart from the bits of a run without a limit: ``bitwise``, ``reassociated`` or ``approximate``.
        dynamic_shapes: for each tensor of a batch the axes that change, as for ``torch.export.export``; without a word, the first axis.
        seed: of dropout and other random ops; without a word, ``torch.initial_seed()``.
        check: whether gradients are compared with eager PyTorch before the first step, and a difference refused.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: Callable[..., torch.Tensor] | None,
        optimizer: torch.optim.Optimizer,
        memory: str | int | None = None,
        device: str | None = None,
        *,
        host_memory: str | int | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        scaler: torch.amp.GradScaler | None = None,
        averaged: torch.optim.swa_utils.AveragedModel | None = None,
        micro_batch: int | None = None,
        exact: str = "reassociated",
        dynamic_shapes: Any = None,
        seed: int | None = None,
        check: bool = True,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"a torch.nn.Module belongs here, not {type(model).__name__}")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"an optimizer of torch.optim belongs here, not {type(optimizer).__name__}")
        if accumulate < 1:
            raise ValueError(f"accumulate is a number of steps from 1 on, not {accumulate}")
        if device is None:
            first = next(model.parameters(), None)
            device = "cpu" if first is None else str(first.device)
        self._model, self._loss_fn = model, loss_fn
        text = lambda size: None if size is None else str(size)
        self._settings = {
            "name": type(model).__name__,
            "memory": text(memory),
            "host_memory": text(host_memory),
            "device": device,
            "exact": exact,
            "micro_batch": micro_batch,
            "clip_norm": clip_norm,
            "clip_value": clip_value,
            "accumulate": accumulate,
            "scaled": scaler is not None and scaler.is_enabled(),
            "seed": (torch.initial_seed() if seed is None else seed) & (2**63 - 1),
        }
        self._dynamic_shapes, self._check = dynamic_shapes, check
        self._scaler = _known(scaler) if self._settings["scaled"] else None
        #: What the last loss was scaled by, and whether its update was left out since gradients were not finite; only with a ``scaler``.
        self.loss_scale: float | None = None
        self.skipped = False
        named = [*_named(model, "")]
        if isinstance(loss_fn, torch.nn.Module):
            named += _named(loss_fn, "loss_fn.")
        names: dict[torch.Tensor, str] = {}
        for name, parameter in named:
            names.setdefault(parameter, name)
        self._average = None if averaged is None else Average(averaged, model)
        #: How many updates there were when the module last had all that the engine has.
        self._updates = 0
        self._optimizer = Optimizer(optimizer, names)
        self._program: Program | None = None
        self._settled: Settled | None = None
        #: Of the programs for steps, evaluations and predictions, the batches that they are right for.
        self._sizes: dict[str, Sizes] = {}
        self._native: Any = None
        self._form: Any = None
        self._words = ""
        self._checked: Checked | None = None
        self._trained: set[str] = set()
        self._begun = False
        #: Steps since the module had all that the engine has; none when it was never asked. What the module's tensors were then, by PyTorch's own count of changes.
        self._behind: int | None = None
        self._versions: list[tuple[str, torch.Tensor, int]] = []
        self._constants: dict[str, int] = {}
        self._is_exporting = False
        self._prediction: tuple[Program, Any, str] | None = None
        self._evaluates = False
        #: The norm of the last step's gradients before they were clipped, where they are clipped by it.
        self.gradient_norm: float | None = None

    def plan(self, batch: Any) -> Plan:
        """What a step on such a batch takes, before it runs: ``print`` it. Raises :class:`plimsoll.MemoryLimitError` where there is no plan."""
        batch = self._ready(batch)
        return Plan(self._native.plan(self._groups(), batch.shapes))

    def step(self, batch: Any) -> float:
        """One step on a batch; its loss."""
        batch = self._ready(batch)
        self._begin(batch)
        if self._optimizer.turns() or self._average_turns():
            # What was changed in the module since it had all is a part of what goes on.
            self._take()
            self.sync()
            self._native.end()
            self._begun = False
            self._begin(batch)
        self._take()
        self._behind = (self._behind or 0) + 1
        loss, self.gradient_norm, self.loss_scale, self.skipped = self._native.step(batch.arrays(self._settings["device"]), self._optimizer.rates())
        self._optimizer.stepped()
        for notice in self._native.notices():
            warnings.warn(notice, stacklevel=2)
        return loss

    def fit(
        self,
        loader: Iterable[Any],
        epochs: int = 1,
        *,
        validation: Iterable[Any] | None = None,
        metrics: dict[str, Callable[[Any, Any], Any]] | None = None,
        on_step: Callable[[int, float], None] | None = None,
        on_epoch: Callable[[int, dict[str, float]], None] | None = None,
        verbose: int = 1,
    ) -> list[dict[str, float]]:
        """Trains on all batches of a loader, so many times. Of each epoch the mean loss, and that over ``validation`` where there is one, with ``metrics`` as
        of :meth:`evaluate`.

        ``on_step(step, loss)`` and ``on_epoch(epoch, losses)`` are called after each, with numbers from 0 on: a scheduler's ``step()``
        belongs in one of them.
        """
        history: list[dict[str, float]] = []
        steps = 0
        for epoch in range(epochs):
            total = samples = 0.0
            for batch in loader:
                loss = self.step(batch)
                count = Batch(batch).samples
                total, samples = total + loss * count, samples + count
                if on_step is not None:
                    on_step(steps, loss)
                steps += 1
            if not samples:
                raise PlimsollError("the loader gave no batch" + (" in its second pass: a generator gives its batches once" if epoch else ""))
            losses = {"loss": total / samples}
            if validation is not None:
                found = self.evaluate(validation, metrics)
                losses |= {f"val_{name}": value for name, value in (found if isinstance(found, dict) else {"loss": found}).items()}
            history.append(losses)
            if verbose:
                print(f"epoch {epoch + 1}/{epochs}  " + "  ".join(f"{name} {value:.4f}" for name, value in losses.items()), flush=True)
            if on_epoch is not None:
                on_epoch(epoch, losses)
        return history

    def evaluate(self, loader: Iterable[Any], metrics: dict[str, Callable[[Any, Any], Any]] | None = None) -> float | dict[str, float]:
        """The mean loss over the batches of a loader, with the module as it is in ``eval()``. Nothing is changed.

        With ``metrics``, functions by name, a dictionary of all means, ``loss`` first. Each function is given what the module returns and the labels, and gives one
        number for them; where the module returns its loss, it is given the whole batch in the place of labels.
        """
        totals = {"loss": 0.0, **dict.fromkeys(metrics or {}, 0.0)}
        samples = 0
        for given in loader:
            batch = self._ready(given, is_step=False)
            self._begin(batch)
            if not self._evaluates:
                program = self._in_eval(lambda: loss_program(self._model, self._loss_fn, batch, self._dynamic_shapes))
                self._native.set_evaluation(program.handed())
                self._sizes["evaluations"] = Sizes(program, self._in_eval)
                self._evaluates = True
            self._sizes["evaluations"].follow(batch)
            self._take()
            totals["loss"] += self._native.evaluate(batch.arrays(self._settings["device"])) * batch.samples
            if metrics:
                inputs, labels = (given, given) if self._loss_fn is None else (tuple(given[:-1]), given[-1])
                outputs = self.predict(inputs)
                for name, metric in metrics.items():
                    totals[name] += float(metric(outputs, labels)) * batch.samples
            samples += batch.samples
        if not samples:
            raise PlimsollError("the loader gave no batch")
        means = {name: total / samples for name, total in totals.items()}
        return means if metrics else means["loss"]

    def predict(self, inputs: Any) -> Any:
        """What the module, as it is in ``eval()``, returns for inputs: a tensor, or a tuple or dict of all that it takes."""
        if not self._begun:
            raise PlimsollError("nothing is trained yet: call the module itself, or do a step first")
        given = Batch((inputs,) if isinstance(inputs, (torch.Tensor, np.ndarray)) else tuple(inputs) if isinstance(inputs, list) else inputs)
        self._take()
        if self._prediction is None:
            program = self._in_eval(lambda: output_program(self._model, given))
            self._native.set_prediction(program.handed())
            self._prediction = (program, given.form(), given.words())
            self._sizes["predictions"] = Sizes(program, self._in_eval)
        program, form, words = self._prediction
        if given.form() != form:
            raise PlimsollError(f"predictions were begun with {words}; these inputs are {given.words()}")
        self._sizes["predictions"].follow(given)
        metas = [node.meta["val"] for node in _outputs(program.exported)]
        made = []
        for (dtype, shape, data), meta in zip(self._native.predict(given.arrays(self._settings["device"])), metas):
            value = torch.from_numpy(np.frombuffer(bytearray(data), dtype).reshape(shape))
            made.append(value.to(meta.dtype))
        return program.unflattened(made)

    def sync(self) -> None:
        """Gives weights and buffers back to the module, and the optimizer's state to the optimizer. Training can go on, here or there."""
        if not self._begun:
            return
        program = self._program
        assert program is not None
        trained, kept, changed = self._native.names()
        program.follow(self._trained)
        with torch.no_grad():
            for name in [*trained, *(name for name in kept if name in set(changed))]:
                tensor = program.tensors[name]
                data = bytearray(self._native.read(name))
                # The module may have been moved to another type since.
                tensor.copy_(torch.frombuffer(data, dtype=program.types[name]).reshape(tensor.shape))
        self._optimizer.store(self._native.read, self._trained, self._unused)
        if self._average is not None:
            updates = self._count()
            self._average.store(self._native.read, self._trained - self._unused, self._model, updates - self._updates)
            self._updates = updates
        if self._scaler is not None and self.loss_scale is not None:
            self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": self.loss_scale})
        self._behind = 0
        self._remember()

    def _remember(self) -> None:
        assert self._program is not None
        held = [(f"{name} of the module was changed", tensor) for name, tensor in self._program.tensors.items()]
        if self._average is not None:
            held += self._average.tensors()
        self._versions = [(what, tensor, tensor._version) for what, tensor in held]
        self._constants = {name: self._program.tensors[name]._version for name in self._program.constants}

    def _take(self) -> None:
        """Goes on with what the module and the optimizer have, where they had all that the engine has: both are the user's to change then."""
        program = self._program
        assert program is not None and self._settled is not None
        self._settled.check()
        changed = next((what for what, tensor, version in self._versions if tensor._version != version), None)
        if self._behind is None or self._behind > 0:
            if changed is None and (name := next(iter(program.replaced()), None)) is not None:
                changed = f"{name} of the module was replaced"
            if changed is not None:
                done = "steps were done" if self._behind != 1 else "a step was done"
                raise PlimsollError(f"{changed} while {done} here, of which the module knows nothing: call sync() first, then change it, and training goes on from there")
            return
        program.follow(self._trained)
        if (name := next((name for name, version in self._constants.items() if program.tensors[name]._version != version), None)) is not None:
            raise PlimsollError(f"{name} of the module was changed: it is no parameter and no buffer, so the exported program has it as it was; make it a buffer, or make a new Trainer")
        trained, kept, _ = self._native.names()
        # What is not trained, too: a mask, a temperature, the weights of a frozen part that were loaded since.
        for name in [*trained, *(name for name in kept if name not in self._constants)]:
            self._native.write(name, program.read(name).reshape(-1))
        self._load()
        self._behind = None
        self._remember()

    def _load(self) -> None:
        """Gives the engine what the optimizer and the scaler have of state."""
        self._optimizer.load(self._native.write, self._trained, self._unused)
        if self._average is not None:
            self._average.load(self._native.write, self._trained - self._unused)
            self._updates = self._count()
        if self._scaler is not None:
            self._native.write("training.loss_scale", np.full((), self._scaler.get_scale(), np.float32))

    def _count(self) -> int:
        (count,) = np.frombuffer(self._native.read("training.updates"), "float64")
        return int(count)

    def _average_turns(self) -> bool:
        if self._average is None or self._behind != 0:
            return False
        return self._average.turns(self._done())

    def _done(self) -> int:
        """How many updates there were, as the engine counts or will count them."""
        return self._optimizer.updates(self._trained, self._unused) if self._optimizer.counts or not self._begun else self._count()

    def _groups(self) -> list[dict[str, Any]]:
        average = None if self._average is None else self._average.settings(self._done())
        return [{**group, "average": average} for group in self._optimizer.groups(self._trained)]

    def __getstate__(self) -> Any:
        raise TypeError("a Trainer cannot be pickled or copied: call sync(), and keep the state_dict() of the module and of the optimizer")

    @property
    def _unused(self) -> set[str]:
        return set() if self._checked is None else self._checked.unused

    def _ready(self, given: Any, is_step: bool = True) -> Batch:
        """A batch, and the program for it."""
        batch = given if isinstance(given, Batch) else Batch(given)
        if self._native is None:
            self._export(batch)
        elif batch.form() != self._form:
            raise PlimsollError(f"the module was exported for batches {self._words}; this one is {batch.words()}: make a new Trainer for it")
        if is_step:
            self._sizes["steps"].follow(batch)
        return batch

    def _export(self, batch: Batch) -> None:
        if not self._model.training:
            warnings.warn("the module is in eval() as a whole: it is trained in training mode, as after train(); for training without dropout set its rates to 0, or put parts alone into eval()", stacklevel=3)
            self._model.train()
        # Whoever asks may be in a no_grad region.
        with ALONE, torch.inference_mode(False), torch.enable_grad():
            program, native = self._either_way(batch)
        if self._scaler is None and program.has_float16:
            warnings.warn("the module computes in float16 without a scaler: small gradients become 0; use bfloat16, or pass scaler=torch.amp.GradScaler()", stacklevel=4)
        self._program, self._native, self._form, self._words = program, native, batch.form(), batch.words()
        self._sizes["steps"] = Sizes(program)
        self._settled = Settled(program)

    def _either_way(self, batch: Batch) -> tuple[Program, Any]:
        """With custom functions as PyTorch exports them, or by their slopes."""
        functions = Functions()
        try:
            return self._compared(batch, functions)
        except PlimsollError as error:
            if not (functions.seen and self._check):
                raise
            try:
                return self._compared(batch, Functions(by_slope=True))
            except PlimsollError:
                raise error from None

    def _compared(self, batch: Batch, functions: Functions) -> tuple[Program, Any]:
        """The program with the engine's training of it, compared with eager PyTorch."""
        with functions:
            program = loss_program(self._model, self._loss_fn, batch, self._dynamic_shapes)
        moved = {name for names in self._optimizer.names for name in names}
        # Tied weights go by their first name in the program, and by any in the optimizer.
        first = {name: program.tied.get(name, name) for name in program.tensors}
        moved = {first.get(name, name) for name in moved}
        is_trained = lambda name: isinstance(program.tensors[name], torch.nn.Parameter) and program.tensors[name].requires_grad
        own = [name for name in program.tensors if name not in program.tied and is_trained(name)]
        frozen = [name for name in own if name not in moved]
        self._trained = {name for name in own if name in moved}
        if not self._trained:
            raise PlimsollError("no parameter of the module is trained: each has requires_grad=False, or is in no group of the optimizer")
        native = _native.TorchTraining(program.handed(), {**self._settings, "frozen": frozen})
        if self._check:
            self._checked = check(program, native, batch, self._trained)
        return program, native

    def _begin(self, batch: Batch) -> None:
        if self._begun:
            return
        self._optimizer.begin()
        self._native.begin(self._groups(), batch.shapes)
        if self._average is not None:
            self._average.begin(self._done())
        self._load()
        if self._behind is None:
            # Whoever asks for their state has it as it is.
            self._model.register_state_dict_pre_hook(_Synced(self))
            self._optimizer.told_before_state(_Synced(self))
            if self._average is not None:
                self._average.model.register_state_dict_pre_hook(_Synced(self))
        self._begun, self._behind = True, None
        self._remember()

    def _in_eval(self, make: Callable[[], Any]) -> Any:
        """Makes a program of the module in eval mode, say, and puts every part of it back into the mode that it had."""
        modes = {part: part.training for part in self._model.modules()}
        self._is_exporting = True
        try:
            self._model.eval()
            return make()
        finally:
            self._is_exporting = False
            for part, mode in modes.items():
                part.training = mode


class _Synced:
    """A hook that brings a module or an optimizer up to date before its state is asked for. A copy of it, as of the module, does nothing."""

    def __init__(self, trainer: Trainer | None = None) -> None:
        self._trainer = None if trainer is None else weakref.ref(trainer)

    def __call__(self, *_: Any) -> None:
        trainer = None if self._trainer is None else self._trainer()
        if trainer is not None and trainer._behind and not trainer._is_exporting:
            trainer.sync()

    def __reduce__(self) -> Any:
        return _Synced, ()


def _known(scaler: torch.amp.GradScaler) -> torch.amp.GradScaler:
    """A scaler whose settings are followed; others are refused."""
    settings = (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
    if settings != (2.0, 0.5, 2000):
        raise PlimsollError(f"a GradScaler doubles its scale after 2000 steps and halves it here; this one has growth, backoff and interval of {settings}")
    return scaler


def _named(module: torch.nn.Module, before: str) -> list[tuple[str, torch.nn.Parameter]]:
    return [(before + name, parameter) for name, parameter in module.named_parameters(remove_duplicate=False)]


def _outputs(exported: Any) -> list[torch.fx.Node]:
    """The nodes that give the tensors that a program returns."""
    nodes = {node.name: node for node in exported.graph.nodes}
    specs = exported.graph_signature.output_specs
    return [nodes[spec.arg.name] for spec in specs if spec.kind.name == "USER_OUTPUT" and not hasattr(spec.arg, "value")]
