#!/usr/bin/env bash
# Installs the package into a fresh virtual environment with one command, runs the guide's first program there, and holds its peak resident set
# against the limit: Keras's ResNet50 on small random pictures, inside 2 GiB beside what Python held before.
#
# usage: python/benches/fresh.sh [--wheel FILE] [--keep FOLDER]
#
# PYTHON names the interpreter (python3), BACKEND what Keras runs on (tensorflow-cpu), SIDE the pictures' side (96). Builds the package with the Rust
# toolchain that is there, unless a wheel is named. Ends with another status than 0 where something fails or the peak is over the limit.
set -euo pipefail
cd "$(dirname "$0")/../.."
package="./python[keras]" folder=
while [ $# -gt 0 ]; do
    case $1 in
        --wheel) package="$2[keras]"; shift 2 ;;
        --keep) folder=$2; shift 2 ;;
        *) echo "there is no $1; see the head of this file" >&2; exit 2 ;;
    esac
done
if [ -z "$folder" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
"${PYTHON:-python3}" -m venv "$folder/venv"
echo "pip install $package ${BACKEND:-tensorflow-cpu}"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$package" ${BACKEND:-tensorflow-cpu}
"$folder/venv/bin/plimsoll" --version
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= PLIMSOLL_CACHE=$folder/cache
guide=$PWD/docs/guide/src/python.md
# Elsewhere than beside the sources, so that what was installed is what runs.
cd "$folder"
exec_python="$folder/venv/bin/python"
"$exec_python" - "$guide" "${SIDE:-96}" <<'PROGRAM'
import re, sys
import numpy as np

guide, side = open(sys.argv[1], encoding="utf-8").read(), int(sys.argv[2])
snippet = re.search(r"```python\n(.*?)```", guide, re.S)[1]
assert "ResNet50(weights=None, classes=10)" in snippet and 'memory="2GiB"' in snippet
# The same program on pictures of another size, so that it is done in minutes.
snippet = snippet.replace("classes=10)", f"classes=10, input_shape=({side}, {side}, 3))")
rng = np.random.default_rng(0)
x, y = rng.normal(size=(192, side, side, 3)).astype("float32"), rng.integers(0, 10, 192)
xv, yv = x[:64] + 0.1, y[:64]


def memory(row):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(row))


import plimsoll

fit = plimsoll.fit


def watched(*given, **settings):
    """fit, with the peak of the resident set beginning anew before it."""
    global before, peak
    before = memory("VmRSS")
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    done = fit(*given, **settings)
    peak = memory("VmHWM")
    return done


plimsoll.fit = watched
exec(compile(snippet, "the guide's program", "exec"))
mib, limit = 1 << 20, 2 << 30
held = history.plan.python
print(history.plan)
print(f"peak {peak / mib:.0f} MiB = {held / mib:.0f} MiB that Python held + {(peak - held) / mib:.0f} MiB of a limit of {limit / mib:.0f} MiB; {before / mib:.0f} MiB resident before fit")
if peak > limit + held:
    sys.exit("FAILED: the peak is over the limit")
if len(history.history["loss"]) != 3 or "val_accuracy" not in history.history:
    sys.exit("FAILED: the program did not train as it says")
print("passed: installed, trained, and inside of its limit")
PROGRAM
