#!/usr/bin/env bash
# Installs what tests and measurements compare Plimsoll with (Keras, TensorFlow, PyTorch, onnxruntime, LiteRT; several gigabytes) into a virtual
# environment of its own, target/peers. python/test.sh and .ci/run use it where it is there; without it their tests are counted as not run.
#
# usage: python/peers.sh [PACKAGE ...]
#
# PYTHON names the interpreter (python3). Packages that are named are installed in place of all: `python/peers.sh keras tensorflow-cpu`.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${CARGO_TARGET_DIR:-target}/peers
[ $# -gt 0 ] || set -- keras tensorflow-cpu torch torchvision timm transformers peft onnx onnxruntime ai-edge-litert
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check numpy pytest "$@"
echo "$folder/bin/python has $*"
