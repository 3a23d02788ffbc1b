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


def trains_twice(kind):
    """Holds a model of two such layers against Keras."""
    import keras

    def make(n):
        inputs = keras.Input((WIDTH,))
        return compiled(keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(kind()(kind()(inputs))))), *data()

    trains_as_in_keras(make)


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

    def shares(self, x):
        return x @ self.w + keras.random.normal((3,), seed=self.seeds)

    def draws(self, x):
        return x @ self.w + keras.random.gamma((ops.shape(x)[0], 3), 1.0, seed=self.seeds)

    def changes(self, x):
        return x @ self.w + ops.convert_to_tensor(np.random.normal(size=(3,)).astype("float32"))

    def idles(self, x):
        return x[:, :3]

    def looks(self, x):
        return x @ self.w if float(ops.sum(x)) > 0 else x[:, :3]

    seeds = {"seeds": lambda: keras.random.SeedGenerator(1)}
    cases = [
        (own(shares, **seeds), "mine, a Own, .*for all samples at once"),
        (own(draws, **seeds), "mine, a Own, .*keras.random.gamma"),
        (own(changes), "values that are others at every call"),
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


def test_what_a_call_computes_only_while_it_trains_is_computed_then():
    from keras import layers

    class Damped(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner, self.norm = layers.Dense(WIDTH), layers.BatchNormalization()
            # Used in training alone, and otherwise alone.
            self.first = self.add_weight(shape=(WIDTH,), initializer="ones", name="first")
            self.second = self.add_weight(shape=(WIDTH,), initializer="ones", trainable=False, name="second")

        def call(self, x, training=False):
            y = self.norm(self.inner(x), training=training)
            return y * self.first * 0.5 if training else y + self.second

    trains_twice(Damped)


def test_layers_that_a_call_tells_not_to_train_do_not():
    import keras
    from keras import layers

    class Tuned(keras.Model):
        def __init__(self):
            super().__init__()
            self.base = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(WIDTH), layers.BatchNormalization(), layers.Dropout(0.5)])
            self.own, self.head = classes()[1](WIDTH), layers.Dense(3, activation="softmax")
            self.norm = layers.BatchNormalization()

        def call(self, x, training=None):
            # As people do who tune what was trained elsewhere.
            return self.head(self.norm(self.own(self.base(x, training=False), training=False)))

    def make(n):
        model = Tuned()
        model(np.zeros((1, WIDTH), "float32"))
        model.base.layers[1].moving_mean.assign(np.linspace(-1, 1, WIDTH))
        return compiled(model), *data()

    trains_as_in_keras(make)


def test_what_calls_add_to_the_loss_is_added():
    from keras import layers, ops

    class Adds(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = layers.Dense(WIDTH)

        def call(self, x, training=None):
            y = self.inner(x)
            self.add_loss(0.01 * ops.mean(ops.square(y)))
            if training:
                self.add_loss([0.02 * ops.sum(ops.abs(self.inner.kernel)) * 1.0, ops.mean(y, axis=0) * 0.01])
            return y

    trains_twice(Adds)


def test_a_weight_of_another_layer_that_a_call_reads_is_trained_there_too():
    import keras
    from keras import layers, ops

    class Tied(keras.Model):
        def __init__(self):
            super().__init__()
            self.words, self.mix = layers.Embedding(9, 4), layers.Dense(4, activation="tanh")

        def call(self, x):
            y = self.mix(ops.mean(self.words(x), axis=1))
            # The embedding is the last kernel, transposed, and adds to the loss.
            self.add_loss(0.1 * ops.sum(ops.square(self.mix.kernel)))
            return ops.softmax(ops.matmul(y, ops.transpose(self.words.embeddings)))

    def make(n):
        rng = np.random.default_rng(7)
        model = Tied()
        x = rng.integers(0, 9, (N, WIDTH))
        model(x[:1])
        return compiled(model), x, rng.integers(0, 9, N)

    trains_as_in_keras(make)


def test_random_numbers_in_a_call_are_drawn_anew_for_every_sample_and_batch():
    import keras
    from keras import layers, ops

    class Sampling(layers.Layer):
        """As in an autoencoder that samples."""

        def __init__(self, **settings):
            super().__init__(**settings)
            self.seeds = keras.random.SeedGenerator(3)

        def call(self, x):
            return x + keras.random.normal((ops.shape(x)[0], 500), mean=0.5, stddev=2.0, seed=self.seeds)

    class Kept(layers.Layer):
        def call(self, x, training=False):
            if training:
                return keras.random.dropout(x, 0.25, seed=7)
            return x * ops.cast(keras.random.randint(ops.shape(x), 0, 4, seed=7), x.dtype) + keras.random.uniform(ops.shape(x), -1.0, 0.0)

    x = np.zeros((8, 500), "float32")
    inputs = keras.Input((500,))
    model = keras.Model(inputs, Sampling()(inputs))
    model.compile("sgd", "mse")
    drawn = plimsoll.predict(model, x, batch_size=4, verbose=0)
    again = plimsoll.predict(model, x, batch_size=4, verbose=0)
    rows = np.concatenate([drawn, again])
    assert abs(rows.mean() - 0.5) < 0.15 and abs(rows.std() - 2.0) < 0.1
    # No sample has the numbers of another, in whichever batch and call.
    assert np.abs(np.corrcoef(rows) - np.eye(16)).max() < 0.25
    assert 3.5 < plimsoll.evaluate(model, x, x, verbose=0) < 5.0
    losses = plimsoll.fit(model, x, x, epochs=3, verbose=0).history["loss"]
    assert len(set(losses)) == 3 and all(3.5 < loss < 5.0 for loss in losses)

    model = keras.Model(inputs, Kept()(inputs))
    model.compile("sgd", "mae")
    ones = np.ones((8, 500), "float32")
    found = plimsoll.predict(model, ones, verbose=0)
    assert set(np.ceil(found).astype(int).ravel()) == {0, 1, 2, 3} and abs(found.mean() - 1.0) < 0.1
    loss = plimsoll.fit(model, ones, np.zeros_like(ones), epochs=1, verbose=0).history["loss"][0]
    assert abs(loss - 1.0) < 0.05


def test_dropout_that_a_call_tells_to_train_always_drops_in_predictions():
    import keras
    from keras import layers

    class Unsure(layers.Layer):
        def __init__(self):
            super().__init__()
            self.drop = layers.Dropout(0.5)

        def call(self, x):
            return self.drop(x, training=True)

    inputs = keras.Input((200,))
    model = keras.Model(inputs, Unsure()(inputs))
    ones = np.ones((8, 200), "float32")
    found = np.stack([plimsoll.predict(model, ones, batch_size=4, verbose=0) for _ in range(2)])
    assert set(found.ravel()) == {0.0, 2.0}
    masks = found.reshape(16, 200)
    assert len({row.tobytes() for row in masks}) == 16 and 0.9 < found.mean() < 1.1


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_stateful_layers_go_on_from_batch_to_batch(kind):
    import keras
    from keras import layers

    def make():
        keras.utils.set_random_seed(3)
        inputs = keras.Input(batch_shape=(BATCH, 5, 2))
        rnn = getattr(layers, kind)(4, stateful=True, name="rnn")
        model = keras.Model(inputs, layers.Dense(1)(rnn(inputs)))
        model.compile("sgd", "mse")
        return model, rnn

    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(3 * BATCH, 5, 2)).astype("float32"), rng.normal(size=(3 * BATCH, 1)).astype("float32")
    how = dict(batch_size=BATCH, verbose=0)
    (theirs, their_rnn), (ours, our_rnn) = make(), make()
    for _ in range(2):
        np.testing.assert_allclose(plimsoll.predict(ours, x, **how), theirs.predict(x, **how), atol=1e-5)
    np.testing.assert_allclose(plimsoll.evaluate(ours, x, y, **how), theirs.evaluate(x, y, **how), atol=1e-5)
    found = plimsoll.fit(ours, x, y, shuffle=False, epochs=2, validation_data=(x, y), **how).history
    expected = theirs.fit(x, y, shuffle=False, epochs=2, validation_data=(x, y), **how).history
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-4, err_msg=name)
    for own, other in zip(our_rnn.states, their_rnn.states):
        np.testing.assert_allclose(np.asarray(keras.ops.convert_to_numpy(own)), np.asarray(keras.ops.convert_to_numpy(other)), atol=1e-4)
    our_rnn.reset_state()
    their_rnn.reset_state()
    np.testing.assert_allclose(plimsoll.predict(ours, x, **how), theirs.predict(x, **how), atol=1e-4)
    with pytest.raises(plimsoll.PlimsollError, match=f"every batch must have {BATCH}"):
        plimsoll.predict(ours, x[: BATCH - 1], verbose=0)


def test_patches_of_pictures_are_as_in_keras():
    import keras
    from keras import layers, ops

    x = np.random.default_rng(1).normal(size=(4, 9, 10, 3)).astype("float32")
    for settings in ({"size": 3}, {"size": (2, 4), "padding": "same"}, {"size": 3, "strides": 2, "padding": "same"}, {"size": 2, "dilation_rate": 2, "strides": 1}):
        inputs = keras.Input((9, 10, 3))
        model = keras.Model(inputs, layers.Dense(2)(ops.image.extract_patches(inputs, **settings)))
        np.testing.assert_allclose(plimsoll.predict(model, x, verbose=0), model.predict(x, verbose=0), atol=1e-5, err_msg=str(settings))


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


def test_the_first_batch_says_the_shape_of_labels_that_an_own_loss_takes():
    import keras
    from keras import ops

    x, y = data()
    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, N, BATCH)]

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return STEPS

        def __getitem__(self, i):
            return batches[i]

    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", lambda t, p: ops.mean((ops.one_hot(ops.cast(t, "int32"), 3) - p) ** 2, axis=-1))
    expected = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    # A generator gives every batch once, the first one too.
    for given in (Batches(), iter(batches), (batch for batch in batches)):
        np.testing.assert_allclose(plimsoll.evaluate(model, given, verbose=0), expected, rtol=1e-5)
    with pytest.raises(plimsoll.PlimsollError, match="without x and y labels were taken to be like the output; give both"):
        plimsoll.plan(model)
    assert plimsoll.plan(model, x, y, batch_size=BATCH).planned > 0
    assert plimsoll.plan(model, iter(batches)).planned > 0


def test_the_first_batch_says_what_a_model_leaves_open():
    import keras
    from keras import layers

    x, y = data()
    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, N, BATCH)]
    # No weights yet; an axis of any length; a model of the user's own.
    plain = keras.Sequential([layers.Dense(3, activation="softmax")])
    inputs = keras.Input((None, 1))
    long = keras.Model(inputs, layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling1D()(layers.Conv1D(4, 3)(inputs))))
    whole = classes()[2]()
    for model, form in ((plain, lambda x: x), (long, lambda x: x[..., None]), (whole, lambda x: x)):
        compiled(model)
        plimsoll.fit(model, ((form(x), y) for x, y in batches), verbose=0)
        assert int(np.asarray(model.optimizer.iterations)) == STEPS
        expected = model.evaluate(form(x), y, batch_size=BATCH, verbose=0)
        np.testing.assert_allclose(plimsoll.evaluate(model, ((form(x), y) for x, y in batches), verbose=0), expected, rtol=1e-4)


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
