"""Live Keras models through ``plimsoll.fit`` against ``model.fit``, in the same order of samples."""

from __future__ import annotations

import numpy as np
import pytest

import models
import plimsoll
from models import ALL

pytestmark = pytest.mark.keras
BATCH, STEPS = 8, 20


def twins(make):
    """Two models with the same weights, and their data."""
    import keras

    first, x, y = make(BATCH * STEPS)
    keras.utils.set_random_seed(1)
    second, _, _ = make(BATCH * STEPS)
    second.set_weights(first.get_weights())
    return first, second, x, y


def step_losses():
    """A callback that keeps the mean loss of the epoch so far after every step."""
    import keras

    class Losses(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_train_batch_end(self, batch, logs=None):
            self.seen.append((batch, logs["loss"]))

    return Losses()


def trains_as_in_keras(make, tolerance=1e-4, close=1e-5):
    """Twenty steps here and there, evaluated, predicted and gone on with."""
    theirs, ours, x, y = twins(make)
    before = iterations(ours)
    expected, found = step_losses(), step_losses()
    how = dict(batch_size=BATCH, shuffle=False, verbose=0)
    theirs.fit(x, y, callbacks=[expected], **how)
    history = plimsoll.fit(ours, x, y, callbacks=[found], memory="256MiB", **how)
    assert [n for n, _ in found.seen] == list(range(STEPS))
    np.testing.assert_allclose([loss for _, loss in found.seen], [loss for _, loss in expected.seen], atol=tolerance)
    assert history.epoch == [0] and history.plan.planned <= 256 << 20
    assert set(history.history) == set(theirs.history.history)
    for name, values in theirs.history.history.items():
        np.testing.assert_allclose(history.history[name], values, atol=tolerance, err_msg=name)

    # What Keras has now is what was trained.
    by_keras = ours.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    by_us = plimsoll.evaluate(ours, x, y, batch_size=BATCH, verbose=0, return_dict=True)
    assert set(by_us) == set(by_keras)
    for name, value in by_keras.items():
        np.testing.assert_allclose(by_us[name], value, rtol=close, atol=close, err_msg=name)
    for name, value in theirs.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True).items():
        np.testing.assert_allclose(by_keras[name], value, atol=10 * tolerance, err_msg=name)
    predicted = plimsoll.predict(ours, x, batch_size=BATCH, verbose=0)
    for own, other in zip(flat(predicted), flat(ours.predict(x, batch_size=BATCH, verbose=0)), strict=True):
        np.testing.assert_allclose(own, other, atol=close)

    # The optimizer's state came along: Keras goes on as if it had trained by itself.
    assert iterations(ours) == before + STEPS
    theirs.fit(x, y, **how)
    ours.fit(x, y, **how)
    np.testing.assert_allclose(ours.history.history["loss"], theirs.history.history["loss"], atol=2 * tolerance)


def iterations(model):
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return int(np.asarray(optimizer.iterations))


def test_a_model_of_several_inputs_and_outputs():
    trains_as_in_keras(models.multi_input)


def test_a_model_with_shared_layers():
    trains_as_in_keras(models.shared)


def test_models_nested_in_models():
    trains_as_in_keras(models.nested)


def test_a_siamese_network():
    trains_as_in_keras(models.siamese)


def test_a_seq2seq_model_with_masks():
    trains_as_in_keras(models.seq2seq)


def test_a_u_net():
    trains_as_in_keras(models.unet)


def test_an_autoencoder():
    trains_as_in_keras(models.autoencoder)


def test_mixed_float16():
    # Losses agree as closely; a single prediction is only as exact as half precision.
    trains_as_in_keras(models.mixed_float16, close=5e-4)


def test_a_frozen_base_with_a_new_head():
    trains_as_in_keras(models.frozen_base)


def test_a_model_that_goes_on_from_a_saved_optimizer():
    trains_as_in_keras(models.continued)


def test_tokens_and_a_schedule():
    trains_as_in_keras(models.recurrent)


def flat(outputs):
    import keras

    return keras.tree.flatten(outputs)


@pytest.mark.parametrize("make", ALL[:2], ids=lambda make: make.__name__)
def test_the_optimizer_of_a_model_that_was_trained_before_goes_on(make, tmp_path):
    import keras

    first, _, x, y = twins(make)
    how = dict(batch_size=BATCH, shuffle=False, verbose=0)
    first.fit(x, y, **how)
    first.save(tmp_path / "model.keras")
    ours = keras.models.load_model(tmp_path / "model.keras")
    theirs = first.fit(x, y, **how)
    history = plimsoll.fit(ours, x, y, **how)
    np.testing.assert_allclose(history.history["loss"], theirs.history["loss"], atol=1e-4)
    assert int(np.asarray(ours.optimizer.iterations)) == 2 * STEPS


def test_a_tight_limit_changes_the_plan_and_not_the_model():
    theirs, ours, x, y = twins(models.unet)
    how = dict(batch_size=BATCH, shuffle=False, verbose=0)
    least = plimsoll.plan(ours, x, y, batch_size=BATCH).least
    history = plimsoll.fit(ours, x, y, memory=least, **how)
    assert history.plan.planned <= least
    free = theirs.fit(x, y, **how)
    np.testing.assert_allclose(history.history["loss"], free.history["loss"], atol=1e-4)
    with pytest.raises(plimsoll.MemoryLimitError) as refused:
        plimsoll.fit(ours, x, y, memory=least - 4096, **how)
    error = refused.value
    assert error.limit == least - 4096 and error.limit < error.least <= least + (1 << 20)
    assert error.holders and all(size > 0 for _, size in error.holders)
    assert int(np.asarray(ours.optimizer.iterations)) == STEPS
