"""Makes fixtures/: small models saved by Keras, and what Keras computes with them.

For each model NAME.keras there is NAME.npz: inputs x0…, labels t0…, outputs y0… as predicted, the gradients g0… of the
first step in the order of trainable variables, the losses of 20 steps on the same batch, and outputs z0… after them. Models
with several outputs also have e_NAME, what `evaluate` says before the first step, and p_NAME, what every step says.

Run in this folder; needs keras, tensorflow and numpy. With names it makes only those, with `--several` those with several
outputs and those after them, with `--obeyed` those of what a file says of training. With `--applications FOLDER [NAMES]` it makes files of Keras's own applications in FOLDER instead
(they are too large to keep), for `cargo run --release --example check`; check_with_keras.sh makes and checks those in float64.
"""
import json
import os
import sys
import zipfile

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

OUT = "fixtures"
STEPS = 20
ONLY = []


def as_list(x):
    if isinstance(x, dict):
        return [x[key] for key in sorted(x)]
    return list(x) if isinstance(x, (list, tuple)) else [x]


def numbers(model, inputs, labels, steps=STEPS, named=False):
    """What Keras computes, where `named` also under its own names; trains the model."""
    found = {f"x{i}": np.asarray(x) for i, x in enumerate(as_list(inputs))}
    found |= {f"t{i}": np.asarray(t) for i, t in enumerate(as_list(labels))}
    found |= {f"y{i}": np.asarray(y) for i, y in enumerate(as_list(model(inputs, training=False)))}
    state = [v.numpy() for v in model.variables]
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x=inputs, y=labels, y_pred=model(inputs, training=True))
    grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
    for i, (grad, v) in enumerate(zip(grads, model.trainable_variables)):
        grad = tf.zeros(v.shape, v.dtype) if grad is None else tf.convert_to_tensor(grad)
        found[f"g{i}"] = np.asarray(grad if grad.dtype == tf.float64 else tf.cast(grad, tf.float32))
    # The forward pass in training moved the statistics of norms.
    for v, value in zip(model.variables, state):
        v.assign(value)
    if named:
        # Equal batches: with TensorFlow, Keras weighs the losses of single outputs by batches and all else by samples.
        batch = len(as_list(inputs)[0]) // 2
        evaluated = model.evaluate(inputs, labels, batch_size=batch, return_dict=True, verbose=0)
        found |= {f"e_{name}": np.asarray(value) for name, value in evaluated.items()}
    results = []
    for _ in range(steps):
        model.reset_metrics()
        results.append(model.train_on_batch(inputs, labels, return_dict=True))
    # As wide as the model: what comes out of it says so.
    wide = np.float64 if found["y0"].dtype == np.float64 else np.float32
    found["losses"] = np.asarray([result["loss"] for result in results], wide)
    if named:
        found |= {f"p_{name}": np.asarray([result[name] for result in results]) for name in results[0]}
    found |= {f"z{i}": np.asarray(y) for i, y in enumerate(as_list(model(inputs, training=False)))}
    return {key: value.astype(wide) if value.dtype.kind == "f" else value for key, value in found.items()}


def save(model, path):
    """Saves a model; archives deflated, since HDF5 is mostly empty."""
    if ONLY and os.path.basename(path).split(".")[0] not in ONLY:
        return
    model.save(path)
    if path.endswith(".keras") and OUT == "fixtures":
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def case(name, model, inputs, labels, optimizer, loss, metrics=None, suffix="keras", warm=0, named=False, **compile_args):
    """Saves a compiled model, trained for `warm` steps, then what Keras computes with it."""
    if ONLY and name not in ONLY:
        return
    model.compile(optimizer, loss, metrics=metrics, **compile_args)
    for _ in range(warm):
        model.train_on_batch(inputs, labels)
    save(model, f"{OUT}/{name}.{suffix}")
    np.savez(f"{OUT}/{name}.npz", **numbers(model, inputs, labels, named=named))
    print(name, model.count_params())


def random(*shape):
    return np.random.default_rng(sum(shape) + 17).normal(size=shape).astype(np.float32)


def classes(n, k):
    return (np.arange(n) * 7 % k).astype(np.int64)


def wake(model):
    """Draws every weight anew: zeros and ones hide mistakes."""
    rng = np.random.default_rng(5)
    for v in model.variables:
        # What a Normalization layer was adapted to stays: it computes from copies.
        if "float" not in v.dtype or v.path.split("/")[-1] in ("mean", "variance"):
            continue
        value = rng.normal(size=v.shape).astype("float64" if v.dtype == "float64" else "float32") * 0.3
        if v.path.endswith(("gamma", "variance", "scale")):
            value = 1 + 0.5 * np.abs(value)
        elif v.path.endswith("kernel") or "embedding" in v.path:
            value = v.numpy().astype(value.dtype)
        v.assign(value)
    return model


def mlp():
    return wake(keras.Sequential([
        layers.Input((5,)),
        layers.Dense(8, activation="relu"),
        layers.Dropout(0.0),
        layers.Dense(6, activation="tanh", use_bias=False),
        layers.Dense(4, activation="softmax"),
    ], name="mlp"))


def cnn():
    return wake(keras.Sequential([
        layers.Input((9, 8, 2)),
        layers.ZeroPadding2D(((1, 0), (0, 2))),
        layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(6.0),
        layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2),
        layers.SeparableConv2D(6, (3, 2), padding="same", activation="swish"),
        layers.Conv2D(6, 1, groups=2, use_bias=False),
        layers.MaxPooling2D(2, padding="same"),
        layers.BatchNormalization(momentum=0.9, epsilon=1e-5, scale=False),
        layers.AveragePooling2D(2, strides=1, padding="same"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(3, activation="softmax"),
    ], name="cnn"))


def convs():
    image = keras.Input((6, 5, 2))
    x = layers.Conv2DTranspose(3, 3, strides=2, padding="same")(image)
    x = layers.Conv2DTranspose(2, 2, strides=3, padding="valid", activation="elu")(x)
    x = layers.Cropping2D(((1, 2), (3, 0)))(x)
    x = layers.AveragePooling2D(4)(x)
    x = layers.UpSampling2D((2, 3))(x)
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Conv2D(3, 3, dilation_rate=2, activation="leaky_relu")(x)
    x = layers.MaxPooling2D((3, 2), strides=(2, 3))(x)
    x = layers.Resizing(4, 5)(x)
    x = layers.GlobalMaxPooling2D(keepdims=True)(x)
    line = keras.Input((9, 3))
    y = layers.Conv1D(4, 3, padding="causal", dilation_rate=2)(line)
    y = layers.ZeroPadding1D((1, 2))(y)
    y = layers.DepthwiseConv1D(2, padding="same")(y)
    y = layers.SeparableConv1D(4, 3, activation="relu")(y)
    y = layers.Conv1DTranspose(3, 4, strides=2, padding="same")(y)
    y = layers.UpSampling1D(2)(y)
    y = layers.Cropping1D((2, 1))(y)
    y = layers.MaxPooling1D(3, strides=2, padding="same")(y)
    y = layers.AveragePooling1D(2)(y)
    y = layers.GlobalMaxPooling1D()(y)
    z = layers.Concatenate()([layers.Flatten()(x), y])
    return wake(keras.Model([image, line], layers.Dense(2)(z), name="convs"))


def rnn():
    words = keras.Input((7,), dtype="int32")
    x = layers.Embedding(29, 4)(words)
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
    x = layers.GRU(4, return_sequences=True)(x)
    x = layers.TimeDistributed(layers.Dense(3, activation="relu"))(x)
    x = layers.Bidirectional(layers.GRU(2), merge_mode="sum")(x)
    return wake(keras.Model(words, layers.Dense(1, activation="sigmoid")(x), name="rnn"))


def rnn_odd():
    line = keras.Input((5, 3))
    x, h, c = layers.LSTM(4, recurrent_activation="hard_sigmoid", return_sequences=True, return_state=True)(line)
    x = layers.LSTM(4, activation="softsign", return_sequences=True)(x, initial_state=[h, c])
    x = layers.GRU(4, reset_after=False, go_backwards=True, return_sequences=True)(x)
    x = layers.GRU(3, use_bias=False, return_sequences=True)(x)
    x = layers.SimpleRNN(3, activation="relu", return_sequences=True)(x)
    x = layers.LSTM(3, use_bias=False, go_backwards=True)(x)
    return wake(keras.Model(line, layers.Dense(2)(x), name="rnn_odd"))


def attention():
    words = keras.Input((6,), dtype="int64")
    x = layers.Embedding(19, 6)(words)
    y = layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization(epsilon=1e-5)(layers.Add()([x, y]))
    y = layers.MultiHeadAttention(3, 2, value_dim=4, use_bias=False)(x, layers.Dense(5)(x))
    x = layers.LayerNormalization()(x + y)
    y = layers.EinsumDense("abc,cde->abde", output_shape=(None, 2, 4), bias_axes="de", activation="gelu")(x)
    y = layers.EinsumDense("abde,dec->abc", output_shape=(None, 6), bias_axes="c")(y)
    x = layers.Attention()([x, y, x])
    x = layers.GroupQueryAttention(2, 4, 2)(x, x)
    x = layers.GlobalAveragePooling1D()(x)
    return wake(keras.Model(words, layers.Dense(4)(x), name="attention"))


def branches():
    a, b = keras.Input((6,), name="b_second"), keras.Input((4, 4, 1), name="a_first")
    shared = layers.Dense(5, activation="tanh", name="shared", kernel_regularizer=keras.regularizers.L2(0.01))
    norm = layers.BatchNormalization(name="norm")
    tower_in = keras.Input((5,))
    tower_x = layers.Dense(5, name="inside", kernel_regularizer=keras.regularizers.L1L2(0.001, 0.02))(tower_in)
    tower = keras.Model(tower_in, [tower_x, layers.BatchNormalization(name="own")(tower_x)], name="tower")
    frozen = keras.Sequential([layers.Input((5,)), layers.Dense(6), layers.BatchNormalization(), layers.ReLU()],
                              name="frozen")
    frozen.trainable = False
    lone = layers.Dense(6, name="lone", kernel_regularizer="l2")
    lone.trainable = False
    x = layers.Flatten()(b)
    x = layers.Dense(6)(x)
    p, q = tower(shared(a))
    r, s = tower(norm(shared(x)))
    y = frozen(p + q) * 0.5 - lone(norm(r))
    y = ops.concatenate([y, s[:, 1:4]], axis=-1)
    one = layers.Dense(3, activation="softmax", name="one")(y)
    two = layers.Dense(1, name="two")(ops.mean(y, axis=-1, keepdims=True) / 2.0)
    return wake(keras.Model({"b_second": a, "a_first": b}, [one, two], name="branches"))


def norms():
    image = keras.Input((4, 3, 4))
    scaling = layers.Normalization()
    scaling.adapt(random(9, 4, 3, 4) * 3 + 1)
    x = layers.Rescaling([0.5, 0.25, 2.0, 1.0], offset=-1)(image)
    x = scaling(x)
    x = layers.Normalization(mean=[0.1, 0.2, 0.3, 0.4], variance=[1.0, 2.0, 3.0, 4.0])(x)
    x = layers.BatchNormalization(axis=1, center=False)(x)
    x = layers.Activation("tanh")(x)
    x = layers.LayerNormalization(axis=[2, 3])(x)
    x = layers.Activation("tanh")(x)
    x = layers.LayerNormalization(axis=1, scale=False)(x)
    x = layers.GroupNormalization(2)(x)
    x = layers.RMSNormalization()(x)
    x = layers.UnitNormalization()(x)
    x = layers.Rescaling(3.0)(x)
    x = layers.Permute((3, 1, 2))(x)
    return wake(keras.Model(image, layers.Dense(2)(layers.Flatten()(x)), name="norms"))


ACTIVATIONS = ["relu", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "sigmoid", "log_sigmoid",
               "hard_sigmoid", "hard_silu", "tanh", "hard_tanh", "tanh_shrink", "softplus", "softsign", "softmax",
               "log_softmax", "exponential", "celu", "soft_shrink", "hard_shrink", "squareplus", "sparse_plus",
               "sparse_sigmoid", "linear"]


def activations():
    row = keras.Input((6,))
    x = layers.Dense(4)(row)
    parts = [layers.Activation(name)(x) for name in ACTIVATIONS]
    parts += [layers.ReLU(1.0, 0.1, 0.2)(x), layers.ReLU(threshold=0.3)(x), layers.LeakyReLU(0.15)(x),
              layers.ELU(0.7)(x), layers.PReLU()(x), layers.Softmax()(x), layers.Identity()(x),
              layers.GaussianNoise(0.0)(x), layers.SpatialDropout1D(0.0)(x[:, None])[:, 0]]
    return wake(keras.Model(row, layers.Dense(3)(layers.Concatenate()(parts)), name="activations"))


def masked():
    words = keras.Input((7,), dtype="int32")
    line = keras.Input((5, 2))
    x = layers.Embedding(30, 4, mask_zero=True)(words)
    x = layers.Dropout(0.0)(x)
    x = layers.LSTM(4, return_sequences=True)(x)
    x = layers.Bidirectional(layers.GRU(3, return_sequences=True))(x)
    x = layers.LayerNormalization()(x)
    y = layers.GlobalAveragePooling1D()(x)
    z = layers.Bidirectional(layers.LSTM(2))(x)
    w = layers.SimpleRNN(3)(layers.Masking(-1.0)(line))
    return wake(keras.Model([words, line], layers.Dense(2, activation="softplus")(
        layers.Concatenate()([y, z, w])), name="masked"))


def merges():
    a, b = keras.Input((4,)), keras.Input((4,))
    x, y = layers.Dense(3, activation="tanh")(a), layers.Dense(3, activation="sigmoid")(b)
    parts = [layers.Add()([x, y]), layers.Subtract()([x, y]), layers.Multiply()([x, y]), layers.Average()([x, y, x]),
             layers.Maximum()([x, y]), layers.Minimum()([x, y]), layers.Dot(1)([x, y]),
             layers.Dot(1, normalize=True)([x, y])]
    r = layers.RepeatVector(2)(x)
    s = layers.Reshape((-1, 2))(layers.Concatenate()([x, y]))
    parts.append(layers.Flatten()(layers.Dot((1, 2))([s, r])))
    parts += [ops.maximum(x, 0.1), 1.0 - x, ops.sqrt(ops.square(y) + 1.0), ops.sum(x, axis=1, keepdims=True),
              ops.expand_dims(x[:, 0], -1), ops.transpose(ops.reshape(x, (-1, 3, 1)), (0, 2, 1))[:, 0, ::2],
              ops.clip(x, -0.5, 0.5), ops.softmax(x), ops.reshape(
                  ops.matmul(ops.reshape(x, (-1, 3, 1)), ops.reshape(y, (-1, 1, 3))), (-1, 9))]
    z = layers.Concatenate()(parts)
    z = layers.Dense(4)(z)
    # A probability that a loss cannot see through.
    return wake(keras.Model([a, b], layers.Reshape((4,))(layers.Softmax()(z)), name="merges"))


def mixed(policy):
    row = keras.Input((5,))
    x = layers.Dense(8, activation="relu", dtype=policy)(row)
    x = layers.BatchNormalization(dtype=policy)(x)
    x = layers.Dense(8, dtype=policy)(x)
    return wake(keras.Model(row, layers.Dense(3, activation="softmax", dtype="float32")(x), name="mixed"))


def compute_in(dtype):
    """The type of models made from now on. The policy was settled by the first layer, so both are set."""
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)


def double():
    """All that f64 can get lost in: norms with statistics, convolutions, recurrent layers, attention, operations."""
    image, words = keras.Input((6, 5, 2)), keras.Input((5,), dtype="int32")
    x = layers.Rescaling([0.1, 0.7], offset=0.3)(image)
    x = layers.Conv2D(4, 3, padding="same", use_bias=False, kernel_regularizer=keras.regularizers.L2(0.01))(x)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU(6.0)(x)
    x = layers.DepthwiseConv2D(3, strides=2, padding="same")(x)
    x = layers.BatchNormalization(scale=False)(x)
    x = layers.Activation("gelu")(x)
    w = layers.Reshape((-1, 4))(x)
    w = layers.LayerNormalization()(layers.MultiHeadAttention(2, 3)(w, w, use_causal_mask=True) + w)
    w = layers.GlobalAveragePooling1D()(w)
    x = layers.MaxPooling2D(2, padding="same")(x)
    x = layers.GlobalAveragePooling2D()(x)
    y = layers.Embedding(30, 4, mask_zero=True)(words)
    y = layers.LSTM(4, return_sequences=True)(y)
    y = layers.Bidirectional(layers.GRU(3, return_sequences=True))(y)
    y = layers.GlobalAveragePooling1D()(y)
    z = layers.Concatenate()([x, y, w]) * 0.9 + 0.1
    return wake(keras.Model([image, words], layers.Dense(3, activation="softmax")(z), name="double"))


def small(name):
    return wake(keras.Sequential([layers.Input((5,)), layers.Dense(4, activation="tanh"), layers.Dense(2)], name=name))


def fixtures():
    os.makedirs(OUT, exist_ok=True)
    for old in os.listdir(OUT):
        if not ONLY:
            os.remove(f"{OUT}/{old}")
    keras.utils.set_random_seed(3)
    o, l = keras.optimizers, keras.losses
    case("mlp", mlp(), random(6, 5), classes(6, 4), "adam", "sparse_categorical_crossentropy", ["accuracy"])
    case("cnn", cnn(), random(5, 9, 8, 2), classes(5, 3), o.SGD(0.05, momentum=0.9, nesterov=True),
         l.SparseCategoricalCrossentropy(), ["accuracy", "sparse_top_k_categorical_accuracy"])
    case("convs", convs(), [random(3, 6, 5, 2), random(3, 9, 3)], random(3, 2), o.RMSprop(0.003), "mse", ["mae"])
    # No token twice: with TensorFlow, Keras adds up the squares of a repeated row's gradients, where it should square
    # their sum.
    words = np.arange(28).reshape(4, 7).astype(np.int32) * 5 % 29
    case("rnn", rnn(), words, classes(4, 2).astype(np.float32), o.Adam(0.02), "binary_crossentropy", ["accuracy"])
    case("rnn_odd", rnn_odd(), random(3, 5, 3), random(3, 2), o.Adagrad(0.05), l.LogCosh())
    one_hot = np.eye(4, dtype=np.float32)[classes(3, 4)]
    tokens = np.arange(18).reshape(3, 6) * 7 % 19
    case("attention", attention(), tokens, one_hot, o.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
         l.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1))
    case("branches", branches(), {"b_second": random(6, 6), "a_first": random(6, 4, 4, 1)},
         [classes(6, 3), random(6, 1)], o.Adam(0.01, global_clipnorm=1.0),
         [l.SparseCategoricalCrossentropy(), l.Huber()], loss_weights=[1.0, 0.3])
    case("norms", norms(), random(5, 4, 3, 4), random(5, 2), o.Lion(0.001), "mae")
    case("activations", activations(), random(5, 6), random(5, 3), o.Adamax(0.01, clipvalue=0.2), l.Huber())
    short = words.copy() + 1
    short[1, 4:] = 0
    short[2, :2] = 0
    line = random(4, 5, 2)
    line[0, 3:] = -1
    line[3, 0] = -1
    case("masked", masked(), [short, line], np.abs(random(4, 2)), o.Adadelta(1.0), "msle")
    case("merges", merges(), [random(4, 4), random(4, 4) + 1], one_hot[[0, 1, 2, 0]], o.SGD(0.1),
         "categorical_crossentropy")
    case("mixed_bf16", mixed("mixed_bfloat16"), random(6, 5), classes(6, 3), o.SGD(0.05),
         "sparse_categorical_crossentropy")
    case("mixed_f16", mixed("mixed_float16"), random(6, 5), classes(6, 3), o.SGD(0.05),
         "sparse_categorical_crossentropy")
    case("amsgrad", small("amsgrad"), random(6, 5), random(6, 2), o.Adam(0.02, amsgrad=True), "mse")
    case("nadam", small("nadam"), random(6, 5), random(6, 2), o.Nadam(0.02, weight_decay=0.01), "mse")
    case("centered", small("centered"), random(6, 5), np.abs(random(6, 2)),
         o.RMSprop(0.01, momentum=0.8, centered=True, weight_decay=0.01), l.CosineSimilarity())
    case("poisson", keras.Sequential([small("inner"), layers.Activation("exponential")], name="poisson"),
         random(6, 5), np.abs(random(6, 2)), o.SGD(0.01, momentum=0.5), "poisson")
    case("mape", small("mape"), random(6, 5), random(6, 2) + 3, "sgd", l.MeanAbsolutePercentageError())
    inner = keras.Sequential([small("inner2"), layers.Activation("softmax")], name="kl")
    case("kl", inner, random(6, 5), np.eye(2, dtype=np.float32)[classes(6, 2)] * 0.8 + 0.1, "adagrad",
         "kl_divergence")
    # A model that was never compiled.
    save(small("bare"), f"{OUT}/bare.keras")
    # The same kinds of model as older Keras stored them, and weights alone.
    case("legacy", cnn(), random(5, 9, 8, 2), classes(5, 3), o.Adam(0.01), "sparse_categorical_crossentropy",
         suffix="h5", warm=1)
    case("legacy_rnn", rnn(), words, classes(4, 2).astype(np.float32), o.Adam(0.02), "binary_crossentropy",
         suffix="h5")
    if not ONLY:
        rest()
    compute_in("float64")
    keras.utils.set_random_seed(4)
    tokens = np.arange(25).reshape(5, 5).astype(np.int32)
    tokens[1, 3:] = 0
    case("double", double(), [random(5, 6, 5, 2).astype(np.float64), tokens], classes(5, 3), o.Adam(0.01),
         "sparse_categorical_crossentropy", ["accuracy"])
    case("double_legacy", mlp(), random(6, 5).astype(np.float64), classes(6, 4), o.Nadam(0.02),
         "sparse_categorical_crossentropy", suffix="h5", warm=1)
    compute_in("float32")
    # One wide layer among others.
    row = keras.Input((5,))
    x = layers.Dense(4, activation="tanh", dtype="float64")(layers.Dense(6)(row))
    case("widened", wake(keras.Model(row, layers.Dense(2)(x), name="widened")), random(6, 5), random(6, 2),
         o.SGD(0.05, momentum=0.9), "mse")


def rest():
    """Weights alone, a model in mid-training, and models that are refused."""
    o = keras.optimizers
    other = mlp()
    other.compile("adam", "sparse_categorical_crossentropy")
    found = numbers(other, random(6, 5), classes(6, 4))
    other.save_weights(f"{OUT}/other.weights.h5")
    np.savez(f"{OUT}/other.npz", x0=found["x0"], y0=found["z0"])
    # A model in mid-training: the optimizer goes on.
    model = mlp()
    model.compile(o.Adam(0.05), "sparse_categorical_crossentropy")
    numbers(model, random(6, 5), classes(6, 4), steps=7)
    save(model, f"{OUT}/resumed.keras")
    np.savez(f"{OUT}/resumed.npz", **numbers(model, random(6, 5), classes(6, 4)))
    refused()
    several()
    obeyed()


def heads():
    """Two inputs and two outputs over one trunk."""
    image, meta = keras.Input((6, 6, 1), name="image"), keras.Input((3,), name="meta")
    x = layers.Conv2D(3, 3, activation="relu", kernel_regularizer=keras.regularizers.L2(0.02))(image)
    x = layers.Concatenate()([layers.Flatten()(x), layers.Dense(4, activation="tanh")(meta)])
    x = layers.Dense(6, activation="relu", kernel_regularizer="l2")(x)
    age = layers.Dense(1, name="age")(x)
    kind = layers.Dense(4, activation="softmax", name="class")(x)
    return wake(keras.Model([image, meta], [age, kind], name="heads"))


def named_heads():
    """Outputs by name, of which one has metrics and no loss."""
    row = keras.Input((5,), name="row")
    x = layers.Dense(6, activation="tanh")(row)
    return wake(keras.Model(row, {
        "score": layers.Dense(1, activation="sigmoid", name="one")(x),
        "tags": layers.Dense(3, activation="sigmoid", name="two")(x),
        "spare": layers.Dense(2, name="three")(x),
    }, name="named_heads"))


def twins():
    row = keras.Input((5,))
    x = layers.Dense(4, activation="tanh")(row)
    return wake(keras.Model(row, [layers.Dense(2, name="left")(x), layers.Dense(2, name="right")(x)], name="twins"))


def several():
    """Models with several outputs; optimizers that came later."""
    keras.utils.set_random_seed(4)
    o, l, m = keras.optimizers, keras.losses, keras.metrics
    image, meta = random(10, 6, 6, 1), random(10, 3)
    case("heads", heads(), [image, meta], [random(10, 1), classes(10, 4)], o.Adam(0.01),
         {"age": "mse", "class": "sparse_categorical_crossentropy"},
         {"age": ["mae", m.RootMeanSquaredError()], "class": ["accuracy", m.SparseTopKCategoricalAccuracy(k=2, name="top2")]},
         named=True, loss_weights={"age": 0.25, "class": 1.5})
    row = random(10, 5)
    tags = (random(10, 3) > 0.3).astype(np.float32)
    score = (row[:, :1] > 0).astype(np.float32)
    case("named_heads", named_heads(), row, {"score": score, "tags": tags, "spare": random(10, 2)},
         o.SGD(0.1, momentum=0.9), {"score": l.BinaryCrossentropy(), "tags": "binary_crossentropy"},
         {"score": ["accuracy", m.AUC(), m.Precision(thresholds=0.4), m.Recall()],
          "tags": [m.AUC(multi_label=True, num_thresholds=50), "binary_accuracy", "accuracy", m.BinaryCrossentropy()],
          "spare": ["mae", "cosine_similarity"]}, named=True, loss_weights={"score": 2.0, "tags": 0.5})
    case("twins", twins(), row, [random(10, 2), random(10, 2) + 1], o.Ftrl(0.2, l1_regularization_strength=0.01),
         "mse", [["mae"], ["mse", "mae"]], named=True)
    case("partial", twins(), row, [random(10, 2), random(10, 2) + 1], o.RMSprop(0.01), [None, "mae"], named=True)
    case("ftrl", small("ftrl"), random(6, 5), random(6, 2),
         o.Ftrl(0.1, learning_rate_power=-0.7, l1_regularization_strength=0.02, l2_regularization_strength=0.03,
                l2_shrinkage_regularization_strength=0.01, beta=0.1), "mse")
    unknown = small("unknown")
    case("unknown_metric", unknown, random(6, 5), random(6, 2), "sgd", "mse", ["mae", m.F1Score(), m.Precision(top_k=1)])


@keras.saving.register_keras_serializable("mine")
class Own(layers.Layer):
    def call(self, x):
        return x + 1


def refused():
    """Models that must be refused by name."""
    row = keras.Input((4,))
    deep_in = keras.Input((4,))
    deep = keras.Model(deep_in, Own(name="odd")(deep_in), name="deep")
    models = {
        "lambda": keras.Model(row, layers.Lambda(lambda x: x * 2, name="code")(row)),
        "own": keras.Model(row, deep(row)),
        "stateful": keras.Sequential([layers.Input(batch_shape=(2, 4, 3)), layers.LSTM(2, stateful=True, name="kept")]),
        "first": keras.Sequential([layers.Input((2, 4, 4)), layers.Conv2D(2, 2, data_format="channels_first", activation="softmax",
                                                                           name="turned")]),
    }
    for name, model in models.items():
        save(model, f"{OUT}/refused_{name}.keras")


def base(kind):
    """A model whose last layer was thawed after all were frozen: only the flags of single layers count."""
    if kind == "functional":
        row = keras.Input((5,))
        model = keras.Model(row, layers.Dense(4, name="last")(layers.Dense(5, activation="tanh", name="first")(row)), name=kind)
    else:
        model = keras.Sequential([layers.Input((5,)), layers.Dense(5, activation="tanh", name="first"),
                                  layers.BatchNormalization(name="norm"), layers.Dense(4, name="last")], name=kind)
    model.trainable = False
    model.layers[-1].trainable = True
    return model


def thawed():
    row = keras.Input((5,))
    x = layers.Concatenate()([base("functional")(row), base("sequential")(row)])
    return wake(keras.Model(row, layers.Dense(2, name="head")(x), name="thawed"))


def wrapped():
    """Layers inside wrappers, of which some are frozen, also inside a frozen wrapper."""
    line = keras.Input((4, 3))
    x = layers.TimeDistributed(layers.Dense(3, activation="tanh", kernel_regularizer="l2"), name="frozen")(line)
    x = layers.TimeDistributed(layers.Dense(3, activation="tanh"), name="thawed")(x)
    x = layers.Bidirectional(layers.LSTM(2, return_sequences=True), name="one_way")(x)
    x = layers.Bidirectional(layers.GRU(2), name="other_way")(x)
    model = wake(keras.Model(line, layers.Dense(2)(x), name="wrapped"))
    model.get_layer("frozen").layer.trainable = False
    model.get_layer("thawed").trainable = False
    model.get_layer("thawed").layer.trainable = True
    model.get_layer("one_way").forward_layer.trainable = False
    model.get_layer("other_way").trainable = False
    model.get_layer("other_way").backward_layer.trainable = True
    return model


def recast():
    """A mask goes through a cast to the type that is there already, and through a norm by groups; not through another cast."""
    words = keras.Input((7,), dtype="int32")
    x = layers.Embedding(30, 4, mask_zero=True)(words)
    x = layers.GroupNormalization(2)(ops.cast(x, "float32"))
    y = layers.LSTM(3)(x)
    z = layers.LSTM(3)(ops.cast(ops.cast(x, "float16"), "float32"))
    return wake(keras.Model(words, layers.Dense(2)(layers.Concatenate()([y, z])), name="recast"))


def schedules():
    s = keras.optimizers.schedules
    return [
        s.ExponentialDecay(0.1, 2, 0.1), s.ExponentialDecay(0.1, 7, 0.5, staircase=True), s.ExponentialDecay(0.1, 2.5, 0.9),
        s.PiecewiseConstantDecay([3, 8], [0.1, 0.05, 0.2]), s.PiecewiseConstantDecay([5], [0.0, 0.1]),
        s.PolynomialDecay(0.1, 9), s.PolynomialDecay(0.1, 9, 0.01, power=2.0), s.PolynomialDecay(0.1, 6, 0.01, power=0.5, cycle=True),
        s.PolynomialDecay(0.0, 12, 0.1), s.InverseTimeDecay(0.1, 3, 0.5), s.InverseTimeDecay(0.1, 3, 0.5, staircase=True),
        s.CosineDecay(0.1, 15), s.CosineDecay(0.1, 15, alpha=0.1), s.CosineDecay(0.0, 12, warmup_target=0.1, warmup_steps=5),
        s.CosineDecay(0.02, 12, alpha=0.2, warmup_target=0.1, warmup_steps=5), s.CosineDecayRestarts(0.1, 5),
        s.CosineDecayRestarts(0.1, 4, t_mul=1.0, m_mul=0.5), s.CosineDecayRestarts(0.1, 3, t_mul=1.5, m_mul=0.8, alpha=0.1),
    ]


@keras.saving.register_keras_serializable("My")
class Huber(keras.losses.Loss):
    def call(self, labels, outputs):
        return ops.mean(outputs - labels, axis=-1)


@keras.saving.register_keras_serializable("My")
class SGD(keras.optimizers.SGD):
    pass


class L2(keras.regularizers.Regularizer):
    def __call__(self, x):
        return 0.0 * ops.sum(x)

    def get_config(self):
        return {"l2": 0.1}


@keras.saving.register_keras_serializable("My")
class ExponentialDecay(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1

    def get_config(self):
        return {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.5}


@keras.saving.register_keras_serializable("My")
class MeanSquaredError(keras.metrics.MeanSquaredError):
    pass


@keras.saving.register_keras_serializable("My")
def relu(x):
    return -x


class Dense(layers.Dense):
    """Not registered, and named like Keras's own."""


@keras.saving.register_keras_serializable("My")
class Sequential(keras.Sequential):
    pass


def own():
    """Users' own classes with the names of Keras's, and losses that are no means."""
    o, l = keras.optimizers, keras.losses
    of = lambda *a, **k: keras.Sequential([layers.Input((5,)), layers.Dense(2, *a, **k)])
    models = {
        "own_layer": (keras.Sequential([layers.Input((5,)), Dense(2, name="mine")]), "sgd", "mse", None),
        "own_model": (Sequential([layers.Input((5,)), layers.Dense(2)], name="mine"), "sgd", "mse", None),
        "own_activation": (of(activation=relu), "sgd", "mse", None),
        "own_regularizer": (of(kernel_regularizer=L2()), "sgd", "mse", None),
        "own_loss": (of(), "sgd", Huber(), None),
        "own_optimizer": (of(), SGD(0.1), "mse", None),
        "own_schedule": (of(), o.SGD(ExponentialDecay()), "mse", None),
        "own_metric": (of(), "sgd", "mse", [MeanSquaredError(), "mae"]),
        "loss_none": (of(), "sgd", l.MeanSquaredError(reduction=None), None),
    }
    for name, (model, optimizer, loss, metrics) in models.items():
        model.compile(optimizer, loss, metrics=metrics)
        save(model, f"{OUT}/refused_{name}.keras")


LAYERS = """Activation Identity ReLU LeakyReLU ELU Softmax PReLU MultiHeadAttention GroupQueryAttention Attention Conv1D Conv2D
    Conv1DTranspose Conv2DTranspose DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D Dense EinsumDense Embedding Add
    Subtract Multiply Maximum Minimum Average Concatenate Dot Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D AlphaDropout
    GaussianNoise GaussianDropout BatchNormalization LayerNormalization GroupNormalization RMSNormalization UnitNormalization
    MaxPooling1D MaxPooling2D AveragePooling1D AveragePooling2D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
    GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D Rescaling Normalization LSTM GRU SimpleRNN Flatten Reshape
    Permute RepeatVector ZeroPadding1D ZeroPadding2D ZeroPadding3D Cropping1D Cropping2D Cropping3D UpSampling1D UpSampling2D Resizing
    Masking Bidirectional TimeDistributed ActivityRegularization AdditiveAttention Conv3D Conv3DTranspose MaxPooling3D AveragePooling3D
    AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D AdaptiveAveragePooling1D AdaptiveAveragePooling2D
    AdaptiveAveragePooling3D UpSampling3D CenterCrop RNN ConvLSTM1D ConvLSTM2D ConvLSTM3D CategoryEncoding Discretization IntegerLookup
    RandomFlip RandomBrightness RandomContrast RandomCrop RandomInvert RandomGrayscale RandomRotation RandomTranslation RandomZoom
    RandomShear RandomColorDegeneration RandomColorJitter RandomElasticTransform RandomErasing RandomGaussianBlur RandomHue
    RandomPerspective RandomPosterization RandomSaturation RandomSharpness RandAugment AugMix MixUp CutMix AutoContrast Equalization Solarization ContrastLimitedAdaptiveHistogramEqualization Pipeline
    ReversibleEmbedding STFTSpectrogram MelSpectrogram SpectralNormalization Hashing HashedCrossing""".split()
OPTIMIZERS = "SGD Adam AdamW Nadam Adamax RMSprop Adagrad Adadelta Ftrl Lion Lamb Muon Adafactor ScheduleFreeAdamW".split()
LOSSES = """SparseCategoricalCrossentropy CategoricalCrossentropy BinaryCrossentropy MeanSquaredError MeanAbsoluteError
    MeanAbsolutePercentageError MeanSquaredLogarithmicError Huber LogCosh KLDivergence Poisson CosineSimilarity
    Hinge SquaredHinge CategoricalHinge BinaryFocalCrossentropy CategoricalFocalCrossentropy CategoricalGeneralizedCrossEntropy Dice
    Tversky Circle CTC""".split()


def volumes():
    """Volumes, channels first, pooling to a size, and a state of images."""
    solid = keras.Input((4, 5, 4, 2), name="solid")
    x = layers.Conv3D(3, 2, padding="same", activation="tanh")(solid)
    x = layers.Conv3DTranspose(2, 3, strides=2, output_padding=1)(layers.MaxPooling3D(2)(x))
    x = layers.AdaptiveAveragePooling3D(2)(layers.UpSampling3D(2)(layers.AveragePooling3D(2, padding="same")(x)))
    film = keras.Input((3, 6, 6, 2), name="film")
    y = layers.ConvLSTM2D(2, 3, padding="same", return_sequences=True)(film)
    y = layers.TimeDistributed(layers.CenterCrop(5, 7))(layers.TimeDistributed(layers.Conv2DTranspose(2, 3, strides=2, padding="same"))(y))
    turned = layers.Permute((4, 1, 2, 3))(y)
    y = layers.AveragePooling3D(2, data_format="channels_first")(layers.Conv3D(2, (1, 3, 3), data_format="channels_first")(turned))
    both = layers.Concatenate()([layers.Flatten()(x), layers.Flatten()(y)])
    return wake(keras.Model([solid, film], layers.Dense(2)(both), name="volumes"))


def cells():
    """Cells in a sequence, one and stacked, statistics of every step, and layers as activations."""
    line = keras.Input((4, 3))
    x = layers.RNN([layers.GRUCell(3), layers.LSTMCell(4)], return_sequences=True, go_backwards=True)(line)
    x = layers.TimeDistributed(layers.BatchNormalization(momentum=0.6))(x)
    x = layers.Bidirectional(layers.RNN(layers.SimpleRNNCell(3), return_sequences=True))(x)
    x = layers.AdditiveAttention()([x, layers.Dense(6, activation=layers.LeakyReLU(0.2))(x)])
    return wake(keras.Model(line, layers.Dense(2)(layers.Flatten()(x)), name="cells"))


def hidden():
    """A mask through merges, attention, norms and operators, and into the loss."""
    words = keras.Input((6,), dtype="int32")
    x = layers.Embedding(12, 4, mask_zero=True)(words)
    y = layers.Add()([x, layers.Dense(4)(x)])
    y = layers.BatchNormalization(momentum=0.7)(layers.Concatenate()([x, y]))
    y = layers.MultiHeadAttention(2, 3)(y, y)
    y = layers.TimeDistributed(layers.Dense(5))(y)
    return wake(keras.Model(words, layers.LSTM(3, return_sequences=True)(y), name="hidden"))


def held():
    """Constraints of every kind, and what outputs add to the loss."""
    c = keras.constraints
    row = keras.Input((5,))
    x = layers.Dense(4, activation="tanh", kernel_constraint=c.MaxNorm(0.7), bias_constraint=c.NonNeg(), activity_regularizer="l2")(row)
    x = layers.Dense(4, kernel_constraint=c.MinMaxNorm(0.3, 0.8, 0.5))(layers.ActivityRegularization(l1=0.02)(x))
    return wake(keras.Model(row, layers.Dense(2, kernel_constraint=c.UnitNorm())(x), name="held"))


def inside():
    """A model on every step of a sequence, layers as activations, and a batch renorm."""
    film = keras.Input((3, 5, 5, 2))
    each = keras.Sequential(
        [layers.Input((5, 5, 2)), layers.Conv2D(3, 3, activation=layers.PReLU(shared_axes=[1, 2])), layers.BatchNormalization(momentum=0.6), layers.Flatten()],
        name="each",
    )
    x = layers.TimeDistributed(each)(film)
    x = layers.Dense(4, activation=layers.PReLU(alpha_regularizer="l2"))(x)
    x = layers.BatchNormalization(renorm=True, momentum=0.8, renorm_momentum=0.7, renorm_clipping={"rmax": 1.5, "rmin": 0.7, "dmax": 0.4})(x)
    model = keras.Model(film, layers.Dense(2)(layers.Flatten()(x)), name="inside")
    # Keras makes the weights of layers that are activations when they first run.
    model(random(1, 3, 5, 5, 2))
    return wake(model)


def hashed():
    """Numbers in buckets."""
    a, b = keras.Input((1,), dtype="int64"), keras.Input((1,), dtype="int64")
    crossed = layers.HashedCrossing(5, output_mode="one_hot")([a, b])
    salted = layers.Hashing(4, salt=[3, 9], mask_value=2, output_mode="one_hot")(a)
    known = layers.IntegerLookup(vocabulary=[-1, -1, 4, 30, 2], num_oov_indices=2)(b)
    words = layers.Flatten()(layers.Embedding(5, 3)(known))
    plain = layers.Flatten()(layers.Embedding(6, 3)(layers.Hashing(6)(a)))
    x = layers.Concatenate()([crossed, salted, words, plain])
    return wake(keras.Model([a, b], layers.Dense(2)(x), name="hashed"))


def added():
    """What was once refused."""
    keras.utils.set_random_seed(8)
    o, l = keras.optimizers, keras.losses
    case("volumes", volumes(), [random(3, 4, 5, 4, 2), random(3, 3, 6, 6, 2)], random(3, 2), o.Lamb(0.01), l.Huber())
    case("cells", cells(), random(5, 4, 3), random(5, 2), o.SGD(0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3), "mse")
    short = np.arange(24).reshape(4, 6).astype(np.int32) * 5 % 11 + 1
    short[1, 3:] = 0
    short[2, 5:] = 0
    # Under other optimizers TensorFlow squares the gradient of every word by itself.
    case("hidden", hidden(), short, random(4, 6, 3), o.SGD(0.1), "mse")
    case("held", held(), random(6, 5), random(6, 2), o.Adam(0.02, gradient_accumulation_steps=3), l.MeanSquaredError(reduction="sum"))
    labels = np.eye(2, dtype="float32")[classes(6, 2)]
    case("focal", small("focal"), random(6, 5), labels, o.Muon(0.02), l.CategoricalFocalCrossentropy(from_logits=True, gamma=1.5), warm=2)
    normed = layers.SpectralNormalization(layers.Dense(6, activation="tanh"), power_iterations=2, name="normed")
    case("spectral", keras.Sequential([layers.Input((5,)), layers.Dense(4), normed, layers.Dense(2)]), random(6, 5), random(6, 2), o.Adafactor(0.05), "mse", warm=2)
    case("free", small("free"), random(6, 5), labels, o.ScheduleFreeAdamW(0.02, warmup_steps=4), "mse", warm=2)
    spoken = keras.Sequential([layers.Input((6, 5)), layers.Dense(4)])
    case("spelled", spoken, random(5, 6, 5), np.array([[1, 1, 0], [2, 3, 1], [3, 0, 0], [1, 2, 0], [2, 2, 0]], "int64"), o.SGD(0.1), l.CTC())
    case("overlap", small("overlap"), random(6, 5), labels, o.Adam(0.02), l.Dice(), warm=2)
    case("inside", inside(), random(6, 3, 5, 5, 2), random(6, 2), o.SGD(0.05), "mse")
    numbered = [np.array([[1], [2], [-7], [2], [123456789012], [8]]), np.array([[4], [30], [5], [6], [-3], [2]])]
    case("hashed", hashed(), numbered, random(6, 2), o.SGD(0.1), "mse")


def configurations():
    """All settings that Keras stores of every class that is known here, as they are without a word."""
    # Settings that a class cannot do without.
    needed = {
        "Activation": ["relu"], "AlphaDropout": [0.0], "AveragePooling1D": [2], "AveragePooling2D": [2],
        "Bidirectional": [layers.LSTM(2)], "Conv1D": [2, 3], "Conv1DTranspose": [2, 3], "Conv2D": [2, 3],
        "Conv2DTranspose": [2, 3], "Dense": [2], "DepthwiseConv1D": [3], "DepthwiseConv2D": [3], "Dot": [1], "Dropout": [0.1],
        "EinsumDense": ["ab,bc->ac", 3], "Embedding": [5, 2], "GRU": [2], "GaussianDropout": [0.1], "GaussianNoise": [0.1],
        "GroupQueryAttention": [2, 2, 1], "LSTM": [2], "MultiHeadAttention": [2, 2], "Permute": [(2, 1)], "RepeatVector": [2],
        "Rescaling": [2.0], "Reshape": [(2, 3)], "Resizing": [4, 4], "SeparableConv1D": [2, 3], "SeparableConv2D": [2, 3],
        "SimpleRNN": [2], "SpatialDropout1D": [0.1], "SpatialDropout2D": [0.1], "SpatialDropout3D": [0.1],
        "TimeDistributed": [layers.Dense(2)], "Conv3D": [2, 3], "Conv3DTranspose": [2, 3], "AveragePooling3D": [2],
        "AdaptiveMaxPooling1D": [2], "AdaptiveMaxPooling2D": [2], "AdaptiveMaxPooling3D": [2], "AdaptiveAveragePooling1D": [2],
        "AdaptiveAveragePooling2D": [2], "AdaptiveAveragePooling3D": [2], "CenterCrop": [4, 4], "RNN": [layers.LSTMCell(2)],
        "ConvLSTM1D": [2, 3], "ConvLSTM2D": [2, 3], "ConvLSTM3D": [2, 3], "CategoryEncoding": [4], "Discretization": [[0.0, 1.0]],
        "IntegerLookup": [None, 1, None, -1, [3, 4]], "RandomBrightness": [0.1], "RandomContrast": [0.1], "RandomCrop": [4, 4],
        "RandomRotation": [0.1], "RandomTranslation": [0.1, 0.1], "RandomZoom": [0.1], "RandomColorDegeneration": [0.1],
        "RandomHue": [0.1], "RandomPosterization": [4], "RandomSaturation": [0.1], "RandomSharpness": [0.1],
        "Pipeline": [[layers.Rescaling(2.0)]], "SpectralNormalization": [layers.Dense(2)], "ReversibleEmbedding": [5, 2], "Hashing": [4], "HashedCrossing": [4], "STFTSpectrogram": ["log", 256, None, None, None],
    }
    stored = keras.saving.serialize_keras_object
    return {
        "layers": [stored(getattr(layers, name)(*needed.get(name, []), name="layer")) for name in LAYERS],
        "optimizers": [stored(getattr(keras.optimizers, name)(name="it")) for name in OPTIMIZERS],
        "losses": [stored(getattr(keras.losses, name)()) for name in LOSSES],
        "regularizers": [stored(getattr(keras.regularizers, name)()) for name in ("L1", "L2", "L1L2", "OrthogonalRegularizer")],
    }


def obeyed():
    """What a file says of training, and is to be obeyed or refused."""
    keras.utils.set_random_seed(6)
    o = keras.optimizers
    stored = [{"schedule": keras.saving.serialize_keras_object(s), "rates": [float(s(step)) for step in range(30)]}
              for s in schedules()]
    for name, value in {"schedules": stored, "configurations": configurations()}.items():
        with open(f"{OUT}/{name}.json", "w") as file:
            json.dump(value, file)
    row, labels = random(6, 5), random(6, 2)
    case("decay", small("decay"), row, labels, o.SGD(o.schedules.ExponentialDecay(0.1, 2, 0.1)), "mse")
    # In the middle of its way up.
    case("risen", small("risen"), row, labels,
         o.Adam(o.schedules.CosineDecay(0.0, 12, warmup_target=0.05, warmup_steps=6)), "mse", warm=4)
    case("thawed", thawed(), row, labels, o.SGD(0.1, momentum=0.9), "mse")
    line = random(5, 4, 3)
    case("wrapped", wrapped(), line, random(5, 2), o.Adam(0.02), "mse", warm=2)
    case("wrapped_legacy", wrapped(), line, random(5, 2), o.Adam(0.02), "mse", suffix="h5", warm=2)
    case("scaled", small("scaled"), row, labels, o.LossScaleOptimizer(o.Adam(0.02), initial_scale=256.0), "mse", warm=3)
    case("scaled_f16", mixed("mixed_float16"), random(6, 5), classes(6, 3),
         o.LossScaleOptimizer(o.SGD(0.05, momentum=0.9), initial_scale=256.0), "sparse_categorical_crossentropy", warm=3)
    case("scaled_legacy", small("scaled_legacy"), row, labels, o.LossScaleOptimizer(o.Adam(0.02)), "mse", suffix="h5", warm=3)
    short = np.arange(28).reshape(4, 7).astype(np.int32) * 5 % 29 + 1
    short[1, 4:] = 0
    short[2, 5:] = 0
    case("recast", recast(), short, random(4, 2), o.SGD(0.1), "mse")
    own()


def applications(folder):
    """Keras's own models: random weights, small images, the smallest width that the API allows."""
    global OUT
    OUT = folder
    os.makedirs(OUT, exist_ok=True)
    keras.utils.set_random_seed(3)
    a = keras.applications
    size = {"input_shape": (32, 32, 3), "classes": 5, "weights": None}
    makers = {
        "MobileNetV2": lambda: a.MobileNetV2(alpha=0.35, **size),
        "EfficientNetB0": lambda: a.EfficientNetB0(**size),
        "DenseNet121": lambda: a.DenseNet121(**size),
        "ResNet50": lambda: a.ResNet50(**size),
        "ConvNeXtTiny": lambda: a.ConvNeXtTiny(**size),
        "VGG16": lambda: a.VGG16(**size),
    }
    x = np.random.default_rng(1).normal(size=(4, 32, 32, 3)).astype(np.float32)
    kinds = ("", "Frozen", "Double")
    for name in sys.argv[3:] or [name + kind for name in makers for kind in kinds]:
        # Norms over few samples of random networks amplify rounding by a million and more, so that in float32 Keras differs
        # from itself; frozen they do not, and in float64 a million roundings are still nothing. All three are made; in float32
        # with how far Keras gets from itself when the input changes by a rounding.
        kind = next(kind for kind in reversed(kinds) if name.endswith(kind))
        name = name.removesuffix(kind)
        compute_in("float64" if kind == "Double" else "float32")
        x = x.astype(keras.config.floatx())
        model = makers[name]()
        norms = [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)]
        for layer in model.layers:
            if isinstance(layer, layers.Dropout):
                layer.rate = 0.0
        if kind == "Frozen":
            # Statistics of some batch keep the signal alive.
            for layer in norms:
                layer.momentum = 0.0
            model(np.random.default_rng(2).normal(size=(32, 32, 32, 3)).astype(np.float32), training=True)
            for layer in norms:
                layer.momentum = 0.99
                layer.trainable = False
        # Steps so small that losses, compared by their size, do not vanish in 20 of them, and that these networks are not
        # chaotic from step to step too: with 1e-3, what differs in a ResNet50 in float64 grows threefold a step, from 1e-13.
        optimizer = keras.optimizers.SGD(2e-4 if kind == "Double" else 1e-3, momentum=0.9, global_clipnorm=0.02)
        # To trace a step takes longer than to run it 20 times, but for the convolutions that are traced each by itself.
        eager = name != "ConvNeXtTiny"
        case(name + kind, model, x, classes(4, 5), optimizer, "sparse_categorical_crossentropy", run_eagerly=eager)
        if kind == "Double":
            keras.backend.clear_session()
            continue
        model = keras.models.load_model(f"{OUT}/{name}{kind}.keras")
        shaken = numbers(model, x * np.float32(1 + 2e-7), classes(4, 5))
        found = dict(np.load(f"{OUT}/{name}{kind}.npz"))
        found |= {f"h{i}": shaken[f"g{i}"] for i in range(len(model.trainable_variables))}
        found |= {"shaken": shaken["losses"], "w0": shaken["z0"]}
        np.savez(f"{OUT}/{name}{kind}.npz", **found)
        keras.backend.clear_session()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--applications"]:
        applications(sys.argv[2])
    elif sys.argv[1:2] == ["--several"]:
        several()
    elif sys.argv[1:2] == ["--added"]:
        ONLY = sys.argv[2:]
        added()
    elif sys.argv[1:2] == ["--configurations"]:
        with open(f"{OUT}/configurations.json", "w") as file:
            json.dump(configurations(), file)
    elif sys.argv[1:2] == ["--obeyed"]:
        obeyed()
    else:
        ONLY = sys.argv[1:]
        fixtures()
