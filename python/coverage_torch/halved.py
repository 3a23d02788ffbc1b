"""PyTorch models under half of the bytes that they take without a limit: the same bits, and a peak of the process within the limit.

    python python/coverage_torch/halved.py [--only REGEX] [--kept halved.jsonl] [--write docs/torch-halved.md]

Each model has a batch large enough that it is not its weights alone that count. It is trained for two steps without a limit and for two under half of what that took, each
in a process of its own, from the same weights. Compared are the bits of the losses and of all weights and buffers, and the most that was resident (``VmHWM``) with
what was resident before the first step plus the limit. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
STEPS = 2
#: Names with how often the batch of the table is repeated.
MODELS = {
    "timm/test_vit2": 32, "timm/test_vit3": 16, "timm/vit_tiny_patch16_224": 32, "timm/deit_tiny_patch16_224": 32, "timm/resmlp_12_224": 48, "timm/convnext_atto": 16, "timm/regnetx_002": 96,
    "timm/regnety_002": 96, "timm/poolformer_s12": 32, "timm/mobilenetv3_small_100": 32, "timm/lcnet_050": 32, "timm/edgenext_xx_small": 16, "torchvision/squeezenet1_1": 128, "torchvision/mobilenet_v2": 16,
    "torchvision/shufflenet_v2_x0_5": 128, "transformers/albert": 512, "written/state_space": 16384, "written/seq2seq": 8192, "written/wavenet": 8192, "written/lstm_cells": 16384,
    "timm/ghostnetv2_100": 32, "timm/convnextv2_atto": 16, "timm/test_vit": 64, "timm/gmlp_s16_224": 32, "timm/resnet26d": 24, "timm/mixer_s32_224": 64, "transformers/bert": 256, "transformers/gpt2": 256, "torchvision/resnet18": 24, "timm/mobilevitv2_050": 24, "timm/darknet53": 8,
}


def one(name: str, limit: int | None) -> None:
    """Prints what two steps of a model are, as the last line."""
    warnings.filterwarnings("ignore")
    import torch
    from case import without_dropout
    from models import LIBRARIES

    from plimsoll.torch import Trainer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, inputs = dict(LIBRARIES[name.split("/")[0]]())[name]()
    without_dropout(module)
    samples = len(inputs[0])
    batch = tuple(x.repeat(MODELS[name], *[1] * (x.dim() - 1)) if x.dim() and len(x) == samples else x for x in inputs)
    # Copies of a sample would make sums of equal numbers: each is moved a little.
    batch = tuple(x + 0.01 * torch.randn_like(x) if x.is_floating_point() else x for x in batch)
    trainer = Trainer(module, None, torch.optim.SGD(module.parameters(), 1e-3, momentum=0.9), memory=limit, exact="bitwise", check=False)
    plan = trainer.plan(batch)
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    losses = [trainer.step(batch) for _ in range(STEPS)]
    peak = _resident("VmHWM")
    trainer.sync()
    digest = hashlib.sha256(b"".join(value.detach().contiguous().numpy().tobytes() for value in module.state_dict().values())).hexdigest()
    row = {"losses": [loss.hex() for loss in losses], "weights": digest, "planned": plan.figures["planned_bytes"], "least": plan.figures["floor_bytes"]}
    print(json.dumps({**row, "before": before, "peak": peak, "recomputed": plan.figures["recomputed_ops"]}), flush=True)


def _resident(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024


def asked(name: str, limit: int | None) -> dict[str, Any]:
    words = [sys.executable, __file__, "--one", name] + ([] if limit is None else ["--limit", str(limit)])
    ran = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"failed": ran.stderr.strip()[-200:]}


def compared(name: str) -> dict[str, Any]:
    whole = asked(name, None)
    if "failed" in whole:
        return {"name": name, **whole}
    limit = whole["planned"] // 2
    half = asked(name, limit)
    if "failed" in half:
        return {"name": name, "limit": limit, "least": whole["least"], **half}
    is_same = whole["losses"] == half["losses"] and whole["weights"] == half["weights"]
    return {
        "name": name, "unlimited": whole["planned"], "limit": limit, "same_bits": is_same, "recomputed": half["recomputed"],
        "taken": half["peak"] - half["before"], "is_within": half["peak"] <= half["before"] + limit,
    }


def table(rows: list[dict[str, Any]]) -> str:
    mib = lambda count: f"{count / 2**20:.1f}"
    good = sum(row.get("same_bits", False) and row.get("is_within", False) for row in rows)
    lines = [
        "# PyTorch models under half of their memory",
        "",
        "Made by `python/coverage_torch/halved.py`: two steps without a limit and two under half of what those took, from the same weights, `exact=\"bitwise\"`. MiB; *taken*: the most that",
        "was resident beside what Python and PyTorch held before the first step.",
        "",
        f"{len(rows)} models, {good} with the same bits and within the limit.",
        "",
        "| model | unlimited | limit | taken | ops run again | bits | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['name']} | | {mib(row['limit']) if 'limit' in row else ''} | | | | {row['failed'].splitlines()[-1] if row['failed'] else 'ended'} |")
            continue
        within = "within" if row["is_within"] else "NOT within"
        lines.append(f"| {row['name']} | {mib(row['unlimited'])} | {mib(row['limit'])} | {mib(row['taken'])} | {row['recomputed']} | {'the same' if row['same_bits'] else 'OTHERS'} | {within} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--one", metavar="NAME")
    words.add_argument("--limit", type=int)
    words.add_argument("--only", metavar="REGEX", default="")
    words.add_argument("--kept", type=Path, default=Path("halved.jsonl"))
    words.add_argument("--write", type=Path)
    given = words.parse_args()
    if given.one:
        return one(given.one, given.limit)
    rows = {}
    if given.kept.exists():
        rows = {row["name"]: row for row in map(json.loads, given.kept.read_text().splitlines())}
    for name in MODELS:
        if re.search(given.only, name) and name not in rows:
            rows[name] = compared(name)
            with given.kept.open("a") as kept:
                kept.write(json.dumps(rows[name]) + "\n")
            print(json.dumps(rows[name]), flush=True)
    if given.write:
        given.write.write_text(table([rows[name] for name in MODELS if name in rows]))


if __name__ == "__main__":
    main()
