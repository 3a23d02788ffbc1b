"""Whether a batch may run in pieces at the least memory limit: under a mean it does, under other losses the results must stay Keras's."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.keras
SAMPLES, STEPS, WIDTH, CLASSES = 512, 12, 128, 5


def _loss(kind: str):
    import keras

    crossentropy = keras.losses.SparseCategoricalCrossentropy
    return {
        "mean": crossentropy(),
        "sum": crossentropy(reduction="sum"),
        "ignore_class": crossentropy(ignore_class=2),
        "mask": crossentropy(),
    }[kind]


def _model(kind: str):
    import keras
    from keras import layers

    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    words = keras.Input((STEPS,), dtype="int32")
    x = layers.Embedding(20, WIDTH, mask_zero=kind == "mask")(words)
    for _ in range(3):
        x = layers.Dense(WIDTH, activation="tanh")(x)
    model = keras.Model(words, layers.Dense(CLASSES, activation="softmax")(x))
    model.compile(keras.optimizers.SGD(0.00001 if kind == "sum" else 0.1), _loss(kind))
    return model


@pytest.mark.parametrize(("kind", "is_split"), [("mean", True), ("sum", False), ("ignore_class", False), ("mask", False)])
def test_only_a_mean_runs_in_pieces_at_the_least_limit_and_all_stay_equal_to_keras(kind: str, is_split: bool) -> None:
    import plimsoll

    dice = np.random.default_rng(1)
    # Samples of very different lengths, so that a mean over pieces would not be the mean over all.
    x = dice.integers(1, 20, (SAMPLES, STEPS)).astype("int32")
    x[: SAMPLES // 2, 2:] = 0
    y = dice.integers(0, CLASSES, (SAMPLES, STEPS))
    y[: SAMPLES // 2, 1:] = 2
    ours, theirs = _model(kind), _model(kind)
    ours.set_weights(theirs.get_weights())
    with pytest.raises(plimsoll.MemoryLimitError) as refused:
        plimsoll.plan(ours, x, y, batch_size=SAMPLES, memory="1MiB")
    least = refused.value.least
    plan = plimsoll.plan(ours, x, y, batch_size=SAMPLES, memory=least)
    assert (plan.micro_batches > 1) == is_split, plan.micro_batches
    given = {"batch_size": SAMPLES, "epochs": 3, "shuffle": False, "verbose": 0}
    found = plimsoll.fit(ours, x, y, memory=least, **given).history["loss"]
    expected = theirs.fit(x, y, **given).history["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for own, other in zip(ours.get_weights(), theirs.get_weights()):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-4)
