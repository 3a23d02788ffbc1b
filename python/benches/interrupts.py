"""Sends Ctrl-C at ten random moments of plimsoll.fit: each must end in KeyboardInterrupt after a whole step, with its weights in the model and a
checkpoint in the folder, and the interpreter must be able to fit again.

usage: python python/benches/interrupts.py [--times 10] [--seed 0] [--longest 3.0]

Needs Keras. The moments are seconds after the call, of planning too; the signal comes from a thread that waits for one. Ends with status 1 where one
time is not as it should be.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=3.0)
    asked = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import keras
    import numpy as np
    from keras import layers

    import plimsoll

    # A shell that starts this in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(512, 16, 16, 3)).astype("float32"), rng.integers(0, 4, 512)

    def made():
        keras.utils.set_random_seed(1)
        layer = lambda: layers.Conv2D(16, 3, padding="same", activation="relu")
        model = keras.Sequential([keras.Input((16, 16, 3)), layer(), layers.BatchNormalization(), layer(), layers.GlobalAveragePooling2D(), layers.Dense(4, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    how = dict(batch_size=16, shuffle=False, verbose=0, memory="300MiB")
    moments, failed = random.Random(asked.seed), []
    for turn in range(asked.times):
        model, delay, wrong = made(), moments.uniform(0.0, asked.longest), []
        start = [w.copy() for w in model.get_weights()]
        with tempfile.TemporaryDirectory(prefix="plimsoll-interrupts-") as folder:
            timer = threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT))
            timer.start()
            began, caught = time.monotonic(), None
            try:
                plimsoll.fit(model, x, y, epochs=10**6, checkpoints=folder, **how)
                wrong.append("it was not interrupted")
            except KeyboardInterrupt:
                caught = time.monotonic()
            timer.join()
            steps = int(np.asarray(model.optimizer.iterations))
            kept = [name for name in os.listdir(folder) if not name.startswith(".")]
            weights = model.get_weights()
            if not all(np.isfinite(w).all() for w in weights):
                wrong.append("weights are not finite")
            if steps and not kept:
                wrong.append("there is no checkpoint")
            # The same number of steps without Ctrl-C gives the same model: it ended after a whole step.
            if 0 < steps <= 640:
                again, (epochs, rest) = made(), divmod(steps, 32)
                if epochs:
                    plimsoll.fit(again, x, y, epochs=epochs, **how)
                if rest:
                    plimsoll.fit(again, x[: rest * 16], y[: rest * 16], **how)
                if not all(np.allclose(a, b, atol=1e-4) for a, b in zip(weights, again.get_weights())):
                    wrong.append(f"the weights are not those after {steps} steps")
            elif steps == 0 and any((a != b).any() for a, b in zip(weights, start)):
                wrong.append("no step was done, and the weights are others")
            if steps and all((a == b).all() for a, b in zip(weights, start)):
                wrong.append("steps were done, and the weights are the old ones")
        plimsoll.fit(model, x, y, **how)
        if int(np.asarray(model.optimizer.iterations)) != steps + 32:
            wrong.append("it could not go on")
        late = "" if caught is None else f", {max(caught - began - delay, 0) * 1e3:5.0f} ms later"
        print(f"Ctrl-C after {delay:5.3f} s: {steps:4} steps done{late}; {'; '.join(wrong) or 'ok'}", flush=True)
        failed += wrong
    print(f"failed: {len(failed)} things were wrong" if failed else f"passed: {asked.times} times interrupted after a step, and alive")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
