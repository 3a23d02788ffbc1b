"""Makes fixtures/keras/: small models saved by Keras, hostile files made from them, and expected.json.

Run in this folder; needs keras, tensorflow, h5py and numpy.
"""
import json
import os
import shutil
import zipfile
import zlib

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
import h5py
import keras
import numpy as np
from keras import layers

from odd_layer import Odd

OUT = "fixtures/keras"
shutil.rmtree(OUT, ignore_errors=True)
os.makedirs(OUT)
keras.utils.set_random_seed(7)


def cnn():
    model = keras.Sequential([
        layers.Input((6, 6, 1), name="image"),
        layers.Conv2D(2, 3, padding="same", use_bias=False, name="first"),
        layers.BatchNormalization(name="norm"),
        layers.ReLU(),
        layers.Conv2D(3, 3, name="second"),
        layers.GlobalAveragePooling2D(),
        layers.Dropout(0.5),
        layers.Dense(4, activation="softmax", name="head"),
    ], name="cnn")
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.train_on_batch(np.random.rand(4, 6, 6, 1), np.arange(4) % 4)
    return model


def branches():
    words = keras.Input((5,), dtype="int32", name="words")
    features = keras.Input((4,), name="features")
    shared = layers.Dense(4, name="shared")
    tower = keras.Sequential([layers.Dense(4, activation="relu"), layers.Dense(4)], name="tower")
    inner_in = keras.Input((4,))
    inner = keras.Model(inner_in, layers.LayerNormalization()(layers.Dense(4)(inner_in)), name="inner")
    x = layers.Embedding(11, 4)(words)
    x = layers.Bidirectional(layers.LSTM(2, return_sequences=True))(x)
    x = layers.MultiHeadAttention(2, 2)(query=x, value=x)
    x = layers.GRU(4, name="memory")(x)
    y = shared(features)
    y = tower(y)
    y = shared(y)
    z = layers.Add()([inner(x), inner(y), keras.ops.multiply(x, 2.0)])
    z = layers.Dense(3, name="mixed", dtype="mixed_bfloat16")(z)
    frozen = layers.Dense(2, name="frozen", trainable=False)
    model = keras.Model({"words": words, "features": features}, [frozen(z), inner(z[:, :1] + y)], name="branches")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), ["mse", "mse"])
    model.train_on_batch({"words": np.arange(10).reshape(2, 5), "features": np.ones((2, 4))},
                         [np.ones((2, 2)), np.ones((2, 4))])
    return model


def types():
    x = keras.Input((2,), name="x")
    y = layers.Dense(2, dtype="float16", name="half")(x)
    y = layers.Dense(2, dtype="bfloat16", name="brain")(y)
    y = layers.Dense(2, dtype="float64", name="double")(y)
    return keras.Model(x, y, name="types")


def unknown():
    return keras.Sequential([layers.Input((2,)), Odd(name="odd"), layers.Lambda(lambda x: x * 2, name="code")],
                            name="unknown")


def variables(path):
    """Every dataset of an HDF5 file: type, shape and CRC-32 of its bytes."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            kind = item.attrs.get("dtype", item.dtype.name)
            data = np.zeros(item.shape, item.dtype)
            if item.size:
                item.read_direct(data) if item.shape else data.__setitem__((), item[()])
            found[name] = [kind, list(item.shape), zlib.crc32(data.tobytes())]

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zip_of(name, content, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(f"{OUT}/{name}", "w", method) as archive:
        for member, data in content.items():
            archive.writestr(member, data)


def paths(layer, prefix):
    """Layer names by the path of their variables, found by the attribute that Keras stores."""
    found = {}
    with h5py.File(layer) as file:
        file.visititems(lambda name, item: found.__setitem__(name[:-5], item.attrs["name"])
                        if name.endswith("/vars") and "name" in item.attrs else None)
    return {k: str(v) for k, v in found.items()}


expected = {}
for make in [cnn, branches, types, unknown]:
    model = make()
    name = f"{OUT}/{make.__name__}.keras"
    model.save(name)
    weights = f"{OUT}/tmp.h5"
    with open(weights, "wb") as out:
        out.write(members(name)["model.weights.h5"])
    expected[f"{make.__name__}.keras"] = {
        "variables": variables(weights),
        "layers": paths(weights, ""),
        "calls": [[op.name, len(op._inbound_nodes)] for op in model.operations] if make is branches else None,
    }
    os.remove(weights)
    if make in (cnn, branches):
        model.save(f"{OUT}/{make.__name__}.h5")
        expected[f"{make.__name__}.h5"] = {"variables": variables(f"{OUT}/{make.__name__}.h5"),
                                           "weights": [[layer.name, [w.path for w in layer.weights]]
                                                       for layer in model.layers]}
    if make is cnn:
        model.save_weights(f"{OUT}/cnn.weights.h5")
        expected["cnn.weights.h5"] = {"variables": variables(f"{OUT}/cnn.weights.h5")}
        zip_of("deflated.keras", members(name), zipfile.ZIP_DEFLATED)
        expected["deflated.keras"] = expected["cnn.keras"]



def keras2():
    """A file as Keras 2 wrote it, whose texts are bytes of fixed length and whose nodes are lists."""
    def entry(name, kind, nodes, **config):
        return {"class_name": kind, "name": name, "config": {"name": name, "dtype": "float32", **config},
                "inbound_nodes": nodes}

    shape = {"batch_input_shape": [None, 2]}
    inner = entry("inner", "Functional", [[["x", 0, 0, {}]], [["inner", 1, 0, {}]]], trainable=True, layers=[
        entry("y", "InputLayer", [], **shape), entry("d", "Dense", [[["y", 0, 0, {}]]], units=2)],
        input_layers=[["y", 0, 0]], output_layers=[["d", 0, 0]])
    config = entry("m", "Functional", [], layers=[
        entry("x", "InputLayer", [], **shape), inner, entry("e", "Dense", [[["inner", 2, 0, {}]]], units=1)],
        input_layers=[["x", 0, 0]], output_layers=[["e", 0, 0]])
    path = f"{OUT}/keras2.h5"
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = np.bytes_("2.15.0")
        file.attrs["model_config"] = np.bytes_(json.dumps(config))
        group = file.create_group("model_weights")
        group.attrs["layer_names"] = np.array([b"x", b"inner", b"e"])
        group.create_group("x").attrs["weight_names"] = np.array([])
        for layer, dense, shape in [("inner", "d", (2, 2)), ("e", "e", (2, 1))]:
            group.create_group(layer).attrs["weight_names"] = np.array([f"{dense}/kernel:0".encode(),
                                                                        f"{dense}/bias:0".encode()])
            group[f"{layer}/{dense}/kernel:0"] = np.arange(np.prod(shape), dtype="f4").reshape(shape)
            group[f"{layer}/{dense}/bias:0"] = np.ones(shape[1], "f4")
    expected["keras2.h5"] = {"variables": variables(path)}


keras2()
with open(f"{OUT}/expected.json", "w") as out:
    json.dump(expected, out, indent=1)

# Hostile files: each would make a careless reader leave the file, grow without bound or run for ever.
good = members(f"{OUT}/cnn.keras")
os.makedirs(f"{OUT}/hostile")


def hostile(name, edit):
    path = f"{OUT}/tmp.h5"
    with open(path, "wb") as out:
        out.write(good["model.weights.h5"])
    with h5py.File(path, "r+") as file:
        edit(file)
    with open(path, "rb") as data:
        zip_of(f"hostile/{name}.keras", {**good, "model.weights.h5": data.read()}, zipfile.ZIP_DEFLATED)
    os.remove(path)


HEAD = "layers/dense/vars"


def replace(file, make):
    del file[f"{HEAD}/0"]
    make(file[HEAD])


def external_storage(group):
    group.create_dataset("0", (3, 4), "f4", external=[("passwd", 0, 48)])


def huge(group):
    group.create_dataset("0", (1 << 40,), "f4")


def virtual(group):
    layout = h5py.VirtualLayout((3, 4), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3, 4))
    group.create_virtual_dataset("0", layout)


hostile("soft_link", lambda f: replace(f, lambda g: g.__setitem__("0", h5py.SoftLink("/layers/conv2d/vars/0"))))
hostile("external_link", lambda f: replace(f, lambda g: g.__setitem__("0", h5py.ExternalLink("other.h5", "/x"))))
hostile("external_storage", lambda f: replace(f, external_storage))
hostile("virtual", lambda f: replace(f, virtual))
hostile("never_written", lambda f: replace(f, huge))
hostile("compressed", lambda f: replace(f, lambda g: g.create_dataset(
    "0", data=np.zeros((3, 4), "f4"), chunks=(3, 4), compression="gzip")))
hostile("loop", lambda f: f[HEAD].__setitem__("again", f["layers"]))
hostile("strings", lambda f: replace(f, lambda g: g.create_dataset("0", data=["a", "b"])))
zip_of("hostile/bomb.keras", {**good, "config.json": b" " * 3_000_000}, zipfile.ZIP_DEFLATED)
zip_of("hostile/escape.keras", {**good, "assets/../../evil": b"x"}, zipfile.ZIP_DEFLATED)
zip_of("hostile/absolute.keras", {**good, "/etc/evil": b"x"}, zipfile.ZIP_DEFLATED)
zip_of("hostile/without_config.keras", {k: v for k, v in good.items() if k != "config.json"},
       zipfile.ZIP_DEFLATED)
zip_of("hostile/deep.keras", {"model.weights.h5": b"", "config.json": b"[" * 2_000})
cycle = json.loads(members(f"{OUT}/branches.keras")["config.json"])
for layer in cycle["config"]["layers"]:
    if layer["name"] == "tower":
        layer["inbound_nodes"][0]["args"][0]["config"]["keras_history"] = ["shared", 1, 0]
zip_of("hostile/cycle.keras", {**members(f"{OUT}/branches.keras"), "config.json": json.dumps(cycle).encode()},
       zipfile.ZIP_DEFLATED)
