"""Writes layers.json beside itself: outputs and gradients of layers, losses and activations in PyTorch (f64, CPU).

usage: python make.py        (needs torch and numpy)

Inputs and parameters come from the generator of ../training/make.py, in the order and layout in which Plimsoll asks for them; only
outputs and gradients are kept. The target that is differentiated is the sum of the outputs times fixed numbers.
"""
import json, os, sys
import torch, torch.nn.functional as F

here, sys.dont_write_bytecode = os.path.dirname(os.path.abspath(__file__)), True
sys.path.append(os.path.dirname(here))
from training.make import labels, uniform


class Params:
    """Hands out parameters, numbered from 1, each uniform in ± 0.5, scales of norms around 1."""

    def __init__(self):
        self.all = []

    def __call__(self, *shape, scale=False):
        p = uniform(len(self.all) + 1, shape, 0.5).double() + float(scale)
        self.all.append(p.requires_grad_())
        return p


def nchw(x):
    return x.permute(0, 3, 1, 2)


def nhwc(x):
    return x.permute(0, 2, 3, 1)


def conv2d(p, x, co, k, groups=1, bias=True, **kw):
    w = p(k, k, x.shape[-1] // groups, co).permute(3, 2, 0, 1)
    return nhwc(F.conv2d(nchw(x), w, p(co) if bias else None, groups=groups, **kw))


def conv1d(p, x, co, k, groups=1, **kw):
    w = p(k, x.shape[-1] // groups, co).permute(2, 1, 0)
    return F.conv1d(x.permute(0, 2, 1), w, p(co), groups=groups, **kw).permute(0, 2, 1)


def separable(p, x, co, k, **kw):
    c = x.shape[-1]
    return conv2d(p, conv2d(p, x, c, k, groups=c, bias=False, **kw), co, 1)


def transposed(p, x, co, k, groups=1, **kw):
    w = p(k, k, co // groups, x.shape[-1]).permute(3, 2, 0, 1)
    return nhwc(F.conv_transpose2d(nchw(x), w, p(co), groups=groups, **kw))


def dense(p, x, units):
    w = p(x.shape[-1], units)
    return x @ w + p(units)


def rms_norm(p, x):
    return F.rms_norm(x, (x.shape[-1],), p(x.shape[-1], scale=True), eps=1e-5)


def group_norm(p, x, groups):
    c = x.shape[-1]
    return nhwc(F.group_norm(nchw(x), groups, p(c, scale=True), p(c), eps=1e-5))


def batch_norm(p, x):
    c = x.shape[-1]
    return nhwc(F.batch_norm(nchw(x), None, None, p(c, scale=True), p(c), training=True, eps=1e-5))


def recurrent(p, x, cls, units, last, both):
    m = cls(x.shape[-1], units, batch_first=True, bidirectional=both).double()
    tensors, gates = {}, 4 if cls is torch.nn.LSTM else 3
    for end in ["_l0", "_l0_reverse"] if both else ["_l0"]:
        tensors["weight_ih" + end] = p(x.shape[-1], gates * units).T
        tensors["weight_hh" + end] = p(units, gates * units).T
        tensors["bias_ih" + end] = p(gates * units)
        tensors["bias_hh" + end] = p(gates * units)
    y, h = torch.func.functional_call(m, tensors, (x,))
    h = h[0] if isinstance(h, tuple) else h
    return torch.cat(list(h), -1) if last else y


def attend(q, k, v, heads, causal=False):
    cut = lambda t: t.reshape(*t.shape[:2], heads, -1).transpose(1, 2)
    y = F.scaled_dot_product_attention(cut(q), cut(k), cut(v), is_causal=causal)
    return y.transpose(1, 2).reshape(q.shape)


def self_attention(p, x, heads):
    return dense(p, attend(*dense(p, x, 3 * x.shape[-1]).chunk(3, -1), heads), x.shape[-1])


def cross_attention(p, x, heads):
    x, c = x[:, :3], x[:, 3:]
    q, k, v = dense(p, x, 8), dense(p, c, 8), dense(p, c, 8)
    return dense(p, attend(q, k, v, heads), 8)


image, sequence = (2, 6, 5, 4), (2, 5, 8)
target = lambda shape: (uniform(5000, shape, 0.5) + 0.5).double()
distribution = lambda shape: torch.softmax(uniform(5000, shape, 1.7).double(), -1)
CASES = {
    "conv2d_same": (image, lambda p, x: conv2d(p, x, 3, 3, padding="same")),
    "conv2d_strided": (image, lambda p, x: conv2d(p, x, 3, 3, stride=2, padding=1, bias=False)),
    "conv2d_dilated": (image, lambda p, x: conv2d(p, x, 3, 2, dilation=2)),
    "conv2d_grouped": (image, lambda p, x: conv2d(p, x, 6, 3, groups=2)),
    "conv1d": (sequence, lambda p, x: conv1d(p, x, 3, 3, stride=2, padding=1)),
    "conv1d_grouped": (sequence, lambda p, x: conv1d(p, x, 4, 2, groups=4, dilation=2)),
    "depthwise": (image, lambda p, x: conv2d(p, x, 8, 3, groups=4, padding=1)),
    "separable": (image, lambda p, x: separable(p, x, 3, 3, padding=1)),
    "transposed": (image, lambda p, x: transposed(p, x, 3, 3, stride=2, padding=1)),
    "transposed_grouped": (image, lambda p, x: transposed(p, x, 4, 2, groups=2, stride=2)),
    "batch_norm": (image, batch_norm),
    "group_norm": (image, lambda p, x: group_norm(p, x, 2)),
    "rms_norm": (sequence, rms_norm),
    "lstm_last": (sequence, lambda p, x: recurrent(p, x, torch.nn.LSTM, 3, True, False)),
    "lstm_both": (sequence, lambda p, x: recurrent(p, x, torch.nn.LSTM, 3, False, True)),
    "lstm_both_last": (sequence, lambda p, x: recurrent(p, x, torch.nn.LSTM, 3, True, True)),
    "gru": (sequence, lambda p, x: recurrent(p, x, torch.nn.GRU, 3, False, False)),
    "gru_both_last": (sequence, lambda p, x: recurrent(p, x, torch.nn.GRU, 3, True, True)),
    "self_attention": (sequence, lambda p, x: self_attention(p, x, 2)),
    "cross_attention": (sequence, lambda p, x: cross_attention(p, x, 4)),
    "relu6": ((40,), lambda p, x: F.relu6(4 * x)),
    "elu": ((40,), lambda p, x: F.elu(x, 0.7)),
    "selu": ((40,), lambda p, x: F.selu(x)),
    "mish": ((40,), lambda p, x: F.mish(x)),
    "hard_sigmoid": ((40,), lambda p, x: F.hardsigmoid(3 * x)),
    "hard_swish": ((40,), lambda p, x: F.hardswish(3 * x)),
    "softsign": ((40,), lambda p, x: F.softsign(x)),
    "cross_entropy": ((6, 5), lambda p, x: F.cross_entropy(x, labels(5000, (6,), 5))),
    "cross_entropy_dense": ((6, 5), lambda p, x: F.cross_entropy(x, distribution((6, 5)))),
    "cross_entropy_smooth": ((6, 5), lambda p, x: F.cross_entropy(x, labels(5000, (6,), 5), label_smoothing=0.1)),
    "cross_entropy_smooth_dense": (
        (6, 5),
        lambda p, x: F.cross_entropy(x, distribution((6, 5)), label_smoothing=0.1),
    ),
    "binary_cross_entropy": ((6, 5), lambda p, x: F.binary_cross_entropy_with_logits(x, target((6, 5)))),
    "mse": ((6, 5), lambda p, x: F.mse_loss(x, target((6, 5)))),
    "mae": ((6, 5), lambda p, x: F.l1_loss(x, target((6, 5)))),
    "huber": ((6, 5), lambda p, x: F.huber_loss(x, target((6, 5)), delta=0.7)),
    "dice": (
        (6, 5),
        lambda p, x: (1 - (2 * (torch.sigmoid(x) * target((6, 5))).sum(1) + 1)
                      / (torch.sigmoid(x).sum(1) + target((6, 5)).sum(1) + 1)).mean(),
    ),
}

if __name__ == "__main__":
    result = {}
    for name, (shape, layer) in CASES.items():
        p, x = Params(), uniform(1000, shape, 1.7).double().requires_grad_()
        y = layer(p, x)
        weights = uniform(3000, y.shape, 1.0).double().reshape(y.shape)
        grads = torch.autograd.grad((y * weights).sum(), [x] + p.all)
        values = [y] + list(grads)
        result[name] = [[float(f"{v:.7g}") for v in t.reshape(-1).tolist()] for t in values]
    with open(os.path.join(here, "layers.json"), "w") as f:
        f.write("{\n" + ",\n".join(f' "{k}": {json.dumps(v)}' for k, v in result.items()) + "\n}\n")
