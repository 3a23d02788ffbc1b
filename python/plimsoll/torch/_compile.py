"""Gives ``torch.compile`` a partitioner that takes a memory limit in bytes: PyTorch's own ways to keep less where one is within it, a plan of ours below that."""

from __future__ import annotations

import dataclasses
import inspect
import json
import warnings
from typing import Any, Sequence

import torch
from torch._functorch import partitioners
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from plimsoll import _native
from plimsoll._plan import _size
from plimsoll.errors import MemoryLimitError, PlimsollError
from plimsoll.torch._cuts import Cut, cut_of, own_cuts
from plimsoll.torch._joined import Joined
from plimsoll.torch._trace import Trace

__all__ = ["Wish", "compile"]


@dataclasses.dataclass
class Wish:
    """What was chosen for one compiled graph: a wish, since the compiler's fused kernels hold other bytes than the ops that were looked at."""

    #: The limit, the most that is held, the least that was found, and what PyTorch holds by itself, in bytes.
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
    """``torch.compile`` with what is kept for the backward pass chosen for a memory limit.

    PyTorch's ``activation_memory_budget`` is a share without a unit; here the share that keeps most within the limit is found. Where that runs products again, or no share
    reaches the limit, a plan of our own says what is kept, if it is faster. The limit is a wish and no contract: the compiler fuses and orders kernels after the choice, which moves the peak either way. Where a limit must be
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
    """Cuts the graph of a whole step into its passes so that they hold no more than a limit, as far as can be foreseen."""

    def __init__(self, memory: str | int) -> None:
        self._limit = _native.parsed_bytes(str(memory))
        self.wishes: list[Wish] = []

    def uuid(self) -> Any:
        # Times are measured, so that the same graph may be cut elsewhere: nothing is taken from a cache.
        return None

    def __call__(self, gm: torch.fx.GraphModule, joint_inputs: Sequence[object], **settings: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        if any(isinstance(node.meta["val"], (torch.SymInt, torch.SymFloat)) for node in gm.graph.nodes if node.op == "placeholder"):
            raise PlimsollError("a plan is for one shape, and this graph has sizes that change: compile with dynamic=False")
        cut, looked_at = own_cuts(gm, joint_inputs, settings, self._limit)
        unlimited = looked_at[0].peak
        # Where PyTorch's own ways would run products again, or do not reach the limit, a plan may do with fewer.
        if cut is None or cut.again:
            cut, planned = self._better(gm, settings["num_fwd_outputs"], cut, looked_at)
            looked_at += planned
            if cut.peak > self._limit:
                warnings.warn(f"what is compiled will hold about {_size(cut.peak)}, more than the memory limit of {_size(self._limit)} that was wished for", stacklevel=2)
        least = min(one.peak for one in looked_at)
        self.wishes.append(Wish(limit=self._limit, peak=cut.peak, least=least, unlimited=unlimited, kept=cut.kept, kept_bytes=cut.kept_bytes))
        return cut.passes

    def _better(self, gm: torch.fx.GraphModule, num_fwd_outputs: int, own: Cut | None, looked_at: list[Cut]) -> tuple[Cut, list[Cut]]:
        """The faster within the limit of PyTorch's own cut and a plan's, or that which holds least; and the plan's. An error says the least where there is neither."""
        trace = _traced(gm)
        plan = self._plan(trace)
        if not plan["feasible"]:
            if own is not None:
                return own, []
            least = min([plan["floor_bytes"], *(one.peak for one in looked_at)])
            said = f"a memory limit of {_size(self._limit)} cannot be kept: the least for this graph is {_size(least)} ({least} bytes)"
            raise MemoryLimitError(said, least=least, limit=self._limit, holders=trace.largest)
        planned = _cut_as_planned(gm, num_fwd_outputs, trace, plan["instructions"])
        times = {node.name: line["ns"] for node, line in zip(trace.ops, (line for line in trace.lines if "op" in line))}
        within = [one for one in (own, planned) if one is not None and one.peak <= self._limit]
        faster = min(within, key=lambda one: sum(times.get(name, 0) for name in one.again), default=None)
        return faster or min([*looked_at, planned], key=lambda one: one.peak), [planned]

    def _plan(self, trace: Joined) -> dict[str, Any]:
        return json.loads(_native.plan_traced(trace.text(), str(self._limit)))


def _traced(gm: torch.fx.GraphModule) -> Joined:
    """The ops of a graph, measured, as a compiler joins them."""
    given = {node: node.meta["val"] if node.op == "placeholder" else getattr(gm, node.target) for node in gm.graph.nodes if node.op in ("placeholder", "get_attr")}
    return Joined(Trace(gm, given, "graph"))


def _cut_as_planned(gm: torch.fx.GraphModule, num_fwd_outputs: int, trace: Joined, instructions: list[dict[str, Any]]) -> Cut:
    """The passes of a graph with what a plan holds between them."""
    kept = _held_between(gm, trace, instructions)
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder" and not _is_tangent(node)]
    known = inspect.signature(partitioners._extract_fwd_bwd_modules).parameters
    more = {"static_lifetime_input_nodes": None} if "static_lifetime_input_nodes" in known else {}
    ahead, back = partitioners._extract_fwd_bwd_modules(gm, [*inputs, *kept], saved_sym_nodes=[], num_fwd_outputs=num_fwd_outputs, **more)
    # What runs again stands at the beginning of the backward pass, all of it: there it would be held as long as if it had been kept.
    return cut_of((ahead, partitioners.reordering_to_mimic_autograd_engine(back)), num_fwd_outputs)


def _is_tangent(node: torch.fx.Node) -> bool:
    return node.op == "placeholder" and "tangent" in str(node.target)


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
