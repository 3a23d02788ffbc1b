"""Modules of PyTorch trained by the engine: losses and state of eager PyTorch, step by step, and back again."""

from __future__ import annotations

import copy

import pytest

import plimsoll
from torch_modules import ready, tied

pytestmark = pytest.mark.torch
STEPS = 20


def _mlp(torch):
    nn = torch.nn
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    return model, nn.functional.cross_entropy, [(torch.randn(16, 8), torch.randint(4, (16,))) for _ in range(4)]


def _convolutional(torch):
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, groups=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )
    return model, nn.CrossEntropyLoss(label_smoothing=0.1), [(torch.randn(8, 3, 12, 12), torch.randint(5, (8,))) for _ in range(4)]


def _tied(torch):
    batch = lambda: {"tokens": torch.randint(30, (4, 10)), "labels": torch.randint(30, (4, 10))}
    return tied(torch, 30, 16), None, [batch() for _ in range(4)]


def _eager(torch, model, loss_fn, optimizer, batches, steps, after=lambda: None):
    from plimsoll.torch._planned import loss_of

    model.train()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, loss_fn, batches[step % len(batches)])
        loss.backward()
        optimizer.step()
        after()
        losses.append(loss.item())
    return losses


def _same_state(torch, ours, theirs, tolerance=2e-4):
    for name, wanted in theirs.state_dict().items():
        found = ours.state_dict()[name]
        assert found.dtype == wanted.dtype, name
        assert torch.allclose(found.double(), wanted.double(), rtol=tolerance, atol=tolerance), (name, (found - wanted).abs().max())


def _same_optimizer(torch, ours, theirs, tolerance=1e-3):
    found, wanted = ours.state_dict(), theirs.state_dict()
    assert found["state"].keys() == wanted["state"].keys()
    for number, state in wanted["state"].items():
        mine = {key: value for key, value in found["state"][number].items() if value is not None}
        assert mine.keys() == {key for key, value in state.items() if value is not None}, number
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                assert value.shape == mine[key].shape, (number, key)
                assert torch.allclose(mine[key].double(), value.double(), rtol=tolerance, atol=tolerance * float(value.abs().max()) + 1e-7), (number, key)


def _same(torch, trainer, ours, theirs):
    """What the engine trained, brought back, against a module and an optimizer that PyTorch trained."""
    trainer.sync()
    _same_state(torch, ours[0], theirs[0])
    _same_optimizer(torch, ours[1], theirs[1])


@pytest.mark.parametrize("make", [_mlp, _convolutional, _tied])
def test_twenty_steps_are_those_of_eager_and_go_on_there(make):
    torch = ready()
    from plimsoll.torch import Trainer

    model, loss_fn, batches = make(torch)
    other = copy.deepcopy(model)
    # Some gradients are zero but for rounding (of keys' biases): a larger eps keeps Adam from making steps of that.
    own, their = (torch.optim.AdamW(m.parameters(), 3e-3, weight_decay=0.05, eps=1e-5) for m in (model, other))
    trainer = Trainer(model, loss_fn, own, memory="300MiB")
    plan = trainer.plan(batches[0])
    assert plan.planned <= 300 << 20 and dict(plan.rows)["python"] == plan.python > 0
    losses = [trainer.step(batches[i % 4]) for i in range(STEPS)]
    wanted = _eager(torch, other, loss_fn, their, batches, STEPS)
    assert losses == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    _same(torch, trainer, (model, own), (other, their))
    # PyTorch goes on with what was trained here, and a new trainer with what PyTorch did since.
    _eager(torch, model, loss_fn, own, batches, 2)
    wanted = _eager(torch, other, loss_fn, their, batches, 4)
    trainer = Trainer(model, loss_fn, own)
    assert [trainer.step(batches[i]) for i in (2, 3)] == pytest.approx(wanted[2:], rel=3e-4, abs=3e-4)


@pytest.mark.parametrize(
    "name, settings",
    [
        ("SGD", {"lr": 0.05}),
        ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        ("Adam", {"lr": 3e-3, "weight_decay": 0.01}),
        ("Adamax", {"lr": 3e-3, "weight_decay": 0.01}),
        ("NAdam", {"lr": 3e-3, "weight_decay": 0.01, "decoupled_weight_decay": True}),
        ("RAdam", {"lr": 3e-3, "weight_decay": 0.01}),
        ("RMSprop", {"lr": 1e-3, "momentum": 0.5, "centered": True}),
        ("Adagrad", {"lr": 0.02, "lr_decay": 0.01, "initial_accumulator_value": 0.1}),
    ],
)
def test_every_optimizer_moves_as_pytorchs(name, settings):
    torch = ready()
    from plimsoll.torch import Trainer

    model, loss_fn, batches = _mlp(torch)
    other = copy.deepcopy(model)
    own, their = (getattr(torch.optim, name)(m.parameters(), **settings) for m in (model, other))
    trainer = Trainer(model, loss_fn, own, check=False)
    losses = [trainer.step(batches[i % 4]) for i in range(STEPS)]
    assert losses == pytest.approx(_eager(torch, other, loss_fn, their, batches, STEPS), rel=1e-4, abs=1e-4)
    _same(torch, trainer, (model, own), (other, their))


def test_groups_frozen_parameters_and_a_scheduler_are_obeyed():
    torch = ready()
    from plimsoll.torch import Trainer

    model, loss_fn, batches = _mlp(torch)
    model[2].weight.requires_grad_(False)
    other = copy.deepcopy(model)

    def optimizer(m):
        # The last bias is in no group: it has a gradient and stays.
        groups = [{"params": [m[0].weight, m[4].weight], "weight_decay": 0.1, "lr": 1e-2}, {"params": [m[0].bias, m[2].bias]}]
        made = torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.0)
        return made, torch.optim.lr_scheduler.LambdaLR(made, [lambda step: 0.9**step, lambda step: 1.0 / (1 + step)])

    (own, own_rates), (their, their_rates) = optimizer(model), optimizer(other)
    trainer = Trainer(model, loss_fn, own)
    losses = []
    for step in range(STEPS):
        losses.append(trainer.step(batches[step % 4]))
        own_rates.step()
    assert losses == pytest.approx(_eager(torch, other, loss_fn, their, batches, STEPS, their_rates.step), rel=1e-4, abs=1e-4)
    before = model[4].bias.clone()
    _same(torch, trainer, (model, own), (other, their))
    assert torch.equal(model[4].bias, before)
    own.param_groups[0]["betas"] = (0.5, 0.999)
    with pytest.raises(plimsoll.PlimsollError, match="beta1 of group 0 changed"):
        trainer.step(batches[0])


def test_clipping_and_accumulation_are_pytorchs():
    torch = ready()
    from plimsoll.torch import Trainer

    model, loss_fn, batches = _mlp(torch)
    other = copy.deepcopy(model)
    own, their = (torch.optim.Adam(m.parameters(), 1e-2) for m in (model, other))
    trainer = Trainer(model, loss_fn, own, clip_norm=0.2, accumulate=2)
    losses, wanted = [], []
    for step in range(STEPS):
        losses.append(trainer.step(batches[step % 4]))
        loss = loss_fn(other(batches[step % 4][0]), batches[step % 4][1])
        (loss / 2).backward()
        wanted.append(loss.item())
        if step % 2:
            norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.2)
            assert trainer.gradient_norm == pytest.approx(float(norm), rel=1e-3)
            their.step()
            their.zero_grad()
    assert losses == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    _same(torch, trainer, (model, own), (other, their))


def test_a_loader_with_a_smaller_last_batch_is_fitted_evaluated_and_predicted():
    torch = ready()
    from plimsoll.torch import Trainer

    model, loss_fn, _ = _convolutional(torch)
    data = torch.utils.data.TensorDataset(torch.randn(21, 3, 12, 12), torch.randint(5, (21,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    other = copy.deepcopy(model)
    own, their = (torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (model, other))
    trainer = Trainer(model, loss_fn, own)
    steps = []
    history = trainer.fit(loader, epochs=2, validation=loader, on_step=lambda step, loss: steps.append(loss), verbose=0)
    wanted = _eager(torch, other, loss_fn, their, list(loader), 6)
    assert steps == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    other.eval()
    with torch.no_grad():
        losses = [(loss_fn(other(x), y).item(), len(x)) for x, y in loader]
        outputs = other(data.tensors[0][:8])
    mean = sum(loss * n for loss, n in losses) / 21
    assert history[-1]["val_loss"] == pytest.approx(mean, rel=1e-4, abs=1e-4)
    assert torch.allclose(trainer.predict(data.tensors[0][:8]), outputs, atol=1e-4)
    assert model.training, "the module is in the mode that it was in"


def test_a_limit_splits_the_batch_with_the_same_losses_and_one_too_small_is_refused():
    torch = ready()
    from plimsoll.torch import Trainer

    nn = torch.nn
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 64), nn.ReLU(), nn.Linear(64, 4))
    batch = (torch.randn(2048, 64), torch.randn(2048, 4))
    other = copy.deepcopy(model)
    make = lambda m, memory: Trainer(m, nn.functional.mse_loss, torch.optim.SGD(m.parameters(), 0.1), memory=memory)
    whole = make(model, None)
    plan = whole.plan(batch)
    losses = [whole.step(batch) for _ in range(3)]
    least = plan.least
    assert least < plan.planned
    # What another trainer holds counts: it is there.
    del whole
    with pytest.raises(plimsoll.MemoryLimitError) as refused:
        make(other, least // 2).plan(batch)
    assert refused.value.least > least // 2
    small = make(other, least + (2 << 20))
    assert small.plan(batch).planned <= least + (2 << 20)
    assert [small.step(batch) for _ in range(3)] == pytest.approx(losses, rel=1e-5)


def test_gradients_that_do_not_pass_through_the_export_are_refused():
    torch = ready()
    from plimsoll.torch import Trainer

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            return self.last(Doubled.apply(self.first(x)))

    model = Module()
    trainer = Trainer(model, torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(plimsoll.PlimsollError, match="gradient of first.*custom"):
        trainer.step((torch.randn(4, 4), torch.randn(4, 1)))
    assert model.seen == 0, "a comparison leaves buffers as they were"


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda torch, p: torch.optim.Adam(p, amsgrad=True), "amsgrad"),
        (lambda torch, p: torch.optim.SGD(p, 0.1, maximize=True), "maximize"),
        (lambda torch, p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5), "dampening"),
        (lambda torch, p: torch.optim.Rprop(p), "Rprop"),
    ],
)
def test_what_is_not_followed_is_refused_by_name(make, words):
    torch = ready()
    from plimsoll.torch import Trainer

    model, loss_fn, _ = _mlp(torch)
    with pytest.raises(plimsoll.PlimsollError, match=words):
        Trainer(model, loss_fn, make(torch, model.parameters()))


def test_dropout_is_drawn_anew_at_every_step_and_not_in_evaluation():
    torch = ready()
    from plimsoll.torch import Trainer

    nn = torch.nn
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    batch = (torch.randn(16, 8), torch.randn(16, 1))
    trainer = Trainer(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.0))
    state = torch.get_rng_state()
    losses = [trainer.step(batch) for _ in range(4)]
    assert len(set(losses)) == 4
    assert torch.equal(state, torch.get_rng_state()), "PyTorch's own random numbers are left alone"
    model.eval()
    with torch.no_grad():
        assert trainer.evaluate([batch]) == pytest.approx(nn.functional.mse_loss(model(batch[0]), batch[1]).item(), rel=1e-4)
