"""Every class of torch.nn that computes, each by itself in the ways in which it can be told: a module that returns its loss, with a batch."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
#: Classes that hold others, that take their shapes from the first batch and are then others of the list, or that need several processes.
ASIDE = """Container DataParallel LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d
    LazyConvTranspose3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear Module ModuleDict ModuleList NLLLoss2d ParameterDict ParameterList RNNBase RNNCellBase
    Sequential SyncBatchNorm""".split()
#: Classes that always draw: there is nothing to compare.
DRAWN = "FractionalMaxPool2d FractionalMaxPool3d".split()


class Part(nn.Module):
    """A part between a parameter that is added to each of its inputs and a loss that has another weight for each of its results' elements."""

    def __init__(self, inner: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.inner = inner
        # What is whole numbers alone is a label or a count, and stays one.
        self.moved = [x.is_floating_point() and x.dim() > 0 and not torch.equal(x, x.round()) for x in inputs]
        self.added = nn.ParameterList([torch.randn(x.shape[1:], dtype=x.dtype) * 0.1 for x, is_moved in zip(inputs, self.moved) if is_moved])

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        added, given = iter(self.added), []
        for x, is_moved in zip(inputs, self.moved):
            given.append(x + next(added) if is_moved else x)
        loss = given[0].new_zeros(()) if given[0].is_floating_point() else self.added[0].new_zeros(()) if len(self.added) else torch.zeros(())
        for y in _flat(self.inner(*given)):
            if y.is_floating_point():
                weights = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).to(y.dtype).reshape(y.shape)
                loss = loss + (y * weights).sum() + 0.1 * (y * y).mean()
        return loss


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _flat(part)


#: Class, what it is made with, and shapes of its inputs or what makes them.
Case = tuple[str, tuple[Any, ...], dict[str, Any], Any]
_ODD = {1: (3, 4, 11), 2: (3, 4, 9, 11), 3: (2, 4, 6, 7, 5)}


def _labels(*shape: int, classes: int = 5) -> torch.Tensor:
    return torch.arange(int(torch.tensor(shape).prod())).reshape(shape) * 7 % classes


def _signs(*shape: int) -> torch.Tensor:
    return (_labels(*shape, classes=2) * 2 - 1).float()


def _shares(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) * 0.8 + 0.1


def _cases() -> Iterator[Case]:
    for name in "CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish ReLU ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink".split():
        yield name, (), {}, [(4, 7)]
    yield "CELU", (), {"alpha": 0.7}, [(4, 7)]
    yield "ELU", (), {"alpha": 0.7}, [(4, 7)]
    yield "GELU", (), {"approximate": "tanh"}, [(4, 7)]
    yield "Hardshrink", (), {"lambd": 0.3}, [(4, 7)]
    yield "Hardtanh", (), {"min_val": -0.5, "max_val": 0.7}, [(4, 7)]
    yield "LeakyReLU", (), {"negative_slope": 0.3, "inplace": True}, [(4, 7)]
    yield "ReLU", (), {"inplace": True}, [(4, 7)]
    yield "Softplus", (), {"beta": 2.0, "threshold": 1.5}, [(4, 7)]
    yield "Softshrink", (), {"lambd": 0.2}, [(4, 7)]
    yield "Threshold", (0.1, 0.7), {}, [(4, 7)]
    yield "PReLU", (), {}, [(4, 7)]
    yield "PReLU", (), {"num_parameters": 4}, [(3, 4, 5, 6)]
    yield "GLU", (), {}, [(4, 8)]
    yield "GLU", (), {"dim": 1}, [(3, 4, 5)]
    for name in "Softmax Softmin LogSoftmax".split():
        yield name, (), {"dim": -1}, [(4, 7)]
        yield name, (), {"dim": 1}, [(3, 4, 5)]
    yield "Softmax2d", (), {}, [(3, 4, 5, 6)]
    for n in (1, 2, 3):
        shape = _ODD[n]
        yield f"Conv{n}d", (4, 6, 3), {}, [shape]
        yield f"Conv{n}d", (4, 6, 3), {"stride": 2, "padding": 1, "bias": False}, [shape]
        yield f"Conv{n}d", (4, 8, 3), {"groups": 2, "dilation": 2, "padding": 2}, [shape]
        yield f"Conv{n}d", (4, 8, 3), {"groups": 4, "padding": "same"}, [shape]
        yield f"Conv{n}d", (4, 6, 2), {"padding": "same", "padding_mode": "replicate"}, [shape]
        yield f"Conv{n}d", (4, 6, 3), {"padding": 1, "padding_mode": "circular"}, [shape]
        if n < 3:
            yield f"Conv{n}d", (4, 6, 3), {"padding": 1, "padding_mode": "reflect"}, [shape]
            # Without an axis of samples.
            yield f"Conv{n}d", (4, 6, 3), {}, [shape[1:]]
        yield f"ConvTranspose{n}d", (4, 6, 3), {}, [shape]
        yield f"ConvTranspose{n}d", (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}, [shape]
        yield f"ConvTranspose{n}d", (4, 6, 3), {"groups": 2, "dilation": 2, "bias": False}, [shape]
        for kind in ("Max", "Avg", "LP"):
            power = (2.0,) if kind == "LP" else ()
            yield f"{kind}Pool{n}d", (*power, 2), {}, [shape]
            yield f"{kind}Pool{n}d", (*power, 3), {"stride": 2, "ceil_mode": True}, [shape]
        # Roots of what is below 0 are no numbers.
        yield f"LPPool{n}d", (3.0, 2), {}, [lambda shape=shape: _shares(*shape) + 1]
        yield f"MaxPool{n}d", (3,), {"stride": 1, "padding": 1}, [shape]
        yield f"MaxPool{n}d", (2,), {"dilation": 2, "stride": 1}, [shape]
        yield f"MaxPool{n}d", (2,), {"return_indices": True}, [shape]
        yield f"AvgPool{n}d", (3,), {"stride": 2, "padding": 1, "count_include_pad": False}, [shape]
        yield f"AvgPool{n}d", (3,), {"stride": 2, "padding": 1}, [shape]
        if n > 1:
            yield f"AvgPool{n}d", (3,), {"stride": 2, "divisor_override": 5}, [shape]
            yield f"MaxPool{n}d", ((3, 2, 2)[:n],), {"stride": (2, 1, 2)[:n], "padding": (1, 0, 1)[:n]}, [shape]
        for kind in ("Max", "Avg"):
            yield f"Adaptive{kind}Pool{n}d", (1,), {}, [shape]
            yield f"Adaptive{kind}Pool{n}d", (3,), {}, [shape]
            yield f"Adaptive{kind}Pool{n}d", ((2, None, 3)[:n] if n > 1 else 4,), {}, [shape]
        yield f"AdaptiveMaxPool{n}d", (2,), {"return_indices": True}, [shape]
        yield f"BatchNorm{n}d", (4,), {}, [shape]
        yield f"BatchNorm{n}d", (4,), {"affine": False, "momentum": None}, [shape]
        yield f"BatchNorm{n}d", (4,), {"track_running_stats": False, "eps": 1e-3}, [shape]
        yield f"InstanceNorm{n}d", (4,), {}, [shape]
        yield f"InstanceNorm{n}d", (4,), {"affine": True, "track_running_stats": True}, [shape]
        pads = tuple(range(1, n + 1)) * 2
        yield f"ConstantPad{n}d", (pads, 0.7), {}, [shape]
        for kind in ("Zero", "Reflection", "Replication", "Circular"):
            yield f"{kind}Pad{n}d", (2,), {}, [shape]
            yield f"{kind}Pad{n}d", (pads,), {}, [shape]
        yield f"Dropout{n}d", (0.0,), {}, [shape]
    yield "RReLU", (0.2, 0.2), {}, [(4, 7)]
    yield "Identity", (), {}, [(4, 7)]
    yield "ZeroPad2d", ((-1, 1, 2, -2),), {}, [_ODD[2]]
    for name in ("Dropout", "AlphaDropout", "FeatureAlphaDropout"):
        yield name, (0.0,), {}, [(4, 6)]
    yield "BatchNorm1d", (7,), {}, [(4, 7)]
    yield "LocalResponseNorm", (3,), {"alpha": 0.1}, [_ODD[2]]
    yield "CrossMapLRN2d", (3,), {"alpha": 0.1}, [_ODD[2]]
    yield "GroupNorm", (2, 4), {}, [_ODD[2]]
    yield "GroupNorm", (4, 4), {"affine": False}, [_ODD[1]]
    yield "LayerNorm", (7,), {}, [(4, 7)]
    yield "LayerNorm", ([5, 7],), {"bias": False}, [(3, 5, 7)]
    yield "LayerNorm", ([5, 7],), {"elementwise_affine": False}, [(3, 5, 7)]
    yield "RMSNorm", (7,), {}, [(4, 7)]
    yield "RMSNorm", ([5, 7],), {"eps": 1e-3}, [(3, 5, 7)]
    yield "Linear", (7, 5), {}, [(4, 7)]
    yield "Linear", (7, 5), {"bias": False}, [(3, 4, 7)]
    yield "Linear", (7, 5), {}, [(7,)]
    yield "Bilinear", (5, 6, 4), {}, [(3, 5), (3, 6)]
    yield "Embedding", (9, 4), {"padding_idx": 2}, [lambda: _labels(3, 5, classes=9)]
    yield "Embedding", (9, 4), {"scale_grad_by_freq": True}, [lambda: _labels(3, 5, classes=9)]
    yield "Embedding", (9, 4), {"max_norm": 1.0}, [lambda: _labels(3, 5, classes=9)]
    for mode in ("sum", "mean", "max"):
        yield "EmbeddingBag", (9, 4), {"mode": mode}, [lambda: _labels(3, 5, classes=9)]
        yield "EmbeddingBag", (9, 4), {"mode": mode, "padding_idx": 2}, [lambda: _labels(3, 5, classes=9)]
    yield "EmbeddingBag", (9, 4), {"mode": "sum"}, [lambda: _labels(11, classes=9), lambda: torch.tensor([0, 3, 7])]
    yield "EmbeddingBag", (9, 4), {"mode": "mean", "include_last_offset": True}, [lambda: _labels(11, classes=9), lambda: torch.tensor([0, 3, 7, 11])]
    for name in ("RNN", "LSTM", "GRU"):
        yield name, (5, 6), {}, [(7, 3, 5)]
        yield name, (5, 6), {"batch_first": True, "num_layers": 2, "bidirectional": True}, [(3, 7, 5)]
        yield name, (5, 6), {"bias": False}, [(7, 5)]
        yield f"{name}Cell", (5, 6), {}, [(3, 5)]
        yield f"{name}Cell", (5, 6), {"bias": False}, [(3, 5)]
    yield "RNN", (5, 6), {"nonlinearity": "relu"}, [(7, 3, 5)]
    yield "RNNCell", (5, 6), {"nonlinearity": "relu"}, [(3, 5), (3, 6)]
    yield "LSTM", (5, 6), {"proj_size": 3, "num_layers": 2}, [(7, 3, 5)]
    yield "GRU", (5, 6), {"num_layers": 2}, [(7, 3, 5), (2, 3, 6)]
    for settings in ({}, {"batch_first": True, "bias": False}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 6, "vdim": 10}):
        wide = (settings.get("kdim", 8), settings.get("vdim", 8))
        yield "MultiheadAttention", (8, 2), settings, [(5, 3, 8), *((5, 3, n) for n in wide)]
    yield "TransformerEncoderLayer", (8, 2, 16), {"dropout": 0.0}, [(5, 3, 8)]
    yield "TransformerEncoderLayer", (8, 2, 16), {"dropout": 0.0, "norm_first": True, "activation": "gelu", "batch_first": True}, [(3, 5, 8)]
    yield "TransformerDecoderLayer", (8, 2, 16), {"dropout": 0.0}, [(5, 3, 8), (7, 3, 8)]
    yield "Transformer", (8, 2, 1, 1, 16), {"dropout": 0.0}, [(5, 3, 8), (4, 3, 8)]
    yield "ChannelShuffle", (2,), {}, [_ODD[2]]
    yield "Flatten", (), {"start_dim": 1, "end_dim": 2}, [_ODD[2]]
    yield "Unflatten", (1, (2, 2)), {}, [_ODD[2]]
    yield "Fold", ((5, 6), (2, 3)), {"padding": 1, "stride": 2}, [(2, 12, 9)]
    yield "Unfold", ((2, 3),), {"padding": 1, "stride": 2, "dilation": 2}, [_ODD[2]]
    yield "PixelShuffle", (2,), {}, [_ODD[2]]
    yield "PixelUnshuffle", (3,), {}, [(2, 4, 9, 12)]
    for n, mode in ((1, "nearest"), (1, "linear"), (2, "nearest"), (2, "bilinear"), (2, "bicubic"), (3, "nearest"), (3, "trilinear"), (2, "nearest-exact"), (1, "nearest-exact")):
        yield "Upsample", (), {"scale_factor": 2.0, "mode": mode}, [_ODD[n]]
        yield "Upsample", (), {"size": (7, 5, 4)[:n], "mode": mode}, [_ODD[n]]
        if "linear" in mode or "cubic" in mode:
            yield "Upsample", (), {"scale_factor": 1.5, "mode": mode, "align_corners": True}, [_ODD[n]]
    yield "UpsamplingBilinear2d", (), {"scale_factor": 2}, [_ODD[2]]
    yield "UpsamplingNearest2d", (), {"scale_factor": 3}, [_ODD[2]]
    yield "CosineSimilarity", (), {}, [(4, 7), (4, 7)]
    yield "CosineSimilarity", (), {"dim": 2, "eps": 1e-4}, [(4, 3, 7), (4, 3, 7)]
    yield "PairwiseDistance", (), {}, [(4, 7), (4, 7)]
    yield "PairwiseDistance", (), {"p": 1.0, "keepdim": True}, [(4, 7), (4, 7)]
    yield from _losses()


def _losses() -> Iterator[Case]:
    pair: list[Any] = [(4, 7), (4, 7)]
    for reduction in ("mean", "sum", "none"):
        told = {"reduction": reduction}
        for name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss"):
            yield name, (), told, pair
        yield "SmoothL1Loss", (), {**told, "beta": 0.3}, pair
        yield "HuberLoss", (), {**told, "delta": 0.3}, pair
        yield "CrossEntropyLoss", (), told, [(4, 5), lambda: _labels(4)]
        yield "NLLLoss", (), told, [(4, 5), lambda: _labels(4)]
        yield "NLLLoss", (), {**told, "ignore_index": 2}, [(4, 5, 3, 2), lambda: _labels(4, 3, 2)]
        yield "BCEWithLogitsLoss", (), told, [(4, 5), lambda: _shares(4, 5)]
        yield "SoftMarginLoss", (), told, [(4, 5), lambda: _signs(4, 5)]
        yield "HingeEmbeddingLoss", (), {**told, "margin": 0.5}, [(4, 5), lambda: _signs(4, 5)]
        yield "MultiLabelSoftMarginLoss", (), told, [(4, 5), lambda: _labels(4, 5, classes=2).float()]
        yield "MultiLabelMarginLoss", (), told, [(4, 5), lambda: torch.tensor([[0, 3, -1, 1, 2], [4, -1, 0, 0, 0], [-1, 0, 0, 0, 0], [0, 1, 2, 3, 4]])]
        yield "MultiMarginLoss", (), {**told, "margin": 0.7}, [(4, 5), lambda: _labels(4)]
        yield "MultiMarginLoss", (), {**told, "p": 2}, [(4, 5), lambda: _labels(4)]
        yield "MarginRankingLoss", (), {**told, "margin": 0.3}, [(4,), (4,), lambda: _signs(4)]
        yield "CosineEmbeddingLoss", (), {**told, "margin": 0.2}, [(4, 5), (4, 5), lambda: _signs(4)]
        yield "TripletMarginLoss", (), told, [(4, 5)] * 3
        yield "TripletMarginLoss", (), {**told, "swap": True, "p": 1.5}, [(4, 5)] * 3
        yield "TripletMarginWithDistanceLoss", (), {**told, "swap": True}, [(4, 5)] * 3
        yield "PoissonNLLLoss", (), told, [(4, 5), lambda: _labels(4, 5).float()]
        yield "PoissonNLLLoss", (), {**told, "log_input": False, "full": True}, [lambda: _shares(4, 5) + 1, lambda: _labels(4, 5).float()]
        yield "GaussianNLLLoss", (), told, [(4, 5), (4, 5), lambda: _shares(4, 5)]
        yield "GaussianNLLLoss", (), {**told, "full": True}, [(4, 5), (4, 5), lambda: _shares(4, 1)]
        yield "KLDivLoss", (), told, [(4, 5), lambda: _shares(4, 5)]
        yield "KLDivLoss", (), {**told, "log_target": True}, [(4, 5), (4, 5)]
        lengths = [lambda: torch.tensor([9, 8, 7]), lambda: torch.tensor([4, 3, 1])]
        yield "CTCLoss", (), {**told, "zero_infinity": True}, [lambda: torch.randn(9, 3, 6).log_softmax(-1), lambda: _labels(3, 4) + 1, *lengths]
        yield "CTCLoss", (), {**told, "blank": 5}, [lambda: torch.randn(9, 3, 6).log_softmax(-1), lambda: _labels(3, 4), *lengths]
    yield "CrossEntropyLoss", (), {"label_smoothing": 0.1, "ignore_index": 2}, [(4, 5, 3), lambda: _labels(4, 3)]
    yield "CrossEntropyLoss", (), {}, [(4, 5), lambda: _shares(4, 5)]
    yield "CrossEntropyLoss", (), {"weight": torch.rand(5)}, [(4, 5), lambda: _labels(4)]
    yield "CrossEntropyLoss", (), {"weight": torch.rand(5), "label_smoothing": 0.2}, [(4, 5), lambda: _labels(4)]
    yield "NLLLoss", (), {"weight": torch.rand(5)}, [(4, 5), lambda: _labels(4)]
    yield "BCEWithLogitsLoss", (), {"pos_weight": torch.rand(5), "weight": torch.rand(5)}, [(4, 5), lambda: _shares(4, 5)]
    yield "KLDivLoss", (), {"reduction": "batchmean"}, [(4, 5), lambda: _shares(4, 5)]


class Bounded(nn.Module):
    """What takes numbers between 0 and 1, behind a sigmoid."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> Any:
        return self.inner(torch.sigmoid(x), *rest)


class Unpooled(nn.Module):
    """A pool and what takes it back."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.pool, self.back = getattr(nn, f"MaxPool{n}d")(2, return_indices=True), getattr(nn, f"MaxUnpool{n}d")(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, places = self.pool(x)
        return self.back(torch.tanh(y), places)


class Stacked(nn.Module):
    """Layers of a transformer under one roof."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.inner(*inputs)


class Called(nn.Module):
    """A function in the place of a class, with parameters of its own."""

    def __init__(self, function: Callable[..., Any], **settings: Any) -> None:
        super().__init__()
        self.function, self.settings = function, settings

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, **self.settings)


def _others() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Classes that do not stand alone, and functions that are no class."""

    def case(name: str, make: Callable[[], nn.Module], *inputs: Any) -> tuple[str, Callable[[], Made]]:
        return f"torch.nn/{name}", _made(make, list(inputs))

    for reduction in ("mean", "sum", "none"):
        yield case(f"BCELoss {reduction}", lambda reduction=reduction: Bounded(nn.BCELoss(reduction=reduction)), (4, 5), lambda: _shares(4, 5))
    for n in (1, 2, 3):
        yield case(f"MaxUnpool{n}d", lambda n=n: Unpooled(n), (2, 4, 8, 6, 4)[: n + 2])
    yield case("TransformerEncoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 2, nn.LayerNorm(8), enable_nested_tensor=False), (5, 3, 8))
    yield case("TransformerDecoder", lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0), 2), (5, 3, 8), (4, 3, 8))
    yield case("AdaptiveLogSoftmaxWithLoss", lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 12, [4, 8], 2.0), (5, 6), lambda: _labels(5, classes=12))
    if hasattr(nn, "LinearCrossEntropyLoss"):
        yield case("LinearCrossEntropyLoss", lambda: nn.LinearCrossEntropyLoss(6, 5), (4, 6), lambda: _labels(4))
    for mode in ("bilinear", "nearest", "bicubic"):
        for outside in ("zeros", "border", "reflection"):
            for corners in (False, True):
                settings = {"mode": mode, "padding_mode": outside, "align_corners": corners}
                if mode != "bicubic":
                    yield case(f"grid_sample of volumes {mode} {outside} {corners}", lambda settings=settings: Called(F.grid_sample, **settings), (2, 3, 4, 5, 6), lambda: torch.rand(2, 3, 4, 4, 3) * 2.6 - 1.3)
                yield case(f"grid_sample {mode} {outside} {corners}", lambda settings=settings: Called(F.grid_sample, **settings), (2, 3, 5, 6), lambda: torch.rand(2, 4, 4, 2) * 2.6 - 1.3)
    yield case("affine_grid of volumes", lambda: Called(F.affine_grid, size=(2, 3, 4, 5, 6), align_corners=False), (2, 3, 4))
    yield case("affine_grid", lambda: Called(F.affine_grid, size=(2, 3, 4, 5), align_corners=False), (2, 2, 3))
    yield case("normalize", lambda: Called(F.normalize, p=2.0, dim=1), (4, 7))
    yield case("normalize p=1", lambda: Called(F.normalize, p=1.0, dim=-1), (4, 7))
    yield case("pdist", lambda: Called(lambda x: F.pdist(torch.tanh(x))), (5, 7))
    yield case("pdist p=1", lambda: Called(lambda x: F.pdist(torch.tanh(x), p=1.0)), (5, 7))
    yield case("cdist", lambda: Called(torch.cdist), (2, 5, 7), (2, 4, 7))
    yield case("cdist p=1", lambda: Called(torch.cdist, p=1.0), (2, 5, 7), (2, 4, 7))
    for settings in ({}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}):
        few = 2 if settings.get("enable_gqa") else 4
        yield case(f"scaled_dot_product_attention {_words(settings)}", lambda settings=settings: Called(F.scaled_dot_product_attention, **settings), (2, 4, 5, 8), (2, few, 5, 8), (2, few, 5, 8))
    yield case("scaled_dot_product_attention with a mask", lambda: Called(F.scaled_dot_product_attention), (2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8), lambda: torch.rand(2, 1, 5, 6) > 0.3)


def _words(settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={'...' if isinstance(value, torch.Tensor) else value}" for name, value in settings.items())


def _made(make: Callable[[], nn.Module], inputs: list[Any]) -> Callable[[], Made]:
    def made() -> Made:
        inner = make()
        given = tuple(torch.randn(*x) if isinstance(x, tuple) else x() for x in inputs)
        return Part(inner, given), given

    return made


def parts() -> Iterator[tuple[str, Callable[[], Made]]]:
    """The cases by name."""
    seen: dict[str, int] = {}
    for name, args, settings, inputs in _cases():
        words = " ".join(filter(None, [", ".join(str(arg) for arg in args), _words(settings), " ".join("x".join(map(str, x)) for x in inputs if isinstance(x, tuple))]))
        full = f"torch.nn/{name} {words}".strip()
        seen[full] = seen.get(full, 0) + 1
        full += f" ({seen[full]})" if seen[full] > 1 else ""
        yield full, _made(lambda name=name, args=args, settings=settings: getattr(nn, name)(*args, **settings), inputs)
    yield from _others()


def missing() -> list[str]:
    """Classes of torch.nn that no case is of."""
    classes = [name for name in dir(nn) if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)]
    tried = {name.removeprefix("torch.nn/").split(" ")[0] for name, _ in parts()}
    return [name for name in classes if name not in tried and name not in ASIDE and name not in DRAWN]
