#!/usr/bin/env python3
"""How long `plimsoll plan` takes to answer: every model of `plimsoll models` at the sizes of its table and at batch 32, without a memory
limit and at several, each by a process of its own.

    cargo build --release && python benches/planning.py [--models resnet50 vit:32] [--keras ResNet50 DenseNet121] [--jsonl FILE] [--most 1.0]
        [--spent]

A model is `NAME`, `NAME:BATCH` or a file; with `--keras` it is one of `keras.applications`, which is written to a file first where Keras is
installed. `--spent` prints, of every cold answer, what most of its time went to. *Cold* has an empty cache folder: no kernel has been timed and no plan was kept. *Again* is the same
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


def keras_files(names, folder):
    """Models of `keras.applications` as files, compiled and without weights of others."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import keras
    except ImportError:
        sys.exit("--keras: Keras is not installed for this Python")
    files = []
    for name in names:
        model = getattr(keras.applications, name)(weights=None)
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        files.append(str(folder / f"{name}.keras"))
        model.save(files[-1])
        keras.backend.clear_session()
    return files


def most_of(spent):
    """What the three longest parts of an answer's time went to, in milliseconds."""
    parts = sorted(((ms, what) for what, ms in spent.items() if what != "all"), reverse=True)[:3]
    return ", ".join(f"{what} {ms:.0f}" for ms, what in parts)


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
    parser.add_argument("--keras", nargs="+", metavar="NAME")
    parser.add_argument("--spent", action="store_true")
    parser.add_argument("--program", type=pathlib.Path, default=PLIMSOLL)
    parser.add_argument("--jsonl", type=pathlib.Path)
    parser.add_argument("--most", type=float)
    args = parser.parse_args()
    scratch, late, lines = pathlib.Path(tempfile.mkdtemp(prefix="planning-")), [], []
    print(f"{'model':12} {'memory limit':15} {'bytes':>13} {'cold':>13} {'again':>13} {'floors':>13}  answer")
    named = args.models
    if args.keras:
        named = (named or []) + keras_files(args.keras, scratch)
    for model in models(args.program, named):
        shown = pathlib.Path(model).stem
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
            spent = f"  ({most_of(cold['spent_ms'])})" if args.spent else ""
            print(f"{shown:12} {what:15} {memory or 0:13} {' '.join(figures)}  {fits}{spent}", flush=True)
            lines.append({"model": shown, "limit": what, "memory": memory, "fits": cold["fits"], "cold_wall": wall,
                          "cold_processor": processor, "again_wall": wall_again, "again_processor": processor_again,
                          "untimed_wall": wall_untimed, "untimed_processor": processor_untimed, "floor": cold["floor_bytes"],
                          "untimed_floor": untimed["floor_bytes"], "planned": cold.get("planned_bytes"),
                          "untimed_ms": untimed.get("predicted_ms")})
            if args.most and wall > args.most:
                late.append(f"{shown} at {what}: {wall:.2f} s")
    shutil.rmtree(scratch)
    finish(args.jsonl, lines, "later than asked", late)


if __name__ == "__main__":
    main()
