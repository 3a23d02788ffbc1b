#!/usr/bin/env bash
# Builds the module as the workspace's tests are built, and runs the package's tests with it, beside the sources: nothing is installed
# into the interpreter. PYTHON names the interpreter (the one that python/peers.sh has set up, or python3); where that has no NumPy or pytest, a
# virtual environment under target/ is made for them. Tests of a group (keras, tensorflow, torch) are counted as not run where that cannot be imported.
# Further words go to pytest in the place of the folder of tests.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
python=${PYTHON:-python3}
if [ -z "${PYTHON:-}" ] && [ -x "$target/peers/bin/python" ]; then python=$target/peers/bin/python; fi
if ! "$python" -c 'import numpy, pytest' >/dev/null 2>&1; then
    if [ ! -x "$target/python-venv/bin/python" ]; then
        "$python" -m venv --system-site-packages "$target/python-venv"
        "$target/python-venv/bin/pip" install --quiet numpy pytest
    fi
    python=$target/python-venv/bin/python
fi
# As a part of the workspace: alone it would want other features of what it stands on, and all of that built again.
cargo build --workspace --lib
rm -rf "$target/python"
mkdir -p "$target/python"
cp -r python/plimsoll "$target/python/plimsoll"
case $(uname) in Darwin) built=libplimsoll_native.dylib ;; *) built=libplimsoll_native.so ;; esac
cp "$target/debug/$built" "$target/python/plimsoll/_native.abi3.so"
export PYTHONPATH=$target/python${PYTHONPATH:+:$PYTHONPATH}
run() { "$python" -m pytest -q -p no:cacheprovider "$@"; }
if [ $# -gt 0 ]; then run "$@"; exit; fi
# What needs neither Keras nor PyTorch is tested without them, so that a test that does and is in no group that says so fails wherever it is run.
PLIMSOLL_WITHOUT=keras,tensorflow,torch run -m "not keras and not tensorflow and not torch" python/tests
run -m "keras or tensorflow" python/tests
# By themselves: PyTorch's compiler aborts in a process that has TensorFlow in it.
run -m "torch and not keras" python/tests
