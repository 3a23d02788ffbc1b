"""Writes onnx's own node tests as folders that the test program `node_tests` reads.

    python node_tests.py FOLDER
    PLIMSOLL_ONNX_NODE_TESTS=FOLDER cargo test -p plimsoll-onnx --test node_tests -- --nocapture

Needs the packages onnx and numpy. A folder holds `model.onnx`, `tolerance` (rtol, atol) and, for each set of data,
`test_data_set_0/input_0.pb` and so on. What is no tensor (sequences, maps, optionals) is written as an empty file.
"""

import os
import sys

import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases


def tensor(value, info):
    if not info.type.HasField("tensor_type"):
        return b""
    if isinstance(value, onnx.TensorProto):
        return value.SerializeToString()
    return numpy_helper.from_array(value, info.name).SerializeToString()


def main(folder):
    cases = collect_testcases(None)
    for case in cases:
        own = os.path.join(folder, case.name)
        os.makedirs(own, exist_ok=True)
        with open(os.path.join(own, "model.onnx"), "wb") as file:
            file.write(case.model.SerializeToString())
        with open(os.path.join(own, "tolerance"), "w") as file:
            file.write(f"{case.rtol} {case.atol}\n")
        for i, (inputs, outputs) in enumerate(case.data_sets):
            data = os.path.join(own, f"test_data_set_{i}")
            os.makedirs(data, exist_ok=True)
            graph = case.model.graph
            for kind, values, infos in (("input", inputs, graph.input), ("output", outputs, graph.output)):
                for j, (value, info) in enumerate(zip(values, infos)):
                    with open(os.path.join(data, f"{kind}_{j}.pb"), "wb") as file:
                        file.write(tensor(value, info))
    print(f"{len(cases)} tests in {folder}")


if __name__ == "__main__":
    main(sys.argv[1])
