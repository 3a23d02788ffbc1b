"""Plain PyTorch modules through `plimsoll.torch.Trainer`, the same models of the zoo, and `torch.compile`, in turn on one card in mixed bf16.

usage: python benches/torch_card.py [--part trainer|wish|all] [--budgets B ...] [--shares S ...] [--binary FILE] [--device cuda|cpu] [--tiny] [--seconds 340] [--out FILE.jsonl] [CASE ...]

Part `trainer`: ms a step and bytes of resnet50, vit, unet and gpt2 as modules written here, through the Trainer without a limit and under half of what that took, beside
`plimsoll bench` of the same models and PyTorch compiled. Part `wish`: `plimsoll.torch.compile` at shares of what it takes without a limit, beside PyTorch's own
`activation_memory_budget`. Every run is a process of its own, which gets ready beside the others and measures alone, in turn. What fails prints why, and the others go on. The package must be importable
(PYTHONPATH); of the machine only Python, NumPy and PyTorch are wanted. One JSON line a result; the tables come last.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any, Callable

STEPS, ROW, WARM, ROUNDS = 30, 5, 4, 2
GIB = 2**30
#: Of each case the batch and the sizes, on a card and to try the script.
SIZES = {
    "resnet50": ({"batch": 256, "image": 224, "width": 64, "classes": 1000}, {"batch": 2, "image": 32, "width": 8, "classes": 10}),
    "vit": ({"batch": 128, "image": 224, "width": 768, "depth": 12, "heads": 12, "patch": 16, "classes": 1000}, {"batch": 2, "image": 32, "width": 32, "depth": 2, "heads": 2, "patch": 16, "classes": 10}),
    "unet": ({"batch": 32, "image": 256, "width": 64, "depth": 5, "classes": 2}, {"batch": 2, "image": 32, "width": 4, "depth": 3, "classes": 2}),
    "gpt2": ({"batch": 16, "sequence": 1024, "width": 768, "depth": 12, "heads": 12, "classes": 50304}, {"batch": 2, "sequence": 16, "width": 32, "depth": 2, "heads": 2, "classes": 64}),
}
#: Batches of part `wish`, where several processes hold a model at a time.
WISH_BATCH = {"gpt2": 8, "unet": 16, "resnet50": 128}
OPTIMIZERS = {
    "gpt2": "--optimizer adamw --lr 3e-4 --weight-decay 0.01",
    "resnet50": "--optimizer momentum --lr 0.1 --weight-decay 1e-4",
    "unet": "--optimizer adam --lr 1e-3",
    "vit": "--optimizer adam --lr 1e-3",
}
BUDGETS = (0.8, 0.6, 0.4, 0.2)
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5)


# ---------------------------------------------------------------------------------------------------- models, as people write them


def models() -> dict[str, Callable[[dict[str, int]], Any]]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Bottleneck(nn.Module):
        def __init__(self, given: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(given, width, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
            self.relu = nn.ReLU(inplace=True)
            self.skip = None
            if stride != 1 or given != 4 * width:
                self.skip = nn.Sequential(nn.Conv2d(given, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

        def forward(self, x):
            y = self.relu(self.bn1(self.conv1(x)))
            y = self.relu(self.bn2(self.conv2(y)))
            y = self.bn3(self.conv3(y))
            y += x if self.skip is None else self.skip(x)
            return self.relu(y)

    class ResNet50(nn.Module):
        def __init__(self, size: dict[str, int]) -> None:
            super().__init__()
            width = size["width"]
            self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
            stages, given = [], width
            for stage, blocks in enumerate((3, 4, 6, 3)):
                for i in range(blocks):
                    stages.append(Bottleneck(given, width << stage, 2 if stage and i == 0 else 1))
                    given = 4 * (width << stage)
            self.stages = nn.Sequential(*stages)
            self.pool, self.out = nn.AdaptiveAvgPool2d(1), nn.Linear(given, size["classes"])

        def forward(self, x):
            return self.out(torch.flatten(self.pool(self.stages(self.stem(x))), 1))

    class Block(nn.Module):
        def __init__(self, width: int, heads: int, causal: bool, eps: float) -> None:
            super().__init__()
            self.heads, self.causal, self.tanh = heads, causal, "tanh" if causal else "none"
            self.norm1, self.norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            n, t, d = x.shape
            q, k, v = (part.view(n, t, self.heads, d // self.heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(d, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            x = x + self.proj(y.transpose(1, 2).contiguous().view(n, t, d))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.tanh))

    class ViT(nn.Module):
        def __init__(self, size: dict[str, int]) -> None:
            super().__init__()
            width, patch = size["width"], size["patch"]
            self.patch = nn.Conv2d(3, width, patch, patch)
            self.token = nn.Parameter(torch.zeros(1, 1, width))
            self.place = nn.Parameter(0.02 * torch.randn(1, (size["image"] // patch) ** 2 + 1, width))
            self.blocks = nn.Sequential(*(Block(width, size["heads"], False, 1e-6) for _ in range(size["depth"])))
            self.norm, self.out = nn.LayerNorm(width, 1e-6), nn.Linear(width, size["classes"])

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
            return self.out(self.norm(self.blocks(x))[:, 0])

    class GPT2(nn.Module):
        def __init__(self, size: dict[str, int]) -> None:
            super().__init__()
            width = size["width"]
            self.token, self.place = nn.Embedding(size["classes"], width), nn.Embedding(size["sequence"], width)
            self.blocks = nn.ModuleList(Block(width, size["heads"], True, 1e-5) for _ in range(size["depth"]))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, size["classes"], bias=False)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)
            self.head.weight = self.token.weight

        def forward(self, tokens):
            x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    def pair(given: int, width: int) -> nn.Module:
        one = lambda a, b: [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
        return nn.Sequential(*one(given, width), *one(width, width))

    class UNet(nn.Module):
        def __init__(self, size: dict[str, int]) -> None:
            super().__init__()
            widths = [size["width"] << i for i in range(size["depth"])]
            self.down = nn.ModuleList(pair(a, b) for a, b in zip([3, *widths], widths))
            self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
            self.up = nn.ModuleList(pair(2 * w, w) for w in widths[-2::-1])
            self.pool, self.out = nn.MaxPool2d(2), nn.Conv2d(widths[0], size["classes"], 1)

        def forward(self, x):
            skips = []
            for i, down in enumerate(self.down):
                x = down(x if i == 0 else self.pool(x))
                skips.append(x)
            for grow, up, skip in zip(self.grow, self.up, skips[-2::-1]):
                x = up(torch.cat([grow(x), skip], 1))
            return self.out(x)

    return {"resnet50": ResNet50, "vit": ViT, "unet": UNet, "gpt2": GPT2}


def with_loss(model: Any, device: str) -> Any:
    """A module that returns its loss, computed under autocast."""
    import torch
    from torch.nn import functional as F

    class Trained(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x, y):
            with torch.autocast(device, torch.bfloat16):
                logits = self.net(x)
            logits = logits.float()
            return F.cross_entropy(logits.flatten(0, 1), y.flatten()) if logits.dim() == 3 else F.cross_entropy(logits, y)

    return Trained()


def prepared(case: str, size: dict[str, int], device: str) -> tuple[Any, tuple[Any, Any], Any]:
    import torch

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    model = with_loss(models()[case](size), device).to(device)
    n, classes = size["batch"], size["classes"]
    if case == "gpt2":
        x, y = (torch.randint(classes, (n, size["sequence"]), device=device) for _ in range(2))
    else:
        x = torch.randn(n, 3, size["image"], size["image"], device=device)
        y = torch.randint(classes, (n, size["image"], size["image"]) if case == "unet" else (n,), device=device)
    fused = {"fused": True} if device == "cuda" else {}
    optimizer = {
        "gpt2": lambda p: torch.optim.AdamW(p, 3e-4, **fused),
        "resnet50": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4, **fused),
        "unet": lambda p: torch.optim.Adam(p, 1e-3, **fused),
        "vit": lambda p: torch.optim.Adam(p, 1e-3, **fused),
    }[case](model.parameters())
    return model, (x, y), optimizer


# ---------------------------------------------------------------------------------------------------- one process a run


def said(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def told() -> None:
    """Waits until this process is asked to go on."""
    if sys.stdin.readline() == "":
        sys.exit(0)


def timed(step: Callable[[], Any], device: str) -> float:
    """The milliseconds of a step, of the fastest of some rows of steps: a card that is waited for after every step shows how long the host takes to begin the next."""
    import torch

    best = float("inf")
    for _ in range(STEPS // ROW):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(ROW):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, 1e3 * (time.perf_counter() - start) / ROW)
    return best


def used(device: str) -> int:
    """What is taken of the card, by all."""
    import torch

    if device != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def measured_rounds(step: Callable[[], Any], device: str, more: Callable[[], dict[str, Any]]) -> None:
    """Says that it is ready, then measures as often as it is asked to."""
    said(ready=True, **more())
    while True:
        told()
        said(ms=round(timed(step, device), 3), **more())


def run_trainer(case: str, size: dict[str, int], device: str, share: float | None) -> None:
    import torch

    import plimsoll.torch as pt

    model, batch, optimizer = prepared(case, size, device)
    said(prepared=True)
    told()
    before, start = used(device), time.perf_counter()
    trainer = pt.Trainer(model, None, optimizer, device=device)
    plan = trainer.plan(batch)
    if share is not None:
        limit = int(share * plan.figures["planned_bytes"])
        trainer = pt.Trainer(model, None, optimizer, device=device, memory=limit, check=False)
        plan = trainer.plan(batch)
    planned_s = time.perf_counter() - start
    losses = [trainer.step(batch) for _ in range(WARM)]
    figures = {key: plan.figures.get(key) for key in ("planned_bytes", "memory_limit_bytes", "unlimited_bytes", "predicted_ms", "recomputed_ops", "micro_batches")}
    measured_rounds(lambda: trainer.step(batch), device, lambda: {**figures, "card_bytes": used(device) - before, "plan_s": round(planned_s, 1), "losses": [round(x, 4) for x in losses[:3]]})


def run_compiled(case: str, size: dict[str, int], device: str, budget: float | None) -> None:
    import torch
    import torch._functorch.config as functorch

    model, (x, y), optimizer = prepared(case, size, device)
    if case != "gpt2":
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if budget is not None:
        functorch.activation_memory_budget = budget
    compiled = torch.compile(model, dynamic=False)
    losses: list[float] = []
    step = torch_step(compiled, (x, y), optimizer, losses)
    said(prepared=True)
    told()
    for _ in range(WARM):
        step()
    measured_rounds(*measured_torch(step, device, losses))


def torch_step(compiled: Any, batch: tuple[Any, Any], optimizer: Any, losses: list[float]) -> Callable[[], Any]:
    def step() -> None:
        loss = compiled(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if len(losses) < WARM:
            losses.append(loss.item())

    return step


def measured_torch(step: Callable[[], Any], device: str, losses: list[float]) -> tuple[Callable[[], Any], str, Callable[[], dict[str, Any]]]:
    """A step of PyTorch's that gives its memory back between rounds, so that other processes have room."""
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def more() -> dict[str, Any]:
        found = {"losses": [round(x, 4) for x in losses[:3]]}
        if device == "cuda":
            if not torch.cuda.max_memory_allocated() > torch.cuda.memory_allocated():
                step()
            torch.cuda.synchronize()
            found["alloc_bytes"] = torch.cuda.max_memory_allocated()
            gc.collect()
            torch.cuda.empty_cache()
        return found

    return step, device, more


def run_wish(case: str, size: dict[str, int], device: str, limit: int | None) -> None:
    """`plimsoll.torch.compile` without a limit or within one."""
    import torch

    import plimsoll.torch as pt

    model, (x, y), optimizer = prepared(case, size, device)
    if case != "gpt2":
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    compiled = pt.compile(model, limit or 1 << 50)
    losses: list[float] = []
    step = torch_step(compiled, (x, y), optimizer, losses)
    said(prepared=True)
    told()
    for _ in range(WARM):
        step()
    step, _, more = measured_torch(step, device, losses)
    (wish, *rest) = compiled.wishes
    wished = {"graphs": 1 + len(rest), "wished": wish.peak, "limit": limit, "unlimited": wish.unlimited, "least": wish.least, "kept": wish.kept_bytes}
    measured_rounds(step, device, lambda: {**wished, **more()})


def child(what: str, case: str, given: argparse.Namespace) -> None:
    warnings.filterwarnings("ignore")
    size = sized(case, given)
    try:
        if what == "trainer":
            run_trainer(case, size, given.device, given.share)
        elif what == "compiled":
            run_compiled(case, size, given.device, given.share)
        else:
            run_wish(case, size, given.device, given.limit)
    except Exception as error:
        import traceback

        said(error=f"{type(error).__name__}: {error}"[:600], at=traceback.format_exc().splitlines()[-6:])


def sized(case: str, given: argparse.Namespace) -> dict[str, int]:
    size = dict(SIZES[case][1 if given.tiny else 0])
    if given.batch:
        size["batch"] = given.batch
    return size


# ---------------------------------------------------------------------------------------------------- the conductor


class Runner:
    """A process of its own that is told when to go on."""

    def __init__(self, bench: Bench, what: str, case: str, share: float | None = None, batch: int | None = None, limit: int | None = None) -> None:
        given = bench.given
        words = [sys.executable, os.path.abspath(__file__), "--child", what, "--device", given.device]
        words += ["--tiny"] if given.tiny else []
        words += ["--share", str(share)] if share is not None else []
        words += ["--batch", str(batch)] if batch and not given.tiny else []
        words += ["--limit", str(limit)] if limit else []
        words += ["--", case]
        self.bench, self.what, self.case, self.share = bench, what, case, share
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, bufsize=1)
        self.is_over = False
        #: What was said last and is kept already.
        self.last: dict[str, Any] = {}
        bench.runners.append(self)

    def go(self) -> None:
        if self.is_over:
            return
        with contextlib.suppress(BrokenPipeError):
            assert self.process.stdin is not None
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def line(self) -> dict[str, Any]:
        """What it says next, or why it says nothing any more."""
        if self.is_over:
            return {}
        assert self.process.stdout is not None
        while True:
            left = self.bench.left()
            there, _, _ = select.select([self.process.stdout], [], [], max(left, 0.1))
            if not there:
                return self._ended(f"not done when {self.bench.given.seconds} s had passed")
            text = self.process.stdout.readline()
            if not text:
                self.process.wait()
                self.errors.seek(0)
                return self._ended(f"ended with {self.process.returncode}: {self.errors.read()[-500:]}")
            if text.startswith("{"):
                found = json.loads(text)
                if "error" in found and "share" not in found:
                    self.is_over = True
                    self.bench.keep(self, found)
                    self.last = found
                return found

    def _ended(self, why: str) -> dict[str, Any]:
        self.is_over = True
        self.bench.keep(self, {"error": why})
        return self.last

    def end(self) -> None:
        self.is_over = True
        self.process.kill()
        self.process.wait()


class Bench:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.began = given, time.monotonic()
        self.runners: list[Runner] = []
        self.rows: list[dict[str, Any]] = []

    def left(self) -> float:
        return self.given.seconds - (time.monotonic() - self.began)

    def keep(self, runner: Runner | None, found: dict[str, Any], **words: Any) -> None:
        if runner is not None and found is runner.last:
            return
        if runner is not None:
            words = {"what": runner.what, "case": runner.case, **({} if runner.share is None else {"share": runner.share}), **words}
        row = {**words, **found, "at_s": round(time.monotonic() - self.began, 1)}
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        if self.given.out:
            with open(self.given.out, "a") as kept:
                kept.write(json.dumps(row) + "\n")

    def end(self) -> None:
        for runner in self.runners:
            runner.end()
        self.runners = []

    def zoo(self, case: str) -> None:
        size = sized(case, self.given)
        words = [*([self.given.binary] if self.given.binary else [sys.executable, "-c", "import sys; from plimsoll._command import main; sys.exit(main())"]), "bench", case, "--data", "random", "--metrics", "none", *OPTIMIZERS[case].split(), "--json", "--device", self.given.device]
        for name in ("batch", "image", "width", "depth", "heads", "sequence", "classes"):
            words += [f"--{name}", str(size[name])] if name in size and not (case == "resnet50" and name in ("depth", "width")) else []
        if self.given.tiny:
            words += ["--seconds", "1"]
        try:
            done = subprocess.run([*words, "--precision", "mixed-bf16"], capture_output=True, text=True, timeout=max(self.left(), 1.0))
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            found = json.loads(lines[-1]) if lines else {"error": done.stderr.strip()[-400:]}
        except (OSError, subprocess.TimeoutExpired) as error:
            found = {"error": str(error)[:300]}
        keys = ("ms", "device_bytes", "planned_bytes", "predicted_ms", "plan_seconds", "loss", "error")
        self.keep(None, {key: found[key] for key in keys if key in found}, what="zoo", case=case)

    def trainers(self, cases: list[str]) -> None:
        compiled = [Runner(self, "compiled", case) for case in cases if not self.given.no_compile]
        ours = [Runner(self, "trainer", case) for case in cases]
        for runner in [*compiled, *ours]:
            runner.line()
        # The compiler works on the host: all at once. What comes after times kernels: one at a time.
        for runner in compiled:
            runner.go()
        for runner in compiled:
            runner.line()
        for own, other in itertools.zip_longest(ours, compiled):
            own.go()
            self.keep(own, own.line())
            self.measure(own)
            self.zoo(own.case)
            self.measure(other)
        for _ in range(1, ROUNDS):
            for runner in itertools.chain.from_iterable(itertools.zip_longest(ours, compiled)):
                self.measure(runner)
        self.end()
        # Under half of what was taken, where there is time.
        for case in cases if self.given.halves else ():
            if self.left() > 30:
                runner = Runner(self, "trainer", case, 0.5)
                runner.line()
                runner.go()
                self.keep(runner, runner.line())
                self.measure(runner)
                runner.end()

    def measure(self, runner: Runner | None) -> None:
        if runner is not None and not runner.is_over and self.left() > 3:
            runner.go()
            self.keep(runner, runner.line())

    def wishes(self, cases: list[str]) -> None:
        budgets = () if self.given.no_compile else (1.0, *self.given.budgets)
        theirs = [Runner(self, "compiled", case, budget, WISH_BATCH[case]) for case in cases for budget in budgets]
        free = [Runner(self, "wish", case, None, WISH_BATCH[case]) for case in cases]
        self.compiled_together([*theirs, *free])
        shares = []
        for case in cases:
            unlimited = self.found("wish", case).get("unlimited")
            shares += [Runner(self, "wish", case, share, WISH_BATCH[case], int(share * unlimited)) for share in self.given.shares if unlimited]
        self.compiled_together(shares)

    def compiled_together(self, runners: list[Runner]) -> None:
        """Compiles as many at a time as there are cores for, and measures one after the other."""
        for runner in runners:
            runner.line()
        many = os.cpu_count() or 2
        for at in range(0, len(runners), many):
            for runner in runners[at : at + many]:
                runner.go()
            for runner in runners[at : at + many]:
                found = runner.line()
                if "error" in found:
                    runner.end()
        for runner in runners:
            if not runner.is_over and self.left() > 3:
                runner.go()
                self.keep(runner, runner.line())
            runner.end()

    def found(self, what: str, case: str, share: float | None = None) -> dict[str, Any]:
        """The best round of a run."""
        rows = [row for row in self.rows if row.get("what") == what and row.get("case") == case and row.get("share") == share and "ms" in row]
        return min(rows, key=lambda row: row["ms"], default={})

    def tables(self, cases: list[str]) -> None:
        number = lambda value, scale=1.0: "-" if value is None else f"{value / scale:.2f}"
        ratio = lambda one, other: number(one["ms"] / other["ms"]) if one.get("ms") and other.get("ms") else "-"
        if self.given.part != "wish":
            print("\n| case | Trainer ms | zoo ms | Trainer/zoo | compiled ms | Trainer/compiled | Trainer planned GiB | zoo planned GiB | compiled GiB | half: GiB of the card | half: time |")
            print("| --- " * 11 + "|")
            for case in cases:
                own, zoo, other, half = self.found("trainer", case), self.found("zoo", case), self.found("compiled", case), self.found("trainer", case, 0.5)
                cells = [case, number(own.get("ms")), number(zoo.get("ms")), ratio(own, zoo), number(other.get("ms")), ratio(own, other), number(own.get("planned_bytes"), GIB)]
                cells += [number(zoo.get("planned_bytes"), GIB), number(other.get("alloc_bytes"), GIB), number(half.get("card_bytes"), GIB), ratio(half, own)]
                print("| " + " | ".join(cells) + " |")
        if self.given.part != "trainer":
            print("\n| case | setting | GiB | ms | PyTorch's fastest within these bytes |\n| --- | --- | --- | --- | --- |")
            for case in [case for case in cases if case in WISH_BATCH]:
                theirs = [row for budget in (1.0, *self.given.budgets) if (row := self.found("compiled", case, budget))]
                for row in theirs:
                    print(f"| {case} | activation_memory_budget {row['share']} | {number(row.get('alloc_bytes'), GIB)} | {number(row['ms'])} | |")
                for share in (None, *self.given.shares):
                    row = self.found("wish", case, share)
                    within = [other["ms"] for other in theirs if row and other.get("alloc_bytes", 0) <= 1.02 * row.get("alloc_bytes", 0)]
                    if row:
                        print(f"| {case} | pt.compile {share or 'without limit'} | {number(row.get('alloc_bytes'), GIB)} | {number(row['ms'])} | {number(min(within, default=None))} |")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("cases", nargs="*")
    words.add_argument("--part", choices=("trainer", "wish", "all"), default="all")
    words.add_argument("--binary", help="the command; without a word, that of the package")
    words.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    words.add_argument("--tiny", action="store_true", help="small sizes, to try the script")
    words.add_argument("--seconds", type=float, default=340.0, help="the most for all of it")
    words.add_argument("--halves", action="store_true", help="the Trainer under half of its bytes, too")
    words.add_argument("--no-compile", action="store_true", help="without compiled PyTorch")
    words.add_argument("--budgets", type=float, nargs="*", default=BUDGETS, help="of PyTorch's own activation_memory_budget")
    words.add_argument("--shares", type=float, nargs="*", default=SHARES, help="of the bytes that plimsoll.torch.compile takes without a limit")
    words.add_argument("--out")
    words.add_argument("--child", help=argparse.SUPPRESS)
    words.add_argument("--share", type=float, help=argparse.SUPPRESS)
    words.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    words.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    given = words.parse_args()
    if given.child:
        return child(given.child, given.cases[0], given)
    cases = given.cases or list(SIZES)
    bench = Bench(given)
    try:
        if given.part != "wish":
            bench.trainers(cases)
            bench.end()
        if given.part != "trainer":
            bench.wishes([case for case in cases if case in WISH_BATCH])
    finally:
        bench.end()
        bench.tables(cases)


if __name__ == "__main__":
    main()
