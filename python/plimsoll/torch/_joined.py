"""Turns a trace of single ops into one of the kernels that a compiler makes of them.

A compiler computes an elementwise op inside whatever reads it: it takes neither memory nor a pass of its own, and running it again in the backward pass costs nothing but what it reads.
Only products, convolutions and the like want their operands in memory. Planned op by op, every step of a GELU or a softmax would be kept, or paid for.
"""

from __future__ import annotations

import enum
import json
from typing import Any

import torch

from plimsoll.torch._trace import Trace

__all__ = ["Joined", "Kind", "kind_of"]

#: A value is computed where it is read if what it is made of is not larger than itself by more than this, and not more things than that.
SLACK, MOST = 1.05, 8


class Kind(enum.Enum):
    """What a compiler does with an op."""

    #: Computed inside what reads it.
    ELEMENTWISE = enum.auto()
    #: Computes elementwise ops that it reads in itself, and writes its result: sums, maxima, what moves or picks elements.
    JOINING = enum.auto()
    #: Reads and writes memory: a library's kernel, or one that cannot be told.
    WHOLE = enum.auto()


#: Elementwise ops and makers of constants that PyTorch does not mark as such.
_ELEMENTWISE = {"convert_element_type", "_to_copy", "clone", "full", "full_like", "scalar_tensor", "iota", "arange", "zeros_like", "ones_like", "empty_like"}
_JOINING = {"sum", "mean", "amax", "amin", "max", "min", "var", "var_mean", "prod", "any", "all", "argmax", "argmin", "logsumexp", "cat", "constant_pad_nd", "slice_scatter", "select_scatter", "gather", "index", "index_select", "embedding"}


def kind_of(node: torch.fx.Node) -> Kind:
    """The kind of a node's op."""
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", str(node.target))
    if torch.Tag.pointwise in getattr(node.target, "tags", ()) or name in _ELEMENTWISE or _is_one_hot(node, name):
        return Kind.ELEMENTWISE
    return Kind.JOINING if name in _JOINING else Kind.WHOLE


def _is_one_hot(node: torch.fx.Node, name: str) -> bool:
    """Whether a node writes one number into a constant: the gradient of a cross-entropy begins so."""
    base = node.args[0] if node.args else None
    is_of_constant = isinstance(base, torch.fx.Node) and "full" in str(base.target)
    return name == "scatter" and is_of_constant and len(node.args) > 3 and not isinstance(node.args[3], torch.fx.Node)


class Joined:
    """A trace with elementwise ops inside what reads them. Its ops are nodes of the graph, each with all that is computed in it."""

    def __init__(self, trace: Trace) -> None:
        self.ops: list[torch.fx.Node] = []
        self.owner = trace.owner
        self.largest = trace.largest
        stored = {line["s"]: line for line in trace.lines if "s" in line}
        done = [line for line in trace.lines if "op" in line]
        kinds = [kind_of(node) for node in trace.ops]
        # What must be in memory for somebody: for a kernel that is not compiled, or for the caller.
        wanted = {number for number, line in stored.items() if line["output"]}
        wanted.update(number for line, kind in zip(done, kinds) if kind is Kind.WHOLE for number in line["ins"])
        #: What each value is made of that is computed where it is read.
        made_of: dict[int, list[int]] = {}
        ops: list[dict[str, Any]] = []
        for line, node, kind in zip(done, trace.ops, kinds):
            ins = line["ins"]
            if kind is not Kind.WHOLE:
                ins = list(dict.fromkeys(source for number in line["ins"] for source in made_of.get(number, [number])))
            if kind is Kind.ELEMENTWISE and line["replayable"] and len(line["outs"]) == 1:
                (out,) = line["outs"]
                # Weights and inputs are there in any case.
                held = sum(stored[number]["size"] for number in ins if stored[number]["kind"] != "const")
                if len(ins) <= MOST and held <= SLACK * stored[out]["size"]:
                    made_of[out] = ins
                    if out not in wanted:
                        continue
            scale = 1.0
            if kind is not Kind.WHOLE:
                scale = _traffic(stored, ins, line["outs"]) / max(1, _traffic(stored, line["ins"], line["outs"]))
            ops.append({**line, "op": len(ops), "ins": sorted(ins), "ns": max(1, int(scale * line["ns"])), "scratch": line["scratch"] if kind is Kind.WHOLE else 0})
            self.ops.append(node)
        #: What each op reads, and the bytes of what there is.
        self.read_by = [line["ins"] for line in ops]
        used = {number for line in ops for number in (*line["ins"], *line["outs"])}
        self.sizes = {number: stored[number]["size"] for number in used}
        self.lines = [line for line in trace.lines if "op" not in line and ("s" not in line or line["kind"] == "const" or line["s"] in used)] + ops

    def text(self) -> str:
        """The lines, as ``plimsoll plan --trace`` reads them."""
        return "\n".join(map(json.dumps, self.lines))


def _traffic(stored: dict[int, dict[str, Any]], ins: list[int], outs: list[int]) -> int:
    """The bytes that a kernel passes."""
    return sum(stored[number]["size"] for number in (*ins, *outs))
