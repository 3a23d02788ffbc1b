"""What of a row is equal."""

from __future__ import annotations

from typing import Any

FORWARD, GRADIENTS, IN_F64, STEPS, STEPS_IN_F64 = 1e-4, 1e-3, 1e-8, 1e-3, 1e-6


def verdict(row: dict[str, Any]) -> dict[str, bool]:
    """What of a row is equal. A net that makes much of rounding makes as much of PyTorch's own: its gradients in f32 may be three times as far off as PyTorch's, if they are
    equal in f64, and its steps are equal if they are so in f64. Where f64 cannot say (a model is too large for it, or computes in f32 whatever it is given), three times PyTorch's own passes."""
    is_forward = row.get("forward", 1.0) <= FORWARD
    f64 = row.get("f64")
    is_exact = isinstance(f64, float) and f64 <= (GRADIENTS / 10 if row.get("f32_inside") else IN_F64)
    noise = row.get("noise", 0.0) if is_exact or f64 is None else 0.0
    steps_noise = row.get("steps_noise", 0.0) if is_exact or f64 is None else 0.0
    is_gradients = row.get("gradients", 1.0) <= max(GRADIENTS, 3 * noise) and (f64 is None or is_exact)
    is_steps = row.get("steps", 1.0) <= STEPS or row.get("steps_f64", 1.0) <= STEPS_IN_F64
    if f64 is None or row.get("f32_inside"):
        is_steps = is_steps or row.get("steps", 1.0) <= 3 * steps_noise
    return {"loads": row.get("loads") is True, "forward": is_forward, "gradients": is_gradients, "steps": is_steps, "all": is_forward and is_gradients and is_steps}
