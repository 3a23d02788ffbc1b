"""Two ranks of MPI that share one card, each way to share a training, against one rank: losses, and bytes as NVML counts them.

usage: python benches/mpi_card.py [--plimsoll target/release/plimsoll] [--mpirun mpirun] [--memory 1GiB] [--within 1e-5]

Each process is asked to stay within the limit; what it took of the card is in ranks.json, by NVML, and nvidia-smi counts all of them together from
outside. Ends with status 1 where a loss is further off than that, a rank took more than its limit, or a run failed.
"""

import argparse
import csv
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20
MODELS = {
    "mlp": "mlp --data digits --batch 64 --epochs 2 --seed 3",
    "gpt": "gpt --data text --take 96 --batch 8 --epochs 1 --seed 3 --width 128 --depth 2 --heads 4 --sequence 64",
}
WAYS = ("data", "shard", "parameters", "tensor", "pipeline")


def taken():
    """MiB of the card that are in use, by whomever."""
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0])


def train(asked, words, ranks, out):
    """Losses by epoch, what each rank said, and the most MiB that were seen of the card meanwhile; or what went wrong."""
    command = [asked.plimsoll, "train", *words.split(), "--device", "cuda", "--memory", asked.memory, "--out", str(out), "--quiet"]
    if ranks > 1:
        command = [*shlex.split(asked.mpirun), "-n", str(ranks), *command]
    before, most, is_over = taken(), [0], threading.Event()

    def watch():
        while not is_over.is_set():
            most[0] = max(most[0], taken() - before)
            time.sleep(0.05)

    watching = threading.Thread(target=watch)
    watching.start()
    done = subprocess.run(command, capture_output=True, text=True)
    is_over.set()
    watching.join()
    if done.returncode:
        return None, done.stderr.strip()[-400:], most[0]
    with open(out / "metrics.csv", encoding="utf-8", newline="") as table:
        losses = [float(row["loss"]) for row in csv.DictReader(table)]
    said = out / "ranks.json"
    return losses, json.loads(said.read_text()) if said.exists() else None, most[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--plimsoll", default="target/release/plimsoll")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--within", type=float, default=1e-5)
    asked = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory(prefix="plimsoll-mpi-card-") as name:
        folder = pathlib.Path(name)
        for model, words in MODELS.items():
            one, said, most = train(asked, words, 1, folder / model)
            if one is None:
                sys.exit(f"{model}: {said}")
            print(f"{model}, one rank: {one}, {most} MiB by NVML", flush=True)
            for way in WAYS:
                two, said, most = train(asked, f"{words} --parallel {way}", 2, folder / f"{model}-{way}")
                if two is None:
                    wrong.append(f"{model} {way}: {said}")
                    continue
                limit = json.loads((folder / f"{model}-{way}" / "plan.json").read_text())["memory_limit_bytes"]
                off = max(abs(a - b) / max(1, abs(a)) for a, b in zip(one, two))
                peaks = [row["peak_bytes"] for row in said["rows"]]
                print(f"{model}, {way} by {said['by']}: off by {off:.1e}; {', '.join(f'{peak / MIB:.0f}' for peak in peaks)} MiB a rank, {most} MiB of both by NVML", flush=True)
                if off > asked.within or len(two) != len(one):
                    wrong.append(f"{model} {way}: losses {two} where one rank has {one}")
                if max(peaks) > limit:
                    wrong.append(f"{model} {way}: {peaks} bytes where {limit} are the limit")
    for why in wrong:
        print("WRONG:", why)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
