#!/usr/bin/env python3
"""Trainings with settings drawn at random, each held to what `plimsoll plan` says of it: the least works, a byte less does not, nobody is over the limit.

    cargo build --release && python benches/any_settings.py [--first 0] [--count 100] [--large] [--only NUMBER] [--program FILE] [--keep]

Each number draws a model and settings: data, batch and samples, optimizer, precision, state, schedule, clipping, averages, pruning, rounding,
augmentation, micro-batches, allocator, disk, exactness, threads. A training that is refused must be refused in a sentence, and `plan` with it. Of one that
is not:

- the least of `plan --json` is enough for all of the run, as the kernel counts the process (its largest resident set);
- one byte less is refused (with `--allocator pages` two pages: small tensors share pages as they come, which a plan only knows to a page);
- the losses inside the least are those without a limit: the same digits where plans are bitwise, nearly the same elsewhere;
- a run inside the least that is ended three times, killed or by Ctrl-C, and resumed has the same weights as one that was not, bit for bit, and stays inside.

With --large, weights of tens of megabytes: what takes memory beside the plan cannot hide in the room that planning needs. Prints a line for each, and what was
wrong above it; ends with the number of trainings with something wrong. The same number draws the same training (--only 17).
"""

import argparse
import filecmp
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = {
    "mlp": "--image 8 --width 16 --depth 2", "cnn": "--image 12 --width 8", "resnet18": "--image 16 --width 4", "mobilenet": "--image 32 --width 8",
    "unet": "--image 16 --width 4 --depth 2", "gpt": "--sequence 16 --width 16 --depth 2 --heads 2",
    "gpt2": "--sequence 16 --width 16 --depth 2 --heads 2 --classes 100", "vit": "--image 16 --patch 4 --width 16 --depth 2 --heads 2",
    "lstm": "--sequence 12 --width 8",
}
LARGE = {
    "mlp": "--image 16 --width 2000 --depth 2", "cnn": "--image 16 --width 160", "resnet18": "--image 16 --width 48",
    "mobilenet": "--image 32 --width 16 --classes 5000", "unet": "--image 16 --width 32 --depth 3", "gpt": "--sequence 16 --width 384 --depth 1 --heads 2",
    "gpt2": "--sequence 16 --width 128 --depth 1 --heads 2 --classes 40000", "vit": "--image 32 --patch 16 --width 512 --depth 1 --heads 2 --classes 9000",
    "lstm": "--sequence 6 --width 600",
}
OPTIMIZERS = "sgd momentum nesterov adam adamw rmsprop adagrad ftrl lion adafactor".split()
NARROW = ("mixed-bf16", "mixed-f16", "bf16", "8bit")


def drawn(number: int, sizes: dict[str, str], disk: str) -> list[str]:
    """The words of a training."""
    dice = random.Random(number)
    model = dice.choice(sorted(sizes))
    words, has_images = [model, *sizes[model].split()], model in ("mlp", "cnn", "resnet18", "mobilenet", "vit")
    data = "random"
    if model in ("gpt", "lstm") and dice.random() < 0.4:
        data = "text"
    if model in ("mlp", "cnn") and dice.random() < 0.3 or model == "unet" and dice.random() < 0.3:
        at = words.index("--image")
        data, words[at : at + 2] = "shapes:16:40" if model == "unet" else "digits", []
    batch = dice.choice([1, 3, 5, 8, 16])
    words += ["--data", data, "--batch", batch, "--take", dice.choice([batch, 2 * batch, 2 * batch + 1, 3 * batch - 1]), "--epochs", dice.choice([1, 2, 3])]
    optimizer = dice.choice(OPTIMIZERS)
    words += ["--optimizer", optimizer]

    def maybe(share: float, *more: object) -> None:
        if dice.random() < share:
            words.extend(more)

    maybe(0.5, "--precision", dice.choice(["f64", "mixed-bf16", "mixed-f16", "bf16", "f32"]))
    maybe(0.3, "--schedule", dice.choice(["cosine", "exponential", "one-cycle"]))
    maybe(0.2, "--warm-up", 2)
    maybe(0.3, "--clip-norm", dice.choice([0.1, 1]))
    maybe(0.25, "--average", 0.9)
    if optimizer in ("sgd", "momentum", "nesterov", "adam", "adamw"):
        maybe(0.2, "--weight-decay", 0.05)
    if optimizer in ("adam", "adamw", "momentum", "nesterov", "lion"):
        maybe(0.3, "--state", dice.choice(["bf16", "8bit"]))
    maybe(0.2, "--prune", dice.choice(["0.5", "2:4"]))
    maybe(0.15, "--quantize-aware")
    maybe(0.2, "--allocator", dice.choice(["system", "pages", "pool"]))
    maybe(0.3, "--exact", dice.choice(["bitwise", "approximate"]))
    maybe(0.3, "--threads", dice.choice([1, 2, 3]))
    maybe(0.2, "--validation-split", 0.3)
    if has_images:
        maybe(0.3, "--augment", dice.choice(["flip", "crop:2", "rotate:15", "color:0.2", "cutout:3", "mixup:0.2", "flip,crop:1,mixup:0.4"]))
    maybe(0.15, "--early-stopping", "loss")
    maybe(0.15, "--best", "loss")
    maybe(0.2, "--micro-batch", dice.choice([1, 2, 4]))
    maybe(0.2, "--checkpoint-every", 1)
    maybe(0.15, "--disk", f"{disk}:1GiB")
    maybe(0.2, "--seed", dice.randint(0, 99))
    return [str(word) for word in words]


class Runs:
    """Runs the command in a folder of its own. This process must stay small: the kernel counts what it has as its children's, until they are something else."""

    def __init__(self, program: pathlib.Path, folder: pathlib.Path) -> None:
        self.program, self.folder = str(program.resolve()), folder
        self.environment = {**os.environ, "PLIMSOLL_CACHE": str(folder / "cache")}
        self.dice = random.Random(1)

    def done(self, *words: object, seconds: float | None = None) -> tuple[int, str, str, int]:
        """The exit status, what was said and what was wrong, and the largest resident set; killed or told to end after so many seconds."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = subprocess.Popen([self.program, *map(str, words)], stdout=out, stderr=err, env=self.environment, cwd=self.folder)
            how = signal.SIGKILL if seconds is None else self.dice.choice([signal.SIGKILL, signal.SIGINT])
            timer = threading.Timer(seconds or 900, child.send_signal, [how])
            timer.start()
            _, status, usage = os.wait4(child.pid, 0)
            timer.cancel()
            child.returncode = os.waitstatus_to_exitcode(status)
            for file in (out, err):
                file.seek(0)
            return child.returncode, out.read(), " ".join(err.read().split()), usage.ru_maxrss << 10


def losses(run: pathlib.Path) -> list[float]:
    return [float(line.split(",")[2]) for line in (run / "steps.csv").read_text().splitlines()[1:]]


def is_a_sentence(wrong: str) -> bool:
    return wrong.startswith("plimsoll: ") and not any(word in wrong for word in ("panicked", "internal error", "unreachable"))


def looked_at(words: list[str], runs: Runs) -> tuple[list[str], str]:
    """What is wrong with a training, and what is to be said of it."""
    free, inside, resumed = (runs.folder / name for name in ("free", "inside", "resumed"))
    for folder in (free, inside, resumed):
        shutil.rmtree(folder, ignore_errors=True)
    status, _, wrong, _ = runs.done("train", *words, "--out", free, "--json")
    planned, said, why, _ = runs.done("plan", *words, "--json", "--no-frontier")
    if status:
        faults = [] if is_a_sentence(wrong) else [f"refused without a sentence: {wrong}"]
        return faults + ([] if planned else ["plan has a plan for it"]), f"refused: {wrong[:200]}"
    if planned:
        return [f"it trains, and plan says: {why}"], "trained"
    least, faults = json.loads(said)["floor_bytes"], []
    status, _, wrong, peak = runs.done("train", *words, "--memory", least, "--out", inside, "--json")
    if status:
        faults.append(f"the least, {least}, is refused: {wrong[:400]}")
    else:
        if peak > least:
            faults.append(f"the peak was {peak}, over the least, {least}")
        one, other = losses(free), losses(inside)
        off = max((abs(a - b) / max(1e-3, abs(a)) for a, b in zip(one, other)), default=0.0)
        most = 0.0 if "bitwise" in words else 0.05 if any(word in NARROW for word in words) else 2e-3
        if len(one) != len(other) or off > most:
            faults.append(f"losses are {off:.1e} off: {one[:6]} and {other[:6]}")
    is_in_pages = "--allocator pages" in " ".join(words)
    less = least - (4 << 20 if is_in_pages else 1)
    status, _, wrong, _ = runs.done("train", *words, "--memory", less, "--out", resumed, "--json")
    if not status:
        faults.append(f"{less} is less than the least, and works")
    elif str(least) not in wrong and not is_in_pages:
        faults.append(f"the refusal of {less} does not name {least}: {wrong[:300]}")
    shutil.rmtree(resumed, ignore_errors=True)
    highest = 0
    for seconds in [runs.dice.uniform(0.05, 0.8) for _ in range(3)] + [None]:
        # Before its first checkpoint a run has nothing to go on from, and begins again.
        more = ["--resume"] if any((resumed / "checkpoints").glob("*")) else []
        if not more:
            shutil.rmtree(resumed, ignore_errors=True)
        status, _, wrong, most = runs.done("train", *words, "--memory", least, "--out", resumed, "--json", *more, seconds=seconds)
        highest = max(highest, most)
        if status == 0:
            break
    if status:
        faults.append(f"it does not go on after it was ended: {wrong[:300]}")
    elif inside.exists() and not filecmp.cmp(inside / "model.safetensors", resumed / "model.safetensors", shallow=False):
        faults.append("other weights after it was ended and resumed")
    if highest > least:
        faults.append(f"the peak was {highest} when it was resumed, over the least, {least}")
    return faults, f"least {least}, peak {peak}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", type=int)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target" / "release" / "plimsoll")
    parser.add_argument("--keep", action="store_true", help="leave the last runs where they are, and say where")
    given = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="plimsoll-settings-"))
    (folder / "disk").mkdir()
    runs, at_fault = Runs(given.program, folder), 0
    numbers = range(given.first, given.first + given.count) if given.only is None else [given.only]
    for number in numbers:
        words = drawn(number, LARGE if given.large else SMALL, str(folder / "disk"))
        try:
            faults, said = looked_at(words, runs)
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            faults, said = [f"{type(error).__name__}: {error}"], "not looked at"
        at_fault += bool(faults)
        for fault in faults:
            print(f"WRONG {fault}")
        print(f"{number} {' '.join(words)}\n    {said}", flush=True)
    if given.keep:
        print(f"the last runs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(numbers)} trainings, {at_fault} with something wrong")
    sys.exit(min(at_fault, 100))


if __name__ == "__main__":
    main()
