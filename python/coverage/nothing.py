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
APPLICABLE: dict[tuple[str, str], str] = {
    ("layers", "Layer"): _BASE,
    ("layers", "Wrapper"): _BASE,
    ("layers", "InputSpec"): "no layer: it describes what one takes",
    ("layers", "Lambda"): _CODE,
    ("layers", "TFSMLayer"): _CODE,
    ("layers", "TorchModuleWrapper"): _CODE,
    ("layers", "JaxLayer"): _CODE,
    ("layers", "FlaxLayer"): _CODE,
    ("layers", "MaxNumBoundingBoxes"): "it takes dictionaries of boxes, not tensors, and is for data pipelines",
    ("layers", "TextVectorization"): _TEXT,
    ("layers", "StringLookup"): _TEXT,
    ("losses", "Loss"): _BASE,
    ("metrics", "Metric"): _BASE,
    ("metrics", "Mean"): "it counts values, not outputs and labels; compile() has no use for it",
    ("metrics", "Sum"): "it counts values, not outputs and labels; compile() has no use for it",
    ("metrics", "MeanMetricWrapper"): "around a Python function, which is the user's own code",
    ("activations", "threshold"): "it takes two more numbers, which no layer gives it",
    ("optimizers", "Optimizer"): _BASE,
    ("optimizers", "OptimizerMap"): "no optimizer: a part of MultiOptimizer",
    ("optimizers.schedules", "LearningRateSchedule"): _BASE,
}
