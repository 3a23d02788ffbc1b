//! What can go wrong when ops run.

use plimsoll_device::backend::{Fault, Unsupported};
use plimsoll_device::{Bytes, OutOfMemory, ReserveError};
use plimsoll_graph::{DType, Shape, Site, Type};

/// An error of the run stage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    // === The user's input ===
    /// An op was called wrongly, or has no gradient.
    #[error(transparent)]
    Graph(#[from] plimsoll_graph::Error),
    /// Host data does not match the shape it was given for.
    #[error("{given} elements were given at {site} for a tensor of shape {shape}, which has {}", shape.elements())]
    Length {
        /// Elements given.
        given: usize,
        /// The shape asked for.
        shape: Shape,
        /// The line that asked.
        site: Site,
    },
    /// A tensor was read as another element type than it has.
    #[error("a tensor of {actual} elements was read as {asked} at {site}; cast it first")]
    ElementType {
        /// What it holds.
        actual: DType,
        /// What was asked for.
        asked: DType,
        /// The line that asked.
        site: Site,
    },
    /// The bytes of a traced value were asked for; it has none until the function runs.
    #[error(
        "{ty} at {site} is being traced and has no value yet; return it from the function and read it there"
    )]
    Traced {
        /// The value's type.
        ty: Type,
        /// The line that asked.
        site: Site,
    },
    /// An op was given tensors of two devices.
    #[error("{op} at {site}: its inputs are on {first} and on {second}; move one of them first")]
    TwoDevices {
        /// The op's name.
        op: &'static str,
        /// The line that asked.
        site: Site,
        /// One device.
        first: String,
        /// The other.
        second: String,
    },
    /// A function or step was called with other inputs than it was made for.
    #[error("the call at {site} {why}")]
    Signature {
        /// The line of the call.
        site: Site,
        /// What does not fit.
        why: String,
    },
    /// A kernel refused values: an index out of range, say.
    #[error("{fault} (at {site})")]
    Fault {
        /// What the kernel said.
        fault: Fault,
        /// The line that made the op.
        site: Site,
    },

    // === Memory ===
    /// The device has no room.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The region for a device's memory could not be reserved.
    #[error(transparent)]
    Reserve(#[from] ReserveError),

    /// No plan keeps to the line.
    #[error(
        "a line of {asked} cannot be kept: the least is {least:#}, of which {elsewhere:#} are the program, its state and its inputs; {}",
        held(refusal)
    )]
    Infeasible {
        /// The bytes asked for, of the process as the system counts it.
        asked: Bytes,
        /// The least that would do.
        least: Bytes,
        /// What the process takes beside the arena: the program, state, inputs.
        elsewhere: Bytes,
        /// The planner's own answer: where, who holds what there, ways out. Its bytes are of state, inputs and arena.
        refusal: Box<plimsoll_plan::Infeasible>,
    },

    // === The engine ===
    /// The device has no kernel for an op.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The engine broke a rule of its own.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

/// Who holds the arena where the smallest plan needs most, and what to do about it.
fn held(refusal: &plimsoll_plan::Infeasible) -> String {
    let arena = |kind: &plimsoll_plan::Kind| {
        !matches!(kind, plimsoll_plan::Kind::Parameter | plimsoll_plan::Kind::Input)
    };
    let mut kinds: Vec<String> = refusal
        .held
        .iter()
        .filter(|(kind, _)| arena(kind))
        .map(|(kind, bytes)| format!("{kind} {}", Bytes(*bytes)))
        .collect();
    kinds.push(format!("scratch {}", Bytes(refusal.scratch_bytes)));
    let largest: Vec<String> =
        refusal.largest.iter().map(|t| format!("{} {}", t.name, Bytes(t.bytes))).collect();
    format!(
        "the arena is fullest at {}: {}; the largest there: {}; raise the line to the least, or make the batch smaller",
        refusal.op_name,
        kinds.join(", "),
        largest.join(", ")
    )
}

/// The result of running something.
pub type Result<T, E = Error> = std::result::Result<T, E>;
