#!/usr/bin/env python3
"""Plans every model that `plimsoll plan` knows, at the sizes of `plimsoll models`, at ten memory limits from its floor to what it would
like, and prints how far each arena is above the most bytes that are live in it at once.

    cargo build --release && python benches/arena.py [--models resnet50:4 vit:2] [--timed] [--jsonl FILE]

A model is `NAME` or `NAME:BATCH`. Times are those of a roofline, so that every machine plans the same; with `--timed` those of
this machine's kernels. Printed for each model: processor seconds of planning, floor, and arena over live for each budget. The
status is not zero where a ratio is over `--most`, where a budget at or above the floor is refused, where a plan takes more than
its budget, or where more memory plans a slower step.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys

import cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLIMSOLL = ROOT / "target" / "release" / "plimsoll"
MODELS = ["mlp", "cnn", "resnet18", "unet", "gpt", "lstm", "resnet18:4", "resnet18:16", "resnet50:1", "resnet50:4", "resnet50:16",
          "resnet50:256", "mobilenet:1", "mobilenet:4", "mobilenet:32", "unet:1", "unet:16", "gpt:2", "gpt:32", "gpt2:1", "gpt2:4",
          "gpt2:16", "vit:1", "vit:8", "vit:32", "lstm:4", "cnn:8", "mlp:16"]
MIB = 1 << 20


def plan(program, model, memory, env):
    """The plan as `plimsoll plan` prints it, and the processor seconds it took."""
    name, _, batch = model.partition(":")
    words = [program, "plan", name, *cases.COMMON, "--batch", batch or str(cases.CPU[name]), "--json", "--no-frontier"]
    words += ["--memory", str(memory)] if memory else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return json.loads(done.stdout), seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--budgets", type=int, default=10)
    parser.add_argument("--most", type=float, default=1.0005)
    parser.add_argument("--timed", action="store_true")
    parser.add_argument("--program", type=pathlib.Path, default=PLIMSOLL)
    parser.add_argument("--jsonl", type=pathlib.Path)
    args = parser.parse_args()
    env = dict(os.environ) if args.timed else {**os.environ, "PLIMSOLL_CACHE": ""}
    wrong, lines, rows, over, all_seconds = [], [], 0, 0, 0.0
    print(f"{'model':13} {'CPU s':>6} {'floor MiB':>9}  arena over live, from the floor to what it would like")
    for model in args.models:
        free, seconds = plan(args.program, model, None, env)
        floor, most = free["floor_bytes"], max(free["unlimited_bytes"], free["floor_bytes"] + 1)
        ratios, before = [], None
        for i in range(args.budgets):
            budget = floor + (most - floor) * i // (args.budgets - 1)
            line, more = plan(args.program, model, budget, env)
            seconds += more
            if not line["fits"]:
                wrong.append(f"{model}: refused at {budget}, though {floor} is the floor")
                continue
            lines.append({**line, "model": model, "budget_bytes": budget, "cpu_seconds": more})
            ratio = line["arena_bytes"] / max(line["live_bytes"], 1)
            ratios.append(ratio)
            rows += 1
            if ratio >= args.most:
                over += 1
                wrong.append(f"{model} at {budget}: the arena is {ratio:.5f} of what is live")
            if line["planned_bytes"] > budget:
                wrong.append(f"{model} at {budget}: takes {line['planned_bytes']}")
            if before is not None and line["predicted_ms"] > before * (1 + 1e-9):
                wrong.append(f"{model} at {budget}: slower than with less")
            before = line["predicted_ms"]
        all_seconds += seconds
        cells = " ".join("     1" if r == 1 else f"{r:6.4f}" for r in ratios)
        print(f"{model:13} {seconds:6.2f} {floor / MIB:9.2f}  {cells}", flush=True)
    print(f"{rows - over} of {rows} rows under {args.most}; {all_seconds:.1f} processor seconds")
    cases.finish(lines, wrong, args.jsonl)


if __name__ == "__main__":
    main()
