"""Modules that pick rows by masks, or check what is in tensors, trained beside eager PyTorch."""

from __future__ import annotations

import copy

import pytest

import plimsoll
from torch_modules import built, checking, ready


def _trained(torch, model, *batches, rate=0.05):
    """A step of the engine and of eager PyTorch on each batch: the same losses and weights."""
    from plimsoll.torch import Trainer

    theirs = copy.deepcopy(model)
    optimizer = torch.optim.SGD(theirs.parameters(), rate)
    trainer = Trainer(model, None, torch.optim.SGD(model.parameters(), rate))
    for batch in batches:
        found = trainer.step(batch)
        optimizer.zero_grad()
        loss = theirs(*batch)
        loss.backward()
        optimizer.step()
        assert found == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
    trainer.sync()
    for name, wanted in theirs.state_dict().items():
        assert torch.allclose(model.state_dict()[name].double(), wanted.double(), rtol=2e-4, atol=2e-4), name


def test_rows_that_a_mask_picks_are_averaged_summed_and_put_back():
    torch = ready()
    F = torch.nn.functional

    def forward(self, x, y):
        known, h = y >= 0, self.line(x)
        loss = F.cross_entropy(h[known], y[known]) + F.cross_entropy(h[y >= 0], y[y >= 0], weight=self.shares, label_smoothing=0.1)
        loss = loss + (x[known] * 2).mean() + F.mse_loss(self.same(x)[known], x[known], reduction="sum") / known.sum()
        put = torch.zeros_like(x)
        put[known] = self.same(x[known]).tanh()
        twice = h.clone()
        twice[known] *= 2
        zero, one = h[:, 0][y == 0], h[:, 1][y == 1]
        all_of = torch.cat([zero, one])
        loss = loss + F.binary_cross_entropy_with_logits(all_of, torch.cat([torch.zeros_like(zero), torch.ones_like(one)])) + all_of.max() + h[known].var(0).sum()
        return loss + put.mean() + twice.pow(2).mean() + torch.masked_select(self.same(x), x > 0).mean() + h[known].std()

    model = built(forward, line=torch.nn.Linear(4, 3), same=torch.nn.Linear(4, 4))
    model.register_buffer("shares", torch.tensor([0.2, 0.5, 0.3]))
    labels = torch.tensor([[0, -1, 2, 1, -1, 0], [1, 1, 0, -1, -1, -1]])
    _trained(torch, model, *[(torch.randn(6, 4), row) for row in labels])


def test_experts_that_are_asked_for_their_tokens_are_trained():
    torch = ready()
    F = torch.nn.functional

    def forward(self, x, y):
        shares, chosen = torch.topk(F.softmax(self.router(x), -1), 2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(x[token]) * shares[token, place, None])
        rows = torch.nonzero(chosen[:, 0] == 0).squeeze(1)
        return F.mse_loss(out, y) + self.router(x)[rows].pow(2).sum()

    experts = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.GELU(), torch.nn.Linear(12, 8)) for _ in range(4))
    model = built(forward, router=torch.nn.Linear(8, 4), experts=experts)
    _trained(torch, model, *[(torch.randn(10, 8), torch.randn(10, 8)) for _ in range(2)])


def test_a_class_that_no_sample_has_is_left_out_as_the_module_leaves_it_out():
    torch = ready()

    def forward(self, x, y):
        h, loss = self.line(x), 0.0
        for label in range(3):
            own = h[y == label]
            if own.shape[0] > 0:
                loss = loss + own.pow(2).mean() + own.sum() / own.shape[0]
        return loss

    _trained(torch, built(forward, line=torch.nn.Linear(4, 3)), (torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 1, 0])), (torch.randn(6, 4), torch.tensor([2, 2, 2, 2, 2, 1])))


@pytest.mark.parametrize("does", ["self.norm(rows)", "rows.t()", "rows.flip(0)", "rows.softmax(0)", "rows.cumsum(0)", "rows[0]", "rows[:2]", "rows + x", "self.norm.weight + len(rows)", "rows * other[:2]"])
def test_what_mixes_rows_that_a_mask_picks_is_refused_by_name(does):
    torch = ready()
    import plimsoll.torch as pt

    def forward(self, x, y):
        other = x[y > 2]
        return (eval(does, {"self": self, "rows": self.line(x)[y > 0], "x": x, "other": other}) ** 2).mean()

    model = built(forward, line=torch.nn.Linear(4, 4), norm=torch.nn.BatchNorm1d(4))
    with pytest.raises(plimsoll.PlimsollError, match="rows that a mask picks"):
        pt.Trainer(model, None, torch.optim.SGD(model.parameters(), 0.1)).step((torch.randn(6, 4), torch.tensor([1, 0, 3, 4, 5, 0])))


def test_what_only_checks_is_left_out_and_what_decides_is_refused():
    torch = ready()
    import plimsoll.torch as pt

    def decides(self, x):
        y = self.line(x)
        is_large = (y > 0).any().item()
        assert x.shape[0] > 1
        return (y**2).mean() * (2.0 if is_large else 1.0)

    with pytest.warns(UserWarning, match=r"checked of numbers in tensors at .*torch_modules.py:50, .*torch_modules.py:51.* first batch alone"):
        _trained(torch, built(checking, line=torch.nn.Linear(4, 3)), (torch.randn(6, 4),), (torch.randn(9, 4),))
    model = built(decides, line=torch.nn.Linear(4, 3))
    with pytest.raises(plimsoll.PlimsollError, match="asks for a number that is in a tensor"):
        pt.Trainer(model, None, torch.optim.SGD(model.parameters(), 0.1)).step((torch.randn(6, 4),))


def test_a_graph_of_which_a_few_nodes_are_no_graph_is_trained():
    torch = ready()
    F = torch.nn.functional

    def forward(self, x, edges, y):
        source, target = edges
        degree = torch.zeros(len(x)).scatter_add_(0, target, torch.ones(len(target))) + 1
        h = self.line(x)
        h = torch.zeros_like(h).index_add_(0, target, h[source] * degree.rsqrt()[source].unsqueeze(1)) + h / degree.unsqueeze(1)
        return F.nll_loss(F.log_softmax(self.head(F.elu(h)), -1), y)

    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
    batch = (torch.randn(6, 5), edges, torch.tensor([0, 1, 2, 0, 1, 2]))
    _trained(torch, built(forward, line=torch.nn.Linear(5, 8), head=torch.nn.Linear(8, 3)), batch, batch)


def test_classes_that_the_first_few_samples_have_not_are_trained():
    torch = ready()

    def forward(self, x, y):
        z = self.line(x)
        centres = torch.stack([z[y == label].mean(0) for label in range(3)])
        return torch.nn.functional.cross_entropy(-torch.cdist(z, centres), y)

    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
    _trained(torch, built(forward, line=torch.nn.Linear(5, 3)), (torch.randn(9, 5), labels), (torch.randn(9, 5), labels.flip(0)))


def test_labels_that_a_mask_picks_out_of_rows_are_those_of_a_ctc_loss():
    torch = ready()

    def forward(self, x, labels):
        logs = self.line(x).log_softmax(-1).transpose(0, 1)
        is_label = labels >= 0
        lengths = torch.full((x.shape[0],), logs.shape[0], dtype=torch.long)
        return torch.nn.functional.ctc_loss(logs, labels.masked_select(is_label), lengths, is_label.sum(-1), zero_infinity=True)

    def batch(*fillings):
        labels = torch.randint(1, 6, (4, 5))
        for sample, place in fillings:
            labels[sample, place] = -100
        return torch.randn(4, 12, 3), labels

    # A filling may stand in the middle as well.
    _trained(torch, built(forward, line=torch.nn.Linear(3, 6)), batch((0, 4), (2, 3), (2, 4)), batch((1, 0), (3, 2)), batch())


@pytest.mark.parametrize("number", [0, 1, -1, -2])
def test_one_picked_row_of_every_sample_is_found_by_its_number(number):
    torch = ready()

    def forward(self, x, words):
        is_end = words.eq(2)
        chosen = self.line(x)[is_end, :]
        if not chosen.shape[0] // x.shape[0] >= 1:
            raise ValueError("an end is missing")
        return (chosen.view(x.shape[0], -1, 2)[:, number, :] ** 2).mean()

    def batch():
        words = torch.zeros(5, 7, dtype=torch.long)
        for row in words:
            row[torch.randperm(7)[:3]] = 2
        return torch.randn(5, 7, 3), words

    _trained(torch, built(forward, line=torch.nn.Linear(3, 2)), batch(), batch(), batch())


def test_other_parts_of_picked_rows_of_every_sample_are_refused():
    torch = ready()
    from plimsoll.torch import Trainer

    def forward(self, x, words):
        return self.line(x)[words.eq(2), :].view(x.shape[0], -1, 2).sum(1).mean()

    model = built(forward, line=torch.nn.Linear(3, 2))
    with pytest.raises(plimsoll.PlimsollError, match="sum of picked rows of every sample"):
        Trainer(model, None, torch.optim.SGD(model.parameters(), 0.1)).step((torch.randn(2, 3, 3), torch.full((2, 3), 2)))
