"""Computes once what a program computes of constants at every step: tables of places, masks, grids."""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

__all__ = ["fold"]

#: A folded value stands in memory for the whole run: larger ones are left to the plan, which may compute them when they are wanted.
MOST_BYTES = 1 << 20


def fold(program: Any) -> int:
    """Puts the values of what depends on constants alone into a program, as constants of it; how many there are."""
    graph, signature = program.graph_module.graph, program.graph_signature
    constants = {spec.arg.name: spec.target for spec in signature.input_specs if spec.kind == InputKind.CONSTANT_TENSOR}
    known: dict[torch.fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in constants:
            known[node] = program.constants[constants[node.name]]
        elif _is_foldable(node, known):
            known[node] = None
    made = {node: node for node in known if node.op == "call_function"}
    # What others read of them; a value that is made of nothing is as quickly made as read.
    wanted = [node for node in made if node.all_input_nodes and any(user not in known for user in node.users) and _bytes(node) <= MOST_BYTES]
    if not wanted:
        return 0
    with torch.no_grad():
        values = {node: _value(node, known) for node in wanted}
    first = next((node for node in graph.nodes if node.op != "placeholder"), None)
    at = len(signature.input_specs)
    for place, (node, spec) in enumerate(zip(list(graph.nodes), signature.input_specs)):
        if spec.kind == InputKind.USER_INPUT:
            first, at = node, place
            break
    names = {node.name for node in graph.nodes} | set(program.constants)
    for number, (node, value) in enumerate(values.items()):
        name = f"c_folded_{number}"
        while name in names:
            name += "_"
        with graph.inserting_before(first):
            held = graph.placeholder(name)
        held.meta["val"] = node.meta["val"]
        signature.input_specs.insert(at + number, InputSpec(kind=InputKind.CONSTANT_TENSOR, arg=TensorArgument(name=held.name), target=held.name, persistent=None))
        program.constants[held.name] = value.clone(memory_format=torch.contiguous_format)
        node.replace_all_uses_with(held, delete_user_cb=lambda user: user not in known)
    for node in reversed(list(made)):
        if not node.users:
            graph.erase_node(node)
    program.graph_module.recompile()
    return len(values)


def _is_foldable(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> bool:
    """Whether a node is a tensor of known lengths that depends on what is known alone, and that draws and changes nothing."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or any(not isinstance(length, int) for length in value.shape):
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags or value.is_complex() or value.device.type not in ("cpu", "cuda"):
        return False
    return all(argument in known for argument in node.all_input_nodes)


def _bytes(node: torch.fx.Node) -> int:
    value = node.meta["val"]
    return value.numel() * value.element_size()


def _value(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> torch.Tensor:
    if known[node] is None:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda one: _value(one, known))
        known[node] = node.target(*args, **kwargs)
    return known[node]
