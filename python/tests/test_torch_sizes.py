"""Batches of other sizes than the first, and what a module does in Python beside its tensors: followed, said, or refused by name."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
from torch_modules import built, ready


def _trainer(torch, module, loss_fn=None, **more):
    from plimsoll.torch import Trainer

    return Trainer(module, loss_fn, torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.1), memory="200MiB", **more)


def _eager(torch, module, batches):
    """The losses of steps in eager PyTorch."""
    optimizer, losses = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.1), []
    for batch in batches:
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_batch_whose_size_takes_another_way_is_refused():
    torch = ready()
    import plimsoll

    def forward(self, x):
        y = self.line(x)
        return (torch.relu(y) if x.shape[0] > 5 else torch.tanh(y)).pow(2).mean()

    module = built(forward, line=torch.nn.Linear(3, 4))
    batches = [(torch.randn(n, 3),) for n in (8, 6, 9)]
    wanted = _eager(torch, copy.deepcopy(module), batches)
    trainer = _trainer(torch, module)
    # The few samples of the comparison would go the other way, so all of the first batch are compared.
    assert [trainer.step(batch) for batch in batches] == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(plimsoll.PlimsollError, match=r"\[4, 3\] goes another way .* axis 0 of tensor 0 > 5.*drop_last"):
        trainer.step((torch.randn(4, 3),))
    with pytest.raises(plimsoll.PlimsollError, match="another way"):
        trainer.evaluate([(torch.randn(9, 3),), (torch.randn(4, 3),)])
    # Nothing was lost of what was trained.
    assert trainer.step(batches[0]) < wanted[0]


def test_what_makes_no_difference_hinders_no_batch():
    torch = ready()

    def forward(self, x):
        y = self.norm(self.conv(x))
        # Of one sample an exporter takes for granted that it is not alone.
        return (y.flatten(1) ** 2).sum() / x.shape[0] + torch.logcumsumexp(y.mean((1, 2, 3)), 0).mean()

    module = built(forward, conv=torch.nn.Conv2d(2, 3, 3), norm=torch.nn.BatchNorm2d(3))
    batches = [(torch.randn(n, 2, 6, 6),) for n in (7, 5, 1, 6)]
    other = copy.deepcopy(module)
    wanted = _eager(torch, other, batches)
    trainer = _trainer(torch, module)
    assert [trainer.step(batch) for batch in batches] == pytest.approx(wanted, rel=1e-4)
    trainer.sync()
    assert torch.allclose(module.norm.running_var, other.norm.running_var, rtol=1e-4)


def _chosen(self, x):
    return self.parts[random.randrange(3)](x).pow(2).mean()


def _shifted(self, x):
    return self.parts[0](x + float(np.random.normal())).pow(2).mean()


@pytest.mark.parametrize("forward", [_chosen, _shifted])
def test_random_numbers_of_python_are_refused_where_the_loss_hangs_on_them(forward):
    torch = ready()
    import plimsoll

    module = built(forward, parts=torch.nn.ModuleList(torch.nn.Linear(3, 2) for _ in range(3)))
    with pytest.raises(plimsoll.PlimsollError, match="random numbers of Python or NumPy.*draw them with torch"):
        _trainer(torch, module).step((torch.randn(4, 3),))


def test_a_module_that_something_outside_of_it_turns_is_refused():
    torch = ready()
    import itertools

    import plimsoll

    turns = itertools.cycle([1.0, 2.0])

    def forward(self, x):
        return self.line(x).pow(2).mean() * next(turns)

    with pytest.raises(plimsoll.PlimsollError, match="another when it runs again .* an iterator"):
        _trainer(torch, built(forward, line=torch.nn.Linear(3, 2))).step((torch.randn(4, 3),))


def test_random_numbers_of_python_that_change_nothing_are_said():
    torch = ready()

    def forward(self, x):
        y = self.line(x)
        return (y * 0 if random.random() < self.rate else y).pow(2).mean()

    module = built(forward, line=torch.nn.Linear(3, 2))
    module.rate = 0.0
    with pytest.warns(UserWarning, match="draws random numbers of Python"):
        _trainer(torch, module).step((torch.randn(4, 3),))


def test_a_number_that_counts_calls_is_said():
    torch = ready()

    def forward(self, x):
        self.calls += 1
        return self.line(x).pow(2).mean() * (1.0 if self.calls < 100 else 0.5)

    module = built(forward, line=torch.nn.Linear(3, 2))
    module.calls = 0
    with pytest.warns(UserWarning, match="changes calls when it runs.*buffer"):
        _trainer(torch, module).step((torch.randn(4, 3),))
    assert module.calls == 0


def test_a_table_that_a_module_keeps_for_itself_is_left_as_it_was():
    torch = ready()

    def forward(self, x):
        length = x.shape[1]
        if length not in self.tables:
            self.tables[length] = torch.arange(length).float().cos()
        self.seen.append(length)
        return self.line(x * self.tables[length]).pow(2).mean()

    module = built(forward, line=torch.nn.Linear(3, 2))
    module.tables, module.seen = {}, []
    batches = [(torch.randn(4, 3),) for _ in range(3)]
    wanted = _eager(torch, copy.deepcopy(module), batches)
    trainer = _trainer(torch, module)
    assert [trainer.step(batch) for batch in batches] == pytest.approx(wanted, abs=1e-5)
    assert module.tables == {} and module.seen == []
    trainer.sync()
    module(*batches[0])
    assert list(module.tables) == [3]


def test_frozen_parameters_that_follow_others_are_written_once_a_step():
    torch = ready()

    def forward(self, x):
        with torch.no_grad():
            for own, other in zip(self.teacher.parameters(), self.line.parameters()):
                own.mul_(0.9).add_(other, alpha=0.1)
            wanted = self.teacher(x)
        return (self.line(x) - wanted).pow(2).mean()

    module = built(forward, line=torch.nn.Linear(3, 2), teacher=torch.nn.Linear(3, 2).requires_grad_(False))
    other = copy.deepcopy(module)
    batches = [(torch.randn(4, 3),) for _ in range(4)]
    wanted = _eager(torch, other, batches)
    trainer = _trainer(torch, module)
    assert [trainer.step(batch) for batch in batches] == pytest.approx(wanted, abs=1e-5)
    trainer.sync()
    assert torch.allclose(module.teacher.weight, other.teacher.weight, atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_parts_in_checkpoints_are_trained(reentrant):
    torch = ready()
    from torch.utils.checkpoint import checkpoint

    def forward(self, x):
        return self.out(checkpoint(self.inner, self.enter(x), use_reentrant=reentrant)).pow(2).mean()

    module = built(forward, enter=torch.nn.Linear(3, 4), inner=torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), out=torch.nn.Linear(4, 2))
    other = copy.deepcopy(module)
    batches = [(torch.randn(4, 3),) for _ in range(3)]
    wanted = _eager(torch, other, batches)
    trainer = _trainer(torch, module)
    assert [trainer.step(batch) for batch in batches] == pytest.approx(wanted, abs=1e-5)
    trainer.sync()
    assert torch.allclose(module.inner[0].weight, other.inner[0].weight, atol=1e-5)


def test_a_gradient_that_is_rounding_alone_is_no_reason_to_refuse():
    torch = ready()

    def forward(self, x, order):
        rate = self.line(x).squeeze(1)[order.argsort(descending=True)]
        return -(rate - torch.logcumsumexp(rate, 0)).mean()

    # A bias moves all rates alike, and the loss not at all.
    module = built(forward, line=torch.nn.Linear(4, 1))
    batches = [(torch.randn(6, 4), torch.rand(6)) for _ in range(3)]
    wanted = _eager(torch, copy.deepcopy(module), batches)
    trainer = _trainer(torch, module)
    assert [trainer.step(batch) for batch in batches] == pytest.approx(wanted, abs=1e-4)


def test_gradients_that_a_few_roundings_turn_are_no_reason_to_refuse():
    torch = ready()

    def forward(self, x):
        # A phase of so many turns that the order of a sum shows in its sine, in PyTorch as here.
        return 0.01 * torch.sin(1e5 * self.line(x)).mean()

    module = built(forward, line=torch.nn.Linear(300, 4))
    batch = (torch.randn(4, 300),)
    wanted = module(*batch).item()
    assert _trainer(torch, module).step(batch) == pytest.approx(wanted, abs=2e-3)
