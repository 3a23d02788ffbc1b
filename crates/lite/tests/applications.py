"""Keras applications as .tflite files, here and in LiteRT: results, bytes of the arena, time of one thread.

    cargo build --release -p plimsoll-lite --example measure
    python crates/lite/tests/applications.py target/release/examples/measure [RUNS] [MODEL ...]

The files are TensorFlow's; `benches/export.py` has what the command exports of the same models.
Weights are random. LiteRT's arena is the span of the tensors that its own kernels (no delegate) keep in it; its time is with XNNPACK.
Exits with 1 where floats differ by more than 1e-5 or more than a hundredth of the bytes by more than a quantum, or where the arena is larger than
LiteRT's. Needs tensorflow.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from litert import arena  # noqa: E402

PLAIN = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
MODELS = {
    "MobileNetV2-96": lambda: tf.keras.applications.MobileNetV2((96, 96, 3), weights=None),
    "MobileNetV2-96-0.35": lambda: tf.keras.applications.MobileNetV2((96, 96, 3), alpha=0.35, weights=None),
    "MobileNet-128": lambda: tf.keras.applications.MobileNet((128, 128, 3), weights=None),
    "MobileNetV3Small-96": lambda: tf.keras.applications.MobileNetV3Small((96, 96, 3), weights=None),
    "EfficientNetB0-96": lambda: tf.keras.applications.EfficientNetB0(input_shape=(96, 96, 3), weights=None),
    "ResNet50-96": lambda: tf.keras.applications.ResNet50(input_shape=(96, 96, 3), weights=None),
}
dice = np.random.default_rng(1)


def convert(model, way, samples=None):
    """A .tflite file by TensorFlow's own converter, with ranges of the samples, or of random ones."""
    shape = (1, *model.input_shape[1:])
    samples = samples if samples is not None else [dice.uniform(0, 1, shape).astype(np.float32) for _ in range(8)]
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if way == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([sample] for sample in samples)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def settled(model):
    """Random weights with statistics that fit them, so that results are not all the same."""
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.momentum = 0.0
    model(dice.uniform(0, 1, (4, *model.input_shape[1:])).astype(np.float32), training=True)
    return model


def litert(model, value, runs, **more):
    interpreter = tf.lite.Interpreter(model_content=model, num_threads=1, **more)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], value)
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        interpreter.invoke()
        best = min(best, time.perf_counter() - start)
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), best * 1e3, interpreter


def row(program, name, way, model, runs, shape):
    """Prints what a file takes here and there; whether something is wrong."""
    value = dice.uniform(0, 1, shape).astype(np.float32)
    if way == "int8":
        value = dice.integers(-128, 128, shape).astype(np.int8)
    plain, _, interpreter = litert(model, value, 1, experimental_op_resolver_type=PLAIN)
    theirs = arena(interpreter)
    _, fast, _ = litert(model, value, runs)
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, part) for part in ("model.tflite", "in", "out")]
        open(paths[0], "wb").write(model)
        open(paths[1], "wb").write(value.tobytes())
        answers = []
        for more in ([], ["packed"]):
            ran = subprocess.run([program, *paths, str(runs), *more], capture_output=True, text=True)
            if ran.returncode:
                print(f"{name + ' ' + way:26} {ran.stderr.strip()}")
                return True
            answers.append((json.loads(ran.stdout), np.fromfile(paths[2], plain.dtype).reshape(plain.shape)))
    ours = answers[0][0]
    if way == "f32":
        worst = max(float(np.abs(out - plain).max()) for _, out in answers)
        difference, bad = f"{worst:.1e}", worst > 1e-5
    else:
        beyond = max(float((np.abs(out.astype(int) - plain.astype(int)) > 1).mean()) for _, out in answers)
        most = max(int(np.abs(out.astype(int) - plain.astype(int)).max()) for _, out in answers)
        difference, bad = f"at most {most} quanta, {beyond:.2%} beyond one", beyond > 0.01
    packed = answers[1][0]["milliseconds"]
    if plain.std() <= (1e-5 if way == "f32" else 0):
        difference, bad = "the results are all the same: nothing was compared", True
    bad |= ours["arena"] > theirs
    print(f"{name + ' ' + way:26} {ours['arena']:9} {theirs:9} {ours['live']:9} {ours['milliseconds']:8.2f} {packed:8.2f} "
          f"{fast:8.2f} {fast / packed:6.2f}  {difference}{' WRONG' if bad else ''}", flush=True)
    return bad


def main():
    program, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10
    failed = False
    print(f"{'model':26} {'arena':>9} {'LiteRT':>9} {'live':>9} {'ms':>8} {'packed':>8} {'LiteRT':>8} {'ratio':>6}  difference")
    for name, build in MODELS.items():
        if len(sys.argv) > 3 and name not in sys.argv[3:]:
            continue
        keras = settled(build())
        for way in ("f32", "int8"):
            model, shape = convert(keras, way), (1, *keras.input_shape[1:])
            failed |= row(program, name, way, model, runs, shape)
    sys.exit(failed)


if __name__ == "__main__":
    main()
