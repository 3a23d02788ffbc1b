"""What a case of the coverage table is, and how one is tried: Plimsoll against Keras, from the same weights on the same data."""

from __future__ import annotations

import dataclasses
import re
import traceback
import warnings
from typing import Any, Callable

import numpy as np

BATCH, STEPS = 4, 5
SAMPLES = BATCH * STEPS
PREDICTED, TRAINED = 1e-5, 1e-4
# Passes over the data of which losses are compared where both sides draw random numbers.
PASSES = 12


@dataclasses.dataclass
class Case:
    """One configuration of a public class or function of Keras."""

    group: str
    name: str
    label: str
    # Makes a compiled model, inputs and labels; the same each time.
    make: Callable[[], tuple[Any, Any, Any]]
    # Why five steps are not compared: random numbers that are each side's own. Losses of several passes are, by what they spread.
    untrained: str = ""
    # Compares the metrics that training shows only, with this name in them.
    metric: str = ""
    # The backend that Keras computes it with: most are eager and quick in torch; strings and states want TensorFlow.
    backend: str = "torch"
    # After so many seconds it counts as hanging.
    longest: int = 300
    # Samples of a step.
    batch: int = BATCH


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Numbers of a normal distribution."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def shares(seed: int, *shape: int) -> np.ndarray:
    """Numbers between 0 and 1."""
    return np.random.default_rng(seed).uniform(0.05, 0.95, size=shape).astype(np.float32)


def classes(seed: int, most: int, *shape: int) -> np.ndarray:
    """Whole numbers below ``most``."""
    return np.random.default_rng(seed).integers(0, most, shape)


def one_hot(seed: int, width: int, *shape: int) -> np.ndarray:
    """Rows with a single one."""
    return np.eye(width, dtype=np.float32)[classes(seed, width, *shape)]


def _flat(outputs: Any) -> list[np.ndarray]:
    import keras

    return [np.asarray(keras.ops.convert_to_numpy(y)) for y in keras.tree.flatten(outputs)]


def _apart(found: Any, expected: Any, most: float) -> str:
    """What is different between two lists of arrays; nothing where all is close."""
    found, expected = _flat(found), _flat(expected)
    if len(found) != len(expected):
        return f"{len(found)} arrays in place of {len(expected)}"
    for i, (a, b) in enumerate(zip(found, expected)):
        if a.shape != b.shape:
            return f"shape {a.shape} in place of {b.shape}"
        a, b = a.astype(np.float64), b.astype(np.float64)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return f"array {i} is not finite in other places"
        finite = np.isfinite(b)
        far = np.abs(a - b)[finite] / np.maximum(1.0, np.abs(b[finite]))
        if far.size and far.max() > most:
            return f"array {i} is {far.max():.2g} apart"
    return ""


def _spread_apart(found: np.ndarray, expected: np.ndarray) -> str:
    """Whether two lists of losses have another mean or spread than random numbers of the same distribution would."""
    error = float(np.sqrt(found.var(ddof=1) / len(found) + expected.var(ddof=1) / len(expected)))
    apart = abs(found.mean() - expected.mean())
    if apart > 5 * error + TRAINED * max(1.0, abs(expected.mean())):
        return f"the mean loss is {found.mean():.5g} in place of {expected.mean():.5g}, with a standard error of {error:.2g}"
    spreads = sorted((found.std(ddof=1), expected.std(ddof=1)))
    if spreads[1] > 4 * spreads[0] and spreads[1] > TRAINED * abs(expected.mean()):
        return f"losses spread by {found.std(ddof=1):.2g} in place of {expected.std(ddof=1):.2g}"
    return ""


def _made(case: Case) -> tuple[Any, Any, Any]:
    import keras

    # Names are numbered anew, so that both models have the same.
    keras.utils.clear_session()
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(7)
    return case.make()


def _names(text: str, case: Case) -> bool:
    """Whether a refusal says what is refused: the class, a function of it, or a setting of the case."""
    if case.group == "applications":
        # What is refused is a layer of it, which the error names.
        return re.search(r"is an? \w+, which is not known here", text) is not None
    words = [case.name, *re.findall(r"[A-Za-z_]\w+", case.label)]
    return any(word.lower() in text.lower() for word in words)


def _failed(error: Exception, case: Case) -> tuple[str, str]:
    """What an error of Plimsoll's counts as: refused only where it is one that refuses, and says what."""
    import plimsoll

    text = " ".join(str(error).split())
    is_refusal = isinstance(error, plimsoll.PlimsollError) and not isinstance(error, (plimsoll.MemoryLimitError, plimsoll.OutOfMemoryError))
    if is_refusal and _names(text, case):
        return "refused", text
    return "ERROR", f"{type(error).__name__}: {text} {traceback.format_exc(limit=-2)}"


def attempt(case: Case) -> tuple[str, str]:
    """Tries a case, and says why it is what it is.

    ``equal``; ``refused``, by an error that says so and names what; ``not applicable``, where Keras itself does not run it; ``WRONG``;
    ``ERROR`` for any other exception.
    """
    import plimsoll

    try:
        theirs, x, y = _made(case)
        ours, _, _ = _made(case)
        ours.set_weights(theirs.get_weights())
        expected = theirs.predict(x, batch_size=case.batch, verbose=0)
        # Before anything of ours: what Keras cannot train is nobody's to refuse.
        if case.untrained:
            theirs.optimizer.learning_rate = ours.optimizer.learning_rate = 0.0
        passes = PASSES if case.untrained else 1
        known = theirs.fit(x, y, batch_size=case.batch, shuffle=False, verbose=0, epochs=passes).history
    except Exception as error:
        return "not applicable", f"Keras itself refuses: {type(error).__name__}: {' '.join(str(error).split())}"
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if not case.metric:
                apart = _apart(plimsoll.predict(ours, x, batch_size=case.batch), expected, PREDICTED)
                if apart:
                    return "WRONG", f"predict: {apart}"
            history = plimsoll.fit(ours, x, y, batch_size=case.batch, shuffle=False, verbose=0, epochs=passes).history
    except Exception as error:
        return _failed(error, case)
    if case.untrained:
        apart = _spread_apart(np.array(history["loss"]), np.array(known["loss"]))
        return ("WRONG", apart) if apart else ("equal", case.untrained)
    missing = [name for name in known if name not in history]
    if missing:
        why = [str(w.message) for w in told if "metric" in str(w.message)]
        return ("refused", " ".join(why[0].split())) if why else ("WRONG", f"{', '.join(missing)} missing in the history")
    extra = [name for name in history if name not in known]
    if extra:
        return "WRONG", f"{', '.join(extra)} in the history"
    for name, value in known.items():
        apart = _apart(np.array(history[name]), np.array(value), TRAINED)
        if apart:
            return "WRONG", f"{name}: {history[name]} in place of {value}"
    apart = _apart(ours.get_weights(), theirs.get_weights(), TRAINED)
    if apart:
        return "WRONG", f"weights after {STEPS} steps: {apart}"
    apart = _apart([v for v in ours.optimizer.variables], [v for v in theirs.optimizer.variables], TRAINED)
    return ("WRONG", f"the optimizer's state after {STEPS} steps: {apart}") if apart else ("equal", "")
