//! Turns a problem into the name of its answers: whoever keeps answers finds them again by it.
//!
//! A plan that is found so is verified before it is used, so that nothing rests on digests being different.

use crate::problem::{Link, Op, Problem, Tensor};
use plimsoll_record::Digest;

/// What tells planners apart: it changes with every line of this crate.
pub const PLANNER: &str = env!("PLIMSOLL_PLANNER");

impl Problem {
    /// The digest of all that a floor depends on: the planner, and the whole problem but its names and its times.
    ///
    /// ```
    /// use plimsoll_plan::{Op, Problem, Tensor};
    /// let step = |name: &str, bytes: u64, ns: u64| {
    ///     let mut step = Problem::new();
    ///     let a = step.tensor(Tensor::output(name, bytes));
    ///     step.op(Op::new("make it", &[], &[a], ns));
    ///     step
    /// };
    /// assert_eq!(step("a", 64, 5).digest(), step("b", 64, 7).digest());
    /// assert_ne!(step("a", 64, 5).digest(), step("a", 65, 5).digest());
    /// assert_ne!(step("a", 64, 5).digest_of_times(), step("a", 64, 7).digest_of_times());
    /// ```
    pub fn digest(&self) -> Digest {
        let Problem { tensors, ops, scratch_alignment, link } = self;
        let mut sum = Digest::of(PLANNER.as_bytes()).with((
            tensors.len(),
            ops.len(),
            scratch_alignment,
            link.is_some(),
        ));
        for Tensor { name: _, bytes, alignment, home, kind, view } in tensors {
            let view = view.map(|view| (view.of, view.offset));
            sum = sum.with((bytes, alignment, home, kind, view));
        }
        for op in ops {
            let Op {
                name: _,
                reads,
                writes,
                in_place,
                updates,
                ns: _,
                scratch,
                replayable,
                anew,
                carry,
                beside,
            } = op;
            sum = sum.with((reads, writes, in_place, updates, scratch, replayable, carry, beside));
            sum = sum.with(anew);
        }
        sum
    }

    /// The digest of its times alone: of its ops and of its link.
    pub fn digest_of_times(&self) -> Digest {
        let speed = self.link.map(|Link { bytes_per_second, start_ns }| (bytes_per_second, start_ns));
        self.ops.iter().fold(Digest::of(b"times").with(speed), |sum, op| sum.with(op.ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, TensorId};

    fn step() -> Problem {
        let mut step = Problem::new();
        let a = step.tensor(Tensor::transient("a", 64));
        let b = step.tensor(Tensor::output("b", 128));
        step.op(Op::new("make a", &[], &[a], 5));
        step.op(Op::new("make b", &[a], &[b], 6));
        step
    }

    #[test]
    fn all_but_names_and_times_is_in_the_digest_of_a_problem() {
        let (first, mut other) = (step(), step());
        other.ops[0].name = "another name".into();
        other.tensors[1].name = "another".into();
        other.ops[1].ns += 1;
        assert_eq!(other.digest(), first.digest());
        assert_ne!(other.digest_of_times(), first.digest_of_times());
        let changes: [fn(&mut Problem); 9] = [
            |p| p.tensors[0].bytes += 1,
            |p| p.tensors[0].alignment = 128,
            |p| p.tensors[0].kind = Kind::Gradient,
            |p| p.ops[1].reads.clear(),
            |p| p.ops[1].in_place.push((TensorId(0), TensorId(1))),
            |p| p.ops[0].scratch = 1,
            |p| p.ops[0].replayable = false,
            |p| p.scratch_alignment = 256,
            |p| p.link = Some(Link::new(7)),
        ];
        let mut digests = vec![first.digest()];
        for change in changes {
            let mut other = step();
            change(&mut other);
            digests.push(other.digest());
        }
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), changes.len() + 1);
    }
}
