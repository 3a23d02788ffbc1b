//! Turns kernels that were timed into times of others: of the same op, the one that is nearest in work is scaled by the work.

use plimsoll_device::backend::Speed;
use plimsoll_graph::{Op, Type};
use rustc_hash::FxHashMap;

use super::times::Timed;

/// A kernel that was timed, as others are scaled from it: with the element type of its first input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Like {
    dtype: Name,
    pub(crate) timed: Timed,
}

/// An element type by the letters of its name.
type Name = [u8; 8];

fn name(dtype: &str) -> Name {
    std::array::from_fn(|i| dtype.as_bytes().get(i).copied().unwrap_or_default())
}

impl Like {
    /// A kernel by what it is filed under, with its op.
    pub(crate) fn of(kernel: &str, timed: Timed) -> (&str, Like) {
        let (op, dtype) = op_and_type(kernel);
        (op, Like { dtype: name(dtype), timed })
    }

    /// The same with another time.
    pub(crate) fn timed_as(self, timed: Timed) -> Like {
        Like { timed, ..self }
    }

    /// Of several that are equally near the first in this order is taken: that in which they come must not show.
    fn rank(&self) -> impl Ord + use<> {
        let Timed { seconds, scratch, flops, bytes, .. } = self.timed;
        (self.dtype, flops.to_bits(), bytes.to_bits(), scratch, seconds.to_bits())
    }
}

/// What a kernel does whose time is not known: the logarithms of its work, and the element type of its first input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    dtype: Name,
    flops: f64,
    bytes: f64,
}

impl Work {
    pub(crate) fn of(op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Work {
        let cost = op.cost(inputs, outputs);
        let dtype = inputs.first().map_or(Name::default(), |ty| name(&ty.dtype.to_string()));
        Work { dtype, flops: size(cost.flops), bytes: size(cost.bytes) }
    }

    /// How far a kernel is from it.
    fn distance(&self, like: &Like) -> f64 {
        let other = if like.dtype == self.dtype { 0.0 } else { 2.0 };
        let Timed { flops, bytes, .. } = like.timed;
        (self.flops - size(flops)).abs() + (self.bytes - size(bytes)).abs() + other
    }

    /// Whether one kernel stands for it rather than another.
    pub(crate) fn prefers(&self, one: &Like, other: &Like) -> bool {
        let by_distance = self.distance(one).total_cmp(&self.distance(other));
        by_distance.then_with(|| one.rank().cmp(&other.rank())).is_lt()
    }
}

/// Work as distances are taken of it.
fn size(work: f64) -> f64 {
    (work + 1.0).ln()
}

/// Kernels by op.
#[derive(Clone, Debug, Default)]
pub(crate) struct Likes(FxHashMap<String, Vec<Like>>);

impl Likes {
    pub(crate) fn new<'t>(kernels: impl Iterator<Item = (&'t String, &'t Timed)>) -> Likes {
        let mut likes = Likes::default();
        kernels.for_each(|(kernel, timed)| likes.add(kernel, *timed));
        likes
    }

    /// Adds a kernel.
    pub(crate) fn add(&mut self, kernel: &str, timed: Timed) {
        let (op, new) = Like::of(kernel, timed);
        self.0.entry(op.into()).or_default().push(new);
    }

    /// Takes a kernel away that was added as it is, because it was timed anew.
    pub(crate) fn remove(&mut self, kernel: &str, timed: &Timed) {
        let (op, _) = op_and_type(kernel);
        if let Some(of_op) = self.0.get_mut(op)
            && let Some(at) = of_op.iter().position(|other| other.timed == *timed)
        {
            of_op.swap_remove(at);
        }
    }

    /// Whether any kernel of an op is known.
    pub(crate) fn knows(&self, op: &Op) -> bool {
        self.0.get(op.variant()).is_some_and(|kernels| !kernels.is_empty())
    }

    /// The kernel of an op that stands for one of other work.
    pub(crate) fn nearest(&self, op: &Op, work: &Work) -> Option<Like> {
        let like = self.0.get(op.variant()).or_else(|| self.0.get(stand_in(op)?))?.iter();
        like.copied().reduce(|best, next| if work.prefers(&next, &best) { next } else { best })
    }
}

/// The op that passes the same memory in the same way, for one of which no kernel is known.
pub(crate) fn stand_in(op: &Op) -> Option<&'static str> {
    match op {
        Op::MatMulAdd(_) => Some("MatMul"),
        Op::LayerNormGradAdd(_) => Some("LayerNormGrad"),
        Op::FrozenCrossEntropy(_) | Op::JointCrossEntropy(_) => Some("LinearCrossEntropyGrad"),
        Op::ScatterAddTo(_) => Some("ScatterAdd"),
        Op::Rotary(_) => Some("Fused"),
        _ => None,
    }
}

/// By what the time of a kernel is multiplied, by the roofline of a device of this speed, to be that of another.
pub(crate) fn factor(timed: &Timed, speed: Speed, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> f64 {
    let cost = op.cost(inputs, outputs);
    let roofline = |flops: f64, bytes: f64| (flops / speed.flops).max(bytes / speed.bytes).max(1e-12);
    roofline(cost.flops, cost.bytes) / roofline(timed.flops, timed.bytes)
}

/// Seconds of a kernel that does `factor` times the work of one that was timed: what starting it takes does not grow.
pub(crate) fn scaled(timed: Timed, factor: f64, speed: Speed) -> f64 {
    let call = speed.call.min(timed.seconds);
    if factor == 1.0 { timed.seconds } else { call + (timed.seconds - call) * factor }
}

/// The op and the element type of the first input of a kernel's name: `MatMul(…) bf16[8, 16] …`.
fn op_and_type(kernel: &str) -> (&str, &str) {
    let op = kernel.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    // Attributes may hold types too; operands are the words at the end, each with its shape in brackets.
    let rest = kernel.rfind(')').map_or(kernel, |at| &kernel[at + 1..]);
    (op, rest.trim_start().split('[').next().unwrap_or_default())
}
