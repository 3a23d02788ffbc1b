//! Refuses problems that contradict themselves, before anything is planned.

use crate::problem::{Carry, Home, Op, OpId, Problem, TensorId};
use thiserror::Error;

/// Why a problem makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProblemError {
    /// An op names a tensor that is not there.
    #[error("{op} names {tensor}, but there are only {tensors} tensors")]
    NoSuchTensor {
        /// The op.
        op: OpId,
        /// What it named.
        tensor: TensorId,
        /// How many there are.
        tensors: usize,
    },
    /// An op reads a tensor that no earlier op has written.
    #[error("{op} reads {tensor} before any op has written it")]
    ReadBeforeWrite {
        /// The op.
        op: OpId,
        /// What it reads.
        tensor: TensorId,
    },
    /// A tensor is written twice by ops that do not make it anew, or a resident or a view is written at all.
    #[error(
        "{op} writes {tensor}, which is resident, a view or already written; use `updates` for residents, and `anew` for the same bits once more"
    )]
    BadWrite {
        /// The op.
        op: OpId,
        /// What it writes.
        tensor: TensorId,
    },
    /// An op updates a tensor that is not resident.
    #[error("{op} updates {tensor}, which is not resident")]
    BadUpdate {
        /// The op.
        op: OpId,
        /// What it updates.
        tensor: TensorId,
    },
    /// An in-place pair is not (a read, a written tensor).
    #[error(
        "{op} has an in-place pair ({read}, {written}) that is not one of its reads and one of its writes"
    )]
    BadInPlace {
        /// The op.
        op: OpId,
        /// The first of the pair.
        read: TensorId,
        /// The second of the pair.
        written: TensorId,
    },
    /// An op that copies from or to the host does something else too.
    #[error(
        "{op} copies from or to the host, so it must read nothing and write one tensor of its own bytes, or write nothing and first \
         read a transient of its own bytes, change no state, need no scratch, and run once"
    )]
    BadCarry {
        /// The op.
        op: OpId,
    },
    /// An op that makes tensors anew may run again, is a copy, or writes over what it reads.
    #[error("{op} makes a tensor anew, so it must run once, in a place of its own")]
    BadAnew {
        /// The op.
        op: OpId,
    },
    /// A view leaves its tensor, or is a view of a view.
    #[error("{tensor} is a view that does not lie inside one tensor with bytes of its own")]
    BadView {
        /// The view.
        tensor: TensorId,
    },
    /// An alignment is not a power of two.
    #[error("{tensor} has alignment {alignment}, which is not a power of two")]
    BadAlignment {
        /// The tensor.
        tensor: TensorId,
        /// Its alignment.
        alignment: u64,
    },
    /// The scratch alignment is not a power of two.
    #[error("the scratch alignment {alignment} is not a power of two")]
    BadScratchAlignment {
        /// The alignment.
        alignment: u64,
    },
    /// The sums of bytes or times leave 63 bits.
    #[error("the step's bytes or nanoseconds add up to more than 2^63")]
    TooLarge,
    /// An output or a tensor that someone reads is never written.
    #[error("output {tensor} is never written")]
    NeverWritten {
        /// The output.
        tensor: TensorId,
    },
}

impl Problem {
    /// Checks that every tensor is written once before it is read, and that views, pairs and sizes make sense.
    pub fn check(&self) -> Result<(), ProblemError> {
        self.check_tensors()?;
        let mut written = vec![false; self.tensors.len()];
        for (index, op) in self.ops.iter().enumerate() {
            let op_id = OpId(index as u32);
            let known = |&tensor: &TensorId| match tensor.index() < self.tensors.len() {
                true => Ok(()),
                false => Err(ProblemError::NoSuchTensor { op: op_id, tensor, tensors: self.tensors.len() }),
            };
            op.reads.iter().chain(&op.writes).chain(&op.updates).try_for_each(known)?;
            for &tensor in &op.reads {
                let (root, _) = self.root(tensor);
                if self.tensors[root.index()].home != Home::Resident && !written[root.index()] {
                    return Err(ProblemError::ReadBeforeWrite { op: op_id, tensor });
                }
            }
            for &tensor in &op.writes {
                let t = &self.tensors[tensor.index()];
                let is_anew = op.anew && t.home == Home::Transient;
                if t.home == Home::Resident || t.view.is_some() || written[tensor.index()] && !is_anew {
                    return Err(ProblemError::BadWrite { op: op_id, tensor });
                }
                written[tensor.index()] = true;
            }
            for &tensor in &op.updates {
                let t = &self.tensors[tensor.index()];
                if t.home != Home::Resident || t.view.is_some() {
                    return Err(ProblemError::BadUpdate { op: op_id, tensor });
                }
            }
            for &(read, write) in &op.in_place {
                if !op.reads.contains(&read) || !op.writes.contains(&write) {
                    return Err(ProblemError::BadInPlace { op: op_id, read, written: write });
                }
            }
            if op.anew && (op.replayable || op.carry.is_some() || !op.in_place.is_empty()) {
                return Err(ProblemError::BadAnew { op: op_id });
            }
            if op.carry.is_some_and(|way| !self.is_plain_carry(op, way)) {
                return Err(ProblemError::BadCarry { op: op_id });
            }
        }
        let missing = |(i, t): (usize, &crate::problem::Tensor)| {
            (t.home == Home::Output && t.view.is_none() && !written[i]).then_some(TensorId(i as u32))
        };
        match self.tensors.iter().enumerate().find_map(missing) {
            Some(tensor) => Err(ProblemError::NeverWritten { tensor }),
            None => Ok(()),
        }
    }

    /// Whether an op that copies does nothing else.
    fn is_plain_carry(&self, op: &Op, way: Carry) -> bool {
        let transient = |t: &TensorId| {
            let t = &self.tensors[t.index()];
            t.home == Home::Transient && t.view.is_none()
        };
        let moves = match way {
            Carry::In => op.reads.is_empty() && op.writes.len() == 1 && op.writes.iter().all(transient),
            Carry::Out => op.writes.is_empty() && op.reads.first().is_some_and(transient),
        };
        moves && op.scratch == 0 && !op.replayable && op.updates.is_empty()
    }

    fn check_tensors(&self) -> Result<(), ProblemError> {
        if !self.scratch_alignment.is_power_of_two() {
            return Err(ProblemError::BadScratchAlignment { alignment: self.scratch_alignment });
        }
        let mut total: u128 = 0;
        for (index, t) in self.tensors.iter().enumerate() {
            let tensor = TensorId(index as u32);
            if !t.alignment.is_power_of_two() {
                return Err(ProblemError::BadAlignment { tensor, alignment: t.alignment });
            }
            total += u128::from(t.bytes) + 2 * u128::from(t.alignment);
            if let Some(view) = t.view {
                let inside = self.tensors.get(view.of.index()).is_some_and(|root| {
                    root.view.is_none()
                        && view.offset.checked_add(t.bytes).is_some_and(|end| end <= root.bytes)
                });
                if !inside {
                    return Err(ProblemError::BadView { tensor });
                }
            }
        }
        for op in &self.ops {
            // Replays multiply times, so leave them room.
            total += u128::from(op.scratch) + 256 * u128::from(op.ns);
        }
        if total >= 1 << 63 { Err(ProblemError::TooLarge) } else { Ok(()) }
    }
}
