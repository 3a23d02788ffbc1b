"""What a PyTorch module keeps from step to step: buffers, frozen weights, and what is set by hand between two steps."""

import copy

import pytest

from torch_modules import built, ready


def _model(torch, inner=None):
    """A layer of its own kind inside of another module, which is where an export forgets what is put in the place of a buffer."""

    class Centred(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(6, 3)
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("scale", torch.ones(()))
            self.linear.bias.requires_grad_(False)

        def forward(self, x):
            y = self.linear(x)
            if self.training:
                with torch.no_grad():
                    self.mean = 0.9 * self.mean + 0.1 * y.mean(0)
            return (y - self.mean) * self.scale

    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), (inner or Centred)()).double()


def _batch(torch):
    torch.manual_seed(4)
    return torch.randn(8, 4).double(), torch.randint(3, (8,))


def _twins(torch, loss_fn):
    """A trainer, and a step of PyTorch on a copy of its module and loss."""
    from plimsoll.torch import Trainer

    ours = _model(torch)
    theirs, their_loss = copy.deepcopy(ours), copy.deepcopy(loss_fn)
    own, their = (torch.optim.SGD(net.parameters(), 0.1, momentum=0.9) for net in (ours, theirs))

    def stepped(batch):
        their.zero_grad()
        loss = their_loss(theirs(batch[0]), batch[1])
        loss.backward()
        their.step()
        return loss.item()

    return Trainer(ours, loss_fn, own), stepped, (ours, theirs), (loss_fn, their_loss)


def _equal(torch, ours, theirs):
    wanted = theirs.state_dict()
    for name, value in ours.state_dict().items():
        assert torch.allclose(value, wanted[name], atol=1e-12), name


def test_buffers_that_a_module_replaces_are_those_of_pytorch_after_every_step():
    torch = ready()
    trainer, stepped, (ours, theirs), _ = _twins(torch, torch.nn.functional.cross_entropy)
    held = ours[1].mean
    for _ in range(4):
        assert trainer.step(_batch(torch)) == pytest.approx(stepped(_batch(torch)), abs=1e-12)
    trainer.sync()
    _equal(torch, ours, theirs)
    assert ours[1].mean is held, "the module has the buffers that it had"
    # In PyTorch's own hands it puts others in their place, and training goes on with those.
    x = torch.full((8, 4), 0.5).double()
    ours(x), theirs(x)
    assert ours[1].mean is not held
    assert trainer.step(_batch(torch)) == pytest.approx(stepped(_batch(torch)), abs=1e-12)
    trainer.sync()
    _equal(torch, ours, theirs)


def test_what_is_not_trained_and_set_by_hand_is_followed():
    torch = ready()
    trainer, stepped, nets, losses = _twins(torch, torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]).double()))

    def in_place(net, _):
        with torch.no_grad():
            net[1].scale.fill_(0.5)

    def frozen(net, _):
        net[1].linear.bias.data.fill_(0.3)

    def replaced(net, _):
        net[1].scale = torch.tensor(0.25).double()

    def loaded(net, _):
        state = net.state_dict()
        net.load_state_dict({**state, "1.linear.bias": torch.arange(3).double(), "1.scale": torch.tensor(2.0).double()})

    def of_the_loss(_, loss):
        loss.weight.copy_(torch.tensor([0.1, 1.0, 3.0]).double())

    for change in (in_place, frozen, replaced, loaded, of_the_loss):
        for _ in range(2):
            assert trainer.step(_batch(torch)) == pytest.approx(stepped(_batch(torch)), abs=1e-12), change
        trainer.sync()
        for net, loss in zip(nets, losses):
            change(net, loss)
        assert trainer.step(_batch(torch)) == pytest.approx(stepped(_batch(torch)), abs=1e-12), change
    trainer.sync()
    _equal(torch, *nets)


def test_what_is_set_by_hand_while_steps_were_done_is_an_error():
    torch = ready()
    import plimsoll

    trainer, _, (ours, _), _ = _twins(torch, torch.nn.functional.cross_entropy)
    trainer.step(_batch(torch))
    ours[1].scale = torch.tensor(0.25).double()
    with pytest.raises(plimsoll.PlimsollError, match=r"1\.scale of the module was replaced while a step was done here.*call sync\(\) first"):
        trainer.step(_batch(torch))
    trainer.sync()
    ours[1].scale = torch.zeros(3).double()
    with pytest.raises(plimsoll.PlimsollError, match=r"1\.scale of the module is a tensor \[3\] by now, and was a tensor \[\]"):
        trainer.step(_batch(torch))


def _stateful(torch, start):
    class Stateful(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(6, 3)
            start(self)

        def forward(self, x):
            y = self.linear(x)
            if self.before is not None:
                y = y + self.before
            self.before = y.detach().mean(0)
            return y

    return Stateful


@pytest.mark.parametrize(
    "start, words",
    [
        (lambda torch, self: setattr(self, "before", None), r"loss is another when it runs again.*It changes 1\.before"),
        (lambda torch, self: setattr(self, "before", torch.zeros(3).double()), r"1\.before is read and replaced when the module runs, and is no buffer"),
        (lambda torch, self: self.register_buffer("before", None), r"1\.before is a buffer that has no tensor before the module has run"),
        (lambda torch, self: self.register_buffer("before", torch.zeros(1)), r"1\.before is a buffer that the module makes torch.float64 \[3\] of torch.float64 \[1\]"),
    ],
    ids=["nothing at first", "no buffer", "an empty buffer", "a buffer of another shape"],
)
def test_state_that_a_program_cannot_keep_is_refused_by_name(start, words):
    torch = ready()
    import plimsoll
    from plimsoll.torch import Trainer

    model = _model(torch, _stateful(torch, lambda self: start(torch, self)))
    trainer = Trainer(model, torch.nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(plimsoll.PlimsollError, match=words):
        trainer.step(_batch(torch))


def test_what_a_module_keeps_to_be_looked_at_is_neither_refused_nor_left_behind():
    torch = ready()
    import plimsoll.torch
    from plimsoll.torch import Trainer

    class Watched(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.calls, self.last = torch.nn.Linear(6, 3), 0, None

        def forward(self, x):
            self.calls, self.last = self.calls + 1, self.linear(x)
            return self.last

    model = _model(torch, Watched)
    trainer = Trainer(model, torch.nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1))
    trainer.step(_batch(torch))
    assert model[1].calls == 0 and model[1].last is None
    plimsoll.torch.advise(model, _batch(torch), "1GiB", torch.nn.functional.cross_entropy)
    plimsoll.torch.planned(model, torch.nn.functional.cross_entropy, _batch(torch))
    assert model[1].calls == 0 and model[1].last is None
    model(_batch(torch)[0])
    assert type(model[1].last) is torch.Tensor
    trainer.step(_batch(torch))


def test_a_tensor_that_is_no_buffer_is_refused_when_it_was_changed():
    torch = ready()
    import plimsoll
    from plimsoll.torch import Trainer

    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.shift = torch.nn.Linear(6, 3), torch.ones(3).double()

        def forward(self, x):
            return self.linear(x) + self.shift

    model = _model(torch, Shifted)
    trainer = Trainer(model, torch.nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1))
    trainer.step(_batch(torch))
    trainer.sync()
    model[1].shift.fill_(2.0)
    with pytest.raises(plimsoll.PlimsollError, match=r"1\.shift of the module was changed: it is no parameter and no buffer"):
        trainer.step(_batch(torch))


def test_a_planned_step_keeps_buffers_that_a_module_replaces():
    torch = ready()
    from plimsoll.torch import planned

    ours = _model(torch)
    theirs, batch = copy.deepcopy(ours), _batch(torch)
    step = planned(ours, torch.nn.functional.cross_entropy, batch)
    for turn in range(4):
        if turn == 2:
            for net in (ours, theirs):
                net(batch[0])
                net[1].scale = torch.tensor(0.5).double()
        ours.zero_grad(), theirs.zero_grad()
        loss = torch.nn.functional.cross_entropy(theirs(batch[0]), batch[1])
        loss.backward()
        assert step(batch).item() == loss.item(), turn
        assert torch.equal(ours[1].mean, theirs[1].mean), turn
        assert torch.equal(ours[0].weight.grad, theirs[0].weight.grad), turn


def _changes(torch):
    def thawed(model, optimizer):
        model[1].linear.bias.requires_grad_(True)

    def frozen(model, optimizer):
        model[0].weight.requires_grad_(False)

    def in_eval(model, optimizer):
        model[1].eval()

    def grouped(model, optimizer):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})

    return {
        "1.linear.bias has requires_grad=True by now": thawed,
        "0.weight has requires_grad=False by now": frozen,
        r"1 is in eval\(\) by now, and the Trainer was made when it was in train\(\)": in_eval,
        "other parameter groups than when the Trainer was made": grouped,
    }


@pytest.mark.parametrize("words", _changes(None))
def test_what_a_program_has_once_and_for_all_is_refused_when_it_changes(words):
    torch = ready()
    import plimsoll
    from plimsoll.torch import Trainer

    model, batch = _model(torch), _batch(torch)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = Trainer(model, torch.nn.functional.cross_entropy, optimizer)
    trainer.step(batch)
    # A look at other data in between is no change.
    model.eval(), model.train()
    trainer.step(batch)
    trainer.sync()
    _changes(torch)[words](model, optimizer)
    with pytest.raises(plimsoll.PlimsollError, match=f"{words}.*make a new Trainer"):
        trainer.step(batch)
    if words.startswith("1.linear"):
        again = Trainer(model, torch.nn.functional.cross_entropy, optimizer)
        before = model[1].linear.bias.clone()
        again.step(batch), again.sync()
        assert not torch.equal(before, model[1].linear.bias), "a new one trains it"


def test_a_setting_that_is_changed_is_warned_of_once(recwarn):
    torch = ready()
    from plimsoll.torch import Trainer

    class Tempered(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.temperature = torch.nn.Linear(6, 3), 1.0

        def forward(self, x):
            return self.linear(x) / self.temperature

    model, batch = _model(torch, Tempered), _batch(torch)
    trainer = Trainer(model, torch.nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1))
    trainer.step(batch)
    model[1].temperature = 0.5
    recwarn.clear()
    trainer.step(batch), trainer.step(batch)
    words = [str(warning.message) for warning in recwarn]
    assert len(words) == 1 and words[0].startswith("1.temperature was 1.0 when the Trainer was made and is 0.5 by now"), words


def test_hooks_that_a_first_run_puts_in_are_not_put_in_twice():
    torch = ready()
    import plimsoll.torch as pt

    def forward(self, x):
        if not self.has_hooks:
            # As models do that keep the outputs of their layers to look at them.
            self.line.register_forward_hook(lambda *given: self.kept.append(given[2]))
            self.has_hooks = True
        self.kept.clear()
        self.line(x)
        return torch.cat(self.kept, 1).pow(2).sum(1).mean()

    model = built(forward, line=torch.nn.Linear(3, 2))
    model.has_hooks, model.kept = False, []
    batch = (torch.randn(4, 3),)
    trainer = pt.Trainer(model, None, torch.optim.SGD(model.parameters(), 0.0))
    made = trainer.step(batch)
    assert made == pytest.approx(model(*batch).item(), abs=1e-5)


_SHARE = 1.0


def _with_global(made, wanted):
    return _SHARE * (made - wanted).pow(2).mean()


class _Weighted:
    share = 1.0

    def __init__(self):
        self.share = 1.0

    def __call__(self, made, wanted):
        return self.share * (made - wanted).pow(2).mean()


def _with_cell():
    share, settings = 1.0, {"least": 0.0}

    def loss(made, wanted):
        return share * (made - wanted).pow(2).mean() + settings["least"]

    def turn():
        nonlocal share
        share, settings["least"] = 0.5, 1.0

    return loss, turn


@pytest.mark.parametrize("kind", ["global", "object", "cell"])
def test_a_weight_that_a_loss_reads_from_around_it_is_warned_of_when_it_changes(kind, recwarn):
    torch = ready()
    from plimsoll.torch import Trainer

    weighted, (inner, turn) = _Weighted(), _with_cell()
    loss = {"global": _with_global, "object": weighted, "cell": inner}[kind]
    model, batch = torch.nn.Linear(3, 2), (torch.randn(4, 3), torch.randn(4, 2))
    trainer = Trainer(model, loss, torch.optim.SGD(model.parameters(), 0.1))
    trainer.step(batch), trainer.step(batch)
    assert not [warning for warning in recwarn if "when the Trainer was made" in str(warning.message)]
    recwarn.clear()
    weighted.share = globals()["_SHARE"] = 0.5
    turn()
    trainer.step(batch), trainer.step(batch)
    globals()["_SHARE"] = 1.0
    words = sorted(str(warning.message) for warning in recwarn if "when the Trainer was made" in str(warning.message))
    starts = {"global": ["_SHARE was 1.0"], "object": ["_Weighted.share was 1.0"], "cell": ["settings.least was 0.0", "share was 1.0"]}[kind]
    assert len(words) == len(starts) and all(word.startswith(start) for word, start in zip(words, starts)), words


def test_a_table_that_the_first_run_makes_is_of_the_size_that_a_batch_wants():
    torch = ready()
    import plimsoll.torch as pt

    def forward(self, x):
        if self.places.shape[0] != x.shape[1]:
            self.places = torch.arange(x.shape[1], dtype=torch.float32)
        return (self.line(x) * self.places.unsqueeze(1)).pow(2).mean()

    model = built(forward, line=torch.nn.Linear(3, 2))
    model.register_buffer("places", torch.zeros(1), persistent=False)
    theirs = copy.deepcopy(model)
    trainer = pt.Trainer(model, None, torch.optim.SGD(model.parameters(), 0.1))
    x = torch.randn(6, 5, 3)
    assert trainer.step((x,)) == pytest.approx(theirs(x).item(), rel=1e-5)
    assert torch.equal(model.places, torch.arange(5.0))
