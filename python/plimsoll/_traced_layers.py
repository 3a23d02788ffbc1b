"""Layers that stand for what code of the user's own reads, draws and adds once it was followed: Keras has none such, and the engine knows them by name."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np

from plimsoll.errors import PlimsollError

#: All functions of keras.random, which are asked for through the backend.
RANDOM = ("normal", "uniform", "randint", "dropout", "truncated_normal", "categorical", "shuffle", "gamma", "binomial", "beta")


@functools.cache
def classes() -> SimpleNamespace:
    """The classes by name; made when Keras is there."""
    import keras

    class PlimsollWeight(keras.layers.Layer):
        """A variable as a tensor."""

        def __init__(self, variable: Any, policy: Any, name: str) -> None:
            super().__init__(name=name, dtype=policy, trainable=variable.trainable, autocast=False)
            self.value = variable
            self.built = True

        def compute_output_spec(self, inputs: Any) -> Any:
            return keras.KerasTensor(tuple(self.value.shape), dtype=self.compute_dtype)

        def call(self, inputs: Any) -> Any:
            return self.value

        def get_config(self) -> dict[str, Any]:
            said = {"shape": [int(n) for n in self.value.shape], "kept": not self.value._trainable}
            for kind in ("regularizer", "constraint"):
                own = getattr(self.value, kind, None)
                said[f"value_{kind}"] = None if own is None else keras.saving.serialize_keras_object(own)
            return {**super().get_config(), **said}

    class PlimsollConstant(keras.layers.Layer):
        """A tensor whose value is known."""

        def __init__(self, name: str) -> None:
            super().__init__(name=name, autocast=False)
            self.built = True

        def compute_output_spec(self, inputs: Any, value: Any) -> Any:
            return keras.KerasTensor(tuple(value.shape), dtype=keras.backend.standardize_dtype(value.dtype))

        def call(self, inputs: Any, value: Any) -> Any:
            return value

    def seed_of(layer: Any) -> Any:
        # In training a run has its own seed; elsewhere the engine counts this one on. Whole numbers of this size are exact in any type.
        start = keras.initializers.Constant(int(np.random.randint(1 << 20)))
        return layer.add_weight(shape=(), initializer=start, dtype="float32", trainable=False, name="seed")

    class PlimsollSeed(keras.layers.Layer):
        """The tensor itself, in front of a layer that draws random numbers though nothing is trained."""

        def __init__(self, name: str) -> None:
            super().__init__(name=name, autocast=False)
            self.seed = seed_of(self)
            self.built = True

        def compute_output_spec(self, inputs: Any) -> Any:
            return keras.KerasTensor(tuple(inputs.shape), dtype=inputs.dtype)

    class PlimsollRandom(keras.layers.Layer):
        """Random numbers for every sample."""

        def __init__(self, name: str, kind: str, shape: tuple[int, ...], dtype: str) -> None:
            super().__init__(name=name, dtype=dtype, autocast=False)
            self.kind, self.shape, self.seed = kind, shape, seed_of(self)
            self.built = True

        def compute_output_spec(self, inputs: Any) -> Any:
            return keras.KerasTensor((inputs.shape[0], *self.shape), dtype=self.compute_dtype)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "kind": self.kind, "shape": list(self.shape)}

    class PlimsollEither(keras.layers.Layer):
        """The first tensor while the model trains, the second otherwise."""

        def __init__(self, name: str) -> None:
            super().__init__(name=name, autocast=False)
            self.built = True

        def compute_output_spec(self, trained: Any, used: Any) -> Any:
            if tuple(trained.shape) != tuple(used.shape):
                raise PlimsollError(f"an output has the shape {tuple(trained.shape)} while the model trains, and {tuple(used.shape)} otherwise")
            return keras.KerasTensor(tuple(used.shape), dtype=used.dtype)

    class PlimsollAdded(keras.layers.Layer):
        """The tensor itself, with others that are added to the loss."""

        def __init__(self, name: str) -> None:
            super().__init__(name=name, autocast=False)
            self.built = True

        def compute_output_spec(self, inputs: Any, losses: Any) -> Any:
            return keras.KerasTensor(tuple(inputs.shape), dtype=inputs.dtype)

    found = {}
    for kind in (PlimsollWeight, PlimsollConstant, PlimsollSeed, PlimsollRandom, PlimsollEither, PlimsollAdded):
        kind.__module__, kind.__qualname__ = "plimsoll", kind.__name__
        found[kind.__name__.removeprefix("Plimsoll")] = kind
    return SimpleNamespace(**found)


# What functions of keras.random compute, from numbers(kind, shape, dtype): normal with mean 0 and deviation 1, or uniform from 0 to 1.


def _floating(dtype: Any) -> str:
    import keras

    return keras.backend.standardize_dtype(dtype or keras.config.floatx())


def _is(value: Any, number: float) -> bool:
    return isinstance(value, (int, float)) and value == number


def _normal(numbers: Callable[..., Any], shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    drawn = numbers("normal", shape, _floating(dtype))
    return drawn if _is(stddev, 1.0) and _is(mean, 0.0) else drawn * stddev + mean


def _uniform(numbers: Callable[..., Any], shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
    drawn = numbers("uniform", shape, _floating(dtype))
    return drawn if _is(minval, 0.0) and _is(maxval, 1.0) else drawn * (maxval - minval) + minval


def _randint(numbers: Callable[..., Any], shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None) -> Any:
    import keras

    return keras.ops.cast(keras.ops.floor(_uniform(numbers, shape, minval, maxval)), dtype)


def _dropout(numbers: Callable[..., Any], inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
    import keras

    if rate == 0.0:
        return inputs
    shape = inputs.shape if noise_shape is None else [own if own is not None else n for own, n in zip(noise_shape, inputs.shape)]
    kept = keras.ops.cast(numbers("uniform", shape, "float32") >= rate, inputs.dtype)
    return inputs * kept / (1.0 - rate) if rate < 1.0 else keras.ops.zeros_like(inputs)
