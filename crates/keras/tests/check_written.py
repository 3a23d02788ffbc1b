"""Opens files that were written here with Keras: outputs must be those expected, and training must go on.

`check_written.py WRITTEN NUMBERS.npz [ORIGINAL]`: NUMBERS is what Keras computed (see make_fixtures.py), WRITTEN was trained 20 steps on
the same batch (`cargo run --example check MODEL NUMBERS.npz WRITTEN`, or the test `written`). Prints how far predictions are
from Keras's own after 20 steps; with ORIGINAL, the file that was trained, also whether both are compiled alike, and the losses of 5
steps more against those of the model that Keras trained for 20. Fails where predictions of a model in float64 differ by more than
1e-5: in float32 20 steps may lead elsewhere.
"""
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import keras
import numpy as np


def column(numbers, letter):
    names = [f"{letter}{i}" for i in range(len(numbers)) if f"{letter}{i}" in numbers]
    return [numbers[name] for name in names]


def go_on(model, inputs, labels, steps):
    losses = []
    for _ in range(steps):
        model.reset_metrics()
        losses.append(model.train_on_batch(inputs, labels, return_dict=True)["loss"])
    return np.asarray(losses)


def shaped(model, values):
    """Inputs as the model takes them: by name, if it has them by name."""
    named = getattr(model, "_inputs_struct", None)
    if isinstance(named, dict):
        return dict(zip(sorted(named), values))
    return values if len(values) > 1 else values[0]


def main(written, path, original=None):
    numbers = np.load(path)
    model = keras.models.load_model(written)
    inputs, labels = shaped(model, column(numbers, "x")), column(numbers, "t")
    outputs = model(inputs, training=False)
    if isinstance(outputs, dict):
        labels = dict(zip(sorted(outputs), labels))
        outputs = [outputs[name] for name in sorted(outputs)]
    else:
        labels = labels if len(labels) > 1 else labels[0]
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    pairs = [(np.asarray(y), z) for y, z in zip(outputs, column(numbers, "z"))]
    far = max(float(np.abs(y.astype(z.dtype) - z).max()) for y, z in pairs)
    line = f"{os.path.basename(written)}: outputs {far:.1e}"
    if model.optimizer is not None and model.optimizer.built:
        line += f", iterations {int(model.optimizer.iterations)}"
    if original:
        theirs = keras.models.load_model(original)
        same = theirs.get_compile_config() == model.get_compile_config()
        line += f", compiled {'alike' if same else 'DIFFERENTLY'}"
        go_on(theirs, inputs, labels, 20)
        a, b = go_on(theirs, inputs, labels, 5), go_on(model, inputs, labels, 5)
        line += f", 5 steps more {float(np.abs(a / b - 1).max()):.1e}"
    print(line)
    if all(y.dtype == np.float64 for y, _ in pairs) and not far <= 1e-5:
        sys.exit(f"{written} predicts something else")


if __name__ == "__main__":
    main(*sys.argv[1:])
