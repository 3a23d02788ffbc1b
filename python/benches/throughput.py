"""Trains one Keras model from a .npz file by the command, from NumPy arrays and from a tf.data.Dataset by the package, in turn, and compares samples
a second: the package must reach 98 % of the command's, and must not copy the arrays.

usage: python python/benches/throughput.py [--samples 4000] [--side 64] [--batch 32] [--epochs 3] [--rounds 5] [--least 0.98] [--threads N]

Needs a release build of the package (`pip install ./python`) and Keras with TensorFlow. Speeds are the engine's own: of each round the fastest epoch,
of all rounds the median, since one lucky round of the command says nothing; readers take turns, so that a load from outside meets all of them. Ends with status 1 where one is slower or an array was copied.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 1 << 20


def settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--least", type=float, default=0.98)
    parser.add_argument("--memory", default="500MiB")
    parser.add_argument("--one", choices=("numpy", "dataset"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def make(folder: Path, asked: argparse.Namespace) -> None:
    """The data as arrays in a file, and the model as a Keras file."""
    import keras
    import numpy as np
    from keras import layers

    rng = np.random.default_rng(0)
    x = rng.normal(size=(asked.samples, asked.side, asked.side, 3)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=rng.integers(0, 10, asked.samples))
    convolution = lambda width, stride: layers.Conv2D(width, 3, strides=stride, padding="same", activation="relu")
    model = keras.Sequential(
        [keras.Input((asked.side, asked.side, 3)), convolution(32, 2), convolution(64, 2), convolution(64, 1), convolution(64, 1), layers.GlobalAveragePooling2D(),
         layers.Dense(10, activation="softmax")], name="small"
    )  # fmt: skip
    model.compile("adam", "sparse_categorical_crossentropy")
    model.optimizer.build(model.trainable_variables)
    model.save(folder / "small.keras")


def memory(row: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(row))


def by_package(reader: str, folder: Path, asked: argparse.Namespace) -> None:
    """In a process of its own: prints the best speed, processor seconds, the bytes of the arrays, and by how much the resident set grew."""
    import keras
    import numpy as np

    import plimsoll

    model = keras.models.load_model(folder / "small.keras")
    with np.load(folder / "data.npz") as data:
        x, y = data["x"], data["y"]
    how = {"epochs": asked.epochs, "verbose": 0, "memory": asked.memory, "seed": 0}
    if reader == "dataset":
        import tensorflow as tf

        given = (tf.data.Dataset.from_tensor_slices((x, y)).batch(asked.batch).prefetch(2),)
    else:
        given = (x, y)
        how["batch_size"] = asked.batch
    with open("/proc/self/clear_refs", "w", encoding="ascii") as refs:
        refs.write("5")
    before, began = memory("VmRSS"), resource.getrusage(resource.RUSAGE_SELF)
    history = plimsoll.fit(model, *given, **how)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    seconds = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    print(max(history.samples_s), seconds, x.nbytes, memory("VmHWM") - before, history.plan.planned, before)


def by_command(folder: Path, asked: argparse.Namespace, turn: int) -> tuple[float, float]:
    """The best speed and processor seconds of the command."""
    out = folder / f"run-{turn}"
    words = ["train", str(folder / "small.keras"), "--data", str(folder / "data.npz"), "--batch", str(asked.batch), "--epochs", str(asked.epochs)]
    words += ["--memory", asked.memory, "--quiet", "--out", str(out)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "plimsoll._command", *words], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(out / "metrics.csv", encoding="utf-8", newline="") as table:
        speeds = [float(row["samples_s"]) for row in csv.DictReader(table)]
    return max(speeds), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    asked = settings()
    if asked.one:
        by_package(asked.one, asked.folder, asked)
        return 0
    speeds: dict[str, list[float]] = {"command": [], "numpy": [], "dataset": []}
    least: dict[str, float] = {}
    failed = []
    with tempfile.TemporaryDirectory(prefix="plimsoll-throughput-") as name:
        folder = Path(name)
        os.environ["PLIMSOLL_CACHE"] = str(folder / "cache")
        make(folder, asked)
        for turn in range(asked.rounds):
            speed, seconds = by_command(folder, asked, turn)
            speeds["command"].append(speed)
            least["command"] = min(least.get("command", 1e9), seconds)
            print(f"round {turn + 1}: the command from files      {speed:9.1f} samples/s  {seconds:6.2f} s of processor", flush=True)
            for reader in ("numpy", "dataset"):
                words = [sys.executable, __file__, "--one", reader, "--folder", name, "--epochs", str(asked.epochs), "--batch", str(asked.batch), "--memory", asked.memory]
                done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
                speed, seconds, array, grown, planned, held = map(float, done.stdout.split())
                speeds[reader].append(speed)
                least[reader] = min(least.get(reader, 1e9), seconds)
                print(
                    f"round {turn + 1}: the package from {reader:<10} {speed:9.1f} samples/s  {seconds:6.2f} s of processor; resident {held / MIB:.0f} MiB before, "
                    f"{grown / MIB:.0f} MiB more at the peak ({planned / MIB:.0f} MiB planned), arrays of {array / MIB:.0f} MiB", flush=True,
                )  # fmt: skip
                # tf.data has batches of its own in the same process.
                if reader == "numpy" and grown > planned + MIB:
                    failed.append(f"from {reader} the resident set grew by {grown / MIB:.1f} MiB, more than the {planned / MIB:.1f} MiB planned")
                if grown > planned + array / 2:
                    failed.append(f"from {reader} the resident set grew as if the arrays were copied")
    for reader in ("numpy", "dataset"):
        ratio = statistics.median(speeds[reader]) / statistics.median(speeds["command"])
        best = max(speeds[reader]) / max(speeds["command"])
        print(f"{reader}: {ratio:.3f} of the command's speed (the best rounds {best:.3f}), {least[reader] / least['command']:.2f} of its processor seconds (with imports)")
        if ratio < asked.least:
            failed.append(f"from {reader} training reaches {ratio:.3f} of the command's speed, and {asked.least} is wanted")
    for why in failed:
        print(f"FAILED: {why}")
    print("failed" if failed else "passed: as fast as the command, and no array was copied")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
