"""A module of a running PyTorch as the engine reads it: the text of its exported program, and where its tensors are."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import traceback
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np
import torch
from torch.utils import _pytree as pytree

import plimsoll
from plimsoll.errors import PlimsollError
from plimsoll.torch._batch import Batch, array
from plimsoll.torch._export import export, hidden
from plimsoll.torch._kept import Places, Resized, fill_tables
from plimsoll.torch._planned import loss_of

__all__ = ["Program", "functional", "loss_program", "output_program", "own_name"]


class _Loss(torch.nn.Module):
    """A module with its loss, over the tensors of a batch."""

    def __init__(self, model: torch.nn.Module, loss_fn: Callable[..., torch.Tensor] | None, batch: Batch) -> None:
        super().__init__()
        self.model, self.loss_fn = model, loss_fn
        self._batch = batch
        self.training = model.training

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return loss_of(self.model, self.loss_fn, self._batch.around(tensors))


class _Outputs(torch.nn.Module):
    """A module over the tensors of its inputs."""

    def __init__(self, model: torch.nn.Module, inputs: Batch) -> None:
        super().__init__()
        self.model = model
        self._inputs = inputs
        self.training = model.training

    def forward(self, *tensors: torch.Tensor) -> Any:
        inputs = self._inputs.around(tensors)
        if isinstance(inputs, dict):
            return self.model(**inputs)
        return self.model(*inputs) if isinstance(inputs, (tuple, list)) else self.model(inputs)


def loss_program(model: torch.nn.Module, loss_fn: Callable[..., torch.Tensor] | None, batch: Batch, dynamic_shapes: Any = None) -> Program:
    """The program of a module with its loss, in the mode in which the module is."""
    return Program(_Loss(model, loss_fn, batch), batch, dynamic_shapes)


def output_program(model: torch.nn.Module, inputs: Batch, dynamic_shapes: Any = None) -> Program:
    """The program of a module without its loss, in the mode in which the module is."""
    return Program(_Outputs(model, inputs), inputs, dynamic_shapes)


class Program:
    """An exported program with its tensors by the names that they have in the user's module."""

    def __init__(self, module: torch.nn.Module, batch: Batch, dynamic_shapes: Any) -> None:
        self.module = module
        self.exported = _exported(module, batch, dynamic_shapes)
        document = json.loads(_text(self.exported))
        graph = document["graph_module"]
        own = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers(remove_duplicate=False))}
        self.tensors: dict[str, torch.Tensor] = {}
        for spec in graph["signature"]["input_specs"]:
            (part,) = spec.values()
            for key in ("parameter_name", "buffer_name", "tensor_constant_name"):
                if key in part:
                    name = part[key]
                    held = own.get(name)
                    held = self.exported.state_dict.get(name) if held is None else held
                    held = self.exported.constants[name] if held is None else held
                    part[key] = own_name(name)
                    self.tensors[part[key]] = held
        for spec in graph["signature"]["output_specs"]:
            (part,) = spec.values()
            for key in ("parameter_name", "buffer_name"):
                if key in part:
                    part[key] = own_name(part[key])
        for node in graph["graph"]["nodes"]:
            stack = node["metadata"].get("nn_module_stack")
            if stack:
                node["metadata"]["nn_module_stack"] = re.sub(r",model\.", ",", stack).replace(",model,", ",,")
        self.text = json.dumps(document)
        #: Where the module has them; a tensor that its code holds elsewhere is in none.
        self._places = Places(module, own_name)
        #: Tensors that the module's code holds, and that are neither parameters nor buffers.
        self.constants = self.tensors.keys() - self._places.now().keys()
        self.types = {name: tensor.dtype for name, tensor in self.tensors.items()}
        self.tied = _tied(self.tensors)

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        tag = torch.Tag.nondeterministic_seeded
        return any(tag in getattr(node.target, "tags", ()) for node in self.exported.graph.nodes if not _is_still(node))

    @property
    def has_float16(self) -> bool:
        """Whether something is computed in float16."""
        return torch.float16 in self._types()

    @property
    def has_sixteen_bits(self) -> bool:
        """Whether something is computed in float16 or bfloat16."""
        return not self._types().isdisjoint((torch.float16, torch.bfloat16))

    def _types(self) -> set[torch.dtype]:
        """The element types of what is computed."""
        made = (node.meta.get("val") for node in self.exported.graph.nodes if node.op == "call_function")
        return {value.dtype for value in made if isinstance(value, torch.Tensor)}

    def handed(self) -> dict[str, Any]:
        """What the engine is given of it."""
        return {"json": self.text, "tied": self.tied, "store": self}

    def read(self, name: str) -> np.ndarray:
        """The elements of a tensor: asked by the engine."""
        # The module may have been moved to another type since.
        return array(self.tensors[name].detach().to(self.types[name]))

    def replaced(self) -> dict[str, torch.Tensor | None]:
        """What the module has by now in the place of tensors that it had."""
        now = self._places.now()
        return {name: now.get(name) for name, tensor in self.tensors.items() if name not in self.constants and now.get(name) is not tensor}

    def follow(self, trained: set[str]) -> None:
        """Takes the tensors that the module has by now in the place of others."""
        for name, now in self.replaced().items():
            before = self.tensors[name]
            if name in trained:
                raise PlimsollError(f"{name} of the module is another tensor than the one that is trained: it was put there after the Trainer was made; make a new Trainer")
            if now is None or now.shape != before.shape:
                there = "nothing" if now is None else f"a tensor {list(now.shape)}"
                raise PlimsollError(f"{name} of the module is {there} by now, and was a tensor {list(before.shape)} when the Trainer was made: make a new Trainer")
            self.tensors[name] = now

    def unflattened(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the module would have returned, of the tensors in it."""
        rest, leaves = iter(tensors), []
        for spec in self.exported.graph_signature.output_specs:
            if spec.kind.name == "USER_OUTPUT":
                leaves.append(next(rest) if hasattr(spec.arg, "name") and not hasattr(spec.arg, "value") else spec.arg.value)
        return pytree.tree_unflatten(leaves, self.exported.call_spec.out_spec)


class _Reshaping(torch.fx.Interpreter):
    """Runs a program op by op. An export may see a ``view`` where eager kernels lay out their results so that it has to be a copy."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(torch.ops.aten.reshape.default if target is torch.ops.aten.view.default else target, args, kwargs)


def functional(program: Program, all_outputs: bool = False) -> Callable[..., Any]:
    """The program as a function of a batch that gives the loss, or all that it gives to its caller: over the module's own tensors, of which it changes none."""
    signature = program.exported.graph_signature
    held = program.tensors

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        rest, given = iter(tensors), []
        for spec in signature.input_specs:
            target = None if spec.target is None else own_name(spec.target)
            if target in held:
                tensor = held[target]
                given.append(tensor if isinstance(tensor, torch.nn.Parameter) else tensor.clone())
            else:
                given.append(next(rest))
        outputs = _Reshaping(program.exported.graph_module).run(*given)
        made = [value for spec, value in zip(signature.output_specs, outputs) if spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")]
        return made if all_outputs else made[0]

    return call


def _is_still(node: torch.fx.Node) -> bool:
    """Whether an op that could draw random numbers draws none: dropout at a rate of 0."""
    if node.op != "call_function":
        return True
    name = str(node.target)
    if "dropout_p" in str(getattr(node.target, "_schema", "")) or "dropout" in name:
        rate = node.kwargs.get("dropout_p", next((a for a in node.args if isinstance(a, float)), 0.0))
        return rate == 0.0
    return False


def own_name(name: str) -> str:
    """The name of a tensor in the user's module."""
    return name.removeprefix("model.")


def _exported(module: torch.nn.Module, batch: Batch, dynamic_shapes: Any) -> Any:
    """The program, for batches of any size where that can be had."""
    tensors = tuple(tensor.detach() for tensor in batch.tensors)
    if dynamic_shapes is not None:
        return export(module, tensors, dynamic_shapes=(tuple(dynamic_shapes),))
    forms: list[Any] = [None]
    if batch.samples > 1:
        is_batch = [tensor.dim() > 0 and len(tensor) == batch.samples for tensor in tensors]
        forms.insert(0, (tuple({0: torch.export.Dim.AUTO} if own else None for own in is_batch),))
    first: Exception | None = None
    # Some modules go other ways while they are exported, which not always lead somewhere: then the way that they go otherwise is tried.
    for is_hidden in (False, True):
        for form in forms:
            try:
                with hidden() if is_hidden else contextlib.nullcontext():
                    return export(module, tensors, dynamic_shapes=form)
            except Resized as error:
                if fill_tables(module, tensors):
                    return _exported(module, batch, dynamic_shapes)
                first = first or error
            except Exception as error:  # Whatever the exporter says of an open batch, it may still take the batch as it is.
                if form is None and first is None:
                    first = error
    if isinstance(first, PlimsollError):
        # It begins with the name of what is wrong in the module.
        raise PlimsollError(own_name(str(first))) from None
    raise PlimsollError(f"torch.export cannot export this module{_line(first)}: {_why(first)}") from first


def _why(error: Exception | None) -> str:
    """What the exporter says, or what it means by that."""
    kind, why = type(error).__name__, str(error).strip().split("\n")[0]
    if kind.startswith("GuardOnDataDependent"):
        return (
            "there it asks for a number that is in a tensor (an if, item(), int(), a length), which is known only when it runs: choose with torch.where or torch.cond, "
            f"and leave out what only checks ({kind}: {why})"
        )
    if "fake tensor in the exported program" in why:
        return (
            "it puts a tensor in the place of another outside of what is traced: .data that is assigned or written to in forward, or torch.autograd.grad within it; compute a new tensor "
            f"from the parameter, or change the parameter after a step, with sync() before it ({kind})"
        )
    return f"{kind}: {why}"


def _line(error: Exception | None) -> str:
    """The last line outside PyTorch and this package from which an error came."""
    ours = tuple(str(Path(module.__file__).parent) for module in (torch, plimsoll) if module.__file__)
    for frame in reversed(traceback.extract_tb(error.__traceback__ if error else None)):
        if not frame.filename.startswith((*ours, "<")):
            return f" at {frame.filename}:{frame.lineno} ({frame.line})" if frame.line else f" at {frame.filename}:{frame.lineno}"
    return ""


def _text(program: Any) -> str:
    """The program as the archive of ``torch.export.save`` has it, without its tensors."""
    from torch._export.serde.serialize import serialize

    known = inspect.signature(serialize).parameters
    flags = {name: False for name in ("serialize_state_dict", "serialize_constants", "serialize_example_inputs") if name in known}
    return serialize(program, **flags).exported_program.decode()


def _tied(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Second names of tensors, with the first."""
    first: dict[Any, str] = {}
    tied, ranges = {}, []
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            continue
        start = tensor.data_ptr()
        key = (start, tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if key in first:
            tied[name] = first[key]
            continue
        first[key] = name
        last = start + (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))) * tensor.element_size()
        ranges.append((start, last, name))
    ranges.sort()
    for (_, end, one), (start, _, other) in zip(ranges, ranges[1:]):
        if start < end:
            raise PlimsollError(f"{one} and {other} share some of their elements, which is not taken; clone one of them")
    return tied
