"""What of a row is equal."""

from __future__ import annotations

from typing import Any

FORWARD, GRADIENTS, IN_F64, STEPS = 1e-4, 1e-3, 1e-8, 1e-3


def verdict(row: dict[str, Any]) -> dict[str, bool]:
    """What of a row is equal. A net that makes much of rounding makes as much of PyTorch's own: in f32 three times that passes, if it is equal in f64."""
    is_forward = row.get("forward", 1.0) <= FORWARD
    f64 = row.get("f64")
    is_exact = isinstance(f64, float) and f64 <= (GRADIENTS / 10 if row.get("f32_inside") else IN_F64)
    noise = row.get("noise", 0.0) if is_exact or f64 is None else 0.0
    steps_noise = row.get("steps_noise", 0.0) if is_exact or f64 is None else 0.0
    is_gradients = row.get("gradients", 1.0) <= max(GRADIENTS, 3 * noise) and (f64 is None or is_exact)
    is_steps = row.get("steps", 1.0) <= max(STEPS, 3 * steps_noise)
    return {"loads": row.get("loads") is True, "forward": is_forward, "gradients": is_gradients, "steps": is_steps, "all": is_forward and is_gradients and is_steps}
