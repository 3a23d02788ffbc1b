//! Says whether a step over a batch is the weighted mean of steps over its parts, by comparing two traces of it.
//!
//! The same step traced for two batch sizes gives the same nodes with other shapes; an axis whose length differs counts
//! samples. Along such an axis nothing may be mixed on the way to the loss but by a mean.

use super::{Frame, Parts};
use crate::graph::{Graph, Node, Phase, ValueId};
use crate::op::Along;
use crate::ops::{Binary, ReduceKind, Unary};
use crate::{Op, Type};

/// Whether the passes over the parts of a batch add up to the pass over the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Splits {
    /// Up to rounding.
    Exactly,
    /// Only if statistics of the parts may stand for those of the batch; says whose.
    Approximately(String),
    /// No; says why.
    Not(String),
}

/// What a value has to do with samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Nothing, or only with the position of the first sample.
    Apart,
    /// An axis of it counts samples.
    Samples,
    /// A mean over samples.
    Mean,
    /// A statistic of the batch, which only a layer's own state may follow.
    Statistic,
}

/// Compares a step's trace for `sizes.0` samples with that for `sizes.1`: whether passes over parts of a batch, one after the other, add up.
pub fn splits(graphs: (&Graph, &Graph), sizes: (usize, usize), frame: &Frame) -> Splits {
    compare(graphs, sizes, frame, false)
}

/// As [`splits`], for parts that ranks have at the same time: what they exchange on the way is of the whole batch.
pub fn shares(graphs: (&Graph, &Graph), sizes: (usize, usize), frame: &Frame) -> Splits {
    compare(graphs, sizes, frame, true)
}

fn compare(graphs: (&Graph, &Graph), sizes: (usize, usize), frame: &Frame, at_once: bool) -> Splits {
    let (one, two) = graphs;
    if one.nodes().len() != two.nodes().len() || one.values().len() != two.values().len() {
        return Splits::Not("the model does other things for another batch size".into());
    }
    let parts = Parts::new(one, frame);
    let mut roles = vec![Role::Apart; one.values().len()];
    let mut scaled = Vec::with_capacity(one.values().len());
    for (a, b) in one.values().iter().zip(two.values()) {
        match scaled_axes(&a.ty, &b.ty, sizes) {
            Some(axes) => scaled.push(axes),
            None => return Splits::Not(format!("{} takes a part of the batch ({})", a.name, a.site)),
        }
    }
    for &v in &one.inputs()[frame.batch()] {
        if !scaled[v.index()].is_empty() {
            roles[v.index()] = Role::Samples;
        }
    }
    let averaged = averaged(one, frame);
    let in_a_loss = in_a_loss(one);
    let mut answer = Splits::Exactly;
    for (i, node) in one.nodes().iter().enumerate() {
        let reads = |role: Role| node.inputs.iter().any(|v| roles[v.index()] == role);
        // A gradient is linear in what leads to it, unless something is made of it that is differentiated again.
        let of_gradient = node.phase == Phase::Backward && !in_a_loss[i];
        // A layer that takes statistics may count its samples for its own state.
        let counts = !of_gradient && averaged[i] && !reads(Role::Statistic);
        if counts && !same_numbers(node, &two.nodes()[i]) {
            return Splits::Not(format!("{} depends on the size of the batch ({})", name(node), node.site));
        }
        // Its parts are in the step already.
        if matches!(&node.op, Op::Exchange(exchange) if exchange.is_between_two()) {
            return Splits::Not(format!("{} goes from stage to stage in parts of its own", name(node)));
        }
        // What all ranks have of each other's says nothing of this one's samples.
        if node.op.is_exchange() && at_once && !parts.once[i] {
            continue;
        }
        // Every rank would have to make as many passes.
        if node.op.is_exchange() && node.phase == Phase::Backward {
            return Splits::Not(format!(
                "{} is exchanged between ranks on the way back ({})",
                name(node),
                node.site
            ));
        }
        // What runs once gets the sum of what the passes hand over: rows of samples have none.
        let is_row = |v: &ValueId| !scaled[v.index()].is_empty() && parts.of_pass(one, *v);
        if parts.once[i] && !at_once && node.inputs.iter().any(is_row) {
            return Splits::Not(format!(
                "{} reads a row a sample and runs once for all of them ({})",
                name(node),
                node.site
            ));
        }
        let plain = !reads(Role::Samples) && !reads(Role::Mean) && !reads(Role::Statistic);
        if plain {
            let counts = matches!(node.op, Op::Iota(_)) && !scaled[node.outputs[0].index()].is_empty();
            if counts {
                return Splits::Not(format!("{} numbers the samples ({})", name(node), node.site));
            }
            continue;
        }
        if node.op.is_exchange() && !parts.once[i] {
            return Splits::Not(format!(
                "{} exchanges values of the whole batch ({})",
                name(node),
                node.site
            ));
        }
        // The update is not part of a pass.
        if of_gradient || parts.once[i] || !averaged[i] {
            continue;
        }
        if matches!(node.op, Op::BatchNorm(_)) {
            if answer == Splits::Exactly {
                answer = Splits::Approximately(format!("{} takes statistics over the batch", name(node)));
            }
            roles[node.outputs[0].index()] = Role::Samples;
            node.outputs[1..].iter().for_each(|v| roles[v.index()] = Role::Statistic);
            continue;
        }
        match role(node, one, &roles, &scaled) {
            Ok(role) => node.outputs.iter().for_each(|v| roles[v.index()] = role),
            Err(why) => return Splits::Not(format!("{} {why} ({})", name(node), node.site)),
        }
    }
    let sums = |v: &&ValueId| roles[v.index()] == Role::Samples;
    let means = &one.outputs()[frame.state..one.outputs().len() - frame.totals];
    if let Some(v) = means.iter().find(sums) {
        return Splits::Not(format!("{} leaves the step with a row a sample", one.info(*v).name));
    }
    answer
}

/// By node: whether it leads to anything but totals.
fn averaged(graph: &Graph, frame: &Frame) -> Vec<bool> {
    graph.leading_to(&graph.outputs()[..graph.outputs().len() - frame.totals])
}

/// By node: whether something is made of it that a gradient is taken through. Of the nodes of a gradient these are the ones of a
/// gradient penalty, or of an update in the middle of a step.
fn in_a_loss(graph: &Graph) -> Vec<bool> {
    let mut before = vec![false; graph.values().len()];
    let mut inside = vec![false; graph.nodes().len()];
    for (i, node) in graph.nodes().iter().enumerate().rev() {
        inside[i] = node.is_differentiated || node.outputs.iter().any(|v| before[v.index()]);
        if inside[i] {
            node.inputs.iter().for_each(|v| before[v.index()] = true);
        }
    }
    inside
}

/// Whether the numbers that an op holds are the same for both batch sizes.
fn same_numbers(one: &Node, two: &Node) -> bool {
    match (&one.op, &two.op) {
        (Op::Unary(a), Op::Unary(b)) => a == b,
        (Op::Full(a), Op::Full(b)) => a.value == b.value,
        _ => true,
    }
}

/// The axes that count samples, or `None` if a length is not in proportion to the batch.
fn scaled_axes(a: &Type, b: &Type, sizes: (usize, usize)) -> Option<Vec<usize>> {
    if a.dtype != b.dtype || a.shape.rank() != b.shape.rank() {
        return None;
    }
    let mut axes = Vec::new();
    for axis in 0..a.shape.rank() {
        if a.shape[axis] != b.shape[axis] {
            if a.shape[axis] * sizes.1 != b.shape[axis] * sizes.0 {
                return None;
            }
            axes.push(axis);
        }
    }
    Some(axes)
}

/// What a forward node makes of what it reads.
fn role(node: &Node, graph: &Graph, roles: &[Role], scaled: &[Vec<usize>]) -> Result<Role, &'static str> {
    let of = |v: &ValueId| roles[v.index()];
    if node.inputs.iter().any(|v| of(v) == Role::Samples) {
        if node.inputs.iter().any(|v| matches!(of(v), Role::Mean | Role::Statistic)) {
            return Err("brings a mean over the batch back to the samples");
        }
        let axes = || node.outputs.iter().map(|v| &*scaled[v.index()]);
        if axes().any(|axes| axes.len() > 1) {
            return Err("compares samples with each other");
        }
        if axes().all(|axes| axes.len() == 1) {
            let inputs: Vec<&Type> = node.inputs.iter().map(|&v| &graph.info(v).ty).collect();
            let to = scaled[node.outputs[0].index()][0];
            let apart = |(operand, v): (usize, &ValueId)| {
                scaled[v.index()]
                    .iter()
                    .all(|&axis| node.op.keeps_apart(&Along { operand, axis, to, inputs: &inputs }))
            };
            return if node.inputs.iter().enumerate().all(apart) {
                Ok(Role::Samples)
            } else {
                Err("mixes samples")
            };
        }
        return match &node.op {
            Op::Reduce(reduce) if reduce.kind == ReduceKind::Mean => Ok(Role::Mean),
            Op::Reduce(reduce) if reduce.kind == ReduceKind::Sum => {
                Err("sums over samples; take their mean, so that parts can be weighted by their samples")
            }
            _ => Err("mixes samples"),
        };
    }
    if node.inputs.iter().any(|v| of(v) == Role::Statistic) {
        return Ok(Role::Statistic);
    }
    let means = node.inputs.iter().filter(|v| of(v) == Role::Mean).count();
    let linear = match &node.op {
        Op::Unary(Unary::Neg | Unary::AddScalar(_) | Unary::MulScalar(_)) => true,
        Op::StopGradient(_) | Op::OwnGradient(_) => true,
        Op::Cast(_) | Op::Reshape(_) | Op::Broadcast(_) | Op::Transpose(_) | Op::Concat(_) => true,
        Op::Reduce(reduce) => matches!(reduce.kind, ReduceKind::Mean | ReduceKind::Sum),
        Op::Binary(Binary::Add | Binary::Sub) => true,
        Op::Binary(Binary::Mul) => means == 1,
        Op::Binary(Binary::Div) => of(&node.inputs[1]) != Role::Mean,
        _ => false,
    };
    if linear { Ok(Role::Mean) } else { Err("is not linear in a mean over samples") }
}

fn name(node: &Node) -> String {
    if node.scope.is_empty() { node.op.name().into() } else { format!("{}/{}", node.scope, node.op.name()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Rank;
    use crate::{CumulativeOps, ExchangeOps, ReorderOps, SortOps, VolumeOps};
    use crate::{DType, LossOps, NormOps, Result, SoftmaxOps, Sym, TensorOps, Trace, gradient};

    /// What is said of a loss over x `[n, 6]` and w `[6, 4]`.
    fn said(loss: impl Fn(&Sym, &Sym) -> Result<Sym>) -> Splits {
        let trace = |n: usize| {
            let trace = Trace::new();
            let w = trace.input("w", Type::new(DType::F32, [6, 4]));
            let x = trace.input("x", Type::new(DType::F32, [n, 6]));
            let loss = loss(&x, &w).unwrap();
            let grad = gradient(&loss, None, &[&w]).unwrap().remove(0).unwrap();
            trace.finish(&[&w.sub(&grad).unwrap(), &loss]).unwrap()
        };
        splits((&trace(4), &trace(10)), (4, 10), &Frame { state: 1, inputs: 1, totals: 0 })
    }

    #[test]
    fn a_mean_over_samples_splits_exactly() {
        let plain = said(|x, w| x.matmul(w)?.square()?.sum(&[1], false)?.mean(&[], false)?.mul_scalar(0.5));
        assert_eq!(plain, Splits::Exactly);
        let two = said(|x, w| {
            let y = x.matmul(w)?;
            let entropy = y.softmax(-1)?.mul(&y.log_softmax(-1)?)?.sum(&[1], false)?.mean(&[], false)?;
            let decay = w.square()?.sum(&[], false)?.mul_scalar(0.1)?;
            y.square()?.mean(&[], false)?.sub(&entropy)?.add(&decay)
        });
        assert_eq!(two, Splits::Exactly);
    }

    #[test]
    fn what_mixes_samples_is_named() {
        let not = |splits: Splits, part: &str| match splits {
            Splits::Not(why) => assert!(why.contains(part), "{why}"),
            other => panic!("{other:?}"),
        };
        not(said(|x, w| x.matmul(w)?.square()?.sum(&[], false)), "sums over samples");
        not(said(|x, w| x.matmul(w)?.square()?.mean(&[], false)?.sqrt()), "not linear");
        not(said(|x, w| x.matmul(w)?.softmax(0)?.square()?.mean(&[], false)), "mixes samples");
        not(
            said(|x, w| {
                let y = x.matmul(w)?;
                y.sub(&y.mean(&[0], true)?)?.square()?.mean(&[], false)
            }),
            "back to the samples",
        );
        not(
            said(|x, w| {
                let y = x.matmul(w)?;
                y.matmul_with(&y, None, false, true)?.softmax(-1)?.mean(&[], false)
            }),
            "compares samples",
        );
        not(said(|x, w| x.matmul(w)?.slice(&[(0, 0, 1, 1)])?.square()?.mean(&[], false)), "mixes samples");
        // Half of the batch, and an order of elements in which samples are strewn: as long for every batch, and not the same.
        let half = |x: &Sym| x.slice(&[(0, 0, x.ty().shape[0] / 2, 1)]);
        not(said(|x, w| half(&x.matmul(w)?)?.square()?.mean(&[], false)), "mixes samples");
        let strewn = |x: &Sym| x.reshape([2, 2 * x.ty().shape[0]]);
        not(said(|x, w| strewn(&x.matmul(w)?)?.softmax(0)?.square()?.mean(&[], false)), "mixes samples");
    }

    /// What is said of x `[n, 6]` and w `[6, 4]` with a loss over the slope of some scores with respect to x.
    fn said_of_slopes(scores: impl Fn(Sym) -> Result<Sym>, loss: impl Fn(Sym) -> Result<Sym>) -> Splits {
        said(|x, w| {
            let scores = scores(x.matmul(w)?.tanh()?)?;
            let slope = gradient(&scores, None, &[x])?.remove(0).expect("scores depend on x");
            loss(slope.square()?.sum(&[1], false)?)
        })
    }

    #[test]
    fn a_gradient_in_a_loss_splits_where_it_is_each_samples_own() {
        let sum = |scores: Sym| scores.sum(&[], false);
        let mean = |rows: Sym| rows.sqrt()?.add_scalar(-1.0)?.square()?.mean(&[], false);
        assert_eq!(said_of_slopes(sum, mean), Splits::Exactly);
        let not = |splits: Splits, part: &str| match splits {
            Splits::Not(why) => assert!(why.contains(part), "{why}"),
            other => panic!("{other:?}"),
        };
        not(said_of_slopes(sum, |rows| rows.sum(&[], false)), "sums over samples");
        not(said_of_slopes(sum, |rows| rows.mean(&[], false)?.sqrt()), "not linear");
        // The slope of a mean is smaller for a larger batch.
        not(said_of_slopes(|scores| scores.mean(&[], false), mean), "depends on the size of the batch");
    }

    #[test]
    fn an_update_in_the_middle_of_a_step_does_not_split() {
        let said = said(|x, w| {
            let first = x.matmul(w)?.square()?.mean(&[], false)?;
            let slope = gradient(&first, None, &[w])?.remove(0).expect("the loss depends on w");
            x.matmul(&w.sub(&slope)?)?.tanh()?.mean(&[], false)
        });
        assert!(matches!(&said, Splits::Not(_)), "{said:?}");
    }

    #[test]
    fn rows_of_samples_that_ranks_exchange_without_a_gradient_do_not_split() {
        let said = |rows: &dyn Fn(&Sym) -> Result<Sym>| {
            let trace = |n: usize| {
                let trace = Trace::new();
                let w = trace.input("w", Type::new(DType::F32, [6, 4]));
                let x = trace.input("x", Type::new(DType::F32, [n, 6]));
                let loss = rows(&x.matmul(&w).unwrap()).unwrap().mean(&[], false).unwrap();
                trace.finish(&[&w, &loss]).unwrap()
            };
            splits((&trace(4), &trace(10)), (4, 10), &Frame { state: 1, inputs: 1, totals: 0 })
        };
        let rank = Rank::new(0, 2);
        assert_eq!(said(&|y| y.mean(&[], false)?.all_reduce(rank)), Splits::Exactly);
        let exchanged = said(&|y| y.max(&[1], false)?.all_reduce_max(rank));
        assert!(matches!(&exchanged, Splits::Not(why) if why.contains("a row a sample")), "{exchanged:?}");
    }

    #[test]
    fn what_runs_along_another_axis_than_the_samples_splits_exactly() {
        let along = |axis: isize| {
            said(move |x, w| {
                let y = x.matmul(w)?.sort(axis, false)?.cumsum(axis)?.flip(&[axis])?.roll(1, axis)?;
                y.square()?.mean(&[], false)
            })
        };
        assert_eq!(along(1), Splits::Exactly);
        assert!(matches!(along(0), Splits::Not(why) if why.contains("mixes samples")));
        let volumes = said(|x, w| {
            let filter = w.narrow(0, 0, 1)?.reshape([2, 1, 1, 1, 2])?;
            let y = x.reshape([x.shape()[0], 3, 2, 1, 1])?.conv3d(&filter, None, Default::default())?;
            y.max_pool3d([2, 1, 1], [1; 3], Default::default())?.square()?.mean(&[], false)
        });
        assert_eq!(volumes, Splits::Exactly);
    }

    #[test]
    fn batch_statistics_split_approximately() {
        let said = said(|x, w| {
            let y = x.matmul(w)?;
            let scale = w.mean(&[0], false)?;
            y.batch_norm(&scale, &scale, 1e-5)?.0.square()?.mean(&[], false)
        });
        assert!(matches!(said, Splits::Approximately(why) if why.contains("batch_norm")));
    }

    #[test]
    fn labels_and_cross_entropy_split_exactly() {
        let trace = |n: usize| {
            let trace = Trace::new();
            let w = trace.input("w", Type::new(DType::F32, [6, 4]));
            let x = trace.input("x", Type::new(DType::F32, [n, 6]));
            let y = trace.input("y", Type::new(DType::I64, [n]));
            let loss = x.matmul(&w).unwrap().softmax_cross_entropy(&y).unwrap().mean(&[], false).unwrap();
            trace.finish(&[&w, &loss]).unwrap()
        };
        let said = splits((&trace(4), &trace(10)), (4, 10), &Frame { state: 1, inputs: 2, totals: 0 });
        assert_eq!(said, Splits::Exactly);
    }
}
