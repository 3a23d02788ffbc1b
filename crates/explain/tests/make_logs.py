"""Makes the fixtures: real logs of TensorFlow on the CPU, and PyTorch snapshots in PyTorch's own structure.

    python make_logs.py            all of them (needs tensorflow; three minutes, as every refusal waits ten seconds)
    python make_logs.py snapshots  only what needs nothing but Python: snapshots, and a dump in TensorFlow 1.x's form

TensorFlow's CPU allocator is the card's BFC allocator when TF_CPU_ALLOCATOR_USE_BFC is set, and prints the same dump. Each
scenario runs in a process of its own; what it writes is kept as it is, but for the machine's paths, which are shortened.
The messages of PyTorch and JAX in fixtures/*.txt are public wordings with figures of our own, written by hand.
"""

import json
import os
import pickle
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIXTURES = HERE / "fixtures"
MIB = 1 << 20


# --- TensorFlow: one function a log ---------------------------------------------------------------------------------------


def capacity():
    """A convolution's result and its rectification do not fit together: 8 + 32 + 32 MiB in 64."""
    import tensorflow as tf

    images = tf.ones([32, 64, 64, 16])
    kernel = tf.ones([3, 3, 16, 64])
    convolved = tf.nn.conv2d(images, kernel, 1, "SAME")
    return tf.nn.relu(convolved)


def holes():
    """Every other one of fifteen blocks is let go; half is free, and none of it in one piece of 8 MiB."""
    import tensorflow as tf

    block = tf.ones([1024, 1024])
    held = [block * float(i) for i in range(14)]
    del block
    held = held[1::2]
    return tf.ones([2048, 1024]) * 2.0, held


def growth():
    """A loop that goes on after a refusal, and keeps a result of every step."""
    import tensorflow as tf

    kept = []
    for step in range(60):
        kept.append(tf.ones([256, 512]) + float(step))
        if step % 15 == 14:
            try:
                tf.ones([14, 1024, 512])
            except tf.errors.ResourceExhaustedError:
                print(f"step {step + 1}: skipped a batch", file=sys.stderr)
        else:
            print(f"step {step + 1}: loss 0.5", file=sys.stderr)


def kept():
    """The same step over and over; the list that keeps its predictions ends the run."""
    import tensorflow as tf

    weights = tf.ones([512, 512])
    predictions = []
    for step in range(100):
        predictions.append(tf.matmul(tf.ones([256, 512]), weights))
        print(f"step {step + 1}/100 loss {1.0 / (step + 1):.4f}", file=sys.stderr)


def fit():
    """Keras, compiled: the refusal arrives as a graph execution error."""
    import keras
    import numpy as np

    model = keras.Sequential(
        [
            keras.layers.Input([64, 64, 3]),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="wide"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="wider"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2),
        ]
    )
    model.compile("sgd", "mse")
    model.fit(np.zeros([64, 64, 64, 3], "float32"), np.zeros([64, 2], "float32"), batch_size=64, verbose=2)


SCENARIOS = {"capacity": 64, "holes": 64, "growth": 32, "kept": 16, "fit": 64}


def make_log(name, limit):
    environment = dict(
        os.environ,
        CUDA_VISIBLE_DEVICES="",
        TF_CPP_MIN_LOG_LEVEL="0",
        TF_CPU_ALLOCATOR_USE_BFC="1",
        TF_CPU_BFC_MEM_LIMIT_IN_MB=str(limit),
    )
    ran = subprocess.run(
        [sys.executable, Path(__file__).name, "--scenario", name],
        cwd=HERE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    text = ran.stdout.decode("utf-8", "replace")
    for long, short in [(sysconfig.get_paths()["purelib"], "site-packages"), (str(HERE) + os.sep, "")]:
        text = text.replace(long, short)
    (FIXTURES / f"tf_{name}.log").write_text(text)
    print(name, len(text), "bytes", text.count("ran out of memory trying"), "dumps")


def make_old():
    """A dump as TensorFlow 1.x wrote it: raw bytes, no regions. Public wording, figures of our own."""
    lines = []

    def say(line, text):
        lines.append(f"2018-09-27 22:58:41.99{len(lines):04}: I tensorflow/core/common_runtime/bfc_allocator.cc:{line}] {text}")

    lines.append("totalMemory: 8.00GiB freeMemory: 7.90GiB")
    lines.append(
        "2018-09-27 22:58:41.990000: W tensorflow/core/common_runtime/bfc_allocator.cc:267] Allocator (GPU_0_bfc) ran out of memory "
        "trying to allocate 1.00GiB.  Current allocation summary follows."
    )
    say(627, "Bin (134217728): \tTotal Chunks: 12, Chunks in use: 0 2.34GiB allocated for chunks. 0B client-requested in use in bin.")
    say(627, "Bin (268435456): \tTotal Chunks: 12, Chunks in use: 12 3.52GiB allocated for chunks. 3.50GiB client-requested in use in bin.")
    say(643, "Bin for 1.00GiB was 256.00MiB, Chunk State: ")
    for i in range(12):
        at = 0x7F9400000000 + i * 500 * MIB
        say(645, f"Chunk at {at:#x} of size {300 * MIB}")
        say(645, f"Free  at {at + 300 * MIB:#x} of size {200 * MIB}")
    say(660, "     Summary of in-use Chunks by size: ")
    say(663, f"12 Chunks of size {300 * MIB} totalling 3.52GiB")
    say(667, "Sum Total of in-use chunks: 3.52GiB")
    say(669, "Stats: ")
    figures = [("Limit", 6000 * MIB), ("InUse", 3600 * MIB), ("MaxInUse", 5000 * MIB), ("NumAllocs", 4242), ("MaxAllocSize", 300 * MIB)]
    lines += [f"{name + ':':<17} {value:>20}" for name, value in figures] + [""]
    lines.append(
        "2018-09-27 22:58:42.000100: W tensorflow/core/framework/op_kernel.cc:1318] OP_REQUIRES failed at conv_ops.cc:673 : Resource "
        "exhausted: OOM when allocating tensor with shape[64,256,128,128] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
    )
    (FIXTURES / "tf_1_old.log").write_text("\n".join(lines) + "\n")


# --- PyTorch: what torch.cuda.memory._snapshot() returns ------------------------------------------------------------------


def frames(line, name):
    """Innermost first, as PyTorch records them."""
    return [
        {"filename": "/site-packages/torch/nn/functional.py", "line": 1913, "name": "linear"},
        {"filename": "train.py", "line": line, "name": name},
        {"filename": "train.py", "line": 80, "name": "main"},
    ]


def segment(address, blocks, kind="large"):
    """A segment from (bytes, state, frames) of its blocks."""
    made, at = [], address
    for size, state, where in blocks:
        made.append({"address": at, "size": size, "requested_size": size if state != "inactive" else 0, "state": state, "frames": where})
        at += size
    held = sum(b["size"] for b in made if b["state"] == "active_allocated")
    return {
        "device": 0,
        "address": address,
        "total_size": at - address,
        "allocated_size": held,
        "active_size": held,
        "requested_size": held,
        "stream": 0,
        "segment_type": kind,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": made,
    }


def snapshot(segments, trace):
    return {
        "segments": segments,
        "device_traces": [trace],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False},
        "external_annotations": [],
    }


def fragmented():
    """Twenty segments of 20 MiB, half of each in use; a request of 64 MiB with 40 MiB left on the card."""
    base = 0x7F0000000000
    where = frames(42, "forward")
    segments = [
        segment(base + i * 32 * MIB, [(6 * MIB, "active_allocated", where), (10 * MIB, "inactive", []), (4 * MIB, "active_allocated", where)])
        for i in range(20)
    ]
    trace = [{"action": "oom", "device_free": 40 * MIB, "size": 64 * MIB, "stream": 0, "time_us": 1000, "frames": frames(57, "attention")}]
    return snapshot(segments, trace)


def leaking():
    """Sixty-four steps: each allocates 8 MiB and frees it, and keeps 2 MiB in a list."""
    base, trace, blocks = 0x7F0000000000, [], []
    for step in range(64):
        work, keep = base + 512 * MIB, base + step * 2 * MIB
        common = {"stream": 0, "time_us": 1000 * step}
        trace += [
            {"action": "alloc", "addr": work, "size": 8 * MIB, "frames": frames(31, "forward"), **common},
            {"action": "alloc", "addr": keep, "size": 2 * MIB, "frames": frames(35, "remember"), **common},
            {"action": "free_requested", "addr": work, "size": 8 * MIB, "frames": [], **common},
            {"action": "free_completed", "addr": work, "size": 8 * MIB, "frames": [], **common},
        ]
        blocks.append((2 * MIB, "active_allocated", frames(35, "remember")))
    trace.append({"action": "oom", "device_free": 1 * MIB, "size": 8 * MIB, "stream": 0, "time_us": 64000, "frames": frames(31, "forward")})
    return snapshot([segment(base, blocks)], trace)


class Hostile:
    """Unpickled by Python, it would print a line; an attacker would do more."""

    def __reduce__(self):
        return (print, ("this pickle ran code",))


def make_snapshots():
    for name, made in [("fragmented", fragmented()), ("leaking", leaking())]:
        for protocol in [0, 2, 4, 5] if name == "fragmented" else [4]:
            (FIXTURES / f"torch_{name}.p{protocol}.pickle").write_bytes(pickle.dumps(made, protocol))
    (FIXTURES / "torch_fragmented.json").write_text(json.dumps(fragmented()))
    for protocol in [0, 2, 4]:
        (FIXTURES / f"hostile.p{protocol}.pickle").write_bytes(pickle.dumps({"segments": [Hostile()]}, protocol))
    values = {
        "none": None, "yes": True, "no": False, "small": 7, "minus": -7, "wide": 1 << 40, "huge": 1 << 80, "minus_huge": -(1 << 80),
        "half": 0.5, "text": "straße", "long": "x" * 300, "bytes": b"\x00\xff", "list": [1, [2, [3]]], "tuple": (1, 2, 3, 4),
        "set": {5}, "frozen": frozenset([6]), "array": bytearray(b"ab"), "empty": [[], (), {}, ""],
    }
    values["again"] = values["list"]
    for protocol in range(6):
        chosen = values if protocol >= 4 else {k: v for k, v in values.items() if k not in ("set", "frozen", "array", "bytes")}
        if protocol == 4:
            chosen = {k: v for k, v in values.items() if k != "array"}
        (FIXTURES / f"values.p{protocol}.pickle").write_bytes(pickle.dumps(chosen, protocol))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--scenario"]:
        globals()[sys.argv[2]]()
    else:
        FIXTURES.mkdir(exist_ok=True)
        make_snapshots()
        make_old()
        if sys.argv[1:] != ["snapshots"]:
            for name, limit in SCENARIOS.items():
                make_log(name, limit)
