"""Runs Plimsoll and PyTorch in turn on one card, training steps in mixed bf16, and prints the table.

usage: python benches/gpu.py [--peers DIR] [--binary FILE] [--no-compile] [--largest] [--out FILE.jsonl] [CASE ...]

DIR holds gpu_torch.py, whose case(name, batch, mode) prints one JSON line: ms, alloc (GiB), loss. For each case: PyTorch eager,
PyTorch compiled, Plimsoll without a memory limit, and Plimsoll with a limit of half of what it took then. Plimsoll's bytes are NVML's for the whole
process, context included, and its plan's; PyTorch's are what its allocator says was allocated at most. Each runs in a process of its
own. With --largest, also the largest batches that PyTorch was seen to hold in 16 GiB, doubled, under a limit of 16 GiB, unsplit.
Build first: cargo build --release. The interpreter that runs this script runs PyTorch.
"""
import argparse, json, os, subprocess, sys, time

import cases

HERE = os.path.dirname(os.path.abspath(__file__))
LARGEST = {"resnet50": 744, "gpt2": 30, "unet": 160}
GIB = 2**30


def last_line(command, seconds, cwd=None):
    """The last JSON line of a command, or what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=cwd)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {seconds} s"}
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not found:
        tail = (done.stderr.strip() or "no message").splitlines()[-1]
        return {"error": tail[:300]}
    return json.loads(found[-1])


def main():
    a = argparse.ArgumentParser()
    a.add_argument("cases", nargs="*")
    a.add_argument("--peers", default=os.path.join(HERE, "..", "..", "shared", "peers"))
    a.add_argument("--binary", default=os.path.join(HERE, "..", "target", "release", "plimsoll"))
    a.add_argument("--no-compile", action="store_true")
    a.add_argument("--largest", action="store_true")
    a.add_argument("--seconds", type=int, default=240, help="the most that one run may take")
    a.add_argument("--out")
    args = a.parse_args()
    raw = []

    def keep(engine, case, line):
        raw.append({**line, "engine": engine, "case": case})
        print(json.dumps({k: v for k, v in raw[-1].items() if k != "losses"}), flush=True)
        if args.out:
            with open(args.out, "a") as f:
                f.write(json.dumps(raw[-1]) + "\n")
        return line

    def plimsoll(case, batch, memory=None, name="plimsoll", exact="reassociated"):
        command = [args.binary, "bench", *cases.card(case, batch), "--json"]
        command += ["--memory", str(memory)] if memory else []
        command += ["--exact", exact]
        return keep(name, case, last_line(command, args.seconds))

    def torch(case, batch, mode):
        code = f"import gpu_torch; gpu_torch.case({case!r}, {batch}, {mode!r})"
        return keep(mode, case, last_line([sys.executable, "-c", code], args.seconds, cwd=args.peers))

    rows = []
    for case in args.cases or cases.CARD:
        batch = cases.CARD[case][0]
        ours = plimsoll(case, batch)
        half = plimsoll(case, batch, ours["planned_bytes"] // 2, "half") if "planned_bytes" in ours else {}
        eager = torch(case, batch, "eager")
        # PyTorch's compiler leaves cuDNN's recurrences as they are.
        compiled = {} if args.no_compile or case == "lstm" else torch(case, batch, "compile")
        # Compiled PyTorch's own allocations, context and all on our side.
        tight = plimsoll(case, batch, int(0.8 * GIB * compiled["alloc"]), "0.8") if compiled.get("alloc") else {}
        rows.append((case, batch, ours, half, eager, compiled, tight))
    if args.largest:
        for case, batch in LARGEST.items():
            plimsoll(case, batch, 16 * GIB, "largest", "bitwise")

    def number(value, scale=1.0):
        return f"{value / scale:.2f}" if isinstance(value, (int, float)) else "-"

    print(f"\n{time.strftime('%Y-%m-%d')}, mixed bf16; ms a step (median of 20), GiB\n")
    print("| case | batch | eager ms | compiled ms | ours ms | ours/eager | ours/compiled | eager GiB | compiled GiB | ours NVML | ours planned | half: NVML | half: time | 0.8 of compiled's: NVML | its time/compiled |")
    print("| --- " * 15 + "|")
    for case, batch, ours, half, eager, compiled, tight in rows:
        ms = ours.get("ms")
        ratio = lambda other: number(ms / other["ms"]) if ms and other.get("ms") else "-"
        held = lambda line: number(line.get("device_bytes"), GIB)
        cells = [case, batch, number(eager.get("ms")), number(compiled.get("ms")), number(ms), ratio(eager), ratio(compiled),
                 number(eager.get("alloc")), number(compiled.get("alloc")), held(ours), number(ours.get("planned_bytes"), GIB),
                 held(half), number(half["ms"] / ms) if ms and half.get("ms") else "-",
                 held(tight), number(tight["ms"] / compiled["ms"]) if tight.get("ms") and compiled.get("ms") else "-"]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
