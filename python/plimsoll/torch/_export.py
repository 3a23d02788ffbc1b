"""A module of PyTorch as a program whose gradients are the module's own."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["export"]

_NO_GRAD = "wrap_with_set_grad_enabled"


def export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, *, dynamic_shapes: Any = None) -> Any:
    """The module as an exported program at the functional level, for ``torch.export.save`` and ``plimsoll train``.

    What leaves a ``torch.no_grad`` region is detached first: the functional level has no such regions, and gradients would flow through
    them. Core ATen is no such level either: there ``detach`` is lost.
    """
    program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _detach(part)
    return program.run_decompositions({})


def _detach(part: torch.fx.GraphModule) -> None:
    """Detaches every tensor that a region without gradients gives."""
    for node in list(part.graph.nodes):
        if node.op != "call_function" or _NO_GRAD not in str(node.target) or node.args[0]:
            continue
        for result in list(node.users):
            value = result.meta.get("val")
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            with part.graph.inserting_after(result):
                detached = part.graph.call_function(torch.ops.aten.detach.default, (result,))
            detached.meta.update(result.meta)
            result.replace_all_uses_with(detached, delete_user_cb=lambda user, own=detached: user is not own)
    part.recompile()
