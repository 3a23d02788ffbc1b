"""Models as people write them, with data for them: small enough to be trained in seconds."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _classes(seed: int, count: int, classes: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, count)


def multi_input(n: int) -> tuple[Any, Any, Any]:
    """A picture and a few numbers in, a class and a number out."""
    import keras
    from keras import layers

    picture, age = keras.Input((8, 8, 3), name="picture"), keras.Input((4,), name="age")
    a = layers.Flatten()(layers.Conv2D(4, 3, activation="relu")(picture))
    b = layers.Dense(8, activation="relu")(age)
    both = layers.concatenate([a, b])
    kind = layers.Dense(3, activation="softmax", name="kind")(both)
    price = layers.Dense(1, name="price")(both)
    model = keras.Model([picture, age], [kind, price], name="multi_input")
    losses = {"kind": "sparse_categorical_crossentropy", "price": "mse"}
    model.compile("adam", losses, loss_weights={"kind": 1.0, "price": 0.3}, metrics={"kind": ["accuracy"]})
    x = {"picture": _numbers(1, n, 8, 8, 3), "age": _numbers(2, n, 4)}
    return model, x, {"kind": _classes(3, n, 3), "price": _numbers(4, n)}


def shared(n: int) -> tuple[Any, Any, Any]:
    """One tower for two inputs."""
    import keras
    from keras import layers

    tower = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(4)], name="tower")
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    apart = layers.subtract([tower(a), tower(b)])
    out = layers.Dense(1, activation="sigmoid")(layers.multiply([apart, apart]))
    model = keras.Model([a, b], out, name="shared")
    model.compile(keras.optimizers.RMSprop(1e-2), "binary_crossentropy", metrics=["accuracy"])
    return model, [_numbers(1, n, 6), _numbers(2, n, 6)], _classes(3, n, 2).astype(np.float32)


def nested(n: int) -> tuple[Any, Any, Any]:
    """A model in a model in a model."""
    import keras
    from keras import layers

    inner = keras.Sequential([keras.Input((5,)), layers.Dense(7, activation="relu"), layers.LayerNormalization()], name="inner")
    x = keras.Input((5,))
    middle = keras.Model(x, layers.add([inner(x), layers.Dense(7)(x)]), name="middle")
    x = keras.Input((5,))
    model = keras.Model(x, layers.Dense(2)(middle(x)), name="nested")
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True), "mse", metrics=["mae"])
    return model, _numbers(1, n, 5), _numbers(2, n, 2)


def unet(n: int) -> tuple[Any, Any, Any]:
    """Down, up, and a skip, with batch norms."""
    import keras
    from keras import layers

    def block(x: Any, width: int) -> Any:
        return layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same", use_bias=False)(x)))

    x = keras.Input((16, 16, 1))
    top = block(x, 4)
    low = block(layers.MaxPooling2D()(top), 8)
    up = layers.Conv2DTranspose(4, 2, strides=2, padding="same")(low)
    out = layers.Conv2D(1, 1, activation="sigmoid")(block(layers.concatenate([top, up]), 4))
    model = keras.Model(x, out, name="unet")
    model.compile("adam", "binary_crossentropy")
    return model, _numbers(1, n, 16, 16, 1), (_numbers(2, n, 16, 16, 1) > 0).astype(np.float32)


def autoencoder(n: int) -> tuple[Any, Any, Any]:
    """Learns its input, from pixels that are bytes."""
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(6, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3)),
            layers.Dense(64, activation="sigmoid"),
            layers.Reshape((8, 8, 1)),
        ],
        name="autoencoder",
    )
    model.compile(keras.optimizers.AdamW(1e-2), "mae")
    x = np.random.default_rng(1).integers(0, 256, (n, 8, 8, 1)).astype(np.uint8)
    return model, x, x / 255.0


def frozen_base(n: int) -> tuple[Any, Any, Any]:
    """A base that stays as it is, and a new head."""
    import keras
    from keras import layers

    base = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(6, 3), layers.BatchNormalization(), layers.ReLU(), layers.GlobalAveragePooling2D()],
        name="base",
    )
    base.trainable = False
    x = keras.Input((8, 8, 3))
    model = keras.Model(x, layers.Dense(4, activation="softmax")(base(x, training=False)), name="frozen_base")
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    return model, _numbers(1, n, 8, 8, 3), np.eye(4, dtype=np.float32)[_classes(2, n, 4)]


def siamese(n: int) -> tuple[Any, Any, Any]:
    """Two pictures through one tower: are they of the same kind? By the distance of what it makes of them."""
    import keras
    from keras import layers

    picture = keras.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, activation="relu")(picture)
    x = layers.Dense(6)(layers.Flatten()(layers.MaxPooling2D()(x)))
    tower = keras.Model(picture, layers.UnitNormalization()(x), name="tower")
    a, b = keras.Input((8, 8, 1), name="a"), keras.Input((8, 8, 1), name="b")
    apart = keras.ops.sum(keras.ops.square(tower(a) - tower(b)), axis=-1, keepdims=True)
    model = keras.Model({"a": a, "b": b}, layers.Dense(1, activation="sigmoid")(apart), name="siamese")
    model.compile(keras.optimizers.Adam(1e-2, clipnorm=1.0), "binary_crossentropy", metrics=["accuracy"])
    return model, {"a": _numbers(1, n, 8, 8, 1), "b": _numbers(2, n, 8, 8, 1)}, _classes(3, n, 2).astype(np.float32)


def seq2seq(n: int) -> tuple[Any, Any, Any]:
    """Sentences of several lengths into others: an encoder whose state begins a decoder, with masks where sentences end.

    With SGD, as :func:`recurrent`.
    """
    import keras
    from keras import layers

    source, target = keras.Input((6,), dtype="int32", name="source"), keras.Input((5,), dtype="int32", name="target")
    _, h, c = layers.LSTM(8, return_state=True, name="encoder")(layers.Embedding(12, 5, mask_zero=True)(source))
    x = layers.LSTM(8, return_sequences=True, name="decoder")(layers.Embedding(14, 5, mask_zero=True)(target), initial_state=[h, c])
    model = keras.Model([source, target], layers.Dense(14)(x), name="seq2seq")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3, momentum=0.8), loss)

    def sentences(seed: int, length: int, words: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        kept = np.arange(length) < rng.integers(1, length + 1, n)[:, None]
        return rng.integers(1, words, (n, length)) * kept

    given = sentences(2, 5, 14)
    return model, [sentences(1, 6, 12), given], np.roll(given, -1, axis=1)


def mixed_float16(n: int) -> tuple[Any, Any, Any]:
    """Computed in half precision, kept in single, with a scaled loss."""
    import keras
    from keras import layers

    half = "mixed_float16"
    x = keras.Input((8, 8, 3))
    y = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu", dtype=half)(x)
    y = layers.GlobalAveragePooling2D(dtype=half)(layers.Conv2D(8, 3, padding="same", activation="relu", dtype=half)(y))
    model = keras.Model(x, layers.Dense(4, activation="softmax", dtype="float32")(y), name="mixed_float16")
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(1e-3))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, _numbers(1, n, 8, 8, 3), _classes(2, n, 4)


def continued(n: int) -> tuple[Any, Any, Any]:
    """A model that Keras has trained and saved, and that goes on from its file with the optimizer's state."""
    import os
    import tempfile

    import keras
    from keras import layers

    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(9, activation="swish"), layers.Dropout(0.0), layers.Dense(1)], name="continued")
    model.compile(keras.optimizers.Nadam(1e-2), "huber", metrics=["mse"])
    x, y = _numbers(1, n, 6), _numbers(2, n, 1)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        return keras.models.load_model(path), x, y


def recurrent(n: int) -> tuple[Any, Any, Any]:
    """Tokens through an embedding and a GRU, with a schedule for the learning rate.

    With SGD: under TensorFlow alone, Keras's other optimizers treat rows of an embedding that do not occur in a batch apart.
    """
    import keras
    from keras import layers

    model = keras.Sequential(
        [keras.Input((7,), dtype="int32"), layers.Embedding(20, 6), layers.GRU(5), layers.Dense(3)], name="recurrent"
    )
    rate = keras.optimizers.schedules.ExponentialDecay(0.2, 5, 0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    return model, _classes(1, n * 7, 20).reshape(n, 7), _classes(2, n, 3)


#: As people write them, and one with a schedule.
ALL: list[Callable[[int], tuple[Any, Any, Any]]] = [
    multi_input, shared, nested, siamese, seq2seq, unet, autoencoder, mixed_float16, frozen_base, continued, recurrent,
]  # fmt: skip
