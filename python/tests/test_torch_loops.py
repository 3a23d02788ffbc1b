"""Loops as people have them around `plimsoll.torch.Trainer`: schedulers, metrics, state in the middle, modules that change, workers, pickles."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

import plimsoll
from torch_modules import built, ready


def _net(torch):
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3))


def _batches(torch, count=4):
    return [(torch.randn(8, 6), torch.randint(3, (8,))) for _ in range(count)]


def _stepped(torch, model, optimizer, batch, loss_fn=None):
    optimizer.zero_grad()
    loss = (loss_fn or torch.nn.functional.cross_entropy)(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss.item()


def _trainer(torch, model, optimizer, **settings):
    from plimsoll.torch import Trainer

    return Trainer(model, torch.nn.functional.cross_entropy, optimizer, **settings)


def _schedulers(torch):
    lr = torch.optim.lr_scheduler
    return {
        "LambdaLR": lambda o: lr.LambdaLR(o, lambda step: 0.9**step),
        "MultiplicativeLR": lambda o: lr.MultiplicativeLR(o, lambda step: 0.95),
        "StepLR": lambda o: lr.StepLR(o, 3, 0.5),
        "MultiStepLR": lambda o: lr.MultiStepLR(o, [2, 5], 0.5),
        "ConstantLR": lambda o: lr.ConstantLR(o, 0.3, 4),
        "LinearLR": lambda o: lr.LinearLR(o, 0.3, total_iters=4),
        "ExponentialLR": lambda o: lr.ExponentialLR(o, 0.9),
        "PolynomialLR": lambda o: lr.PolynomialLR(o, 6, 2.0),
        "CosineAnnealingLR": lambda o: lr.CosineAnnealingLR(o, 5),
        "CosineAnnealingWarmRestarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 3),
        "CyclicLR": lambda o: lr.CyclicLR(o, 0.01, 0.1, 2, base_momentum=0.8, max_momentum=0.9),
        "OneCycleLR": lambda o: lr.OneCycleLR(o, 0.1, total_steps=9),
        "SequentialLR": lambda o: lr.SequentialLR(o, [lr.ConstantLR(o, 0.1, 2), lr.ExponentialLR(o, 0.9)], [2]),
        "ChainedScheduler": lambda o: lr.ChainedScheduler([lr.ConstantLR(o, 0.1, 2), lr.ExponentialLR(o, 0.9)]),
        "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, 3),
        "ReduceLROnPlateau": lambda o: lr.ReduceLROnPlateau(o, patience=1, factor=0.5, threshold=10.0),
    }


def _twins(torch, kind, rate, **settings):
    """The same net twice, each with an optimizer of its own: one for the trainer, one for PyTorch."""
    ours = _net(torch)
    theirs = copy.deepcopy(ours)
    return tuple((net, kind(net.parameters(), rate, **settings)) for net in (ours, theirs))


def test_every_scheduler_of_pytorch_is_followed_and_none_is_forgotten():
    torch = ready()
    batches, made = _batches(torch), _schedulers(torch)
    listed = {name for name, kind in vars(torch.optim.lr_scheduler).items() if isinstance(kind, type) and issubclass(kind, torch.optim.lr_scheduler.LRScheduler) and name[0] != "_"}
    assert listed - {"LRScheduler"} <= made.keys(), "a new one"
    for number, (name, make) in enumerate(made.items()):
        kind = torch.optim.SGD if number % 2 == 0 else torch.optim.AdamW
        settings = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        (ours, own), (theirs, their) = _twins(torch, kind, 0.05, **settings)
        schedulers = []
        trainer = _trainer(torch, ours, own, check=False) if number % 3 else None
        for optimizer in (own, their):
            schedulers.append(make(optimizer))
        trainer = trainer or _trainer(torch, ours, own, check=False)
        for step in range(8):
            found, wanted = trainer.step(batches[step % 4]), _stepped(torch, theirs, their, batches[step % 4])
            assert found == pytest.approx(wanted, rel=1e-3, abs=1e-3), (name, step)
            for scheduler in schedulers:
                scheduler.step(*([wanted] if name == "ReduceLROnPlateau" else []))
        for key, value in theirs.state_dict().items():
            assert torch.allclose(ours.state_dict()[key].double(), value.double(), atol=2e-3), (name, key)


def test_state_goes_in_and_out_in_the_middle():
    torch = ready()
    batches = _batches(torch)
    (ours, own), (theirs, their) = _twins(torch, torch.optim.AdamW, 0.01)
    trainer = _trainer(torch, ours, own)
    kept = None
    for step in range(9):
        if step == 3:
            # Whoever asks for the state has it, without a word to the trainer.
            kept = [copy.deepcopy(part.state_dict()) for part in (ours, own)]
            for key, value in theirs.state_dict().items():
                assert torch.allclose(kept[0][key].double(), value.double(), atol=1e-4), key
            there = [copy.deepcopy(part.state_dict()) for part in (theirs, their)]
        if step == 6:
            # Back to what was kept: the trainer goes on from there.
            trainer.sync()
            ours.load_state_dict(kept[0]), own.load_state_dict(kept[1])
            theirs.load_state_dict(there[0]), their.load_state_dict(there[1])
        if step == 7:
            trainer.sync()
            for model in (ours, theirs):
                for parameter in model.parameters():
                    parameter.data.clamp_(-0.2, 0.2)
        found, wanted = trainer.step(batches[step % 4]), _stepped(torch, theirs, their, batches[step % 4])
        assert found == pytest.approx(wanted, abs=1e-4), step
    with pytest.raises(plimsoll.PlimsollError, match="0.weight of the module was changed while .* call sync"):
        ours.load_state_dict(kept[0])
        trainer.step(batches[0])
    # It is as it was: brought up to date, it goes on.
    trainer.sync()
    assert trainer.step(batches[1]) == pytest.approx(_stepped(torch, theirs, their, batches[1]), abs=1e-4)


def test_two_trainers_of_one_module_do_not_run_over_each_other():
    torch = ready()
    model, batches = _net(torch), _batches(torch)
    one = _trainer(torch, model, torch.optim.SGD(model.parameters(), 0.1))
    other = _trainer(torch, model, torch.optim.SGD(model.parameters(), 0.05))
    one.step(batches[0])
    other.step(batches[0])
    other.sync()
    with pytest.raises(plimsoll.PlimsollError, match="call sync"):
        one.step(batches[1])


def test_a_module_that_was_moved_or_changed_is_synced_or_refused():
    torch = ready()
    model, batches = _net(torch), _batches(torch)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    trainer = _trainer(torch, model, optimizer)
    trainer.step(batches[0])
    before = copy.deepcopy(model.state_dict())
    trainer.step(batches[1])
    model.double()
    trainer.sync()
    assert model[0].weight.dtype == torch.float64 and (model[0].weight - before["0.weight"]).abs().max() > 1e-6
    assert model.float()[0].weight.isfinite().all()
    model[3] = torch.nn.Linear(16, 3)
    with pytest.raises(plimsoll.PlimsollError, match="3.weight of the module is another tensor"):
        trainer.sync()


def test_metrics_are_functions_of_what_the_module_returns():
    torch = ready()
    model, batches = _net(torch), _batches(torch)
    batches[-1] = (batches[-1][0][:3], batches[-1][1][:3])
    trainer = _trainer(torch, model, torch.optim.SGD(model.parameters(), 0.1))
    accuracy = lambda outputs, labels: (outputs.argmax(1) == labels).float().mean()
    history = trainer.fit(batches, epochs=1, validation=batches, metrics={"accuracy": accuracy}, verbose=0)
    trainer.sync()
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in batches)
    assert history[0]["val_accuracy"] == pytest.approx(right / 27) and {"loss", "val_loss"} < history[0].keys()
    found = trainer.evaluate(batches, {"accuracy": accuracy})
    assert found["accuracy"] == pytest.approx(right / 27) and found["loss"] == pytest.approx(trainer.evaluate(batches))


def test_workers_feed_it_and_pickles_say_what_to_keep():
    torch = ready()
    model = _net(torch)
    data = torch.utils.data.TensorDataset(torch.randn(20, 6), torch.randint(3, (20,)))
    trainer = _trainer(torch, model, torch.optim.SGD(model.parameters(), 0.1))
    trainer.fit(torch.utils.data.DataLoader(data, 8, shuffle=True, num_workers=1), epochs=1, verbose=0)
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="call sync.*state_dict"):
            copied(trainer)
    # The module itself can be written and copied as before.
    written = io.BytesIO()
    trainer.sync()
    torch.save(model, written)
    written.seek(0)
    again = torch.load(written, weights_only=False)
    assert torch.equal(again[0].weight, model[0].weight) and torch.equal(copy.deepcopy(model)[0].weight, model[0].weight)


def test_an_interrupt_leaves_what_was_trained():
    torch = ready()
    model, batches = _net(torch), _batches(torch)
    trainer = _trainer(torch, model, torch.optim.Adam(model.parameters(), 0.1))
    start = copy.deepcopy(model.state_dict())

    def stop(step, loss):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.fit(batches, epochs=5, on_step=stop, verbose=0)
    assert (model.state_dict()["0.weight"] - start["0.weight"]).abs().max() > 0.01
    assert trainer.step(batches[0]) > 0.0


def test_calls_that_mean_nothing_here_do_no_harm():
    torch = ready()
    batches = _batches(torch)
    (ours, own), (theirs, their) = _twins(torch, torch.optim.SGD, 0.1)
    trainer = _trainer(torch, ours, own)
    for batch in batches:
        own.zero_grad()
        found = trainer.step(batch)
        own.step()
        own.zero_grad(set_to_none=False)
        assert found == pytest.approx(_stepped(torch, theirs, their, batch), abs=1e-4)


def test_several_losses_of_named_parts_of_a_batch_are_one():
    torch = ready()
    nn = torch.nn

    def two(self, x, kind, size):
        x = self.body(x).relu()
        losses = {"kind": nn.functional.cross_entropy(self.kind(x), kind), "size": nn.functional.mse_loss(self.size(x)[:, 0], size)}
        return {"loss": losses["kind"] + 0.5 * losses["size"], **losses}

    batches = [{"x": torch.randn(8, 6), "kind": torch.randint(3, (8,)), "size": torch.randn(8)} for _ in range(3)]
    ours = built(two, body=nn.Linear(6, 8), kind=nn.Linear(8, 3), size=nn.Linear(8, 1))
    theirs = copy.deepcopy(ours)
    from plimsoll.torch import Trainer

    trainer = Trainer(ours, None, torch.optim.SGD(ours.parameters(), 0.1))
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)
    for batch in batches:
        optimizer.zero_grad()
        loss = theirs(**batch)["loss"]
        loss.backward()
        optimizer.step()
        assert trainer.step(batch) == pytest.approx(loss.item(), abs=1e-4)
    found = trainer.evaluate(batches, {"size": lambda outputs, batch: outputs["size"]})
    assert found["size"] == pytest.approx(sum(theirs(**batch)["size"].item() for batch in batches) / 3, abs=1e-3)


def test_a_module_that_fixes_its_batch_is_checked_with_all_of_it():
    torch = ready()
    out = torch.nn.Linear(6, 3)

    class Fixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.out = torch.nn.Parameter(torch.randn(1, 1, 6)), out

        def forward(self, x):
            # The length of a tensor is a number to Python, whatever the export left open.
            return self.out(torch.cat([self.token.expand(len(x), -1, -1), x.flatten(2)], 1).mean(1))

    model = Fixed()
    batch = (torch.randn(6, 4, 2, 3), torch.randint(3, (6,)))
    trainer = _trainer(torch, model, torch.optim.SGD(model.parameters(), 0.1))
    assert trainer.step(batch) > 0.0


def test_a_program_is_read_whatever_its_name(tmp_path):
    torch = ready()
    from plimsoll import _native
    from plimsoll.torch import export

    program = export(_net(torch), (torch.randn(4, 6),))
    for name in ("of_eight", "other"):
        torch.export.save(program, str(tmp_path / f"{name}.pt2"))
        assert _native.command(["plimsoll", "inspect", str(tmp_path / f"{name}.pt2")]) == 0


def _averaged(torch, model, decay=0.8):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


def _same(ours, theirs, where):
    for key, value in theirs.state_dict().items():
        assert ours.state_dict()[key].double().numpy() == pytest.approx(value.double().numpy(), abs=1e-4), (where, key)


@pytest.mark.parametrize("rule", ["AdamW", "SGD"])
def test_averages_of_weights_are_kept_as_pytorch_keeps_them(rule):
    torch = ready()
    batches = _batches(torch)
    (ours, own), (theirs, their) = _twins(torch, getattr(torch.optim, rule), 0.02)
    for net in (ours, theirs):
        net[0].bias.requires_grad_(False)
    average, wanted = _averaged(torch, ours), _averaged(torch, theirs)
    trainer = _trainer(torch, ours, own, averaged=average)
    assert trainer.plan(batches[0]) is not None
    for step in range(12):
        if step == 3:
            # Whoever asks for the averages has them.
            _same(average, wanted, step)
            kept = [copy.deepcopy(part.state_dict()) for part in (ours, own, average)]
            there = [copy.deepcopy(part.state_dict()) for part in (theirs, their, wanted)]
        if step == 6:
            # Back to what was kept, by the average's own state.
            trainer.sync()
            for parts, states in (((ours, own, average), kept), ((theirs, their, wanted), there)):
                for part, state in zip(parts, states):
                    part.load_state_dict(state)
        if step == 8:
            # It begins anew, with weights that have been trained for a while.
            trainer.sync()
            for model in (average, wanted):
                model.n_averaged.fill_(0)
        if step == 10:
            # What is not trained is averaged too, where it was set by hand.
            trainer.sync()
            for net in (ours, theirs):
                net[0].bias.data.fill_(0.3)
        trainer.step(batches[step % 4])
        _stepped(torch, theirs, their, batches[step % 4])
        wanted.update_parameters(theirs)
    _same(average, wanted, "end")
    _same(ours, theirs, "end")
    assert int(average.n_averaged) == int(wanted.n_averaged) == 4
    # A new trainer goes on where this one stood, after steps of PyTorch's own.
    _stepped(torch, ours, own, batches[0]), average.update_parameters(ours)
    _stepped(torch, theirs, their, batches[0]), wanted.update_parameters(theirs)
    again = _trainer(torch, ours, own, averaged=average)
    again.step(batches[1])
    _stepped(torch, theirs, their, batches[1]), wanted.update_parameters(theirs)
    _same(average, wanted, "again")


def test_averages_that_are_kept_twice_or_otherwise_are_refused():
    torch = ready()
    from torch.optim.swa_utils import AveragedModel

    net, batches = _net(torch), _batches(torch)
    make = lambda average: _trainer(torch, net, torch.optim.AdamW(net.parameters()), check=False, averaged=average)
    for average, says in [
        (AveragedModel(net), "exponential"),
        (AveragedModel(net, avg_fn=lambda a, w, n: torch.maximum(a, w)), "exponential"),
        (AveragedModel(net, use_buffers=True), "use_buffers"),
        (_averaged(torch, torch.nn.Linear(6, 3)), "another module"),
    ]:
        with pytest.raises(plimsoll.PlimsollError, match=says):
            make(average)
    with pytest.raises(TypeError, match="AveragedModel"):
        make(net)
    average = _averaged(torch, net)
    trainer = make(average)
    trainer.step(batches[0])
    average.update_parameters(net)
    for act in (lambda: trainer.step(batches[1]), trainer.sync):
        with pytest.raises(plimsoll.PlimsollError, match="update_parameters"):
            act()


def test_what_is_changed_before_a_scheduler_begins_to_turn_momentum_is_not_lost():
    torch = ready()
    batches = _batches(torch)
    (ours, own), (theirs, their) = _twins(torch, torch.optim.AdamW, 0.01)
    trainer = _trainer(torch, ours, own, check=False)
    trainer.step(batches[0]), _stepped(torch, theirs, their, batches[0])
    trainer.sync()
    for net, optimizer in ((ours, own), (theirs, their)):
        for parameter in net.parameters():
            parameter.data.clamp_(-0.1, 0.1)
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    assert trainer.step(batches[1]) == pytest.approx(_stepped(torch, theirs, their, batches[1]), abs=1e-4)
    trainer.sync()
    _same(ours, theirs, "end")


def test_trainers_of_several_threads_wait_for_one_another_while_they_export():
    torch = ready()
    import threading

    from plimsoll.torch import Trainer

    torch.manual_seed(1)
    batch, found = (torch.randn(6, 4), torch.randint(3, (6,))), {}

    def train(number):
        try:
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 3)
            with torch.no_grad():
                model.weight.fill_(0.1), model.bias.fill_(0.0)
            trainer = Trainer(model, torch.nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1))
            found[number] = [trainer.step(batch) for _ in range(3)]
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert found[0] == found[1] == found[2] and len(found[0]) == 3, found
    # PyTorch's own functions are there again.
    x = torch.ones(2, requires_grad=True)
    assert torch.autograd.grad((x * x).sum(), x)[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("region", ["no_grad", "inference_mode"])
def test_a_step_in_a_region_without_gradients_is_a_step(region):
    torch = ready()
    from plimsoll.torch import Trainer

    model = torch.nn.Linear(4, 3)
    batch = (torch.randn(6, 4), torch.randint(3, (6,)))
    trainer = Trainer(model, torch.nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1))
    with getattr(torch, region)():
        first = trainer.step(batch)
    assert trainer.step(batch) < first


def test_what_cannot_be_a_batch_is_said_in_plain_words():
    torch = ready()
    import plimsoll
    from plimsoll.torch import Trainer

    model = torch.nn.Linear(4, 3)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    trainer = Trainer(model, torch.nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1))
    trainer.step((x, y))
    with pytest.raises(plimsoll.PlimsollError, match=r"batches \(float32 \[\*, 4\], int64 \[\*\]\); this one is \(float64 \[\*, 4\], int64 \[\*\]\)"):
        trainer.step((x.double(), y))
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    other = Trainer(model, torch.nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(plimsoll.PlimsollError, match="loss of eager PyTorch is nan on the first batch"):
        other.step((x, y))
