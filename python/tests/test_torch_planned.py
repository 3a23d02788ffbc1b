"""PyTorch's own kernels in the order of a plan: the bits of eager PyTorch, and a peak that its allocator confirms."""

from __future__ import annotations

import copy

import pytest

import plimsoll
from torch_modules import built, ready, tied


def _convolutional(torch):
    nn = torch.nn
    blocks = [(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()) for i in range(5)]
    net = nn.Sequential(*[layer for block in blocks for layer in block], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return net, nn.functional.cross_entropy, (torch.randn(8, 3, 24, 24), torch.randint(10, (8,)))


def _writer(torch):
    batch = {"tokens": torch.randint(50, (4, 12)), "labels": torch.randint(50, (4, 12))}
    return tied(torch, 50, 32), None, batch


def _allocated(torch, run):
    """What a call gives, and the most that the allocator held for it, by the profiler's record."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        made = run()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return made, peak


@pytest.mark.parametrize("make", [_convolutional, _writer])
def test_a_planned_step_has_the_bits_of_eager_and_the_bytes_of_its_plan(make):
    torch = ready()
    from plimsoll.torch import planned
    from plimsoll.torch._planned import loss_of

    model, loss_fn, batch = make(torch)
    eager = copy.deepcopy(model)
    want = loss_of(eager, loss_fn, batch)
    want.backward()
    whole = planned(model, loss_fn, batch)
    assert whole.recomputed == 0 and whole.memory_limit is None
    leaves = list(batch.values()) if isinstance(batch, dict) else list(batch)
    given = [*model.parameters(), *model.buffers(), *leaves]
    constant = sum(-(-tensor.untyped_storage().nbytes() // 64) * 64 for tensor in given)
    limits = [whole.unlimited, (whole.unlimited + whole.least) // 2, whole.least]
    for limit in limits:
        own = copy.deepcopy(model)
        step = planned(own, loss_fn, batch, memory=limit)
        assert step.peak <= limit
        loss, allocated = _allocated(torch, lambda: step(batch))
        assert torch.equal(loss, want.detach())
        for (name, ours), theirs in zip(own.named_parameters(), eager.parameters()):
            assert (ours.grad is None) == (theirs.grad is None), name
            assert ours.grad is None or torch.equal(ours.grad, theirs.grad), name
        for (name, ours), theirs in zip(own.named_buffers(), eager.buffers()):
            assert torch.equal(ours, theirs), name
        # What PyTorch held, by its own record, is what was planned: to a page.
        assert abs(allocated + constant - step.peak) <= max(4096, step.peak // 500), (allocated + constant, step.peak)
    assert step.recomputed > 0, "at the least something runs again"


def test_a_limit_that_cannot_be_kept_is_refused_with_the_least():
    torch = ready()
    from plimsoll.torch import planned

    model, loss_fn, batch = _convolutional(torch)
    with pytest.raises(plimsoll.MemoryLimitError) as refused:
        planned(model, loss_fn, batch, memory="100KiB")
    assert refused.value.limit == 100 << 10 < refused.value.least
    assert len(refused.value.holders) == 5
    assert planned(model, loss_fn, batch, memory=refused.value.least).peak <= refused.value.least


def test_training_goes_on_as_in_eager_pytorch():
    torch = ready()
    from plimsoll.torch import planned

    model, loss_fn, _ = _convolutional(torch)
    batches = [(torch.randn(8, 3, 24, 24), torch.randint(10, (8,))) for _ in range(4)]
    eager = copy.deepcopy(model)
    whole = planned(copy.deepcopy(model), loss_fn, batches[0])
    step = planned(model, loss_fn, batches[0], memory=int(whole.unlimited * 0.6))
    ours, theirs = torch.optim.AdamW(model.parameters(), 1e-2), torch.optim.AdamW(eager.parameters(), 1e-2)
    for batch in batches:
        ours.zero_grad()
        theirs.zero_grad()
        want = loss_fn(eager(batch[0]), batch[1])
        want.backward()
        assert torch.equal(step(batch), want.detach())
        ours.step()
        theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), eager.parameters()))


def test_dropout_runs_once_and_is_kept():
    torch = ready()
    from plimsoll.torch import planned

    nn = torch.nn
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5))]
    model, batch = nn.Sequential(*layers), (torch.randn(32, 64), torch.randn(32, 64))
    eager = copy.deepcopy(model)
    step = planned(model, nn.functional.mse_loss, batch)
    step = planned(model, nn.functional.mse_loss, batch, memory=step.least)
    assert step.recomputed > 0
    torch.manual_seed(5)
    want = nn.functional.mse_loss(eager(batch[0]), batch[1])
    want.backward()
    torch.manual_seed(5)
    assert torch.equal(step(batch), want.detach()), "the same masks, drawn in the same order"
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), eager.parameters()))


def test_what_does_not_fit_the_plan_is_refused_by_name():
    torch = ready()
    from plimsoll.torch import planned

    model, loss_fn, batch = _convolutional(torch)
    step = planned(model, loss_fn, batch)
    with pytest.raises(plimsoll.PlimsollError, match="plan it anew"):
        step((batch[0][:4], batch[1][:4]))
    step(batch)
    with pytest.raises(plimsoll.PlimsollError, match="zero_grad"):
        step(batch)
    with pytest.raises(TypeError, match="one number"):
        planned(model, lambda made, labels: made, batch)
    with pytest.raises(TypeError, match=r"\(x, y\)"):
        planned(model, loss_fn, batch[0])
    frozen = copy.deepcopy(model)
    frozen.zero_grad()
    frozen[0].weight.requires_grad_(False)
    planned(frozen, loss_fn, batch)(batch)
    assert frozen[0].weight.grad is None and frozen[1].weight.grad is not None


def _blocks(torch, wrapped=()):
    from torch.utils.checkpoint import checkpoint

    nn = torch.nn

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64)) for _ in range(6))

        def forward(self, x):
            for i, block in enumerate(self.blocks):
                x = x + (checkpoint(block, x, use_reentrant=False) if i in wrapped else block(x))
            return x

    return Blocks(), nn.functional.mse_loss, (torch.randn(256, 64), torch.randn(256, 64))


def _eager_peak(torch, model, loss_fn, batch):
    """What the host's allocator held at most beside what stood before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        loss_fn(model(batch[0]), batch[1]).backward()
    events = sorted((event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"), key=lambda event: event.start_ns())
    held = most = 0
    for event in events:
        held += event.nbytes()
        most = max(most, held)
    return most


def test_wrapped_as_advised_eager_fits():
    torch = ready()
    from plimsoll.torch import advise

    model, loss_fn, batch = _blocks(torch)
    stands = sum(p.numel() * 4 for p in model.parameters()) + sum(x.numel() * 4 for x in batch)
    unwrapped = _eager_peak(torch, model, loss_fn, batch) + stands
    limit = int(0.6 * unwrapped)
    advice = advise(model, batch, limit, loss_fn)
    assert abs(advice.unwrapped - unwrapped) < 0.1 * unwrapped
    assert 0 < len(advice.blocks) < 6 and "checkpoint(block" in str(advice)
    wrapped, _, _ = _blocks(torch, [int(block.name.split(".")[1]) for block in advice.blocks])
    assert _eager_peak(torch, wrapped, loss_fn, batch) + stands <= limit
    assert not advise(model, batch, 2 * unwrapped, loss_fn).blocks
    with pytest.raises(plimsoll.MemoryLimitError, match="blocks wrapped"):
        advise(model, batch, stands, loss_fn)


def test_what_a_compiler_fuses_takes_neither_memory_nor_a_pass_of_its_own():
    torch = ready()
    from torch.fx.experimental.proxy_tensor import make_fx

    from plimsoll.torch._joined import Joined
    from plimsoll.torch._trace import Trace

    def step(x, w, v):
        y = x @ w
        z = torch.tanh(2 * y + 1).exp()
        shares = z - z.amax(1, keepdim=True)
        return z @ v, shares.sum(), (y + x) * v

    given = [torch.randn(64, 64) for _ in range(3)]
    graph = make_fx(step)(*given)
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    single = Trace(graph, dict(zip(places, given)), "graph")
    joined = Joined(single)
    names = [node.target.overloadpacket.__name__ for node in joined.ops]
    # The chain is written once, for the product; the maximum and the sum compute it in themselves.
    assert names == ["mm", "exp", "amax", "mm", "sum", "mul"]
    lines = [line for line in joined.lines if "op" in line]
    product = lines[0]["outs"][0]
    assert lines[1]["ins"] == [product]
    assert lines[2]["ins"] == [product]
    largest, total = lines[2]["outs"][0], lines[4]
    assert sorted(total["ins"]) == sorted([product, largest])
    assert len(joined.lines) < len(single.lines)
    # A pass over y by itself is not dearer than the four that it stands for.
    by_name = {line["name"]: line for line in single.lines if "op" in line}
    assert lines[1]["ns"] <= by_name["aten.exp.default"]["ns"] + 1


def test_a_step_with_its_loss_is_cut_where_the_backward_pass_begins():
    """Ops that count labels depend on no activation, and a plan may put them first; and what runs again does so where it is wanted."""
    torch = ready()
    from torch._functorch.aot_autograd import aot_module
    from torch._functorch.compilers import nop
    from torch._inductor.decomposition import select_decomp_table

    from plimsoll.torch._compile import _cut_as_planned, _Partitioner, _traced

    nn = torch.nn

    def classified(self, x, y):
        return nn.functional.cross_entropy(self.head(self.blocks(x)), y)

    model, batch = built(classified, blocks=_blocks(torch)[0], head=nn.Linear(64, 500)), (torch.randn(256, 64), torch.randint(500, (256,)))
    wanted = model(*batch)
    wanted.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    cuts = []
    for share in (None, 0.6):
        model.zero_grad()
        cutter = _Partitioner(1 << 40 if share is None else int(share * cuts[0].peak))

        def cut(gm, given, *, num_fwd_outputs, **settings):
            trace = _traced(gm)
            cuts.append(_cut_as_planned(gm, num_fwd_outputs, trace, cutter._plan(trace)["instructions"]))
            return cuts[-1].passes

        loss = aot_module(model, fw_compiler=nop, bw_compiler=nop, partition_fn=cut, decompositions=select_decomp_table())(*batch)
        loss.backward()
        assert torch.allclose(loss, wanted, rtol=1e-5)
        assert all(torch.allclose(p.grad, g, rtol=1e-3, atol=1e-6) for p, g in zip(model.parameters(), gradients))
    whole, less = (cut.kept_bytes for cut in cuts)
    # Without a limit the inputs of every product are kept.
    assert whole > 6 * 256 * 256 * 4 and 0.1 * whole < less < 0.7 * whole
    # What is not kept does not come back all at once.
    assert cuts[1].peak < 0.8 * cuts[0].peak, cuts


def test_of_pytorch_s_own_cuts_the_one_that_keeps_most_within_a_limit_is_taken():
    torch = ready()
    from torch._functorch.compilers import nop
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    from plimsoll.torch._compile import _Partitioner
    from plimsoll.torch._cuts import cut_of

    model, loss_fn, batch = _blocks(torch)

    def cut(partition):
        torch._dynamo.reset()
        model.zero_grad()
        backend = aot_autograd(fw_compiler=nop, bw_compiler=nop, partition_fn=partition, decompositions=select_decomp_table())
        loss_fn(torch.compile(model, backend=backend, dynamic=False)(batch[0]), batch[1]).backward()

    def own(gm, given, **settings):
        passes = min_cut_rematerialization_partition(gm, given, **settings)
        own.cut = cut_of(passes, settings["num_fwd_outputs"])
        return passes

    cut(own)
    # By hand: six blocks keep the inputs of both products, what GELU was made of, and of the norm its scaled input with two numbers a row; the batch stands beside it.
    assert own.cut.kept_bytes == 4 * 256 * (6 * (64 + 256 + 256 + 64 + 2) - 64)
    peaks, kept_bytes = [], []
    for share in (1.0, 0.9, 0.8, 0.7):
        limited = _Partitioner(int(share * own.cut.peak))
        cut(limited)
        (wish,) = limited.wishes
        assert wish.peak <= wish.limit and wish.unlimited == own.cut.peak and wish.least <= wish.peak
        peaks.append(wish.peak)
        kept_bytes.append(wish.kept_bytes)
    assert kept_bytes[0] == own.cut.kept_bytes and kept_bytes == sorted(kept_bytes, reverse=True), kept_bytes
    assert peaks[-1] < 0.75 * peaks[0]
    # Six norms and GELUs run again inside of other kernels; no product does before it must.
    assert not own.cut.again
    tightest = _Partitioner(wish.least)
    cut(tightest)
    assert tightest.wishes[0].peak <= wish.least


def test_compiled_near_a_limit_keeps_less_and_computes_the_same():
    torch = ready()
    from plimsoll.torch import compile

    model, loss_fn, batch = _blocks(torch)
    wanted = loss_fn(model(batch[0]), batch[1])
    wanted.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    kept = []
    for share in (1.0, 0.5):
        model.zero_grad()
        torch._dynamo.reset()
        compiled = compile(model, memory=int(share * (kept[0].unlimited if kept else 1 << 30)))
        loss = loss_fn(compiled(batch[0]), batch[1])
        loss.backward()
        assert torch.allclose(loss, wanted, rtol=1e-5)
        assert all(torch.allclose(p.grad, g, rtol=1e-3, atol=1e-6) for p, g in zip(model.parameters(), gradients))
        kept.append(compiled.wishes[0])
    assert kept[1].kept_bytes < 0.6 * kept[0].kept_bytes and kept[1].peak <= kept[1].limit
    assert "wished" in str(kept[1])
    with pytest.raises(ValueError, match="one shape"):
        compile(model, "1GiB", dynamic=True)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="cannot be kept: the least"):
        compile(model, memory="1KiB")(batch[0]).sum().backward()
