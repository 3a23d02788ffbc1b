"""The reference cases: models of `plimsoll models` with the flags under which other systems' scripts measure the same models.

All are on random numbers, with cross-entropy and no metrics. Peers' scripts name the same cases.
"""

import json
import sys

COMMON = ["--data", "random", "--metrics", "none"]

# On two threads of a CPU: Adam at 1e-3, the sizes of `plimsoll models`.
CPU = {"mlp": 128, "cnn": 64, "resnet18": 64, "unet": 4, "gpt": 8, "lstm": 16}

# On a card: the batch, and what differs from the sizes of `plimsoll models`.
CARD = {
    "gpt2": (16, "--classes 50304 --optimizer adamw --lr 3e-4"),
    "resnet50": (256, "--optimizer momentum --lr 0.1 --weight-decay 1e-4"),
    "unet": (32, "--width 64 --depth 5 --image 256"),
    "lstm": (64, "--width 1024 --sequence 256 --classes 10000"),
}


def finish(lines, wrong, path):
    """Keeps every row as a line of JSON where a path is given, says what is wrong, and ends with 1 if anything is."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for complaint in wrong:
        print("WRONG:", complaint)
    sys.exit(bool(wrong))


def cpu(case, threads=2, batch=None):
    """The words of `plimsoll bench` and `plimsoll plan` for a case on a CPU, at its own batch or another."""
    return [case, *COMMON, "--batch", str(batch or CPU[case]), "--threads", str(threads)]


def card(case, batch=None):
    """The words of `plimsoll bench` for a case on a card in mixed bf16, at its own batch or another."""
    own, flags = CARD[case]
    return [case, *COMMON, *flags.split(), "--batch", str(batch or own), "--device", "cuda", "--precision", "mixed-bf16"]
