#!/usr/bin/env python3
"""Whether one `plimsoll` plans worse than another: every model of `plimsoll models` at the limits of `planning.py`, by both.

    python benches/planning_quality.py --before OLD/plimsoll [--after target/release/plimsoll] [--models vit gpt] [--limits none "1 MiB"] [--jsonl FILE]

Nothing is cached and no kernel is timed, so that both plan by the same predicted times and every run gives the same answers. A floor
that rises, a plan that is predicted to be slower, one that is as fast and takes more bytes, and a way out of a refusal that is offered no
more are named; the status is then not zero. What ways out need is found in haste: by how much more at most is printed.
"""

import argparse
import pathlib

from planning import PLIMSOLL, ask, finish, limits, models


def worse(before, after):
    """What is worse in the second of two answers to the same question."""
    if before["fits"] != after["fits"]:
        return ["fits no more"] if before["fits"] else []
    found = ["floor"] if after["floor_bytes"] > before["floor_bytes"] else []
    found += ["ways out"] if flags(before) - flags(after) else []
    if before["fits"]:
        old, new = before["predicted_ms"], after["predicted_ms"]
        found += ["time"] if new > old else []
        found += ["bytes"] if new >= old and after["planned_bytes"] > before["planned_bytes"] else []
    return found


def flags(answer):
    """The ways out that a refusal offers."""
    return {way["flag"] for way in answer.get("ways_out") or []}


def dearer(before, after):
    """The most that a way out needs in the second answer, as a multiple of what it needs in the first."""
    least = {way["flag"]: way["least_bytes"] for way in before.get("ways_out") or []}
    return max((way["least_bytes"] / least[way["flag"]] for way in after.get("ways_out") or [] if way["flag"] in least), default=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=pathlib.Path, required=True)
    parser.add_argument("--after", type=pathlib.Path, default=PLIMSOLL)
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--limits", nargs="+", help="of those of planning.py, by name")
    parser.add_argument("--jsonl", type=pathlib.Path)
    args = parser.parse_args()
    lines, faults = [], []
    print(f"{'model':12} {'memory limit':15} {'floor':>25} {'planned':>25} {'ms':>23} {'processor s':>15}  {'ways':>6}")
    for model in models(args.after, args.models):
        free, _, _ = ask(args.before, model, None, "")
        for what, memory in limits(free).items():
            if args.limits and what not in args.limits:
                continue
            (old, _, took), (new, _, takes) = (ask(program, model, memory, "") for program in (args.before, args.after))
            found = worse(old, new)
            figures = [f"{name}: {old.get(name)} -> {new.get(name)}" for name in ("floor_bytes", "planned_bytes", "predicted_ms")]
            print(f"{model:12} {what:15} {old['floor_bytes']:12} {new['floor_bytes']:12} {old.get('planned_bytes') or 0:12} "
                  f"{new.get('planned_bytes') or 0:12} {old.get('predicted_ms') or 0:11.2f} {new.get('predicted_ms') or 0:11.2f} "
                  f"{took:7.2f} {takes:7.2f}  {dearer(old, new):6.3f}  {'WORSE: ' + ', '.join(found) if found else ''}", flush=True)
            faults += [f"{model} at {what}: {'; '.join(figures)}"] if found else []
            names = ("fits", "floor_bytes", "planned_bytes", "predicted_ms", "micro_batches", "ways_out")
            lines.append({"model": model, "limit": what, "memory": memory, "before": {n: old.get(n) for n in names} | {"processor": took},
                          "after": {n: new.get(n) for n in names} | {"processor": takes}, "worse": found})
    finish(args.jsonl, lines, "worse than before", faults)


if __name__ == "__main__":
    main()
