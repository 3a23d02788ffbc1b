"""Says which blocks of a module to wrap in ``torch.utils.checkpoint``, so that a step of eager PyTorch fits into a memory limit."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from plimsoll import _native
from plimsoll._plan import _size
from plimsoll.errors import MemoryLimitError
from plimsoll.torch._kept import Kept
from plimsoll.torch._planned import loss_of

__all__ = ["Advice", "Block", "advise"]


@dataclasses.dataclass
class Block:
    """A part of a module that can be wrapped."""

    name: str
    #: What eager PyTorch keeps of it for the backward pass, and what a checkpoint keeps: its inputs.
    kept: int = 0
    inputs: int = 0


@dataclasses.dataclass
class Advice:
    """What to wrap. ``print`` it."""

    limit: int
    #: What stands all the time: weights, their gradients, buffers, the batch.
    standing: int
    #: Foreseen most bytes without and with checkpoints.
    unwrapped: int
    peak: int
    blocks: list[Block]

    def __str__(self) -> str:
        head = f"eager PyTorch takes about {_size(self.unwrapped)}, of which {_size(self.standing)} are weights, gradients, buffers and the batch; the limit is {_size(self.limit)}"
        if not self.blocks:
            return f"{head}. Nothing need be wrapped."
        lines = [f"{head}. Wrapped, it takes about {_size(self.peak)}:", ""]
        lines += [f"  {block.name:<40} keeps {_size(block.inputs)} in the place of {_size(block.kept)}" for block in self.blocks]
        lines += [
            "",
            "In the forward of the module that calls such a block:",
            "  x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
            "These are estimates of tensors that are kept; scratch of kernels and the optimizer's state come on top. plimsoll.torch.Trainer keeps to a limit by itself.",
        ]
        return "\n".join(lines)


def advise(model: torch.nn.Module, batch: Any, memory: str | int, loss_fn: Callable[..., torch.Tensor] | None = None) -> Advice:
    """Says which blocks to wrap in ``checkpoint``, for a step of eager PyTorch on such a batch within about so much memory. Nothing is run: tensors are only sketched.

    Args:
        model: the module, in the mode in which it is to run.
        batch: a batch, as for :func:`planned`.
        memory: the limit, as ``"6GiB"`` or in bytes.
        loss_fn: of the module's output and the last part of a batch; ``None`` where the module returns its loss.

    Raises:
        MemoryLimitError: with every block wrapped it would not fit; ``least`` says what would be needed.
    """
    limit = _native.parsed_bytes(str(memory))
    found = _sketched(model, loss_fn, batch)
    trained = sum(_size_of(p) for p in model.parameters() if p.requires_grad)
    standing = sum(map(_size_of, [*model.parameters(), *model.buffers()])) + trained + sum(_size_of(leaf) for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor))
    whole = sum(size for _, size in found.kept)
    wrapped: list[Block] = []
    # The largest first: each saves what it keeps but its inputs.
    for block in sorted(found.blocks, key=lambda block: block.kept - block.inputs, reverse=True):
        if standing + _peak(found, wrapped) <= limit or block.kept <= block.inputs:
            break
        wrapped.append(block)
    peak = standing + _peak(found, wrapped)
    if peak > limit:
        raise MemoryLimitError(
            f"a memory limit of {_size(limit)} is too small for checkpoints: with {len(wrapped)} blocks wrapped the step takes about {_size(peak)}; "
            "plimsoll.torch.Trainer and plimsoll.torch.planned go further",
            least=peak, limit=limit, holders=[(block.name, block.kept) for block in wrapped[:5]],
        )
    places = {name: place for place, (name, _) in enumerate(model.named_modules())}
    return Advice(limit, standing, standing + whole, peak, sorted(wrapped, key=lambda block: places[block.name]))


@dataclasses.dataclass
class _Sketched:
    #: What is kept for the backward pass, in the order in which it is made: bytes, and the block that made it.
    kept: list[tuple[Block | None, int]]
    blocks: list[Block]


def _peak(found: _Sketched, wrapped: list[Block]) -> int:
    """The most that is kept at once: at the end of the forward pass, or while a block is computed again, when all that came after it is gone."""
    most = held = 0
    entered: set[int] = set()
    for block, size in found.kept:
        if block is None or not any(block is one for one in wrapped):
            held += size
        elif id(block) not in entered:
            entered.add(id(block))
            most = max(most, held + block.inputs + block.kept)
            held += block.inputs
    return max(most, held)


def _sketched(model: torch.nn.Module, loss_fn: Callable[..., torch.Tensor] | None, batch: Any) -> _Sketched:
    """Runs the forward pass on sketches of tensors, and notes what is kept, and in which block."""
    names = _block_names(model)
    inside: list[Block] = []
    kept: dict[int, int] = {}
    owner: dict[int, Block] = {}
    sketches: list[torch.Tensor] = []
    blocks = {name: Block(name) for name in names}
    own: set[int] = set()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        key = tensor.untyped_storage()._cdata
        if key not in own and key not in kept:
            sketches.append(tensor)  # So that no address comes twice.
            kept[key] = tensor.untyped_storage().nbytes()
            if inside:
                owner[key] = inside[-1]
        return tensor

    def entered(name: str) -> Callable[..., None]:
        def hook(_: Any, args: Any, kwargs: Any) -> None:
            block = blocks[name]
            for tensor in pytree.tree_leaves((args, kwargs)):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    sketches.append(tensor)
                    block.inputs += tensor.untyped_storage().nbytes()
                    # An input is the caller's, wherever it is kept first.
                    key = tensor.untyped_storage()._cdata
                    if key not in own and key not in kept:
                        kept[key] = tensor.untyped_storage().nbytes()
            inside.append(block)

        return hook

    def left(*_: Any) -> None:
        inside.pop()

    modules = dict(model.named_modules())
    hooks = []
    try:
        for name in names:
            hooks.append(modules[name].register_forward_pre_hook(entered(name), with_kwargs=True))
            hooks.append(modules[name].register_forward_hook(left))
        with Kept(model), FakeTensorMode(allow_non_fake_inputs=True) as fake:
            state = {name: fake.from_tensor(value) for name, value in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items()}
            given = pytree.tree_map_only(torch.Tensor, fake.from_tensor, batch)
            own |= {value.untyped_storage()._cdata for value in [*state.values(), *(x for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor))]}
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.enable_grad():
                torch.func.functional_call(_Whole(model, loss_fn), {f"model.{name}": value for name, value in state.items()}, (given,))
    finally:
        for hook in hooks:
            hook.remove()
    for key, block in owner.items():
        block.kept += kept[key]
    return _Sketched([(owner.get(key), size) for key, size in kept.items()], [block for block in blocks.values() if block.kept])


class _Whole(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, loss_fn: Callable[..., torch.Tensor] | None) -> None:
        super().__init__()
        self.model, self._loss_fn = model, loss_fn

    def forward(self, batch: Any) -> torch.Tensor:
        return loss_of(self.model, self._loss_fn, batch)


def _block_names(model: torch.nn.Module) -> list[str]:
    """The parts of lists and sequences that have parts of their own, outermost first and none inside another."""
    names: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            for child, part in module.named_children():
                whole = f"{name}.{child}" if name else child
                is_inside = any(whole.startswith(f"{other}.") for other in names)
                if not is_inside and any(True for _ in part.children()) and not isinstance(part, (torch.nn.ModuleList,)):
                    names.append(whole)
    return names


def _size_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
