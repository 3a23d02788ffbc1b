"""Modules of PyTorch that several tests train, and PyTorch made ready for a test."""

from __future__ import annotations


def ready():
    """PyTorch on one thread, with random numbers from their beginning."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch


def tied(torch, words, width):
    """A transformer block over tied words, which returns its loss by name; one layer is not used."""
    nn = torch.nn

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(words, width)
            self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
            self.head = nn.Linear(width, words, bias=False)
            self.head.weight = self.words.weight
            self.unused = nn.Linear(3, 3)

        def forward(self, tokens, labels):
            logits = self.head(self.block(self.words(tokens)))
            return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    return Tied()


def built(forward, **parts):
    """A module of parts by name, with a forward of its own."""
    import torch

    module = type("Built", (torch.nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def checking(self, x):
    """A forward that checks what is in its tensors. It stands here because pytest writes the assertions of tests anew."""
    import torch

    y = self.line(x)
    assert torch.all(x < 100).item(), "large"
    assert not torch.isnan(y).any() and bool((y < 1e6).all())
    if torch.isinf(y).any() or not torch.isfinite(x).all():
        message = "endless"
        raise ValueError(message)
    return (y**2).mean()
