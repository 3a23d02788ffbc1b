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

/// All crates, in the order in which data passes them.
pub const CRATES: &[Crate] = &[
    Crate { folder: "record", knows: &[], knows_nothing_of: "the engine", never: &["std::fs", "std::io"] },
    Crate {
        folder: "graph",
        knows: &[],
        knows_nothing_of: "devices, memory",
        never: &["std::fs", "std::alloc"],
    },
    Crate {
        folder: "plan",
        knows: &["record"],
        knows_nothing_of: "tensors' values, ops' meaning",
        never: &["plimsoll_graph", "std::fs"],
    },
    Crate {
        folder: "device",
        knows: &["graph", "record"],
        knows_nothing_of: "graphs",
        never: &[
            "plimsoll_graph::Graph",
            "plimsoll_graph::Node",
            "plimsoll_graph::NodeId",
            "plimsoll_graph::ValueId",
            "plimsoll_graph::Trace",
            "plimsoll_graph::passes",
            "plimsoll_graph::gradient",
        ],
    },
    Crate { folder: "cpu", knows: &["device", "graph"], knows_nothing_of: "gradients", never: GRADIENTS },
    Crate { folder: "cuda", knows: &["device", "graph"], knows_nothing_of: "gradients", never: GRADIENTS },
    Crate {
        folder: "run",
        knows: &["cpu", "cuda", "device", "graph", "plan", "record"],
        knows_nothing_of: "layers, files",
        never: &["plimsoll_nn", "plimsoll_formats"],
    },
    Crate {
        folder: "nn",
        knows: &["device", "graph", "run"],
        knows_nothing_of: "files' formats",
        never: &["plimsoll_formats", "std::fs"],
    },
    Crate {
        folder: "formats",
        knows: &["graph"],
        knows_nothing_of: "everything but dtypes",
        never: &[
            "plimsoll_graph::Graph",
            "plimsoll_graph::Op",
            "plimsoll_graph::Trace",
            "plimsoll_graph::gradient",
        ],
    },
    Crate {
        folder: "data",
        knows: &["device", "formats", "graph"],
        knows_nothing_of: "models",
        never: &["plimsoll_nn", "plimsoll_run"],
    },
    Crate {
        folder: "train",
        knows: &["data", "device", "formats", "graph", "nn", "run"],
        knows_nothing_of: "others' file formats",
        never: &[
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
    },
    Crate {
        folder: "keras",
        knows: &["device", "formats", "graph", "nn", "run"],
        knows_nothing_of: "HDF5, devices",
        never: &[
            "hdf5_pure",
            "plimsoll_cpu",
            "plimsoll_cuda",
            "plimsoll_device::backend",
            "plimsoll_device::Backend",
        ],
    },
    Crate { folder: "explain", knows: &[], knows_nothing_of: "our engine", never: &["plimsoll_run"] },
    Crate { folder: "report", knows: &["record"], knows_nothing_of: "the engine", never: &["plimsoll_run"] },
    Crate {
        folder: "plimsoll",
        knows: &["data", "device", "formats", "graph", "keras", "nn", "plan", "run", "train"],
        knows_nothing_of: "",
        never: &[],
    },
    Crate { folder: "cli", knows: &["explain", "plimsoll", "report"], knows_nothing_of: "", never: &[] },
    Crate {
        folder: "testing",
        knows: &["device", "graph"],
        knows_nothing_of: "models, training",
        never: &["plimsoll_run"],
    },
];

/// The modules of a crate in an order in which each imports only from those before it. Comments and tests do not count.
pub const MODULES: &[(&str, &[&str])] = &[(
    "run",
    &[
        "scope", "memory", "peak", "error", "device", "request", "tensor", "trace", "lower", "choose",
        "program", "timeline", "execute",
    ],
)];
