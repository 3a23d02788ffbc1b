"""Holds exported models against onnx's checker and onnxruntime. Needs onnx, onnxruntime and numpy.

    PLIMSOLL_ONNX_EXPORTS=FOLDER cargo test -p plimsoll-onnx --test export
    python check_exports.py FOLDER
"""

import glob
import os
import sys

import numpy as np
import onnx
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(double)": np.float64}
bad = 0
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.onnx"))):
    name = os.path.basename(path)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = onnxruntime.InferenceSession(path)
    given, wanted = [], []
    for line in open(path[:-5] + ".txt"):
        kind, _, shape, *elements = line.split()
        array = np.array([float(x) for x in elements]).reshape([int(n) for n in shape.split(",")])
        (given if kind == "in" else wanted).append(array)
    feed = {i.name: array.astype(TYPES[i.type]) for i, array in zip(session.get_inputs(), given)}
    found = session.run(None, feed)
    far = max(float(np.abs(a - b).max() / max(1.0, np.abs(b).max())) for a, b in zip(found, wanted))
    print(f"{name:24} {len(onnx.load(path).graph.node):5} nodes, differs by {far:.2e}")
    bad += not far < 1e-4
sys.exit(bad)
