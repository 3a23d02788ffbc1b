"""Finds, among PyTorch's own ways to cut a step into its passes, the one that keeps most within a limit in bytes.

``activation_memory_budget`` is a share between what is fastest and what is least, and says nothing of bytes: here each share's passes are looked at for what
they hold when they hold most, and a limit chooses the share.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch._functorch import config, partitioners

from plimsoll.torch._joined import MOST, SLACK, Kind, kind_of

__all__ = ["Cut", "cut_of", "own_cuts"]

#: Shares that are tried, from PyTorch's own choice down. Nothing at all is none of them: the whole forward pass would run again at once.
SHARES = tuple(share / 10 for share in range(10, 0, -1))


@dataclasses.dataclass
class Cut:
    """A step in two passes, the most bytes that they hold, and what is kept between them."""

    passes: tuple[torch.fx.GraphModule, torch.fx.GraphModule]
    peak: int
    kept: int
    kept_bytes: int
    #: Products, convolutions and the like that run again, by name; what is computed inside of them costs next to nothing.
    again: list[str]


def own_cuts(gm: torch.fx.GraphModule, joint_inputs: Any, settings: dict[str, Any], limit: int) -> tuple[Cut | None, list[Cut]]:
    """The cut that keeps most within the limit, if there is one, and all that were looked at, PyTorch's own choice first."""
    looked_at = []
    # One after the other: what is kept falls with the share, but what is held at most does not always.
    for share in SHARES:
        with config.patch(activation_memory_budget=share):
            passes = partitioners.min_cut_rematerialization_partition(gm, joint_inputs, **settings)
        looked_at.append(cut_of(passes, settings["num_fwd_outputs"]))
        if looked_at[-1].peak <= limit:
            return looked_at[-1], looked_at
    return None, looked_at


def cut_of(passes: tuple[torch.fx.GraphModule, torch.fx.GraphModule], num_fwd_outputs: int) -> Cut:
    """What two passes hold: weights and the batch all the while, the rest as long as it is read."""
    forward, backward = passes
    given = {key: size for node in forward.graph.nodes if node.op == "placeholder" for key, size in _storages(node).items()}
    (output,) = (node for node in forward.graph.nodes if node.op == "output")
    kept = {key: size for node in output.args[0][num_fwd_outputs:] if isinstance(node, torch.fx.Node) for key, size in _storages(node).items() if key not in given}
    stands = {node.name for node in forward.graph.nodes if node.op == "placeholder"}
    peak = sum(given.values()) + max(most_held(forward.graph, stands), most_held(backward.graph, stands))
    ran = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    again = [node.name for node in backward.graph.nodes if node.name in ran and node.op == "call_function" and kind_of(node) is Kind.WHOLE and not _is_view(node)]
    return Cut(passes, peak, len(kept), sum(kept.values()), again)


def _storages(node: torch.fx.Node) -> dict[int, int]:
    """The bytes of what a node's value lies in: views lie in what they are views of."""
    values = node.meta.get("val")
    values = values if isinstance(values, (tuple, list)) else [values]
    found = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return found


def _is_view(node: torch.fx.Node) -> bool:
    """Whether a node's value lies where something lies that it is made of."""
    return not _storages(node).keys().isdisjoint(key for one in node.all_input_nodes for key in _storages(one))


def most_held(graph: torch.fx.Graph, stands: set[str]) -> int:
    """The most bytes that a pass holds beside inputs of these names, where a compiler computes elementwise ops inside of what reads them."""
    sizes: dict[int, int] = {}
    read_by: dict[int, list[Kind | None]] = {}
    # What a kernel reads, what it makes, and of what kind it is; None stands for the caller.
    kernels: list[tuple[set[int], set[int], Kind | None]] = []
    standing: set[int] = set()
    given: set[int] = set()
    for node in graph.nodes:
        storages = _storages(node)
        if node.op == "placeholder":
            (standing if node.name in stands else given).update(storages)
        elif node.op in ("call_function", "output"):
            read = {key for one in node.all_input_nodes for key in _storages(one)}
            made = {key for key in storages if key not in sizes} if node.op == "call_function" else set()
            kind = kind_of(node) if node.op == "call_function" else None
            # A view, or one of several results, is nothing of its own.
            if made or kind is None:
                kernels.append((read, made, kind))
                for key in read:
                    read_by.setdefault(key, []).append(kind)
        sizes.update(storages)
    made_of: dict[int, set[int]] = {}
    steps: list[tuple[set[int], set[int], bool]] = []
    for read, made, kind in kernels:
        sources = read if kind is Kind.WHOLE else {source for key in read for source in made_of.get(key, {key})}
        if kind is Kind.ELEMENTWISE and len(made) == 1:
            (own,) = made
            readers = read_by.get(own, [])
            is_cheap = len(sources) <= MOST and sum(sizes[key] for key in sources - standing) <= SLACK * sizes[own]
            if Kind.WHOLE not in readers and None not in readers and (len(readers) == 1 or is_cheap):
                made_of[own] = sources
                continue
        steps.append((sources, made, kind is Kind.WHOLE))
    last = {key: at for at, (read, made, _) in enumerate(steps) for key in (*made, *read)}
    held = most = sum(sizes[key] for key in given - standing)
    for at, (read, made, is_whole) in enumerate(steps):
        over = {key for key in read if last[key] == at and key not in standing}
        fresh = sum(sizes[key] for key in made - standing)
        # A compiled kernel writes its result over an operand of the same size that nobody reads any more.
        in_place = 0 if is_whole else min(fresh, sum(sizes[key] for key in over if any(sizes[key] == sizes[own] for own in made)))
        most = max(most, held + fresh - in_place)
        held += fresh - sum(sizes[key] for key in over | {key for key in made if last[key] == at})
    return most

