"""Opens what `cargo test -p plimsoll-formats` wrote with the programs it was written for.

Run in this folder as: python check_written.py TARGET_DIR/tmp; needs numpy, ml_dtypes, safetensors and tensorboard.
"""
import sys

import ml_dtypes
import numpy as np
from safetensors import safe_open
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

folder = sys.argv[1]

with safe_open(folder + "/written.safetensors", "numpy") as file:
    assert file.metadata() == {'quote " and λ': "\n"}, file.metadata()
    names = list(file.keys())
    assert len(names) == 13
    for name in names:
        tensor = file.get_tensor(name)
        assert tensor.dtype == np.dtype(name if name != "bfloat16" else ml_dtypes.bfloat16), (name, tensor.dtype)
        start = -1 if tensor.dtype.kind in "fiV" else 0
        expected = np.arange(start, start + 6).reshape(2, 3)
        assert (tensor == expected.astype(tensor.dtype)).all(), (name, tensor)
print("safetensors: all types read")

events = EventAccumulator(folder + "/events", size_guidance={"tensors": 0})
events.Reload()
values = events.Tensors("loss")
assert [v.step for v in values] == list(range(100))
assert all(np.float32(v.tensor_proto.float_val[0] if v.tensor_proto.float_val else
                      np.frombuffer(v.tensor_proto.tensor_content, "<f4")[0]) == np.float32(1) / np.float32(v.step + 1)
           for v in values)
assert set(events.Tags()["tensors"]) == {"loss", "plan", "weights"}, events.Tags()
assert events.PluginTagToContent("scalars").keys() == {"loss"}
assert events.PluginTagToContent("histograms").keys() == {"weights"}
assert events.Tensors("plan")[0].tensor_proto.string_val == [b"**three** blocks"]
print("tensorboard: 100 scalars, a text and a histogram read")
