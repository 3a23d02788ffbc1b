"""A module of PyTorch as a program whose gradients are the module's own."""

from __future__ import annotations

import contextlib
import threading
import warnings
from typing import Any, Iterator

import torch
from torch.export.graph_signature import InputKind
from torch.overrides import TorchFunctionMode

from plimsoll.errors import PlimsollError
from plimsoll.torch._apart import taken_apart
from plimsoll.torch._checks import Checks
from plimsoll.torch._fold import fold
from plimsoll.torch._kept import Kept, with_buffers_written
from plimsoll.torch._picking import Picking
from plimsoll.torch._unasked import Unasked

__all__ = ["ALONE", "LayerDrop", "export", "hidden"]

#: An export, and the comparison after it, put other functions in the place of PyTorch's own for as long as they last: one thread at a time.
ALONE = threading.RLock()
_NO_GRAD = "wrap_with_set_grad_enabled"
#: How often ops are taken apart that are made of others which are not known either.
_ROUNDS = 4
_COMPARISONS = ("lt", "__lt__", "less")


def export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, *, dynamic_shapes: Any = None) -> Any:
    """The module as an exported program at the functional level, for ``torch.export.save`` and ``plimsoll train``.

    What leaves a ``torch.no_grad`` region is detached first: the functional level has no such regions, and gradients would flow through
    them. Core ATen is no such level either: there ``detach`` is lost. Only ops that the engine does not know are taken apart into others.
    """
    replaced: set[str] = set()
    checks = Checks()
    with ALONE, LayerDrop(), Unasked(), checks, Picking(), Kept(module), warnings.catch_warnings():
        # What is only kept to be looked at is no harm, and what is read again is refused below.
        warnings.filterwarnings("ignore", "The tensor attribute")
        module.forward = with_buffers_written(module, module.forward, replaced)
        program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    checks.tell()
    _refuse_hidden_state(program, replaced)
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _detach(part)
            _drop_checks(part)
    program = program.run_decompositions({})
    _drop_checks(program.graph_module)
    for _ in range(_ROUNDS):
        table = taken_apart(program)
        if not table:
            break
        program = program.run_decompositions(table)
    _slice_tables(program.graph_module)
    _norm_what_is_read(program.graph_module)
    fold(program)
    return program


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """A module that asks whether it is exported is told that it is not."""
    names = ("is_compiling", "is_dynamo_compiling", "is_exporting")
    own = {name: getattr(torch.compiler, name) for name in names if hasattr(torch.compiler, name)}
    try:
        for name in own:
            setattr(torch.compiler, name, lambda: False)
        yield
    finally:
        for name, function in own.items():
            setattr(torch.compiler, name, function)


def _refuse_hidden_state(program: Any, replaced: set[str]) -> None:
    """A tensor that is read, replaced and no buffer: the program has it as it is now, and the module another at every call."""
    read = {node.name for node in program.graph.nodes if node.users}
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.CONSTANT_TENSOR and spec.target in replaced and spec.arg.name in read:
            name = spec.target.removeprefix("model.")
            raise PlimsollError(f"{name} is read and replaced when the module runs, and is no buffer: make it one with register_buffer, so that it is kept from step to step")


class LayerDrop(TorchFunctionMode):
    """Answers whether a layer is left out by chance, which an export cannot ask of a number that is drawn: at a rate of 0 none is.

    An exported program does not draw that number. With ``rewinds`` eager PyTorch goes back to where it was before, so that both draw the same after it.
    """

    def __init__(self, rewinds: bool = False) -> None:
        super().__init__()
        self._rewinds = rewinds
        #: The last number that was drawn by itself, and the generator's state before and after it.
        self._drawn: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _COMPARISONS and len(args) == 2 and self._drawn is not None and args[0] is self._drawn[0] and isinstance(args[1], (int, float)):
            if args[1] > 0.0:
                raise PlimsollError(
                    f"the module leaves out a layer with a probability of {args[1]:g} (LayerDrop), and which layers run must be known before: set that rate to 0"
                )
            _, before, after = self._drawn
            if before is not None and torch.equal(torch.get_rng_state(), after):
                torch.set_rng_state(before)
            return False
        before = torch.get_rng_state() if self._rewinds and func is torch.rand else None
        result = func(*args, **kwargs)
        if func is torch.rand and isinstance(result, torch.Tensor) and result.dim() == 0:
            self._drawn = (result, before, torch.get_rng_state() if self._rewinds else None)
        return result


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


def _drop_checks(part: torch.fx.GraphModule) -> None:
    """Leaves out checks of numbers inside tensors, and what was computed for these alone: no plan can stop in the middle."""
    aten = torch.ops.aten
    checks = {aten._assert_async.msg, aten._assert_async.default, aten._assert_scalar.default, aten._linalg_check_errors.default}
    for node in reversed(list(part.graph.nodes)):
        is_check = node.op == "call_function" and node.target in checks
        is_number = node.op == "call_function" and (node.target is aten.item.default or "SymBool" in type(node.meta.get("val")).__name__)
        if not node.users and (is_check or is_number):
            part.graph.erase_node(node)
    part.recompile()


def _slice_tables(part: torch.fx.GraphModule) -> None:
    """Reads the first rows of a table, as places in a sequence are read, as a slice of it: its gradient is not a sum over indices then."""
    aten = torch.ops.aten
    for node in list(part.graph.nodes):
        if node.op != "call_function" or node.target is not aten.embedding.default or any(argument not in (-1, False) for argument in node.args[2:]) or node.kwargs:
            continue
        table, places = node.args[:2]
        length = _counted(places)
        if length is None or not 0 < length <= table.meta["val"].shape[0]:
            continue
        with part.graph.inserting_before(node):
            rows = part.graph.call_function(aten.slice.Tensor, (table, 0, 0, length))
            own = {key: value for key, value in node.meta.items() if key != "val"}
            rows.meta.update({**own, "val": table.meta["val"][:length]})
            shape = list(node.meta["val"].shape)
            if len(shape) > 2:
                rows = part.graph.call_function(aten.view.default, (rows, shape))
                rows.meta.update(node.meta)
        node.replace_all_uses_with(rows)
        part.graph.erase_node(node)
        while isinstance(places, torch.fx.Node) and not places.users and places.op == "call_function":
            unused, places = places, next(iter(places.all_input_nodes), None)
            part.graph.erase_node(unused)
    part.recompile()


def _norm_what_is_read(part: torch.fx.GraphModule) -> None:
    """Norms only the rows that are read, where one place of rows is read after a norm: the first token of a vision transformer, say."""
    aten, graph = torch.ops.aten, part.graph
    for node in list(graph.nodes):
        while node.target is aten.layer_norm.default and len(node.users) == 1:
            (reader,) = node.users
            if reader.target not in (aten.select.int, aten.slice.Tensor) or reader.kwargs or any(user.op == "output" for user in reader.users):
                break
            x, place = node.args[0], reader.args[1:]
            rank, axis = x.meta["val"].dim(), place[0] if place else 0
            is_of_rows = isinstance(axis, int) and axis % rank < rank - len(node.args[1])
            if not is_of_rows or any(isinstance(argument, torch.fx.Node) for argument in place):
                break
            with graph.inserting_before(reader):
                rows = graph.call_function(reader.target, (x, *place))
                normed = graph.call_function(node.target, (rows, *node.args[1:]), node.kwargs)
            rows.meta.update({**reader.meta, "val": reader.target(x.meta["val"], *place)})
            normed.meta.update({**node.meta, "val": reader.meta["val"]})
            reader.replace_all_uses_with(normed)
            graph.erase_node(reader)
            graph.erase_node(node)
            node = normed
    part.recompile()


def _counted(node: Any) -> int | None:
    """How many numbers 0, 1, 2 … a node gives; none where it gives others. Axes of length 1 may stand around them."""
    aten = torch.ops.aten
    while isinstance(node, torch.fx.Node) and node.target in (aten.unsqueeze.default, aten.view.default) and node.meta["val"].numel() == node.meta["val"].shape[-1]:
        node = node.args[0]
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.meta["val"].is_floating_point():
        return None
    numbers = [argument for argument in node.args]
    if node.target is aten.arange.default:
        numbers = [0, *numbers, 1]
    elif node.target is aten.arange.start:
        numbers = [*numbers, 1]
    elif node.target is not aten.arange.start_step:
        return None
    numbers = numbers if len(numbers) == 3 else [*numbers, 1]
    return numbers[1] if numbers[0] == 0 and numbers[2] == 1 and all(type(number) is int for number in numbers) else None
