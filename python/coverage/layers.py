"""Cases of ``keras.layers`` but for those of images."""

from __future__ import annotations

from typing import Any, Callable

import keras
import numpy as np
from keras import layers as L

from case import SAMPLES, Case, classes, numbers

CASES: list[Case] = []


def compiled(model: Any, x: Any, y: Any = None, loss: Any = "mse") -> tuple[Any, Any, Any]:
    """The model with a plain optimizer, and labels of its outputs' shapes where none are given."""
    model.compile(keras.optimizers.SGD(0.05), loss)
    if y is None:
        y = [numbers(99 + i, SAMPLES, *out.shape[1:]) for i, out in enumerate(model.outputs)]
        y = y[0] if len(y) == 1 else y
    return model, x, y


def case(name: str, label: str, make: Callable[[], tuple[Any, Any, Any]], untrained: str = "", backend: str = "torch") -> None:
    CASES.append(Case("layers", name, label, make, untrained, backend=backend))


def layer(
    name: str, label: str, make: Callable[[], Any], *shape: int, front: bool = True, data: Any = None, untrained: str = "",
    dtype: str = "float32", back: bool = False, backend: str = "torch",
) -> None:
    """A layer behind a dense one (so that there is something to train before it), and before one where ``back`` says so."""

    def made() -> tuple[Any, Any, Any]:
        inputs = keras.Input(shape, dtype=dtype)
        x = L.Dense(shape[-1])(inputs) if front and dtype == "float32" else inputs
        x = make()(x)
        if back or dtype != "float32":
            x = L.Dense(3)(x)
        values = numbers(1, SAMPLES, *shape) if data is None else data
        return compiled(keras.Model(inputs, x), values)

    case(name, label, made, untrained, backend)


def settings(name: str, shape: tuple[int, ...], *configs: dict[str, Any], **how: Any) -> None:
    """A class in several configurations."""
    for config in configs:
        label = ", ".join(f"{key}={type(value).__name__ if hasattr(value, 'get_config') else value}" for key, value in config.items()) or "as it is"
        label = label if len(label) < 90 else label[:89] + "…"
        layer(name, label, lambda config=config: getattr(L, name)(**fresh(config)), *shape, **how)


def fresh(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with layers made anew."""

    def anew(value: Any) -> Any:
        if isinstance(value, L.Layer):
            return type(value).from_config(value.get_config())
        return [anew(one) for one in value] if isinstance(value, list) else value

    return {key: anew(value) for key, value in config.items()}


REG, CON = keras.regularizers, keras.constraints
settings("Dense", (6,), {"units": 4}, {"units": 4, "use_bias": False}, {"units": 4, "activation": "relu"}, {"units": 4, "activation": "softmax"},
         {"units": 4, "kernel_regularizer": REG.L1L2(0.01, 0.02)}, {"units": 4, "kernel_regularizer": REG.OrthogonalRegularizer(0.01)},
         {"units": 4, "activity_regularizer": REG.L2(0.01)}, {"units": 4, "activity_regularizer": REG.L1(0.01)},
         {"units": 4, "kernel_constraint": CON.MaxNorm(0.5)}, {"units": 4, "kernel_constraint": CON.NonNeg(), "bias_constraint": CON.NonNeg()},
         {"units": 4, "kernel_constraint": CON.UnitNorm()}, {"units": 4, "kernel_constraint": CON.MinMaxNorm(0.2, 0.5, 0.5)},
         {"units": 4, "activation": L.LeakyReLU(0.1)}, {"units": 4, "activation": L.PReLU()}, {"units": 4, "lora_rank": 2})
layer("Dense", "on sequences", lambda: L.Dense(4), 3, 6)
settings("EinsumDense", (3, 6), {"equation": "abc,cd->abd", "output_shape": (3, 4), "bias_axes": "d"},
         {"equation": "...x,xy->...y", "output_shape": 4, "activation": "tanh"}, {"equation": "abc,cde->abde", "output_shape": (3, 2, 4), "bias_axes": "de"},
         {"equation": "abc,bcd->abd", "output_shape": (3, 4)})
settings("EinsumDense", (3, 6), {"equation": "abc,cde->abde", "output_shape": (3, 2, 4), "bias_axes": "de", "lora_rank": 2}, {"equation": "abc,cd->abd", "output_shape": (3, 4), "activation": L.PReLU()})
layer("Embedding", "lora_rank=2", lambda: L.Embedding(10, 4, lora_rank=2), 5, dtype="int32", data=classes(1, 10, SAMPLES, 5))
layer("Embedding", "as it is", lambda: L.Embedding(10, 4), 5, dtype="int32", data=classes(1, 10, SAMPLES, 5))
layer("Embedding", "regularized", lambda: L.Embedding(10, 4, embeddings_regularizer=REG.L2(0.01)), 5, dtype="int32", data=classes(1, 10, SAMPLES, 5))
layer("Embedding", "constrained", lambda: L.Embedding(10, 4, embeddings_constraint=CON.UnitNorm()), 5, dtype="int32", data=classes(1, 10, SAMPLES, 5))


def masked(then: Callable[[Any], Any], dense: bool = True) -> Callable[[], tuple[Any, Any, Any]]:
    """Words with a mask, what is made of them, and a number out."""

    def make() -> tuple[Any, Any, Any]:
        words = keras.Input((5,), dtype="int32")
        x = then(L.Embedding(10, 4, mask_zero=True)(words))
        data = classes(1, 10, SAMPLES, 5)
        data[:, 3:] *= classes(2, 2, SAMPLES, 1)
        return compiled(keras.Model(words, L.Dense(2)(x) if dense else x), data)

    return make


case("Embedding", "mask into LSTM", masked(lambda x: L.LSTM(3)(x)))
case("Embedding", "mask to the loss", masked(lambda x: x))
case("Masking", "into GRU", lambda: compiled(keras.Sequential([keras.Input((4, 3)), L.Masking(0.0), L.GRU(3)]), numbers(1, SAMPLES, 4, 3) * (classes(2, 2, SAMPLES, 4, 1))))
case("Masking", "to the loss", lambda: compiled(keras.Sequential([keras.Input((4, 3)), L.Masking(0.0), L.Dense(2)]), numbers(1, SAMPLES, 4, 3) * (classes(2, 2, SAMPLES, 4, 1))))
settings("ReversibleEmbedding", (5,), {"input_dim": 10, "output_dim": 4}, dtype="int32", data=classes(1, 10, SAMPLES, 5))


def both_ways(**config: Any) -> tuple[Any, Any, Any]:
    words = keras.Input((5,), dtype="int32")
    own = L.ReversibleEmbedding(10, 4, **config)
    return compiled(keras.Model(words, own(L.Dense(4, activation="tanh")(own(words)), reverse=True)), classes(1, 10, SAMPLES, 5))


case("ReversibleEmbedding", "both ways", lambda: both_ways())
case("ReversibleEmbedding", "both ways, tie_weights=False, logit_soft_cap", lambda: both_ways(tie_weights=False, logit_soft_cap=2.0))

settings("Activation", (6,), {"activation": "relu"}, {"activation": "softmax"}, {"activation": "gelu"})
settings("ReLU", (6,), {}, {"max_value": 1.0}, {"negative_slope": 0.1}, {"threshold": 0.3}, {"max_value": 1.0, "negative_slope": 0.1, "threshold": 0.2})
settings("LeakyReLU", (6,), {}, {"negative_slope": 0.1})
settings("ELU", (6,), {}, {"alpha": 0.5})
settings("PReLU", (4, 6), {}, {"shared_axes": [1]}, {"alpha_initializer": "ones", "alpha_regularizer": REG.L2(0.01)}, {"alpha_constraint": CON.NonNeg()})
settings("Softmax", (4, 6), {}, {"axis": 1}, {"axis": [1, 2]})
settings("ActivityRegularization", (6,), {"l1": 0.01}, {"l2": 0.01})
settings("Identity", (6,), {})
case("InputLayer", "as it is", lambda: compiled(keras.Sequential([L.InputLayer((6,)), L.Dense(2)]), numbers(1, SAMPLES, 6)))
settings("Flatten", (2, 3, 4), {}, {"data_format": "channels_first"})
settings("Reshape", (2, 6), {"target_shape": (3, 4)}, {"target_shape": (-1, 2)})
settings("Permute", (2, 3, 4), {"dims": (2, 1, 3)})
settings("RepeatVector", (6,), {"n": 3})

BN = [{}, {"axis": 1}, {"momentum": 0.5, "epsilon": 0.01}, {"scale": False}, {"center": False}, {"gamma_regularizer": REG.L2(0.01)}, {"beta_constraint": CON.NonNeg()}, {"renorm": True},
      {"renorm": True, "scale": False, "renorm_clipping": {"rmax": 1.2, "rmin": 0.9, "dmax": 0.1}, "renorm_momentum": 0.8}]
settings("BatchNormalization", (4, 6), *BN)
case("BatchNormalization", "mask", masked(lambda x: L.LSTM(3)(L.BatchNormalization()(x))))
settings("LayerNormalization", (4, 6), {"axis": 1}, backend="tensorflow")
settings("LayerNormalization", (4, 6), {}, {"axis": [1, 2]}, {"scale": False, "center": False})
if "rms_scaling" in L.LayerNormalization.__init__.__code__.co_varnames:
    settings("LayerNormalization", (4, 6), {"rms_scaling": True})
case("BatchNormalization", "renorm, mask", masked(lambda x: L.LSTM(3)(L.BatchNormalization(renorm=True)(x))))
case("LayerNormalization", "mask", masked(lambda x: L.LSTM(3)(L.LayerNormalization()(x))))
settings("GroupNormalization", (4, 5, 6), {"groups": 3}, {"groups": -1}, {"groups": 1}, {"groups": 2, "axis": 1}, {"groups": 2, "scale": False})
settings("RMSNormalization", (4, 6), {}, {"epsilon": 1e-3})
settings("UnitNormalization", (4, 6), {}, {"axis": 1}, {"axis": [1, 2]})
settings("SpectralNormalization", (6,), {"layer": L.Dense(4)}, {"layer": L.Dense(4), "power_iterations": 2})
settings("SpectralNormalization", (6, 6, 3), {"layer": L.Conv2D(4, 3)})

DRAWN = "trained: the same distribution"
for name in ("Dropout", "AlphaDropout", "GaussianDropout"):
    settings(name, (4, 6), {"rate": 0.3}, {"rate": 0.3, "seed": 3}, untrained=DRAWN)
    settings(name, (4, 6), {"rate": 0.0})
settings("Dropout", (4, 6), {"rate": 0.3, "noise_shape": (None, 1, 6)}, untrained=DRAWN)
settings("GaussianNoise", (4, 6), {"stddev": 0.3}, untrained=DRAWN)
settings("SpatialDropout1D", (4, 6), {"rate": 0.3}, untrained=DRAWN)
settings("SpatialDropout2D", (3, 4, 6), {"rate": 0.3}, {"rate": 0.3, "data_format": "channels_first"}, untrained=DRAWN)
settings("SpatialDropout3D", (2, 3, 4, 6), {"rate": 0.3}, {"rate": 0.3, "data_format": "channels_first"}, untrained=DRAWN)


def merged(name: str, label: str, make: Callable[[], Any], *shapes: tuple[int, ...]) -> None:
    def made() -> tuple[Any, Any, Any]:
        inputs = [keras.Input(shape) for shape in shapes]
        x = make()([L.Dense(shape[-1])(own) for own, shape in zip(inputs, shapes)])
        return compiled(keras.Model(inputs, x), [numbers(i, SAMPLES, *shape) for i, shape in enumerate(shapes)])

    case(name, label, made)


for name in ("Add", "Subtract", "Multiply", "Maximum", "Minimum", "Average"):
    merged(name, "two", lambda name=name: getattr(L, name)(), (4, 6), (4, 6))
    merged(name, "of two shapes", lambda name=name: getattr(L, name)(), (4, 6), (1, 6))
    merged(name, "of two ranks", lambda name=name: getattr(L, name)(), (4, 6), (6,))
    if name != "Subtract":
        merged(name, "three", lambda name=name: getattr(L, name)(), (4, 6), (4, 6), (4, 6))
    case(name, "masks", masked(lambda x, name=name: L.LSTM(3)(getattr(L, name)()([x, L.Dense(4)(x)]))))
merged("Concatenate", "last", lambda: L.Concatenate(), (4, 6), (4, 3))
merged("Concatenate", "axis=1", lambda: L.Concatenate(axis=1), (4, 6), (3, 6))
case("Concatenate", "masks", masked(lambda x: L.LSTM(3)(L.Concatenate()([x, L.Dense(4)(x)]))))
merged("Dot", "axes=1", lambda: L.Dot(1), (6,), (6,))
merged("Dot", "axes=(2, 1)", lambda: L.Dot((2, 1)), (4, 6), (6, 5))
merged("Dot", "normalized", lambda: L.Dot(1, normalize=True), (6,), (6,))
merged("Attention", "two", lambda: L.Attention(), (4, 6), (5, 6))
merged("Attention", "three", lambda: L.Attention(), (4, 6), (5, 6), (5, 6))
merged("Attention", "scaled", lambda: L.Attention(use_scale=True), (4, 6), (5, 6))
merged("Attention", "score_mode=concat", lambda: L.Attention(score_mode="concat"), (4, 6), (5, 6))
merged("Attention", "score_mode=concat, scaled", lambda: L.Attention(use_scale=True, score_mode="concat"), (4, 6), (5, 6))
case("Attention", "masks", masked(lambda x: L.GlobalAveragePooling1D()(L.Attention()([x, x]))))
case("Attention", "causal, with scores", lambda: (lambda i: (lambda d: compiled(keras.Model(i, list(L.Attention()([d, d], use_causal_mask=True, return_attention_scores=True))), numbers(1, SAMPLES, 4, 6)))(L.Dense(6)(i)))(keras.Input((4, 6))))
merged("AdditiveAttention", "two", lambda: L.AdditiveAttention(), (4, 6), (5, 6))
merged("AdditiveAttention", "three", lambda: L.AdditiveAttention(), (4, 6), (5, 6), (5, 6))
merged("AdditiveAttention", "use_scale=False", lambda: L.AdditiveAttention(use_scale=False), (4, 6), (5, 6))
case("AdditiveAttention", "masks", masked(lambda x: L.GlobalAveragePooling1D()(L.AdditiveAttention()([x, x]))))


def heads(name: str, label: str, make: Callable[[], Any], call: Callable[[Any, Any], Any]) -> None:
    def made() -> tuple[Any, Any, Any]:
        inputs = keras.Input((4, 6))
        y = call(make(), L.Dense(6)(inputs))
        return compiled(keras.Model(inputs, y), numbers(1, SAMPLES, 4, 6))

    case(name, label, made)


heads("MultiHeadAttention", "self", lambda: L.MultiHeadAttention(2, 3), lambda m, x: m(x, x))
heads("MultiHeadAttention", "causal", lambda: L.MultiHeadAttention(2, 3, value_dim=4), lambda m, x: m(x, x, use_causal_mask=True))
heads("MultiHeadAttention", "use_bias=False, output_shape", lambda: L.MultiHeadAttention(2, 3, use_bias=False, output_shape=5), lambda m, x: m(x, x))
heads("MultiHeadAttention", "with scores", lambda: L.MultiHeadAttention(2, 3), lambda m, x: list(m(x, x, return_attention_scores=True)))
heads("MultiHeadAttention", "attention_axes", lambda: L.MultiHeadAttention(2, 3, attention_axes=(1,)), lambda m, x: m(x, x))
case("MultiHeadAttention", "mask", masked(lambda x: L.GlobalAveragePooling1D()(L.MultiHeadAttention(2, 3)(x, x))))
case("MultiHeadAttention", "attention_mask", lambda: (lambda i, m: (lambda d: compiled(keras.Model([i, m], L.MultiHeadAttention(2, 3)(d, d, attention_mask=m)), [numbers(1, SAMPLES, 4, 6), classes(2, 2, SAMPLES, 4, 4).astype(bool) | np.eye(4, dtype=bool)]))(L.Dense(6)(i)))(keras.Input((4, 6)), keras.Input((4, 4), dtype="bool")))
heads("GroupQueryAttention", "self", lambda: L.GroupQueryAttention(3, 4, 2), lambda m, x: m(x, x))
heads("GroupQueryAttention", "causal", lambda: L.GroupQueryAttention(3, 4, 2), lambda m, x: m(x, x, use_causal_mask=True))
heads("GroupQueryAttention", "with scores", lambda: L.GroupQueryAttention(3, 4, 2), lambda m, x: list(m(x, x, return_attention_scores=True)))
case("Embedding", "mask through operators into LSTM", masked(lambda x: L.LSTM(3)(x * 2.0 + x)))
