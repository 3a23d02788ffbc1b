#!/usr/bin/env python3
"""Runs every reference case (cases.py) at ten memory limits from its floor to what it would like, and prints a table.

    cargo build --release && python benches/budgets.py [--cases cnn gpt] [--steps 20] [--jsonl FILE]

Checked for each run: the process's peak stays within the limit; the arena is what was planned and what the ledger has;
the losses are the same bits as without a limit where the batch was not split, and the first five within 1e-4 where it was, or within 1e-9 in f64,
where rounding says nothing; one byte less than the floor is refused. Printed beside: predicted and measured time of a step. Run it on a quiet machine.
"""

import argparse
import json
import pathlib
import subprocess

import cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLIMSOLL = ROOT / "target" / "release" / "plimsoll"
CASES = list(cases.CPU)
MIB = 1 << 20


def run(*arguments):
    done = subprocess.run([PLIMSOLL, *map(str, arguments), "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def apart(ours, theirs):
    """How far the first losses are from each other: training amplifies rounding from step to step, whoever rounds."""
    return max(abs(a - b) / abs(b) for a, b in list(zip(ours, theirs))[:5])


def apart_in_f64(case):
    """The same of a split step in f64, and of how many pieces: Adam's first step has the size of its rate whatever a gradient is, so that rounding alone moves weights."""
    flags = [*cases.cpu(case), "--steps", 5, "--precision", "f64"]
    free = run("bench", *flags)
    split = run("bench", *flags, "--memory", free["floor_bytes"])
    return apart(split["losses"], free["losses"]), split["micro_batches"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budgets", type=int, default=10)
    parser.add_argument("--jsonl", type=pathlib.Path)
    args = parser.parse_args()
    wrong, errors, lines, in_f64 = [], [], [], {}
    print(f"{'case':9} {'limit MiB':>9} {'peak MiB':>9} {'arena':>9} {'live':>6} {'split':>5} {'again':>5} "
          f"{'predicted':>9} {'measured':>9} {'ratio':>6}  losses")
    for case in args.cases:
        # Times of kernels are measured by the first run; the others plan with them.
        run("bench", *cases.cpu(case), "--steps", 1)
        free = run("bench", *cases.cpu(case), "--steps", args.steps)
        floor, most = free["floor_bytes"], max(free["unlimited_bytes"], free["floor_bytes"] + 1)
        budgets = [floor + (most - floor) * i // (args.budgets - 1) for i in range(args.budgets)]
        if run("bench", *cases.cpu(case), "--steps", 1, "--memory", floor - 1) is not None:
            wrong.append(f"{case}: one byte less than the floor is not refused")
        before = None
        for budget in budgets:
            line = run("bench", *cases.cpu(case), "--steps", args.steps, "--memory", budget)
            if line is None:
                wrong.append(f"{case}: refused at {budget}")
                continue
            lines.append(line)
            measured = 1000 / line["steps_s"]
            ratio = measured / line["predicted_ms"]
            errors.append(abs(ratio - 1))
            same = line["losses"] == free["losses"]
            far = max(abs(a - b) / abs(b) for a, b in zip(line["losses"], free["losses"]))
            if line["micro_batches"] == 1 and not same:
                wrong.append(f"{case} at {budget}: other bits without a split")
            early = apart(line["losses"], free["losses"])
            if early > 1e-4 and line["micro_batches"] > 1:
                exactly, pieces = in_f64[case] = in_f64.get(case) or apart_in_f64(case)
                if exactly > 1e-9 or pieces == 1:
                    wrong.append(f"{case} at {budget}: the first losses differ by {early:.1e}, in f64 and {pieces} pieces by {exactly:.1e}")
            if line["peak_bytes"] > budget:
                wrong.append(f"{case} at {budget}: peak {line['peak_bytes']}")
            # Measured: pages that lie in a hole between tensors all the step long are never touched.
            if not 0.8 * line["arena_bytes"] <= line["ledger_bytes"] <= line["arena_bytes"]:
                wrong.append(f"{case} at {budget}: the ledger has {line['ledger_bytes']} for the arena")
            if before is not None and line["predicted_ms"] > before * (1 + 1e-9):
                wrong.append(f"{case} at {budget}: slower than with less")
            before = line["predicted_ms"]
            word = "same bits" if same else f"within {far:.0e}"
            print(f"{case:9} {budget / MIB:9.1f} {line['peak_bytes'] / MIB:9.1f} {line['arena_bytes'] / MIB:9.2f} "
                  f"{line['arena_bytes'] / max(line['live_bytes'], 1):6.3f} {line['micro_batches']:5} "
                  f"{line['recomputed_ops']:5} {line['predicted_ms']:9.1f} {measured:9.1f} {ratio:6.2f}  {word}",
                  flush=True)
    for case, (exactly, pieces) in in_f64.items():
        print(f"{case}: in f64 the first losses of {pieces} pieces differ by {exactly:.1e}")
    print(f"predicted and measured times differ by {100 * sum(errors) / max(len(errors), 1):.1f} % on average")
    cases.finish(lines, wrong, args.jsonl)


if __name__ == "__main__":
    main()
