"""PyTorch modules inside a memory limit.

``Trainer`` trains a module with the engine's own kernels. For who stays in PyTorch, ``planned`` runs PyTorch's own kernels in the order of a plan, ``compile`` gives
``torch.compile`` what a plan keeps (a wish there), and ``advise`` says which blocks to wrap in ``checkpoint``. ``export`` writes a module as a program that the
``plimsoll`` command takes.
"""

from typing import Any

from plimsoll.torch._advise import Advice, advise
from plimsoll.torch._export import export
from plimsoll.torch._planned import PlannedStep, planned
from plimsoll.torch._trainer import Trainer

__all__ = ["Advice", "PlannedStep", "Trainer", "advise", "compile", "export", "planned"]


def compile(model: Any, memory: str | int, **settings: Any) -> Any:
    """``torch.compile`` with what is kept for the backward pass chosen by a plan: see :func:`plimsoll.torch._compile.compile`."""
    # The compiler takes a second to import, and most who train here never ask for it.
    from plimsoll.torch._compile import compile as compiled

    return compiled(model, memory, **settings)
