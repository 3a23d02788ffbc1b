#!/usr/bin/env python3
"""Ten trainings on a card under two limits: the card's memory and the host's, each with the most that was seen of it.

    cargo build --release && python3 benches/both_limits.py --plimsoll target/release/plimsoll

Each run is planned first without a limit, to learn the least of both; then it trains under limits that differ from run to run. The host
is measured from outside: the highest resident set of the process (VmHWM in /proc, and ru_maxrss when it has ended). The card is measured by
NVML through nvidia-smi, again and again while the run lasts, less what others held before. Exits with 1 where a limit did not hold.
Needs Python 3 and nvidia-smi, nothing else.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
# A model, how far its card limit is from the least (0) to what the fastest plan takes (1), and MiB of the host beyond what is planned
# without copies: with some, a plan may offload.
RUNS = [
    ("mlp --width 4096 --data digits --batch 128", 0.0, 0),
    ("mlp --width 4096 --data digits --batch 128", 0.0, 1024),
    ("cnn --width 64 --data digits --batch 256", 0.5, 0),
    ("resnet18 --width 64 --take 512 --batch 64", 0.0, 0),
    ("resnet50 --data random --take 256 --batch 64", 0.3, 256),
    ("unet --data shapes:128:64 --width 32 --batch 16", 0.5, 512),
    ("gpt --take 64 --batch 16 --width 512 --depth 6 --heads 8", 0.0, 0),
    ("gpt2 --data random --classes 50304 --optimizer adamw --lr 3e-4 --batch 4 --take 32 --precision mixed-bf16", 0.2, 2048),
    ("lstm --take 64 --batch 16 --width 512 --depth 2", 0.7, 64),
    ("vit --data digits --patch 4 --width 128 --depth 4 --heads 4 --take 512 --batch 64", 1.0, 0),
]


def of_card(gpu):
    """Bytes of the card that all processes hold, as NVML counts them."""
    asked = ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]) * MIB


def of_host(process):
    """The highest resident set of a process so far, in bytes."""
    try:
        with open(f"/proc/{process}/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def planned(args, words):
    """What the command plans without limits."""
    command = [args.plimsoll, "plan", *words, "--device", "cuda", "--no-frontier", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def train(args, words, card, host, out):
    """Trains under both limits: the announced plan, the most of the card and of the host, and whether it ended well."""
    limits = ["--memory", str(card), "--host-memory", str(host)]
    command = [args.plimsoll, "train", *words, *limits, "--device", "cuda", "--epochs", "1", "--json", "--out", out]
    before = of_card(args.gpu)
    with open(out + ".lines", "w+") as lines, open(out + ".errors", "w+") as errors:
        child = subprocess.Popen(command, stdout=lines, stderr=errors, text=True)
        card_peak = host_peak = 0
        while True:
            host_peak = max(host_peak, of_host(child.pid))
            card_peak = max(card_peak, of_card(args.gpu) - before)
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                host_peak = max(host_peak, usage.ru_maxrss * 1024)
                break
            time.sleep(0.02)
        lines.seek(0)
        errors.seek(0)
        events = [json.loads(line) for line in lines if line.startswith("{")]
        plan = next((event for event in events if event.get("event") == "plan"), {})
        epochs = [event for event in events if event.get("event") == "epoch"]
        return plan, epochs, card_peak, host_peak, status == 0, errors.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plimsoll", default="target/release/plimsoll", help="the command to run")
    parser.add_argument("--gpu", default="0", help="the card, by nvidia-smi's number")
    parser.add_argument("--json", action="store_true", help="one JSON line a run beside the table")
    args = parser.parse_args()
    broken = 0
    head = ["run", "card limit", "card peak", "planned", "host limit", "host peak", "planned", "copies", "kept"]
    rows = [head]
    with tempfile.TemporaryDirectory() as folder:
        for i, (words, part, spare) in enumerate(RUNS):
            words = words.split()
            free = planned(args, words)
            least, most = free["floor_bytes"], max(free["unlimited_bytes"], free["floor_bytes"])
            card = int(least + part * (most - least))
            host = free["host_planned_bytes"] + spare * MIB
            plan, epochs, card_peak, host_peak, ended, why = train(args, words, card, host, os.path.join(folder, str(i)))
            kept = ended and bool(epochs) and card_peak <= card and host_peak <= host
            broken += not kept
            if not ended:
                print(f"{' '.join(words)}: {why.strip()}", file=sys.stderr)
            mib = lambda n: f"{n / MIB:.0f}"
            name = words[0] + ("" if part == 0 else f" {part:.0%}")
            rows.append([
                name, mib(card), mib(card_peak), mib(plan.get("planned_bytes", 0)), mib(host), mib(host_peak),
                mib(plan.get("host_planned_bytes", 0)), mib(plan.get("host_bytes", 0)), "yes" if kept else "NO",
            ])
            if args.json:
                print(json.dumps({
                    "command": words, "card_limit": card, "card_peak": card_peak, "host_limit": host, "host_peak": host_peak,
                    "plan": plan, "own_card_peak": [epoch["device_peak_bytes"] for epoch in epochs], "kept": kept,
                }))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        print("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))))
    print(f"all sizes in MiB; {len(RUNS) - broken} of {len(RUNS)} runs kept both limits")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
