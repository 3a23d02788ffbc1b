"""What a run does to the process: memory, Ctrl-C, threads, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.keras
HERE = Path(__file__).parent


def run(code: str, timeout: int = 240) -> subprocess.CompletedProcess[str]:
    """Runs a program of its own, with the models of these tests at hand."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=timeout, env=env)


def checked(code: str) -> str:
    done = run(code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_peak_of_a_run_is_within_the_limit_beside_what_python_held():
    out = checked(
        """
        import numpy as np, keras, plimsoll
        from keras import layers
        model = keras.Sequential([keras.Input((64, 64, 3))] + [layers.Conv2D(24, 3, padding="same", activation="relu") for _ in range(4)]
                                 + [layers.GlobalAveragePooling2D(), layers.Dense(10, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy")
        x = np.random.default_rng(0).normal(size=(64, 64, 64, 3)).astype("float32")
        y = np.zeros(64, "int64")
        free = plimsoll.plan(model, x, y, batch_size=16).planned
        limit = plimsoll.plan(model, x, y, batch_size=16).least + (8 << 20)
        open("/proc/self/clear_refs", "w").write("5")
        history = plimsoll.fit(model, x, y, batch_size=16, epochs=2, memory=limit, verbose=0)
        peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
        print(free, limit, history.plan.python, peak)
        """
    )
    free, limit, python, peak = map(int, out.split())
    assert limit < free, "the limit is none for this model"
    assert peak <= limit + python, f"{peak - python} over a limit of {limit}"


def test_many_calls_leave_no_memory_behind():
    out = checked(
        """
        import numpy as np, plimsoll, models
        model, x, y = models.nested(32)
        def resident():
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
        for i in range(60):
            plimsoll.fit(model, x, y, batch_size=8, verbose=0, memory="200MiB")
            if i == 19: first = resident()
        print(resident() - first)
        """
    )
    assert int(out) < 1024, f"{out.strip()} KiB more after 40 calls"


def test_ctrl_c_ends_a_run_after_a_step_and_the_interpreter_lives_on(tmp_path):
    out = checked(
        f"""
        import signal, threading, time, os, numpy as np, plimsoll, models
        model, x, y = models.unet(160)
        for delay in (0.3, 0.9, 1.4):
            before = int(np.asarray(model.optimizer.iterations))
            threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                plimsoll.fit(model, x, y, batch_size=8, epochs=100000, verbose=0, checkpoints=r"{tmp_path}" + f"/{{delay}}")
                print("it never ended")
            except KeyboardInterrupt:
                steps = int(np.asarray(model.optimizer.iterations)) - before
                kept = os.listdir(r"{tmp_path}" + f"/{{delay}}") if steps else []
                print(steps > 0, len(kept) > 0, np.isfinite(model.get_weights()[0]).all())
        plimsoll.fit(model, x, y, batch_size=8, verbose=0)
        print("alive")
        """
    )
    lines = out.split("\n")
    assert lines[-2] == "alive" and lines.count("True True True") >= 2, out


def test_another_thread_runs_while_a_step_does_and_a_second_run_is_refused():
    out = checked(
        """
        import threading, time, numpy as np, plimsoll, models
        model, x, y = models.unet(160)
        other, x2, y2 = models.nested(16)
        done, counted, refused = threading.Event(), [0], []
        def count():
            while not done.is_set():
                counted[0] += 1
                time.sleep(0.001)
        def second():
            time.sleep(1.0)
            try: plimsoll.fit(other, x2, y2, verbose=0)
            except plimsoll.PlimsollError as error: refused.append(str(error))
        threads = [threading.Thread(target=count), threading.Thread(target=second)]
        for thread in threads: thread.start()
        start = time.time()
        while not refused and time.time() - start < 60:
            plimsoll.fit(model, x, y, batch_size=80, epochs=30, verbose=0)
            if not threads[1].is_alive(): break
        done.set()
        for thread in threads: thread.join()
        print(counted[0] > 100, refused)
        """
    )
    assert out.startswith("True") and "another call of plimsoll is under way" in out, out


def test_a_forked_child_is_told_so():
    out = checked(
        """
        import os, plimsoll, models
        model, x, y = models.nested(16)
        plimsoll.fit(model, x, y, batch_size=8, verbose=0)
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                plimsoll.evaluate(model, x, y, batch_size=8)
            except plimsoll.PlimsollError as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.wait()
        os.close(write)
        print(os.read(read, 1000).decode())
        """
    )
    assert "forked" in out and "spawn" in out


@pytest.mark.torch
def test_another_backend_is_trained_alike():
    code = """
        import os
        os.environ["KERAS_BACKEND"] = "torch"
        import numpy as np, keras, plimsoll, models
        assert keras.backend.backend() == "torch"
        for make in (models.unet, models.multi_input):
            (theirs, x, y), (ours, _, _) = make(64), make(64)
            ours.set_weights(theirs.get_weights())
            how = dict(batch_size=8, shuffle=False, verbose=0)
            expected, found = theirs.fit(x, y, **how), plimsoll.fit(ours, x, y, memory="256MiB", **how)
            np.testing.assert_allclose(found.history["loss"], expected.history["loss"], atol=1e-4)
            for a, b in zip(theirs.optimizer.variables, ours.optimizer.variables):
                np.testing.assert_allclose(*(keras.ops.convert_to_numpy(v) for v in (a, b)), atol=1e-3)
        print("alike")
    """
    assert checked(code).endswith("alike\n")
