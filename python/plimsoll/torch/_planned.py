"""Turns a PyTorch module and a batch into a training step that runs PyTorch's own kernels in the order of a plan within a memory limit.

The whole step, forward and backward, is one graph of ATen ops (what AOTAutograd makes of a module). Its tensors are measured without being made; every
distinct op is run once by itself to learn its time and scratch; the planner says which op runs when, which runs again, and what is free after it. What is
run are PyTorch's kernels on PyTorch's memory: a limit changes no bit, and the peak of its allocator is the plan's. The bits are those of eager PyTorch, too, wherever
AOTAutograd keeps eager's ops (on a card it takes another batch norm).
"""

from __future__ import annotations

import json
from typing import Any, Callable, Sequence

import torch
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from plimsoll import _native
from plimsoll._plan import _size
from plimsoll.errors import MemoryLimitError, PlimsollError
from plimsoll.torch._kept import Kept, Places, with_buffers_written
from plimsoll.torch._trace import Trace, resolved

__all__ = ["PlannedStep", "planned"]


class _Step(torch.nn.Module):
    """A module with its loss: what is differentiated."""

    def __init__(self, model: torch.nn.Module, loss_fn: Callable[..., torch.Tensor] | None, batch: Any) -> None:
        super().__init__()
        self.model = model
        self._loss_fn = loss_fn
        self._spec = pytree.tree_flatten(batch)[1]

    def forward(self, *leaves: Any) -> tuple[torch.Tensor]:
        batch = pytree.tree_unflatten(list(leaves), self._spec)
        return (loss_of(self.model, self._loss_fn, batch),)


def loss_of(model: torch.nn.Module, loss_fn: Callable[..., torch.Tensor] | None, batch: Any) -> torch.Tensor:
    """The loss of a batch: ``(x, y)`` is ``loss_fn(model(x), y)``, and without a ``loss_fn`` the module itself returns its loss."""
    if loss_fn is None:
        made = model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
        loss = getattr(made, "loss", None)
        if loss is None:
            loss = made["loss"] if isinstance(made, dict) else made[0] if isinstance(made, (tuple, list)) else made
    else:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise TypeError("with a loss_fn a batch is (x, y), or (x1, x2, …, y); leave loss_fn out where the module returns its loss")
        *inputs, label = batch
        loss = loss_fn(model(*inputs), label)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(f"a loss is one number; this one is {getattr(loss, 'shape', type(loss).__name__)}")
    return loss.reshape(())


class PlannedStep:
    """A training step within a memory limit: ``loss = step(batch)``, then the parameters have their gradients.

    Attributes:
        memory_limit: the limit in bytes; ``None`` without one.
        peak: the most bytes that are held at once: weights, buffers, the batch, gradients, activations and scratch.
        least: the least limit for which there is a plan.
        unlimited: what the step takes where nothing runs twice.
        recomputed: how many ops run again.
        time_multiple: the predicted time as a multiple of that of all ops run once.
        remarks: what was estimated because it could not be measured.
    """

    def __init__(self, module: _Step, batch: Any, memory: str | int | None) -> None:
        leaves = pytree.tree_flatten(batch)[0]
        self._module = module
        self._leaves = [_form(leaf) for leaf in leaves]
        graph, self._signature = _exported(module, leaves)
        self._graph = graph
        self._places = {node.name: place for place, node in enumerate(graph.graph.nodes)}
        self._state = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
        self._held_at = Places(module)
        self._constants = {name: value for name, value in vars(graph).items() if isinstance(value, torch.Tensor)}
        trace = Trace(graph, self._given(leaves), type(module.model).__name__)
        self.remarks = trace.remarks
        limit = None if memory is None else str(memory)
        plan = json.loads(_native.plan_traced(trace.text(), limit))
        self.memory_limit = plan["memory_limit_bytes"] if memory is not None else None
        self.least = plan["floor_bytes"]
        if not plan["feasible"]:
            raise MemoryLimitError(
                f"a memory limit of {_size(plan['memory_limit_bytes'])} cannot be kept: the least for this step is {_size(self.least)} "
                f"({self.least} bytes), of which {_size(trace.constant_bytes)} are weights, buffers and the batch",
                least=self.least,
                limit=plan["memory_limit_bytes"],
                holders=trace.largest,
            )
        self.peak = plan["peak_bytes"]
        self.unlimited = plan["unlimited_bytes"]
        self.recomputed = plan["recomputed_ops"]
        self.time_multiple = plan["time_multiple"]
        self._order = [
            (trace.ops[one["op"]], [trace.owner[s] for s in one["last"] if s in trace.owner]) for one in plan["instructions"]
        ]

    def __repr__(self) -> str:
        limit = "no memory limit" if self.memory_limit is None else f"memory limit {_size(self.memory_limit)}"
        return (
            f"<plimsoll.torch.PlannedStep: {limit}, peak {_size(self.peak)}, least {_size(self.least)}, unlimited {_size(self.unlimited)}; "
            f"{self.recomputed} ops run again, {self.time_multiple:.3f} × the time>"
        )

    def __call__(self, batch: Any) -> torch.Tensor:
        """Runs the step on a batch of the same shapes. The loss is returned; the parameters have their gradients; buffers are updated.

        Gradients are set and not added up: call ``optimizer.zero_grad()`` before.
        """
        leaves = pytree.tree_flatten(batch)[0]
        forms = [_form(leaf) for leaf in leaves]
        if forms != self._leaves:
            raise PlimsollError(f"the step was planned for a batch of {self._leaves}; this one is {forms}: plan it anew")
        there = self._held_at.now()
        for name, before in self._state.items():
            now = there.get(name)
            if now is before:
                continue
            if _form(now) != _form(before):
                raise PlimsollError(f"{name.removeprefix('model.')} of the module was {_form(before)} when the step was planned, and is {_form(now)}: plan it anew")
            self._state[name] = now
        held = [name for name in self._signature.parameters if self._state[name].grad is not None]
        if held:
            raise PlimsollError(f"{held[0]} has a gradient already, and this step does not add to it: call optimizer.zero_grad() first")
        with torch.no_grad():
            return self._run(leaves)

    def _given(self, leaves: Sequence[Any]) -> dict[torch.fx.Node, Any]:
        """What is there before the step: weights, buffers, constants, the batch."""
        signature, given, rest = self._signature, {}, iter(leaves)
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                name = signature.inputs_to_parameters.get(node.name) or signature.inputs_to_buffers.get(node.name)
                given[node] = self._state[name] if name else next(rest)
            elif node.op == "get_attr":
                given[node] = self._constants[node.target]
        return given

    def _run(self, leaves: Sequence[Any]) -> torch.Tensor:
        signature, values = self._signature, self._given(leaves)

        def value(node: torch.fx.Node) -> Any:
            if node in values:
                return values[node]
            # A view, or one of several results: made anew from what it looks at, which costs nothing.
            return node.target(*resolved(node.args, value), **resolved(node.kwargs, value))

        for node, freed in self._order:
            made = node.target(*resolved(node.args, value), **resolved(node.kwargs, value))
            values[node] = list(made) if isinstance(made, (tuple, list)) else made
            del made
            for owner, index in freed:
                if index is None:
                    del values[owner]
                else:
                    values[owner][index] = None
        outputs = next(iter(reversed(self._graph.graph.nodes))).args[0]
        made = {node.name: value(node) for node in outputs if isinstance(node, torch.fx.Node)}
        values.clear()
        for name, buffer in signature.buffers_to_mutate.items():
            self._state[buffer].copy_(made[name])
        # A parameter that is used under several names has a gradient for each; they are added in the order in which they were made, as by eager.
        for name in sorted(signature.backward_signature.gradients_to_parameters, key=self._places.__getitem__):
            parameter = self._state[signature.backward_signature.gradients_to_parameters[name]]
            if parameter.grad is None:
                parameter.grad = made[name]
            else:
                parameter.grad.add_(made[name])
        return made[signature.user_outputs[0]]


def planned(
    model: torch.nn.Module,
    loss_fn: Callable[..., torch.Tensor] | None,
    batch: Any,
    memory: str | int | None = None,
) -> PlannedStep:
    """Plans a training step of a PyTorch module within a memory limit, to be run by PyTorch's own kernels.

    The limit counts what PyTorch's allocator holds for the step: weights, buffers, the batch, gradients, activations and the scratch of kernels. It does not count
    the process, the context of a card, or the optimizer's state. Of a card's memory it counts bytes as they are requested (``requested_bytes`` of
    ``torch.cuda.memory_stats``): the caching allocator may hold up to 1 MiB more for each block, unsplit. Random ops (dropout) run once and are kept.

    A limit changes no bit of values and gradients. Without one they are those of eager PyTorch wherever AOTAutograd keeps eager's ops; on a card it takes another
    batch norm, which differs in the last digits.

    Args:
        model: the module, on the device where it is to run, in the mode (``train()`` or ``eval()``) in which it is to run.
        loss_fn: of the module's output and the last part of a batch; ``None`` where the module returns its loss.
        batch: a batch of the shapes that will come: ``(x, y)``, or what the module takes.
        memory: the limit, as ``"6GiB"`` or in bytes; ``None`` for what the step takes where nothing runs twice.

    Raises:
        MemoryLimitError: no plan keeps to the limit; ``least`` says what would do.

    Example:
        >>> import torch
        >>> from plimsoll.torch import planned
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> step = planned(model, torch.nn.functional.mse_loss, (torch.ones(4, 8), torch.zeros(4, 1)), memory="1MiB")
        >>> loss = step((torch.ones(4, 8), torch.zeros(4, 1)))
        >>> model[0].weight.grad.shape
        torch.Size([8, 8])
    """
    return PlannedStep(_Step(model, loss_fn, batch), batch, memory)


def _exported(module: _Step, leaves: Sequence[Any]) -> tuple[torch.fx.GraphModule, Any]:
    """Forward and backward as one graph. Parameters that the loss does not depend on are no parameters while it is made: the exporter refuses them."""
    with Kept(module):
        module.forward = with_buffers_written(module, module.forward)
        unused = _unused(module, leaves)
        try:
            for parameter in unused:
                parameter.requires_grad_(False)
            return aot_export_module(module, tuple(leaves), trace_joint=True, output_loss_index=0)
        finally:
            for parameter in unused:
                parameter.requires_grad_(True)


def _unused(module: _Step, leaves: Sequence[Any]) -> list[torch.nn.Parameter]:
    """Parameters that get no gradient, found out with sketches of tensors, which take no memory."""
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    if not trained:
        raise PlimsollError("no parameter of the module is trained: each has requires_grad=False")
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        sketches = {name: fake.from_tensor(value) for name, value in {**dict(module.named_parameters()), **dict(module.named_buffers())}.items()}
        given = [fake.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        (loss,) = torch.func.functional_call(module, sketches, tuple(given))
        if not loss.requires_grad:
            raise PlimsollError("the loss depends on no parameter that is trained")
        gradients = torch.autograd.grad(loss, [sketches[name] for name in trained], allow_unused=True)
    return [value for value, gradient in zip(trained.values(), gradients) if gradient is None]


def _form(leaf: Any) -> Any:
    """What two batches must agree on."""
    return (str(leaf.dtype), tuple(leaf.shape), str(leaf.device)) if isinstance(leaf, torch.Tensor) else leaf
