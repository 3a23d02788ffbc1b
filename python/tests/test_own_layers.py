"""Layers and models of the user's own, live: followed into the operations of Keras that they call, against Keras."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import plimsoll
from test_parity import BATCH, STEPS, trains_as_in_keras

pytestmark = pytest.mark.keras
N, WIDTH = BATCH * STEPS, 6


def data():
    rng = np.random.default_rng(7)
    return rng.normal(size=(N, WIDTH)).astype("float32"), rng.integers(0, 3, N)


def classes():
    """A layer with weights of all kinds, a block of layers, and a model, as people write them."""
    import keras
    from keras import layers, ops

    class Gate(layers.Layer):
        def __init__(self, units, **settings):
            super().__init__(**settings)
            self.units = units

        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel", regularizer=keras.regularizers.L2(0.01))
            self.shifts = [self.add_weight(shape=(self.units,), initializer="zeros", name=f"shift_{i}") for i in range(2)]
            self.scale = self.add_weight(shape=(), initializer=keras.initializers.Constant(0.5), trainable=False, name="scale")

        def call(self, x):
            # A function of weights alone is trained too.
            gate = ops.softplus(self.shifts[0])
            return ops.tanh(x @ self.kernel + self.shifts[1]) * gate * self.scale

    class Block(layers.Layer):
        def __init__(self, units, **settings):
            super().__init__(**settings)
            # All blocks have layers of the same names.
            self.first = layers.Dense(units, activation="gelu", name="dense")
            self.gate = Gate(units, name="gate")
            self.drop = layers.Dropout(0.0)
            self.norm = layers.LayerNormalization(name="norm")

        def call(self, x, training=None):
            y = self.first(x)
            return self.norm(self.drop(self.gate(y), training=training) + self.first(y) if y.shape[-1] == x.shape[-1] else self.gate(y))

    class Whole(keras.Model):
        def __init__(self):
            super().__init__()
            # Not in the order in which they are called.
            self.head = layers.Dense(3, activation="softmax")
            self.blocks = [Block(WIDTH), Block(WIDTH)]
            self.bn = layers.BatchNormalization()

        def call(self, x, training=False):
            for block in self.blocks:
                x = block(x)
            return self.head(self.bn(x, training=training))

    return Gate, Block, Whole


def compiled(model):
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def test_a_layer_with_weights_of_its_own():
    import keras
    from keras import layers

    def make(n):
        Gate, Block, _ = classes()
        layers_ = [keras.Input((WIDTH,)), Gate(5), layers.Lambda(lambda x: keras.ops.abs(x) + 1.0), Block(4), layers.Dense(3, activation="softmax")]
        return compiled(keras.Sequential(layers_)), *data()

    trains_as_in_keras(make)


def test_a_layer_inside_a_nested_model_that_is_used_twice():
    import keras
    from keras import layers

    def make(n):
        Gate, _, _ = classes()
        inner = keras.Sequential([keras.Input((WIDTH,)), Gate(WIDTH), layers.Dense(WIDTH)])
        x = keras.Input((WIDTH,))
        out = layers.Dense(3, activation="softmax", name="out")(layers.Concatenate()([inner(x), inner(inner(x))]))
        return compiled(keras.Model(x, out)), *data()

    trains_as_in_keras(make)


def test_a_model_with_a_call_of_its_own_and_adams_state_in_its_order():
    import keras

    def make(n):
        model = classes()[2]()
        model(np.zeros((1, WIDTH), "float32"))
        model.compile(keras.optimizers.Adam(1e-3, epsilon=1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model, *data()

    trains_as_in_keras(make)


def test_layers_that_are_called_on_known_values():
    import keras
    from keras import layers, ops

    class Places(layers.Layer):
        def __init__(self):
            super().__init__()
            self.words, self.places = layers.Embedding(9, 4), layers.Embedding(WIDTH, 4)

        def call(self, x):
            return self.words(x) + self.places(ops.arange(ops.shape(x)[-1]))

    def make(n):
        inputs = keras.Input((WIDTH,), dtype="int32")
        rng = np.random.default_rng(7)
        model = keras.Model(inputs, layers.Dense(3, activation="softmax")(layers.Flatten()(Places()(inputs))))
        return compiled(model), rng.integers(0, 9, (N, WIDTH)), rng.integers(0, 3, N)

    trains_as_in_keras(make)


def test_names_that_meet_only_once_a_model_is_followed():
    import keras
    from keras import layers

    def make(n):
        _, Block, _ = classes()
        inputs = keras.Input((WIDTH,))
        # Both blocks have a layer "dense"; operations inside of them are named matmul, add and so on.
        x = layers.Dense(WIDTH, name="dense_2")(layers.Dense(WIDTH, name="matmul")(inputs))
        x = layers.Add(name="add")([Block(WIDTH)(x), Block(WIDTH)(x)])
        return compiled(keras.Model(inputs, layers.Dense(3, activation="softmax", name="dense")(x))), *data()

    trains_as_in_keras(make)
    model, x, y = make(N)
    before = [layer.name for layer in model._flatten_layers()]
    plimsoll.predict(model, x, verbose=0)
    assert [layer.name for layer in model._flatten_layers()] == before


def test_losses_by_the_name_of_an_own_layer_and_a_model_without_weights_yet():
    import keras
    from keras import layers

    Gate, _, Whole = classes()
    x, y = data()
    inputs = keras.Input((WIDTH,))
    model = keras.Model(inputs, [Gate(1, name="far")(inputs), layers.Dense(1, name="near")(inputs)])
    model.compile("sgd", {"far": "mse", "near": "mae"})
    history = plimsoll.fit(model, x, {"far": y[:, None], "near": y[:, None]}, verbose=0).history
    assert {"far_loss", "near_loss", "loss"} <= set(history)
    whole = compiled(Whole())
    plimsoll.fit(whole, x, y, verbose=0)
    assert whole.built and int(np.asarray(whole.optimizer.iterations)) == -(-N // 32)
    # Nothing of it stays with the layers.
    assert all(not layer._inbound_nodes for layer in whole._flatten_layers() if layer is not whole)


def test_models_may_be_called_on_other_threads_while_one_is_followed():
    import threading

    import keras

    Gate, _, Whole = classes()
    x, y = data()
    other = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(4), Gate(3)])
    over, calls = threading.Event(), []

    def call():
        while not over.is_set():
            calls.append(other(x[:4]).shape)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        for _ in range(5):
            plimsoll.predict(compiled(Whole()), x, verbose=0)
    finally:
        over.set()
        thread.join()
    assert set(calls) == {(4, 3)}


def own(call, **more):
    """A model of one layer with this call."""
    import keras

    class Own(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="mine")
            self.w = self.add_weight(shape=(WIDTH, 3), name="w")
            for name, value in more.items():
                setattr(self, name, value())

    Own.call = call
    inputs = keras.Input((WIDTH,))
    return compiled(keras.Model(inputs, keras.layers.Softmax()(Own()(inputs))))


def test_what_cannot_be_followed_is_refused_by_name():
    import keras
    from keras import ops

    x, y = data()

    def draws(self, x):
        return x @ self.w + keras.random.normal((3,), seed=self.seeds)

    def adds(self, x):
        self.add_loss(ops.sum(self.w))
        return x @ self.w

    def trains(self, x, training=False):
        return x @ self.w * (0.5 if training else 1.0)

    def idles(self, x):
        return x[:, :3]

    def looks(self, x):
        return x @ self.w if float(ops.sum(x)) > 0 else x[:, :3]

    cases = [
        (own(draws, seeds=lambda: keras.random.SeedGenerator(1)), "mine, a Own, .*random"),
        (own(adds), "mine, a Own, .*add_loss"),
        (own(trains), "something else while it trains"),
        (own(idles), "weight mine/w .*not used"),
    ]
    for model, why in cases:
        with pytest.raises(plimsoll.PlimsollError, match=why):
            plimsoll.fit(model, x, y, verbose=0)
    # Keras itself cannot call it on a symbolic tensor either; the sentence is ours.
    model = own(idles)
    type(model.layers[1]).call = looks
    with pytest.raises(plimsoll.PlimsollError, match="mine, a Own, is not followed here"):
        plimsoll.fit(model, x, y, verbose=0)


def losses():
    """Losses as people write them: by elements, by samples, of classes, one number for the batch, with settings, as a class."""
    import keras
    from keras import ops

    def by_elements(y_true, y_pred):
        return ops.square(y_true - y_pred) * ops.where(y_true > 0.5, 3.0, 1.0)

    def by_samples(y_true, y_pred):
        return ops.mean(ops.abs(y_true - y_pred), axis=-1) + 0.1 * ops.max(y_pred, axis=-1)

    def of_classes(y_true, y_pred):
        hot = ops.one_hot(ops.cast(y_true, "int32"), 3)
        return -ops.sum(hot * ops.log(y_pred + 1e-7), axis=-1) * (1.0 - ops.sum(hot * y_pred, axis=-1)) ** 2

    def one_number(y_true, y_pred):
        return ops.mean(ops.square(y_true - y_pred)) + keras.losses.CategoricalCrossentropy()(y_true, y_pred)

    def focal(power):
        def loss(y_true, y_pred):
            return keras.losses.categorical_crossentropy(y_true, y_pred) * power

        return loss

    def dice_and_binary(y_true, y_pred):
        both = ops.sum(y_true * y_pred, axis=-1)
        dice = 1.0 - (2.0 * both + 1.0) / (ops.sum(y_true, axis=-1) + ops.sum(y_pred, axis=-1) + 1.0)
        return keras.losses.BinaryCrossentropy()(y_true, y_pred) + ops.mean(dice)

    class Tilted(keras.losses.Loss):
        def call(self, y_true, y_pred):
            off = y_true - y_pred
            return ops.mean(ops.maximum(0.7 * off, -0.3 * off), axis=-1)

    partly = functools.partial(keras.losses.categorical_crossentropy, label_smoothing=0.1)
    hot = [partly, by_elements, by_samples, one_number, focal(2.0), dice_and_binary, lambda t, p: ops.mean(ops.log(ops.cosh(p - t)), -1), Tilted(), Tilted(reduction="sum")]
    return [(loss, True) for loss in hot] + [(of_classes, False)]


def test_losses_of_ones_own_train_as_in_keras():
    import keras
    from keras import layers

    for loss, is_hot in losses():
        # On TensorFlow Keras takes a softmax's logits for a sigmoid's where a binary loss follows it.
        end = "sigmoid" if getattr(loss, "__name__", "") == "dice_and_binary" else "softmax"

        def make(n):
            model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(5, activation="tanh"), layers.Dense(3, activation=end)])
            model.compile("sgd", loss, metrics=["accuracy"])
            x, y = data()
            return model, x, np.eye(3, dtype="float32")[y] if is_hot else y

        trains_as_in_keras(make)


def test_own_losses_by_output_and_with_weights():
    import keras
    from keras import layers, ops

    def make(n):
        x = keras.Input((WIDTH,))
        model = keras.Model(x, [layers.Dense(2, name="a")(x), layers.Dense(1, name="b")(x)])
        model.compile("sgd", [lambda t, p: ops.mean((t - p) ** 4, axis=-1), "mae"], loss_weights=[0.3, 2.0])
        xs, y = data()
        return model, xs, [np.stack([y, -y], -1).astype("float32"), y[:, None].astype("float32")]

    trains_as_in_keras(make)
    first, x, y = make(N)
    second, _, _ = make(N)
    second.set_weights(first.get_weights())
    weight = np.random.default_rng(3).uniform(0, 2, N).astype("float32")
    how = dict(sample_weight=weight, batch_size=BATCH, shuffle=False, verbose=0)
    expected = first.fit(x, y, **how).history["loss"]
    found = plimsoll.fit(second, x, y, **how).history["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_dataset_says_the_shape_of_labels_that_an_own_loss_takes():
    import keras
    from keras import ops

    x, y = data()

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return STEPS

        def __getitem__(self, i):
            return x[i * BATCH : (i + 1) * BATCH], y[i * BATCH : (i + 1) * BATCH]

    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", lambda t, p: ops.mean((ops.one_hot(ops.cast(t, "int32"), 3) - p) ** 2, axis=-1))
    expected = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    np.testing.assert_allclose(plimsoll.evaluate(model, Batches(), verbose=0), expected, rtol=1e-5)


def test_a_loss_that_looks_at_values_is_refused_by_name():
    import keras

    def looks(y_true, y_pred):
        return y_pred if float(keras.ops.sum(y_pred)) > 0 else y_true

    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("sgd", looks)
    x, y = data()
    with pytest.raises(plimsoll.PlimsollError, match="loss looks is not followed here"):
        plimsoll.fit(model, x, y[:, None].astype("float32"), verbose=0)


def test_metrics_of_ones_own_are_counted():
    import keras
    from keras import layers, ops

    def spread(y_true, y_pred):
        return ops.max(y_pred, axis=-1) - ops.min(y_pred, axis=-1)

    def hits(y_true, y_pred):
        return ops.cast(ops.equal(ops.cast(y_true, "int32"), ops.cast(ops.argmax(y_pred, axis=-1), "int32")), "float32")

    def whole(y_true, y_pred):
        return ops.mean(y_pred)

    def make(n):
        model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(3, activation="softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=[spread, hits, "accuracy"], weighted_metrics=[spread])
        return model, *data()

    trains_as_in_keras(make)
    model, x, y = make(N)
    weight = np.random.default_rng(3).uniform(0, 2, N).astype("float32")
    found = plimsoll.evaluate(model, x, y, sample_weight=weight, batch_size=BATCH, verbose=0, return_dict=True)
    expected = model.evaluate(x, y, sample_weight=weight, batch_size=BATCH, verbose=0, return_dict=True)
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)
    # The mean of a batch is not the mean of samples where the last one is short.
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[whole])
    with pytest.warns(UserWarning, match="not counted: whole"):
        plimsoll.evaluate(model, x, y, verbose=0)
