#!/usr/bin/env python3
"""Whether the ways out of refusals hold what they say: every model of `plimsoll models` is refused at 1 MiB, and each way out is taken.

    cargo build --release && python benches/ways_out.py [--models resnet50 vit:32] [--program FILE] [--most 1.05]

A way out names a flag and the least memory with it. The same command with that flag and that memory must have a plan, or the way out is
no way out; by how much its own least is lower is printed. The status is not zero where a way out does not hold, or names more than
`--most` times the least. Nothing is cached and no kernel is timed, so that every run gives the same answers.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

from planning import PLIMSOLL, models


def ask(program, model, flags, memory):
    """The answer of `plimsoll plan`."""
    name, _, batch = model.partition(":")
    # What is said later counts where a flag is in both.
    flags = (["--batch", batch] if batch and "--batch" not in flags else []) + flags
    words = [program, "plan", name, "--json", "--no-frontier", "--memory", str(memory), *flags]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PLIMSOLL_CACHE": ""})
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--program", type=pathlib.Path, default=PLIMSOLL)
    parser.add_argument("--most", type=float, default=1.05)
    args = parser.parse_args()
    faults = []
    print(f"{'model':14} {'way out':28} {'says':>13} {'least':>13}  times")
    for model in models(args.program, args.models):
        for way in ask(args.program, model, [], 1 << 20).get("ways_out") or []:
            says = way["least_bytes"]
            taken = ask(args.program, model, way["flag"].split(), says)
            times = says / taken["floor_bytes"]
            wrong = "" if taken["fits"] else "DOES NOT HOLD" if times < 1 else "REFUSED"
            if not wrong and times > args.most:
                wrong = "DEAR"
            print(f"{model:14} {way['flag']:28} {says:13} {taken['floor_bytes']:13}  {times:.3f} {wrong}", flush=True)
            faults += [f"{model} {way['flag']}: {wrong.lower()}"] if wrong else []
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
