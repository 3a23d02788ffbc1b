"""Layers and models of the user's own, live: followed into the operations of Keras that they call, against Keras."""

from __future__ import annotations

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
