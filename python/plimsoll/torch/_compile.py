"""Gives ``torch.compile`` a partitioner that keeps for the backward pass what a plan within a memory limit keeps."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any, Sequence

import torch
from torch._functorch import partitioners
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from plimsoll import _native
from plimsoll._plan import _size
from plimsoll.errors import MemoryLimitError, PlimsollError
from plimsoll.torch._joined import Joined
from plimsoll.torch._trace import Trace

__all__ = ["Wish", "compile"]


@dataclasses.dataclass
class Wish:
    """What was planned for one compiled graph: a wish, since the compiler's fused kernels hold other bytes than the ops that were planned."""

    #: The limit, the plan's most, the least for which there is a plan, and what is held where nothing runs twice, in bytes.
    limit: int
    peak: int
    least: int
    unlimited: int
    #: How many values are kept from the forward pass to the backward pass, and what they take.
    kept: int
    kept_bytes: int

    def __str__(self) -> str:
        return (
            f"wished: {_size(self.peak)} of {_size(self.limit)} ({_size(self.unlimited)} unlimited, least {_size(self.least)}); {self.kept} values of "
            f"{_size(self.kept_bytes)} are kept for the backward pass. The compiler's kernels may take more or less"
        )


def compile(model: Any, memory: str | int, **settings: Any) -> Any:
    """``torch.compile`` with what is kept for the backward pass chosen by a plan within a memory limit.

    The limit is a wish and no contract: the compiler fuses and orders kernels after the choice, which moves the peak either way. Where a limit must be
    kept, use :class:`Trainer` or :func:`planned`. It counts weights, gradients, the batch, activations and scratch of each graph that is compiled; not the optimizer's
    state. What was planned is in ``wishes`` of what is returned, one a graph, once it has run.

    Args:
        model: a module or a function, as for ``torch.compile``.
        memory: the limit, as ``"6GiB"`` or in bytes.
        settings: further ones of ``torch.compile``. Shapes are taken as fixed (``dynamic=False``).

    Raises:
        MemoryLimitError: at the first call, where there is no plan; ``least`` says what would do.
    """
    options = dict(settings.pop("options", None) or {})
    if settings.pop("dynamic", None):
        raise ValueError("a plan is for one shape: compile with dynamic=False")
    if settings.get("backend", "inductor") != "inductor":
        raise ValueError(f"the partitioner is one of the backend inductor, not of {settings['backend']}")
    partitioner = _Partitioner(memory)
    # What was compiled before, under another limit say, must not be taken from a cache.
    compiled_with = lambda uncached: torch.compile(model, dynamic=False, options={**options, "custom_partitioner_fn": partitioner, **uncached}, **settings)
    try:
        compiled = compiled_with({"force_disable_caches": True})
    except RuntimeError:
        # Some versions of PyTorch do not take that as an option, and have no cache around this one.
        compiled = compiled_with({"fx_graph_cache": False, "fx_graph_remote_cache": False})
    compiled.wishes = partitioner.wishes
    return compiled


class _Partitioner(CustomPartitionerFn):
    """Cuts the graph of a whole step into its passes, at what a plan holds between them."""

    def __init__(self, memory: str | int) -> None:
        self._memory = str(memory)
        self.wishes: list[Wish] = []

    def uuid(self) -> Any:
        # Times are measured, so that the same graph may be cut elsewhere: nothing is taken from a cache.
        return None

    def __call__(self, gm: torch.fx.GraphModule, joint_inputs: Sequence[object], **settings: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        forward = settings["num_fwd_outputs"]
        given: dict[torch.fx.Node, Any] = {}
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                given[node] = node.meta["val"]
                if isinstance(given[node], (torch.SymInt, torch.SymFloat)):
                    raise PlimsollError("a plan is for one shape, and this graph has sizes that change: compile with dynamic=False")
            elif node.op == "get_attr":
                given[node] = getattr(gm, node.target)
        trace = Joined(Trace(gm, given, "graph"))
        plan = json.loads(_native.plan_traced(trace.text(), self._memory))
        if not plan["feasible"]:
            least, limit = plan["floor_bytes"], plan["memory_limit_bytes"]
            raise MemoryLimitError(f"a memory limit of {_size(limit)} cannot be kept: the least for this graph is {_size(least)} ({least} bytes)", least=least, limit=limit, holders=trace.largest)
        kept = _held_between(gm, trace, plan["instructions"])
        self.wishes.append(Wish(
            limit=plan["memory_limit_bytes"], peak=plan["peak_bytes"], least=plan["floor_bytes"], unlimited=plan["unlimited_bytes"],
            kept=len(kept), kept_bytes=sum(_bytes(node) for node in kept),
        ))
        inputs = [node for node in gm.graph.nodes if node.op == "placeholder" and not _is_tangent(node)]
        known = inspect.signature(partitioners._extract_fwd_bwd_modules).parameters
        more = {"static_lifetime_input_nodes": None} if "static_lifetime_input_nodes" in known else {}
        return partitioners._extract_fwd_bwd_modules(gm, [*inputs, *kept], saved_sym_nodes=[], num_fwd_outputs=forward, **more)


def _is_tangent(node: torch.fx.Node) -> bool:
    return node.op == "placeholder" and "tangent" in str(node.target)


def _bytes(node: torch.fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def _held_between(gm: torch.fx.GraphModule, trace: Joined, instructions: list[dict[str, Any]]) -> list[torch.fx.Node]:
    """The values that are held when the backward pass begins: before the first op that a gradient leads to and that reads more than a trifle of the forward pass.

    What counts labels and the like depends on little, and a plan may put it anywhere: what such ops read before is kept, too.
    """
    after: set[torch.fx.Node] = set()
    for node in gm.graph.nodes:
        if _is_tangent(node) or any(one in after for one in node.all_input_nodes):
            after.add(node)
    held: dict[int, tuple[torch.fx.Node, int | None]] = {}
    early: dict[int, tuple[torch.fx.Node, int | None]] = {}
    by_op: dict[torch.fx.Node, list[int]] = {}
    for number, (node, _) in trace.owner.items():
        by_op.setdefault(node, []).append(number)
    trifle = sum(trace.sizes[number] for number, (node, _) in trace.owner.items() if node not in after and number in trace.sizes) // 1000
    for one in instructions:
        node = trace.ops[one["op"]]
        if node in after:
            read = {number: held[number] for number in trace.read_by[one["op"]] if number in held}
            if any(trace.sizes[number] > trifle for number in read):
                break
            early |= read
        else:
            held |= {number: trace.owner[number] for number in by_op.get(node, [])}
        for number in one["last"]:
            held.pop(number, None)
    found = []
    for node, index in {**early, **held}.values():
        if index is None:
            found.append(node)
            continue
        parts = [user for user in node.users if user.op == "call_function" and user.args[1:2] == (index,)]
        found += parts[:1]
    order = {node: place for place, node in enumerate(gm.graph.nodes)}
    return sorted(found, key=order.__getitem__)
