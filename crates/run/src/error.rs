//! What can go wrong when ops run.

use plimsoll_device::backend::{Fault, Unsupported};
use plimsoll_device::{Bytes, NoAllocator, OutOfMemory, ReserveError};
use plimsoll_graph::{DType, Op, Shape, Site, Type};

use crate::memory::{FixedMemory, HostInfeasible, Refusal, Remedy};

/// An error of the run stage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    // === The user's input ===
    /// An op was called wrongly, or has no gradient.
    #[error(transparent)]
    Graph(plimsoll_graph::Error),
    /// An op was asked for on a device that its step has not.
    #[error(
        "{op}{} asks for {asked}, and this runs on {device}: name cpu or {device}, or allow soft placement \
         (--soft-placement, Device::soft_placement)", site.at()
    )]
    Placement {
        /// The op.
        op: &'static str,
        /// The line that asked.
        site: Site,
        /// The device that was asked for.
        asked: String,
        /// The device that there is.
        device: String,
    },
    /// Host data does not match the shape it was given for.
    #[error("{given} elements were given{} for a tensor of shape {shape}, which has {}", site.at(), shape.elements())]
    Length {
        /// Elements given.
        given: usize,
        /// The shape asked for.
        shape: Shape,
        /// The line that asked.
        site: Site,
    },
    /// A tensor was read as another element type than it has.
    #[error("a tensor of {actual} elements was read as {asked}{}; cast it first", site.at())]
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
        "{ty}{} is being traced and has no value yet; return it from the function and read it there",
        site.at()
    )]
    Traced {
        /// The value's type.
        ty: Type,
        /// The line that asked.
        site: Site,
    },
    /// An op was given tensors of two devices.
    #[error("{op}{}: its inputs are on {first} and on {second}; move one of them first, with `to(&device)`", site.at())]
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
    #[error("the call{} {why}", site.at())]
    Signature {
        /// The line of the call.
        site: Site,
        /// What does not fit.
        why: String,
    },
    /// The result that a step stands or falls with, its loss, is not a finite number.
    #[error(
        "the loss is {value}{}: nothing was changed; look at the batch, or lower the learning rate",
        site.at()
    )]
    NotFinite {
        /// What it is.
        value: f64,
        /// The line that made it.
        site: Site,
    },
    /// A batch cannot be split into micro-batches as was asked.
    #[error("the batch of the step{} is not split: {why}", site.at())]
    Split {
        /// What stands against it.
        why: String,
        /// The line that asked.
        site: Site,
    },
    /// A folder in which tensors cannot be kept.
    #[error("{why}")]
    Disk {
        /// The folder, what is wrong with it, and what to do.
        why: String,
        /// The line that asked.
        site: Site,
    },
    /// A kernel refused values: an index out of range, say.
    #[error("{fault}{}", site.of_user().map_or_else(String::new, |site| format!(" ({})", site.at().to_string().trim_start())))]
    Fault {
        /// What the kernel said.
        fault: Fault,
        /// The line that made the op.
        site: Site,
    },
    /// An exchange with other ranks failed: one has ended, hangs, or does something else. What a step had changed by then is changed.
    #[error("{0}")]
    Ranks(Fault),

    /// A device of no known kind was named.
    #[error("there is no device '{0}'; name cpu, cuda (the first card), or cuda:1 and so on")]
    DeviceName(String),
    /// More threads were asked for than make sense.
    #[error(
        "{asked} threads are more than the {most} that this process may have; ask for as many as it has processors, or for none"
    )]
    Threads {
        /// How many.
        asked: usize,
        /// The most.
        most: usize,
    },
    /// The system does not give as many threads.
    #[error("the system gave fewer than {asked} threads ({source}); ask for fewer")]
    NoThread {
        /// How many.
        asked: usize,
        /// What the system said.
        source: std::io::Error,
    },

    /// A device has no allocator of the kind that was asked for.
    #[error("{device} has no allocator '{kind}'; use {others}")]
    NoSuchAllocator {
        /// The device's name.
        device: String,
        /// The kind.
        kind: &'static str,
        /// Those that it has.
        others: &'static str,
    },
    /// The host has no allocator of a kind, or not of that size.
    #[error(transparent)]
    NoAllocator(#[from] NoAllocator),

    // === Memory ===
    /// The device has no room.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The region for a device's memory could not be reserved.
    #[error(transparent)]
    Reserve(#[from] ReserveError),

    /// No plan keeps to the limit.
    #[error("{}", refused(*asked, *least, account, refusal.as_deref(), heaviest, ways))]
    Infeasible {
        /// The bytes asked for, of the process as the system counts it.
        asked: Bytes,
        /// The least that would do.
        least: Bytes,
        /// What the process takes beside the arena.
        account: FixedMemory,
        /// The planner's own answer about the part of the step that needs most. Its bytes are of state, inputs and arena.
        refusal: Option<Box<plimsoll_plan::Infeasible>>,
        /// The five heaviest tensors.
        heaviest: Vec<(String, Bytes)>,
        /// What else could be done, and the least that would do then.
        ways: Vec<Remedy>,
    },

    /// The limit of the host's memory cannot be kept beside a device's own.
    #[error(transparent)]
    HostInfeasible(#[from] Box<HostInfeasible>),

    /// No plan keeps to what a device has left, though the caller would have allowed more.
    #[error(
        "{device} has not enough memory left for this process; end what else runs there, or take one of the ways out:\n\
         {refusal}"
    )]
    Full {
        /// The device.
        device: String,
        /// The refusal of a limit of all that it has left.
        refusal: Box<Error>,
    },

    /// A step whose bytes or times cannot be added up.
    #[error(
        "the step is too large to be planned: its bytes or its nanoseconds add up to more than 2^63; make the batch or the \
         model smaller"
    )]
    TooLarge,

    /// There is no such CUDA card, or it refused.
    #[error(transparent)]
    Cuda(#[from] plimsoll_cuda::Error),

    // === The engine ===
    /// The device has no kernel for an op.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The engine broke a rule of its own.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl Error {
    /// What the kernel of an op refused, or why ranks could not exchange values.
    pub(crate) fn of_kernel(op: &Op, fault: Fault, site: Site) -> Error {
        if op.is_exchange() { Error::Ranks(fault) } else { Error::Fault { fault, site } }
    }
}

impl From<plimsoll_graph::Error> for Error {
    /// With the layer that was being traced, and the line that asked for it.
    fn from(error: plimsoll_graph::Error) -> Error {
        Error::Graph(error.within(&crate::scope::path(), crate::scope::asked_from()))
    }
}

/// The text of a refusal.
fn refused(
    asked: Bytes,
    least: Bytes,
    account: &FixedMemory,
    refusal: Option<&plimsoll_plan::Infeasible>,
    heaviest: &[(String, Bytes)],
    ways: &[Remedy],
) -> String {
    let fullest = refusal.map(|refusal| refusal.op_name.as_str());
    Refusal { asked, least, account, fullest, heaviest, ways }.text()
}

/// The result of running something.
pub type Result<T, E = Error> = std::result::Result<T, E>;
