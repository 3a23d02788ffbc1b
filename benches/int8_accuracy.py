#!/usr/bin/env python3
"""What eight bits cost in accuracy: models are trained, exported in float32 and in int8, and both files are evaluated on all held-back samples.

    cargo build --release
    python benches/int8_accuracy.py [--fashion /usr/share/datasets/fashion-mnist] [--out table.md] [--most 0.5] [--seeds 5] [ROW ...]

A row is a model on `digits`, which is part of the program, or on Fashion-MNIST in IDX files (Debian's package `dataset-fashion-mnist`). The 297
held-back samples of `digits` are few, so that models of several `--seeds` are judged there together. Ranges are found on 128 held-back samples, as
the command does by itself; weights do not depend on them. A row misses its mark, and is starred, where int8 is more than `--most` points below
float32. *compressed* is the int8 file after gzip -9: pruned weights are zeros. The status is the number of rows that miss.
"""

import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

PLIMSOLL = pathlib.Path(__file__).resolve().parent.parent / "target" / "release" / "plimsoll"
#: Words of `plimsoll train` for each row, but for the data.
DIGITS = {
    "mlp": ["mlp", "--epochs", 20],
    "cnn": ["cnn", "--epochs", 20],
    "cnn, 90 % pruned": ["cnn", "--epochs", 30, "--prune", 0.9],
    "resnet18": ["resnet18", "--width", 16, "--epochs", 15],
}
FASHION = {
    "mlp": ["mlp", "--epochs", 5, "--batch", 64, "--schedule", "cosine"],
    "cnn": ["cnn", "--epochs", 5, "--batch", 64, "--lr", 0.002, "--schedule", "cosine"],
    "cnn, 90 % pruned": ["cnn", "--epochs", 5, "--batch", 64, "--lr", 0.002, "--schedule", "cosine", "--prune", 0.9],
    "resnet18": ["resnet18", "--width", 8, "--epochs", 2, "--batch", 64, "--lr", 0.002, "--schedule", "cosine"],
}


def ran(*words):
    done = subprocess.run([str(PLIMSOLL), *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"plimsoll {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def accuracy(file, data):
    """The share of the held-back samples that a file has right, and how many there are. Bytes are what they were in training."""
    found = json.loads(ran("evaluate", file, "--data", data, "--scale", "unit", "--json").splitlines()[-1])
    return found["accuracy"], found["samples"]


def row(name, data, words, seed, folder):
    run = folder / "run"
    ran("train", *words, "--data", data, "--seed", seed, "--out", run, "-q")
    files = {"f32": folder / "m.tflite", "int8": folder / "m8.tflite"}
    ran("export", run, "--to", files["f32"], "--overwrite")
    said = json.loads(ran("export", run, "--to", files["int8"], "--quantize", "int8", "--calibrate", data, "--json", "--overwrite").splitlines()[-1])
    judged = {way: accuracy(file, data) for way, file in files.items()}
    points = 100 * (judged["int8"][0] - judged["f32"][0])
    sizes = [files["f32"].stat().st_size, files["int8"].stat().st_size, len(gzip.compress(files["int8"].read_bytes(), 9))]
    return {"row": name, "samples": judged["f32"][1], "f32": judged["f32"][0], "int8": judged["int8"][0], "points": points, "bytes": sizes,
            "ranges": said["calibrated_on"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--fashion", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--most", type=float, default=0.5)
    args = parser.parse_args()
    tables = [("digits", "digits", DIGITS, args.seeds)]
    if args.fashion:
        tables.append(("Fashion-MNIST", args.fashion, FASHION, 1))
    lines = ["| model | samples | f32 | int8 | points | bytes f32 | int8 | compressed | ranges found on |", "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
    print("\n".join(lines), flush=True)
    missed = 0
    for called, data, models, seeds in tables:
        for name, words in models.items():
            if args.rows and name not in args.rows:
                continue
            rows = []
            for seed in range(seeds):
                with tempfile.TemporaryDirectory(prefix="int8-accuracy-") as folder:
                    rows.append(row(f"{called}: {name}", data, words, seed, pathlib.Path(folder)))
            found = {**rows[0], **{key: sum(row[key] for row in rows) / seeds for key in ("f32", "int8", "points")}}
            found["samples"] = sum(row["samples"] for row in rows)
            star = " *" if found["points"] < -args.most else ""
            missed += bool(star)
            sizes = " | ".join(map(str, found["bytes"]))
            lines.append(f"| {found['row']} | {found['samples']} | {found['f32']:.4f} | {found['int8']:.4f} | {found['points']:+.2f}{star} | {sizes} | {found['ranges']} |")
            print(lines[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")
    sys.exit(missed)


if __name__ == "__main__":
    main()
