"""Turns PyTorch's answers into golden files: `python make.py` writes the .json files beside this script.

Needs torch, any recent version, on the CPU. Everything is drawn from seeds made of the cases' names and
computed in double precision on one thread, so a second run writes the same files, and a new case changes no other.

A case is an op with attributes, its inputs, its outputs, and the gradients of its inputs for the sum of all outputs
times random seeds. A case of the second derivative takes as outputs the gradients of its squared outputs times inner
seeds, and differentiates those; the square gives linear ops a second derivative to be wrong in. Leaves are in
Plimsoll's layouts (channels last, filters HWIO,
                    recurrent weights input-major) and are turned into PyTorch's inside of
the differentiated function, so that autograd turns the gradients back.

All float inputs and seeds have at most eight significant bits: f32, f64, f16 and bf16 hold them exactly, and the same
answers hold for all four. Answers have ten digits,
enough to tell f64 from f32; cases about rounding itself are "exact"
and have all.

The kinds of an input: "float" is in the element type under test, "wide" in its accumulator's type (f32 where the data
is 16-bit), any other is itself. Inputs whose gradient is not asked for say "grad": false.
"""

import json
import math
import pathlib
import zlib

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)

HERE = pathlib.Path(__file__).parent
FILES = {}
NAMES = set()


# ---- inputs: each of these makes a function from a generator to (kind, tensor, whether it has a gradient) ----


def short(x, places=64):
    """The values rounded to eight significant bits and to multiples of 1/places, which are few characters."""
    return ((x * places).round() / places).to(torch.bfloat16).to(torch.float64)


def away(x):
    """The values kept off zero, where functions have kinks."""
    return x + 0.05 * torch.where(x < 0, -1.0, 1.0)


def normal(*shape, scale=1.0, kind="float", grad=True):
    return lambda g: (kind, short(away(torch.randn(shape, generator=g)) * scale), grad)


def wide(*shape, scale=1.0):
    return normal(*shape, scale=scale, kind="wide")


def positive(*shape, kind="float"):
    return lambda g: (kind, short(0.3 + 2 * torch.rand(shape, generator=g)), True)


def distinct(*shape):
    """Values of which no two are equal, for max and its kin."""

    def make(g):
        n = math.prod(shape)
        values = short((torch.arange(n) + 0.5 - n / 2) * 4 / n, 1024)
        assert len(values.unique()) == n
        return "float", values[torch.randperm(n, generator=g)].reshape(shape), True

    return make


def few(*shape, kind="float", limit=4):
    """Small whole numbers, so that equal ones meet."""
    return lambda g: (kind, torch.randint(0, limit, shape, generator=g).to(TORCH.get(kind, torch.float64)), False)


def truth(*shape):
    return few(*shape, kind="bool", limit=2)


def index(limit, *shape, kind="i64"):
    return few(*shape, kind=kind, limit=limit)


def these(*values, kind="float", grad=True):
    tensor = torch.tensor(values, dtype=TORCH.get(kind, torch.float64))
    return lambda g: (kind, tensor, grad and kind in ("float", "wide"))


TORCH = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u32": torch.uint32,
    "u16": torch.uint16,
    "u8": torch.uint8,
    "bool": torch.bool,
}


# ---- cases ----


def number(x, digits):
    if isinstance(x, bool) or isinstance(x, int):
        return str(int(x))
    if digits is None or not math.isfinite(x):
        # A reader of JSON may lose the last bit of a number, but not of a string.
        return f'"{x!r}"'
    return f"{x:.{digits}g}"


def array(tensor, digits=10):
    data = ",".join(number(x, digits) for x in tensor.detach().flatten().tolist())
    return f'{{"shape":{json.dumps(list(tensor.shape), separators=(",", ":"))},"data":[{data}]}}'


def case(file, op, inputs, f, derivative=1, note="", dtypes=None, exact=False, seeded=True, **attrs):
    """Adds a case of `op`, which PyTorch computes as `f(*inputs)`."""
    name = " ".join([op, *(f"{k}={v}" for k, v in attrs.items()), note]).strip()
    g = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    made = [make(g) for make in inputs]
    name += "".join(f" {kind}{list(x.shape)}" for kind, x, _ in made)
    assert (file, name) not in NAMES, name
    NAMES.add((file, name))
    leaves = [x.clone().requires_grad_(grad) for _, x, grad in made]
    wrt = [x for x in leaves if x.requires_grad]

    def outputs_of(y):
        return list(y) if isinstance(y, (tuple, list)) else [y]

    def seeds_for(outputs):
        return [short(torch.randn(y.shape, generator=g)) if y.is_floating_point() else None for y in outputs]

    def slopes(outputs, seeds, again):
        total = sum((y * s).sum() for y, s in zip(outputs, seeds) if s is not None)
        grads = torch.autograd.grad(total, wrt, create_graph=again, allow_unused=True)
        return [torch.zeros_like(x) if d is None else d for x, d in zip(wrt, grads)]

    fields = [f'"op":{json.dumps(op)}', f'"name":{json.dumps(name)}', f'"attrs":{json.dumps(attrs)}']
    digits = None if exact else 10
    fields.append('"inputs":[%s]' % ",".join(
        f'{{"kind":"{kind}","grad":{json.dumps(grad)},"array":{array(x, digits)}}}' for kind, x, grad in made))
    outputs = outputs_of(f(*leaves))
    if derivative == 2:
        inner = seeds_for(outputs)
        fields.append('"inner":[%s]' % ",".join(array(s) for s in inner))
        outputs = slopes([y.square() for y in outputs], inner, True)
    fields.append('"outputs":[%s]' % ",".join(array(y, digits) for y in outputs))
    if seeded and wrt and any(y.requires_grad for y in outputs):
        seeds = seeds_for(outputs)
        fields.append('"seeds":[%s]' % ",".join("null" if s is None else array(s) for s in seeds))
        fields.append('"gradients":[%s]' % ",".join(array(d) for d in slopes(outputs, seeds, False)))
    if dtypes:
        fields.append(f'"dtypes":{json.dumps(dtypes)}')
    if exact:
        fields.append('"exact":true')
    FILES.setdefault(file, []).append("{" + ",".join(fields) + "}")


# ---- elementwise ----

E = "elementwise"

UNARY = {
    "neg": (normal, torch.neg),
    "abs": (normal, torch.abs),
    "sign": (normal, torch.sign),
    "floor": (normal, torch.floor),
    "exp": (normal, torch.exp),
    "log": (positive, torch.log),
    "sqrt": (positive, torch.sqrt),
    "rsqrt": (positive, torch.rsqrt),
    "square": (normal, torch.square),
    "reciprocal": (positive, torch.reciprocal),
    "sin": (normal, torch.sin),
    "cos": (normal, torch.cos),
    "tanh": (normal, torch.tanh),
    "sigmoid": (normal, torch.sigmoid),
    "erf": (normal, torch.erf),
    "relu": (normal, torch.relu),
    "gelu": (normal, F.gelu),
    "gelu_tanh": (normal, lambda x: F.gelu(x, approximate="tanh")),
    "silu": (normal, F.silu),
    "softplus": (normal, lambda x: F.softplus(x, threshold=100)),
}
SCALAR = {
    "add_scalar": (normal, lambda x, s: x + s, [1.5]),
    "mul_scalar": (normal, lambda x, s: x * s, [-2.5, 0.0]),
    "rsub_scalar": (normal, lambda x, s: s - x, [1.0]),
    "rdiv_scalar": (positive, lambda x, s: s / x, [2.0]),
    "pow_scalar": (positive, torch.pow, [3.0, 0.5, -2.0, 1.0, 2.7]),
    "leaky_relu": (normal, lambda x, s: F.leaky_relu(x, s), [0.1, 0.0, -0.25]),
}
# Where rounding, overflow or a kink could hide: far out on both sides, and at zero.
EDGES = {
    "abs": (0.0, -0.0, 300.0),
    "sign": (0.0, 4.0, -4.0),
    "floor": (0.0, 2.0, -2.0, -2.5, 2.5, -0.125),
    "exp": (-80.0, -20.0, 0.0, 10.0, 11.0),
    "log": (2.0**-10, 1.0, 300.0, 30000.0),
    "sqrt": (2.0**-10, 1.0, 30000.0),
    "rsqrt": (2.0**-10, 1.0, 30000.0),
    "sin": (0.0, -30.0, 25.5, 100.0),
    "cos": (0.0, -30.0, 25.5, 100.0),
    "tanh": (0.0, -20.0, 20.0, 2.0**-8, 90.0),
    "sigmoid": (0.0, -80.0, 80.0, -12.0, 12.0),
    "erf": (0.0, -6.0, 6.0, 2.0**-8, 2.5, -2.5),
    "relu": (0.0, -1.0, 1.0),
    "gelu": (0.0, -10.0, 10.0, -5.0, 5.0),
    "gelu_tanh": (0.0, -10.0, 10.0, -5.0, 5.0),
    "silu": (0.0, -60.0, 60.0, -12.0, 12.0),
    "softplus": (0.0, -60.0, 60.0, -12.0, 12.0),
}
for op, (domain, f) in UNARY.items():
    case(E, op, [domain(3, 7)], f)
    if op in EDGES:
        case(E, op, [these(*EDGES[op])], f, note="edges")
    if op in ("neg", "abs", "sign", "square", "relu"):
        for kind in ("i64", "i32"):
            case(E, op, [these(-3, -1, 0, 2, 7, kind=kind)], f)
for op, (domain, f, scalars) in SCALAR.items():
    for s in scalars:
        case(E, op, [domain(2, 9)], lambda x: f(x, s), s=s)
    if op in ("add_scalar", "mul_scalar", "rsub_scalar"):
        for kind in ("i64", "i32"):
            case(E, op, [these(-3, -1, 0, 2, 7, kind=kind)], lambda x: f(x, 3), s=3)
case(E, "leaky_relu", [these(0.0, -1.0, 1.0)], lambda x: F.leaky_relu(x, 0.1), s=0.1, note="edges")
case(E, "clamp", [normal(3, 7)], lambda x: x.clamp(-0.5, 0.75), low=-0.5, high=0.75)
# At a bound itself there is no derivative, and PyTorch has given 1 and 0 there.
case(E, "clamp", [these(-300.0, 0.0, 300.0)], lambda x: x.clamp(-0.5, 0.75), low=-0.5, high=0.75, note="edges")
case(E, "clamp", [these(-3, -1, 0, 2, 7, kind="i64")], lambda x: x.clamp(-1, 2), low=-1, high=2)
case(E, "not", [truth(3, 5)], torch.logical_not)
case(E, "is_finite", [these(0.0, 1.0, math.inf, -math.inf, math.nan, 300.0, grad=False)], torch.isfinite)
case(E, "relu_mask", [normal(3, 7)], torch.relu)
case(E, "relu_mask", [normal(64)], torch.relu)

BINARY = {
    "add": (normal, normal, torch.add),
    "sub": (normal, normal, torch.sub),
    "mul": (normal, normal, torch.mul),
    "div": (normal, positive, torch.div),
    "pow": (positive, normal, torch.pow),
    "maximum": (distinct, normal, torch.maximum),
    "minimum": (distinct, normal, torch.minimum),
}
SHAPES = [((3, 8), (3, 8)), ((3, 8), (8,)), ((3, 1), (3, 8)), ((), (3, 8)), ((2, 1, 5), (3, 1))]
for op, (left, right, f) in BINARY.items():
    for a, b in SHAPES:
        case(E, op, [left(*a), right(*b)], f)
    if op not in ("div", "pow"):
        for kind in ("i64", "i32"):
            case(E, op, [these(-3, 5, 0, 2, 7, kind=kind), these(4, 5, -1, 0, 2, kind=kind)], f)
for op, f in (("maximum", torch.maximum), ("minimum", torch.minimum)):
    case(E, op, [these(1.0, 2.0, 3.0), these(1.0, 3.0, 2.0)], f, note="tie")
case(E, "pow", [these(0.0, 2.0, 1.0), these(2.0, 0.0, -3.0)], torch.pow, note="edges")
for op, f in (("and", torch.logical_and), ("or", torch.logical_or)):
    case(E, op, [truth(4, 5), truth(4, 5)], f)
    case(E, op, [truth(4, 1), truth(5)], f)
COMPARE = {
    "equal": torch.eq,
    "not_equal": torch.ne,
    "less": torch.lt,
    "less_equal": torch.le,
    "greater": torch.gt,
    "greater_equal": torch.ge,
}
for op, f in COMPARE.items():
    case(E, op, [few(4, 6), few(4, 6)], f)
    for kind in ("i64", "i32", "u8"):
        case(E, op, [few(4, 1, kind=kind), few(6, kind=kind)], f)
for c, a, b in [((3, 5), (3, 5), (3, 5)), ((3, 1), (5,), ()), ((5,), (3, 1), (3, 5)), ((), (2, 3), (3,))]:
    case(E, "select", [truth(*c), normal(*a), normal(*b)], torch.where)
for kind in ("i64", "i32", "u8", "bool"):
    case(E, "select", [truth(3, 5), few(3, 5, kind=kind, limit=2), few(5, kind=kind, limit=2)], torch.where)
for to in TORCH:
    # Fractions are cut, not rounded; what an u8 cannot hold is left out.
    values = these(0.0, 1.0, 2.5, 3.75, 100.0, 0.5)
    f = (lambda x: x) if to in ("f32", "f64", "bf16", "f16") else (lambda x: x.detach().to(TORCH[to]))
    case(E, "cast", [values], f, to=to)
    if to not in ("u8", "u16", "u32"):
        negative = these(-1.0, -2.5, -100.0, -0.5)
        case(E, "cast", [negative], f, to=to)
    for kind in ("i64", "i32", "i16", "i8", "u32", "u16", "u8", "bool"):
        integers = these(0, 1, 1, 0, kind=kind) if kind == "bool" else these(
            0, 1, 7, 100 if "i8" in (kind, to) else 200, kind=kind)
        out = torch.float64 if to in ("f32", "f64", "bf16", "f16") else TORCH[to]
        case(E, "cast", [integers], lambda x: x.to(out), to=to)
# Rounding itself, for which the inputs need all of their bits: ties to even, overflow, numbers below the normal ones.
ROUNDED = (1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 / 3, -2 / 3, 65519.0, 65520.0, 7e4, 3e38,
           1e-5, 6e-8, 2e-8, 1e-39, 0.0, -0.0, math.inf, -math.inf)
for to in ("bf16", "f16"):
    f32s = these(*torch.tensor(ROUNDED, dtype=torch.float32).tolist(), grad=False)
    case(E, "cast", [f32s], lambda x: x.to(torch.float32).to(TORCH[to]).double(), to=to, note="rounds",
         dtypes=["f32"], exact=True)
case(E, "cast", [these(1 / 3, 1e-40, 3.5e38, 1 + 2.0**-24, 1 + 3 * 2.0**-24, grad=False)],
     lambda x: x.to(torch.float32).double(), to="f32", note="rounds", dtypes=["f64"], exact=True)
case(E, "fused", [normal(3, 8), normal(8), normal(3, 1), normal()],
     lambda x, row, column, one: [torch.where(torch.tanh(x + row) * column > 0.125, one, torch.tanh(x + row)),
                                  torch.tanh(x + row) * column], seeded=False)

# ---- layout ----

L = "layout"

for dtype in ("float", *(k for k in TORCH if k not in ("f32", "f64", "bf16", "f16"))):
    out = TORCH.get(dtype, torch.float64)
    case(L, "full_like", [normal(2, grad=False)], lambda x: torch.full((3, 4), 1, dtype=out), shape=[3, 4], value=1,
         dtype=dtype)
    if dtype != "bool":
        case(L, "iota_like", [normal(2, grad=False)], lambda x: torch.arange(3).reshape(3, 1).expand(3, 4).to(out),
             shape=[3, 4], axis=0, dtype=dtype)
case(L, "full_like", [normal(2, grad=False)], lambda x: torch.full((5,), -0.375), shape=[5], value=-0.375,
     dtype="float")
case(L, "iota_like", [normal(2, grad=False)], lambda x: torch.arange(4.0).expand(3, 4), shape=[3, 4], axis=1,
     dtype="float")
for a, b in [((1, 5), (3, 5)), ((5,), (2, 3, 5)), ((2, 1, 3), (2, 4, 3)), ((), (2, 3)), ((3, 1), (3, 18))]:
    case(L, "broadcast", [normal(*a)], lambda x: x.expand(b), shape=list(b))
    case(L, "sum_to", [normal(*b)], lambda x: x.sum_to_size(a), shape=list(a))
case(L, "reshape", [normal(2, 3, 4)], lambda x: x.reshape(6, 4), shape=[6, 4])
case(L, "flatten", [normal(2, 3, 4)], lambda x: x.flatten(1), first=1)
for shape, order in [((3, 5), (1, 0)), ((2, 3, 5), (0, 2, 1)), ((2, 3, 5), (2, 0, 1)), ((2, 3, 4, 5), (0, 3, 1, 2)),
                     ((2, 3, 4, 5), (0, 2, 1, 3)), ((2, 1, 4, 3), (3, 2, 1, 0)), ((9, 17), (1, 0))]:
    case(L, "transpose", [normal(*shape)], lambda x: x.permute(order), order=list(order))
case(L, "narrow", [normal(4, 6)], lambda x: x[:, 1:4], axis=1, start=1, stop=4)
for ranges in [[[0, 1, 3, 1]], [[1, 0, 9, 2]], [[0, 1, 4, 2], [1, 2, 9, 3]], [[2, 4, 5, 1]],
               [[0, 0, 4, 3], [2, 1, 5, 2]]]:
    def sliced(x):
        at = [slice(None)] * 3
        for axis, start, stop, step in ranges:
            at[axis] = slice(start, stop, step)
        return x[tuple(at)]

    case(L, "slice", [normal(4, 9, 5)], sliced, ranges=ranges)
for pads, value in [([[1, 2], [0, 3]], 0.0), ([[0, 1], [2, 0]], -1.5), ([[0, 0], [0, 0]], 0.0)]:
    flat = [n for pair in reversed(pads) for n in pair]
    case(L, "pad", [normal(3, 4)], lambda x: F.pad(x, flat, value=value), padding=pads, value=value)
for axis, shapes in [(0, [(2, 3), (4, 3), (1, 3)]), (-1, [(2, 3), (2, 5)]), (1, [(2, 1, 4), (2, 3, 4), (2, 2, 4)]),
                     (0, [(2, 2)])]:
    case(L, "concat", [normal(*s) for s in shapes], lambda *x: torch.cat(x, axis), axis=axis)
for axis, sizes, shape in [(0, [1, 3, 2], (6, 4)), (-1, [5, 1], (3, 6)), (1, [2, 2, 2], (2, 6, 3))]:
    case(L, "split", [normal(*shape)], lambda x: torch.split(x, sizes, axis), axis=axis, sizes=sizes)
for kind in ("i64", "i32", "u8", "bool"):
    limit = 2 if kind == "bool" else 90
    x = few(3, 5, kind=kind, limit=limit)
    case(L, "broadcast", [few(1, 5, kind=kind, limit=limit)], lambda x: x.expand(3, 5), shape=[3, 5])
    case(L, "reshape", [x], lambda x: x.reshape(5, 3), shape=[5, 3])
    case(L, "transpose", [x], lambda x: x.t(), order=[1, 0])
    case(L, "slice", [x], lambda x: x[:, 1:5:2], ranges=[[1, 1, 5, 2]])
    case(L, "pad", [x], lambda x: F.pad(x.to(torch.int64), (1, 2), value=1).to(x.dtype), padding=[[0, 0], [1, 2]],
         value=1)
    case(L, "concat", [x, x], lambda x, y: torch.cat([x, y], 1), axis=1)
    case(L, "split", [x], lambda x: torch.split(x, [2, 3], 1), axis=1, sizes=[2, 3])

# ---- reduce ----

R = "reduce"


def prod(x, dim, keepdim):
    """The product over several axes, which PyTorch takes one at a time: they are made one first."""
    kept = [a for a in range(x.dim()) if a not in dim]
    return x.permute(kept + list(dim)).flatten(len(kept)).prod(-1)


REDUCE = {
    "sum": (normal, torch.sum),
    "mean": (normal, torch.mean),
    "max": (distinct, torch.amax),
    "min": (distinct, torch.amin),
    "prod": (normal, prod),
}
for op, (domain, f) in REDUCE.items():
    for i, axes in enumerate([[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]]):
        keep = i % 2 == 0
        shape = [3, 4, 6] if len(axes) < 3 or op != "prod" else [2, 2, 3]

        def reduced(x):
            y = f(x, dim=axes, keepdim=keep)
            return y.reshape([1 if a in axes else n for a, n in enumerate(x.shape)]) if keep else y

        case(R, op, [domain(*shape)], reduced, axes=axes, keep=keep)
    # Longer than a vector register, and than the block in which a kernel may add up.
    if op != "prod":
        case(R, op, [distinct(2, 120)], lambda x: f(x, dim=[1], keepdim=False), axes=[1], keep=False)
        case(R, op, [distinct(120, 2)], lambda x: f(x, dim=[0], keepdim=False), axes=[0], keep=False)
    if op not in ("mean", "prod"):
        for kind in ("i64", "i32"):
            case(R, op, [few(3, 5, kind=kind, limit=9)], lambda x: f(x, dim=[1], keepdim=False).to(x.dtype),
                 axes=[1], keep=False)
for op, f in (("max", torch.amax), ("min", torch.amin)):
    case(R, op, [these([1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0])], lambda x: f(x, dim=1), axes=[1], keep=False,
         note="tie")
case(R, "prod", [these([1.5, 0.0, 2.0], [0.0, 3.0, 0.0], [2.0, 3.0, -4.0])], lambda x: x.prod(1), axes=[1],
     keep=False, note="zeros")
case(R, "prod", [few(3, 4, kind="i64", limit=5)], lambda x: x.prod(1), axes=[1], keep=False)
for axis in (0, 1, -1):
    case(R, "argmax", [distinct(3, 4, 5)], lambda x: x.argmax(axis), axis=axis)
    case(R, "argmax", [these([[1, 5, 2], [7, 0, 3]], [[4, 3, 9], [6, 8, 2]], kind="i64")], lambda x: x.argmax(axis),
         axis=axis)

# ---- matmul ----

M = "matmul"
ACTS = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.125),
}


def product(ta, tb, act=None):
    def f(a, b, bias=None):
        y = (a.mT if ta else a) @ (b.mT if tb else b)
        y = y if bias is None else y + bias
        return ACTS[act](y) if act else y

    return f


def matrix(rows, columns, transposed, batch):
    return normal(*batch, *((columns, rows) if transposed else (rows, columns)), scale=0.5)


case(M, "matmul", [normal(3, 4), normal(4, 5)], torch.matmul)
for ta in (False, True):
    for tb in (False, True):
        for batches in [((), ()), ((2, 2), (2, 2)), ((), (3,)), ((3,), ())]:
            inputs = [matrix(3, 4, ta, batches[0]), matrix(4, 5, tb, batches[1])]
            # A bias for one half of them, in each combination of batches.
            inputs += [normal(5)] if ta == tb else []
            case(M, "matmul_with", inputs, product(ta, tb), ta=ta, tb=tb)
for ta, tb, (m, n, k) in [(False, False, (17, 35, 9)), (True, False, (7, 18, 11)), (False, True, (9, 17, 12))]:
    case(M, "matmul_with", [matrix(m, k, ta, ()), matrix(k, n, tb, ()), normal(n)], product(ta, tb), ta=ta, tb=tb,
         note="tiles")
case(M, "matmul_with", [normal(1, 1), normal(1, 1)], product(False, False), ta=False, tb=False, note="one")
for ta, tb, scale in ((False, False, 1.0), (True, False, 0.5), (False, True, -2.0), (True, True, 3.0)):
    onto = lambda a, b, c: scale * ((a.mT if ta else a) @ (b.mT if tb else b)) + c
    case(M, "matmul_onto", [matrix(3, 4, ta, ()), matrix(4, 5, tb, ()), normal(3, 5)], onto, ta=ta, tb=tb, scale=scale)
    case(M, "matmul_onto", [matrix(3, 4, ta, (2,)), matrix(4, 5, tb, ()), normal(2, 3, 5)], onto, ta=ta, tb=tb, scale=scale)
for i, act in enumerate(ACTS):
    ta, tb = i % 2 == 1, i % 3 == 1
    case(M, "matmul_act", [matrix(3, 4, ta, ()), matrix(4, 5, tb, ()), normal(5)], product(ta, tb, act), ta=ta,
         tb=tb, act=act)
    case(M, "matmul_act", [matrix(3, 4, ta, (2,)), matrix(4, 5, tb, ())], product(ta, tb, act), ta=ta, tb=tb, act=act)

LENGTHS = {"b": 2, "i": 3, "j": 4, "k": 5, "l": 2, "h": 2, "q": 3, "d": 4}
for equation in ("ij,jk->ik", "ij,jk", "ji,kj->ik", "bij,bjk->bik", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "ij->ji", "ij->", "i,j->ij",
                 "ij,i->ij", "ij,jk,kl->li", "bi,bij,bj->b"):
    operands = [normal(*(LENGTHS[letter] for letter in letters)) for letters in equation.split("->")[0].split(",")]
    case(M, "einsum", operands, lambda *x: torch.einsum(equation, *x), equation=equation)

# ---- convolution ----

C = "conv"


def padding(pad, lengths, windows, strides, dilations):
    """Elements before and after each axis, as Plimsoll resolves them."""
    if pad == "valid":
        return [[0, 0] for _ in lengths]
    if pad != "same":
        return pad
    pads = []
    for n, k, s, d in zip(lengths, windows, strides, dilations):
        total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        pads.append([total // 2, total - total // 2])
    return pads


def flat(pads):
    return [n for pair in reversed(pads) for n in pair]


def conv(stride, pad, dilation, groups, act=None):
    def f(x, w, bias=None):
        axes = x.dim() - 2
        pads = padding(pad, x.shape[1:-1], w.shape[:axes], stride, dilation)
        x = F.pad(x.movedim(-1, 1), flat(pads))
        w = w.movedim((-1, -2), (0, 1))
        y = getattr(F, f"conv{axes}d")(x, w, bias, stride, 0, dilation, groups)
        y = y.movedim(1, -1)
        return ACTS[act](y) if act else y

    return f


def conv_case(op, x, w, bias=False, stride=None, pad="valid", dilation=None, groups=1, note="", act=None):
    ones = [1] * (len(x) - 2)
    stride, dilation = stride or ones, dilation or ones
    inputs = [normal(*x, scale=0.5), normal(*w, scale=0.5)] + ([normal(w[-1])] if bias else [])
    attrs = dict(stride=stride, pad=pad, dilation=dilation)
    if op != "depthwise_conv2d":
        attrs["groups"] = groups
    if act:
        attrs["act"] = act
    case(C, op, inputs, conv(stride, pad, dilation, groups, act), note=note, **attrs)


conv_case("conv2d", (2, 5, 6, 3), (3, 3, 3, 4))
conv_case("conv2d", (2, 5, 6, 3), (3, 3, 3, 4), bias=True, pad="same")
conv_case("conv2d", (1, 7, 7, 2), (3, 3, 2, 3), bias=True, pad="same", stride=[2, 2])
conv_case("conv2d", (1, 8, 6, 2), (2, 3, 2, 3), stride=[2, 1], pad=[[1, 0], [0, 2]])
conv_case("conv2d", (1, 8, 9, 2), (3, 2, 2, 3), bias=True, dilation=[2, 3], pad=[[2, 1], [0, 3]])
conv_case("conv2d", (1, 9, 9, 1), (3, 3, 1, 2), dilation=[2, 2], stride=[2, 3], pad="same")
conv_case("conv2d", (2, 4, 5, 4), (3, 3, 2, 6), bias=True, groups=2, pad="same")
conv_case("conv2d", (1, 6, 6, 6), (2, 2, 2, 3), groups=3, stride=[2, 2])
conv_case("conv2d", (2, 3, 3, 5), (1, 1, 5, 7), bias=True)
conv_case("conv2d", (1, 6, 5, 3), (1, 1, 3, 4), stride=[2, 2])
conv_case("conv2d", (1, 4, 5, 2), (4, 5, 2, 3), bias=True, note="whole")
conv_case("conv2d", (1, 4, 5, 17), (2, 2, 17, 10), pad="same", note="tiles")
conv_case("conv2d", (1, 3, 3, 2), (5, 5, 2, 3), pad="same", note="larger filter than image")
conv_case("conv1d", (2, 9, 3), (3, 3, 4), bias=True)
conv_case("conv1d", (2, 9, 3), (4, 3, 4), pad="same", stride=[2])
conv_case("conv1d", (1, 10, 4), (3, 2, 6), bias=True, pad=[[4, 0]], dilation=[2], groups=2)
conv_case("conv3d", (2, 4, 5, 4, 2), (3, 3, 3, 2, 3))
conv_case("conv3d", (1, 4, 4, 5, 2), (3, 3, 2, 2, 3), bias=True, pad="same")
conv_case("conv3d", (1, 6, 5, 4, 2), (2, 3, 3, 2, 3), bias=True, stride=[2, 2, 1], pad=[[1, 0], [0, 1], [1, 1]])
conv_case("conv3d", (1, 7, 4, 4, 4), (3, 2, 2, 2, 4), dilation=[2, 1, 2], groups=2, pad="same")
conv_case("conv3d", (1, 3, 3, 4, 2), (1, 1, 1, 2, 3), bias=True)
for act in ("relu", "silu"):
    conv_case("conv2d_act", (1, 4, 5, 3), (3, 3, 3, 4), bias=True, pad="same", act=act)
for note, x, w, extra in [
    ("", (2, 5, 6, 4), (3, 3, 1, 4), {}),
    ("", (1, 6, 6, 3), (3, 3, 1, 6), dict(bias=True, stride=[2, 2], pad="same")),
    ("", (1, 7, 8, 2), (3, 2, 1, 2), dict(bias=True, dilation=[2, 1], pad="same")),
    ("wide", (1, 5, 4, 20), (3, 3, 1, 20), dict(pad="same")),
]:
    conv_case("depthwise_conv2d", x, w, groups=x[-1], note=note, **extra)


def transposed(stride, pad, dilation, groups, extra):
    def f(x, w, bias=None):
        axes = x.dim() - 2
        # The filter [KH, KW, CO/groups, CI] is PyTorch's [CI, CO/groups, KH, KW].
        y = getattr(F, f"conv_transpose{axes}d")(x.movedim(-1, 1), w.movedim((-1, -2), (0, 1)), None, stride, 0, extra,
                                                 groups, dilation)
        if pad == "same":
            sizes = [n * s for n, s in zip(x.shape[1:-1], stride)]
            pads = padding("same", sizes, w.shape[:axes], stride, dilation)
        else:
            pads = padding(pad, *([[1] * axes] * 4))
            sizes = [n - low - high for n, (low, high) in zip(y.shape[2:], pads)]
        # What lies beyond the windows is zero: padding "same" with windows shorter than the stride needs it.
        missing = [[0, max(0, low + n - m)] for (low, _), n, m in zip(pads, sizes, y.shape[2:])]
        y = F.pad(y, flat(missing))
        for axis, ((low, _), n) in enumerate(zip(pads, sizes)):
            y = y.narrow(axis + 2, low, n)
        y = y.movedim(1, -1)
        return y if bias is None else y + bias

    return f


for x, w, bias, stride, pad, dilation, groups, extra in [
    ((2, 3, 4, 3), (3, 3, 2, 3), False, [1, 1], "valid", [1, 1], 1, [0, 0]),
    ((1, 3, 4, 3), (2, 2, 4, 3), True, [2, 2], "valid", [1, 1], 1, [0, 0]),
    ((1, 3, 3, 2), (3, 3, 3, 2), True, [2, 2], [[1, 1], [1, 1]], [1, 1], 1, [1, 1]),
    ((1, 3, 4, 4), (3, 2, 2, 4), True, [2, 3], [[1, 0], [0, 1]], [1, 1], 2, [1, 0]),
    ((1, 4, 3, 2), (3, 3, 2, 2), False, [1, 2], [[1, 1], [0, 2]], [2, 1], 1, [0, 0]),
    ((1, 3, 4, 3), (3, 3, 2, 3), True, [2, 2], "same", [1, 1], 1, [0, 0]),
    ((1, 3, 2, 3), (1, 2, 2, 3), False, [2, 3], "same", [1, 1], 1, [0, 0]),
    ((1, 2, 3, 2, 3), (2, 3, 2, 2, 3), True, [1, 2, 1], "valid", [1, 1, 1], 1, [0, 1, 0]),
    ((1, 3, 2, 2, 4), (3, 2, 2, 1, 4), True, [2, 1, 2], [[1, 1], [0, 1], [0, 0]], [1, 1, 1], 2, [1, 0, 0]),
    ((1, 2, 2, 3, 2), (1, 2, 2, 2, 2), False, [2, 2, 1], "same", [1, 1, 1], 1, [0, 0, 0]),
    ((1, 3, 2, 2, 1), (2, 2, 1, 2, 1), False, [1, 1, 1], [[1, 0], [0, 0], [0, 0]], [2, 1, 1], 1, [0, 0, 0]),
]:
    co = w[-2] * groups
    inputs = [normal(*x, scale=0.5), normal(*w, scale=0.5)] + ([normal(co)] if bias else [])
    case(C, f"conv_transpose{len(stride)}d", inputs, transposed(stride, pad, dilation, groups, extra), stride=stride, pad=pad,
         dilation=dilation, groups=groups, extra=extra)

# ---- pooling and resizing ----

P = "pool"


def pool(kind, window, stride, pad, count_pad=True):
    def f(x):
        pads = padding(pad, x.shape[1:-1], window, stride, [1] * len(window))
        y = F.pad(x.movedim(-1, 1), flat(pads), value=-math.inf if kind == "max" else 0.0)
        if kind == "max":
            return getattr(F, f"max_pool{len(window)}d")(y, window, stride).movedim(1, -1)
        mean = getattr(F, f"avg_pool{len(window)}d")
        total = mean(y, window, stride)
        if not count_pad:
            ones = F.pad(torch.ones_like(x).movedim(-1, 1), flat(pads))
            total = total / mean(ones, window, stride)
        return total.movedim(1, -1)

    return f


def pool_cases(shape, window, stride, pad):
    d = f"{len(window)}d"
    case(P, f"max_pool{d}", [distinct(*shape)], pool("max", window, stride, pad), window=window, stride=stride,
         pad=pad)
    for count_pad in (True, False):
        case(P, f"avg_pool{d}", [normal(*shape)], pool("avg", window, stride, pad, count_pad), window=window,
             stride=stride,
             pad=pad, count_pad=count_pad)


pool_cases((2, 4, 6, 3), [2, 2], [2, 2], "valid")
pool_cases((1, 7, 6, 2), [3, 3], [2, 2], "same")
pool_cases((1, 6, 5, 3), [3, 2], [1, 1], [[1, 1], [0, 1]])
pool_cases((1, 6, 7, 2), [2, 3], [3, 2], [[1, 0], [2, 1]])
pool_cases((1, 5, 5, 1), [1, 1], [2, 2], "valid")
pool_cases((1, 3, 4, 18), [2, 2], [1, 2], "valid")
pool_cases((2, 9, 3), [3], [2], "same")
pool_cases((1, 8, 2), [2], [2], "valid")
pool_cases((1, 4, 4, 4, 2), [2, 2, 2], [2, 2, 2], "valid")
pool_cases((1, 5, 3, 4, 2), [3, 2, 3], [2, 1, 2], "same")
pool_cases((2, 3, 4, 3, 2), [2, 3, 2], [1, 2, 1], [[1, 0], [1, 1], [0, 1]])
case(P, "max_pool2d", [these([[[1.0], [2.0], [2.0]], [[2.0], [1.0], [2.0]], [[0.0], [2.0], [2.0]]])],
     pool("max", [2, 2], [1, 1], "valid"), window=[2, 2], stride=[1, 1], pad="valid", note="tie")
case(P, "global_avg_pool2d", [normal(2, 3, 4, 5)],
     lambda x: F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1).flatten(1))
case(P, "global_max_pool2d", [distinct(2, 3, 4, 5)],
     lambda x: F.adaptive_max_pool2d(x.permute(0, 3, 1, 2), 1).flatten(1))


def resize(out, mode, align):
    align = {"align_corners": align} if mode == "bilinear" else {}
    return lambda x: F.interpolate(x.permute(0, 3, 1, 2), out, mode=mode, **align).permute(0, 2, 3, 1)


for mode, align in (("nearest", False), ("bilinear", False), ("bilinear", True)):
    for shape, out in [((2, 3, 4, 3), [6, 8]), ((1, 5, 6, 2), [3, 4]), ((1, 4, 3, 2), [7, 5]),
                       ((1, 4, 4, 2), [1, 6]), ((1, 3, 5, 1), [3, 5])]:
        case(P, "resize2d", [normal(*shape)], resize(out, mode, align), out=out, mode=mode, align=align)
for mode in ("nearest", "bilinear"):
    case(P, "upsample2d", [normal(1, 3, 2, 3)], resize([6, 4], mode, False), factor=2, mode=mode)
    case(P, "upsample2d", [normal(1, 2, 2, 1)], resize([6, 6], mode, False), factor=3, mode=mode)



def grid_sample(mode, border, align):
    def sampled(x, grid):
        y = F.grid_sample(x.movedim(-1, 1), grid, mode=mode, padding_mode="border" if border else "zeros",
                          align_corners=align)
        return y.movedim(1, -1)

    return sampled


for mode in ("bilinear", "nearest"):
    for border in (False, True):
        for align in (False, True):
            case(P, "grid_sample", [normal(2, 4, 5, 3), wide(2, 3, 4, 2, scale=0.75)], grid_sample(mode, border, align),
                 mode=mode, border=border, align=align)

# ---- picking by index ----

G = "gather"


def gather(axis):
    return lambda x, i: torch.index_select(x, axis, i.flatten()).reshape(
        x.shape[:axis] + i.shape + x.shape[axis % x.dim() + 1:])


for kind in ("i64", "i32"):
    case(G, "gather", [normal(4, 3, 5), index(4, 2, 3, kind=kind)], gather(0), axis=0)
    case(G, "gather", [normal(4, 3, 5), index(3, kind=kind)], gather(1), axis=1)
    case(G, "gather", [normal(4, 3, 5), index(5, 7, kind=kind)], lambda x, i: gather(2)(x, i), axis=-1)
    case(G, "embedding", [normal(6, 4), index(6, 2, 5, kind=kind)], lambda x, i: F.embedding(i, x))
    case(G, "scatter_add", [normal(2, 3, 4), index(5, 2, 3, kind=kind)],
         lambda x, i: torch.zeros(5, 4).index_add(0, i.flatten(), x.reshape(6, 4)), axis=0, length=5)
    for dtype in ("float", "i64", "i32", "u8", "bool"):
        case(G, "one_hot", [index(5, 2, 3, kind=kind)],
             lambda i: F.one_hot(i.long(), 5).to(TORCH.get(dtype, torch.float64)),
             depth=5, dtype=dtype)
    for axis in (0, 1, -1):
        shape = [2, 3, 4]
        limit = shape[axis]
        shape[axis] = 5
        case(G, "take_along", [normal(2, 3, 4), index(limit, *shape, kind=kind)],
             lambda x, i: torch.take_along_dim(x, i.long(), axis), axis=axis)
        shape = [2, 3, 4]
        shape[axis] = 5
        case(G, "put_along_add", [normal(2, 3, 4), index(5, 2, 3, 4, kind=kind)],
             lambda x, i: torch.zeros(shape).scatter_add(axis, i.long(), x), axis=axis % 3, length=5)
for kind in ("i64", "i32", "u8", "bool"):
    limit = 2 if kind == "bool" else 90
    case(G, "gather", [few(4, 3, kind=kind, limit=limit), index(4, 6)], gather(0), axis=0)
    case(G, "take_along", [few(4, 3, kind=kind, limit=limit), index(3, 4, 2)], lambda x,
         i: torch.take_along_dim(x, i, 1), axis=1)



def put(axis, accumulate):
    """Writing or adding slices by index; PyTorch's own gradient is that of indices of which no two are equal."""
    return lambda x, i, values: x.movedim(axis, 0).index_put(
        (i.long(),), values.movedim(axis, 0), accumulate=accumulate).movedim(0, axis)


for kind in ("i64", "i32"):
    for axis in (0, 1, -1):
        shape = [4, 3, 5]
        limit = shape[axis]
        shape[axis] = 6
        case(G, "index_add", [normal(4, 3, 5), index(limit, 6, kind=kind), normal(*shape)], put(axis, True), axis=axis)
        shape[axis] = 3
        order = these(*[2, 0, 1], kind=kind)
        case(G, "index_put", [normal(4, 3, 5), order, normal(*shape)], put(axis, False), axis=axis)
case(G, "index_put", [few(5, 3, kind="i64"), these(0, 3, kind="i64"), few(2, 3, kind="i64")], put(0, False), axis=0)
for mask in ((3, 4), (4,), (3, 1)):
    case(G, "masked_fill", [normal(3, 4), truth(*mask)], lambda x, m: x.masked_fill(m, -0.5), value=-0.5)
case(G, "masked_fill", [few(3, 4, kind="i64"), truth(3, 4)], lambda x, m: x.masked_fill(m, 7), value=7)



def unique(size, fill):
    def padded(x):
        values, counts = torch.unique(x, return_counts=True)
        rest = size - len(values)
        return F.pad(values, (0, rest), value=fill), F.pad(counts, (0, rest))

    return padded


for kind in ("i64", "i32"):
    case(G, "unique", [few(4, 6, kind=kind, limit=9)], unique(10, -1), size=10, fill=-1)
    case(G, "unique", [few(1, kind=kind)], unique(1, 0), size=1, fill=0)

# ---- softmax and losses ----

S = "loss"

for axis in (0, 1, -1):
    case(S, "softmax", [normal(3, 4, 6)], lambda x: x.softmax(axis), axis=axis)
    case(S, "log_softmax", [normal(3, 4, 6)], lambda x: x.log_softmax(axis), axis=axis)
case(S, "softmax", [normal(2, 70)], lambda x: x.softmax(-1), axis=-1)
case(S, "log_softmax", [normal(2, 70)], lambda x: x.log_softmax(-1), axis=-1)
extremes = these([100.0, -100.0, 99.0, 0.0], [-200.0, -200.0, -201.0, -250.0], [0.0, 0.0, 0.0, 0.0])
case(S, "softmax", [extremes], lambda x: x.softmax(-1), axis=-1, note="edges")
case(S, "log_softmax", [extremes], lambda x: x.log_softmax(-1), axis=-1, note="edges")
for kind in ("i64", "i32"):
    case(S, "softmax_cross_entropy", [normal(5, 7), index(7, 5, kind=kind)], lambda x,
         t: F.cross_entropy(x, t.long(), reduction="none"))
    case(S, "softmax_cross_entropy", [normal(2, 3, 6), index(6, 2, 3, kind=kind)],
         lambda x, t: F.cross_entropy(x.movedim(-1, 1), t.long(), reduction="none"))
case(S, "softmax_cross_entropy", [normal(3, 70, scale=4.0), index(70, 3)], lambda x,
     t: F.cross_entropy(x, t, reduction="none"))
case(S, "softmax_cross_entropy", [extremes, these(1, 3, 0, kind="i64")], lambda x,
     t: F.cross_entropy(x, t, reduction="none"), note="edges")
for cap in (None, 2.0):
    linear = lambda x, w, t: F.cross_entropy((lambda l: l if cap is None else cap * torch.tanh(l / cap))(x @ w.T), t.long(),
                                             reduction="none")
    for kind, rows, words in (("i64", 5, 7), ("i32", 3, 100)):
        case(S, "linear_cross_entropy", [normal(rows, 4), normal(words, 4), index(words, rows, kind=kind)], linear,
             cap=cap)
for kind, rows, words in (("i64", 5, 7), ("i32", 3, 100)):
    case(S, "frozen_cross_entropy", [normal(rows, 4), normal(words, 4, grad=False), index(words, rows, kind=kind)],
         lambda x, w, t: F.cross_entropy(x @ w.T, t.long(), reduction="none"))
case(S, "dense_softmax_cross_entropy", [normal(5, 7), positive(5, 7)], lambda x,
     t: F.cross_entropy(x, t, reduction="none"))
case(S, "dense_softmax_cross_entropy", [normal(2, 3, 6), positive(2, 3, 6)],
     lambda x, t: F.cross_entropy(x.movedim(-1, 1), t.movedim(-1, 1), reduction="none"))
bce = lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none")
case(S, "sigmoid_cross_entropy", [normal(4, 6), positive(4, 6)], bce)
case(S, "sigmoid_cross_entropy", [these(0.0, 0.0, 60.0, -60.0, 100.0), these(0.25, 1.0, 1.0, 1.0, 0.0)], bce,
     note="edges")
case(S, "mse", [normal(4, 6), normal(4, 6)], F.mse_loss)

# ---- norms ----

N = "norm"

for shape, axes in [((4, 8), 1), ((2, 3, 5), 1), ((2, 3, 5), 2), ((3, 40), 1)]:
    tail = shape[-axes:]
    case(N, "layer_norm", [normal(*shape), wide(*tail), wide(*tail)], lambda x, g,
         b: F.layer_norm(x, tail, g, b, 1e-5), eps=1e-5)
case(N, "layer_norm", [normal(3, 8), wide(8), wide(8)], lambda x, g, b: F.layer_norm(x, (8,), g, b, 0.125), eps=0.125)
for shape in [(4, 8), (2, 3, 5), (3, 40)]:
    case(N, "rms_norm", [normal(*shape), wide(shape[-1])], lambda x, g: F.rms_norm(x, shape[-1:], g, 1e-5), eps=1e-5)
for shape, groups in [((2, 3, 4, 6), 3), ((2, 3, 4, 6), 1), ((3, 4, 8), 4), ((2, 5, 4), 4), ((4, 6), 2)]:
    case(N, "group_norm", [normal(*shape), wide(shape[-1]), wide(shape[-1])],
         lambda x, g, b: F.group_norm(x.movedim(-1, 1), groups, g, b, 1e-5).movedim(1, -1), groups=groups, eps=1e-5)
for shape in [(6, 5), (2, 3, 4, 5), (2, 3, 18)]:
    dims = list(range(len(shape) - 1))
    channels = shape[-1]
    case(N, "batch_norm", [normal(*shape), wide(channels), wide(channels)],
         lambda x, g, b: [F.batch_norm(x.movedim(-1, 1), None, None, g, b, True, 0.1, 1e-5).movedim(1, -1),
                          x.mean(dims), x.var(dims, unbiased=False)], eps=1e-5)
    # PyTorch's own function gives no gradients of the statistics, its arithmetic does.
    case(N, "batch_norm_inference",
         [normal(*shape), wide(channels), wide(channels), wide(channels), positive(channels, kind="wide")],
         lambda x, g, b, m, v: (x - m) / (v + 1e-3).sqrt() * g + b, eps=1e-3)
    case(N, "batch_norm_inference", [normal(*shape), wide(channels), wide(channels),
                                     normal(channels, kind="wide", grad=False),
                                     lambda gen: (*positive(channels, kind="wide")(gen)[:2], False)],
         lambda x, g, b, m, v: F.batch_norm(x.movedim(-1, 1), m, v, g, b, False, 0.1, 1e-3).movedim(1, -1), eps=1e-3,
         note="constant")

# ---- sequences ----

Q = "sequence"


def attention(causal, scale=None):
    def f(q, k, v, mask=None):
        tq, tk = q.shape[1], k.shape[1]
        if causal and tq != tk:
            seen = torch.ones(tq, tk, dtype=torch.bool).tril(tk - tq)
            mask = torch.where(seen, 0.0, -math.inf) + (0 if mask is None else mask)
        elif causal and mask is not None:
            mask = mask + torch.where(torch.ones(tq, tk, dtype=torch.bool).tril(), 0.0, -math.inf)
        group = q.shape[2] // k.shape[2]
        q, k, v = (x.permute(0, 2, 1, 3) for x in (q, k, v))
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal and mask is None, scale=scale)
        return y.permute(0, 2, 1, 3)

    return f


def qkv(b, tq, tk, h, hkv, d, dv):
    return [normal(b, tq, h, d), normal(b, tk, hkv, d), normal(b, tk, hkv, dv)]


hiding = these([0.0, -math.inf, 0.0, 0.0], [-math.inf, 0.0, -math.inf, -1.0], [0.0, 0.0, -2.0, -math.inf], grad=False)

def turned(x, sin, cos):
    """Llama's rotary embedding, of the features that have an angle."""
    pairs = sin.shape[-1]
    a, b, rest = x[..., :pairs], x[..., pairs:2 * pairs], x[..., 2 * pairs:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


for batch, rows, pairs, features in ((2, 1, 3, 6), (2, 2, 2, 7), (1, 1, 8, 16)):
    angles = [normal(rows, 4, 1, pairs, grad=False) for _ in range(2)]
    case(Q, "rotary", [normal(batch, 4, 3, features), *angles], turned)

for causal in (False, True):
    case(Q, "attention", qkv(2, 4, 4, 2, 2, 6, 6), attention(causal), causal=causal)
    case(Q, "attention", qkv(1, 3, 5, 2, 2, 4, 7), attention(causal), causal=causal)
    case(Q, "attention", qkv(1, 4, 4, 4, 2, 3, 5), attention(causal, 0.25), causal=causal, scale=0.25)
    case(Q, "attention", [*qkv(2, 3, 4, 2, 1, 5, 5), normal(2, 2, 3, 4, grad=False)], attention(causal),
         causal=causal)
    case(Q, "attention", [*qkv(2, 3, 4, 2, 2, 5, 5), normal(2, 1, 1, 4, grad=False)], attention(causal),
         causal=causal)
    case(Q, "attention", [*qkv(1, 3, 4, 2, 2, 5, 5), hiding], attention(causal), causal=causal, note="hiding")
    case(Q, "attention", qkv(1, 20, 20, 1, 1, 5, 6), attention(causal), causal=causal, note="tiles")


def recurrent(module, x, w, u, biases, states):
    params = dict(weight_ih_l0=w.T, weight_hh_l0=u.T, bias_ih_l0=biases[0], bias_hh_l0=biases[1])
    states = [s.unsqueeze(0) for s in states]
    y, last = torch.func.functional_call(module, params, (x, tuple(states) if len(states) > 1 else states[0]))
    return [y, *(s.squeeze(0) for s in (last if len(states) > 1 else [last]))]


for b, t, i, h in [(2, 4, 3, 5), (1, 1, 2, 3), (3, 3, 6, 4)]:
    case(Q, "lstm", [normal(b, t, i), normal(i, 4 * h, scale=0.5), normal(h, 4 * h, scale=0.5), normal(4 * h),
                     normal(b, h), normal(b, h)],
         lambda x, w, u, bias, h0, c0: recurrent(torch.nn.LSTM(i, h, batch_first=True), x, w, u,
                                                 [bias, torch.zeros(4 * h)], [h0, c0]))
    case(Q, "gru", [normal(b, t, i), normal(i, 3 * h, scale=0.5), normal(h, 3 * h, scale=0.5), normal(3 * h),
                    normal(3 * h), normal(b, h)],
         lambda x, w, u, bias, bias_u, h0: recurrent(torch.nn.GRU(i, h, batch_first=True), x, w, u, [bias, bias_u],
                                                     [h0]))

# ---- along an axis ----

O = "along"


def running(f, axis, exclusive, reverse):
    """A running sum or product, from either end, with each element in it or not."""

    def along(x):
        x = x.flip(axis) if reverse else x
        if exclusive:
            first = torch.full_like(x.narrow(axis, 0, 1), 0.0 if f is torch.cumsum else 1.0)
            x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        y = f(x, axis)
        return y.flip(axis) if reverse else y

    return along


for name, f in (("cumsum", torch.cumsum), ("cumprod", torch.cumprod)):
    for axis, exclusive, reverse in [(0, False, False), (1, True, False), (-1, False, True), (1, True, True)]:
        case(O, name, [positive(2, 5, 3)], running(f, axis, exclusive, reverse), axis=axis, exclusive=exclusive,
             reverse=reverse)
    for kind in ("i64", "i32"):
        case(O, name, [few(3, 4, kind=kind)], lambda x: f(x, 1, dtype=x.dtype), axis=1, exclusive=False, reverse=False)
# Zeros, one and two in a line.
case(O, "cumprod", [these([2.0, 0.0, 3.0, -1.5], [0.0, 1.5, 0.0, 2.0])], running(torch.cumprod, 1, False, False),
     axis=1, exclusive=False, reverse=False, note="zeros")
case(O, "cumprod", [these([2.0, 0.0, 3.0, -1.5], [0.0, 1.5, 0.0, 2.0])], running(torch.cumprod, 1, True, True),
     axis=1, exclusive=True, reverse=True, note="zeros")

for axis, descending in [(0, False), (1, True), (-1, False), (-1, True)]:
    case(O, "sort", [distinct(3, 4, 5)], lambda x: x.sort(dim=axis, descending=descending).values, axis=axis,
         descending=descending)
    for x in (distinct(3, 4, 5), few(3, 4, 5), few(3, 4, 5, kind="i64"), few(3, 4, 5, kind="u8")):
        case(O, "argsort", [x], lambda x: x.detach().sort(dim=axis, descending=descending, stable=True).indices,
             axis=axis, descending=descending, note=str(x(torch.Generator())[2]))
    case(O, "top_k", [distinct(3, 4, 5)], lambda x: tuple(x.topk(3, dim=axis, largest=descending)), k=3, axis=axis,
         largest=descending)
for descending in (False, True):
    odd = these(1.0, math.nan, -math.inf, 0.0, -0.0, math.inf, math.nan, -2.0, grad=False)
    case(O, "argsort", [odd], lambda x: x.sort(descending=descending, stable=True).indices, axis=0,
         descending=descending, note="odd")

for axes in ([0], [1], [-1], [0, 2]):
    case(O, "flip", [normal(3, 4, 5)], lambda x: x.flip(axes), axes=axes)
for shift, axis in [(1, 0), (-2, 1), (7, -1), (0, 1)]:
    case(O, "roll", [normal(3, 4, 5)], lambda x: x.roll(shift, axis), shift=shift, axis=axis)
for kind in ("i64", "u8", "bool"):
    case(O, "flip", [few(3, 4, kind=kind, limit=2)], lambda x: x.flip(1), axes=[1])
    case(O, "roll", [few(3, 4, kind=kind, limit=2)], lambda x: x.roll(3, 1), shift=3, axis=1)

# ---- second derivatives ----

D = "second"

# The square of a root has no second derivative: sqrt is left out.
for op in ("tanh", "exp", "log", "rsqrt", "sigmoid", "erf", "sin", "gelu", "gelu_tanh", "silu", "softplus", "square",
           "reciprocal"):
    domain, f = UNARY[op]
    case(D, op, [domain(2, 5)], f, derivative=2)
case(D, "pow_scalar", [positive(2, 5)], lambda x: x**3, derivative=2, s=3.0)
for op in ("mul", "div", "pow"):
    left, right, f = BINARY[op]
    case(D, op, [positive(2, 5), positive(5)], f, derivative=2)
case(D, "exp_log", [normal(2, 5), positive(2, 5)], lambda x, y: x.exp() * y.log(), derivative=2)
case(D, "matmul_with", [normal(3, 4), normal(5, 4), normal(5)], product(False, True), derivative=2, ta=False, tb=True)
case(D, "matmul_act", [normal(3, 4), normal(4, 5), normal(5)], product(False, False, "tanh"), derivative=2, ta=False,
     tb=False, act="tanh")
case(D, "conv2d", [normal(1, 4, 5, 2), normal(3, 3, 2, 3)], conv([2, 1], "same", [1, 1], 1), derivative=2,
     stride=[2, 1], pad="same", dilation=[1, 1], groups=1)
case(D, "softmax", [normal(3, 5)], lambda x: x.softmax(-1), derivative=2, axis=-1)
case(D, "log_softmax", [normal(3, 5)], lambda x: x.log_softmax(-1), derivative=2, axis=-1)
case(D, "softmax_cross_entropy", [normal(4, 5), index(5, 4)], lambda x, t: F.cross_entropy(x, t, reduction="none"),
     derivative=2)
case(D, "layer_norm", [normal(3, 6), wide(6), wide(6)], lambda x, g, b: F.layer_norm(x, (6,), g, b, 1e-3),
     derivative=2, eps=1e-3)
case(D, "rms_norm", [normal(3, 6), wide(6)], lambda x, g: F.rms_norm(x, (6,), g, 1e-3), derivative=2, eps=1e-3)
case(D, "group_norm", [normal(2, 3, 4), wide(4), wide(4)],
     lambda x, g, b: F.group_norm(x.movedim(-1, 1), 2, g, b, 1e-3).movedim(1, -1), derivative=2, groups=2, eps=1e-3)
case(D, "batch_norm", [normal(5, 3), wide(3), wide(3)],
     lambda x, g, b: [F.batch_norm(x, None, None, g, b, True, 0.1, 1e-3), x.mean(0), x.var(0, unbiased=False)],
     derivative=2, eps=1e-3)
case(D, "dense_softmax_cross_entropy", [normal(4, 5), positive(4, 5)], lambda x,
     t: F.cross_entropy(x, t, reduction="none"), derivative=2)
case(D, "sigmoid_cross_entropy", [normal(3, 4), positive(3, 4)], bce, derivative=2)
case(D, "mse", [normal(3, 4), normal(3, 4)], F.mse_loss, derivative=2)
case(D, "relu", [normal(3, 5)], torch.relu, derivative=2)
case(D, "relu_mask", [normal(3, 5)], torch.relu, derivative=2)
case(D, "leaky_relu", [normal(3, 5)], lambda x: F.leaky_relu(x, 0.25), derivative=2, s=0.25)
case(D, "maximum", [normal(3, 5), normal(5)], torch.maximum, derivative=2)
case(D, "select", [truth(3, 5), normal(3, 5), normal(5)], torch.where, derivative=2)
case(D, "mean", [normal(3, 5)], lambda x: x.mean(1), derivative=2, axes=[1], keep=False)
case(D, "max", [distinct(3, 5)], lambda x: x.amax(1), derivative=2, axes=[1], keep=False)
case(D, "slice", [normal(3, 5)], lambda x: x[:, 1:5:2], derivative=2, ranges=[[1, 1, 5, 2]])
case(D, "concat", [normal(3, 2), normal(3, 3)], lambda x, y: torch.cat([x, y], 1), derivative=2, axis=1)
case(D, "split", [normal(3, 5)], lambda x: torch.split(x, [2, 3], 1), derivative=2, axis=1, sizes=[2, 3])
case(D, "conv_transpose2d", [normal(1, 3, 3, 2), normal(2, 2, 3, 2)], transposed([2, 2], "valid", [1, 1], 1, [0, 0]),
     derivative=2,
     stride=[2, 2], pad="valid", dilation=[1, 1], groups=1, extra=[0, 0])
case(D, "max_pool2d", [distinct(1, 4, 4, 2)], pool("max", [2, 2], [2, 2], "valid"), derivative=2, window=[2, 2],
     stride=[2, 2], pad="valid")
case(D, "avg_pool2d", [normal(1, 4, 4, 2)], pool("avg", [3, 3], [1, 1], "same"), derivative=2, window=[3, 3],
     stride=[1, 1], pad="same",
     count_pad=True)
case(D, "resize2d", [normal(1, 2, 3, 2)], resize([4, 5], "bilinear", False), derivative=2, out=[4, 5],
     mode="bilinear", align=False)
case(D, "gather", [normal(4, 3), index(4, 5)], gather(0), derivative=2, axis=0)
case(D, "take_along", [normal(3, 4), index(4, 3, 5)], lambda x, i: torch.take_along_dim(x, i, 1), derivative=2,
     axis=1)

# ---- files ----

for file, cases in FILES.items():
    (HERE / f"{file}.json").write_text("[\n" + ",\n".join(cases) + "\n]\n")
    print(f"{file}.json: {len(cases)} cases, {(HERE / f'{file}.json').stat().st_size} bytes")
