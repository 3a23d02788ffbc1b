"""Tensors, tapes, models of the engine's own layers, and their trainer: held against NumPy."""

from __future__ import annotations

import copy
import doctest
import pickle
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import plimsoll
from plimsoll import Net, Sequential, Tape, Tensor, Trainer, _engine, _plan, _progress


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def pairs(n: int = 256, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Which of two numbers is the larger one?"""
    x = numbers(n, 2, seed=seed)
    return x, (x[:, 1] > x[:, 0]).astype("int64")


def small(**settings) -> Trainer:
    model = Sequential().dense(16).relu().dense(2)
    return Trainer(model, "softmax_cross_entropy", learning_rate=1e-2, device="cpu", **settings)


class TestTensors:
    def test_elements_come_and_go_unchanged(self):
        for dtype in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint32", "uint16", "uint8", "bool"):
            array = (numbers(3, 4) * 9).astype(dtype)
            tensor = Tensor(array)
            assert (tensor.shape, tensor.dtype, tensor.ndim, len(tensor)) == ((3, 4), dtype, 2, 3)
            np.testing.assert_array_equal(tensor.numpy(), array)
            assert tensor.numpy().dtype == array.dtype

    def test_numbers_of_python_are_float32_and_arrays_stay_as_they_are(self):
        assert Tensor([1.0, 2.0]).dtype == "float32" and Tensor([1, 2]).dtype == "int64"
        assert Tensor(np.zeros(2)).dtype == "float64" and Tensor(2.5).item() == 2.5
        assert Tensor([1, 2], dtype="float16").dtype == "float16"

    def test_what_is_in_another_order_is_put_in_order(self):
        array = numbers(4, 6).T[::2]
        np.testing.assert_array_equal(Tensor(array).numpy(), array)
        np.testing.assert_array_equal(Tensor(array.astype(">f4")).numpy(), array)

    def test_an_array_of_a_tensor_is_a_view_that_outlives_it_and_cannot_be_written_to(self):
        array = Tensor(numbers(1000)).exp().numpy()
        again = [Tensor(numbers(1000, seed=i)).exp() for i in range(20)]
        np.testing.assert_allclose(array, np.exp(numbers(1000)), rtol=1e-6)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        assert np.array(again[0]).flags.writeable

    def test_tensors_are_compared_by_their_elements_and_are_keys_by_themselves(self):
        x, y = Tensor([1.0, 2.0]), Tensor([1.0, 3.0])
        assert (x == y).numpy().tolist() == [True, False] and (x != 2).numpy().tolist() == [True, False]
        assert x != "one" and not x == None  # noqa: E711
        assert {x: 1, y: 2}[y] == 2

    def test_bfloat16_is_made_and_shown_though_numpy_has_none(self):
        x = Tensor([1.0, 2.5], dtype="bfloat16")
        assert (x.dtype, x.cast("float32").numpy().tolist()) == ("bfloat16", [1.0, 2.5])
        assert "2.5" in repr(x) and "bfloat16" in repr(x)
        with pytest.raises(TypeError, match="cast it to float32"):
            x.numpy()

    def test_dlpack_gives_others_the_elements_where_they_lie(self):
        array = numbers(3, 2)
        tensor = Tensor(array)
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            seen = np.from_dlpack(tensor)
            assert seen.ctypes.data == tensor.numpy().ctypes.data and not seen.flags.writeable
        taken = np.array(np.from_dlpack(tensor))
        assert tensor.__dlpack_device__() == (1, 0)
        del tensor
        np.testing.assert_array_equal(taken, array)

    def test_a_capsule_that_nobody_takes_is_given_back_and_an_older_taker_gets_a_copy(self):
        tensor = Tensor(numbers(1000))
        for settings in ({}, {"max_version": (1, 0)}, {"copy": True}, {"max_version": (1, 2), "stream": None}):
            for _ in range(200):
                assert "dltensor" in repr(tensor.__dlpack__(**settings))
        with pytest.raises(BufferError, match="copy is False"):
            tensor.__dlpack__(copy=False)
        with pytest.raises(BufferError, match="cannot be given"):
            tensor.__dlpack__(dl_device=(2, 0))

    def test_arrays_of_others_are_taken_where_they_lie_and_held(self):
        raw = np.zeros(1024, np.uint8)
        start = -raw.ctypes.data % 64
        for dtype in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint32", "uint16", "uint8", "bool"):
            array = raw[start : start + 512].view(dtype)
            tensor = plimsoll.from_dlpack(array)
            assert tensor.dtype == dtype and tensor.numpy().ctypes.data == array.ctypes.data
        floats = raw[start : start + 64].view("float32").reshape(4, 4)
        tensor = plimsoll.from_dlpack(floats)
        floats[1, 2] = 7
        assert tensor[1, 2].item() == 7 and (tensor + tensor)[1, 2].item() == 14
        with pytest.raises(BufferError, match="contiguous"):
            plimsoll.from_dlpack(floats.T)
        odd = raw[start + 4 : start + 68].view("float32")
        assert plimsoll.from_dlpack(odd).numpy().tolist() == odd.tolist(), "what is not aligned is copied"
        assert plimsoll.from_dlpack(np.zeros((0, 3))).shape == (0, 3)
        with pytest.raises(TypeError, match="complex|kind 5"):
            plimsoll.from_dlpack(np.zeros(4, "complex64"))
        with pytest.raises(TypeError, match="does not give DLPack"):
            plimsoll.from_dlpack([1, 2])

    def test_what_is_borrowed_is_given_back(self):
        import sys

        raw = np.zeros(1024, np.uint8)
        start = -raw.ctypes.data % 64
        array = raw[start : start + 256].view("float32")
        before = sys.getrefcount(array)
        tensor = plimsoll.from_dlpack(array)
        view = tensor.reshape(8, 8)
        assert sys.getrefcount(array) > before
        del tensor
        assert view.sum().item() == 0 and sys.getrefcount(array) > before
        del view
        assert sys.getrefcount(array) == before

    @pytest.mark.torch
    def test_pytorch_gives_and_takes_without_copies(self):
        import torch

        theirs = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        ours = plimsoll.from_dlpack(theirs)
        assert ours.numpy().ctypes.data == theirs.data_ptr()
        half = plimsoll.from_dlpack(theirs.to(torch.bfloat16))
        assert half.dtype == "bfloat16" and half.cast("float32").numpy().tolist() == theirs.tolist()
        back = torch.from_dlpack(ours + 1)
        assert back.tolist() == (theirs + 1).tolist()

    def test_tensors_are_pickled_with_their_elements_and_copies_are_themselves(self):
        for tensor in (Tensor(numbers(2, 3)), Tensor([1, 2]), Tensor([1.0, 2.5], dtype="bfloat16"), Tensor(3.0)):
            again = pickle.loads(pickle.dumps(tensor))
            assert (again.dtype, again.shape, again.device) == (tensor.dtype, tensor.shape, tensor.device)
            np.testing.assert_array_equal(again.cast("float64").numpy(), tensor.cast("float64").numpy())
            assert copy.deepcopy(tensor) is tensor

    def test_functions_of_numpy_work_on_tensors(self):
        a = numbers(3, 4)
        x = Tensor(a)
        for function in (np.sum, np.mean, np.max, np.min, np.prod, np.argmax, np.cumsum, np.sort, np.std, np.transpose):
            np.testing.assert_allclose(np.asarray(function(x)), function(a), rtol=1e-5)
        np.testing.assert_allclose(np.asarray(np.sum(x, axis=1, keepdims=True)), a.sum(1, keepdims=True), rtol=1e-6)
        with pytest.raises(TypeError, match="NumPy's"):
            x.sum(out=a)

    def test_tensors_of_the_host_go_together_however_they_were_made(self):
        x = Tensor([1.0, 2.0], device="cpu") + Tensor([1.0, 2.0]).to("cpu") + Tensor([0.0, 1.0])
        assert x.numpy().tolist() == [2.0, 5.0]

    def test_operators_mean_what_they_mean_in_numpy(self):
        a, b = numbers(3, 4), numbers(3, 4, seed=1) + 3
        x, y = Tensor(a), Tensor(b)
        for got, want in [
            (x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (-x, -a), (abs(x), abs(a)),
            (x + 2, a + 2), (2 + x, 2 + a), (x - 2, a - 2), (2 - x, 2 - a), (x * 3, a * 3), (3 / y, 3 / b), (x / 3, a / 3),
            (y**2, b**2), (y**-0.5, b**-0.5), (y**y, b**b), (x @ y.transpose(), a @ b.T),
            (x < y, a < b), (x <= 0, a <= 0), (x > y, a > b), (x >= 0.5, a >= 0.5), (x.equal(x), a == a),
        ]:  # fmt: skip
            np.testing.assert_allclose(got.numpy(), want, rtol=2e-6)

    def test_methods_mean_what_they_mean_in_numpy(self):
        a = numbers(3, 4, 5)
        x = Tensor(a)
        e = np.exp(a - a.max(-1, keepdims=True))
        for got, want in [
            (x.exp(), np.exp(a)), (x.tanh(), np.tanh(a)), (x.relu(), np.maximum(a, 0)), (x.square().sqrt(), abs(a)),
            (x.sum(), a.sum()), (x.sum(1), a.sum(1)), (x.sum((0, -1)), a.sum((0, 2))), (x.mean(-1, keepdims=True), a.mean(-1, keepdims=True)),
            (x.max(0), a.max(0)), (x.min(), a.min()), (x.prod(2), a.prod(2)), (x.argmax(), a.argmax(-1)), (x.cumsum(1), a.cumsum(1)),
            (x.softmax(), e / e.sum(-1, keepdims=True)), (x.sort(1), np.sort(a, 1)), (x.top_k(2)[0], -np.sort(-a, -1)[..., :2]),
            (x.reshape(12, 5), a.reshape(12, 5)), (x.reshape((-1, 2)), a.reshape(-1, 2)), (x.transpose([2, 0, 1]), a.transpose(2, 0, 1)),
            (x.clamp(-0.5, 0.5), a.clip(-0.5, 0.5)), (x.flip([0, -1]), a[::-1, :, ::-1]), (x.pad([(1, 0), (0, 2), (0, 0)]), np.pad(a, [(1, 0), (0, 2), (0, 0)])),
            (x.maximum(0.1), np.maximum(a, 0.1)), (x.masked_fill(x < 0, 7), np.where(a < 0, 7, a)),
            ((x < 0).select(x, -x), -abs(a)), (plimsoll.concat([x, x], 1), np.concatenate([a, a], 1)),
            (plimsoll.einsum("abc,abd->cd", x, x), np.einsum("abc,abd->cd", a, a)),
        ]:  # fmt: skip
            np.testing.assert_allclose(got.numpy(), want, rtol=3e-5, atol=1e-6)

    def test_indices_mean_what_they_mean_in_numpy(self):
        a = numbers(6, 4, 5)
        x = Tensor(a)
        for index in [0, -1, slice(1, 3), slice(None, None, 2), (slice(None), 2), (1, slice(0, 4, 3), -2), slice(4, 2), (),
                      ..., None, (..., 1), (0, ..., slice(1, 3)), (slice(None), None), (..., None), (None, 1, ..., None, slice(2)), (1, 2, 3, ...)]:  # fmt: skip
            np.testing.assert_array_equal(x[index].numpy(), a[index])
        rows = Tensor(np.array([3, 0, 3]))
        np.testing.assert_array_equal(x.gather(rows).numpy(), a[[3, 0, 3]])
        for index, why in [(6, "outside of an axis of length 6"), ((0, 0, 0, 0), "4 indices"), ((..., ...), "once"), ("a", "whole number"), (slice(None, None, -1), "forwards")]:
            with pytest.raises((IndexError, TypeError, ValueError), match=why):
                x[index]

    def test_what_does_not_go_is_an_exception_with_the_line(self):
        x = Tensor(numbers(3, 4))
        with pytest.raises(plimsoll.PlimsollError, match=r"test_engine\.py:\d+"):
            x @ x
        with pytest.raises(TypeError):
            x + "one"
        with pytest.raises(TypeError):
            numbers(3, 4) + x
        with pytest.raises(TypeError, match="cast it to float32"):
            Tensor([1, 2]) + 0.5
        with pytest.raises(TypeError, match="complex"):
            Tensor(np.zeros(2, dtype="complex64"))
        with pytest.raises(plimsoll.PlimsollError):
            x.to("cuda:99")


class TestTapes:
    def test_gradients_are_those_of_finite_differences(self):
        a, b = numbers(4, 3), numbers(3, 2, seed=1)

        def loss(x, w):
            return ((x @ w).tanh() * 2 - 1).square().mean()

        x, w = Tensor(a.astype("float64")), Tensor(b.astype("float64"))
        with Tape() as tape:
            tape.watch(x)
            tape.watch(w)
            y = loss(x, w)
        dx, dw = tape.gradient(y, [x, w])
        for array, grad, other in [(a, dx, lambda v: loss(Tensor(v), w)), (b, dw, lambda v: loss(x, Tensor(v)))]:
            for place in np.ndindex(array.shape):
                up, down = array.astype("float64"), array.astype("float64")
                up[place] += 1e-5
                down[place] -= 1e-5
                slope = (other(up).item() - other(down).item()) / 2e-5
                assert abs(slope - grad.numpy()[place]) < 1e-7

    def test_a_tape_ends_with_its_block_gives_once_and_says_so(self):
        w = Tensor([3.0])
        with Tape() as tape:
            tape.watch(w)
            y = (w * w).sum()
        z = (y * 5).sum()
        with pytest.raises(plimsoll.PlimsollError, match="depend"):
            tape.gradient(z, w)
        tape = Tape(persistent=True)
        tape.watch(w)
        y = (w * w).sum()
        assert [tape.gradient(y, w).item() for _ in range(2)] == [6.0, 6.0]
        tape = Tape()
        tape.watch(w)
        y = (w * w).sum()
        assert tape.gradient(y, w).item() == 6.0
        with pytest.raises(plimsoll.PlimsollError, match="persistent"):
            tape.gradient(y, w)

    def test_a_tape_of_another_thread_is_refused_and_not_a_crash(self):
        tape, w, found = Tape(), Tensor([1.0]), []

        def use():
            try:
                tape.watch(w)
            except RuntimeError as error:
                found.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert "belongs to the thread that made it" in found[0]

    def test_a_line_is_fitted_by_hand(self):
        x, y = Tensor([0.0, 1.0, 2.0, 3.0]), Tensor([1.0, 3.1, 4.9, 7.0])
        w = Tensor([0.0, 0.0])
        for _ in range(500):
            with Tape() as tape:
                tape.watch(w)
                loss = (x * w[0:1] + w[1:2] - y).square().mean()
            w = w - tape.gradient(loss, w) * 0.05
        np.testing.assert_allclose(w.numpy(), [1.98, 1.03], atol=0.01)


class TestTrainer:
    def test_it_learns_inside_its_limit_and_goes_on(self):
        x, y = pairs()
        trainer = small(memory="300MiB", metrics=["accuracy"])
        plan = trainer.plan(x, y)
        assert plan.least <= plan.planned <= 300 << 20
        first = trainer.fit(x, y, epochs=10, verbose=0)
        more = trainer.fit(x, y, epochs=10, verbose=0, validation_data=pairs(64, seed=1))
        assert len(first) == len(more) == 10 and more[-1]["loss"] < first[-1]["loss"] < first[0]["loss"]
        assert more[-1]["accuracy"] > 0.9 and "val_loss" in more[-1] and "val_loss" not in first[-1]
        found = trainer.evaluate(x, y)
        logits = trainer.predict(x)
        assert logits.shape == (256, 2)
        assert found["accuracy"] == pytest.approx((logits.argmax(-1) == y).mean())
        assert {name: value.shape for name, value in trainer.parameters().items()} == {
            "dense1/weight": (2, 16), "dense1/bias": (16,), "dense2/weight": (16, 2), "dense2/bias": (2,),
        }  # fmt: skip

    def test_a_limit_that_is_too_small_is_refused_with_the_least(self):
        x, y = numbers(512, 1024), np.zeros(512, dtype="int64")
        model = Sequential().dense(2048).relu().dense(10)
        trainer = Trainer(model, "softmax_cross_entropy", device="cpu", memory="20MiB")
        with pytest.raises(plimsoll.MemoryLimitError) as refused:
            trainer.plan(x, y, batch_size=256)
        assert refused.value.limit == 20 << 20 and refused.value.least > 20 << 20
        trainer = Trainer(model, "softmax_cross_entropy", device="cpu", memory=refused.value.least)
        assert len(trainer.fit(x, y, batch_size=256, verbose=0)) == 1

    def test_a_refusal_is_told_though_a_loss_of_ones_own_fails_in_another_precision(self):
        x, y = numbers(512, 256), numbers(512, 4, seed=1)
        make = lambda memory: Trainer(Sequential().dense(512).relu().dense(4), lambda out, label: (out - label).square().sum(), device="cpu", memory=memory)
        with pytest.raises(plimsoll.MemoryLimitError) as refused:
            make("1MiB").plan(x, y, batch_size=512)
        assert make(refused.value.least).plan(x, y, batch_size=512).micro_batches == 1, "a sum is not split"

    def test_own_models_layers_and_losses_are_traced(self):
        calls = []

        def scaled(net: Net, x: Tensor) -> Tensor:
            return x * net.param("scale", [x.shape[-1]], "ones") + net.param("shift", [x.shape[-1]], 0.5)

        def model(net: Net, a: Tensor, b: Tensor) -> Tensor:
            calls.append(a.shape)
            assert "traced" in repr(a)
            x = net.dense("in", plimsoll.concat([a, b], 1), 8).tanh()
            x = net.scope("block", lambda net: scaled(net, x))
            return net.dense("out", x, 1)

        def loss(output: Tensor, label: Tensor) -> Tensor:
            return (output - label.reshape(-1, 1)).abs().mean()

        a, b = numbers(64, 3), numbers(64, 2, seed=1)
        y = a.sum(1) - b.sum(1)
        trainer = Trainer(model, loss, learning_rate=1e-2, device="cpu")
        history = trainer.fit([a, b], y, epochs=40, verbose=0, batch_size=16)
        assert history[-1]["loss"] < history[0]["loss"] / 2
        assert "block/scale" in trainer.parameters() and (trainer.parameters()["block/shift"] != 0.5).any()
        traced = len(calls)
        trainer.fit([a, b], y, epochs=3, verbose=0, batch_size=16)
        assert len(calls) == traced, "steps run without Python"

    def test_its_step_is_that_of_a_tape(self):
        x, y = numbers(8, 3), numbers(8, 2, seed=1)
        trainer = Trainer(Sequential().dense(2), "mse", optimizer="sgd", learning_rate=0.1, device="cpu")
        trainer.evaluate(x, y)
        before = trainer.parameters()
        w, b = (Tensor(before[f"dense1/{name}"]) for name in ("weight", "bias"))
        with Tape() as tape:
            tape.watch(w)
            tape.watch(b)
            loss = (Tensor(x) @ w + b - Tensor(y)).square().mean()
        dw, db = tape.gradient(loss, [w, b])
        history = trainer.fit(x, y, batch_size=8, verbose=0)
        assert history[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)
        after = trainer.parameters()
        np.testing.assert_allclose(after["dense1/weight"], (w - dw * 0.1).numpy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(after["dense1/bias"], (b - db * 0.1).numpy(), rtol=1e-4, atol=1e-6)

    def test_weights_are_saved_and_loaded(self, tmp_path):
        x, y = pairs()
        trainer = small()
        with pytest.raises(plimsoll.PlimsollError, match="no weights to save"):
            trainer.save(tmp_path / "early.safetensors")
        trainer.fit(x, y, verbose=0)
        trainer.save(tmp_path / "w.safetensors")
        other = small(seed=9)
        other.load(tmp_path / "w.safetensors", x, y)
        np.testing.assert_array_equal(other.predict(x), trainer.predict(x))

    def test_a_run_goes_on_from_its_checkpoint(self, tmp_path):
        x, y = pairs()
        whole = small(checkpoints=tmp_path / "whole")
        whole.fit(x, y, epochs=4, verbose=0)
        half = small(checkpoints=tmp_path / "half")
        half.fit(x, y, epochs=2, verbose=0)
        rest = small(checkpoints=tmp_path / "half")
        assert rest.resume(tmp_path / "half", x, y)
        rest.fit(x, y, epochs=2, verbose=0)
        for name, value in whole.parameters().items():
            np.testing.assert_array_equal(value, rest.parameters()[name])

    def test_optimizers_have_their_settings(self):
        x, y = numbers(8, 3), numbers(8, 2, seed=1)
        model = Sequential().dense(2, bias=False)

        def steps(optimizer, n=3):
            trainer = Trainer(model, "mse", optimizer, device="cpu")
            trainer.evaluate(x, y)
            w = trainer.parameters()["dense1/weight"].astype("float64")
            trainer.fit(x, y, batch_size=8, epochs=n, shuffle=False, verbose=0)
            return w, trainer.parameters()["dense1/weight"]

        slope = lambda w: 2 / 16 * x.T.astype("float64") @ (x @ w - y)
        w, found = steps(plimsoll.Optimizer("sgd", 0.1, momentum=0.5, weight_decay=0.01))
        v = 0
        for _ in range(3):
            v = 0.5 * v + slope(w) + 0.01 * w
            w = w - 0.1 * v
        np.testing.assert_allclose(found, w, rtol=1e-4)
        w, found = steps(plimsoll.Optimizer("adamw", 0.1, beta1=0.5, beta2=0.8, eps=1e-3, weight_decay=0.2))
        m = s = 0
        for t in (1, 2, 3):
            g = slope(w)
            m, s = 0.5 * m + 0.5 * g, 0.8 * s + 0.2 * g * g
            w = w * (1 - 0.1 * 0.2) - 0.1 * (m / (1 - 0.5**t)) / (np.sqrt(s / (1 - 0.8**t)) + 1e-3)
        np.testing.assert_allclose(found, w, rtol=1e-4)
        for name in ("sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "adagrad", "ftrl", "lion", "adafactor"):
            before, after = steps(plimsoll.Optimizer(name, 0.1))
            assert np.isfinite(after).all() and (before != after).any(), name
        for settings, why in (({"beta3": 1.0}, "adam has no setting beta3; it has beta1, beta2, eps"), ({"eps": "small"}, "eps of adam is a number")):
            with pytest.raises((TypeError, ValueError), match=why):
                Trainer(model, "mse", plimsoll.Optimizer("adam", **settings))
        with pytest.raises(ValueError, match="given twice"):
            Trainer(model, "mse", plimsoll.Optimizer("adam"), 1e-3)
        with pytest.raises(ValueError, match="learning rate is NaN"):
            Trainer(model, "mse", "adam", float("nan"))

    def test_gradients_are_clipped_and_state_can_be_bytes(self):
        x, y = numbers(8, 3), numbers(8, 2, seed=1) * 100
        for clip in ({"clip_norm": 1e-3}, {"clip_value": 1e-3}):
            trainer = Trainer(Sequential().dense(2, bias=False), "mse", "sgd", 1.0, device="cpu", **clip)
            trainer.evaluate(x, y)
            before = trainer.parameters()["dense1/weight"]
            trainer.fit(x, y, batch_size=8, verbose=0)
            moved = trainer.parameters()["dense1/weight"] - before
            assert np.linalg.norm(moved) < 1.1e-3 * (np.sqrt(6) if "clip_value" in clip else 1)
        with pytest.raises(ValueError, match="cannot both"):
            small(clip_norm=1.0, clip_value=1.0)
        pair = pairs()
        for state, named in (("8bit", "8-bit"), ("bf16", "bf16")):
            assert small(state=state).fit(*pair, epochs=5, verbose=0)[-1]["loss"] < 0.5
            with pytest.raises(plimsoll.PlimsollError, match=f"adagrad has no {named} state"):
                Trainer(Sequential().dense(2), "mse", "adagrad", state=state, device="cpu")
        with pytest.raises(ValueError, match="bf16 or 8bit belongs there"):
            small(state="4bit")

    def test_schedules_say_the_rate_of_every_step(self):
        x, y = np.ones((6, 1), "float32"), np.zeros(6, "float32")

        def rates(schedule, n=6):
            # A gradient of one: what a step moves is its rate.
            trainer = Trainer(lambda net, x: x * net.param("w", [1], 0.0), lambda out, label: out.mean(), "sgd", 1.0, schedule=schedule, device="cpu")
            seen = []

            class Follow(plimsoll.Callback):
                def on_step_end(self, step, logs):
                    seen.append(logs["loss"] * (step + 1))

            trainer.fit(x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[Follow()])
            # Mean losses so far, times their number, are sums of weights; the last weight is what is left.
            weights = np.diff([0.0, *seen, seen[-1] + trainer.parameters()["w"][0]])
            return -np.diff(weights)

        cosine = 0.5 * (1 + np.cos(np.pi * np.arange(6) / 6))
        for schedule, want in [
            (None, np.ones(6)), (plimsoll.Schedule("constant"), np.ones(6)), (plimsoll.Schedule("cosine", steps=6), cosine),
            (plimsoll.Schedule("step", every=2, factor=0.5), [1, 1, 0.5, 0.5, 0.25, 0.25]), (plimsoll.Schedule("exponential", factor=0.5), 0.5 ** np.arange(6)),
            (plimsoll.Schedule("polynomial", steps=6, power=2.0), (1 - np.arange(6) / 6) ** 2), (plimsoll.Schedule("inverse", every=1), 1 / (1 + np.arange(6))),
            (plimsoll.Schedule("pieces", ends=[1, 3], factors=[1.0, 0.5, 0.1]), [1, 1, 0.5, 0.5, 0.1, 0.1]),
            (lambda step: 1 / (step + 1), 1 / (1 + np.arange(6))), (plimsoll.Schedule("constant", warm_up=3), [1 / 3, 2 / 3, 1, 1, 1, 1]),
        ]:  # fmt: skip
            np.testing.assert_allclose(rates(schedule), want, atol=2e-5, err_msg=repr(schedule))
        for name in ("one_cycle", "restarts"):
            assert np.isfinite(rates(plimsoll.Schedule(name, **{"one_cycle": {"steps": 6}, "restarts": {"first": 3}}[name]))).all()
        for schedule, why in ((plimsoll.Schedule("cosine"), "cosine wants steps"), (plimsoll.Schedule("wave"), "no schedule wave"), (plimsoll.Schedule("step", every=2, over=3), "no setting over"), (3, "a schedule is")):
            with pytest.raises((TypeError, ValueError), match=why):
                rates(schedule)
        with pytest.raises(KeyError, match="mine"):
            rates(lambda step: {}["mine"])

    def test_batches_may_come_one_after_the_other(self):
        x, y = pairs()
        expected = small().fit(x, y, epochs=3, shuffle=False, verbose=0)
        batches = lambda: ((x[i : i + 32], y[i : i + 32]) for i in range(0, 256, 32))

        class Rows:
            def __iter__(self):
                return batches()

        assert small().fit(Rows(), epochs=3, verbose=0) == expected
        forever = (batch for _ in range(3) for batch in batches())
        assert small().fit(forever, epochs=3, steps_per_epoch=8, verbose=0) == expected
        trainer = small(metrics=["accuracy"])
        first = trainer.fit(Rows(), epochs=2, verbose=0)
        more = trainer.fit(Rows(), epochs=1, verbose=0, validation_data=Rows())
        assert [round(epoch["loss"], 6) for epoch in (*first, *more)] == [round(epoch["loss"], 6) for epoch in expected] and "val_loss" in more[0]
        assert trainer.evaluate(Rows()) == trainer.evaluate(x, y)
        np.testing.assert_array_equal(trainer.predict(x[i : i + 32] for i in range(0, 256, 32)), trainer.predict(x))
        with pytest.raises(ValueError, match="steps_per_epoch"):
            small().fit(batches(), epochs=2, verbose=0)
        with pytest.raises(ValueError, match="batch_size is given beside"):
            small().fit(Rows(), batch_size=4, verbose=0)

        def broken():
            yield x[:32], y[:32]
            raise KeyError("gone")

        with pytest.raises(KeyError, match="gone"):
            small().fit(broken(), steps_per_epoch=2, verbose=0)

    def test_early_stopping_ends_a_run_that_does_not_get_better(self):
        x, y = pairs()
        stop = plimsoll.EarlyStopping("val_loss", patience=2, min_delta=10.0)
        trainer = small()
        history = trainer.fit(x, y, epochs=20, verbose=0, validation_data=pairs(64, seed=1), callbacks=[stop])
        assert len(history) == 3 and len(trainer.fit(x, y, verbose=0)) == 1
        with pytest.raises(ValueError, match="watches val_loss, and there are loss"):
            small().fit(x, y, verbose=0, callbacks=[plimsoll.EarlyStopping()])

    def test_metrics_are_names_or_functions(self):
        x, y = pairs()

        def wrong(output, label):
            return output.argmax(-1).not_equal(label).cast("float32")

        trainer = small(metrics=["accuracy", "top1", "cross_entropy", wrong])
        found = trainer.fit(x, y, epochs=2, verbose=0)[-1]
        assert set(found) == {"loss", "accuracy", "top1", "cross_entropy", "wrong"}
        assert found["wrong"] == pytest.approx(1 - found["accuracy"]) and found["cross_entropy"] == pytest.approx(found["loss"], rel=1e-4)
        binary = Trainer(Sequential().dense(1), "binary_cross_entropy", metrics=["precision", "recall", "auc"], device="cpu")
        assert 0 <= binary.fit(x, y.astype("float32")[:, None], verbose=0)[0]["auc"] <= 1

    def test_progress_is_a_line_that_is_written_over_in_a_terminal(self):
        import io

        from plimsoll._progress import Progress

        class Terminal(io.StringIO):
            def isatty(self):
                return True

        terminal, file = Terminal(), io.StringIO()
        for stream in (terminal, file):
            shown = Progress(8, stream)
            shown.step(0, 3, {"loss": 0.25})
            shown.epoch(0, {"loss": 0.125})
        assert terminal.getvalue() == "\repoch 1, step 3/8: loss 0.25\r" + "epoch 1: loss 0.125".ljust(len("epoch 1, step 3/8: loss 0.25")) + "\n"
        assert file.getvalue() == "epoch 1: loss 0.125\n"

    def test_callbacks_see_steps_and_epochs_stop_runs_and_change_the_rate(self):
        x, y = pairs()
        seen = []

        class Follow(plimsoll.Callback):
            def on_step_end(self, step, logs):
                seen.append(step)
                self.trainer.learning_rate = 0.0

            def on_epoch_end(self, epoch, logs):
                self.trainer.stop = epoch == 1

        trainer = small()
        history = trainer.fit(x, y, epochs=9, verbose=0, callbacks=[Follow()], batch_size=64)
        assert len(history) == 2 and seen == [0, 1, 2, 3] * 2
        held = trainer.parameters()
        trainer.fit(x, y, epochs=1, verbose=0)
        assert all((held[name] == value).all() for name, value in trainer.parameters().items()), "the rate stays 0"

    def test_what_python_raises_comes_back_as_it_was(self):
        x, y = pairs()

        def broken(net, x):
            raise KeyError("no such layer")

        with pytest.raises(KeyError, match="no such layer"):
            Trainer(broken, "mse", device="cpu").fit(x, y, verbose=0)
        with pytest.raises(TypeError, match="a loss gives a plimsoll.Tensor"):
            Trainer(Sequential().dense(2), lambda output, label: 1.0, device="cpu").fit(x, y, verbose=0)
        with pytest.raises(plimsoll.PlimsollError, match="parameter a/weight"):
            Trainer(lambda net, x: net.dense("a", net.dense("a", x, 3), 4), "mse", device="cpu").fit(x, y, verbose=0)

        class Fails(plimsoll.Callback):
            def on_epoch_end(self, epoch, logs):
                raise ZeroDivisionError("in a callback")

        trainer = small()
        with pytest.raises(ZeroDivisionError, match="in a callback"):
            trainer.fit(x, y, epochs=3, verbose=0, callbacks=[Fails()])
        assert len(trainer.fit(x, y, verbose=0)) == 1, "it lives on"

    def test_a_net_does_not_outlive_its_model(self):
        kept = []

        def model(net, x):
            kept.append(net)
            return net.dense("a", x, 2)

        x, y = pairs()
        Trainer(model, "softmax_cross_entropy", device="cpu").fit(x, y, verbose=0)
        with pytest.raises(RuntimeError, match="only there while its model is traced"):
            kept[0].dense("b", Tensor(x), 2)

    def test_ctrl_c_ends_a_run_after_a_step_and_the_trainer_lives_on(self):
        x, y = pairs(4096)

        class Interrupts(plimsoll.Callback):
            def on_step_end(self, step, logs):
                if step == 3:
                    signal.raise_signal(signal.SIGINT)

        trainer = small()
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(x, y, epochs=100, verbose=0, callbacks=[Interrupts()])
        assert len(trainer.fit(x, y, verbose=0)) == 1

    def test_wrong_settings_are_named(self):
        x, y = pairs()
        for settings, why in [({"optimizer": "adma"}, "no optimizer adma"), ({"memory": "2 apples"}, "apples"), ({"metrics": ["acc"]}, "no metric acc"), ({"device": "gpu9"}, "gpu9"), ({"precision": "f7"}, "f7")]:
            with pytest.raises((plimsoll.PlimsollError, ValueError), match=why):
                Trainer(Sequential().dense(2), "mse", **{"device": "cpu", **settings})
        with pytest.raises(ValueError, match="no loss msee"):
            Trainer(Sequential().dense(2), "msee")
        with pytest.raises(TypeError, match="plimsoll.fit"):
            Trainer(3, "mse")
        with pytest.raises(ValueError, match="batch_size is -1; it must be at least 1"):
            small().fit(x, y, batch_size=-1)
        with pytest.raises(plimsoll.PlimsollError, match=r"test_engine\.py:\d+"):
            small().fit(x[:, 0], y)
        with pytest.raises(ValueError, match="each must have a row"):
            small().fit(x, y[:-1])

    def test_files_are_read_by_the_engine(self, tmp_path):
        x, y = pairs()
        np.savez(tmp_path / "pairs.npz", x=x, y=y)
        history = small().fit(plimsoll.Dataset(tmp_path / "pairs.npz"), epochs=3, verbose=0)
        assert history[-1]["loss"] < history[0]["loss"]
        assert small().fit(tmp_path / "pairs.npz", epochs=3, verbose=0) == history == small().fit(x, y, epochs=3, verbose=0)

    def test_many_runs_leave_no_memory_behind(self):
        x, y = pairs(64)
        trainer = small(memory="300MiB")

        def resident() -> int:
            with open("/proc/self/statm", encoding="ascii") as statm:
                return int(statm.read().split()[1]) * 4096

        for _ in range(50):
            trainer.fit(x, y, verbose=0)
        before = resident()
        for _ in range(300):
            trainer.fit(x, y, verbose=0)
        assert resident() - before < 1 << 20


def _guides_programs():
    guide = (Path(__file__).parents[2] / "docs/guide/src/python.md").read_text(encoding="utf-8")
    part = guide[guide.index("## Without Keras") : guide.index("## Ctrl-C")]
    blocks = re.findall(r"```python\n(.*?)```", part, re.S)
    assert len(blocks) == 4
    return blocks


def test_the_guides_programs_run(tmp_path, monkeypatch):
    blocks = _guides_programs()
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(blocks[0], names)
    assert names["history"][-1]["accuracy"] > 0.9 and (tmp_path / "model.safetensors").is_file()
    exec(blocks[1], names)
    assert names["history"][-1]["val_accuracy"] > 0.9 and 0.5 < names["history"][-1]["sure"] <= 1
    exec(blocks[2], names)
    np.testing.assert_allclose(names["w"].numpy(), [1.98, 1.03], atol=0.01)


@pytest.mark.torch
def test_the_guides_program_with_pytorch_runs():
    names: dict = {}
    exec(_guides_programs()[3], names)
    assert names["theirs"].tolist() == [2.0, 4.0] and names["ours"].shape == (2, 3)


def test_examples_in_docstrings_run():
    names = {"plimsoll": plimsoll, "np": np}
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for thing in (_engine.Sequential, _engine.Trainer, _engine.Optimizer, _engine.Schedule, _engine.EarlyStopping, Tape, plimsoll.from_dlpack):
        for test in finder.find(thing, globs=dict(names)):
            runner.run(test)
    assert runner.summarize().failed == 0 and runner.tries >= 10
    for module in (_plan, _progress):
        assert doctest.testmod(module).failed == 0


def test_arguments_of_other_kinds_are_refused_by_name():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)).astype(np.float32), rng.integers(0, 2, 12)
    made = lambda **more: plimsoll.Trainer(plimsoll.Sequential().dense(2), "softmax_cross_entropy", **more)
    for more, error, why in (
        (dict(memory=-5), ValueError, "memory is -5"), (dict(memory=2.5), TypeError, "memory is 2.5"), (dict(host_memory=True), TypeError, "host_memory is True"),
        (dict(device=3), TypeError, "device is 3"), (dict(precision=32), TypeError, "precision is 32"), (dict(exact=True), TypeError, "exact is True"),
        (dict(seed=-1), ValueError, "seed is -1"), (dict(clip_norm="a"), TypeError, "clip_norm is 'a'"), (dict(checkpoints=5), TypeError, "PathLike"),
    ):  # fmt: skip
        with pytest.raises(error, match=why):
            made(**more)
    for more, error, why in (
        (dict(epochs=1.5), TypeError, "epochs is 1.5"), (dict(batch_size=2.5), TypeError, "batch_size is 2.5"), (dict(batch_size=0), ValueError, "batch_size is 0"),
        (dict(shuffle="batch"), ValueError, "shuffle is 'batch'"), (dict(validation_data=x), ValueError, "validation_data has no labels"),
    ):  # fmt: skip
        with pytest.raises(error, match=why):
            made().fit(x, y, verbose=0, **more)
    with pytest.raises(ValueError, match="no labels"):
        made().fit(x, verbose=0)
    # A batch is never larger than the data.
    trainer = made()
    trainer.fit(x, y, batch_size=10**9, verbose=0)
    assert trainer.predict(x, batch_size=10**9).shape == (12, 2)
