"""Layers and losses of torch.nn that an export does not take as they are, trained beside eager PyTorch."""

from __future__ import annotations

import copy

import pytest

import plimsoll
from torch_modules import built, ready
STEPS = 4


def _trained(torch, model, batch, rate=0.1):
    """Some steps of the engine and of eager PyTorch from the same weights: the same losses, weights and buffers."""
    from plimsoll.torch import Trainer

    theirs = copy.deepcopy(model)
    optimizer = torch.optim.SGD(theirs.parameters(), rate)
    trainer = Trainer(model, None, torch.optim.SGD(model.parameters(), rate))
    for _ in range(STEPS):
        found = trainer.step(batch)
        optimizer.zero_grad()
        loss = theirs(*batch)
        loss.backward()
        optimizer.step()
        assert abs(found - loss.item()) <= 2e-4 * max(1.0, abs(loss.item()))
    trainer.sync()
    for name, wanted in theirs.state_dict().items():
        assert torch.allclose(model.state_dict()[name].double(), wanted.double(), rtol=2e-4, atol=2e-4), name


def _gaussian(torch):
    loss = torch.nn.GaussianNLLLoss(full=True)

    def forward(self, x, y):
        mean, spread = self.line(x).chunk(2, -1)
        # Some variances are below the least that the loss takes.
        return loss(mean, y, torch.relu(spread))

    return built(forward, line=torch.nn.Linear(5, 4)), (torch.randn(6, 5), torch.randn(6, 2))


def _ctc(torch):
    def forward(self, x, labels, lengths, counts):
        logs = self.line(x).log_softmax(-1).transpose(0, 1)
        return torch.nn.functional.ctc_loss(logs, labels, lengths, counts, zero_infinity=True)

    batch = (torch.randn(3, 9, 5), torch.tensor([[1, 1, 2, 3], [4, 2, 0, 0], [3, 3, 3, 3]]), torch.tensor([9, 7, 5]), torch.tensor([4, 2, 4]))
    return built(forward, line=torch.nn.Linear(5, 6)), batch


def _clusters(torch):
    inner = torch.nn.AdaptiveLogSoftmaxWithLoss(6, 12, [4, 8], 2.0, head_bias=True)
    return built(lambda self, x, y: self.inner(self.line(x), y).loss, line=torch.nn.Linear(5, 6), inner=inner), (torch.randn(8, 5), torch.arange(8) * 5 % 12)


def _averaged(torch):
    norm = torch.nn.BatchNorm1d(4, momentum=None)
    return built(lambda self, x: (self.norm(self.line(x)) ** 3).mean() + self.norm.weight.sum(), line=torch.nn.Linear(5, 4), norm=norm), (torch.randn(6, 5),)


def _frequent(torch):
    words, bag = torch.nn.Embedding(9, 4, scale_grad_by_freq=True, padding_idx=1), torch.nn.EmbeddingBag(9, 4, mode="max", padding_idx=2)
    often = torch.nn.EmbeddingBag(9, 4, mode="mean", scale_grad_by_freq=True)
    forward = lambda self, x: (self.words(x) ** 2).mean() + (self.bag(x) ** 2).mean() + (self.often(x) ** 2).mean()
    return built(forward, words=words, bag=bag, often=often), (torch.tensor([[1, 1, 3, 3, 3], [2, 2, 2, 2, 2], [8, 2, 3, 0, 5]]),)


def _sampled(torch):
    def forward(self, x, grid):
        x = self.mix(x)
        sample = torch.nn.functional.grid_sample
        volume = x.unsqueeze(2).expand(-1, -1, 3, -1, -1) * torch.linspace(0.5, 1, 3).view(3, 1, 1)
        deep = torch.cat([grid, grid[..., :1]], -1).unsqueeze(1)
        made = [sample(x, grid, mode, outside, False) for mode in ("bilinear", "bicubic") for outside in ("zeros", "reflection")]
        made += [sample(volume, deep, "bilinear", outside, True) for outside in ("zeros", "border", "reflection")]
        return sum((part**2).mean() for part in made) + torch.pdist(x.flatten(1)).mean()

    return built(forward, mix=torch.nn.Conv2d(2, 2, 1)), (torch.randn(3, 2, 5, 6), torch.rand(3, 4, 4, 2) * 2.6 - 1.3)


def _assigned(torch):
    def forward(self, x):
        h = self.line(x).clone()
        h[:, ::2] *= 2
        h[1:3, 1] = h[0, 0]
        h.t()[3].mul_(0.5)
        h[h > 1] = 0.9
        out = torch.zeros(x.shape[0], 6)
        out[:, 1:4] = h[:, :3]
        out[..., -1] += h.sum(1)
        turned = torch.view_as_complex(h.reshape(-1, 3, 2)).angle()
        return (out**3).mean() + turned.sin().mean()

    return built(forward, line=torch.nn.Linear(4, 6)), (torch.randn(5, 4),)


@pytest.mark.parametrize("make", [_gaussian, _ctc, _clusters, _averaged, _frequent, _sampled, _assigned])
def test_layers_that_look_at_numbers_are_trained_as_eager_trains_them(make):
    torch = ready()
    _trained(torch, *make(torch))


def test_a_variance_below_0_is_an_error_in_later_batches_too():
    torch = ready()
    import plimsoll.torch as pt

    loss = torch.nn.GaussianNLLLoss()
    model = built(lambda self, x, y, spread: loss(self.line(x), y, spread), line=torch.nn.Linear(5, 2))
    x, y, spread = torch.randn(6, 5), torch.randn(6, 2), torch.rand(6, 2) + 0.1
    trainer = pt.Trainer(model, None, torch.optim.SGD(model.parameters(), 0.1))
    trainer.step((x, y, spread))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(Exception, match="NaN"):
        trainer.step((x, y, -spread))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_pytorch_s_own_functions_are_as_they_were_after_an_export():
    torch = ready()
    from plimsoll.torch import export

    parts = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.AdaptiveLogSoftmaxWithLoss)
    before = [part.forward for part in parts]
    model, batch = _averaged(torch)
    export(model, batch)
    with pytest.raises(Exception):
        export(built(lambda self, x: x if x.sum() > 0 else -x, line=torch.nn.Linear(1, 1)), batch)
    assert [part.forward for part in parts] == before


def test_labels_in_one_row_are_refused_with_what_to_give():
    torch = ready()
    from plimsoll.torch import Trainer

    def forward(self, x, labels, lengths, counts):
        return torch.nn.functional.ctc_loss(self.line(x).log_softmax(-1).transpose(0, 1), labels, lengths, counts)

    model = built(forward, line=torch.nn.Linear(5, 6))
    batch = (torch.randn(3, 9, 5), torch.tensor([1, 1, 2, 3, 4]), torch.tensor([9, 9, 9]), torch.tensor([2, 2, 1]))
    with pytest.raises(plimsoll.PlimsollError, match=r"\[samples, longest\]"):
        Trainer(model, None, torch.optim.SGD(model.parameters(), 0.1)).step(batch)


def test_a_router_of_zeros_is_no_reason_to_refuse():
    """Of ties PyTorch takes other experts: at weights a little beside them both take the same."""
    torch = ready()
    from plimsoll.torch import Trainer

    def forward(self, x):
        scores = self.router(x).sigmoid()
        chosen = scores.topk(2, 1).indices
        shares = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
        return (torch.stack([expert(x) for expert in self.experts], 1) * shares.unsqueeze(-1)).square().mean()

    model = built(forward, router=torch.nn.Linear(5, 4, bias=False), experts=torch.nn.ModuleList(torch.nn.Linear(5, 3) for _ in range(4)))
    torch.nn.init.zeros_(model.router.weight)
    assert Trainer(model, None, torch.optim.SGD(model.parameters(), 0.1)).step((torch.randn(6, 5),)) > 0
    assert not torch.equal(model.experts[0].weight, torch.zeros(3, 5))


def _clamps_in_place(self, x):
    import torch

    y = self.line(x).mean()
    with torch.no_grad():
        self.line.weight.clamp_(-1, 1)
    return y


def _packs(self, x):
    import torch

    packed = torch.nn.utils.rnn.pack_padded_sequence(x.unsqueeze(2), torch.tensor([5, 4, 3, 2, 2, 1]), batch_first=True)
    return self.line(packed.data.expand(-1, 5)).mean()


def _sets_data(self, x):
    self.line.weight.data = self.line.weight.data / 2
    return self.line(x).mean()


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (_clamps_in_place, "line.weight is trained and forward writes to it"),
        (_packs, "run the layer over padded sequences"),
        (_sets_data, r"test_torch_layers.py|\.data that is assigned"),
        (lambda self, x: self.line(x)[x[:, 0] > 0].cumsum(0).mean(), "cumsum.*torch.where"),
        (lambda self, x: (self.line(x) * x.round().unique().sum()).mean(), "torch.where"),
        (lambda self, x: self.line(x if x.sum() > 0 else -x).mean(), r"test_torch_layers.py:\d+ \(.*x if x.sum\(\).*torch.cond"),
    ],
)
def test_what_a_plan_cannot_have_is_refused_with_what_to_write(forward, words):
    torch = ready()
    from plimsoll.torch import Trainer

    model = built(forward, line=torch.nn.Linear(5, 3))
    with pytest.raises(plimsoll.PlimsollError, match=words):
        Trainer(model, None, torch.optim.SGD(model.parameters(), 0.1)).step((torch.randn(6, 5),))


def test_a_module_in_eval_is_said_to_be_trained_in_training_mode():
    torch = ready()
    from plimsoll.torch import Trainer

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).eval()
    with pytest.warns(UserWarning, match="trained in training mode"):
        Trainer(model, torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1)).step((torch.randn(4, 4), torch.randn(4, 4)))
