"""Makes fixtures/tensors.safetensors with the safetensors package and fixtures/events.tfevents with TensorFlow.

Run in this folder; needs numpy, ml_dtypes, safetensors, tensorflow and tensorboard.
"""
import glob
import os
import shutil
import tempfile

import ml_dtypes
import numpy as np
import safetensors.numpy
import tensorflow as tf

TYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.int16, np.int8,
         np.uint64, np.uint32, np.uint16, np.uint8, np.bool_]


def tensors():
    # Element i of every tensor is i - 1 where the type has a sign, i otherwise.
    made = {}
    for t in TYPES:
        signed = np.dtype(t).kind in "fiV"
        made[np.dtype(t).name] = (np.arange(6) - (1 if signed else 0)).astype(t).reshape(2, 3)
    made["scalar"] = np.array(2.5, np.float32)
    made["none"] = np.zeros((0, 4), np.float32)
    safetensors.numpy.save_file(made, "fixtures/tensors.safetensors", metadata={"made by": "safetensors"})


def events():
    folder = tempfile.mkdtemp()
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default():
        tf.summary.scalar("loss", 0.5, step=1)
        tf.summary.scalar("loss", 0.25, step=300)
        tf.summary.scalar("memory/peak bytes", 6442450944.0, step=0)
        tf.summary.text("plan", "**recompute** 3 blocks", step=2)
        tf.summary.histogram("weights", [0.0, 0.25, 0.5, 1.0], step=7, buckets=2)
    writer.close()
    (path,) = glob.glob(folder + "/*.v2")
    shutil.copy(path, "fixtures/events.tfevents")


os.makedirs("fixtures", exist_ok=True)
tensors()
events()
