"""Makes the fixtures of this crate's tests: small exported programs, with losses, gradients and buffers as PyTorch computes them.

    python crates/torch/tests/make.py [NAME …]

Needs PyTorch 2.9 or later. Golden values are computed in f64 and stored in one JSON file a program: inputs, what comes out, the gradient
of every parameter, and buffers after the pass.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops import scan

HERE = Path(__file__).resolve().parent / "fixtures"


class Mlp(nn.Module):
    """A plain classifier that gives logits; its last weight is tied to its first."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 6, bias=False)
        self.last = nn.Linear(6, 8, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)

    def forward(self, x):
        y = F.gelu(self.norm(self.first(x))) * self.scale
        return self.last(torch.tanh(self.second(y)))


class Net(nn.Module):
    """A convolutional net that returns its loss: strides, groups, batch norm, pooling in ceil mode, a residual, a detached branch."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.bn2 = nn.BatchNorm2d(8, momentum=0.3)
        self.gate = nn.Conv2d(8, 8, 1)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x, y):
        h = F.relu(self.bn1(self.stem(x)))
        h = h + F.silu(self.bn2(self.depth(h)))
        h = F.max_pool2d(h, 3, stride=2, ceil_mode=True)
        h = h * torch.sigmoid(self.gate(h.mean((2, 3), keepdim=True).detach()))
        h = F.adaptive_avg_pool2d(self.up(h), 1).flatten(1)
        return F.cross_entropy(self.head(h), y, ignore_index=4, label_smoothing=0.1)


class Attention(nn.Module):
    """A transformer's block over tokens: embedding with padding, causal attention with more keys than queries, an LSTM, and both outputs."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(11, 8, padding_idx=0)
        self.place = nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.rnn = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 11)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.place[:, : tokens.shape[1]]
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q[:, :, 1:], k, v, is_causal=True)
        x = x[:, 1:] + self.out(y.transpose(1, 2).reshape(b, t - 1, c))
        x, _ = self.rnn(x)
        logits = self.head(x)
        loss = F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten())
        return loss, logits


class Signal(nn.Module):
    """Spectra, turns, windows, borders, distances, bags and places: ops that are composed of others here."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(6, 8)
        self.filter = nn.Parameter(torch.randn(4, 5, 2))
        self.words = nn.Parameter(torch.randn(9, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x, places):
        h = torch.view_as_complex(self.enter(x).reshape(x.shape[0], 8, 4, 2))
        spectrum = torch.fft.rfft(h.abs() + 1, dim=1).transpose(1, 2) * torch.view_as_complex(self.filter)
        wave = torch.fft.irfft(spectrum, n=8)
        turned = torch.atan2(h.imag, h.real).mean(1) + torch.asin(0.5 * torch.tanh(wave.mean(2))) + torch.view_as_real(torch.fft.fft2(h, norm="ortho").conj().resolve_conj()).mean((1, 3))
        image = F.pad(wave.unsqueeze(1), (1, 2, 1, 1), mode="reflect")
        columns = F.unfold(image, (2, 3), dilation=1, padding=1, stride=2)
        folded = F.fold(columns, image.shape[2:], (2, 3), dilation=1, padding=1, stride=2)
        shuffled = F.pixel_unshuffle(folded[:, :, :4, :8], 2).roll(1, 3).flatten(1).unfold(1, 8, 4).mean(1)
        bag = F.embedding_bag(places, self.words, mode="mean")
        near = torch.cdist(turned.unsqueeze(1), bag.reshape(-1, 2, 4), p=2.0).squeeze(1)
        largest = x.new_zeros(x.shape[0], 8).scatter_reduce(1, places, bag[:, :3], "amax", include_self=False)
        line = torch.diagonal(wave, 1, 1, 2)
        logits = self.head(torch.cat([near, line[:, :3], turned[:, :3]], 1) + shuffled + largest)
        return logits.square().mean() + F.cross_entropy(logits, places[:, 0] % 3)


class Resized(nn.Module):
    """Images at other sizes, antialiased: smaller, larger, by sizes and by scales, with corners aligned and not."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 1)

    def forward(self, x):
        smooth = lambda y, mode, **to: F.interpolate(y, mode=mode, antialias=True, **to)
        h = self.enter(x)
        few = smooth(h, "bicubic", size=(4, 5)) + smooth(h, "bilinear", size=(4, 5))
        many = smooth(few, "bicubic", size=(9, 5)) + smooth(few, "bilinear", size=(9, 5), align_corners=True)
        scaled = smooth(many, "bicubic", scale_factor=(0.45, 1.7)) + smooth(many, "bilinear", scale_factor=(0.45, 1.7))
        aligned = smooth(scaled, "bicubic", size=(3, 4), align_corners=True)
        return self.leave(aligned).square().mean() + self.leave(scaled).tanh().mean()


class Choice(nn.Module):
    """Two choices between computations with parameters, one of each kind; images lie channels last on one side."""

    def __init__(self):
        super().__init__()
        self.enter, self.other, self.leave = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Linear(4, 3)

    def forward(self, x, y):
        h = self.enter(x)
        near = lambda h: (torch.relu(self.other(h)), h.mean((2, 3)))
        far = lambda h: (torch.tanh(h) * 0.5, h.amax((2, 3)))
        a, b = torch.cond(x.square().sum() > 0, near, far, (h,))
        c, d = torch.cond(x.square().sum() < 0, near, far, (h,))
        return F.cross_entropy(self.leave((a + c).mean((2, 3)) + b * d), y)


class Loops(nn.Module):
    """A recurrent layer as a scan, whose images lie channels last inside, and a loop of as many rounds as a counter says."""

    def __init__(self):
        super().__init__()
        self.enter, self.own, self.leave = nn.Conv2d(2, 3, 1), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 3)

    def forward(self, x, y):
        def step(carried, now):
            state, count = carried
            state = torch.tanh(self.enter(now) + self.own(state))
            return (state, count + 1.0), (state.mean((2, 3)), state.sin())

        start = (x.new_zeros(x.shape[0], 3, 4, 5), x.new_zeros(()))
        (state, count), (means, waves) = scan(step, start, x, dim=1)
        goes_on = lambda i, h: i < 3
        rounds = lambda i, h: (i + 1, torch.relu(self.leave(h)) * 0.5 + h)
        _, mixed = torch.while_loop(goes_on, rounds, (torch.tensor(0), means.mean(1) * count))
        return F.cross_entropy(mixed + waves.sum((1, 3, 4)) + state.amax((2, 3)), y)


def numbers(tensor):
    return {"shape": list(tensor.shape), "values": tensor.detach().to(torch.float64).flatten().tolist()}


def make(name, module, inputs, other, dynamic, loss):
    if len(sys.argv) > 1 and name not in sys.argv[1:]:
        return
    torch.manual_seed(1)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    module.train()
    program = torch.export.export(module, inputs, dynamic_shapes=dynamic, strict=False).run_decompositions({})
    # Where it was made is nobody's business, and where nodes came from on the way is long.
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        trace = node.meta.get("stack_trace") or ""
        frames = [frame for frame in trace.split("  File ") if "site-packages" not in frame]
        node.meta["stack_trace"] = "  File ".join(frames).replace(str(HERE.parent), "tests")
        node.meta.pop("from_node", None)
    torch.export.save(program, HERE / f"{name}.pt2")
    # Another batch than was exported, in f64.
    module = module.double()
    given = tuple(x.double() if x.is_floating_point() else x for x in other)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    outputs = module(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    value = loss(*outputs)
    value.backward()
    golden = {
        "inputs": [numbers(x) for x in other],
        "outputs": [numbers(y) for y in outputs],
        "loss": value.item(),
        "gradients": {k: numbers(p.grad) for k, p in module.named_parameters()},
        "buffers": {k: numbers(b) for k, b in module.named_buffers()},
    }
    module.load_state_dict(before)
    (HERE / f"{name}.json").write_text(json.dumps(golden))
    print(name, value.item())


def main():
    HERE.mkdir(exist_ok=True)
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2)
    make("mlp", Mlp(), (torch.randn(4, 6),), (torch.randn(3, 6),), ({0: batch},), lambda y: y.square().mean())
    images = lambda n: (torch.randn(n, 3, 9, 9), torch.tensor([0, 4, 2, 3, 1, 4][:n]))
    make("conv", Net(), images(4), images(6), ({0: batch}, {0: batch}), lambda loss: loss)
    tokens = lambda n: (torch.randint(0, 11, (n, 5)), torch.randint(0, 11, (n, 5)))
    make("attention", Attention(), tokens(4), tokens(3), ({0: batch}, {0: batch}), lambda loss, _: loss)
    signals = lambda n: (torch.randn(n, 8, 6), torch.stack([torch.randperm(8)[:3] for _ in range(n)]))
    make("signal", Signal(), signals(4), signals(3), ({0: batch}, {0: batch}), lambda loss: loss)
    chosen = lambda n: (torch.randn(n, 2, 5, 6), torch.arange(n) % 3)
    make("choice", Choice(), chosen(4), chosen(3), ({0: batch}, {0: batch}), lambda loss: loss)
    frames = lambda n: (torch.randn(n, 5, 2, 4, 5), torch.arange(n) % 3)
    make("loops", Loops(), frames(4), frames(3), ({0: batch}, {0: batch}), lambda loss: loss)
    pictures = lambda n: (torch.randn(n, 2, 11, 7),)
    make("resize", Resized(), pictures(4), pictures(3), ({0: batch},), lambda loss: loss)


if __name__ == "__main__":
    main()
