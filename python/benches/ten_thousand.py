"""Calls plimsoll.fit ten thousand times in one process and looks at the resident set: it must stay flat to 1 MiB after a warm-up.

usage: python python/benches/ten_thousand.py [--calls 10000] [--warm-up 3000] [--most 1.0] [--where]

What grows in the warm-up, by 2 MiB, is Python's own heap of small objects, which comes in pieces of 1 MiB and is never given back in part, and the heaps of threads that
read ahead, which the system hands from one thread to the next until each has met its ceiling; --where says which mappings grew after it.

Needs Keras. Prints the resident set ten times on the way, and what of it is Python's own objects. Ends with status 1 where memory grew.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mappings() -> dict[str, tuple[int, str]]:
    """What is resident of each mapping of this process, in KiB, by where it begins; with what it is."""
    found, begin, what = {}, "", ""
    with open("/proc/self/smaps", encoding="ascii") as smaps:
        for line in smaps:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                begin, what = words[0].partition("-")[0], f"{words[0]} {words[-1] if len(words) > 5 else ''}"
            elif words[0] == "Rss:":
                found[begin] = (int(words[1]), what)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--warm-up", type=int, default=3000)
    parser.add_argument("--most", type=float, default=1.0, help="MiB")
    parser.add_argument("--where", action="store_true", help="show the mappings that grew")
    asked = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import keras
    import numpy as np
    from keras import layers

    import plimsoll

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 8)).astype("float32"), rng.integers(0, 3, 64)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="relu"), layers.BatchNormalization(), layers.Dense(3, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    began, first, most = time.monotonic(), 0, 0
    before: dict[str, tuple[int, str]] = {}
    for call in range(1, asked.calls + 1):
        plimsoll.fit(model, x, y, batch_size=16, verbose=0, memory="200MiB", seed=call)
        if call == asked.warm_up:
            gc.collect()
            first = most = resident()
            before = mappings() if asked.where else {}
        elif call > asked.warm_up:
            most = max(most, resident())
        if call % max(asked.calls // 10, 1) == 0:
            gc.collect()
            print(f"{call:6} calls  {resident() / 2**20:8.2f} MiB resident  {len(gc.get_objects()):7} objects  {time.monotonic() - began:6.0f} s", flush=True)
    gc.collect()
    grown = (resident() - first) / 2**20
    print(f"{grown:+.2f} MiB from call {asked.warm_up} to call {asked.calls}, at most {(most - first) / 2**20:+.2f} MiB on the way; {asked.most} MiB is allowed")
    for begin, (now, what) in mappings().items() if asked.where else ():
        if abs(now - before.get(begin, (0, ""))[0]) >= 64:
            print(f"  {now - before.get(begin, (0, ''))[0]:+6} KiB in {what}")
    steps = int(np.asarray(model.optimizer.iterations))
    if grown > asked.most or steps != 4 * asked.calls:
        print(f"FAILED: {'memory grew' if grown > asked.most else f'{steps} steps were done'}")
        return 1
    print("passed: memory is flat")
    return 0


if __name__ == "__main__":
    sys.exit(main())
