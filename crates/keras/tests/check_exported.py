"""Opens models that were written here with Keras and compares what they predict.

`check_exported.py FOLDER`: FOLDER holds export-NAME.keras with inputs export-NAME.x.npy and outputs export-NAME.y.npy, as
`KEEP_WRITTEN=FOLDER cargo test -p plimsoll-keras --test export` leaves them. Fails where outputs differ by more than 1e-5 of
the largest.
"""
import glob
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import keras
import numpy as np


def main(folder):
    paths = sorted(glob.glob(f"{folder}/export-*.keras"))
    failed = [] if paths else ["nothing to check"]
    for path in paths:
        base = path.removesuffix(".keras")
        model = keras.models.load_model(path)
        x, y = np.load(f"{base}.x.npy"), np.load(f"{base}.y.npy")
        found = np.asarray(model.predict(x, verbose=0))
        far, size = float(np.abs(found - y).max()), max(1.0, float(np.abs(y).max()))
        print(f"{os.path.basename(path)}: {len(model.layers)} layers, outputs {far:.1e} of {size:.1e}")
        if not far <= 1e-5 * size:
            failed.append(path)
    if failed:
        sys.exit(f"differ: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1])
