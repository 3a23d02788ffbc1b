//! How a step is compiled, beside what is asked of memory.

use plimsoll_device::Bytes;
use plimsoll_graph::{Site, Type};
use plimsoll_plan::Exactness;

use crate::error::{Error, Result};
use crate::request::MemoryRequest;

/// How a step is compiled.
///
/// ```
/// use plimsoll_run::StepOptions;
/// let options = StepOptions::default().limit(Some("64MiB".parse().unwrap()));
/// assert_eq!(options.shapes, 4);
/// ```
#[derive(Clone, Debug)]
pub struct StepOptions {
    /// What is asked of memory.
    pub request: MemoryRequest,
    /// Whether the first axis of every input counts samples, so that the body may be traced for fewer of them.
    pub batched: bool,
    /// What the process will take for other things while the step runs: an input pipeline, say.
    pub reserved: Bytes,
    /// What of the host's memory is taken beside that which [`MemoryRequest::host_limit`] leaves for copies, so that a refusal that
    /// proposes host memory names all of it.
    pub host_beside: Bytes,
    /// Whether the next batch of inputs is on its way while the step runs, so that there are two of them.
    pub ahead: bool,
    /// Whether the first output, the loss, must be finite: if it is not, the step is an error and changes nothing. Without
    /// this, a step that is not finite is like any other.
    pub guarded: bool,
    /// Whether other ranks have the rest of the batch, so that what each computes of its own must add up to what one would compute of all:
    /// a step of which that is not so is refused.
    pub shared: bool,
    /// For how many input shapes compiled forms are kept; the one that was not used for longest makes room for another.
    pub shapes: usize,
}

impl Default for StepOptions {
    /// No limit, and the bits of an unlimited run.
    fn default() -> StepOptions {
        StepOptions {
            request: MemoryRequest { exactness: Exactness::Bitwise, ..MemoryRequest::default() },
            batched: false,
            reserved: Bytes::ZERO,
            host_beside: Bytes::ZERO,
            ahead: false,
            guarded: false,
            shared: false,
            shapes: 4,
        }
    }
}

/// The same options with another part of their request, each a method.
macro_rules! with_another {
    ($( $(#[$doc:meta])+ $part:ident: $ty:ty; )+) => {
        impl StepOptions {
            $( $(#[$doc])+
            #[must_use]
            pub fn $part(mut self, $part: $ty) -> StepOptions {
                self.request.$part = $part;
                self
            } )+
        }
    };
}

with_another! {
    /// The same with another memory limit.
    limit: Option<Bytes>;
    /// The same with another limit on the host's memory.
    host_limit: Option<Bytes>;
    /// The same with another exactness.
    exactness: Exactness;
    /// The same in micro-batches of so many samples.
    micro_batch: Option<usize>;
}

impl StepOptions {
    /// Samples in the inputs, where their first axis counts them.
    pub(crate) fn batch_of(&self, inputs: &[Type], site: Site) -> Result<Option<usize>> {
        if let Some(ty) = inputs.iter().find(|ty| ty.is_too_large()) {
            let why = format!("has an input of {ty}, which no machine can hold; make the batch smaller");
            return Err(Error::Signature { site, why });
        }
        if !self.batched {
            return Ok(None);
        }
        let batch = inputs.first().and_then(|ty| ty.shape.first().copied());
        if let Some(ty) = inputs.iter().find(|ty| ty.shape.first().copied() != batch) {
            let why = format!("has an input of {ty}, whose first axis is not the batch of the others");
            return Err(Error::Signature { site, why });
        }
        Ok(batch)
    }
}
