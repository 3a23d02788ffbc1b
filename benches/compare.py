"""Runs Plimsoll and its peers in turn on one quiet machine and prints the table of ratios.

usage: python benches/compare.py [--peers DIR] [--seconds S] [--rounds N] [--out FILE.jsonl] [CASE ...]

DIR holds cpu_torch.py and cpu_tf.py (one JSON line each: steps_s, best_steps_s, cpu_ms, peak_mib). A case counts with the
best of the rounds: most steps a second, least CPU time, least memory. Build first: cargo build --release. The interpreter that
runs this script runs the peers (pip install torch tensorflow-cpu).
"""
import argparse, json, os, platform, subprocess, sys, time

import cases

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = list(cases.CPU)


def lines(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if done.returncode != 0:
        tail = done.stderr.strip().splitlines()[-1:] or ["no message"]
        print(f"  {' '.join(map(str, command[:3]))} failed: {tail[0]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def cpu_name():
    with open("/proc/cpuinfo") as f:
        return next((l.split(":")[1].strip() for l in f if l.startswith("model name")), platform.processor())


def main():
    a = argparse.ArgumentParser()
    a.add_argument("cases", nargs="*", default=CASES)
    a.add_argument("--peers", default=os.path.join(HERE, "..", "..", "shared", "peers"))
    a.add_argument("--binary", default=os.path.join(HERE, "..", "target", "release", "plimsoll"))
    a.add_argument("--seconds", type=float, default=6)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--out")
    args = a.parse_args()
    threads = {"THREADS": str(args.threads)}
    raw, best = [], {}
    for case in args.cases or CASES:
        for round_ in range(args.rounds):
            runs = {
                "plimsoll": [args.binary, "bench", *cases.cpu(case, args.threads), "--seconds", str(args.seconds), "--json"],
                "torch": [sys.executable, os.path.join(args.peers, "cpu_torch.py"), case, str(args.seconds)],
                "tensorflow": [sys.executable, os.path.join(args.peers, "cpu_tf.py"), case, str(args.seconds)],
            }
            if case == "gpt":
                runs.pop("tensorflow")  # that script has no such case
            for engine, command in runs.items():
                line = lines(command, threads)
                if line is None:
                    continue
                raw.append({"engine": engine, "round": round_, **line})
                print(json.dumps(raw[-1]), flush=True)
                b = best.setdefault(case, {}).setdefault(engine, dict(line))
                b["steps_s"] = max(b["steps_s"], line["steps_s"])
                b["cpu_ms"] = min(b["cpu_ms"], line["cpu_ms"])
                b["peak_mib"] = min(b["peak_mib"], line["peak_mib"])
    print(f"\n{cpu_name()}, {args.threads} threads, {time.strftime('%Y-%m-%d')}, best of {args.rounds}\n")
    print("| case | Plimsoll steps/s | PyTorch | TensorFlow | speed ratio | CPU ms a step | PyTorch | TensorFlow | CPU ratio | peak MiB | PyTorch | TensorFlow |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for case, engines in best.items():
        ours = engines.get("plimsoll")
        peers = [engines[e] for e in ("torch", "tensorflow") if e in engines]
        if not ours or not peers:
            continue
        def cell(engine, field, form):
            return form.format(engines[engine][field]) if engine in engines else "–"
        speed = ours["steps_s"] / max(p["steps_s"] for p in peers)
        cpu = ours["cpu_ms"] / min(p["cpu_ms"] for p in peers)
        row = [case]
        row += [cell(e, "steps_s", "{:.2f}") for e in ("plimsoll", "torch", "tensorflow")] + [f"**{speed:.2f}**"]
        row += [cell(e, "cpu_ms", "{:.1f}") for e in ("plimsoll", "torch", "tensorflow")] + [f"**{cpu:.2f}**"]
        row += [cell(e, "peak_mib", "{:.0f}") for e in ("plimsoll", "torch", "tensorflow")]
        print("| " + " | ".join(row) + " |")
    if args.out:
        os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)
        with open(args.out, "w") as f:
            f.write(json.dumps({"cpu": cpu_name(), "threads": args.threads, "date": time.strftime("%Y-%m-%d"), "seconds": args.seconds}) + "\n")
            f.writelines(json.dumps(line) + "\n" for line in raw)


if __name__ == "__main__":
    main()
