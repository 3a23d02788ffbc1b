"""Functions at zeros, ties and bounds, and functions that are made of others: loss and gradients in f64 beside eager PyTorch's."""

from __future__ import annotations

import math

import pytest

from torch_modules import ready


def _compared(torch, functions, inputs):
    """All functions in one module over parameters of its own: what the engine makes of them is what eager PyTorch does."""
    from plimsoll import _native
    from plimsoll.torch._batch import Batch
    from plimsoll.torch._program import loss_program

    class Functions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.added = torch.nn.ParameterDict({name: torch.zeros_like(x) for name, x in inputs.items()})

        def forward(self, still):
            given = {name: self.added[name] + x for name, x in inputs.items()}
            loss = still.sum() * 0
            for number, function in enumerate(functions):
                made = function(torch, given)
                for part in made if isinstance(made, (tuple, list)) else [made]:
                    part = part.double()
                    loss = loss + (part * torch.cos(torch.arange(part.numel(), dtype=torch.float64) + number).reshape(part.shape)).sum()
            return loss

    model = Functions()
    batch = Batch((torch.zeros(2, dtype=torch.float64),))
    loss = model(*batch.tensors)
    wanted = torch.autograd.grad(loss, list(model.added.values()), allow_unused=True)
    program = loss_program(model, None, batch)
    settings = dict.fromkeys(("memory", "host_memory", "micro_batch", "clip_norm", "clip_value"))
    settings |= {"name": "model", "device": "cpu", "exact": "reassociated", "accumulate": 1, "scaled": False, "seed": 0, "frozen": []}
    found_loss, found = _native.TorchTraining(program.handed(), settings).gradients(batch.arrays())
    assert found_loss == pytest.approx(loss.item(), rel=1e-9, abs=1e-9)
    found = {name: None if data is None else torch.frombuffer(bytearray(data), dtype=torch.float64) for name, data in found}
    for name, gradient in zip(model.added, wanted):
        own = found[f"added.{name}"]
        own = torch.zeros_like(model.added[name]) if own is None else own.reshape(model.added[name].shape)
        gradient = torch.zeros_like(own) if gradient is None else gradient
        assert torch.allclose(own, gradient, rtol=1e-8, atol=1e-8), f"{name}: {own} is not {gradient}"


def _inputs(torch):
    drawn = lambda *shape: torch.randn(*shape, dtype=torch.float64)
    return {
        "zeros": torch.zeros(3, 4, dtype=torch.float64),
        "ties": torch.tensor([[1.0, 2, 2, 0], [0, 0, 0, 0], [3, 3, 1, -1]], dtype=torch.float64),
        "drawn": drawn(3, 4),
        "other": drawn(3, 4),
        "square": drawn(3, 3) + 3 * torch.eye(3, dtype=torch.float64),
        "shares": torch.rand(3, 4, dtype=torch.float64) * 0.8 + 0.1,
        "image": torch.zeros(1, 1, 5, 5, dtype=torch.float64),
    }


AT_EDGES = [
    lambda torch, x: x["zeros"].std(-1),
    lambda torch, x: torch.std_mean(x["ties"], 1),
    lambda torch, x: x["ties"].norm(p=3, dim=1),
    lambda torch, x: torch.linalg.vector_norm(x["ties"], 1.5, 1),
    lambda torch, x: x["drawn"].norm(p=-1, dim=1),
    lambda torch, x: torch.nn.functional.cosine_similarity(x["zeros"], x["drawn"]) * 1e-8,
    lambda torch, x: torch.nn.functional.hardtanh(x["ties"], -1, 2),
    lambda torch, x: torch.nn.functional.relu6(x["ties"] * 2),
    lambda torch, x: torch.nn.functional.hardtanh(x["ties"], 0, 3),
    lambda torch, x: torch.logsumexp(x["drawn"].masked_fill(x["drawn"] < 10, -math.inf), 1).clamp(min=-5),
    lambda torch, x: torch.nn.functional.binary_cross_entropy(x["zeros"], torch.zeros(3, 4, dtype=torch.float64)),
    lambda torch, x: torch.nn.functional.binary_cross_entropy(x["zeros"] + 1, torch.ones(3, 4, dtype=torch.float64)),
    lambda torch, x: torch.sinc(x["ties"]),
    lambda torch, x: torch.xlogy(x["ties"].abs(), x["shares"]),
    lambda torch, x: torch.fmax(x["ties"], x["ties"].detach()),
]
WINDOWS = [
    lambda torch, x: torch.nn.functional.adaptive_max_pool2d(x["image"], 2),
    lambda torch, x: torch.nn.functional.avg_pool2d(x["image"], 7, ceil_mode=True),
    lambda torch, x: torch.nn.functional.avg_pool2d(x["image"], 640, ceil_mode=True),
    lambda torch, x: torch.nn.functional.max_pool2d(x["image"], 640, ceil_mode=True),
    lambda torch, x: torch.nn.functional.max_pool2d(x["drawn"].repeat(20, 15).unsqueeze(0), 40, 15),
    lambda torch, x: torch.nn.functional.max_pool1d(x["drawn"].repeat(1, 100), 400),
    lambda torch, x: torch.nn.functional.adaptive_max_pool2d(x["drawn"].repeat(20, 15).unsqueeze(0), 1),
]
MADE_OF_OTHERS = [
    lambda torch, x: torch.erfinv(x["shares"]),
    lambda torch, x: torch.lgamma(x["shares"] * 5),
    lambda torch, x: torch.lgamma(x["drawn"] - 0.3),
    lambda torch, x: torch.digamma(x["shares"] * 5),
    lambda torch, x: torch.digamma(x["drawn"] - 0.3),
    lambda torch, x: torch.polygamma(1, x["shares"] * 5),
    lambda torch, x: x["drawn"].logcumsumexp(1),
    lambda torch, x: x["ties"].cummax(1)[0],
    lambda torch, x: x["drawn"].cummin(0)[0],
    lambda torch, x: torch.round(x["drawn"], decimals=1) * x["drawn"],
    lambda torch, x: torch.dist(x["drawn"], x["other"]),
    lambda torch, x: torch.ldexp(x["drawn"], torch.tensor([1, 2, 3, 4])),
    lambda torch, x: torch.signbit(x["drawn"]) * x["other"],
    lambda torch, x: (torch.tensor([1, 2, 3, 4]) << 2) * x["drawn"],
    lambda torch, x: (torch.tensor([-5, 2, 3, 4]) >> 1) * x["drawn"],
    lambda torch, x: x["drawn"].index_reduce(0, torch.tensor([0, 0, 2]), x["other"], "mean"),
    lambda torch, x: x["drawn"].put(torch.tensor([5, 5]), x["other"][0, :2], accumulate=True),
    lambda torch, x: torch.diagonal_scatter(x["square"], x["drawn"][0, :2], 1),
    lambda torch, x: torch.cdist(x["drawn"], x["other"], p=3.0),
    lambda torch, x: torch.cdist(x["drawn"], x["other"], p=math.inf),
    lambda torch, x: torch.einsum("ii->i", x["square"]),
    lambda torch, x: torch.einsum("ii", x["square"]),
    lambda torch, x: torch.einsum("bij,bjk->bik", x["drawn"].unsqueeze(0), x["other"].t().expand(2, 4, 3)),
    lambda torch, x: torch._weight_norm(x["drawn"], x["other"][0, 0], -1),
    lambda torch, x: x["square"].clone().fill_diagonal_(0.5),
]
ALGEBRA = [
    lambda torch, x: torch.inverse(x["square"]),
    lambda torch, x: torch.linalg.solve(x["square"], x["drawn"]),
    lambda torch, x: torch.linalg.solve(x["square"], x["drawn"][:, 0]),
    lambda torch, x: torch.linalg.solve(x["square"], x["drawn"].t(), left=False),
    lambda torch, x: torch.det(x["square"]),
    lambda torch, x: torch.linalg.slogdet(-x["square"])[1],
    lambda torch, x: torch.logdet(x["square"] @ x["square"].mT),
    lambda torch, x: torch.linalg.cholesky(x["square"] @ x["square"].mT),
    lambda torch, x: torch.cholesky_solve(x["drawn"], torch.linalg.cholesky(x["square"] @ x["square"].mT)),
    lambda torch, x: torch.linalg.solve_triangular(x["square"].triu(), x["drawn"], upper=True),
    lambda torch, x: torch.linalg.solve_triangular(x["square"].tril(), x["drawn"].t(), upper=False, left=False),
    lambda torch, x: torch.linalg.householder_product(x["drawn"].t(), x["other"][0, :3]),
    lambda torch, x: torch.matrix_exp(x["square"] * 0.3),
    # The largest pivot is below the first row.
    lambda torch, x: torch.inverse(x["square"].flip(0).expand(2, 3, 3)),
]


@pytest.mark.parametrize("functions", [AT_EDGES, WINDOWS, MADE_OF_OTHERS, ALGEBRA], ids=["at_edges", "windows", "made_of_others", "algebra"])
def test_functions_have_the_loss_and_the_gradients_of_eager_pytorch(functions):
    torch = ready()
    _compared(torch, functions, _inputs(torch))


def test_orthogonal_and_weight_normed_layers_are_trained_as_eager_trains_them():
    torch = ready()
    import copy

    import plimsoll.torch as pt

    orthogonal, weight_norm = torch.nn.utils.parametrizations.orthogonal, torch.nn.utils.parametrizations.weight_norm
    layers = [orthogonal(torch.nn.Linear(6, 6)), torch.nn.Tanh(), orthogonal(torch.nn.Linear(6, 4)), weight_norm(torch.nn.Linear(4, 5), dim=None)]
    model = torch.nn.Sequential(*layers, orthogonal(torch.nn.Linear(5, 5), orthogonal_map="cayley"))
    theirs = copy.deepcopy(model)
    x, y = torch.randn(7, 6), torch.randn(7, 5)
    trainer = pt.Trainer(model, torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1))
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)
    for _ in range(3):
        found = trainer.step((x, y))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(theirs(x), y)
        loss.backward()
        optimizer.step()
        assert found == pytest.approx(loss.item(), rel=1e-5)


def test_a_gradient_within_forward_is_refused_with_what_to_write_instead():
    torch = ready()
    import plimsoll
    import plimsoll.torch as pt
    from torch_modules import built

    def penalty(self, x):
        x = x.clone().requires_grad_(True)
        return torch.autograd.grad(self.line(x).sum(), x, create_graph=True)[0].pow(2).mean()

    model = built(penalty, line=torch.nn.Linear(3, 2))
    with pytest.raises(plimsoll.PlimsollError, match="forward asks for a gradient.*difference of two calls"):
        pt.Trainer(model, None, torch.optim.SGD(model.parameters(), 0.1)).step((torch.randn(4, 3),))
