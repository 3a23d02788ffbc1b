"""What the table cannot have a case of, and why."""

_BASE = "a base class, which computes nothing by itself"
_CODE = "Python code or another framework's, which is not Keras's own"
_TEXT = "it turns text into numbers, and text has no place in a tensor of the engine; call it on the data before the model"
_BICUBIC = "Keras's backends give different numbers: the cubic has -0.5 in TensorFlow and JAX, -0.75 in PyTorch"

# Single cases that are refused, and with reason: by name and a part of the label.
CASES: dict[tuple[str, str, str], str] = {
    ("layers", "UpSampling2D", "interpolation=bicubic"): _BICUBIC,
    ("layers", "Resizing", "interpolation=bicubic"): _BICUBIC,
}
# All of a name: by reason.
_NAMES: dict[str, list[tuple[str, str]]] = {
    _BASE: [
        *[("layers", name) for name in ("Layer", "Wrapper")],
        ("losses", "Loss"),
        ("metrics", "Metric"),
        ("optimizers", "Optimizer"),
        ("optimizers.schedules", "LearningRateSchedule"),
    ],
    _CODE: [("layers", name) for name in ("Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer")],
    _TEXT: [("layers", name) for name in ("TextVectorization", "StringLookup")],
    "no layer: it describes what one takes": [("layers", "InputSpec")],
    "it takes dictionaries of boxes, not tensors, and is for data pipelines": [("layers", "MaxNumBoundingBoxes")],
    "it counts values, not outputs and labels; compile() has no use for it": [("metrics", name) for name in ("Mean", "Sum")],
    "around a Python function, which is the user's own code": [("metrics", "MeanMetricWrapper")],
    "it takes two more numbers, which no layer gives it": [("activations", "threshold")],
    "no optimizer: a part of MultiOptimizer": [("optimizers", "OptimizerMap")],
}
APPLICABLE: dict[tuple[str, str], str] = {name: why for why, names in _NAMES.items() for name in names}
