"""What people give ``plimsoll.fit`` by mistake: each is refused by its name, or means what it means in Keras."""

from __future__ import annotations

import numpy as np
import pytest

import plimsoll
from test_fit import BATCH, N, QUIET, classifier, data

pytestmark = pytest.mark.keras


def fit(x=None, y=None, **more):
    own_x, own_y = data()
    return plimsoll.fit(classifier(), own_x if x is None else x, own_y if y is None else y, **{"verbose": 0, **more})


@pytest.mark.parametrize(
    "memory, error, why",
    [
        (0, ValueError, "memory is 0"), (-5, ValueError, "memory is -5"), ("-1GiB", ValueError, "more than nothing"),
        (2.5, TypeError, "whole number of bytes"), (True, TypeError, "memory is True"), (b"2GiB", TypeError, "whole number of bytes"),
        ("", plimsoll.PlimsollError, "no size"), ("2 gigs", plimsoll.PlimsollError, "no size"), ("0", plimsoll.MemoryLimitError, "cannot be kept"),
        (2**70, plimsoll.PlimsollError, "more bytes than"),
    ],
)  # fmt: skip
def test_limits_that_are_none(memory, error, why):
    with pytest.raises(error, match=why):
        fit(memory=memory)


@pytest.mark.parametrize("memory", ["2 GB", " 2GiB ", "1e9", 1 << 30, np.int64(1 << 30)])
def test_limits_as_people_write_them(memory):
    assert fit(memory=memory).plan.memory_limit >= 10**9


@pytest.mark.parametrize(
    "more, error, why",
    [
        (dict(epochs=-1), ValueError, "epochs is -1"), (dict(epochs=1.5), TypeError, "epochs is 1.5"), (dict(epochs="3"), TypeError, "epochs is '3'"),
        (dict(batch_size=0), ValueError, "batch_size is 0"), (dict(batch_size=2.5), TypeError, "batch_size is 2.5"),
        (dict(steps_per_epoch=2.0), TypeError, "steps_per_epoch is 2.0"), (dict(verbose=5), ValueError, "verbose is 5"),
        (dict(shuffle="batch"), ValueError, "shuffle is 'batch'"), (dict(seed=-1), ValueError, "seed is -1"), (dict(seed="a"), TypeError, "seed is 'a'"),
        (dict(device=3), TypeError, "device is 3"), (dict(precision=32), TypeError, "precision is 32"), (dict(exact=True), TypeError, "exact is True"),
        (dict(checkpoints=5), TypeError, "PathLike"), (dict(validation_split="a"), ValueError, "validation_split is 'a'"),
        (dict(class_weight=[1, 2, 3]), TypeError, "dictionary"), (dict(class_weight={"a": 1.0}), ValueError, "the class 'a'"),
        (dict(class_weight={0: np.nan}), ValueError, "class_weight\\[0\\] is nan"), (dict(sample_weight=np.full(N, np.inf)), ValueError, "sample_weight\\[0\\]"),
        (dict(sample_weight=np.ones((N, 4))), ValueError, "one weight a sample"), (dict(validation_data=np.ones((4, 5))), ValueError, "validation_data is a ndarray"),
        (dict(validation_data=(np.ones((4, 2)), np.zeros(4))), ValueError, "validation_data: x has samples of shape \\(2,\\)"),
        (dict(validation_data=(np.ones((4, 5)), np.zeros(3))), ValueError, "validation_data: x has 4 samples, y has 3 samples"),
        (dict(validation_data=(np.ones((0, 5)), np.zeros(0))), ValueError, "validation_data: .* no samples"),
        (dict(callbacks=[None]), TypeError, "NoneType"), (dict(validation_split=0.5, validation_batch_size=0), ValueError, "validation_batch_size is 0"),
    ],
)  # fmt: skip
def test_arguments_of_other_kinds(more, error, why):
    with pytest.raises(error, match=why):
        fit(**more)


def test_data_of_other_kinds():
    x, y = data()
    masked = np.ma.masked_greater(x, 1.0)
    for wrong, error, why in (
        ("data.npz", TypeError, "plimsoll.Dataset"), (masked, TypeError, "masked"), (x[0], ValueError, "samples of shape \\(\\)"), (5, ValueError, "single number"),
        ([[1.0, 2.0], [3.0]], ValueError, "x is a list that NumPy cannot read"), (iter([(x[0], y[0])]), ValueError, "in the first batch"), (iter([]), ValueError, "no batches"),
        (iter([(x, y, y, y)]), ValueError, "tuple of 4"),
    ):  # fmt: skip
        with pytest.raises(error, match=why):
            plimsoll.fit(classifier(), wrong, None if hasattr(wrong, "__next__") else y, verbose=0)
    with pytest.raises(ValueError, match="there is no data"):
        plimsoll.fit(classifier(), verbose=0)
    for wrong, why in ((np.full(N, 3), "out of range"), (np.full(N, -1), "out of range"), (np.full(N, np.nan), "NaN"), (np.array(["a"] * N), "numbers belong")):
        with pytest.raises((TypeError, ValueError, plimsoll.PlimsollError), match=why):
            fit(y=wrong)


@pytest.mark.tensorflow
def test_tensors_of_tensorflow_that_are_no_arrays():
    import tensorflow as tf

    for wrong in (tf.ragged.constant([[1.0, 2.0], [3.0]]), tf.sparse.from_dense(np.eye(5, dtype=np.float32))):
        with pytest.raises((TypeError, ValueError), match=type(wrong).__name__):
            plimsoll.fit(classifier(), wrong, data()[1], verbose=0)


@pytest.mark.torch
def test_tensors_of_torch_that_numpy_cannot_read():
    import torch

    x, y = data()
    for wrong, why in ((torch.from_numpy(x).bfloat16(), "x is a Tensor that NumPy cannot read"), (torch.from_numpy(x.copy()).requires_grad_(), "detach")):
        with pytest.raises((TypeError, RuntimeError), match=why):
            plimsoll.fit(classifier(), wrong, y, verbose=0)


def test_numbers_of_numpy_in_a_list_are_an_array():
    x, y = data()
    assert fit(x, list(y), seed=1).history == fit(x, y, seed=1).history


def test_arrays_of_other_lengths_are_named_with_their_lengths():
    x, y = data(10)
    with pytest.raises(ValueError, match="x has 10 samples, y has 8 samples; each needs"):
        plimsoll.fit(classifier(), x, y[:8], verbose=0)
    with pytest.raises(ValueError, match="x has 10 samples, y has 10 samples, sample_weight has 9 samples"):
        plimsoll.fit(classifier(), x, y, sample_weight=np.ones(9), verbose=0)


def test_a_generator_for_several_validations_is_refused_before_the_first_step():
    x, y = data()

    def batches():
        yield x[:BATCH], y[:BATCH]

    with pytest.raises(ValueError, match="validation_data is a generator.*2 epochs.*validation_steps"):
        fit(epochs=2, validation_data=batches())
    assert len(fit(epochs=2, validation_data=batches(), validation_freq=2).history["val_loss"]) == 1


def test_a_batch_is_never_larger_than_the_data():
    x, y = data(10)
    how = dict(batch_size=10**9, shuffle=False, verbose=0)
    expected, model = classifier().fit(x, y, **how), classifier()
    found = plimsoll.fit(model, x, y, **how)
    np.testing.assert_allclose(found.history["loss"], expected.history["loss"], atol=1e-5)
    assert found.plan.planned == plimsoll.fit(model, x, y, batch_size=10, shuffle=False, verbose=0).plan.planned
    assert plimsoll.predict(model, x, 10**9, verbose=0).shape == (10, 3)


def test_no_epoch_is_no_error_as_in_keras():
    import keras

    seen = []
    told = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: seen.append("begin"), on_train_end=lambda logs: seen.append("end"))
    model = classifier()
    for how in (dict(epochs=0), dict(epochs=2, initial_epoch=2)):
        history = plimsoll.fit(model, *data(), callbacks=[told], **how, **QUIET)
        assert history.history == {} and history.plan.planned > 0
    assert seen == ["begin", "end"] * 2 and int(np.asarray(model.optimizer.iterations)) == 0


def test_models_that_are_not_ready():
    import keras

    x, y = data()

    def made():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    # Keras makes the weights when it first sees data; so is it here.
    found, expected = plimsoll.fit(made(), x, y, **QUIET), made().fit(x, y, **QUIET)
    np.testing.assert_allclose(found.history["loss"], expected.history["loss"], atol=1e-4)
    with pytest.raises(plimsoll.PlimsollError, match="no weights yet.* Input"):
        plimsoll.plan(made())
    plain = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    for call in (lambda: plimsoll.evaluate(plain, x, y, verbose=0), lambda: plimsoll.plan(plain)):
        with pytest.raises(plimsoll.PlimsollError, match="not compiled"):
            call()
    assert plimsoll.predict(plain, x, verbose=0).shape == (N, 3)

    class Own(keras.Model):
        def train_step(self, data):
            return {}

    for wrong, error, why in ((Own(), plimsoll.PlimsollError, "its own train_step"), ("model.keras", TypeError, "not str"), (keras.Sequential, TypeError, "not type")):
        with pytest.raises(error, match=why):
            plimsoll.fit(wrong, x, y, verbose=0)


def test_an_interrupt_inside_a_callback_leaves_a_checkpoint(tmp_path):
    import keras

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

    model = classifier()
    with pytest.raises(KeyboardInterrupt):
        plimsoll.fit(model, *data(), callbacks=[Stops()], checkpoints=tmp_path, **QUIET)
    assert int(np.asarray(model.optimizer.iterations)) == 3 and [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_a_state_that_outlives_its_batch_is_refused_of_stacked_cells_and_in_wrappers():
    import keras

    layers = keras.layers
    for layer in (
        layers.RNN(layers.GRUCell(3), stateful=True), layers.RNN([layers.LSTMCell(3), layers.LSTMCell(2)], stateful=True),
        layers.Bidirectional(layers.SimpleRNN(3, stateful=True)), layers.TimeDistributed(layers.Dense(3)),
    ):  # fmt: skip
        model = keras.Sequential([keras.Input(batch_shape=(4, 6, 2)), layer])
        model.compile("sgd", "mse")
        x = np.ones((4, 6, 2), np.float32)
        y = np.zeros(model.output_shape, np.float32)
        if isinstance(layer, layers.TimeDistributed) or isinstance(getattr(layer, "cell", None), layers.GRUCell):
            plimsoll.fit(model, x, y, batch_size=4, verbose=0)
            continue
        for call in (lambda: plimsoll.predict(model, x, batch_size=4, verbose=0), lambda: plimsoll.fit(model, x, y, batch_size=4, verbose=0)):
            with pytest.raises(plimsoll.PlimsollError, match="stateful"):
                call()


class Counted:
    """Makes PyDatasets of ``count`` batches that write down which of them are asked for, the last with fewer samples."""

    @staticmethod
    def made(count=6, last=BATCH, **settings):
        import keras

        class Rows(keras.utils.PyDataset):
            def __init__(self):
                super().__init__(**settings)
                self.events = []

            def __len__(self):
                return count

            def __getitem__(self, i):
                self.events.append(i)
                rows = last if i == count - 1 else BATCH
                return np.full((rows, 5), i, np.float32), np.full(rows, i % 3)

            def on_epoch_begin(self):
                self.events.append("begin")

            def on_epoch_end(self):
                self.events.append("end")

        return Rows()

    @staticmethod
    def epochs(events):
        found = []
        for event in events:
            if event == "begin":
                found.append([])
            elif event != "end":
                found[-1].append(event)
        return found


def test_batches_of_a_py_dataset_are_shuffled_as_keras_shuffles_them():
    rows = Counted.made()
    plimsoll.fit(classifier(), rows, epochs=4, verbose=0, seed=1)
    epochs = Counted.epochs(rows.events)
    assert [sorted(epoch) for epoch in epochs] == [list(range(6))] * 4 and len({tuple(epoch) for epoch in epochs}) > 2, epochs
    assert any(epoch[-1] != 5 for epoch in epochs[1:]), "a last batch that is full is a batch like others"
    assert rows.events.count("end") == 4 and rows.events[0] == "begin"
    rows = Counted.made()
    plimsoll.fit(classifier(), rows, epochs=3, verbose=0, shuffle=False)
    assert Counted.epochs(rows.events) == [list(range(6))] * 3
    # A smaller one stays the last.
    rows = Counted.made(last=3)
    model = classifier()
    plimsoll.fit(model, rows, epochs=4, verbose=0, seed=1)
    assert all(epoch[-1] == 5 and sorted(epoch) == list(range(6)) for epoch in Counted.epochs(rows.events))
    assert int(np.asarray(model.optimizer.iterations)) == 24
    rows = Counted.made()
    plimsoll.evaluate(classifier(), rows, verbose=0)
    assert Counted.epochs(rows.events) == [list(range(6))]


def test_workers_of_a_py_dataset_change_nothing_but_are_named():
    """On PyTorch Keras itself mixes up batches where there are workers: what it reads before the first epoch stays in its queue."""
    rows = Counted.made(workers=2)
    with pytest.warns(UserWarning, match="asks for 2 workers"):
        found = plimsoll.fit(classifier(), rows, epochs=2, verbose=0, shuffle=False)
    assert Counted.epochs(rows.events) == [list(range(6))] * 2
    expected = classifier().fit(Counted.made(workers=1), epochs=2, verbose=0, shuffle=False)
    np.testing.assert_allclose(found.history["loss"], expected.history["loss"], atol=1e-4)


def test_a_stop_asked_for_before_a_step_ends_the_epoch_after_it_with_its_validation():
    import keras

    class Stops(keras.callbacks.Callback):
        def __init__(self, where):
            super().__init__()
            self.where = where

        def on_epoch_begin(self, epoch, logs=None):
            self.model.stop_training = self.model.stop_training or self.where == f"epoch {epoch}"

        def on_train_begin(self, logs=None):
            self.model.stop_training = self.where == "train"

    for where in ("epoch 1", "train"):
        theirs, ours = classifier(), classifier()
        how = dict(epochs=3, validation_data=data(20, 1), **QUIET)
        expected = theirs.fit(*data(), callbacks=[Stops(where)], **how)
        found = plimsoll.fit(ours, *data(), callbacks=[Stops(where)], **how)
        assert found.epoch == expected.epoch and set(found.history) == set(expected.history)
        for name, values in expected.history.items():
            np.testing.assert_allclose(found.history[name], values, atol=1e-4, err_msg=name)
        assert int(np.asarray(ours.optimizer.iterations)) == int(np.asarray(theirs.optimizer.iterations))


@pytest.mark.tensorflow
def test_every_validation_begins_with_the_first_batch():
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices(data(40, 1)).batch(BATCH)
    for kept in (batches, Counted.made(), Counted.made(count=3)):
        how = dict(epochs=4, validation_data=kept, validation_steps=2, **QUIET)
        found, expected = plimsoll.fit(classifier(), *data(), **how), classifier().fit(*data(), **how)
        for name, values in expected.history.items():
            np.testing.assert_allclose(found.history[name], values, atol=1e-4, err_msg=name)
