"""Tensors and training on a card: to and from PyTorch without copies, and losses as on the CPU.

usage: python python/tests/on_a_card.py        (or `pytest python/tests/on_a_card.py`)

Needs a card, PyTorch with CUDA and NumPy, no Keras. Tests of this file are of group `card`: without a card they are counted as not run, and with
PLIMSOLL_REQUIRE=card that is a failure. Pytest finds them only where the file is named. As a program it ends with status 1 where one fails.
"""

from __future__ import annotations

import gc
import os
import sys

import numpy as np
import pytest

import plimsoll
from plimsoll import Sequential, Tape, Tensor, Trainer

pytestmark = pytest.mark.card


def torch_on_card():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA")
    return torch


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def pairs(n: int = 512) -> tuple[np.ndarray, np.ndarray]:
    x = numbers(n, 2)
    return x, (x[:, 1] > x[:, 0]).astype("int64")


def test_tensors_come_and_go():
    for dtype in ("float64", "float32", "float16", "int64", "int32", "bool"):
        array = (numbers(3, 5) * 9).astype(dtype)
        tensor = Tensor(array, device="cuda")
        assert tensor.device == "cuda:0" and tensor.__dlpack_device__() == (2, 0)
        np.testing.assert_array_equal(tensor.numpy(), array)
        np.testing.assert_array_equal(tensor.to("cpu").numpy(), array)
    assert Tensor([1.0], device="cuda").to("cuda:0").device == "cuda:0"


def test_both_names_of_a_card_are_one_device():
    x = Tensor([1.0, 2.0], device="cuda") + Tensor([1.0, 2.0], device="cuda:0") + Tensor([1.0, 2.0]).to("cuda")
    assert x.numpy().tolist() == [3.0, 6.0]


def test_ops_and_gradients_are_those_of_the_host():
    a, b = numbers(64, 32), numbers(32, 16, seed=1)

    def both(device):
        x, w = Tensor(a, device=device), Tensor(b, device=device)
        with Tape() as tape:
            tape.watch(w)
            loss = (x @ w).tanh().square().mean()
        return loss.item(), tape.gradient(loss, w).numpy()

    (host, host_slope), (card, card_slope) = both("cpu"), both("cuda")
    assert card == pytest.approx(host, rel=1e-4)
    np.testing.assert_allclose(card_slope, host_slope, atol=1e-5)


def test_pytorch_takes_a_tensor_where_it_lies():
    torch = torch_on_card()
    ours = Tensor(numbers(128, 64), device="cuda").exp()
    theirs = torch.from_dlpack(ours)
    assert theirs.is_cuda and theirs.device.index == 0 and tuple(theirs.shape) == (128, 64)
    again = torch.from_dlpack(ours)
    assert again.data_ptr() == theirs.data_ptr(), "nothing is copied"
    np.testing.assert_allclose(theirs.cpu().numpy(), np.exp(numbers(128, 64)), rtol=1e-5)
    # What is computed here is done before PyTorch reads it, many times over.
    for i in range(50):
        made = Tensor(numbers(256, 256, seed=i), device="cuda")
        want = made.numpy() @ made.numpy()
        np.testing.assert_allclose(torch.from_dlpack(made @ made).cpu().numpy(), want, atol=2e-2)


def test_memory_that_pytorch_holds_is_not_used_again():
    torch = torch_on_card()
    held = [torch.from_dlpack(Tensor(np.full((1000,), float(i), "float32"), device="cuda")) for i in range(50)]
    gc.collect()
    for i in range(200):
        Tensor(np.full((1000,), -1.0, "float32"), device="cuda").numpy()
    for i, tensor in enumerate(held):
        assert (tensor == i).all().item()


def test_a_tensor_of_pytorch_is_taken_where_it_lies():
    torch = torch_on_card()
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool):
        theirs = torch.arange(24, device="cuda").reshape(4, 6).to(dtype)
        ours = plimsoll.from_dlpack(theirs)
        assert ours.device == "cuda:0" and ours.shape == (4, 6)
        assert torch.from_dlpack(ours).data_ptr() == theirs.data_ptr(), "nothing is copied"
        np.testing.assert_array_equal(ours.cast("float32").numpy(), theirs.to(torch.float32).cpu().numpy())
    with pytest.raises(BufferError, match="contiguous"):
        plimsoll.from_dlpack(torch.zeros(4, 6, device="cuda").t())


def test_pytorchs_work_is_done_before_ours_reads_it():
    torch = torch_on_card()
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for i in range(20):
                x = torch.full((2048, 2048), 1.0, device="cuda")
                for _ in range(10):
                    x = x @ x / 2048.0
                ours = plimsoll.from_dlpack(x)
                assert ours.mean().item() == pytest.approx(1.0, rel=1e-3)


def test_memory_of_pytorch_is_given_back():
    torch = torch_on_card()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    ours = plimsoll.from_dlpack(torch.ones(1 << 20, device="cuda"))
    assert torch.cuda.memory_allocated() >= before + (4 << 20)
    assert (ours + ours).sum().item() == 2 << 20
    del ours
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_a_host_copy_is_given_where_it_is_asked_for():
    ours = Tensor(numbers(3, 4), device="cuda")
    with pytest.raises(BufferError):
        ours.__dlpack__(dl_device=(1, 0), copy=False)
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        np.testing.assert_array_equal(np.from_dlpack(ours, device="cpu"), numbers(3, 4))


def losses(device: str, **settings) -> list[float]:
    x, y = pairs()
    model = Sequential().dense(32).relu().dense(16).tanh().dense(2)
    trainer = Trainer(model, "softmax_cross_entropy", learning_rate=1e-2, device=device, metrics=["accuracy"], **settings)
    return [epoch["loss"] for epoch in trainer.fit(x, y, epochs=5, verbose=0)]


def test_a_trainer_on_a_card_has_the_losses_of_the_host():
    np.testing.assert_allclose(losses("cuda"), losses("cpu"), rtol=1e-3)


def test_a_trainer_keeps_to_a_limit_of_the_cards_memory():
    x, y = numbers(1024, 256), np.zeros(1024, "int64")
    model = Sequential().dense(1024).relu().dense(1024).relu().dense(10)
    trainer = Trainer(model, "softmax_cross_entropy", device="cuda", memory="2GiB")
    plan = trainer.plan(x, y, batch_size=256)
    assert plan.planned <= 2 << 30
    history = trainer.fit(x, y, batch_size=256, epochs=2, verbose=0)
    assert history[-1]["loss"] < history[0]["loss"]
    with pytest.raises(plimsoll.MemoryLimitError):
        Trainer(model, "softmax_cross_entropy", device="cuda", memory="1MiB").plan(x, y, batch_size=256)


def test_convolutions_train_on_a_card_as_on_the_host():
    x, y = numbers(64, 16, 16, 3), np.random.default_rng(1).integers(0, 4, 64)
    model = Sequential().conv2d(8, 3, padding="same").batch_norm().relu().global_avg_pool2d().dense(4)

    def run(device):
        return [epoch["loss"] for epoch in Trainer(model, "softmax_cross_entropy", device=device).fit(x, y, epochs=3, batch_size=16, verbose=0)]

    np.testing.assert_allclose(run("cuda"), run("cpu"), rtol=2e-3)


def test_a_model_with_constants_of_its_own_is_on_its_trainers_device():
    def model(net, x):
        return net.dense("out", x * Tensor([2.0, 0.5]), 2)

    x, y = pairs()
    assert len(Trainer(model, "softmax_cross_entropy", device="cuda").fit(x, y, verbose=0)) == 1


if __name__ == "__main__":
    os.environ.setdefault("PLIMSOLL_REQUIRE", "card")
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", __file__, *sys.argv[1:]]))
