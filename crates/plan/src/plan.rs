//! Holds the answer: a flat list of steps at fixed offsets, with the figures that show how good it is.
//!
//! There is no `Free`: whatever a step writes over is gone, and the verifier makes sure that nobody wanted it.

use crate::problem::{OpId, TensorId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How far a step under a memory limit may depart from the bits of an unlimited run. Every plan of this crate is bitwise; the rest is
/// for those who change the step before it is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exactness {
    /// The same bits: order, in-place, packing, recomputation, offload.
    Bitwise,
    /// The same maths, sums in another order: also micro-batches.
    Reassociated,
    /// Also what changes the maths, such as batch statistics over micro-batches.
    Approximate,
}

impl fmt::Display for Exactness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Exactness::Bitwise => "bitwise",
            Exactness::Reassociated => "reassociated",
            Exactness::Approximate => "approximate",
        })
    }
}

impl std::str::FromStr for Exactness {
    type Err = String;

    /// ```
    /// use plimsoll_plan::Exactness;
    /// assert_eq!("bitwise".parse(), Ok(Exactness::Bitwise));
    /// assert!("precise".parse::<Exactness>().is_err());
    /// ```
    fn from_str(name: &str) -> Result<Exactness, String> {
        let all = [Exactness::Bitwise, Exactness::Reassociated, Exactness::Approximate];
        let known = all.into_iter().find(|exactness| exactness.to_string() == name);
        known.ok_or_else(|| format!("there is no exactness {name}; use bitwise, reassociated or approximate"))
    }
}

/// One instruction. All offsets are bytes from the start of the device arena unless they say host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Runs an op.
    Run {
        /// Which op.
        op: OpId,
        /// Whether it has run before in this step, so that its state updates are left out.
        replay: bool,
        /// Where each of its reads lies, in the order of the op's `reads`.
        reads: Vec<u64>,
        /// Where each of its writes goes, in the order of the op's `writes`.
        writes: Vec<u64>,
        /// Where its scratch begins.
        scratch: u64,
    },
    /// Starts to copy a tensor from the device arena to the host arena. Until it is awaited, the bytes on the device must
    /// stay as they are, and those on the host are nobody's.
    Offload {
        /// Which tensor.
        tensor: TensorId,
        /// Where it lies on the device.
        from: u64,
        /// Where it goes on the host.
        to: u64,
    },
    /// Starts to copy a tensor from the host arena to the device arena. Until it is awaited, the bytes on the host must stay
    /// as they are, and those on the device are nobody's.
    Prefetch {
        /// Which tensor.
        tensor: TensorId,
        /// Where it lies on the host.
        from: u64,
        /// Where it goes on the device.
        to: u64,
    },
    /// Waits until the copy of a tensor that was started is done. A device that copies when it is told to has nothing to
    /// wait for.
    Await {
        /// Which tensor.
        tensor: TensorId,
        /// Whether it is the copy to the host, else the one back.
        offload: bool,
    },
}

/// Where a resident tensor lies, all the step long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Which tensor.
    pub tensor: TensorId,
    /// Its offset.
    pub offset: u64,
}

/// What a plan promises and how close that is to the best possible.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Predicted nanoseconds of the plan: ops one after the other, beside them one copy at a time each way, and waiting.
    pub predicted_ns: u64,
    /// Predicted nanoseconds without a budget.
    pub unlimited_ns: u64,
    /// No plan with this order and budget is faster than this.
    pub lower_bound_ns: u64,
    /// The highest byte of the arena that is used, plus one.
    pub arena_bytes: u64,
    /// The largest sum of live bytes at any step: no packing of these lifespans is smaller.
    pub live_bytes: u64,
    /// The bytes that a plan without recomputation and offload would take.
    pub unlimited_bytes: u64,
    /// The least budget for which the planner finds a plan: it plans this, and not a byte less.
    pub floor_bytes: u64,
    /// What no plan with this order can go below: what must be there while the hungriest op runs.
    pub bound_bytes: u64,
    /// The highest byte of the host arena that is used, plus one.
    pub host_bytes: u64,
    /// How many steps are replays.
    pub recomputed_ops: u64,
    /// How many tensors are copied to the host.
    pub offloaded_tensors: u64,
}

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The budget that was asked for, in bytes.
    pub budget: u64,
    /// The instructions.
    pub steps: Vec<Step>,
    /// Where the residents lie.
    pub residents: Vec<Placed>,
    /// Where the outputs lie when the step is over.
    pub outputs: Vec<Placed>,
    /// The host budget that was asked for, in bytes.
    pub host_budget: u64,
    /// What the plan promises.
    pub figures: Figures,
}

/// What is asked of the planner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Bytes of device memory that the arena may take.
    pub budget: u64,
    /// Bytes of host memory that offloaded tensors may take.
    pub host_budget: u64,
    /// How long to search: 1 is a good plan in little time, more looks longer, 0 makes haste. The work is counted, not timed,
    /// so that the same request gives the same plan.
    pub effort: u32,
    /// A limit in milliseconds for the search. A plan cut short by it may differ from run to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

impl Request {
    /// Asks for a plan in `budget` bytes. Every plan gives the same bits as an unlimited run.
    pub fn within(budget: u64) -> Request {
        Request { budget, host_budget: 0, effort: 1, deadline_ms: None }
    }
}
