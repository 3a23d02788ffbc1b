"""Cases of ``keras.optimizers`` and their schedules."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers as L
from keras import optimizers
from keras.optimizers import schedules

from case import SAMPLES, Case, classes, numbers

CASES: list[Case] = []


def trained(optimizer: Any) -> tuple[Any, Any, Any]:
    model = keras.Sequential([keras.Input((5,)), L.Dense(6, activation="tanh"), L.Dense(4, activation="softmax")])
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model, numbers(1, SAMPLES, 5), classes(2, 4, SAMPLES)


def optimizer(name: str, *configs: dict[str, Any]) -> None:
    for config in configs:
        label = ", ".join(f"{key}={value}" for key, value in config.items()) or "as it is"
        CASES.append(Case("optimizers", name, label, lambda config=config: trained(getattr(optimizers, name)(**config))))


COMMON: list[dict[str, Any]] = [
    {}, {"learning_rate": 0.01}, {"weight_decay": 0.01}, {"clipnorm": 0.1}, {"clipvalue": 0.01}, {"global_clipnorm": 0.1},
    {"use_ema": True, "ema_momentum": 0.9}, {"use_ema": True, "ema_overwrite_frequency": 2}, {"gradient_accumulation_steps": 2}, {"loss_scale_factor": 8.0},
]
optimizer("SGD", *COMMON, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True})
optimizer("Adam", *COMMON, {"beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-3}, {"amsgrad": True})
for name in ("AdamW", "Adamax", "Nadam", "Adagrad", "Adadelta", "Ftrl", "Lion", "RMSprop"):
    optimizer(name, {}, {"learning_rate": 0.01}, {"clipnorm": 0.1}, {"weight_decay": 0.01}, {"gradient_accumulation_steps": 2})
optimizer("RMSprop", {"momentum": 0.5}, {"centered": True}, {"rho": 0.5, "momentum": 0.5, "centered": True})
optimizer("Adagrad", {"initial_accumulator_value": 0.5})
optimizer("Ftrl", {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.01, "beta": 0.1})
optimizer("AdamW", {"amsgrad": True})
optimizer("Adafactor", {}, {"learning_rate": 0.01}, {"relative_step": False}, {"clip_threshold": 0.5, "weight_decay": 0.01})
optimizer("Lamb", {}, {"learning_rate": 0.01, "weight_decay": 0.01})
optimizer("Muon", {}, {"learning_rate": 0.01, "nesterov": False}, {"weight_decay": 0.01, "ns_steps": 3})
optimizer("ScheduleFreeAdamW", {}, {"learning_rate": 0.01, "warmup_steps": 3}, {"weight_decay": 0.01, "beta_1": 0.8})
for label, make in (
    ("around SGD", lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=1024.0)),
    ("around Adam, dynamic_growth_steps=3", lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01), dynamic_growth_steps=3)),
):
    CASES.append(Case("optimizers", "LossScaleOptimizer", label, lambda make=make: trained(make())))
CASES.append(Case("optimizers", "MultiOptimizer", "as it is", lambda: _several()))


def _several() -> tuple[Any, Any, Any]:
    return trained(optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD(0.1), {".*kernel": optimizers.Adam(0.01)})))


def schedule(name: str, *configs: dict[str, Any]) -> None:
    for config in configs:
        label = ", ".join(f"{key}={value}" for key, value in config.items())
        CASES.append(Case("optimizers.schedules", name, label, lambda config=config: trained(optimizers.SGD(getattr(schedules, name)(**config)))))
        CASES.append(Case("optimizers.schedules", name, f"Adam, {label}", lambda config=config: trained(optimizers.Adam(getattr(schedules, name)(**config)))))


FROM = {"initial_learning_rate": 0.1}
schedule("ExponentialDecay", {**FROM, "decay_steps": 2, "decay_rate": 0.5}, {**FROM, "decay_steps": 2, "decay_rate": 0.5, "staircase": True})
schedule("InverseTimeDecay", {**FROM, "decay_steps": 2, "decay_rate": 0.5}, {**FROM, "decay_steps": 2, "decay_rate": 0.5, "staircase": True})
schedule("PiecewiseConstantDecay", {"boundaries": [1, 3], "values": [0.1, 0.05, 0.01]})
schedule("PolynomialDecay", {**FROM, "decay_steps": 3}, {**FROM, "decay_steps": 3, "power": 2.0, "cycle": True})
schedule("CosineDecay", {**FROM, "decay_steps": 4}, {"initial_learning_rate": 0.0, "decay_steps": 4, "warmup_target": 0.1, "warmup_steps": 2}, {**FROM, "decay_steps": 4, "alpha": 0.3})
schedule("CosineDecayRestarts", {**FROM, "first_decay_steps": 2}, {**FROM, "first_decay_steps": 2, "t_mul": 1.0, "m_mul": 0.5, "alpha": 0.1})
