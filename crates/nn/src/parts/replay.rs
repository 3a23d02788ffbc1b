//! Turns the graph of a computation over whole values into the same computation over what one rank has of them.

use plimsoll_graph::ops::Rank;
use plimsoll_graph::ops::{self, ReduceKind};
use plimsoll_graph::{ExchangeOps, Graph, Node, Op, TensorOps, Type, ValueId};
use plimsoll_run::{Result, Tensor, asked_at, named};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::Cut;
use super::find::outputs_of;
use super::rules::{Needs, Way, Whole};
use super::together::{Part, logits};
use crate::error::refuse;

/// A value as a rank has it: all of it, or its part.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) tensor: Tensor,
    pub(super) cut: Option<Cut>,
}

/// A computation on its way.
pub(super) struct Replay<'g> {
    graph: &'g Graph,
    rank: Rank,
    values: FxHashMap<ValueId, Held>,
    /// A tensor of the trace that everything is added to.
    anchor: Tensor,
}

impl<'g> Replay<'g> {
    /// Over these values of the graph's inputs.
    pub(super) fn new(
        graph: &'g Graph,
        rank: Rank,
        values: FxHashMap<ValueId, Held>,
        anchor: Tensor,
    ) -> Replay<'g> {
        Replay { graph, rank, values, anchor }
    }

    /// Runs all ops.
    pub(super) fn run(&mut self) -> Result<()> {
        let graph = self.graph;
        for (node, is_wanted) in graph.nodes().iter().zip(graph.leading_to(graph.outputs())) {
            // What nobody wants would still be exchanged.
            if !is_wanted {
                continue;
            }
            let made = asked_at(node.site, || match node.scope.as_str() {
                "" => self.node(node),
                scope => named(scope, || self.node(node)),
            })?;
            self.values.extend(node.outputs.iter().copied().zip(made));
        }
        Ok(())
    }

    /// A value as it is to be: whole, or cut.
    pub(super) fn value(&self, v: ValueId, need: Option<Cut>) -> Result<Tensor> {
        let held = self.held(v)?;
        let whole = self.graph.ty(v);
        match (held.cut, need) {
            (None, Some(need)) => need.own(&held.tensor, self.rank),
            (cut, need) if cut == need => Ok(held.tensor.clone()),
            (Some(cut), None) => cut.gathered(&held.tensor, whole, self.rank),
            (Some(cut), _) => {
                let all = cut.gathered(&held.tensor, whole, self.rank)?;
                need.map_or(Ok(all.clone()), |need| need.own(&all, self.rank))
            }
            (None, None) => Ok(held.tensor.clone()),
        }
    }

    fn held(&self, v: ValueId) -> Result<&Held> {
        let missing = || {
            let name = &self.graph.info(v).name;
            refuse(format!("reads {name}, a statistic that ranks with parts of a model do not have"))
        };
        self.values.get(&v).ok_or_else(missing)
    }

    fn operands(&self, node: &Node, needs: &Needs) -> Result<SmallVec<[Tensor; 4]>> {
        node.inputs.iter().zip(needs).map(|(v, need)| self.value(*v, *need)).collect()
    }

    fn emit(&self, op: Op, operands: &[Tensor], node: &Node) -> Result<SmallVec<[Tensor; 2]>> {
        self.anchor.emit(op, &operands.iter().collect::<SmallVec<[&Tensor; 4]>>(), node.site)
    }

    fn node(&self, node: &Node) -> Result<SmallVec<[Held; 2]>> {
        let cuts = node.inputs.iter().map(|v| self.held(*v).map(|held| held.cut));
        let cuts = cuts.collect::<Result<SmallVec<[Option<Cut>; 4]>>>()?;
        let types: SmallVec<[&Type; 4]> = node.inputs.iter().map(|v| self.graph.ty(*v)).collect();
        let output = self.graph.ty(node.outputs[0]);
        let whole = Whole { op: &node.op, inputs: &types, output, ranks: self.rank.ranks };
        let way = if cuts.iter().any(Option::is_some) { whole.way(&cuts) } else { None };
        let is_whole = |tensor: Tensor| Held { tensor, cut: None };
        let part = |own: &'_ Held, i: usize| (own.tensor.clone(), types[i].clone());
        match way {
            None => {
                let operands = self.operands(node, &smallvec![None; node.inputs.len()])?;
                Ok(self.emit(node.op.clone(), &operands, node)?.into_iter().map(is_whole).collect())
            }
            Some(Way::Local { op, needs, made }) => {
                let operands = self.operands(node, &needs)?;
                let outputs = self.emit(op, &operands, node)?.into_iter().take(outputs_of(&node.op, node));
                Ok(outputs.map(|tensor| Held { tensor, cut: Some(made) }).collect())
            }
            Some(Way::Summed { needs }) => {
                let operands = self.operands(node, &needs)?;
                Ok(smallvec![is_whole(self.summed(node, &operands)?)])
            }
            Some(Way::Dropped { cut }) => {
                let (own, whole) = part(self.held(node.inputs[0])?, 0);
                let Op::Dropout(op) = &node.op else { return Err(refuse("drops nothing")) };
                let part = Part { own: &own, whole: &whole, cut, rank: self.rank };
                let tensor = part.dropped(op, &self.value(node.inputs[1], None)?)?;
                Ok(smallvec![Held { tensor, cut: Some(cut) }])
            }
            Some(way @ (Way::Rows | Way::Loss | Way::Largest)) => {
                let (own, whole) = part(self.held(node.inputs[0])?, 0);
                let cut = cuts[0].ok_or_else(|| refuse("has parts of what is whole"))?;
                let part = Part { own: &own, whole: &whole, cut, rank: self.rank };
                Ok(match way {
                    Way::Rows => smallvec![is_whole(part.rows(&self.value(node.inputs[1], None)?)?)],
                    Way::Loss => {
                        let labels = self.value(node.inputs[1], None)?;
                        part.cross_entropy(&labels)?.into_iter().map(is_whole).collect()
                    }
                    _ => smallvec![is_whole(part.largest()?)],
                })
            }
            Some(Way::LinearLoss) => {
                let cap = if let Op::LinearCrossEntropy(op) = &node.op { op.cap } else { None };
                let (x, weight) = (self.value(node.inputs[0], None)?, &self.held(node.inputs[1])?.tensor);
                let own = logits(&x, weight, cap)?;
                let mut shape = types[0].shape.clone();
                let last = shape.rank() - 1;
                shape = shape.with(last, types[1].shape[0]);
                let (whole, cut) = (types[0].with_shape(shape), Cut::at(last));
                let part = Part { own: &own, whole: &whole, cut, rank: self.rank };
                let labels = self.value(node.inputs[2], None)?;
                // Of a layer that is not trained, the other result is for its own gradient alone.
                let known = if matches!(node.op, Op::FrozenCrossEntropy(_)) { 1 } else { 2 };
                Ok(part.cross_entropy(&labels)?.into_iter().take(known).map(is_whole).collect())
            }
        }
    }

    /// What a sum over parts comes to on all ranks.
    fn summed(&self, node: &Node, operands: &[Tensor]) -> Result<Tensor> {
        match &node.op {
            Op::MatMul(op) => {
                let plain = ops::MatMul { bias: false, act: None, ..*op };
                let own = self.emit(plain.into(), &operands[..2], node)?.remove(0);
                let mut sum = own.all_reduce(self.rank)?;
                if let Some(bias) = operands.get(2) {
                    sum = sum.add(bias)?;
                }
                match op.act {
                    Some(act) => Ok(self.emit(act.into(), &[sum], node)?.remove(0)),
                    None => Ok(sum),
                }
            }
            Op::MatMulAdd(op) => {
                let product = ops::MatMulAdd { add: false, ..*op };
                let sum = self.emit(product.into(), &operands[..2], node)?.remove(0).all_reduce(self.rank)?;
                operands.get(2).map_or(Ok(sum.clone()), |added| sum.add(added))
            }
            op => {
                let own = self.emit(op.clone(), operands, node)?.remove(0);
                let sum = own.all_reduce(self.rank)?;
                match op {
                    Op::Reduce(reduce) if reduce.kind == ReduceKind::Mean => {
                        sum.mul_scalar(1.0 / self.rank.ranks as f64)
                    }
                    _ => Ok(sum),
                }
            }
        }
    }
}
