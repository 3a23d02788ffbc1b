#!/usr/bin/env python3
"""Fifty commands on a cold and on a warm cache of kernel times: equal floors, and no process above what it announced.

    cargo build --release && python3 benches/announced.py

Each command runs twice in its own cache folder: first with nothing in it, then with what the first run left. Compared are the least memory
that is quoted (`floor_bytes`) and, from outside, the highest resident set of the process (`ru_maxrss`) with what it said it would
take (`planned_bytes`). A refusal must quote the same least both times. Exits with 1 where a limit does not hold.
"""

import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PLIMSOLL = os.environ.get("PLIMSOLL", os.path.join(HERE, "..", "target", "release", "plimsoll"))

MODELS = [
    "demo --take 300 --batch 50",
    "demo",
    "mlp --width 64 --take 128",
    "mlp --width 1024 --take 128 --batch 128",
    "cnn --width 8 --take 64",
    "cnn --width 32 --take 128 --batch 64",
    "resnet18 --width 8 --take 32 --batch 16",
    "resnet18 --width 64 --take 32 --batch 16",
    "unet --data shapes:32:16 --width 4 --depth 2 --batch 4",
    "unet --data shapes:64:16 --width 16 --batch 8",
    "gpt --take 16 --batch 8 --width 32 --depth 2 --heads 2",
    "lstm --take 16 --batch 8 --width 32 --depth 1",
    "vit --data digits --patch 4 --width 32 --depth 2 --heads 2 --take 64",
    "mlp --data TABLE --width 32 --loss mse",
    "mlp --data TABLE --width 256 --loss mae --validation-split 0.2",
    "cnn --data PICTURES --width 4 --batch 8",
    "cnn --data PICTURES --width 4 --batch 16 --image 48",
    "cnn --data random --width 8 --batch 64 --take 128",
    "gpt2 --data random --classes 500 --width 64 --depth 2 --heads 2 --sequence 64 --batch 4 --take 8",
]


def data(folder):
    """A table of numbers and a folder of small PNG images."""
    import struct
    import zlib

    random.seed(1)
    with open(f"{folder}/table.csv", "w") as out:
        out.write("a,b,c,price\n")
        for _ in range(400):
            out.write(",".join(f"{random.random():.3f}" for _ in range(4)) + "\n")
    for name in ("cat", "dog"):
        os.makedirs(f"{folder}/pictures/{name}")
        for i in range(24):
            rows = b"".join(b"\0" + random.randbytes(64 * 3) for _ in range(64))

            def chunk(kind, body):
                return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

            head = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
            png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
            with open(f"{folder}/pictures/{name}/{i}.png", "wb") as out:
                out.write(png)


def run(words, out, cache):
    """The command's floor, what it announced, and what it took at most; nothing announced where it was refused."""
    command = [PLIMSOLL, "train", *words, "--epochs", "1", "--threads", "2", "--json", "--out", out]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PLIMSOLL_CACHE": cache}
    )
    text, errors = child.stdout.read(), child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    events = [json.loads(line) for line in text.splitlines()]
    plan = next((event for event in events if event.get("event") == "plan"), None)
    if status != 0 or plan is None:
        if "cannot be kept" not in errors:
            raise SystemExit(f"{' '.join(command)}: {errors}")
        exact = [word for word in errors.replace("(", " ").replace(")", " ").split() if word.isdigit() and int(word) > 1 << 20]
        return (exact[:1] or [errors.splitlines()[0]])[0], None, usage.ru_maxrss * 1024
    return plan["floor_bytes"], plan["planned_bytes"], usage.ru_maxrss * 1024


def main():
    bad = n = 0
    mib = 1 / (1 << 20)
    with tempfile.TemporaryDirectory() as folder:
        data(folder)
        for i, model in enumerate(MODELS):
            words = model.replace("TABLE", f"{folder}/table.csv").replace("PICTURES", f"{folder}/pictures").split()
            first = run(words, f"{folder}/look-{i}", f"{folder}/look-cache-{i}")
            limits = [[], ["--memory", str(int(first[0]))], ["--memory", str(int(first[0]) + (4 << 20))]]
            if model == "demo":
                limits = [[], ["--memory", "25MiB"]]
            for j, limit in enumerate(limits):
                name, cache = f"{folder}/{i}-{j}", f"{folder}/cache-{i}-{j}"
                cold = run(words + limit, name + "-cold", cache)
                warm = run(words + limit, name + "-warm", cache)
                told = [run for run in (cold, warm) if run[1] is not None]
                holds = cold[0] == warm[0] and all(took <= said for _, said, took in told)
                bad, n = bad + (not holds), n + 1
                shown = [f"{said * mib:6.1f} said {took * mib:6.1f} taken" if said else "refused" for _, said, took in (cold, warm)]
                print(
                    f"{'ok ' if holds else 'BAD'} least {cold[0]} / {warm[0]}  cold {shown[0]}  warm {shown[1]}  {model} {' '.join(limit)}",
                    flush=True,
                )
    print(f"{n} commands, cold and warm: {bad} do not hold")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
