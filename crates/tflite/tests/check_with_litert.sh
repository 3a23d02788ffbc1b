#!/usr/bin/env bash
# Lets LiteRT itself run what is written here; needs Python with ai-edge-litert and numpy (PYTHON names another one).
#
#   check_with_litert.sh FOLDER
#
# Every model of the zoo is written to FOLDER in f32, with f16 weights, with int8 weights and in int8; LiteRT runs each: f32 gives what the model
# gives within 1e-5, the others what we read the file as.
set -euo pipefail
[ $# -eq 1 ] || { echo "check_with_litert.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
PLIMSOLL_TFLITE_EXPORTS=$folder cargo test --quiet --test export >/dev/null
OMP_NUM_THREADS=1 "${PYTHON:-python3}" tests/check_exports.py "$folder"
