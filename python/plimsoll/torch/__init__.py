"""PyTorch modules inside a memory limit.

``planned`` runs PyTorch's own kernels in the order of a plan: for who stays in PyTorch.
"""

from plimsoll.torch._planned import PlannedStep, planned

__all__ = ["PlannedStep", "planned"]
