"""What LiteRT's interpreter takes of memory, as its own tensors say."""

import numpy as np


def arena(interpreter):
    """The span of what LiteRT's own kernels (no delegate) keep in their arena: tensors that are computed, and scratch of kernels."""
    spans = []
    for detail in interpreter.get_tensor_details():
        try:
            array = interpreter.tensor(detail["index"])()
        except ValueError:
            continue
        if isinstance(array, np.ndarray):  # A single number comes as a copy.
            spans.append((array.ctypes.data, array.ctypes.data + array.nbytes))
    # The block that the first input lies in: others hold the file's constants and what is computed once.
    first = interpreter.tensor(interpreter.get_input_details()[0]["index"])().ctypes.data
    spans.sort()
    blocks = [list(spans[0])]
    for start, end in spans[1:]:
        if start <= blocks[-1][1] + 4096:
            blocks[-1][1] = max(blocks[-1][1], end)
        else:
            blocks.append([start, end])
    return next(end - start for start, end in blocks if start <= first < end)
