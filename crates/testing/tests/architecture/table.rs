//! The claims: which crate knows which, what it must never import, and in which order the modules of a crate stand.

/// A crate and what it may know.
pub struct Crate {
    /// Its folder below `crates`.
    pub folder: &'static str,
    /// The crates of this workspace that it depends on, by their folders. Each stands before it in [`CRATES`].
    pub knows: &'static [&'static str],
    /// What its row in `ARCHITECTURE.md` says that it knows nothing of.
    pub knows_nothing_of: &'static str,
    /// The same as paths that none of its sources imports, tests excepted.
    pub never: &'static [&'static str],
}

/// Gradients, for those who only compute.
const GRADIENTS: &[&str] = &[
    "plimsoll_graph::gradient",
    "plimsoll_graph::gradients",
    "plimsoll_graph::Backward",
    "plimsoll_graph::Keep",
];

const fn row(
    folder: &'static str,
    knows: &'static [&'static str],
    knows_nothing_of: &'static str,
    never: &'static [&'static str],
) -> Crate {
    Crate { folder, knows, knows_nothing_of, never }
}

/// All crates, in the order in which data passes them: folder, whom it knows, what it knows nothing of, and that as paths.
pub const CRATES: &[Crate] = &[
    row("record", &[], "the engine", &["std::fs", "std::io"]),
    row("graph", &[], "devices, memory", &["std::fs", "std::alloc"]),
    row("plan", &["record"], "tensors' values, ops' meaning", &["plimsoll_graph", "std::fs"]),
    row(
        "device",
        &["graph", "record"],
        "graphs",
        &[
            "plimsoll_graph::Graph",
            "plimsoll_graph::Node",
            "plimsoll_graph::NodeId",
            "plimsoll_graph::ValueId",
            "plimsoll_graph::Trace",
            "plimsoll_graph::passes",
            "plimsoll_graph::gradient",
        ],
    ),
    row("cpu", &["device", "graph"], "gradients", GRADIENTS),
    row("cuda", &["device", "graph"], "gradients", GRADIENTS),
    row(
        "comm",
        &["device", "graph"],
        "kernels, plans",
        &["plimsoll_cpu", "plimsoll_plan", "plimsoll_graph::Graph", "plimsoll_graph::Op"],
    ),
    row(
        "run",
        &["cpu", "cuda", "device", "graph", "plan", "record"],
        "layers, files",
        &["plimsoll_nn", "plimsoll_formats"],
    ),
    row("nn", &["device", "graph", "run"], "files' formats", &["plimsoll_formats", "std::fs"]),
    row("resize", &[], "files, tensors", &["std::fs"]),
    row(
        "formats",
        &["graph", "resize"],
        "everything but dtypes",
        &["plimsoll_graph::Graph", "plimsoll_graph::Op", "plimsoll_graph::Trace", "plimsoll_graph::gradient"],
    ),
    row("data", &["device", "formats", "graph"], "models", &["plimsoll_nn", "plimsoll_run"]),
    row(
        "train",
        &["data", "device", "formats", "graph", "nn", "run"],
        "others' file formats",
        &[
            "plimsoll_formats::csv",
            "plimsoll_formats::example",
            "plimsoll_formats::idx",
            "plimsoll_formats::image",
            "plimsoll_formats::keras",
            "plimsoll_formats::npy",
            "plimsoll_formats::npz",
            "plimsoll_formats::parquet",
            "plimsoll_formats::tfrecord",
        ],
    ),
    row(
        "keras",
        &["device", "formats", "graph", "nn", "run"],
        "HDF5, devices",
        &[
            "hdf5_pure",
            "plimsoll_cpu",
            "plimsoll_cuda",
            "plimsoll_device::backend",
            "plimsoll_device::Backend",
        ],
    ),
    row(
        "hub",
        &["formats", "graph", "nn", "run"],
        "devices, training loops",
        &["plimsoll_cpu", "plimsoll_cuda", "plimsoll_device", "plimsoll_train"],
    ),
    row(
        "onnx",
        &["device", "formats", "graph", "nn", "run"],
        "Keras, devices",
        &[
            "plimsoll_keras",
            "plimsoll_cpu",
            "plimsoll_cuda",
            "plimsoll_device::backend",
            "plimsoll_device::Backend",
        ],
    ),
    row("lite", &[], "the engine", &["plimsoll_run", "std::fs"]),
    row(
        "tflite",
        &["formats", "graph", "lite", "nn", "run"],
        "Keras, ONNX, devices",
        &["plimsoll_keras", "plimsoll_onnx", "plimsoll_cpu", "plimsoll_cuda", "plimsoll_device"],
    ),
    row(
        "torch",
        &["graph", "nn", "run"],
        "files' other formats, devices",
        &["plimsoll_formats", "plimsoll_cpu", "plimsoll_cuda", "plimsoll_device"],
    ),
    row("explain", &[], "our engine", &["plimsoll_run"]),
    row("report", &["record"], "the engine", &["plimsoll_run"]),
    row(
        "plimsoll",
        &[
            "comm", "data", "device", "formats", "graph", "hub", "keras", "lite", "nn", "onnx", "plan",
            "run", "tflite", "torch", "train",
        ],
        "",
        &[],
    ),
    row("cli", &["explain", "plimsoll", "report"], "", &[]),
    row("python", &["cli", "explain", "plimsoll", "report"], "", &[]),
    row("testing", &["device", "graph"], "models, training", &["plimsoll_run"]),
];

/// The modules of a crate in an order in which each imports only from those before it. Comments and tests do not count.
pub const MODULES: &[(&str, &[&str])] = &[(
    "run",
    &[
        "scope", "memory", "peak", "error", "device", "request", "tensor", "trace", "lower", "choose",
        "program", "timeline", "execute",
    ],
)];
