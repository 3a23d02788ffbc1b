"""Writes losses.json beside itself: the losses of 50 Adam steps in PyTorch (f32, CPU) for five small models.

usage: python make.py        (needs torch and numpy)

Weights and data come from a counter-based generator that the Rust test computes as well, so only losses are kept.
Parameters are numbered and laid out as Plimsoll does (dense [in, out], filters [KH, KW, CI, CO]).

Sizes are chosen such that PyTorch's own f32 and f64 runs agree to 1e-6: at some others (a U-Net of base 8 on two images) they
part by 0.5 % within 50 steps, rounding being amplified by Adam, and a comparison would say nothing.
"""
import json, os
import numpy as np, torch, torch.nn.functional as F

torch.set_num_threads(1)
STEPS, BATCHES = 50, 4


def bits(stream, n):
    """SplitMix64 of (stream, 0..n)."""
    with np.errstate(over="ignore"):
        z = (np.uint64(stream) << np.uint64(32)) + np.arange(n, dtype=np.uint64)
        z = z * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(stream, shape, bound):
    u = (bits(stream, int(np.prod(shape))) >> np.uint64(40)).astype(np.float64) / 2**24
    return torch.tensor(((2 * u - 1) * bound).astype(np.float32).reshape(shape))


def labels(stream, shape, classes):
    return torch.tensor((bits(stream, int(np.prod(shape))) % np.uint64(classes)).astype(np.int64).reshape(shape))


class Params:
    """Hands out parameters in the order in which a model first asks for them."""

    def __init__(self):
        self.all, self.count = {}, 0

    def __call__(self, name, shape, bound=None, constant=None, trained=True):
        if name not in self.all:
            self.count += 1
            p = uniform(self.count, shape, bound) if constant is None else torch.full(shape, float(constant))
            self.all[name] = p.requires_grad_(trained)
        return self.all[name]


def dense(p, name, x, units, bias=True):
    w = p(name + "/w", (x.shape[-1], units), bound=x.shape[-1] ** -0.5)
    y = x @ w
    return y + p(name + "/b", (units,), bound=x.shape[-1] ** -0.5) if bias else y


def conv(p, name, x, channels, window, pad, bias):  # x is NCHW here, filters HWIO in the list
    bound = (x.shape[1] * window * window) ** -0.5
    w = p(name + "/w", (window, window, x.shape[1], channels), bound=bound).permute(3, 2, 0, 1)
    return F.conv2d(x, w, p(name + "/b", (channels,), bound=bound) if bias else None, padding=pad)


def batch_norm(p, name, x):
    c = x.shape[1]
    gamma, beta = p(name + "/g", (c,), constant=1), p(name + "/b", (c,), constant=0)
    p(name + "/mean", (c,), constant=0, trained=False), p(name + "/var", (c,), constant=1, trained=False)
    return F.batch_norm(x, None, None, gamma, beta, training=True, eps=1e-5)


def layer_norm(p, name, x):
    c = x.shape[-1]
    return F.layer_norm(x, (c,), p(name + "/g", (c,), constant=1), p(name + "/b", (c,), constant=0), eps=1e-5)


def mlp(p, x):
    x = F.relu(dense(p, "1", x, 32))
    x = F.relu(dense(p, "2", x, 32))
    return dense(p, "3", x, 5)


def cnn(p, x):
    x = x.permute(0, 3, 1, 2)
    for i, width in enumerate([8, 16]):
        for half in "ab":
            x = F.relu(batch_norm(p, f"n{i}{half}", conv(p, f"c{i}{half}", x, width, 3, 1, False)))
        x = F.max_pool2d(x, 2)
    return dense(p, "out", x.permute(0, 2, 3, 1).flatten(1), 5)


def gpt(p, tokens, V=50, D=32, L=2, H=4):
    B, T = tokens.shape
    position = p("pos", (T, D), bound=1.0)
    x = F.embedding(tokens, p("tok", (V, D), bound=1.0)) + position
    for i in range(L):
        y = layer_norm(p, f"{i}n1", x)
        q, k, v = dense(p, f"{i}qkv", y, 3 * D).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
        x = x + dense(p, f"{i}proj", y, D)
        y = layer_norm(p, f"{i}n2", x)
        x = x + dense(p, f"{i}down", F.gelu(dense(p, f"{i}up", y, 4 * D), approximate="tanh"), D)
    return dense(p, "out", layer_norm(p, "n", x), V, bias=False)


def lstm(p, tokens, V=50, D=24, L=2):
    x = F.embedding(tokens, p("tok", (V, D), bound=1.0))
    for i in range(L):
        w, u = p(f"{i}w", (D, 4 * D), bound=D**-0.5), p(f"{i}u", (D, 4 * D), bound=D**-0.5)
        b = p(f"{i}b", (4 * D,), bound=D**-0.5) + p(f"{i}c", (4 * D,), bound=D**-0.5)
        h = c = torch.zeros(x.shape[0], D)
        ys = []
        for t in range(x.shape[1]):
            i_, f, g, o = (x[:, t] @ w + h @ u + b).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i_) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            ys.append(h)
        x = torch.stack(ys, 1)
    return dense(p, "out", x, V)


def unet(p, x, base=6, depth=3):
    def pair(name, x, width):
        for half in "ab":
            x = F.relu(batch_norm(p, f"{name}n{half}", conv(p, f"{name}c{half}", x, width, 3, 1, False)))
        return x

    x, skips = x.permute(0, 3, 1, 2), []
    for i in range(depth):
        x = pair(f"d{i}", F.max_pool2d(x, 2) if i else x, base << i)
        skips.append(x)
    for i in reversed(range(depth - 1)):
        co, bound = base << i, ((base << i) * 4) ** -0.5
        w = p(f"u{i}w", (2, 2, co, x.shape[1]), bound=bound).permute(3, 2, 0, 1)
        x = F.conv_transpose2d(x, w, p(f"u{i}b", (co,), bound=bound), stride=2)
        x = pair(f"u{i}", torch.cat([x, skips[i]], 1), co)
    return conv(p, "out", x, 2, 1, 0, True).permute(0, 2, 3, 1)


def floats(shape):
    return lambda stream: uniform(stream, shape, 1.7)


def tokens(shape):
    return lambda stream: labels(stream, shape, 50)


CASES = {
    "mlp": (mlp, floats((16, 20)), (16,), 5),
    "cnn": (cnn, floats((8, 8, 8, 3)), (8,), 5),
    "gpt": (gpt, tokens((4, 16)), (4, 16), 50),
    "lstm": (lstm, tokens((4, 12)), (4, 12), 50),
    "unet": (unet, floats((3, 16, 16, 3)), (3, 16, 16), 2),
}


def train(model, data, label_shape, classes):
    params, losses, optimizer = Params(), [], None
    for step in range(STEPS):
        x = data(1000 + step % BATCHES)
        y = labels(2000 + step % BATCHES, label_shape, classes)
        out = model(params, x)
        if optimizer is None:
            optimizer = torch.optim.Adam([p for p in params.all.values() if p.requires_grad], 1e-3)
        loss = F.cross_entropy(out.reshape(-1, classes), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    result = {name: train(*case) for name, case in CASES.items()}
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "losses.json"), "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    for name, losses in result.items():
        print(name, losses[0], losses[-1])
