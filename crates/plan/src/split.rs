//! Turns a step over a batch into the same step over k micro-batches.
//!
//! Forward and backward run k times over tensors whose batch share is k times smaller; what the update reads of
//! them (gradients) and what they leave for the caller (the loss) is summed in accumulators; the update runs once,
//! with the last micro-batch, where it stood. The sums are the same up to rounding.

use crate::problem::{Algorithm, Home, Op, OpId, Phase, Problem, Tensor, TensorId, View};
use plimsoll_record::Kind;
use std::collections::HashMap;

/// Where an op of a split step comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is an op of the whole step, run for one micro-batch.
    Op {
        /// The op of the whole step.
        op: OpId,
        /// Which micro-batch, from 0.
        micro_batch: u32,
    },
    /// It adds a micro-batch's share of a tensor to the sum so far.
    Accumulate {
        /// The tensor of the whole step.
        tensor: TensorId,
        /// Which micro-batch's share, from 1.
        micro_batch: u32,
    },
}

/// A step over k micro-batches.
#[derive(Clone, Debug)]
pub struct Split {
    /// The step, as the planner sees it.
    pub problem: Problem,
    /// For each op, where it comes from.
    pub ops: Vec<Origin>,
    /// For each tensor, the tensor of the whole step and the micro-batch it belongs to.
    pub tensors: Vec<(TensorId, u32)>,
}

/// The numbers of micro-batches into which a batch can be split evenly, ascending, without 1.
pub fn candidates(problem: &Problem, most: u32) -> Vec<u32> {
    let most = u64::from(most).min(problem.batch);
    (2..=most).filter(|k| problem.batch.is_multiple_of(*k)).map(|k| k as u32).collect()
}

/// Splits a step into `micro_batches` equal parts. `None` if the update reads something with one row a sample,
/// if a view would be cut in the middle of a byte, or if the batch cannot be divided so.
pub fn split(problem: &Problem, micro_batches: u32) -> Option<Split> {
    let k = u64::from(micro_batches);
    if k == 0 || !problem.batch.is_multiple_of(k) {
        return None;
    }
    if k == 1 {
        let ops =
            (0..problem.ops.len() as u32).map(|op| Origin::Op { op: OpId(op), micro_batch: 0 }).collect();
        let tensors = (0..problem.tensors.len() as u32).map(|tensor| (TensorId(tensor), 0)).collect();
        return Some(Split { problem: problem.clone(), ops, tensors });
    }
    let mut builder = Builder {
        whole: problem,
        k,
        split: Split {
            problem: Problem { tensors: vec![], ops: vec![], batch: problem.batch / k, ..problem.clone() },
            ops: vec![],
            tensors: vec![],
        },
        residents: HashMap::new(),
        part: HashMap::new(),
        sum: HashMap::new(),
        summed: summed(problem)?,
    };
    for (index, t) in problem.tensors.iter().enumerate() {
        if t.home == Home::Resident && t.view.is_none() {
            let id = TensorId(index as u32);
            let made = builder.tensor(id, 0, t.clone());
            builder.residents.insert(id, made);
        }
    }
    for micro_batch in 0..micro_batches {
        builder.part.clear();
        for (index, op) in problem.ops.iter().enumerate() {
            if op.phase == Phase::Each || micro_batch + 1 == micro_batches {
                builder.op(OpId(index as u32), micro_batch)?;
            }
        }
    }
    Some(builder.split)
}

/// Which tensors are summed over micro-batches: made for each, read once or left at the end, not one row a sample.
fn summed(problem: &Problem) -> Option<Vec<bool>> {
    let mut summed = vec![false; problem.tensors.len()];
    let mut made_for_each = vec![false; problem.tensors.len()];
    for op in &problem.ops {
        for &tensor in &op.reads {
            let root = problem.root(tensor).0.index();
            if op.phase == Phase::Once && made_for_each[root] {
                if problem.tensors[root].batch_bytes > 0 {
                    return None;
                }
                summed[root] = true;
            }
        }
        for &tensor in &op.writes {
            made_for_each[tensor.index()] = op.phase == Phase::Each;
            let t = &problem.tensors[tensor.index()];
            summed[tensor.index()] |= op.phase == Phase::Each && t.home == Home::Output && t.batch_bytes == 0;
        }
    }
    Some(summed)
}

struct Builder<'a> {
    whole: &'a Problem,
    k: u64,
    split: Split,
    residents: HashMap<TensorId, TensorId>,
    /// Tensors of the present micro-batch.
    part: HashMap<TensorId, TensorId>,
    /// Sums so far.
    sum: HashMap<TensorId, TensorId>,
    summed: Vec<bool>,
}

impl Builder<'_> {
    fn tensor(&mut self, of: TensorId, micro_batch: u32, tensor: Tensor) -> TensorId {
        self.split.tensors.push((of, micro_batch));
        self.split.problem.tensor(tensor)
    }

    fn scaled(&self, whole: u64, batch: u64) -> u64 {
        whole - batch + batch.div_ceil(self.k)
    }

    /// The tensor of this micro-batch that stands for `id`, which must be made already unless it is a view.
    fn read(&mut self, id: TensorId, micro_batch: u32, once: bool) -> Option<TensorId> {
        if let Some(view) = self.whole.tensors[id.index()].view {
            let of = self.read(view.of, micro_batch, once)?;
            let t = &self.whole.tensors[id.index()];
            let resident = self.residents.contains_key(&view.of);
            let batch = if resident { 0 } else { t.batch_bytes };
            if batch > 0 && !view.offset.is_multiple_of(self.k) {
                return None;
            }
            let offset = if batch > 0 { view.offset / self.k } else { view.offset };
            let bytes = self.scaled(t.bytes, batch);
            let tensor = Tensor {
                bytes,
                batch_bytes: batch.div_ceil(self.k),
                view: Some(View { of, offset }),
                ..t.clone()
            };
            return Some(self.tensor(id, micro_batch, tensor));
        }
        if let Some(&resident) = self.residents.get(&id) {
            return Some(resident);
        }
        if once && self.summed[id.index()] {
            return self.sum.get(&id).copied();
        }
        self.part.get(&id).copied()
    }

    fn op(&mut self, id: OpId, micro_batch: u32) -> Option<()> {
        let whole = &self.whole.ops[id.index()];
        let once = whole.phase == Phase::Once;
        let mut op = Op { reads: vec![], writes: vec![], in_place: vec![], updates: vec![], ..whole.clone() };
        for &read in &whole.reads {
            op.reads.push(self.read(read, micro_batch, once)?);
        }
        let last = u64::from(micro_batch) + 1 == self.k;
        for &written in &whole.writes {
            let t = &self.whole.tensors[written.index()];
            let batch = if once { 0 } else { t.batch_bytes };
            let bytes = self.scaled(t.bytes, batch);
            let mut tensor = Tensor { bytes, batch_bytes: batch.div_ceil(self.k), ..t.clone() };
            if self.summed[written.index()] {
                tensor.home = Home::Transient;
            }
            let made = self.tensor(written, micro_batch, tensor);
            op.writes.push(made);
            self.part.insert(written, made);
        }
        for &(read, written) in &whole.in_place {
            let at = whole.reads.iter().position(|r| *r == read)?;
            op.in_place.push((op.reads[at], self.part[&written]));
        }
        for updated in &whole.updates {
            op.updates.push(*self.residents.get(updated)?);
        }
        if !once {
            for way in &mut op.algorithms {
                way.scratch = self.scaled(way.scratch, way.batch_scratch);
                way.ns = self.scaled(way.ns, way.batch_ns);
                way.batch_scratch = way.batch_scratch.div_ceil(self.k);
                way.batch_ns = way.batch_ns.div_ceil(self.k);
            }
        }
        self.split.problem.op(op);
        self.split.ops.push(Origin::Op { op: id, micro_batch });
        if !once {
            for &written in &whole.writes {
                if self.summed[written.index()] {
                    self.accumulate(written, micro_batch, last);
                }
            }
        }
        Some(())
    }

    /// Adds a micro-batch's share to the sum; the first share is the sum.
    fn accumulate(&mut self, id: TensorId, micro_batch: u32, last: bool) {
        let share = self.part[&id];
        let home = self.whole.tensors[id.index()].home;
        let Some(&sum) = self.sum.get(&id) else {
            if last {
                self.split.problem.tensors[share.index()].home = home;
            }
            self.sum.insert(id, share);
            return;
        };
        let whole = &self.whole.tensors[id.index()];
        let home = if last { home } else { Home::Transient };
        let tensor =
            Tensor { home, kind: Kind::Gradient, name: format!("{} sum", whole.name), ..whole.clone() };
        let seconds = whole.bytes as f64 / self.whole.accumulate_bytes_per_second.max(1) as f64;
        let next = self.tensor(id, micro_batch, tensor);
        let mut op = Op::new(format!("accumulate {}", whole.name), &[sum, share], &[next], 0);
        op.in_place = vec![(sum, next)];
        op.algorithms = vec![Algorithm::of_ns((seconds * 1e9).ceil() as u64)];
        self.split.problem.op(op);
        self.split.ops.push(Origin::Accumulate { tensor: id, micro_batch });
        self.sum.insert(id, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> Problem {
        let mut p = Problem::new(8);
        let w = p.tensor(Tensor::resident("w", 64));
        let x = p.tensor(Tensor { batch_bytes: 1024, ..Tensor::transient("x", 1024) });
        let g = p.tensor(Tensor { kind: Kind::Gradient, ..Tensor::transient("g", 64) });
        let mut forward = Op::new("forward", &[w], &[x], 100);
        forward.algorithms[0].batch_ns = 80;
        p.op(forward);
        p.op(Op::new("backward", &[x, w], &[g], 50));
        let mut sgd = Op::new("sgd", &[g], &[], 10);
        sgd.updates = vec![w];
        sgd.phase = Phase::Once;
        p.op(sgd);
        p
    }

    #[test]
    fn a_split_step_is_valid_and_sums_its_gradients() {
        let split = split(&step(), 4).unwrap();
        split.problem.check().unwrap();
        let names: Vec<&str> = split.problem.ops.iter().map(|op| op.name.as_str()).collect();
        let pass = ["forward", "backward", "accumulate g"];
        assert_eq!(names[..2], pass[..2]);
        assert_eq!(names[2..5], pass);
        assert_eq!(names[8..], ["forward", "backward", "accumulate g", "sgd"]);
        assert_eq!(split.problem.tensors[1].bytes, 256);
        assert_eq!(split.problem.ops[0].algorithms[0].ns, 40);
        assert_eq!(split.ops[4], Origin::Accumulate { tensor: TensorId(2), micro_batch: 1 });
    }

    #[test]
    fn a_batch_is_split_only_into_equal_parts() {
        assert_eq!(candidates(&step(), 64), [2, 4, 8]);
        assert!(split(&step(), 3).is_none());
    }

    #[test]
    fn an_update_that_reads_rows_of_samples_forbids_a_split() {
        let mut p = step();
        p.ops[2].reads.push(TensorId(1));
        assert!(split(&p, 2).is_none());
    }
}
