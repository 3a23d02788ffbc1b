//! What bytes are for: one list for plans, ledgers and reports.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What bytes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Weights and what else the model learns.
    Parameter,
    /// Gradients, and sums of them.
    Gradient,
    /// The optimizer's state, and what an update computes on its way to the new parameters.
    Optimizer,
    /// Values of the forward pass.
    Activation,
    /// What a kernel needs while it runs.
    Scratch,
    /// Batches on their way in.
    Input,
    /// Contexts and handles of libraries.
    Library,
    /// The program's own pages and tables.
    Program,
    /// The host's memory that a device with memory of its own copies tensors to. It is counted in all with the rest, and is no
    /// part of a limit on the device's memory.
    Host,
    /// Files of a folder that tensors are kept in. They are no part of any limit of memory.
    Disk,
    /// Anything else: results, values that are put aside.
    Other,
}

impl Kind {
    /// All kinds, in the order in which a table lists them.
    pub const ALL: [Kind; 11] = [
        Kind::Parameter,
        Kind::Gradient,
        Kind::Optimizer,
        Kind::Activation,
        Kind::Scratch,
        Kind::Input,
        Kind::Library,
        Kind::Program,
        Kind::Host,
        Kind::Disk,
        Kind::Other,
    ];

    /// The kind's name in tables, records and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Parameter => "parameter",
            Kind::Gradient => "gradient",
            Kind::Optimizer => "optimizer",
            Kind::Activation => "activation",
            Kind::Scratch => "scratch",
            Kind::Input => "input",
            Kind::Library => "library",
            Kind::Program => "program",
            Kind::Host => "host",
            Kind::Disk => "disk",
            Kind::Other => "other",
        }
    }

    /// The kind in a sentence: `activations 3 MiB`.
    pub const fn plural(self) -> &'static str {
        match self {
            Kind::Parameter => "parameters",
            Kind::Gradient => "gradients",
            Kind::Optimizer => "optimizer state",
            Kind::Activation => "activations",
            Kind::Library => "libraries",
            Kind::Scratch | Kind::Input | Kind::Program | Kind::Host | Kind::Disk | Kind::Other => {
                self.name()
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_listed_in_the_order_of_their_numbers_and_written_by_their_names() {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i);
            let written = serde_json::to_string(&kind).unwrap();
            assert_eq!(written, format!("\"{kind}\""));
            assert_eq!(serde_json::from_str::<Kind>(&written).unwrap(), kind);
        }
    }
}
