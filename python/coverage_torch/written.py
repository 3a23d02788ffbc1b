"""Models as people write them by hand: each a module that returns its loss, with a batch."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
#: By name: what makes a model and its batch.
LISTED: dict[str, Callable[[], Made]] = {}


def _listed(make: Callable[[], Made]) -> Callable[[], Made]:
    LISTED[make.__name__.strip("_")] = make
    return make


class Lossy(nn.Module):
    """A module with a loss over what it gives for all of a batch but its last part."""

    def __init__(self, model: nn.Module, loss: Callable[..., torch.Tensor] = F.cross_entropy) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model(*batch[:-1]), batch[-1])


class Words(nn.Module):
    """Words through something recurrent to classes."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(40, 16, padding_idx=0), inner, nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.inner(self.words(x))
        return self.head(y.mean(1))


def _text(inner: nn.Module, width: int) -> Made:
    return Lossy(Words(inner, width)), (torch.randint(40, (4, 9)), torch.arange(4))


@_listed
def lstm_classifier() -> Made:
    return _text(nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True), 24)


@_listed
def gru_classifier() -> Made:
    return _text(nn.GRU(16, 12, num_layers=2, batch_first=True), 12)


@_listed
def rnn_classifier() -> Made:
    return _text(nn.RNN(16, 12, nonlinearity="relu", batch_first=True), 12)


class Cells(nn.Module):
    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.head, self.is_pair = cell(6, 10), nn.Linear(10, 5), cell is nn.LSTMCell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 10)
        c = torch.zeros_like(h)
        for t in range(x.shape[1]):
            if self.is_pair:
                h, c = self.cell(x[:, t], (h, c))
            else:
                h = self.cell(x[:, t], h)
        return self.head(h)


@_listed
def lstm_cells() -> Made:
    return Lossy(Cells(nn.LSTMCell)), (torch.randn(4, 5, 6), torch.arange(4))


@_listed
def gru_cells() -> Made:
    return Lossy(Cells(nn.GRUCell)), (torch.randn(4, 5, 6), torch.arange(4))


class Variational(nn.Module):
    """A variational autoencoder whose noise is a part of the batch, so that nothing is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.mean, self.log_variance = nn.Linear(16 * 16, 6), nn.Linear(16 * 16, 6)
        self.decoder = nn.Sequential(
            nn.Linear(6, 16 * 16), nn.Unflatten(1, (16, 4, 4)), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 3, 2, 1, output_padding=1)
        )

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.exp(0.5 * log_variance) * noise
        away = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return F.binary_cross_entropy_with_logits(self.decoder(z), x.sigmoid(), reduction="sum") / x.shape[0] + away / x.shape[0]


@_listed
def vae() -> Made:
    return Variational(), (torch.randn(4, 1, 16, 16), torch.randn(4, 6))


class VectorQuantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.codes = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)), nn.Embedding(16, 8)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encoder(x).permute(0, 2, 3, 1)
        flat = z.reshape(-1, 8)
        nearest = torch.cdist(flat, self.codes.weight).argmin(1)
        q = self.codes(nearest).view(z.shape)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        q = z + (q - z).detach()
        return F.mse_loss(self.decoder(q.permute(0, 3, 1, 2)), x) + loss


@_listed
def vq_vae() -> Made:
    return VectorQuantized(), (torch.randn(2, 3, 8, 8),)


class Adversaries(nn.Module):
    """A generator against a critic that is not to learn of it, and a critic against what was made."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False), nn.Tanh()
        )
        self.critic = nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 3, 1, 1, bias=False), nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(0.2),
            nn.Conv2d(16, 1, 4, 1, 0), nn.Flatten(0),
        )

    def forward(self, noise: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        made = self.generator(noise)
        yes, no = self.critic(real), self.critic(made.detach())
        critic = F.binary_cross_entropy_with_logits(yes, torch.ones_like(yes)) + F.binary_cross_entropy_with_logits(no, torch.zeros_like(no))
        fooled = self.critic(made)
        return critic + F.softplus(-fooled).mean()


@_listed
def gan() -> Made:
    return Adversaries(), (torch.randn(4, 8, 1, 1), torch.randn(4, 3, 8, 8))


class Twice(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x)


class UNet(nn.Module):
    def __init__(self, by: str) -> None:
        super().__init__()
        self.down, self.low, self.up = Twice(3, 8), Twice(8, 16), Twice(16, 8)
        self.wider = nn.ConvTranspose2d(16, 8, 2, 2) if by == "transposed" else nn.Sequential(nn.Upsample(scale_factor=2, mode=by), nn.Conv2d(16, 8, 1))
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = self.down(x)
        wide = self.wider(self.low(F.max_pool2d(high, 2)))
        wide = F.pad(wide, [0, high.shape[3] - wide.shape[3], 0, high.shape[2] - wide.shape[2]])
        return self.head(self.up(torch.cat([high, wide], 1)))


def _maps(by: str) -> Made:
    return Lossy(UNet(by)), (torch.randn(2, 3, 18, 18), torch.randint(4, (2, 18, 18)))


@_listed
def unet() -> Made:
    return _maps("transposed")


@_listed
def unet_bilinear() -> Made:
    return _maps("bilinear")


@_listed
def unet_nearest() -> Made:
    return _maps("nearest")


@_listed
def unet_volumes() -> Made:
    net = nn.Sequential(
        nn.Conv3d(1, 6, 3, padding=1), nn.InstanceNorm3d(6), nn.LeakyReLU(), nn.MaxPool3d(2), nn.Conv3d(6, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(),
        nn.Upsample(scale_factor=2, mode="trilinear"), nn.Conv3d(8, 3, 1),
    )
    return Lossy(net), (torch.randn(2, 1, 8, 8, 8), torch.randint(3, (2, 8, 8, 8)))


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.PReLU(8), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 9, 12))

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        a, b, c = (F.normalize(self.body(x), dim=1) for x in (a, b, c))
        contrast = F.cross_entropy(a @ b.t() / 0.1, torch.arange(a.shape[0]))
        return F.triplet_margin_loss(a, b, c, margin=0.3) + contrast + F.cosine_embedding_loss(a, c, -torch.ones(a.shape[0]), margin=0.1)


@_listed
def siamese() -> Made:
    return Siamese(), tuple(torch.randn(4, 1, 8, 8) for _ in range(3))


class Attended(nn.Module):
    """Words to words: a recurrent encoder, and a decoder that looks at it by additive attention."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(30, 12), nn.Embedding(20, 12)
        self.encoder, self.decoder = nn.GRU(12, 16, batch_first=True), nn.GRUCell(12 + 16, 16)
        self.w, self.u, self.v = nn.Linear(16, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 1)
        self.head = nn.Linear(16, 20)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        keys, h = self.encoder(self.source(x))
        h, losses = h.squeeze(0), []
        is_word = x != 0
        for t in range(y.shape[1] - 1):
            scores = self.v(torch.tanh(self.w(keys) + self.u(h).unsqueeze(1))).squeeze(-1)
            weights = scores.masked_fill(~is_word, float("-inf")).softmax(-1)
            context = torch.bmm(weights.unsqueeze(1), keys).squeeze(1)
            h = self.decoder(torch.cat([self.target(y[:, t]), context], -1), h)
            losses.append(F.cross_entropy(self.head(h), y[:, t + 1], ignore_index=0))
        return torch.stack(losses).mean()


@_listed
def seq2seq() -> Made:
    return Attended(), (torch.randint(1, 30, (3, 7)), torch.randint(1, 20, (3, 5)))


class Graphs(nn.Module):
    """Messages along edges, added, averaged, and as the largest, at the nodes they reach."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.edge, self.head = nn.Linear(6, 12), nn.Linear(24, 12), nn.Linear(2, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, features: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        source, target = edges[0], edges[1]
        messages = F.relu(h[source] + self.edge(features))
        summed = torch.zeros_like(h).index_add(0, target, messages)
        count = torch.zeros(h.shape[0]).index_add(0, target, torch.ones(target.shape[0])).clamp(min=1).unsqueeze(1)
        added = torch.zeros_like(h).scatter_add(0, target.unsqueeze(1).expand(-1, 12), messages)
        h = F.relu(self.second(torch.cat([summed / count, added], 1)))
        # Attention over the edges that end at one node.
        scores = (h[source] * h[target]).sum(-1)
        weights = torch.exp(scores - scores.max())
        whole = torch.zeros(h.shape[0]).index_add(0, target, weights)
        h = h + torch.zeros_like(h).index_add(0, target, h[source] * (weights / (whole[target] + 1e-6)).unsqueeze(1))
        return F.cross_entropy(self.head(h), y)


@_listed
def graph_net() -> Made:
    return Graphs(), (torch.randn(8, 6), torch.randint(8, (2, 20)), torch.randn(20, 2), torch.randint(3, (8,)))


class GraphLargest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 12), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        index = edges[1].unsqueeze(1).expand(-1, 12)
        largest = torch.zeros_like(h).scatter_reduce(0, index, h[edges[0]], "amax", include_self=False)
        mean = torch.zeros_like(h).scatter_reduce(0, index, h[edges[0]], "mean", include_self=True)
        return F.cross_entropy(self.head(torch.cat([largest, mean], 1)), y)


@_listed
def graph_largest() -> Made:
    return GraphLargest(), (torch.randn(8, 6), torch.randint(8, (2, 20)), torch.randint(3, (8,)))


class Experts(nn.Module):
    """Each row through the two experts that a gate chooses, all of them computed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        gates = self.gate(x).softmax(-1)
        best, places = gates.topk(2, -1)
        weights = torch.zeros_like(gates).scatter(1, places, best / best.sum(-1, keepdim=True))
        out = torch.stack([expert(x) for expert in self.experts], 1)
        h = (out * weights.unsqueeze(-1)).sum(1)
        balance = (gates.mean(0) * F.one_hot(places[:, 0], 4).float().mean(0)).sum()
        return F.cross_entropy(self.head(h), y) + 0.1 * balance


@_listed
def experts() -> Made:
    return Experts(), (torch.randn(6, 8), torch.randint(3, (6,)))


class Dilated(nn.Module):
    """Convolutions of sound that look back only, each a gate and a filter, with weights normed."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first = nn.Conv1d(1, 8, 1)
        self.layers = nn.ModuleList(norm(nn.Conv1d(8, 16, 2, dilation=2**i)) for i in range(3))
        self.outs = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3))
        self.head = nn.Conv1d(8, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, skips = self.first(x), 0
        for i, (layer, out) in enumerate(zip(self.layers, self.outs)):
            gate, filtered = layer(F.pad(x, (2**i, 0))).chunk(2, 1)
            h = out(torch.sigmoid(gate) * torch.tanh(filtered))
            x, skips = x + h, skips + h
        return self.head(F.relu(skips))


@_listed
def wavenet() -> Made:
    return Lossy(Dilated()), (torch.randn(2, 1, 24), torch.randint(10, (2, 24)))


@_listed
def sound_1d() -> Made:
    net = nn.Sequential(
        nn.Conv1d(2, 8, 5, stride=2, padding=2), nn.BatchNorm1d(8), nn.ELU(), nn.MaxPool1d(2), nn.Conv1d(8, 8, 3, groups=8, padding="same"), nn.Mish(),
        nn.ConvTranspose1d(8, 6, 4, 2, 1), nn.Hardswish(), nn.AdaptiveAvgPool1d(3), nn.Flatten(), nn.Linear(18, 4),
    )
    return Lossy(net), (torch.randn(4, 2, 32), torch.arange(4))


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.net = nn.Sequential(norm(nn.Conv2d(3, 8, 3)), nn.LeakyReLU(0.1), nn.Flatten(), norm(nn.Linear(8 * 36, 1)))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.relu(1 - y * self.net(x).squeeze(1)).mean()


@_listed
def spectral_critic() -> Made:
    return Spectral(), (torch.randn(4, 3, 8, 8), torch.tensor([1.0, -1, 1, -1]))


@_listed
def transformer() -> Made:
    class Translated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(30, 16)
            self.net = nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True)
            self.head = nn.Linear(16, 30)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1] - 1)
            h = self.net(self.words(x), self.words(y[:, :-1]), tgt_mask=mask, src_key_padding_mask=x == 0)
            return F.cross_entropy(self.head(h).transpose(1, 2), y[:, 1:], label_smoothing=0.1)

    return Translated(), (torch.randint(1, 30, (3, 6)), torch.randint(1, 30, (3, 5)))


class Diffusion(nn.Module):
    """Noise that is guessed at a time, which is told by sines."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.enter, self.norm, self.mid, self.out = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0))

    def forward(self, x: torch.Tensor, noise: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        a = self.alphas[t].view(-1, 1, 1, 1)
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        rates = torch.exp(-torch.arange(8) * 0.9)
        angles = t.float().unsqueeze(1) * rates.unsqueeze(0)
        shift, scale = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype)).chunk(2, 1)
        h = self.norm(self.enter(noisy)) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
        h = h + self.mid(F.silu(h))
        b, c, height, width = h.shape
        tokens = h.flatten(2).transpose(1, 2)
        h = h + self.attention(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).reshape(b, c, height, width)
        return F.mse_loss(self.out(h), noise)


@_listed
def diffusion() -> Made:
    return Diffusion(), (torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8), torch.tensor([3, 40]))


class Turned(nn.Module):
    """A picture turned by what a small net says, then read."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 6))
        self.where[-1].weight.data.mul_(0.1)
        self.where[-1].bias.data.copy_(torch.tensor([0.93, 0.11, 0.05, -0.07, 1.04, 0.02]))
        self.read = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 100, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(self.where(x).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.read(F.grid_sample(x, grid, align_corners=False))


@_listed
def spatial_transformer() -> Made:
    return Lossy(Turned()), (torch.randn(3, 1, 12, 12), torch.arange(3))


class Fourier(nn.Module):
    """A layer of a Fourier neural operator: few frequencies, each with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.weight, self.beside, self.out = nn.Linear(2, 8), nn.Parameter(torch.randn(8, 8, 5, 2) / 8), nn.Conv1d(8, 8, 1), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.enter(x).transpose(1, 2)
        spectrum = torch.fft.rfft(h)
        low = torch.einsum("bif,iof->bof", spectrum[:, :, :5], torch.view_as_complex(self.weight))
        full = torch.cat([low, torch.zeros(h.shape[0], 8, spectrum.shape[2] - 5, dtype=low.dtype)], 2)
        h = F.gelu(torch.fft.irfft(full, n=h.shape[2]) + self.beside(h))
        return F.mse_loss(self.out(h.transpose(1, 2)), y)


@_listed
def fourier_operator() -> Made:
    return Fourier(), (torch.randn(2, 16, 2), torch.randn(2, 16, 1))


class Factorized(nn.Module):
    """People and things: factors, wide sums of their features, and a deep part; learned by ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.people, self.things, self.wide = nn.Embedding(20, 8), nn.Embedding(30, 8), nn.EmbeddingBag(40, 8, mode="mean")
        self.deep = nn.Sequential(nn.Linear(24, 16), nn.SELU(), nn.LayerNorm(16), nn.Linear(16, 1))

    def forward(self, people: torch.Tensor, things: torch.Tensor, features: torch.Tensor, liked: torch.Tensor) -> torch.Tensor:
        p, t, w = self.people(people), self.things(things), self.wide(features)
        score = (p * t).sum(-1) + self.deep(torch.cat([p, t, w], -1)).squeeze(-1)
        ranks = -F.logsigmoid(score.unsqueeze(0) - score.unsqueeze(1)).triu(1).sum() / 10
        return F.binary_cross_entropy_with_logits(score, liked) + 0.1 * ranks


@_listed
def recommender() -> Made:
    return Factorized(), (torch.randint(20, (5,)), torch.randint(30, (5,)), torch.randint(40, (5, 3)), torch.tensor([1.0, 0, 1, 1, 0]))


class Actor(nn.Module):
    """A policy that is held near what it was, with a critic and its entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.policy, self.value = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()), nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, seen: torch.Tensor, done: torch.Tensor, before: torch.Tensor, gain: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
        h = self.body(seen)
        spread = torch.distributions.Categorical(logits=self.policy(h), validate_args=False)
        ratio = (spread.log_prob(done) - before).exp()
        held = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        return -held + 0.5 * F.smooth_l1_loss(self.value(h).squeeze(-1), returns) - 0.01 * spread.entropy().mean()


@_listed
def actor_critic() -> Made:
    return Actor(), (torch.randn(6, 6), torch.randint(4, (6,)), -torch.rand(6), torch.randn(6), torch.randn(6))


class Gaussians(nn.Module):
    """A number as one of several bells."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Sequential(nn.Linear(3, 16), nn.Softplus()), nn.Linear(16, 12)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weights, means, widths = self.heads(self.body(x)).chunk(3, -1)
        logs = torch.distributions.Normal(means, F.softplus(widths) + 1e-3, validate_args=False).log_prob(y.unsqueeze(-1))
        return -torch.logsumexp(F.log_softmax(weights, -1) + logs, -1).mean()


@_listed
def mixture_density() -> Made:
    return Gaussians(), (torch.randn(5, 3), torch.randn(5))


class Points(nn.Module):
    """Points in space: each with its nearest, the largest of all."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.norm, self.head = nn.Conv2d(6, 8, 1), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        far = -torch.cdist(x, x)
        nearest = far.topk(4, -1).indices
        b, n, _ = x.shape
        flat = (nearest + torch.arange(b).view(-1, 1, 1) * n).view(-1)
        beside = x.reshape(b * n, 3)[flat].view(b, n, 4, 3)
        own = x.unsqueeze(2).expand(-1, -1, 4, -1)
        h = self.norm(self.edge(torch.cat([own, beside - own], -1).permute(0, 3, 1, 2)))
        h = F.leaky_relu(h, 0.2).max(-1)[0].max(-1)[0]
        return F.cross_entropy(self.head(h), y)


@_listed
def point_cloud() -> Made:
    return Points(), (torch.randn(3, 12, 3), torch.arange(3))


class Capsules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.weight = nn.Conv2d(1, 16, 3, stride=2), nn.Parameter(torch.randn(1, 36, 3, 6, 4) * 0.1)

    @staticmethod
    def squash(x: torch.Tensor) -> torch.Tensor:
        n = (x**2).sum(-1, keepdim=True)
        return n / (1 + n) * x / torch.sqrt(n + 1e-8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        u = self.squash(self.first(x).view(x.shape[0], -1, 4))
        u_hat = torch.matmul(self.weight, u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros(x.shape[0], u.shape[1], 3, 1)
        for i in range(3):
            c = F.softmax(b, 2)
            v = self.squash((c * u_hat).sum(1, keepdim=True))
            if i < 2:
                b = b + (u_hat.detach() * v).sum(-1, keepdim=True)
        lengths = v.squeeze(1).norm(dim=-1)
        t = F.one_hot(y, 3).float()
        return (t * F.relu(0.9 - lengths) ** 2 + 0.5 * (1 - t) * F.relu(lengths - 0.1) ** 2).sum(-1).mean()


@_listed
def capsules() -> Made:
    return Capsules(), (torch.randn(3, 1, 8, 8), torch.arange(3))


class Recurrence(nn.Module):
    """A state-space layer by sums along time, with rotary places and root-mean-square norms."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.out, self.decay, self.norm = nn.Linear(8, 32), nn.Linear(16, 8), nn.Parameter(torch.rand(16)), nn.RMSNorm(8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value, gate = self.enter(self.norm(x)).chunk(2, -1)
        steps = torch.arange(x.shape[1], dtype=x.dtype)
        decay = torch.exp(-F.softplus(self.decay) * steps.unsqueeze(1))
        h = torch.cumsum(value / decay, 1) * decay * torch.sigmoid(gate)
        angles = steps.unsqueeze(1) / (10.0 ** (torch.arange(8, dtype=x.dtype) / 8))
        a, b = h[..., ::2], h[..., 1::2]
        h = torch.stack([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1).flatten(-2)
        return F.huber_loss(x + self.out(h), y)


@_listed
def state_space() -> Made:
    return Recurrence(), (torch.randn(2, 6, 8), torch.randn(2, 6, 8))


class Highres(nn.Module):
    """Larger pictures of small ones: dense blocks, shuffled pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv2d(3 + 8 * i, 8, 3, padding=1, padding_mode="reflect") for i in range(3))
        self.up, self.share = nn.Sequential(nn.Conv2d(27, 12, 1), nn.PixelShuffle(2)), nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Conv2d(27, 27, 1), nn.Hardsigmoid())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = [x]
        for part in self.parts:
            parts.append(F.leaky_relu(part(torch.cat(parts, 1)), 0.2))
        h = torch.cat(parts, 1)
        out = self.up(h * self.share(h)) + F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)
        return F.l1_loss(out, y) + 1e-2 * (out[:, :, 1:] - out[:, :, :-1]).abs().mean()


@_listed
def super_resolution() -> Made:
    return Highres(), (torch.randn(2, 3, 8, 8), torch.randn(2, 3, 16, 16))


class Detector(nn.Module):
    """Boxes on a grid: overlaps, and a loss that looks at what is hard."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU())
        self.box, self.kind = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 3, 1)

    def forward(self, x: torch.Tensor, boxes: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        found = self.box(h).sigmoid().flatten(2).transpose(1, 2)
        low, high = found[..., :2] - found[..., 2:] / 2, found[..., :2] + found[..., 2:] / 2
        low_t, high_t = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
        inside = (torch.minimum(high, high_t) - torch.maximum(low, low_t)).clamp(min=0).prod(-1)
        overlap = inside / (found[..., 2:].prod(-1) + boxes[..., 2:].prod(-1) - inside + 1e-6)
        logits = self.kind(h).flatten(2).transpose(1, 2)
        p = logits.sigmoid()
        t = F.one_hot(kinds, 3).to(p.dtype)
        hard = (p * t + (1 - p) * (1 - t)).clamp(max=1 - 1e-6)
        focal = ((1 - hard) ** 2 * F.binary_cross_entropy_with_logits(logits, t, reduction="none")).mean()
        return (1 - overlap).mean() + focal


@_listed
def detector() -> Made:
    return Detector(), (torch.randn(2, 3, 16, 16), torch.rand(2, 16, 4) * 0.5 + 0.25, torch.randint(3, (2, 16)))


def written() -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, make in LISTED.items():
        yield f"written/{name}", make
