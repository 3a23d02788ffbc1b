#!/usr/bin/env bash
# What tuning a language model takes on a card: milliseconds a step at full speed, kernels by time, the peak of memory.
#
# usage: benches/language_card.sh PLIMSOLL [WORK]     PLIMSOLL: a release build of the command; WORK: a folder for files (4 GB)
#
# Within five minutes on an H200: the folder takes about 10 s, a run 20 to 60 s (times of kernels are taken in the first and kept). Prints for
# each case the plan, the median of the steps behind the first five, the peak as NVML counts it, then the kernels of `--profile`. Cases:
#   one      adapters of rank 16, 4 rows of 2048 tokens, one text a row (attention is plain causal)
#   packed   the same with a dozen texts a row (documents)
#   tight    the packed one inside 6 GiB
#   nf4      the packed one with its base in NF4
#   full     all weights, 1 row of 2048 tokens (`CASES="one full"` chooses; `PROFILE=` leaves the profile out)
# PyTorch's figures of the same shapes on an H200: adapters compiled 111 ms at 15.3 GiB, recomputing 191 ms at 6.3; full compiled 39.4 ms at 12.3.
set -eu
plimsoll=$1
work=${2:-$(mktemp -d)}
here=$(cd "$(dirname "$0")" && pwd)
size=${SIZE:-1b}
device=${DEVICE:-cuda}
cases=${CASES:-one packed tight nf4 full}
sequence=${SEQUENCE:-2048}

[ -e "$work/one/config.json" ] || python3 "$here/language_folder.py" "$work/one" --size "$size"
[ -e "$work/packed/config.json" ] || {
    python3 "$here/language_folder.py" "$work/packed" --size "$size" --layers 1 --packed
    cp "$work/one/config.json" "$work/packed/"
    ln -sf "$work/one/model.safetensors" "$work/packed/model.safetensors"
}

tune() { # NAME FOLDER FLAGS...
    local name=$1 folder=$2
    shift 2
    rm -rf "$work/run-$name"
    echo "== $name: $*"
    if ! "$plimsoll" tune "$folder" --data "$folder/texts.jsonl" --sequence "$sequence" --device "$device" --precision mixed-bf16 \
        --epochs 1 --out "$work/run-$name" ${PROFILE---profile 5} --json "$@" > "$work/$name.jsonl" 2> "$work/$name.err"; then
        tail -n 5 "$work/$name.err" "$work/$name.jsonl"
        return 0
    fi
    python3 - "$work/$name.jsonl" "$work/run-$name" <<'PY'
import csv, json, pathlib, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
for line in lines:
    if line.get("event") == "plan":
        print("plan", {k: line[k] for k in ("planned_bytes", "floor_bytes", "unlimited_bytes", "predicted_ms", "recomputed_ops", "micro_batches")})
    if line.get("event") == "profile":
        for row in line["rows"][:25]:
            print("  ", json.dumps(row))
        print("profile", line["mean"], {k: v for k, v in line.items() if not isinstance(v, (list, dict))})
print("end", {k: v for k, v in lines[-1].items() if not isinstance(v, (list, dict))})
rows = list(csv.DictReader(open(pathlib.Path(sys.argv[2]) / "steps.csv")))
batch = next(line["batch"] for line in lines if line.get("event") == "run")
speeds = [float(row["samples_s"]) for row in rows[8:-1] if float(row["samples_s"]) > 0]
if speeds:
    print(f"{1000 * batch / statistics.median(speeds):.1f} ms a step (median of {len(speeds)}), device peak {float(rows[-1]['device_peak_bytes']) / 2**30:.2f} GiB")
PY
}

for case in $cases; do
    case $case in
    one) tune one "$work/one" --lora 16 --batch 4 ;;
    packed) tune packed "$work/packed" --lora 16 --batch 4 ;;
    tight) tune tight "$work/packed" --lora 16 --batch 4 --memory 6GiB ;;
    nf4) tune nf4 "$work/packed" --lora 16 --batch 4 --base nf4 ;;
    full) tune full "$work/one" --batch 1 ;;
    *) echo "there is no case $case" && exit 2 ;;
    esac
done
echo "raw files are in $work"
