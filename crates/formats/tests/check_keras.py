"""Opens with Keras and h5py what `cargo test -p plimsoll-formats` wrote.

Run in this folder as: python check_keras.py TARGET_DIR/tmp; needs keras, tensorflow, h5py and numpy.
"""
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
import h5py
import keras
import numpy as np

import odd_layer  # noqa: F401: registers itself

folder = sys.argv[1]
keras.config.enable_unsafe_deserialization()  # The fixture with a Lambda layer is our own.

inputs = {
    "cnn": np.random.rand(3, 6, 6, 1).astype("f4"),
    "branches": {"words": np.arange(10).reshape(2, 5), "features": np.random.rand(2, 4).astype("f4")},
    "types": np.random.rand(2, 2).astype("f4"),
    "unknown": np.random.rand(2, 2).astype("f4"),
}
for file in [*(f"{name}.keras" for name in inputs), "cnn.h5"]:
    name = file.split(".")[0]
    x = inputs[name]
    theirs = keras.models.load_model(f"fixtures/keras/{file}")
    ours = keras.models.load_model(f"{folder}/copy_{file}")
    for a, b in zip(theirs.variables, ours.variables, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, (a.path, b.path)
        # Keras draws new seeds for dropout when it loads a model.
        assert "seed_generator" in a.path or np.array_equal(np.asarray(a), np.asarray(b)), a.path
    if theirs.compiled:
        pairs = list(zip(theirs.optimizer.variables, ours.optimizer.variables, strict=True))
        # From a legacy file Keras itself restores only the counter and the rate.
        assert len(pairs) > 2 or file.endswith(".h5")
        for a, b in pairs:
            assert np.array_equal(np.asarray(a), np.asarray(b)), a.path
    for a, b in zip(keras.tree.flatten(theirs.predict(x, verbose=0)), keras.tree.flatten(ours.predict(x, verbose=0))):
        assert np.array_equal(a, b), name
    if file == "cnn.keras":
        y = np.arange(3) % 4
        assert theirs.evaluate(x, y, verbose=0) == ours.evaluate(x, y, verbose=0)
        ours.train_on_batch(x, y)
        assert int(ours.optimizer.iterations) == 2
    print(f"{file}: variables, optimizer and predictions are equal")

for file in ["cnn.h5", "branches.h5"]:  # Keras itself cannot load the second: it knows no operations there.
    with h5py.File(f"fixtures/keras/{file}") as theirs, h5py.File(f"{folder}/copy_{file}") as ours:
        def visit(name, item):
            other = ours[name]
            for key, value in item.attrs.items():
                assert np.array_equal(value, other.attrs[key]), (name, key)
            if isinstance(item, h5py.Dataset):
                assert item.dtype == other.dtype and np.array_equal(item[()], other[()]), name

        theirs.visititems(visit)
        assert dict(theirs.attrs) == dict(ours.attrs)
    print(f"{file}: groups, attributes and values are equal")

model = keras.models.load_model(f"{folder}/counted.keras")
assert int(model.optimizer.iterations) == 7
for v in model.variables + model.optimizer.variables[1:]:
    if v.dtype == "float32" and "seed" not in v.path and "metric" not in v.path and "loss" not in v.path:
        assert np.array_equal(np.asarray(v).ravel(), np.arange(np.size(v), dtype="f4") / 8), v.path
fresh = keras.models.load_model("fixtures/keras/cnn.keras")
fresh.load_weights(f"{folder}/counted.weights.h5")
for a, b in zip(fresh.layers, model.layers, strict=True):
    assert all(np.array_equal(x, y) for x, y in zip(a.get_weights(), b.get_weights(), strict=True)), a.name
print("counted: new values, state of the optimizer and a weights file are read")

with h5py.File(f"{folder}/many.weights.h5") as file:
    seen = 0
    for i in range(3000):
        group = file[f"layers/layer_{i}/vars"]
        assert group.attrs["name"] == f"name of {i} λ"
        data = group["0"]
        path = f"layers/layer_{i}/vars/0"
        seed = len(path) + sum(path.encode())
        bytes_ = np.array([(seed + j) % 2 for j in range(data.size * data.dtype.itemsize)], "u1")
        found = np.zeros(data.shape, data.dtype)
        if data.size:
            found[...] = data[()]
        assert np.array_equal(np.frombuffer(found.tobytes(), "u1"), bytes_), path
        seen += data.size
    assert len(file["layers"]) == 3000 and seen > 3000
print("many: 3000 groups and variables are read")
