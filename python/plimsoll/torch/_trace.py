"""Turns a graph of ATen ops into the lines that ``plimsoll plan --trace`` reads: storages with bytes, ops with times and scratch, each distinct op measured once."""

from __future__ import annotations

import bisect
import itertools
import json
import operator
import time
from typing import Any, Callable, Iterable, Sequence

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from plimsoll.errors import PlimsollError

__all__ = ["Trace", "resolved"]

#: How often an op is run to be timed; the quickest run counts.
ROUNDS = 3
#: What PyTorch's allocators round blocks up to: on the host, on a card.
HOST_BLOCK, CARD_BLOCK = 64, 512
_MARK = "plimsoll op "


class Trace:
    """A graph of ATen ops as lines of storages and ops, each distinct op measured once."""

    def __init__(self, module: torch.fx.GraphModule, given: dict[torch.fx.Node, Any], name: str) -> None:
        self.lines: list[dict[str, Any]] = [{"model": name}]
        #: The op of each number, and the result that each storage is.
        self.ops: list[torch.fx.Node] = []
        self.owner: dict[int, tuple[torch.fx.Node, int | None]] = {}
        self.constant_bytes = 0
        #: What was estimated because it could not be measured.
        self.remarks: list[str] = []
        self._numbers: dict[int, int] = {}
        self._sizes: list[tuple[int, str]] = []
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        faked: dict[torch.fx.Node, Any] = {}
        graph = module.graph
        last = next(iter(reversed(graph.nodes)))
        ops: list[tuple[torch.fx.Node, list[int], list[int]]] = []
        with fake, torch.no_grad():
            for node in graph.nodes:
                if node in given:
                    real = given[node]
                    faked[node] = _sketch(fake, real) if isinstance(real, torch.Tensor) else real
                    for tensor in _tensors(faked[node]):
                        number = self._number(tensor)
                        if number is not None:
                            self.constant_bytes += self._storage(number, tensor, node.name, "const")
                elif node.op == "call_function":
                    made = node.target(*resolved(node.args, faked.__getitem__), **resolved(node.kwargs, faked.__getitem__))
                    faked[node] = made
                    fresh = [(place, tensor) for place, tensor in _results(made) if self._is_new(tensor)]
                    # A view, or one of several results, is made anew wherever it is read.
                    if not fresh:
                        continue
                    outs = []
                    for index, tensor in fresh:
                        number = self._number(tensor)
                        if number is None:
                            continue
                        self.owner[number] = (node, index if isinstance(made, (tuple, list)) else None)
                        self._storage(number, tensor, node.name, "made")
                        outs.append(number)
                    ins = {self._known(tensor) for argument in node.all_input_nodes for tensor in _tensors(faked[argument])}
                    ops.append((node, sorted(ins), outs))
                elif node.op != "output":
                    raise PlimsollError(f"a graph of PyTorch has a node of kind {node.op}, which is not known here ({node.name})")
        outputs = {self._known(tensor) for node in last.args[0] if isinstance(node, torch.fx.Node) for tensor in _tensors(faked[node])}
        for line in self.lines[1:]:
            line["output"] = line["s"] in outputs and line["kind"] != "const"
        measured = _measured([_Op(node, faked) for node, _, _ in ops], self.remarks)
        for (node, ins, outs), (ns, scratch) in zip(ops, measured):
            tags = getattr(node.target, "tags", ())
            self.lines.append({
                "op": len(self.ops), "name": str(node.target), "ns": ns, "ins": ins, "outs": outs, "mut": [], "scratch": scratch,
                "replayable": torch.Tag.nondeterministic_seeded not in tags,
            })
            self.ops.append(node)

    def text(self) -> str:
        """The lines, as ``plimsoll plan --trace`` reads them."""
        return "\n".join(map(json.dumps, self.lines))

    @property
    def largest(self) -> list[tuple[str, int]]:
        """The five largest storages."""
        return [(name, size) for size, name in sorted(self._sizes, reverse=True)[:5]]

    def _is_new(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata not in self._numbers

    def _known(self, tensor: torch.Tensor) -> int:
        return self._numbers[tensor.untyped_storage()._cdata]

    def _number(self, tensor: torch.Tensor) -> int | None:
        """A new storage's number; none of one that is known. All sketches stay until the trace is done, so that no address comes twice."""
        key = tensor.untyped_storage()._cdata
        if key in self._numbers:
            return None
        self._numbers[key] = len(self._numbers)
        return self._numbers[key]

    def _storage(self, number: int, tensor: torch.Tensor, name: str, kind: str) -> int:
        block = HOST_BLOCK if tensor.device.type == "cpu" else CARD_BLOCK
        size = -(-tensor.untyped_storage().nbytes() // block) * block
        self.lines.append({"s": number, "size": size, "kind": kind, "output": False})
        self._sizes.append((size, name))
        return size


class _Op:
    """One op on tensors that were only sketched: what it is called with, and what its results take."""

    def __init__(self, node: torch.fx.Node, faked: dict[torch.fx.Node, Any]) -> None:
        self.target = node.target
        self._arguments = resolved((node.args, node.kwargs), faked.__getitem__)
        self.results = sum(tensor.untyped_storage().nbytes() for _, tensor in _results(faked[node]))
        #: Ops with equal keys take equal times.
        self.key = (str(node.target), repr(pytree.tree_map_only(torch.Tensor, _layout, self._arguments)))
        self.device = next((tensor.device for tensor in _tensors(self._arguments) if tensor.device.type == "cuda"), None)

    def called(self) -> Callable[[], Any]:
        """The op on tensors that are there."""
        args, kwargs = pytree.tree_map_only(torch.Tensor, _filled, self._arguments)
        return lambda: self.target(*args, **kwargs)


def _measured(ops: Sequence[_Op], remarks: list[str]) -> list[tuple[int, int]]:
    """Nanoseconds and bytes of scratch of every op. Each distinct one is run by itself, so that no more is held than it takes."""
    distinct = {op.key: op for op in ops}
    found: dict[Any, tuple[int, int]] = {}
    with torch.no_grad():
        for key, op in distinct.items():
            try:
                found[key] = _on_card(op) if op.device else (_host_time(op.called()), 0)
            except (RuntimeError, IndexError, ValueError) as error:
                # As fast as memory is read on a slow host: an order of magnitude is enough to say what is worth running again.
                found[key] = (op.results // 4 + 1000, 0)
                remarks.append(f"{op.target} could not be measured by itself, its time and scratch are estimated: {error}")
                distinct = {other: one for other, one in distinct.items() if other != key}
        for key, peak in _host_peaks([op for op in distinct.values() if not op.device]).items():
            found[key] = (found[key][0], max(0, peak - distinct[key].results))
    return [found[op.key] for op in ops]


def _on_card(op: _Op) -> tuple[int, int]:
    call = op.called()
    call()
    torch.cuda.synchronize(op.device)
    torch.cuda.reset_peak_memory_stats(op.device)
    before, best = torch.cuda.memory_allocated(op.device), None
    for _ in range(ROUNDS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        took = int(start.elapsed_time(end) * 1e6)
        best = took if best is None else min(best, took)
    return best or 1, max(0, torch.cuda.max_memory_allocated(op.device) - before - op.results)


def _host_time(call: Callable[[], Any]) -> int:
    best = None
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        call()
        took = time.perf_counter_ns() - start
        best = took if best is None else min(best, took)
        if took > 50_000_000:
            break
    return best or 1


def _host_peaks(ops: Sequence[_Op]) -> dict[Any, int]:
    """The most that the host's allocator holds while each op runs, by the profiler's record of what it gave and took."""
    if not ops:
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        for number, op in enumerate(ops):
            call = op.called()
            with torch.profiler.record_function(f"{_MARK}{number}"):
                call()
    events = profile.profiler.kineto_results.events()
    memory = sorted((event for event in events if event.name() == "[memory]"), key=operator.methodcaller("start_ns"))
    starts = [event.start_ns() for event in memory]
    peaks = {}
    for mark in (event for event in events if event.name().startswith(_MARK)):
        held = peak = 0
        first, end = bisect.bisect_left(starts, mark.start_ns()), mark.start_ns() + mark.duration_ns()
        for event in itertools.takewhile(lambda event: event.start_ns() <= end, memory[first:]):
            held += event.nbytes()
            peak = max(peak, held)
        peaks[ops[int(mark.name()[len(_MARK):])].key] = peak
    return peaks


def resolved(arguments: Any, value: Callable[[torch.fx.Node], Any]) -> Any:
    """Arguments with the value of each node in its place."""
    return torch.fx.node.map_arg(arguments, value)


def _sketch(fake: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A sketch of a tensor, or of what is itself one of somebody else's."""
    if isinstance(tensor, FakeTensor):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return fake.from_tensor(tensor)


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _results(made: Any) -> list[tuple[int, torch.Tensor]]:
    """The tensors that an op gives, with their places among its results; some are not asked for and left out."""
    results = made if isinstance(made, (tuple, list)) else [made]
    return [(place, result) for place, result in enumerate(results) if isinstance(result, torch.Tensor)]


def _layout(tensor: torch.Tensor) -> Any:
    return (str(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), str(tensor.device))


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as one that was only sketched: halves, and zeros where a number may be an index."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.fill_(0.5) if tensor.dtype.is_floating_point else made.zero_()
