#!/usr/bin/env python3
"""Exports models and times them on one thread side by side: plimsoll-lite, LiteRT (XNNPACK) and onnxruntime.

    cargo build --release && cargo build --release -p plimsoll-lite --example measure
    OMP_NUM_THREADS=1 python benches/lite.py [--runs 20] [--least 0.8] cnn mobilenet runs/digits

A model of the zoo or a file is exported in float32, a run's folder in int8 too, with the run's own data. Each time is the best of so many runs.
The ratio is the better of the others' times over ours; the status is the number of rows with one below --least, or whose results differ.
Needs ai-edge-litert, onnxruntime and numpy.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnxruntime
from ai_edge_litert.interpreter import Interpreter

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASE = ROOT / "target" / "release"


def best(runs, run):
    run()
    found = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        run()
        found = min(found, time.perf_counter() - start)
    return found * 1e3


def litert(path, values, runs):
    interpreter = Interpreter(path, num_threads=1)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), values):
        interpreter.set_tensor(detail["index"], value)
    milliseconds = best(runs, interpreter.invoke)
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), milliseconds


def onnx(path, values, runs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {port.name: value for port, value in zip(session.get_inputs(), values)}
    return best(runs, lambda: session.run(None, feed))


def inputs(path):
    dice = np.random.default_rng(1)
    values = []
    for detail in Interpreter(path).get_input_details():
        whole = np.issubdtype(detail["dtype"], np.integer)
        value = dice.integers(0, 2, detail["shape"]) if whole else dice.uniform(0, 1, detail["shape"])
        values.append(value.astype(detail["dtype"]))
    return values


def row(args, what, name, more):
    with tempfile.TemporaryDirectory() as folder:
        paths = {own: os.path.join(folder, own) for own in ("m.tflite", "m.onnx", "in", "out")}
        told = subprocess.run([args.plimsoll, "export", what, "--to", paths["m.tflite"], "--json", *more], capture_output=True, text=True)
        if told.returncode:
            print(f"{name:26} {told.stderr.strip()}")
            return 1
        values = inputs(paths["m.tflite"])
        open(paths["in"], "wb").write(b"".join(value.tobytes() for value in values))
        ran = subprocess.run([args.measure, paths["m.tflite"], paths["in"], paths["out"], str(args.runs), "packed"], capture_output=True, text=True)
        if ran.returncode:
            print(f"{name:26} {ran.stderr.strip()}")
            return 1
        ours = json.loads(ran.stdout)
        theirs, milliseconds = litert(paths["m.tflite"], values, args.runs)
        found = np.fromfile(paths["out"], theirs.dtype)[:theirs.size].reshape(theirs.shape)
        far = float(np.abs(found - theirs).max() / max(1.0, np.abs(theirs).max()))
        others = [milliseconds]
        if not more:
            subprocess.run([args.plimsoll, "export", what, "--to", paths["m.onnx"], "--json"], check=True, capture_output=True)
            others.append(onnx(paths["m.onnx"], values, args.runs))
        ratio = min(others) / ours["milliseconds"]
        shown = "".join(f"{x:10.3f}" for x in others) + " " * 10 * (2 - len(others))
        print(f"{name:26}{ours['milliseconds']:10.3f}{shown}{ratio:8.2f}{ours['arena']:12}  {far:.1e}", flush=True)
        return int(ratio < args.least or not far < (0.05 if more else 1e-4))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", default=str(RELEASE / "plimsoll"))
    parser.add_argument("--measure", default=str(RELEASE / "examples" / "measure"))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--least", type=float, default=0.8)
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    print(f"{'':26}{'ours ms':>10}{'LiteRT':>10}{'onnxrt':>10}{'ratio':>8}{'arena':>12}  difference")
    bad = 0
    for what in args.models:
        name = pathlib.Path(what).stem
        bad += row(args, what, f"{name} f32", [])
        if os.path.isdir(what):
            bad += row(args, what, f"{name} int8", ["--quantize", "int8"])
    sys.exit(bad)


if __name__ == "__main__":
    main()
