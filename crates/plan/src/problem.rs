//! Says what a training step needs, as plain data: tensors with bytes, ops with times.
//!
//! A `Problem` is all the planner ever sees. It is in single-assignment form: a transient tensor is written by
//! exactly one op, but for those that make one anew (`anew`), and an op that changes a resident tensor (a parameter, a running mean) lists it under
//! `updates`. The order of `ops` is a valid order of execution and defines which version of a resident each op
//! is promised: the one left by the updates that stand before it.
//!
//! What is not here: values, shapes, what an op computes. The planner could not use them. Whether a problem contradicts itself is looked at in
//! `check`, and what tells it from others is its `digest`.

use plimsoll_record::Kind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Names a tensor by its position in [`Problem::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub u32);

/// Names an op by its position in [`Problem::ops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpId(pub u32);

impl TensorId {
    /// The position in [`Problem::tensors`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl OpId {
    /// The position in [`Problem::ops`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op{}", self.0)
    }
}

/// Where a tensor lives during the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Home {
    /// There before the step, there after it, at one place all the while: parameters, optimizer state, inputs.
    Resident,
    /// Made in the step, gone after its last use.
    Transient,
    /// Made in the step and still there when it ends: the loss, a gradient someone asked for.
    Output,
}

/// Says that a tensor is a part of another one's bytes and has none of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The tensor whose bytes these are. It is not a view itself.
    pub of: TensorId,
    /// Where in it the view begins.
    pub offset: u64,
}

/// One value of the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// What people call it.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its offset must be a multiple of this; also what its bytes are rounded up to. A power of two.
    pub alignment: u64,
    /// Where it lives.
    pub home: Home,
    /// What it is for.
    pub kind: Kind,
    /// Whose bytes it shares, if it is a view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<View>,
}

impl Tensor {
    /// A transient activation of `bytes` bytes, aligned to 64.
    pub fn transient(name: impl Into<String>, bytes: u64) -> Tensor {
        let (home, kind) = (Home::Transient, Kind::Activation);
        Tensor { name: name.into(), bytes, alignment: 64, home, kind, view: None }
    }

    /// A resident parameter of `bytes` bytes, aligned to 64.
    pub fn resident(name: impl Into<String>, bytes: u64) -> Tensor {
        Tensor { home: Home::Resident, kind: Kind::Parameter, ..Tensor::transient(name, bytes) }
    }

    /// An output of `bytes` bytes, aligned to 64.
    pub fn output(name: impl Into<String>, bytes: u64) -> Tensor {
        Tensor { home: Home::Output, ..Tensor::transient(name, bytes) }
    }

    /// Its bytes rounded up to its alignment: what it takes in the arena.
    pub fn padded_bytes(&self) -> u64 {
        self.bytes.next_multiple_of(self.alignment.max(1))
    }
}

/// Which way an op copies that does nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carry {
    /// From the host: it reads nothing and writes one tensor.
    In,
    /// To the host: it writes nothing, and takes away the first tensor that it reads.
    Out,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// What people call it.
    pub name: String,
    /// The tensors it reads.
    pub reads: Vec<TensorId>,
    /// The transient tensors and outputs it makes.
    pub writes: Vec<TensorId>,
    /// Pairs (read, written): the written tensor may take the place of the read one if nobody needs that later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_place: Vec<(TensorId, TensorId)>,
    /// Resident tensors it changes, once a step, however often it is replayed. What it writes may depend on the
    /// old value only if the tensor is listed under `reads` too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<TensorId>,
    /// Predicted nanoseconds.
    pub ns: u64,
    /// Bytes it needs beside its operands while it runs.
    #[serde(default)]
    pub scratch: u64,
    /// Whether it may run again and gives the same bits again.
    pub replayable: bool,
    /// Whether it writes, at its own place in the order, what another op has written before it, with the same bits: parameters that ranks gather a second
    /// time, say. Who reads them finds what was made last, ops that run again too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anew: bool,
    /// Whether it is a copy from or to the host: of state that lives there between steps, say. Like any copy it runs beside
    /// other ops, one at a time each way, and is done only when it is awaited; its time is that of the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carry: Option<Carry>,
    /// Whether it goes on beside the ops behind it until something reads what it makes: what ranks exchange, say. Such ops go one after the other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
}

impl Op {
    /// A replayable op of `ns` nanoseconds without scratch.
    pub fn new(name: impl Into<String>, reads: &[TensorId], writes: &[TensorId], ns: u64) -> Op {
        Op {
            name: name.into(),
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            in_place: Vec::new(),
            updates: Vec::new(),
            ns,
            scratch: 0,
            replayable: true,
            anew: false,
            carry: None,
            beside: false,
        }
    }

    /// Brings `tensor` from the host in `ns` nanoseconds.
    pub fn fetch(name: impl Into<String>, tensor: TensorId, ns: u64) -> Op {
        Op { carry: Some(Carry::In), replayable: false, ..Op::new(name, &[], &[tensor], ns) }
    }

    /// Takes `tensor` to the host in `ns` nanoseconds.
    pub fn store(name: impl Into<String>, tensor: TensorId, ns: u64) -> Op {
        Op { carry: Some(Carry::Out), replayable: false, ..Op::new(name, &[tensor], &[], ns) }
    }

    /// Nanoseconds that other ops wait for in any case: none if it is a copy.
    pub fn own_ns(&self) -> u64 {
        if self.carry.is_some() { 0 } else { self.ns }
    }
}

/// The link between device and host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its speed, either way, in bytes a second.
    pub bytes_per_second: u64,
    /// What a copy takes beside its bytes, in nanoseconds: it is started and waited for.
    #[serde(default)]
    pub start_ns: u64,
}

impl Link {
    /// A link whose copies take their bytes' time alone.
    pub fn new(bytes_per_second: u64) -> Link {
        Link { bytes_per_second, start_ns: 0 }
    }

    /// Nanoseconds to copy `bytes` over the link, rounded up.
    pub fn ns(&self, bytes: u64) -> u64 {
        let speed = u128::from(self.bytes_per_second.max(1));
        let moving = u64::try_from((u128::from(bytes) * 1_000_000_000).div_ceil(speed)).unwrap_or(u64::MAX);
        moving.saturating_add(self.start_ns)
    }
}

/// A training step, as the planner sees it.
///
/// ```
/// use plimsoll_plan::{Op, Problem, Tensor};
/// let mut step = Problem::new();
/// let weight = step.tensor(Tensor::resident("weight", 256));
/// let hidden = step.tensor(Tensor::transient("hidden", 1024));
/// let loss = step.tensor(Tensor::output("loss", 4));
/// step.op(Op::new("matmul", &[weight], &[hidden], 500));
/// step.op(Op::new("mean", &[hidden], &[loss], 100));
/// assert!(step.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The tensors.
    pub tensors: Vec<Tensor>,
    /// The ops, in an order that works.
    pub ops: Vec<Op>,
    /// What every scratch offset must be a multiple of, and what scratch bytes are rounded up to. A power of two.
    pub scratch_alignment: u64,
    /// The way to host memory, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
}

impl Default for Problem {
    fn default() -> Problem {
        Problem::new()
    }
}

impl Problem {
    /// An empty step whose scratch is aligned to 64.
    pub fn new() -> Problem {
        Problem { tensors: Vec::new(), ops: Vec::new(), scratch_alignment: 64, link: None }
    }

    /// Adds a tensor and names it.
    pub fn tensor(&mut self, tensor: Tensor) -> TensorId {
        self.tensors.push(tensor);
        TensorId(self.tensors.len() as u32 - 1)
    }

    /// Adds an op at the end of the order and names it.
    pub fn op(&mut self, op: Op) -> OpId {
        self.ops.push(op);
        OpId(self.ops.len() as u32 - 1)
    }

    /// The tensor whose bytes `id` uses (itself unless it is a view), and where in them it begins.
    pub fn root(&self, id: TensorId) -> (TensorId, u64) {
        match self.tensors[id.index()].view {
            Some(view) => (view.of, view.offset),
            None => (id, 0),
        }
    }

    /// Nanoseconds of all ops, each run once; copies run beside them.
    pub fn unlimited_ns(&self) -> u64 {
        self.ops.iter().map(|op| op.own_ns()).sum()
    }
}
