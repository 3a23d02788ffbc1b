#!/usr/bin/env bash
# Builds the package's wheel for this machine's system, one for all Pythons from 3.10 on, into target/wheels. PYTHON names the interpreter
# (python3), which needs pip; maturin is installed into a virtual environment under target/.
set -euo pipefail
cd "$(dirname "$0")"
venv=../target/wheels-venv
if [ ! -x "$venv/bin/maturin" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet 'maturin>=1.9.4,<2'
fi
exec "$venv/bin/maturin" build --release --out ../target/wheels "$@"
