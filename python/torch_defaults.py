"""Writes crates/torch/src/defaults.json: the defaults of arguments that a program leaves out, from PyTorch's own schemas.

Run it with a Python that has PyTorch, whenever an op is added under crates/torch/src/ops:

    python python/torch_defaults.py
"""

import json
import math
import re
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent / "crates" / "torch" / "src"


def plain(value):
    """A default as JSON has it; words for what JSON has no number for."""
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return {}
    return value


def defaults(name):
    _, op, overload = name.split(".")
    schema = getattr(getattr(torch.ops.aten, op), overload)._schema
    return {a.name: plain(a.default_value) for a in schema.arguments if a.has_default_value()}


def main():
    names = set()
    for path in sorted((ROOT / "ops").glob("*.rs")):
        names.update(re.findall(r'\("(aten\.[\w]+\.[\w]+)"', path.read_text()))
    rows = []
    for name in sorted(names):
        try:
            rows.append(f'"{name}": {json.dumps(defaults(name), sort_keys=True)}')
        except AttributeError as error:
            raise SystemExit(f"PyTorch {torch.__version__} has no op {name}: {error}")
    (ROOT / "defaults.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(f"{len(rows)} ops")


if __name__ == "__main__":
    main()
