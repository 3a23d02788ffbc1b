"""PyTorch modules inside a memory limit.

``Trainer`` trains a module with the engine's own kernels; ``planned`` runs PyTorch's own kernels in the order of a plan, for who stays in PyTorch;
``export`` writes a module as a program that the ``plimsoll`` command takes.
"""

from plimsoll.torch._export import export
from plimsoll.torch._planned import PlannedStep, planned
from plimsoll.torch._trainer import Trainer

__all__ = ["PlannedStep", "Trainer", "export", "planned"]
