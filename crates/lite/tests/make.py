"""Makes the fixtures of this folder: small .tflite models, inputs, and what LiteRT makes of them.

    python crates/lite/tests/make.py [BEGINNING OF A NAME]

A fixture is NAME.tflite and NAME.io: numbers of tensors and lengths as u32, then bytes, inputs first. Results are those of LiteRT's
reference kernels (no delegate). Needs tensorflow.
"""

import os
import struct
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

HERE = Path(__file__).parent / "fixtures"
RESOLVER = tf.lite.experimental.OpResolverType.BUILTIN_REF
OPTIMIZED = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
dice = np.random.default_rng(7)


def weights(*shape, scale=0.5):
    return tf.constant(dice.normal(0, scale, shape).astype(np.float32))


def picture(channels=4, side=8):
    return tf.TensorSpec([1, side, side, channels], tf.float32)


def conv(x, out, size=3, **more):
    more = {"strides": 1, "padding": "SAME", **more}
    return tf.nn.bias_add(tf.nn.conv2d(x, weights(size, size, x.shape[-1], out), **more), weights(out))


def padded(x):
    x = tf.pad(x, [[0, 0], [1, 2], [2, 1], [0, 0]])
    wide = tf.nn.depthwise_conv2d(x, weights(3, 3, 5, 1), [1, 2, 2, 1], "VALID")
    return conv(x, 6, strides=2, padding="VALID") + conv(tf.pad(wide, [[0, 0], [0, 1], [1, 0], [0, 0]]), 6, size=2, padding="VALID")


def net(x):
    x = tf.nn.relu6(conv(x, 8, strides=2))
    y = tf.nn.depthwise_conv2d(x, weights(3, 3, 8, 1), [1, 1, 1, 1], "SAME")
    y = tf.nn.relu(tf.nn.bias_add(y, weights(8)))
    x = x + conv(y, 8, size=1)
    x = tf.reduce_mean(x, [1, 2])
    return tf.nn.softmax(tf.matmul(x, weights(8, 5)) + weights(5))


def cases():
    """Name, function, specs, and the ways to quantize it that are made beside floats."""
    P = picture()
    row = tf.TensorSpec([3, 16], tf.float32)
    cube = tf.TensorSpec([2, 3, 4], tf.float32)
    ALL = ("f16", "dynamic", "int8")
    yield "net", net, [picture(3, 16)], ALL
    yield "conv_same", lambda x: conv(x, 6), [P], ("int8",)
    yield "conv_valid", lambda x: tf.nn.relu(conv(x, 5, strides=2, padding="VALID")), [P], ("int8",)
    yield "conv_dilated", lambda x: conv(x, 5, dilations=2, padding="VALID"), [P], ("int8",)
    yield "conv_groups", lambda x: tf.nn.conv2d(x, weights(3, 3, 2, 6), 1, "SAME"), [P], ()
    yield "conv_wide", lambda x: conv(x, 37, size=1), [picture(19, 5)], ALL
    yield "depthwise", lambda x: tf.nn.depthwise_conv2d(x, weights(3, 3, 4, 1), [1, 2, 2, 1], "SAME"), [P], ("int8",)
    yield "depthwise_more", lambda x: tf.nn.depthwise_conv2d(x, weights(3, 3, 4, 2), [1, 1, 1, 1], "VALID"), [P], ("int8",)
    yield "depthwise_wide", lambda x: tf.nn.depthwise_conv2d(x, weights(5, 5, 35, 1), [1, 1, 1, 1], "SAME"), [picture(35, 6)], ("int8",)
    yield "transpose_conv", lambda x: tf.nn.conv2d_transpose(x, weights(3, 3, 5, 4), [1, 16, 16, 5], 2, "SAME"), [P], ("int8",)
    yield "transpose_conv_valid", lambda x: tf.nn.conv2d_transpose(x, weights(3, 2, 5, 4), [1, 17, 16, 5], 2, "VALID"), [P], ()
    yield "dense", lambda x: tf.nn.relu(tf.matmul(x, weights(16, 9)) + weights(9)), [row], ALL
    yield "matmul", lambda x: tf.matmul(x, x, transpose_b=True), [cube], ("int8",)
    yield "matmul_turned", lambda x: tf.matmul(x, x, transpose_a=True), [cube], ()
    yield "matmul_batch", lambda x: tf.matmul(x, tf.reshape(x, [2, 4, 3])), [cube], ()
    for name, function in {
        "add": lambda x: x + weights(1, 1, 1, 4), "sub": lambda x: weights(1, 8, 8, 4) - x, "mul": lambda x: x * weights(4),
        "maximum": lambda x: tf.maximum(x, weights(1, 8, 8, 4)), "minimum": lambda x: tf.minimum(x, 0.3),
        "self_add": lambda x: x + x * x,
        "relu": tf.nn.relu, "relu6": lambda x: tf.nn.relu6(x * 5.0), "leaky": lambda x: tf.nn.leaky_relu(x, 0.1),
        "logistic": tf.sigmoid, "tanh": tf.tanh, "softmax": tf.nn.softmax, "log_softmax": tf.nn.log_softmax,
        "average_pool": lambda x: tf.nn.avg_pool2d(x, 3, 2, "SAME"), "max_pool": lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"),
        "mean": lambda x: tf.reduce_mean(x, [1, 2]), "sum": lambda x: tf.reduce_sum(x, [1, 3], keepdims=True),
        "reduce_max": lambda x: tf.reduce_max(x, [1, 2]), "transpose": lambda x: tf.transpose(x, [0, 3, 1, 2]),
        "reshape": lambda x: tf.reshape(x, [2, 128]) * 2.0, "concat": lambda x: tf.concat([x, x * 0.5], 3),
        "split": lambda x: tf.split(x, 2, 3), "pad": lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]]),
        "slice": lambda x: tf.slice(x, [0, 2, 0, 1], [1, 3, 8, 2]), "strided": lambda x: x[:, 1:7:2, ::-1, 2],
        "bilinear": lambda x: tf.compat.v1.image.resize_bilinear(x, [13, 5], half_pixel_centers=True),
        "bilinear_aligned": lambda x: tf.compat.v1.image.resize_bilinear(x, [5, 13], align_corners=True),
        "nearest": lambda x: tf.compat.v1.image.resize_nearest_neighbor(x, [13, 5], half_pixel_centers=True),
        "pack": lambda x: tf.stack([x, x + 1.0], 1), "unpack": lambda x: tf.unstack(x, axis=3),
        "hard_swish": lambda x: x * tf.nn.relu6(x + 3.0) * (1 / 6), "space_to_depth": lambda x: tf.nn.space_to_depth(x, 2),
        "depth_to_space": lambda x: tf.nn.depth_to_space(x, 2), "mirror": lambda x: tf.pad(x, [[0, 0], [2, 1], [1, 3], [0, 0]], "REFLECT"),
        "mirror_symmetric": lambda x: tf.pad(x, [[0, 0], [2, 1], [1, 3], [0, 0]], "SYMMETRIC"), "abs": tf.abs,
        "gelu": lambda x: tf.nn.gelu(x, approximate=True), "gelu_erf": lambda x: tf.nn.gelu(x, approximate=False), "elu": tf.nn.elu,
        "prelu": lambda x: tf.keras.ops.relu(x) + weights(1, 1, 4) * tf.keras.ops.minimum(x, 0.0),
        "gather": lambda x: tf.gather(x, [3, 0, 5], axis=2), "argmax": lambda x: tf.argmax(x, 3, output_type=tf.int32),
    }.items():
        yield name, function, [P], ("int8",)
    for name, function in {
        "div": lambda x: x / 3.7 + weights(4) / (x + 9.0), "exp": tf.exp, "log": lambda x: tf.math.log(tf.abs(x)), "sqrt": lambda x: tf.sqrt(tf.abs(x)),
        "rsqrt": lambda x: tf.math.rsqrt(tf.abs(x)), "neg": lambda x: -x, "square": tf.square,
        "squeeze": lambda x: tf.tanh(tf.squeeze(tf.expand_dims(x, 2), 0)), "cast": lambda x: tf.cast(tf.cast(x * 10.0, tf.int32), tf.float32),
        "pad_value": lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]], constant_values=-2.5),
        "shape": lambda x: tf.shape(x), "attention": lambda x: tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x),
    }.items():
        yield name, function, [P], ()
    # Last, so that the numbers of the others stay.
    yield "conv_patches", lambda x: conv(x, 5, size=16, strides=16, padding="VALID"), [picture(3, 32)], ("int8",)
    few = tf.TensorSpec([2, 7, 9, 5], tf.float32)
    yield "conv_padded", padded, [few], ("int8",)
    yield "conv_padded_value", lambda x: conv(tf.pad(x, [[0, 0], [1, 2], [2, 0], [0, 0]], constant_values=-2.5), 6, padding="VALID"), [few], ()
    # Rests of channels, lines and windows: as wide as its stride, wider, narrower, and with a stride of one.
    wide = tf.TensorSpec([2, 3, 7, 21], tf.float32)
    up = lambda x, size, stride, shape, padding: tf.nn.conv2d_transpose(x, weights(*size, 19, 21), [2, *shape, 19], stride, padding)
    yield "transpose_conv_wide", lambda x: up(x, (2, 2), 2, (6, 14), "SAME") + weights(19), [wide], ("int8",)
    yield "transpose_conv_over", lambda x: up(x, (5, 4), (2, 3), (6, 20), "SAME"), [wide], ("int8",)
    yield "transpose_conv_under", lambda x: up(x, (2, 3), (3, 2), (8, 15), "VALID"), [wide], ("int8",)
    yield "transpose_conv_one", lambda x: up(x, (3, 3), 1, (3, 7), "SAME"), [wide], ("int8",)
    # Windows whose columns are read once for several pixels: lines shorter than a strip and with rests, panels of channels with rests.
    for name, size, stride, shape, padding in (
        ("three", 3, 1, (2, 5, 23, 35), "SAME"), ("three_two", 3, 2, (2, 6, 31, 35), "SAME"), ("five", 5, 1, (2, 6, 17, 18), "SAME"),
        ("five_two", 5, 2, (2, 9, 19, 18), "VALID"),
    ):
        channels = shape[-1]
        yield f"depthwise_{name}", lambda x, size=size, stride=stride, channels=channels, padding=padding: tf.nn.bias_add(
            tf.nn.depthwise_conv2d(x, weights(size, size, channels, 1), [1, stride, stride, 1], padding), weights(channels)
        ), [tf.TensorSpec(shape, tf.float32)], ("int8",)


def convert(function, specs, way):
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete])
    if way != "f32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if way == "f16":
        converter.target_spec.supported_types = [tf.float16]
    if way == "int8":
        def data():
            for _ in range(20):
                yield [dice.normal(0, 1, spec.shape).astype(np.float32) for spec in specs]
        converter.representative_dataset = data
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def record(name, model):
    # The reference kernel of SUM writes -1 everywhere for int8, and of ELU there is none.
    resolver = OPTIMIZED if name == "sum.int8" or name.startswith("elu") else RESOLVER
    interpreter = tf.lite.Interpreter(model_content=model, experimental_op_resolver_type=resolver)
    interpreter.allocate_tensors()
    parts = []
    for detail in interpreter.get_input_details():
        shape, kind = detail["shape"], detail["dtype"]
        if kind == np.int8:
            value = dice.integers(-128, 128, shape).astype(np.int8)
        else:
            value = dice.normal(0, 1, shape).astype(kind)
        interpreter.set_tensor(detail["index"], value)
        parts.append(value.tobytes())
    interpreter.invoke()
    outputs = [interpreter.get_tensor(detail["index"]).tobytes() for detail in interpreter.get_output_details()]
    numbers = [len(parts), len(outputs)] + [len(part) for part in parts + outputs]
    return struct.pack(f"<{len(numbers)}I", *numbers) + b"".join(parts + outputs)


def main():
    HERE.mkdir(exist_ok=True)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, function, specs, ways in cases():
        for way in ("f32", *ways):
            full = f"{name}.{way}"
            if not full.startswith(wanted):
                continue
            try:
                model = convert(function, specs, way)
                io = record(full, model)
            except Exception as error:  # Said, so that no case is lost in silence.
                print(f"{full}: not made: {str(error).splitlines()[0][:150]}")
                continue
            (HERE / f"{full}.tflite").write_bytes(model)
            (HERE / f"{full}.io").write_bytes(io)


main()
