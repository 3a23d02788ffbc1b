"""Holds exported models against LiteRT. Needs ai-edge-litert and numpy.

    PLIMSOLL_TFLITE_EXPORTS=FOLDER cargo test -p plimsoll-tflite --test export
    python check_exports.py FOLDER

Beside every file stand its input, what the model gives for it, and what the file gives by our reading of it. A file in f32 must give what
the model gives within 1e-5; one that is quantized must give what we read it as: within 1e-3 with f16 weights, and for int8 within one quantum
for 99 of 100 numbers. The quantum is the scale that the file has for the last tensor of whole numbers before the output.
"""

import glob
import os
import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType


def arrays(path):
    found = {"in": [], "out": [], "file": []}
    for line in open(path):
        kind, _, shape, *elements = line.split()
        array = np.array([float(x) for x in elements]).reshape([int(n) for n in shape.split(",")])
        found[kind].append(array)
    return found


def held(array, detail):
    """Numbers as an input takes them."""
    scale, zero = detail["quantization"]
    if detail["dtype"] == np.int8:
        return np.clip(np.round(array / scale) + zero, -128, 127).astype(np.int8)
    return array.astype(detail["dtype"])


def real(array, detail):
    scale, zero = detail["quantization"]
    return (array.astype(np.float64) - zero) * scale if detail["dtype"] == np.int8 else array


def quantum(interpreter, detail):
    """The scale of an output, or of the bytes that it was made from."""
    details = {d["index"]: d for d in interpreter.get_tensor_details()}
    makers = {out: op for op in interpreter._get_ops_details() for out in op["outputs"]}
    at = detail["index"]
    while details[at]["dtype"] != np.int8:
        at = makers[at]["inputs"][0]
    return details[at]["quantization"][0]


bad = 0
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.tflite"))):
    name = os.path.basename(path)[:-7]
    kind = name.rsplit("-", 1)[-1]
    known = arrays(path[:-7] + ".txt")
    interpreter = Interpreter(path, num_threads=1)
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), known["in"]):
        interpreter.set_tensor(detail["index"], held(array, detail))
    interpreter.invoke()
    details = interpreter.get_output_details()
    found = [real(interpreter.get_tensor(d["index"]), d) for d in details]

    def far(wanted):
        return max(float(np.abs(a - b).max() / max(1.0, np.abs(b).max())) for a, b in zip(found, wanted))

    to_model, to_file = far(known["out"]), far(known["file"])
    limit = {"f32": to_model < 1e-5, "f16": to_file < 1e-3, "dynamic": to_file < 5e-2}.get(kind)
    if limit is None:
        plain = Interpreter(path, num_threads=1, experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
        quanta = [quantum(plain, d) for d in plain.get_output_details()]
        steps = [np.abs(a - b) / q for a, b, q in zip(found, known["file"], quanta)]
        share = min(float((s <= 1.01).mean()) for s in steps)
        limit = share >= 0.99
        print(f"{name:24} {100 * share:.1f} % within a quantum, the most {max(float(s.max()) for s in steps):.2f}")
    print(f"{name:24} {os.path.getsize(path):9} bytes, from the model {to_model:.2e}, from our reading {to_file:.2e}"
          f"{'' if limit else '  <-- WRONG'}")
    bad += not limit
sys.exit(bad)
