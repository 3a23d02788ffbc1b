//! Turns kernels that were timed into times of others: of the same op, the one that is nearest in work is scaled by the work.

use plimsoll_device::backend::Speed;
use plimsoll_graph::{Op, Type};
use rustc_hash::FxHashMap;

use super::times::Timed;

/// Kernels by op, with what tells their work: the element type of the first input, and the numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Likes(FxHashMap<String, Vec<(String, Timed)>>);

impl Likes {
    pub(crate) fn new<'t>(kernels: impl Iterator<Item = (&'t String, &'t Timed)>) -> Likes {
        let mut likes = Likes::default();
        kernels.for_each(|(kernel, timed)| likes.add(kernel, *timed));
        likes
    }

    /// Adds a kernel. Of several that are equally near the first is taken, so they are in an order of their own: that in which they
    /// come must not show.
    pub(crate) fn add(&mut self, kernel: &str, timed: Timed) {
        let (op, dtype) = op_and_type(kernel);
        let rank = |dtype: &str, timed: &Timed| {
            let Timed { seconds, scratch, flops, bytes, .. } = timed;
            (dtype.to_string(), flops.to_bits(), bytes.to_bits(), *scratch, seconds.to_bits())
        };
        let (of_op, new) = (self.0.entry(op.into()).or_default(), rank(dtype, &timed));
        let at = of_op.partition_point(|(dtype, timed)| rank(dtype, timed) < new);
        of_op.insert(at, (dtype.into(), timed));
    }

    /// Takes a kernel away that was added as it is, because it was timed anew.
    pub(crate) fn remove(&mut self, kernel: &str, timed: &Timed) {
        let (op, _) = op_and_type(kernel);
        if let Some(of_op) = self.0.get_mut(op)
            && let Some(at) = of_op.iter().position(|(_, other)| other == timed)
        {
            of_op.remove(at);
        }
    }

    /// Whether any kernel of an op is known.
    pub(crate) fn knows(&self, op: &Op) -> bool {
        self.0.get(op.variant()).is_some_and(|kernels| !kernels.is_empty())
    }

    /// The kernel that stands for another one: with the factor of its work, by the roofline of a device of this speed.
    pub(crate) fn nearest(
        &self,
        speed: Speed,
        op: &Op,
        inputs: &[&Type],
        outputs: &[&Type],
    ) -> Option<(Timed, f64)> {
        let like = self.0.get(op.variant()).or_else(|| self.0.get(stand_in(op)?))?;
        let cost = op.cost(inputs, outputs);
        let dtype = inputs.first().map(|ty| ty.dtype.to_string()).unwrap_or_default();
        let far = |a: f64, b: f64| ((a + 1.0) / (b + 1.0)).ln().abs();
        let distance = |(kind, timed): &(String, Timed)| {
            let other = if *kind == dtype { 0.0 } else { 2.0 };
            far(cost.flops, timed.flops) + far(cost.bytes, timed.bytes) + other
        };
        let (_, timed) = like.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        let roofline = |flops: f64, bytes: f64| (flops / speed.flops).max(bytes / speed.bytes).max(1e-12);
        Some((*timed, roofline(cost.flops, cost.bytes) / roofline(timed.flops, timed.bytes)))
    }
}

/// The op that passes the same memory in the same way, for one that a file of before it was there knows nothing of.
fn stand_in(op: &Op) -> Option<&'static str> {
    match op {
        Op::MatMulAdd(_) => Some("MatMul"),
        Op::FrozenCrossEntropy(_) => Some("LinearCrossEntropyGrad"),
        Op::Rotary(_) => Some("Fused"),
        _ => None,
    }
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
