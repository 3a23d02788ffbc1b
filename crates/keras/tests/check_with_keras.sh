#!/usr/bin/env bash
# Lets Keras itself check what is read and written here; needs Python with keras and tensorflow (PYTHON names another one).
#
#   check_with_keras.sh FOLDER [APPLICATIONS]
#
# 1. Models of our own, the zoo among them, are written to FOLDER; Keras loads each and predicts the same.
# 2. Keras's own applications (all six, or those named: MobileNetV2 …), made in float64 with random weights, norms in training:
#    outputs, gradients and the losses of 20 steps agree, and Keras loads the trained file and predicts what it would have.
#    In float32 norms over few samples are chaotic: there Keras differs from itself by more than any tolerance.
# Files of models that were checked are removed: all together they would take gigabytes.
set -euo pipefail
[ $# -ge 1 ] || { echo "check_with_keras.sh FOLDER [APPLICATIONS]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export TF_CPP_MIN_LOG_LEVEL=3
applications=("$@")
[ $# -gt 0 ] || applications=(MobileNetV2 EfficientNetB0 ResNet50 DenseNet121 ConvNeXtTiny VGG16)

KEEP_WRITTEN=$folder cargo test --quiet --release --test export >/dev/null
"$python" tests/check_exported.py "$folder"
rm -f "$folder"/export-*

cargo build --quiet --release --example check
for name in "${applications[@]}"; do
    model=$folder/${name}Double
    "$python" tests/make_fixtures.py --applications "$folder" "${name}Double" 2>/dev/null
    cargo run --quiet --release --example check "$model.keras" "$model.npz" "$model-written.keras"
    "$python" tests/check_written.py "$model-written.keras" "$model.npz" 2>/dev/null
    rm -f "$model"*
done
