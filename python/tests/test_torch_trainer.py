"""Modules of PyTorch trained by the engine: losses and state of eager PyTorch, step by step, and back again."""

from __future__ import annotations

import copy

import pytest

import plimsoll
from torch_modules import built, ready, tied
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
    own.param_groups[0]["eps"] = 1e-3
    with pytest.raises(plimsoll.PlimsollError, match="eps of group 0 changed"):
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

    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.flip(1)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            return self.last(Turned.apply(self.first(x)))

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


@pytest.mark.parametrize("case", ["plain", "ignored", "weighted", "smoothed", "sequences", "log_likelihood"])
def test_cross_entropy_in_parts_is_that_of_the_whole_batch(case):
    torch = ready()
    from plimsoll.torch import Trainer

    nn, F = torch.nn, torch.nn.functional
    weight = torch.tensor([0.3, 1.0, 2.0, 0.7])

    def loss_fn(y, t):
        settings = {"ignored": {"ignore_index": 1}, "weighted": {"weight": weight, "ignore_index": 2}, "smoothed": {"label_smoothing": 0.2, "weight": weight}}
        if case == "sequences":
            return F.cross_entropy(y[:, :-1].reshape(-1, 4), t[:, 1:].reshape(-1), ignore_index=0)
        if case == "log_likelihood":
            return F.nll_loss(F.log_softmax(y, -1), t, weight=weight)
        return F.cross_entropy(y, t, **settings.get(case, {}))

    shape = (12, 5) if case == "sequences" else (12,)
    batches = [(torch.randn(*shape, 6), torch.randint(4, shape)) for _ in range(3)]
    ours = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    theirs = copy.deepcopy(ours)
    trainer = Trainer(ours, loss_fn, torch.optim.SGD(ours.parameters(), 0.1), micro_batch=3)
    wanted = _eager(torch, theirs, loss_fn, torch.optim.SGD(theirs.parameters(), 0.1), batches, 6)
    found = [trainer.step(batches[step % 3]) for step in range(6)]
    assert found == pytest.approx(wanted, abs=1e-5)
    trainer.sync()
    _same_state(torch, ours, theirs, 1e-5)


def test_masks_and_rates_of_0_do_not_hinder_an_export():
    """``nn.Transformer`` asks whether a mask is causal, and LayerDrop for a number that is drawn."""
    torch = ready()
    from plimsoll.torch import Trainer

    nn = torch.nn

    class Dropped(nn.Module):
        def __init__(self, rate):
            super().__init__()
            self.rate, self.layers = rate, nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2))
            self.encoder, self.head = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 1), nn.Linear(8, 3)

        def forward(self, x):
            x = self.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))
            for layer in self.layers:
                if self.training and torch.rand([]) < self.rate:
                    continue
                x = layer(x)
            return self.head(x).mean(1)

    batches = [(torch.randn(4, 5, 8), torch.randint(3, (4,)))]
    ours = Dropped(0.0)
    theirs = copy.deepcopy(ours)
    loss_fn = nn.functional.cross_entropy
    trainer = Trainer(ours, loss_fn, torch.optim.SGD(ours.parameters(), 0.1))
    wanted = _eager(torch, theirs, loss_fn, torch.optim.SGD(theirs.parameters(), 0.1), batches, 3)
    assert [trainer.step(batches[0]) for _ in range(3)] == pytest.approx(wanted, abs=1e-5)
    # With dropout the comparison with eager draws the same numbers.
    drawn = Dropped(0.0)
    for part in drawn.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.3
    assert Trainer(drawn, loss_fn, torch.optim.SGD(drawn.parameters(), 0.1)).step(batches[0]) > 0
    with pytest.raises(plimsoll.PlimsollError, match="LayerDrop"):
        other = Dropped(0.3)
        Trainer(other, loss_fn, torch.optim.SGD(other.parameters(), 0.1)).step(batches[0])


def test_complex_numbers_and_angles_are_as_pytorch_has_them():
    torch = ready()
    from plimsoll.torch import Trainer

    nn = torch.nn

    class Turned(nn.Module):
        """Places told by turns of complex numbers, a spectrum that is filtered, and angles."""

        def __init__(self):
            super().__init__()
            self.enter, self.filter = nn.Linear(6, 8), nn.Parameter(torch.randn(4, 5, 2) * 0.3)
            turns = torch.arange(8.0).unsqueeze(1) * torch.tensor([1.0, 0.1, 0.01, 0.001])
            self.register_buffer("turns", torch.polar(torch.ones(8, 4), turns))

        def forward(self, x, y):
            h = torch.view_as_complex(self.enter(x).reshape(*x.shape[:2], 4, 2)) * self.turns
            spectrum = torch.fft.rfft(h.abs(), dim=1).transpose(1, 2)
            h2 = torch.fft.irfft(spectrum * torch.view_as_complex(self.filter), n=x.shape[1])
            angles = torch.atan2(h.imag, h.real) + torch.asin(torch.tanh(h.real)) - torch.acos(torch.tanh(h.imag)) + torch.atan(h2.transpose(1, 2))
            whole = torch.fft.ifft2(torch.fft.fft2(h * h.conj() / (h + 2)), norm="ortho")
            return (angles.mean() - y.mean()) ** 2 + torch.view_as_real(whole).square().mean()

    batch = (torch.randn(3, 8, 6), torch.randn(3))
    ours = Turned()
    theirs = copy.deepcopy(ours)
    trainer = Trainer(ours, None, torch.optim.SGD(ours.parameters(), 1e-3))
    wanted = _eager(torch, theirs, None, torch.optim.SGD(theirs.parameters(), 1e-3), [batch], 5)
    assert [trainer.step(batch) for _ in range(5)] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_autocast_a_scaler_and_averaged_weights_are_followed(kind):
    torch = ready()
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    from plimsoll.torch import Trainer

    nn, dtype = torch.nn, getattr(torch, kind)

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))

        def forward(self, x):
            with torch.autocast("cpu", dtype=dtype):
                return self.net(x)

    loss_fn = lambda y, t: nn.functional.cross_entropy(y.float(), t)
    batches = [(torch.randn(16, 8), torch.randint(4, (16,))) for _ in range(3)]
    ours = Cast()
    theirs = copy.deepcopy(ours)
    averages = [AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) for model in (ours, theirs)]
    optimizer = torch.optim.AdamW(theirs.parameters(), 1e-2)
    wanted = _eager(torch, theirs, loss_fn, optimizer, batches, 6, lambda: averages[1].update_parameters(theirs))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if kind == "float16" else None
    trainer = Trainer(ours, loss_fn, torch.optim.AdamW(ours.parameters(), 1e-2), scaler=scaler)
    found = []
    for step in range(6):
        found.append(trainer.step(batches[step % 3]))
        trainer.sync()
        averages[0].update_parameters(ours)
    assert found == pytest.approx(wanted, abs=2e-3)
    _same_state(torch, averages[0], averages[1], 2e-3)
    if scaler is not None:
        assert not trainer.skipped and scaler.get_scale() == trainer.loss_scale == 1024.0
        with pytest.warns(UserWarning, match="float16 without a scaler"):
            other = Cast()
            Trainer(other, loss_fn, torch.optim.SGD(other.parameters(), 0.1)).step(batches[0])
        # A scale at which gradients overflow: the update is left out, and the scale halved.
        huge = torch.amp.GradScaler("cpu", init_scale=2.0**40)
        other = Cast()
        before = copy.deepcopy(other.state_dict())
        trainer = Trainer(other, loss_fn, torch.optim.SGD(other.parameters(), 0.1), scaler=huge)
        trainer.step(batches[0])
        trainer.sync()
        assert trainer.skipped and huge.get_scale() == 2.0**39
        assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
        with pytest.raises(plimsoll.PlimsollError, match="growth, backoff"):
            Trainer(other, loss_fn, torch.optim.SGD(other.parameters(), 0.1), scaler=torch.amp.GradScaler("cpu", growth_factor=3.0))


def test_of_a_convolutional_net_the_pictures_alone_are_transposed():
    torch = ready()
    from plimsoll.torch import Trainer

    nn = torch.nn

    def gated(self, x):
        y = self.parts(x)
        return torch.cat([x + y * self.gate(y), x], 1)

    def residual(channels):
        parts = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, groups=channels))
        return built(gated, parts=parts, gate=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1), nn.Sigmoid()))

    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.MaxPool2d(2), residual(8), nn.GroupNorm(4, 16), nn.Upsample(scale_factor=2), residual(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
    trainer = Trainer(model, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1))
    count, share = trainer.plan((torch.randn(4, 3, 32, 32), torch.arange(4))).transposes
    assert count == 1 and 0 < share < 0.5


@pytest.mark.parametrize("make", [_convolutional, _tied])
def test_the_least_memory_gives_the_same_bits(make):
    torch = ready()
    from plimsoll.torch import Trainer

    model, loss_fn, batches = make(torch)
    batches = [tuple(x.repeat(64, *[1] * (x.dim() - 1)) for x in batch) if isinstance(batch, tuple) else {name: x.repeat(64, 1) for name, x in batch.items()} for batch in batches[:2]]
    state, found = copy.deepcopy(model.state_dict()), []
    for is_limited in (False, True):
        model.load_state_dict(state)
        limit = found[0][0].least if is_limited else None
        trainer = Trainer(model, loss_fn, torch.optim.SGD(model.parameters(), 0.1), memory=limit, exact="bitwise")
        plan = trainer.plan(batches[0])
        losses = [trainer.step(batch) for batch in batches]
        trainer.sync()
        found.append((plan, losses, copy.deepcopy(model.state_dict())))
    assert found[1][0].planned <= limit < found[0][0].planned and found[1][0].micro_batches == 1
    assert found[0][1] == found[1][1]
    assert all(torch.equal(value, found[1][2][name]) for name, value in found[0][2].items())


def _classifies_alike(torch, model, batch):
    """Three steps on one batch, against PyTorch's own."""
    from plimsoll.torch import Trainer

    theirs, loss_fn = copy.deepcopy(model), torch.nn.functional.cross_entropy
    trainer = Trainer(model, loss_fn, torch.optim.SGD(model.parameters(), 0.1))
    wanted = _eager(torch, theirs, loss_fn, torch.optim.SGD(theirs.parameters(), 0.1), [batch], 3)
    assert [trainer.step(batch) for _ in range(3)] == pytest.approx(wanted, abs=1e-5)


def test_what_depends_on_constants_alone_is_computed_once():
    torch = ready()
    from plimsoll.torch import export

    nn = torch.nn

    def placed(self, x):
        places = torch.arange(6).unsqueeze(1) / 10.0 ** (torch.arange(8) / 4)
        mask = torch.ones(6, 6).tril().log()
        h = self.enter(x) + places.sin()
        return self.head(torch.softmax(h @ h.transpose(1, 2) + mask, -1) @ h).mean(1)

    model, batch = built(placed, enter=nn.Linear(4, 8), head=nn.Linear(8, 3)), (torch.randn(4, 6, 4), torch.randint(3, (4,)))
    ops = [str(node.target) for node in export(model, (batch[0],)).graph.nodes]
    assert not any(op in " ".join(ops) for op in ("arange", "sin", "tril", "log")), ops
    _classifies_alike(torch, model, batch)


def test_only_tokens_that_are_read_are_normed():
    torch = ready()
    from plimsoll.torch import export

    nn = torch.nn

    def read(self, x):
        # Of the last, one statistic is over all tokens.
        return self.head(self.one(x)[:, 0] + self.some(x)[:, 1:, :].mean(1) + self.all(x)[:, 2])

    norms = {"one": nn.LayerNorm(8), "some": nn.LayerNorm(8), "all": nn.LayerNorm((5, 8))}
    model, batch = built(read, head=nn.Linear(8, 3), **norms), (torch.randn(4, 5, 8), torch.randint(3, (4,)))
    program = export(model, (batch[0],))
    normed = [tuple(node.meta["val"].shape) for node in program.graph.nodes if node.target is torch.ops.aten.layer_norm.default]
    assert normed == [(4, 8), (4, 4, 8), (4, 5, 8)]
    assert torch.allclose(program.module()(batch[0]), model(batch[0]), atol=1e-6)
    _classifies_alike(torch, model, batch)


def test_a_module_made_for_one_batch_size_is_trained_whole():
    """Numbers of samples that stand in the code hold a program to one size: it is not split, and that is no error."""
    torch = ready()
    from plimsoll.torch import Trainer

    nn = torch.nn
    labels = torch.tensor([0, 2, 1, 3])
    loss_fn = lambda y, x: nn.functional.cross_entropy(y, labels) + (y.gather(1, labels.unsqueeze(1)) - x[:, :1]).square().mean()
    batch = (torch.randn(4, 6), torch.randn(4, 2))
    ours = nn.Linear(6, 4)
    theirs = copy.deepcopy(ours)
    trainer = Trainer(ours, loss_fn, torch.optim.SGD(ours.parameters(), 0.1))
    wanted = _eager(torch, theirs, loss_fn, torch.optim.SGD(theirs.parameters(), 0.1), [batch], 3)
    assert [trainer.step(batch) for _ in range(3)] == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(plimsoll.PlimsollError, match="made for 4 samples"):
        Trainer(ours, loss_fn, torch.optim.SGD(ours.parameters(), 0.1), micro_batch=2).step(batch)
