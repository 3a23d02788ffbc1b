"""Custom ``autograd.Function``s, trained beside eager PyTorch, or refused."""

from __future__ import annotations

import copy

import pytest

import plimsoll
from torch_modules import built, ready


def _reversed(torch):
    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.weight = weight
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return -ctx.weight * grad, None

    return lambda x: Reversed.apply(x, 0.3)


def _binary(torch):
    class Binary(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.where(x >= 0, 1.0, -1.0)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * (x.abs() <= 1)

    return Binary.apply


def _set_up(torch):
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(x, scale):
            return torch.round(x * scale) / scale

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx, grad):
            return grad * (1 - ctx.saved_tensors[0] ** 2), None

    return lambda x: Rounded.apply(x, 4.0)


@pytest.mark.parametrize("make", [_reversed, _binary, _set_up])
def test_a_function_that_lets_gradients_through_by_element_is_trained(make):
    torch = ready()
    import plimsoll.torch as pt

    function = make(torch)
    forward = lambda self, x: (self.head(function(self.line(x))) - x.sum(1, keepdim=True)).pow(2).mean()
    model = built(forward, line=torch.nn.Linear(4, 5), head=torch.nn.Linear(5, 1))
    theirs = copy.deepcopy(model)
    trainer, optimizer = pt.Trainer(model, None, torch.optim.SGD(model.parameters(), 0.05)), torch.optim.SGD(theirs.parameters(), 0.05)
    for _ in range(3):
        x = torch.randn(6, 4)
        found = trainer.step((x,))
        optimizer.zero_grad()
        loss = theirs(x)
        loss.backward()
        optimizer.step()
        assert found == pytest.approx(loss.item(), rel=1e-4)


def test_a_function_whose_backward_does_more_is_refused():
    torch = ready()
    import plimsoll.torch as pt

    class Shortened(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad.clamp(-0.01, 0.01)

    own = Shortened.__dict__["forward"]
    model = built(lambda self, x: Shortened.apply(self.line(x)).pow(2).sum(), line=torch.nn.Linear(4, 5))
    with pytest.raises(plimsoll.PlimsollError, match="of its norm away from that of eager PyTorch"):
        pt.Trainer(model, None, torch.optim.SGD(model.parameters(), 0.05)).step((torch.randn(6, 4),))
    assert Shortened.__dict__["forward"] is own
