"""Writes optimizers.json and schedules.json beside itself.

usage: python make.py        (needs torch, numpy and keras)

optimizers.json: losses and last parameters of 20 steps of least squares with every optimizer, in PyTorch (Lion and Ftrl: in Keras). Data and
start come from the generator of ../training/make.py. schedules.json: learning rates of PyTorch's schedulers.
"""
import json, os, sys

os.environ["KERAS_BACKEND"] = "torch"
import keras, torch

here, sys.dont_write_bytecode = os.path.dirname(os.path.abspath(__file__)), True
sys.path.append(os.path.dirname(here))
from training.make import uniform

STEPS = 20
x, y = uniform(1000, (8, 6), 1.7), uniform(1001, (8, 4), 1.7)


class Keras:
    """An optimizer of Keras under PyTorch's interface."""

    def __init__(self, params, optimizer):
        self.params, self.optimizer = params, optimizer
        self.variables = [keras.Variable(p.detach().clone()) for p in params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        self.optimizer.apply([p.grad for p in self.params], self.variables)
        for p, v in zip(self.params, self.variables):
            p.data.copy_(v.value)


def spared(params):
    """AdamW that leaves biases alone."""
    groups = [{"params": params[:1]}, {"params": params[1:], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.05, weight_decay=0.2)


O, K = torch.optim, keras.optimizers
CASES = {
    "sgd": lambda p: O.SGD(p, lr=0.1),
    "sgd_l2": lambda p: O.SGD(p, lr=0.1, weight_decay=0.1),
    "momentum": lambda p: O.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: O.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: O.Adam(p, lr=0.05),
    "adam_l2": lambda p: O.Adam(p, lr=0.05, weight_decay=0.1),
    "adamw": lambda p: O.AdamW(p, lr=0.05, weight_decay=0.2),
    "adamw_spared": spared,
    "rmsprop": lambda p: O.RMSprop(p, lr=0.01),
    "rmsprop_all": lambda p: O.RMSprop(p, lr=0.01, alpha=0.9, momentum=0.5, centered=True, weight_decay=0.01),
    "adagrad": lambda p: O.Adagrad(p, lr=0.2, lr_decay=0.05, weight_decay=0.01, initial_accumulator_value=0.1),
    "adafactor": lambda p: O.Adafactor(p, lr=0.05),
    "adafactor_all": lambda p: O.Adafactor(p, lr=0.05, d=1.5, weight_decay=0.1),
    "lion": lambda p: Keras(p, K.Lion(0.02)),
    "lion_decay": lambda p: Keras(p, K.Lion(0.02, weight_decay=0.3)),
    "ftrl": lambda p: Keras(p, K.Ftrl(0.3)),
    "ftrl_all": lambda p: Keras(p, K.Ftrl(
        0.3, learning_rate_power=-0.7, initial_accumulator_value=0.3, l1_regularization_strength=0.05,
        l2_regularization_strength=0.02, l2_shrinkage_regularization_strength=0.01, beta=0.2)),
    "clip_value": lambda p: O.SGD(p, lr=0.1),
    "clip_norm": lambda p: O.SGD(p, lr=0.1),
}


def train(name, make):
    w, b = uniform(1, (6, 4), 0.5).requires_grad_(), uniform(2, (4,), 0.5).requires_grad_()
    optimizer, losses = make([w, b]), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(x @ w + b, y)
        loss.backward()
        if name == "clip_value":
            torch.nn.utils.clip_grad_value_([w, b], 0.1)
        if name == "clip_norm":
            torch.nn.utils.clip_grad_norm_([w, b], 0.5)
        optimizer.step()
        losses.append(loss.item())
    return [losses, w.reshape(-1).tolist(), b.tolist()]


def rates(make, steps, observe=None):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    schedule, found = make(optimizer), []
    for i in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step(*([observe[i]] if observe else []))
    return found


S = torch.optim.lr_scheduler
LOSSES = [1.0, 0.9, 0.95, 0.9, 0.91, 0.8, 0.8, 0.79999, 0.8, 0.81, 0.9, 0.9, 0.9, 0.7, 0.7, 0.7, 0.7, 0.7]
SCHEDULES = {
    "step": rates(lambda o: S.StepLR(o, 3, 0.5), 12),
    "exponential": rates(lambda o: S.ExponentialLR(o, 0.9), 12),
    "cosine": rates(lambda o: S.CosineAnnealingLR(o, 10, eta_min=0.2), 11),
    "polynomial": rates(lambda o: S.PolynomialLR(o, 10, 2.0), 14),
    "one_cycle": rates(lambda o: S.OneCycleLR(o, 2.0, total_steps=20), 19),
    "plateau": rates(lambda o: S.ReduceLROnPlateau(o, factor=0.1, patience=2), len(LOSSES), LOSSES),
}


def write(name, result):
    with open(os.path.join(here, name), "w") as f:
        f.write("{\n" + ",\n".join(f' "{k}": {json.dumps(v)}' for k, v in result.items()) + "\n}\n")


if __name__ == "__main__":
    write("optimizers.json", {name: train(name, make) for name, make in CASES.items()})
    write("schedules.json", {**SCHEDULES, "observed": LOSSES})
