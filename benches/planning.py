#!/usr/bin/env python3
"""How long `plimsoll plan` takes to answer: every model of `plimsoll models` at the sizes of its table and at batch 32, without a memory
limit and at several, each by a process of its own.

    cargo build --release && python benches/planning.py [--models resnet50 vit:32] [--jsonl FILE] [--most 1.0]

A model is `NAME` or `NAME:BATCH`. *Cold* has an empty cache folder: no kernel has been timed and no plan was kept. *Again* is the same
command with what the first left there. *Floors* is cold without a cache folder, so that no kernel is timed: what planning alone takes.
Printed are wall seconds and, behind a slash, processor seconds of the process. The status is not zero where a cold answer takes longer
than `--most` (not looked at without it).
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLIMSOLL = ROOT / "target" / "release" / "plimsoll"


def ask(program, model, memory, cache):
    """The answer of `plimsoll plan`, with the wall and processor seconds that it took."""
    name, _, batch = model.partition(":")
    words = [program, "plan", name, "--json", "--no-frontier"]
    words += ["--batch", batch] if batch else []
    words += ["--memory", str(memory)] if memory else []
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PLIMSOLL_CACHE": str(cache)})
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), wall, processor


def limits(free):
    """Memory limits worth asking for: hopeless, below the floor, at it, a little and halfway above it, half of what the fastest plan takes,
    and all of that."""
    floor, most = free["floor_bytes"], max(free["unlimited_bytes"], free["floor_bytes"])
    return {"none": None, "1 MiB": 1 << 20, "half the floor": floor // 2, "floor - 1": floor - 1, "floor": floor, "floor + 5 %": floor + floor // 20,
            "half the most": most // 2, "middle": (floor + most) // 2, "most": most}


def models(program, named):
    """The models that were named, or all of the program's table, each as it stands there and at batch 32."""
    table = json.loads(subprocess.run([program, "models", "--json"], capture_output=True, text=True, check=True).stdout)
    return named or [row["name"] + batch for row in table for batch in ("", ":32")]


def finish(jsonl, lines, what, faults):
    """Writes the lines where they are wanted, and ends with a status where there are faults."""
    if jsonl:
        jsonl.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if faults:
        sys.exit("\n".join([f"{what}:", *faults]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--program", type=pathlib.Path, default=PLIMSOLL)
    parser.add_argument("--jsonl", type=pathlib.Path)
    parser.add_argument("--most", type=float)
    args = parser.parse_args()
    scratch, late, lines = pathlib.Path(tempfile.mkdtemp(prefix="planning-")), [], []
    print(f"{'model':12} {'memory limit':15} {'bytes':>13} {'cold':>13} {'again':>13} {'floors':>13}  answer")
    for model in models(args.program, args.models):
        free, _, _ = ask(args.program, model, None, "")
        for what, memory in limits(free).items():
            cache = scratch / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            cache.mkdir()
            cold, wall, processor = ask(args.program, model, memory, cache)
            _, wall_again, processor_again = ask(args.program, model, memory, cache)
            untimed, wall_untimed, processor_untimed = ask(args.program, model, memory, "")
            fits = "a plan" if cold["fits"] else "refused"
            figures = [f"{w:6.2f}/{p:6.2f}" for w, p in
                       [(wall, processor), (wall_again, processor_again), (wall_untimed, processor_untimed)]]
            print(f"{model:12} {what:15} {memory or 0:13} {' '.join(figures)}  {fits}", flush=True)
            lines.append({"model": model, "limit": what, "memory": memory, "fits": cold["fits"], "cold_wall": wall,
                          "cold_processor": processor, "again_wall": wall_again, "again_processor": processor_again,
                          "untimed_wall": wall_untimed, "untimed_processor": processor_untimed, "floor": cold["floor_bytes"],
                          "untimed_floor": untimed["floor_bytes"], "planned": cold.get("planned_bytes"),
                          "untimed_ms": untimed.get("predicted_ms")})
            if args.most and wall > args.most:
                late.append(f"{model} at {what}: {wall:.2f} s")
    shutil.rmtree(scratch)
    finish(args.jsonl, lines, "later than asked", late)


if __name__ == "__main__":
    main()
