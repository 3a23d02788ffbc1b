"""What Keras's arguments mean in ``plimsoll.fit``, and what is refused by name."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import plimsoll

pytestmark = pytest.mark.keras
N, BATCH = 48, 8
QUIET = dict(batch_size=BATCH, verbose=0, shuffle=False)


def classifier(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=("accuracy",), classes=3):
    import keras
    from keras import layers

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(8, activation="relu"), layers.Dense(classes, activation="softmax")], name="classifier"
    )
    model.compile(optimizer, loss, metrics=list(metrics))
    return model


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 5)).astype(np.float32), rng.integers(0, 3, n)


def same(a, b, tolerance=1e-4):
    assert set(a.history) == set(b.history)
    for name, values in b.history.items():
        np.testing.assert_allclose(a.history[name], values, atol=tolerance, err_msg=name)


def test_epochs_validation_and_initial_epoch():
    x, y = data()
    theirs, ours = classifier(), classifier()
    how = dict(epochs=4, initial_epoch=1, validation_data=data(20, 1), **QUIET)
    expected, found = theirs.fit(x, y, **how), plimsoll.fit(ours, x, y, **how)
    same(found, expected)
    assert found.epoch == expected.epoch == [1, 2, 3]


def test_a_split_holds_the_last_samples_back():
    x, y = data()
    how = dict(epochs=2, validation_split=0.25, **QUIET)
    same(plimsoll.fit(classifier(), x, y, **how), classifier().fit(x, y, **how))


def test_a_last_batch_may_be_smaller():
    x, y = data(N - 3)
    how = dict(epochs=2, **QUIET)
    same(plimsoll.fit(classifier(), x, y, **how), classifier().fit(x, y, **how))


def test_weights_of_samples_and_of_classes():
    x, y = data()
    weights = np.random.default_rng(5).uniform(0, 2, N)
    for more in (dict(sample_weight=weights), dict(class_weight={0: 0.5, 2: 3.0})):
        how = dict(epochs=2, **more, **QUIET)
        same(plimsoll.fit(classifier(), x, y, **how), classifier().fit(x, y, **how))
    one_hot = np.eye(3, dtype=np.float32)[y]
    how = dict(class_weight={0: 0.5, 2: 3.0}, **QUIET)
    make = lambda: classifier("categorical_crossentropy")
    same(plimsoll.fit(make(), x, one_hot, **how), make().fit(x, one_hot, **how))
    model = classifier()
    by_us = plimsoll.evaluate(model, x, y, sample_weight=weights, batch_size=BATCH)
    np.testing.assert_allclose(by_us, model.evaluate(x, y, sample_weight=weights, batch_size=BATCH, verbose=0), atol=1e-5)


def test_weighted_metrics_count_the_weights_of_samples():
    x, y = data()
    weights = np.random.default_rng(5).uniform(0, 2, N)

    def make(loss="sparse_categorical_crossentropy", weighted=("accuracy", "sparse_top_k_categorical_accuracy", "sparse_categorical_crossentropy"), plain=("accuracy",)):
        model = classifier()
        model.compile("adam", loss, metrics=list(plain), weighted_metrics=list(weighted))
        return model

    how = dict(epochs=2, validation_data=(*data(20, 1), np.linspace(0, 2, 20)), **QUIET)
    same(plimsoll.fit(make(), x, y, sample_weight=weights, **how), make().fit(x, y, sample_weight=weights, **how))
    how = dict(epochs=2, class_weight={0: 0.5, 2: 3.0}, **QUIET)
    same(plimsoll.fit(make(), x, y, **how), make().fit(x, y, **how))
    # Without weights they are like all others.
    same(plimsoll.fit(make(), x, y, **QUIET), make().fit(x, y, **QUIET))
    wide = np.random.default_rng(6).uniform(0.1, 1, (N, 3)).astype(np.float32)
    of = lambda: make("mse", ("mae", "mse", "mean_squared_logarithmic_error", "binary_accuracy"), ("mae",))
    same(plimsoll.fit(of(), x, wide, sample_weight=weights, **QUIET), of().fit(x, wide, sample_weight=weights, **QUIET))
    # What is no mean of samples is named and not counted.
    import keras

    with pytest.warns(UserWarning, match="not counted: auc"):
        one_hot = np.eye(3, dtype=np.float32)[y]
        plimsoll.fit(make("categorical_crossentropy", (keras.metrics.AUC(name="auc"),), ()), x, one_hot, sample_weight=weights, **QUIET)
    with pytest.warns(UserWarning, match="not counted: auc"):
        model = make("categorical_crossentropy", (keras.metrics.AUC(name="auc"),), ())
        plimsoll.evaluate(model, x, one_hot, sample_weight=weights, batch_size=BATCH, verbose=0)


@pytest.mark.parametrize("loss", ["mse", "mae", "msle", "mape", "huber", "log_cosh", "poisson", "cosine_similarity", "kl_divergence"])
def test_every_loss_takes_weights_of_samples(loss):
    x, _ = data()
    y = np.random.default_rng(6).uniform(0.1, 1, (N, 3)).astype(np.float32)
    how = dict(sample_weight=np.linspace(0, 2, N), **QUIET)
    make = lambda: classifier(loss, metrics=())
    same(plimsoll.fit(make(), x, y, **how), make().fit(x, y, **how))


def test_labels_may_have_an_axis_of_length_one():
    x, y = data()
    same(plimsoll.fit(classifier(), x, y[:, None], **QUIET), classifier().fit(x, y[:, None], **QUIET))


def test_types_are_converted_as_in_keras():
    x, y = data()
    for kind in (np.float64, np.float16):
        same(plimsoll.fit(classifier(), x.astype(kind), y, **QUIET), classifier().fit(x.astype(kind), y, **QUIET), 2e-3)
    whole = np.random.default_rng(0).integers(0, 255, (N, 5))
    for kind in (np.uint8, np.int16, np.int32, np.int64):
        same(plimsoll.fit(classifier(), whole.astype(kind), y, **QUIET), classifier().fit(whole.astype(kind), y, **QUIET), 1e-2)


def test_arrays_are_not_copied_and_what_must_be_is_counted():
    from plimsoll import _data

    x, y = data()
    array, copied = _data.as_array(x, "x")
    assert copied == 0 and array.ctypes.data == x.ctypes.data
    array, copied = _data.as_array(np.asfortranarray(x), "x")
    assert copied == x.nbytes and array.flags.c_contiguous
    assert _data.as_array([1.0, 2.0], "x")[1] == 16


@pytest.mark.torch
def test_tensors_of_pytorch_are_not_copied():
    import torch

    from plimsoll import _data

    tensor = torch.ones(4, 3)
    array, copied = _data.as_array(tensor, "x")
    assert copied == 0 and array.ctypes.data == tensor.data_ptr()


def test_shuffling_is_new_in_every_epoch_and_repeats_with_its_seed():
    x, y = data()
    run = lambda seed: plimsoll.fit(classifier(), x, y, batch_size=BATCH, epochs=3, verbose=0, seed=seed).history["loss"]
    assert run(1) == run(1) and run(1) != run(2)


def batches(x, y, *more):
    for i in range(0, len(x), BATCH):
        yield (x[i : i + BATCH], y[i : i + BATCH], *(part[i : i + BATCH] for part in more))


def forever(x, y):
    while True:
        yield from batches(x, y)


def test_generators_datasets_and_loaders():
    import keras

    x, y = data()
    expected = classifier().fit(x, y, epochs=2, **QUIET)

    class Rows(keras.utils.PyDataset):
        ended = 0

        def __len__(self):
            return N // BATCH

        def __getitem__(self, i):
            return x[i * BATCH : (i + 1) * BATCH], y[i * BATCH : (i + 1) * BATCH]

        def on_epoch_end(self):
            self.ended += 1

    rows = Rows()
    same(plimsoll.fit(classifier(), rows, epochs=2, verbose=0, shuffle=False), expected)
    assert rows.ended >= 2
    same(plimsoll.fit(classifier(), forever(x, y), steps_per_epoch=N // BATCH, epochs=2, verbose=0), expected)
    same(plimsoll.fit(classifier(), x, y, epochs=2, validation_data=rows, **QUIET),
         classifier().fit(x, y, epochs=2, validation_data=rows, **QUIET))
    np.testing.assert_allclose(plimsoll.predict(classifier(), rows), classifier().predict(x, verbose=0), atol=1e-5)


@pytest.mark.tensorflow
def test_a_tf_dataset():
    import tensorflow as tf

    x, y = data(N - 3)
    made = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    same(plimsoll.fit(classifier(), made, epochs=2, verbose=0), classifier().fit(made, epochs=2, verbose=0))


@pytest.mark.torch
def test_a_data_loader():
    import torch

    x, y = data()
    made = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), batch_size=BATCH)
    same(plimsoll.fit(classifier(), made, epochs=2, verbose=0), classifier().fit(x, y, epochs=2, **QUIET))


def test_weights_come_with_batches():
    x, y = data()
    weights = np.linspace(0, 2, N).astype(np.float32)
    expected = classifier().fit(x, y, sample_weight=weights, **QUIET)
    found = plimsoll.fit(classifier(), batches(x, y, weights), steps_per_epoch=N // BATCH, verbose=0)
    same(found, expected)


def test_a_generator_gives_no_more_than_is_trained_on():
    x, y = data()
    given = batches(np.tile(x, (2, 1)), np.tile(y, 2))
    plimsoll.fit(classifier(), given, steps_per_epoch=2, epochs=3, verbose=0)
    assert len(list(given)) == 2 * N // BATCH - 6


def test_what_a_generator_raises_is_raised_and_the_model_keeps_what_was_trained():
    x, y = data()

    def broken():
        yield from batches(x[: 2 * BATCH], y[: 2 * BATCH])
        raise KeyError("gone")

    model = classifier()
    with pytest.raises(KeyError, match="gone"):
        plimsoll.fit(model, broken(), steps_per_epoch=6, verbose=0)
    assert int(np.asarray(model.optimizer.iterations)) <= 2


def test_batches_of_other_forms_are_refused():
    x, y = data()

    def uneven():
        yield x[:8], y[:8]
        yield x[8:11], y[8:11]
        yield x[11:19], y[11:19]

    with pytest.raises(plimsoll.PlimsollError, match="equally many samples"):
        plimsoll.fit(classifier(), uneven(), steps_per_epoch=3, verbose=0)

    def other():
        yield x[:8], y[:8]
        yield x[:8].astype(np.float64), y[:8]

    with pytest.raises(plimsoll.PlimsollError, match="float64"):
        plimsoll.fit(classifier(), other(), steps_per_epoch=2, verbose=0)


def follower(**told):
    """A callback that notes what the functions given for its methods say, and the list of that."""
    import keras

    seen = []

    def noting(say):
        return lambda self, *args, **named: seen.append(say(*args, **named))

    return type("Follower", (keras.callbacks.Callback,), {name: noting(say) for name, say in told.items()})(), seen


def test_callbacks_are_told_what_keras_tells_them_and_in_its_order():
    told = dict(
        on_train_begin=lambda logs=None: "begin",
        on_epoch_begin=lambda epoch, logs=None: f"epoch {epoch}",
        on_train_batch_begin=lambda batch, logs=None: f"batch {batch}",
        on_train_batch_end=lambda batch, logs=None: f"{batch}: {sorted(logs)}",
        on_epoch_end=lambda epoch, logs=None: f"end of {epoch}: {sorted(logs)}",
        on_train_end=lambda logs=None: "end",
    )
    x, y = data(24)
    how = dict(epochs=2, validation_data=data(8, 1), **QUIET)
    (one, expected), (two, found) = follower(**told), follower(**told)
    classifier().fit(x, y, callbacks=[one], **how)
    plimsoll.fit(classifier(), x, y, callbacks=[two], **how)
    assert found == expected


def test_a_callback_sees_the_weights_and_may_change_them():
    import keras

    class Zero(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            weights = self.model.get_weights()
            self.kept = [w.copy() for w in weights]
            if epoch == 0:
                self.model.set_weights([np.zeros_like(w) for w in weights])

    x, y = data()
    how = dict(epochs=2, **QUIET)
    one, two = Zero(), Zero()
    theirs, ours = classifier(), classifier()
    same(plimsoll.fit(ours, x, y, callbacks=[two], **how), theirs.fit(x, y, callbacks=[one], **how))
    for own, other in zip(two.kept, one.kept):
        np.testing.assert_allclose(own, other, atol=1e-4)


def test_keras_changes_the_learning_rate_and_ends_the_run(tmp_path):
    import keras

    x, y = data()
    known = keras.callbacks

    def run(fit, model, log):
        listed = [
            known.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            known.EarlyStopping("loss", patience=1, min_delta=10.0, restore_best_weights=True),
            known.ModelCheckpoint(str(tmp_path / f"{log}.weights.h5"), save_weights_only=True, save_freq=3),
            known.CSVLogger(str(tmp_path / f"{log}.csv")),
        ]
        return fit(model, x, y, epochs=5, callbacks=listed, **QUIET)

    theirs, ours = classifier(), classifier()
    expected, found = run(lambda model, *a, **k: model.fit(*a, **k), theirs, "theirs"), run(plimsoll.fit, ours, "ours")
    same(found, expected)
    assert len(found.epoch) == 2 and found.history["learning_rate"] == pytest.approx([5e-4, 2.5e-4])
    assert float(np.asarray(ours.optimizer.learning_rate)) == pytest.approx(2.5e-4)
    for own, other in zip(ours.get_weights(), theirs.get_weights()):
        np.testing.assert_allclose(own, other, atol=1e-4)
    for name in ("ours", "theirs"):
        model = classifier()
        model.load_weights(tmp_path / f"{name}.weights.h5")
        np.testing.assert_allclose(model.get_weights()[0], theirs.get_weights()[0], atol=0.05)
    ours.load_weights(tmp_path / "ours.weights.h5")
    theirs.load_weights(tmp_path / "theirs.weights.h5")
    for own, other in zip(ours.get_weights(), theirs.get_weights()):
        np.testing.assert_allclose(own, other, atol=1e-4)


def test_a_callback_that_stops_in_the_middle_or_fails():
    import keras

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.stop_training = True

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise ZeroDivisionError("mine")

    x, y = data()
    model = classifier()
    history = plimsoll.fit(model, x, y, epochs=3, callbacks=[Stop()], **QUIET)
    assert history.epoch == [0] and int(np.asarray(model.optimizer.iterations)) == 3
    model = classifier()
    with pytest.raises(ZeroDivisionError, match="mine"):
        plimsoll.fit(model, x, y, epochs=3, callbacks=[Fail()], **QUIET)
    assert int(np.asarray(model.optimizer.iterations)) == 3
    plimsoll.fit(model, x, y, **QUIET)


def test_what_is_not_supported_is_refused_by_name():
    import keras

    x, y = data()
    fit = lambda **more: plimsoll.fit(classifier(), x, y, verbose=0, **more)
    with pytest.raises(ValueError, match="validation_freq is 0"):
        fit(validation_freq=0)
    with pytest.raises(ValueError, match="validation_batch_size is for"):
        fit(validation_batch_size=4)
    with pytest.raises(ValueError, match="BackupAndRestore"):
        fit(callbacks=[keras.callbacks.BackupAndRestore("folder")])
    with pytest.raises(ValueError, match="steps_per_epoch is 0"):
        fit(steps_per_epoch=0, batch_size=BATCH)
    with pytest.raises(ValueError, match="for all outputs"):
        fit(sample_weight=[np.ones(N)])
    with pytest.raises(ValueError, match="validation_split is 1.5"):
        fit(validation_split=1.5)
    with pytest.raises(ValueError, match="cannot both"):
        fit(sample_weight=np.ones(N), class_weight={0: 1.0})
    with pytest.raises(plimsoll.PlimsollError, match="there is no device tpu"):
        fit(device="tpu")
    with pytest.raises(plimsoll.PlimsollError, match="there is no precision f8"):
        fit(precision="f8")
    with pytest.raises(plimsoll.PlimsollError, match="a lot"):
        fit(memory="a lot")
    with pytest.raises(ValueError, match="model takes \\(5,\\)"):
        plimsoll.fit(classifier(), x[:, :4], y, verbose=0)
    with pytest.raises(ValueError, match="no labels"):
        plimsoll.fit(classifier(), x, verbose=0)
    with pytest.raises(ValueError, match="steps_per_epoch"):
        plimsoll.fit(classifier(), forever(x, y), epochs=2, verbose=0)
    with pytest.raises(TypeError, match="no keras.callbacks.Callback"):
        fit(callbacks=[print])
    bad = x.copy()
    bad[3, 2] = np.nan
    with pytest.raises(plimsoll.PlimsollError, match="NaN"):
        plimsoll.fit(classifier(), bad, y, verbose=0)
    with pytest.raises(plimsoll.PlimsollError, match="not compiled"):
        plain = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
        plimsoll.fit(plain, x, y, verbose=0)


def quietly(run):
    """What Keras and we say where data runs out is not for here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run()


@pytest.mark.parametrize("steps", [2, 4, 6, 9])
def test_steps_of_an_epoch_go_on_through_arrays_as_in_keras(steps):
    x, y = data(N - 3)
    how = dict(epochs=5, steps_per_epoch=steps, **QUIET)
    theirs, ours = classifier(), classifier()
    expected = quietly(lambda: theirs.fit(x, y, **how))
    found = quietly(lambda: plimsoll.fit(ours, x, y, **how))
    same(found, expected)
    assert int(np.asarray(ours.optimizer.iterations)) == int(np.asarray(theirs.optimizer.iterations))
    if steps > 6:
        with pytest.warns(UserWarning, match="ran out"):
            plimsoll.fit(ours, x, y, **how)


def test_shuffled_steps_of_arrays_see_every_sample_once_a_pass():
    import keras

    x = np.arange(N, dtype=np.float32)[:, None]
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    run = lambda seed: plimsoll.fit(model, x, x, batch_size=BATCH, steps_per_epoch=2, epochs=3, verbose=0, seed=seed).history["loss"]
    losses = run(1)
    assert np.mean(losses) == pytest.approx((x**2).mean(), rel=1e-5) and losses == run(1) != run(2)


@pytest.mark.tensorflow
def test_steps_of_datasets_go_on_where_the_last_epoch_ended():
    import tensorflow as tf

    x, y = data()
    made = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    how = dict(epochs=4, steps_per_epoch=4, verbose=0)
    same(quietly(lambda: plimsoll.fit(classifier(), made, **how)), quietly(lambda: classifier().fit(made, **how)))
    same(plimsoll.fit(classifier(), made.repeat(), **how), classifier().fit(made.repeat(), **how))
    with pytest.raises(ValueError, match="without end"):
        plimsoll.fit(classifier(), made.repeat(), verbose=0)


def test_validation_every_few_epochs_in_batches_of_its_own():
    x, y = data()
    for more in (dict(validation_freq=2), dict(validation_freq=[1, 3]), dict(validation_batch_size=5), dict(validation_steps=2, validation_batch_size=4)):
        how = dict(epochs=4, validation_data=data(20, 1), **more, **QUIET)
        same(plimsoll.fit(classifier(), x, y, **how), classifier().fit(x, y, **how))


def test_weights_of_the_validation_alone():
    x, y = data()
    how = dict(epochs=2, validation_data=(*data(20, 1), np.linspace(0, 2, 20)), **QUIET)
    same(plimsoll.fit(classifier(), x, y, **how), classifier().fit(x, y, **how))


def test_a_generator_that_ends_is_one_epoch():
    x, y = data()
    same(plimsoll.fit(classifier(), batches(x, y), verbose=0), classifier().fit(x, y, **QUIET))
    one, two = classifier(), classifier()
    np.testing.assert_allclose(plimsoll.evaluate(one, batches(x, y), verbose=0), two.evaluate(batches(x, y), verbose=0), atol=1e-5)
    with pytest.raises(ValueError, match="has ended"):
        plimsoll.fit(classifier(), batches(x, y), steps_per_epoch=6, epochs=2, verbose=0)


def test_steps_of_evaluations_and_predictions():
    x, y = data()
    for n in (2, 99):
        how = dict(batch_size=BATCH, steps=n, verbose=0)
        by_keras = quietly(lambda: classifier().evaluate(x, y, **how))
        np.testing.assert_allclose(quietly(lambda: plimsoll.evaluate(classifier(), x, y, **how)), by_keras, atol=1e-5)
        by_keras = quietly(lambda: classifier().predict(x, **how))
        np.testing.assert_allclose(quietly(lambda: plimsoll.predict(classifier(), x, **how)), by_keras, atol=1e-5)


def test_callbacks_of_evaluations_validations_and_predictions():
    told = dict(
        on_test_begin=lambda logs=None: "test",
        on_test_batch_begin=lambda batch, logs=None: f"batch {batch}",
        on_test_batch_end=lambda batch, logs=None: (batch, sorted(logs), round(float(logs["loss"]), 3)),
        on_test_end=lambda logs=None: sorted(logs),
        on_predict_batch_begin=lambda batch, logs=None: f"predicts {batch}",
        on_predict_batch_end=lambda batch, logs=None: (batch, np.asarray(logs["outputs"]).shape),
        on_predict_end=lambda logs=None: "predicted",
    )
    x, y = data(20)

    def run(fit, evaluate, predict):
        callback, seen = follower(**told)
        model = classifier()
        fit(model, x, y, validation_data=(x, y), callbacks=[callback], **QUIET)
        evaluate(model, x, y, batch_size=BATCH, verbose=0, callbacks=[callback])
        predict(model, x, batch_size=BATCH, verbose=0, callbacks=[callback])
        return seen

    named = lambda name: lambda model, *a, **k: getattr(model, name)(*a, **k)
    assert run(plimsoll.fit, plimsoll.evaluate, plimsoll.predict) == run(named("fit"), named("evaluate"), named("predict"))


def test_arguments_may_be_given_by_their_place_as_in_keras():
    x, y = data()
    same(plimsoll.fit(classifier(), x, y, BATCH, 2, 0, shuffle=False), classifier().fit(x, y, BATCH, 2, 0, shuffle=False))
    np.testing.assert_allclose(plimsoll.evaluate(classifier(), x, y, BATCH, 0), classifier().evaluate(x, y, BATCH, 0), atol=1e-5)


def test_a_callback_cannot_begin_another_run_and_the_first_one_says_so():
    import keras

    x, y = data()
    other = classifier()

    class Again(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            plimsoll.fit(other, x, y, **QUIET)

    model = classifier()
    with pytest.raises(plimsoll.PlimsollError, match="another call of plimsoll is under way"):
        plimsoll.fit(model, x, y, callbacks=[Again()], **QUIET)
    assert int(np.asarray(model.optimizer.iterations)) == N // BATCH, "it has what was trained"
    plimsoll.fit(other, x, y, **QUIET)


def test_data_of_other_kinds_is_refused_by_name():
    x, y = data()
    for wrong, why in ((x.astype(object), "object"), (x.astype("complex64"), "complex64"), (np.array(["a"] * N), "<U1"), (x[:0], "no samples")):
        with pytest.raises((TypeError, ValueError), match=why):
            plimsoll.fit(classifier(), wrong, y[: len(wrong)], verbose=0)
    with pytest.raises(ValueError, match="x has 48 samples, y has 45 samples"):
        plimsoll.fit(classifier(), x, y[:45], verbose=0)


def test_a_training_step_of_ones_own_is_refused_and_not_left_out():
    import keras

    class Own(keras.Model):
        def train_step(self, data):
            raise NotImplementedError

    x, y = data()
    made = keras.Input((5,))
    model = Own(made, keras.layers.Dense(3)(made))
    model.compile("sgd", "mse")
    with pytest.raises(plimsoll.PlimsollError, match="train_step|Own"):
        plimsoll.fit(model, x, y, verbose=0)


def test_plans_and_reports_can_be_looked_at(tmp_path):
    model = classifier()
    plan = plimsoll.plan(model, batch_size=16, memory="1GiB")
    assert plan.memory_limit == 1 << 30 and plan.least <= plan.planned <= plan.memory_limit
    assert plan.rows[-1] == ("python", plan.python) and plan.python > 50 << 20
    assert sum(size for _, size in plan.rows[:-1]) == plan.planned
    assert "\n  python " in str(plan) and "not counted in the limit" in str(plan) and repr(plan).startswith("<plimsoll.Plan")
    assert "<iframe" in plan._repr_html_() and "<pre>" in plan._repr_html_()
    page = plimsoll.report(model, batch_size=16).save(tmp_path / "page.html")
    assert page.read_text().startswith("<!doctype html>")
    with pytest.raises(plimsoll.MemoryLimitError) as refused:
        plimsoll.plan(model, batch_size=16, memory="1MiB")
    assert refused.value.limit == 1 << 20 < refused.value.least
    assert "--" not in str(refused.value) and 'memory="' in str(refused.value)
    assert plimsoll.plan(model, batch_size=16, exact="bitwise").figures["exactness"] == "bitwise"
    with pytest.raises(plimsoll.PlimsollError, match="there is no exactness"):
        plimsoll.plan(model, batch_size=16, exact="precise")


def test_files_are_read_by_the_engine(tmp_path):
    x, y = data()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    files = plimsoll.Dataset(tmp_path / "data.npz")
    how = dict(epochs=2, **QUIET)
    same(plimsoll.fit(classifier(), files, **how), plimsoll.fit(classifier(), x, y, **how), 0)
    same(plimsoll.fit(classifier(), x, y, validation_data=files, **how), classifier().fit(x, y, validation_data=(x, y), **how))
    np.testing.assert_allclose(plimsoll.predict(classifier(), files), classifier().predict(x, verbose=0), atol=1e-5)
    with pytest.raises(ValueError, match="sample_weight is given"):
        plimsoll.fit(classifier(), files, sample_weight=np.ones(N), verbose=0)
    with pytest.raises(plimsoll.PlimsollError, match="nosuch"):
        plimsoll.fit(classifier(), plimsoll.Dataset(tmp_path / "nosuch.npz"), verbose=0)
