"""One run of `plimsoll tune` with what it takes beside it: the host's memory, bytes read, the card's memory as nvidia-smi has it.

usage: python3 benches/language_case.py PLIMSOLL WORK OUT NAME FOLDER SECONDS end|kill FLAGS...

FOLDER is one of `language_folder.py`. A run that is to be killed is, as soon as its first epoch is over: so that no checkpoint of all weights is
waited for. PRECISION (mixed-bf16) is that of the run. Nothing runs longer than SECONDS. Prints the plan, the kernels of `--profile`, the median of the steps behind the first five.
"""
import csv
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

plimsoll, work, out, name, folder, seconds, ending, *flags = sys.argv[1:]
seconds, work, out = float(seconds), pathlib.Path(work), pathlib.Path(out)
run = work / f"run-{name}"
shutil.rmtree(run, ignore_errors=True)
command = [plimsoll, "tune", folder, "--device", os.environ.get("DEVICE", "cuda"), "--precision", os.environ.get("PRECISION", "mixed-bf16"), "--epochs", "1", "--out", str(run), "--json", *flags]
print("==", name, " ".join(flags), flush=True)
size = sum(f.stat().st_size for f in pathlib.Path(folder).glob("*.safetensors"))
start = time.time()
stdout, stderr = open(out / f"{name}.jsonl", "wb"), open(out / f"{name}.err", "wb")
process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
try:
    smi = subprocess.Popen(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "250"], stdout=subprocess.PIPE, text=True)
    os.set_blocking(smi.stdout.fileno(), False)
except OSError:
    smi = None
hwm, rss, card, reads, why = 0, 0, 0, [], "ended"


def rows():
    try:
        return list(csv.DictReader(open(run / "steps.csv")))
    except OSError:
        return []


while process.poll() is None:
    time.sleep(0.05)
    now = time.time() - start
    try:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        hwm = max(hwm, int((re.search(r"VmHWM:\s+(\d+)", status) or [0, 0])[1]))
        rss = max(rss, int((re.search(r"RssAnon:\s+(\d+)", status) or [0, 0])[1]))
        reads.append((now, int(re.search(r"rchar: (\d+)", pathlib.Path(f"/proc/{process.pid}/io").read_text())[1])))
    except (OSError, TypeError):
        pass
    if smi:
        try:
            for line in (smi.stdout.read() or "").split():
                card = max(card, int(line))
        except (TypeError, ValueError):
            pass
    if ending == "kill" and rows():
        why = "enough steps"
        process.kill()
    elif now > seconds:
        why = "out of time"
        process.kill()
process.wait()
if smi:
    smi.kill()
print(f"{why} after {time.time() - start:.1f} s, code {process.returncode}; host VmHWM {hwm / 2**20:.2f} GiB, anonymous {rss / 2**20:.2f} GiB; card in use {card / 1024:.2f} GiB")
# The stretch in which the weights were read: from the first 2 % of their bytes to 98 %.
base = 64 << 20
inside = [(t, n) for t, n in reads if base + 0.02 * size < n < base + 0.98 * size]
if size and len(inside) > 2:
    (t0, n0), (t1, n1) = inside[0], inside[-1]
    print(f"weights: {size / 1e9:.1f} GB, read at {(n1 - n0) / max(t1 - t0, 1e-3) / 1e9:.2f} GB/s ({t0:.1f} s to {t1:.1f} s after the start)")
batch = 1
for line in (out / f"{name}.jsonl").read_text(errors="replace").splitlines():
    if not line.startswith("{"):
        continue
    line = json.loads(line)
    batch = line.get("batch", batch) if line.get("event") == "run" else batch
    if line.get("event") == "plan":
        print("plan", {k: line.get(k) for k in ("planned_bytes", "floor_bytes", "unlimited_bytes", "predicted_ms", "recomputed_ops", "micro_batches", "host_planned_bytes")})
    if line.get("event") == "profile":
        for row in line["rows"][:30]:
            print("  ", row["name"], row["what"], row["count"], f"{row['mean_us']:.1f} us", f"{row['total_ms']:.1f} ms", f"predicted {row['predicted_ms']}")
        print("profile", {k: round(v, 2) for k, v in line["mean"].items()})
found = rows()
speeds = [float(row["samples_s"]) for row in found[5:-1] if float(row["samples_s"]) > 0]
if speeds:
    print(f"{1000 * batch / statistics.median(speeds):.1f} ms a step (median of {len(speeds)}), device peak {float(found[-1]['device_peak_bytes']) / 2**30:.2f} GiB; losses {found[0].get('loss')} {found[-1].get('loss')}")
else:
    print(len(found), "steps;", (out / f"{name}.err").read_text(errors="replace")[-3000:])
for file in ("profile.trace.json", "plan.json"):
    if (run / file).is_file():
        subprocess.run(["xz", "-T8", "-1", "-k", "-c", str(run / file)], stdout=open(out / f"{name}.{file}.xz", "wb"))
if (run / "steps.csv").is_file():
    shutil.copy(run / "steps.csv", out / f"{name}.steps.csv")
shutil.rmtree(run, ignore_errors=True)
