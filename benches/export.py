#!/usr/bin/env python3
"""The whole table of exports, in one go: every model of the zoo and six Keras applications, in float32 and int8, beside LiteRT and onnxruntime.

    cargo build --release && cargo build --release -p plimsoll-lite --example measure
    OMP_NUM_THREADS=1 python benches/export.py [--out table.md] [--files FOLDER] [--seconds 1] [--least 0.8] [MODEL ...]
    OMP_NUM_THREADS=1 python benches/export.py --again table.md --files FOLDER [--out timed.md] [MODEL ...]

A model of the zoo takes one step of training, so that there is a run to export; an application has random weights and settled statistics.
Each is exported as .tflite and .onnx, and the same Keras model is converted by TensorFlow (in a process of its own). For each file:

- bytes, beside those of TensorFlow's file (wanted: no more);
- arena, beside the span of what LiteRT's own kernels (no delegate) keep in theirs (wanted: no more);
- difference from LiteRT on the same file and input: in float32 of the largest number (wanted: 1e-5), in int8 the share of outputs that are more
  than a quantum off (wanted: a hundredth), from its own kernels and from XNNPACK, whichever is nearer; in brackets how far those two are apart;
- difference of the .onnx in onnxruntime from the .tflite here (wanted: 1e-4);
- milliseconds of one thread, best of runs that are taken in turn: plimsoll-lite with packed weights, LiteRT with XNNPACK, onnxruntime (int8: the .onnx
  as onnxruntime's own tool quantizes it), and the better of the others' over ours (wanted: --least).

With --files, what is made stays in that folder, one a model. --again measures the times of a table's rows with those files once more and writes the rows with
them: files, arenas and differences do not depend on what else a machine does, times do.

What misses its mark is marked with a star; the status is the number of rows with one. Needs tensorflow, ai-edge-litert, onnx, onnxruntime.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ROOT / "crates" / "lite" / "tests"
RELEASE = ROOT / "target" / "release"
sys.path.insert(0, str(TESTS))

# The shape of a sample, or the length of a text.
ZOO = {
    "mlp": (28, 28, 1), "cnn": (32, 32, 3), "resnet18": (32, 32, 3), "resnet50": (224, 224, 3), "mobilenet": (224, 224, 3), "unet": (128, 128, 3),
    "gpt": 128, "gpt2": 1024, "vit": (224, 224, 3), "lstm": 64,
}
APPLICATIONS = ["MobileNet-128", "MobileNetV2-96", "MobileNetV2-96-0.35", "MobileNetV3Small-96", "EfficientNetB0-96", "ResNet50-96"]
SAMPLES, ROUNDS = 8, 3
dice = np.random.default_rng(1)


def command(*words):
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(" ".join((ran.stderr.strip() or "it ended without a word").splitlines()[-1].split())[:200])
    return ran.stdout


def sources(name, folder, plimsoll):
    """What is exported, the same as a Keras file, and the data that ranges are found on."""
    keras, data = folder / "m.keras", folder / "data.npz"
    if name not in ZOO:
        command(sys.executable, __file__, "--application", name, keras, data)
        return keras, keras, data
    shape, run = ZOO[name], folder / "run"
    if isinstance(shape, int):
        data = folder / "data.txt"
        # As many letters as all lines of code have.
        data.write_bytes(bytes(dice.integers(32, 127, 3 * shape + 1, dtype=np.uint8)))
    else:
        labels = dice.integers(0, 3, (SAMPLES, *shape[:2])) if name == "unet" else np.arange(SAMPLES)
        np.savez(data, x=dice.uniform(0, 1, (SAMPLES, *shape)).astype(np.float32), y=labels)
    command(plimsoll, "train", name, "--data", data, "--batch", 1 if isinstance(shape, int) else 2, "--epochs", 1, "--lr", 1e-5, "--out", run)
    command(plimsoll, "convert", run, "--out", keras)
    return run, keras, data


def tensorflow(arguments):
    """What needs TensorFlow: makes an application, or converts a Keras file."""
    import applications

    what, name, *paths = arguments
    if what == "--application":
        model = applications.settled(applications.MODELS[name]())
        model.save(paths[0])
        np.savez(paths[1], x=dice.uniform(0, 1, (SAMPLES, *model.input_shape[1:])).astype(np.float32), y=np.arange(SAMPLES))
        return
    keras = applications.tf.keras.models.load_model(name, compile=False)
    if paths[0].endswith(".npz"):
        samples = [x[None] for x in np.load(paths[0])["x"].reshape(SAMPLES, *keras.input_shape[1:])]
    else:
        samples = [dice.integers(0, 50, (1, keras.input_shape[1])).astype(np.int32) for _ in range(SAMPLES)]
    for way, path in zip(("f32", "int8"), paths[1:]):
        try:
            made = applications.convert(keras, way, samples)
        except Exception as error:
            print(f"TensorFlow does not convert to {way}: {' '.join(str(error).split())[:200]}", file=sys.stderr)
            continue
        pathlib.Path(path).write_bytes(made)


def inputs(details):
    values = []
    for detail in details:
        if detail["dtype"] == np.int8:
            value = dice.integers(-128, 128, detail["shape"])
        elif np.issubdtype(detail["dtype"], np.integer):
            value = dice.integers(0, 50, detail["shape"])
        else:
            value = dice.uniform(0, 1, detail["shape"])
        values.append(value.astype(detail["dtype"]))
    return values


def litert(path, values, plain):
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if plain else OpResolverType.AUTO
    interpreter = Interpreter(str(path), num_threads=1, experimental_op_resolver_type=kind)
    interpreter.allocate_tensors()
    values = values or inputs(interpreter.get_input_details())
    for detail, value in zip(interpreter.get_input_details(), values):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return interpreter, values, interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def onnx(path, values, quantized):
    """A session and its feed; of a file that onnxruntime's own tool has quantized first, if that is asked for."""
    import onnxruntime

    if quantized:
        from onnxruntime import quantization

        class Reader(quantization.CalibrationDataReader):
            def __init__(self):
                self.left = iter([feed] * 2)

            def get_next(self):
                return next(self.left, None)

        feed = {port.name: value for port, value in zip(onnxruntime.InferenceSession(str(path)).get_inputs(), values)}
        made = path.with_suffix(".int8.onnx")
        if not made.exists():
            quantization.quantize_static(str(path), str(made), Reader(), per_channel=True, weight_type=quantization.QuantType.QInt8)
        path = made
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(double)": np.float64}
    feed = {port.name: value.astype(kinds[port.type]) for port, value in zip(session.get_inputs(), values)}
    return session, feed


def timed(run, seconds):
    """The best of runs for so long, in milliseconds."""
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() > end:
            return best * 1e3


def far(found, wanted):
    return float(np.abs(found.astype(np.float64) - wanted).max() / max(1.0, np.abs(wanted).max()))


def beyond(found, wanted):
    return float((np.abs(found.astype(int) - wanted.astype(int)) > 1).mean())


class Row:
    """A line of the table, with what misses its mark."""

    def __init__(self, *cells):
        self.cells, self.bad = [*cells], any(cell.endswith("*") for cell in cells)

    def put(self, text, good=True):
        self.cells.append(f"{text}{'' if good else ' *'}")
        self.bad |= not good

    def text(self):
        return "| " + " | ".join(self.cells) + " |"


def ours(args, path, wanted, runs, *more):
    """What plimsoll-lite says of a file on the input beside it, and its first result."""
    out = path.with_suffix(".out")
    told = json.loads(command(args.measure, path, path.with_suffix(".in"), out, runs, *more))
    return told, np.fromfile(out, wanted.dtype)[: wanted.size].reshape(wanted.shape)


def row(args, name, way, folder, source, calibrate, theirs):
    line = Row(f"{name} {way}")
    path = folder / f"{way}.tflite"
    more = ["--quantize", "int8", "--calibrate", calibrate, "--int8-ports"] if way == "int8" else []
    try:
        command(args.plimsoll, "export", source, "--to", path, *more)
    except RuntimeError as error:
        line.put(str(error), False)
        return line
    own = path.stat().st_size
    line.put(own, not theirs.exists() or own <= theirs.stat().st_size)
    line.put(theirs.stat().st_size if theirs.exists() else "none")
    plain, values, wanted = litert(path, None, True)
    quick, _, delegated = litert(path, values, False)
    path.with_suffix(".in").write_bytes(b"".join(value.tobytes() for value in values))

    from litert import arena

    (told, plainly), (_, packed), span = ours(args, path, wanted, 1), ours(args, path, wanted, 1, "packed"), arena(plain)
    line.put(told["arena"], told["arena"] <= span)
    line.put(span)
    if wanted.dtype == np.int8:
        worst = min(max(beyond(plainly, each), beyond(packed, each)) for each in (wanted, delegated))
        line.put(f"{worst:.2%} ({beyond(delegated, wanted):.2%})", worst <= 0.01 and wanted.std() > 0)
    else:
        worst = max(far(plainly, wanted), far(packed, wanted))
        line.put(f"{worst:.1e}", worst <= (1e-5 if way == "f32" else 0.05) and wanted.std() > 0)
    session = None
    if way == "f32":
        command(args.plimsoll, "export", source, "--to", folder / "m.onnx")
        for at, value in enumerate(values):
            np.save(folder / f"{at}.npy", value)
    try:
        session, feed = peer(folder, way)
        if way == "f32":
            apart = far(session.run(None, feed)[0].reshape(packed.shape), packed)
            line.put(f"{apart:.1e}", apart <= 1e-4)
        else:
            line.put("")
    except Exception as error:
        line.put(" ".join(str(error).split())[:60], way != "f32")
    del plain
    times(args, line, path, wanted, quick, session and (lambda: session.run(None, feed)))
    return line


def peer(folder, way):
    """onnxruntime's session of a model and what it is fed: the numbers that the file in float32 was given."""
    values = [np.load(path) for path in sorted(folder.glob("[0-9].npy"))]
    return onnx(folder / "m.onnx", values, way == "int8")


def times(args, line, path, wanted, litert_runs, onnx_runs):
    best = [float("inf")] * 3
    for _ in range(ROUNDS):
        best[1] = min(best[1], timed(litert_runs.invoke, args.seconds))
        runs = max(2, min(5000, round(1e3 * args.seconds / best[1])))
        best[0] = min(best[0], ours(args, path, wanted, runs, "packed")[0]["milliseconds"])
        if onnx_runs:
            best[2] = min(best[2], timed(onnx_runs, args.seconds))
    for milliseconds in best:
        line.put(f"{milliseconds:.3f}" if milliseconds < float("inf") else "none")
    ratio = min(best[1:]) / best[0]
    line.put(f"{ratio:.2f}", ratio >= args.least)


def again(args, cells):
    """A row with its times measured now, or as it was where it has none."""
    if len(cells) < COLUMNS:
        return Row(*cells)
    name, way = cells[0].rsplit(" ", 1)
    folder = args.files / name
    path = folder / f"{way}.tflite"
    line = Row(*cells[: COLUMNS - 4])
    given = path.with_suffix(".in").read_bytes()
    from ai_edge_litert.interpreter import Interpreter

    values, at = [], 0
    for detail in Interpreter(str(path)).get_input_details():
        count = int(np.prod(detail["shape"]))
        values.append(np.frombuffer(given, detail["dtype"], count, at).reshape(detail["shape"]))
        at += values[-1].nbytes
    quick, _, wanted = litert(path, values, False)
    runs = None
    if cells[COLUMNS - 2] != "none":
        session, feed = peer(folder, way)
        runs = lambda: session.run(None, feed)
    times(args, line, path, wanted, quick, runs)
    return line


COLUMNS = 11
HEAD = """| model | bytes | TensorFlow's | arena | LiteRT's | from LiteRT | onnx | ours ms | LiteRT | onnxrt | ratio |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def kept(args):
    """The rows of a table whose times are asked for again, cell by cell."""
    lines = args.again.read_text().splitlines() if args.again else []
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [cells for cells in rows if cells[0] not in ("model", "---") and (not args.models or cells[0].rsplit(" ", 1)[0] in args.models)]


@contextlib.contextmanager
def folder_of(args, name):
    """A folder for a model's files, without what is not asked for again once the model is done."""
    if not args.files:
        with tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder)
        return
    folder = args.files / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder / "run", ignore_errors=True)
    for name in ("m.keras", "data.npz", "data.txt", "theirs-f32.tflite", "theirs-int8.tflite"):
        (folder / name).unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", default=str(RELEASE / "plimsoll"))
    parser.add_argument("--measure", default=str(RELEASE / "examples" / "measure"))
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--least", type=float, default=0.8)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--files", type=pathlib.Path)
    parser.add_argument("--again", type=pathlib.Path)
    parser.add_argument("models", nargs="*")
    args = parser.parse_args()
    if args.again and not args.files:
        parser.error("--again needs --files, where the files of the table are")
    bad = 0

    def say(text):
        print(text, flush=True)
        if args.out:
            with open(args.out, "a") as file:
                file.write(text + "\n")

    say(HEAD)
    for cells in kept(args):
        line = again(args, cells)
        say(line.text())
        bad += line.bad
    for name in [] if args.again else args.models or [*ZOO, *APPLICATIONS]:
        with folder_of(args, name) as folder:
            theirs = {way: folder / f"theirs-{way}.tflite" for way in ("f32", "int8")}
            try:
                source, keras, data = sources(name, folder, args.plimsoll)
                command(sys.executable, __file__, "--convert", keras, data, *theirs.values())
            except RuntimeError as error:
                say(f"| {name} | {error} * |")
                bad += 1
                continue
            for way in theirs:
                line = row(args, name, way, folder, source, data, theirs[way])
                say(line.text())
                bad += line.bad
    sys.exit(bad)


if __name__ == "__main__":
    if sys.argv[1:2] in (["--application"], ["--convert"]):
        tensorflow(sys.argv[1:])
    else:
        main()
