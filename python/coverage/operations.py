"""Cases of ``keras.ops`` in functional models: what people call on symbolic tensors."""

from __future__ import annotations

from typing import Any, Callable

import keras
import numpy as np
from keras import layers as L
from keras import ops

from case import SAMPLES, Case, numbers

CASES: list[Case] = []


def operation(label: str, f: Callable[[Any], Any]) -> None:
    def made() -> tuple[Any, Any, Any]:
        inputs = keras.Input((4, 6))
        outputs = f(L.Dense(6)(inputs))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.05), "mse")
        y = [numbers(9, SAMPLES, *out.shape[1:]) for out in model.outputs]
        return model, numbers(1, SAMPLES, 4, 6), y[0] if len(y) == 1 else y

    CASES.append(Case("ops", label.split(" ")[0], label, made))


C = np.linspace(-1.0, 1.0, 6).astype(np.float32)
for label, f in {
    "x+1": lambda x: x + 1.0, "1-x": lambda x: 1.0 - x, "x/2": lambda x: x / 2.0, "x**2": lambda x: x**2, "-x": lambda x: -x, "abs": lambda x: abs(x),
    "x*constant": lambda x: x * C, "x@y": lambda x: x @ ops.transpose(x, (0, 2, 1)),
    "slice one": lambda x: x[:, 0], "slice range": lambda x: x[:, 1:3], "slice negative": lambda x: x[:, -1, :], "slice step": lambda x: x[:, ::2], "slice ellipsis": lambda x: x[..., 1:4],
    "slice new-axis": lambda x: x[:, None],
    "where": lambda x: ops.where(x > 0, x, 0.1 * x), "where constant": lambda x: ops.where(x > 0, x, 0.0), "split": lambda x: ops.split(x, 2, axis=-1), "split at": lambda x: ops.split(x, [1, 3], axis=1),
    "stack": lambda x: ops.stack([x, 2.0 * x], axis=1), "concatenate": lambda x: ops.concatenate([x, x], axis=1), "einsum": lambda x: ops.einsum("btc,bsc->bts", x, x),
    "take": lambda x: ops.take(x, np.array([0, 2]), axis=1), "take one": lambda x: ops.take(x, 1, axis=1), "take_along_axis": lambda x: ops.take_along_axis(x, ops.argsort(x, axis=1), axis=1),
    "argmax": lambda x: x * ops.cast(ops.expand_dims(ops.argmax(x, axis=-1), -1), "float32"), "argmin": lambda x: x * ops.cast(ops.expand_dims(ops.argmin(x, axis=-1), -1), "float32"),
    "pad": lambda x: ops.pad(x, ((0, 0), (1, 2), (0, 0))), "pad value": lambda x: ops.pad(x, ((0, 0), (1, 2), (0, 0)), constant_values=2.0), "pad reflect": lambda x: ops.pad(x, ((0, 0), (1, 2), (0, 0)), mode="reflect"),
    "tile": lambda x: ops.tile(x, (1, 2, 3)), "repeat": lambda x: ops.repeat(x, 2, axis=1), "cumsum": lambda x: ops.cumsum(x, axis=1), "cumprod": lambda x: ops.cumprod(x, axis=1), "flip": lambda x: ops.flip(x, axis=1), "roll": lambda x: ops.roll(x, 1, axis=1),
    "sort": lambda x: ops.sort(x, axis=-1), "top_k": lambda x: ops.top_k(x, 3)[0], "one_hot": lambda x: x * ops.sum(ops.one_hot(ops.argmax(x, axis=-1), 6)), "broadcast_to": lambda x: ops.broadcast_to(x[:, :1], (SAMPLES // 5, 4, 6)),
    "mean": lambda x: ops.mean(x, axis=1), "mean keepdims": lambda x: ops.mean(x, axis=(1, 2), keepdims=True), "var": lambda x: ops.var(x, axis=1), "std": lambda x: ops.std(x, axis=1), "sum": lambda x: ops.sum(x, axis=-1), "max": lambda x: ops.max(x, axis=1), "min": lambda x: ops.min(x, axis=1), "prod": lambda x: ops.prod(x, axis=-1),
    "logsumexp": lambda x: ops.logsumexp(x, axis=-1), "norm": lambda x: ops.norm(x, axis=-1), "normalize": lambda x: ops.normalize(x, axis=-1), "moments": lambda x: list(ops.moments(x, axes=[1])), "median": lambda x: ops.median(x, axis=1),
    "maximum": lambda x: ops.maximum(x, 0.1), "minimum": lambda x: ops.minimum(x, 0.1), "clip": lambda x: ops.clip(x, -0.5, 0.5), "power": lambda x: ops.power(ops.abs(x) + 0.1, 1.5), "exp": lambda x: ops.exp(x), "log": lambda x: ops.log(ops.abs(x) + 0.1),
    "log1p": lambda x: ops.log1p(ops.abs(x)), "expm1": lambda x: ops.expm1(x), "sqrt": lambda x: ops.sqrt(ops.abs(x) + 0.1), "rsqrt": lambda x: ops.rsqrt(ops.abs(x) + 0.1), "square": lambda x: ops.square(x), "reciprocal": lambda x: ops.reciprocal(x + 9.0),
    "sin": lambda x: ops.sin(x), "cos": lambda x: ops.cos(x), "tan": lambda x: ops.tan(x * 0.3), "sinh": lambda x: ops.sinh(x), "cosh": lambda x: ops.cosh(x), "arctan": lambda x: ops.arctan(x), "erf": lambda x: ops.erf(x), "sign": lambda x: x * ops.sign(x), "floor": lambda x: x - ops.floor(x), "ceil": lambda x: x - ops.ceil(x), "round": lambda x: x - ops.round(x),
    "relu": lambda x: ops.relu(x), "sigmoid": lambda x: ops.sigmoid(x), "softmax": lambda x: ops.softmax(x), "gelu": lambda x: ops.gelu(x), "tanh": lambda x: ops.tanh(x), "silu": lambda x: ops.silu(x), "elu": lambda x: ops.elu(x), "leaky_relu": lambda x: ops.leaky_relu(x), "softplus": lambda x: ops.softplus(x), "log_softmax": lambda x: ops.log_softmax(x),
    "reshape": lambda x: ops.reshape(x, (-1, 24)), "transpose": lambda x: ops.transpose(x, (0, 2, 1)), "swapaxes": lambda x: ops.swapaxes(x, 1, 2), "moveaxis": lambda x: ops.moveaxis(x, 1, 2), "expand_dims": lambda x: ops.expand_dims(x, 1), "squeeze": lambda x: ops.squeeze(ops.expand_dims(x, 1), 1), "ravel": lambda x: ops.reshape(x, (-1,)) if False else ops.reshape(x, (-1, 4, 6)),
    "matmul": lambda x: ops.matmul(x, ops.transpose(x, (0, 2, 1))), "dot": lambda x: ops.dot(x, np.eye(6, dtype=np.float32)), "tensordot": lambda x: ops.tensordot(x, np.eye(6, dtype=np.float32), axes=1), "cast": lambda x: ops.cast(ops.cast(x > 0, "float32"), "float32") * x, "stop_gradient": lambda x: x * ops.stop_gradient(x),
    "zeros_like": lambda x: x + ops.zeros_like(x), "ones_like": lambda x: x + ops.ones_like(x), "logical_and": lambda x: ops.where(ops.logical_and(x > 0, x < 1), x, -x), "logical_not": lambda x: ops.where(ops.logical_not(x > 0), x, -x), "isnan": lambda x: ops.where(ops.isnan(x), 0.0, x), "tril": lambda x: ops.tril(x), "triu": lambda x: ops.triu(x), "mod": lambda x: x % 2.0, "floor_divide": lambda x: x + ops.stop_gradient(x) // 2.0, "arange": lambda x: x + ops.arange(6, dtype="float32"), "relu6": lambda x: ops.relu6(x), "diff": lambda x: ops.diff(x, axis=1), "unstack": lambda x: ops.unstack(x, axis=1), "linspace": lambda x: x * ops.linspace(0.0, 1.0, 6), "average_pool": lambda x: ops.average_pool(x, 2), "max_pool": lambda x: ops.max_pool(x, 2), "conv": lambda x: ops.conv(x, np.ones((2, 6, 3), np.float32)),
}.items():
    operation(label, f)
for label, settings in {"extract_patches": {"size": 2}, "extract_patches strides": {"size": 3, "strides": 2, "padding": "same"}}.items():
    operation(label, lambda x, settings=settings: ops.image.extract_patches(ops.reshape(x, (-1, 4, 6, 1)), **settings))
