//! Values of several ranks that become each other's: all-reduce, reduce-scatter, all-gather, one rank's values for all, and for one.
//!
//! Every rank runs the same exchanges in the same order, or none gets on. So that no planner can put them in another, each reads a token
//! that the one before it makes: a value without bytes. [`Trace::push`](crate::Trace::push) hands it on.

use smallvec::smallvec;

use crate::error::{Error, Result};
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Cost, Rule, Types, traffic};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Shape, Site, Type, shard};

/// Which exchange it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeKind {
    /// Every rank has the sum of all ranks' values, added in the order of ranks.
    Sum,
    /// Every rank has the largest of all ranks' values.
    Max,
    /// Every rank has its shard of the sum, of the values one after the other: one axis.
    ScatterSum,
    /// Every rank has the shards of all, as values of this shape.
    Gather(Shape),
    /// Every rank has the values of this one.
    From(usize),
    /// This rank alone has the values: it receives them, at its own place in the order.
    Send(usize),
    /// The values, of this type, are this rank's, which sends them.
    Receive(usize, Type),
}

/// A rank among others: among all, or in a group of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank {
    /// Which, from 0 on.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// How far two that follow each other are apart among all ranks: 1 but for a group of some that are no neighbours.
    pub stride: usize,
}

impl Rank {
    /// The only one.
    pub const ONLY: Rank = Rank::new(0, 1);

    /// One of so many.
    pub const fn new(rank: usize, ranks: usize) -> Rank {
        Rank { rank, ranks, stride: 1 }
    }

    /// Where these ranks are so many groups of neighbours, as many in each: which one of its group it is, and which one of those that have its
    /// place in their groups.
    ///
    /// ```
    /// use plimsoll_graph::ops::Rank;
    /// let (in_group, of_groups) = Rank::new(4, 6).grouped(2);
    /// assert_eq!(in_group, Rank::new(1, 3));
    /// assert_eq!(of_groups, Rank { rank: 1, ranks: 2, stride: 3 });
    /// // Ranks 1 and 4 have the same place.
    /// assert_eq!([0, 1].map(|other| of_groups.among_all(4, other)), [1, 4]);
    /// ```
    pub const fn grouped(self, groups: usize) -> (Rank, Rank) {
        let each = self.ranks / groups;
        let in_group = Rank { rank: self.rank % each, ranks: each, stride: self.stride };
        (in_group, Rank { rank: self.rank / each, ranks: groups, stride: self.stride * each })
    }

    /// Whether this is what one of all ranks is in a group of them.
    pub const fn is_in(self, all: Rank) -> bool {
        all.rank / self.stride % self.ranks == self.rank && all.ranks.is_multiple_of(self.stride * self.ranks)
    }

    /// Which of all ranks a rank of this group is, seen from this one, which is `own` among all.
    pub const fn among_all(self, own: usize, other: usize) -> usize {
        own - self.rank * self.stride + other * self.stride
    }

    /// Which of so many values are its own.
    pub const fn shard(self, len: usize) -> std::ops::Range<usize> {
        shard(len, self.ranks, self.rank)
    }
}

/// y = values that all ranks exchange, and a token that the next exchange reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Exchange {
    /// Which exchange.
    pub kind: ExchangeKind,
    /// Which rank makes it.
    pub of: Rank,
    /// Whether x is a total over samples and no mean of them: parts of a batch add to it with their full weight.
    pub is_total: bool,
    /// Whether what a gradient reads of y is exchanged anew on the way back, so that y need not be there in between.
    pub anew: bool,
}

impl Exchange {
    /// What stands for the order of exchanges: nothing.
    fn token() -> Type {
        Type::new(DType::U8, [0])
    }

    /// The values of all ranks together.
    pub fn len(&self, x: &Type) -> usize {
        match &self.kind {
            ExchangeKind::Gather(shape) => shape.elements(),
            ExchangeKind::Receive(_, y) => y.elements(),
            _ => x.elements(),
        }
    }

    /// Whether two ranks alone make it, one of which sends and the other receives.
    pub fn is_between_two(&self) -> bool {
        matches!(self.kind, ExchangeKind::Send(_) | ExchangeKind::Receive(..))
    }
}

impl Rule for Exchange {
    const NAME: &'static str = "exchange";

    fn name(&self) -> &'static str {
        match self.kind {
            ExchangeKind::Sum | ExchangeKind::Max => "all_reduce",
            ExchangeKind::ScatterSum => "reduce_scatter",
            ExchangeKind::Gather(_) => "all_gather",
            ExchangeKind::From(_) => "of_rank",
            ExchangeKind::Send(_) => "send",
            ExchangeKind::Receive(..) => "receive",
        }
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let x = match inputs {
            [x] => x,
            [x, token] if **token == Exchange::token() => x,
            [_, token] => {
                return Err(format!(
                    "its second input is the token of the exchange before it, and not {token}"
                ));
            }
            _ => return Err(format!("it takes values and a token, and was given {} inputs", inputs.len())),
        };
        let Rank { rank, ranks, .. } = self.of;
        if rank >= ranks {
            return Err(format!("there is no rank {rank} among {ranks}; they count from 0"));
        }
        let y = match &self.kind {
            ExchangeKind::Sum | ExchangeKind::Max | ExchangeKind::ScatterSum if x.dtype == DType::Bool => {
                return Err("truth values have no sum and no order; cast them first".into());
            }
            ExchangeKind::Sum | ExchangeKind::Max => (*x).clone(),
            ExchangeKind::ScatterSum => x.with_shape([self.of.shard(x.elements()).len()]),
            ExchangeKind::Gather(shape) => {
                let own = self.of.shard(shape.elements()).len();
                if x.elements() != own {
                    return Err(format!(
                        "the shard of rank {rank} of {ranks} in {shape} has {own} elements, and {x} has {}",
                        x.elements()
                    ));
                }
                x.with_shape(shape.clone())
            }
            ExchangeKind::From(root) if *root >= ranks => {
                return Err(format!("there is no rank {root} among {ranks}; they count from 0"));
            }
            ExchangeKind::From(_) => (*x).clone(),
            ExchangeKind::Send(other) | ExchangeKind::Receive(other, _)
                if *other >= ranks || *other == rank =>
            {
                return Err(format!("rank {rank} of {ranks} exchanges nothing with rank {other}"));
            }
            ExchangeKind::Send(_) => Exchange::token(),
            ExchangeKind::Receive(..) if **x != Exchange::token() => {
                return Err(format!("what is received is made of nothing, and not of {x}"));
            }
            ExchangeKind::Receive(_, y) => y.clone(),
        };
        Ok(smallvec![y, Exchange::token()])
    }

    /// What every rank has all of, and gets all of, may be written over what it had.
    fn in_place(&self) -> smallvec::SmallVec<[(usize, usize); 2]> {
        match self.kind {
            ExchangeKind::Sum | ExchangeKind::Max | ExchangeKind::From(_) => smallvec![(0, 0)],
            _ => smallvec![],
        }
    }

    /// What the rank itself reads, adds and writes; what the link takes, only those know who have one.
    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let adds = match self.kind {
            ExchangeKind::Sum | ExchangeKind::Max | ExchangeKind::ScatterSum => self.of.ranks - 1,
            _ => 0,
        };
        let x = inputs.first().map_or(0, |x| x.elements());
        Cost { flops: (x * adds) as f64 / self.of.ranks as f64, bytes: traffic(inputs, outputs) }
    }

    /// The loss that is differentiated is the sum of all ranks' losses. So what went to all ranks as a sum comes back as the sum of their
    /// gradients, what was gathered as this rank's shard of it, and what was scattered is gathered.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let kind = match &self.kind {
            ExchangeKind::Sum => ExchangeKind::Sum,
            ExchangeKind::ScatterSum => ExchangeKind::Gather(at.input_type(0).shape.clone()),
            ExchangeKind::Gather(_) => ExchangeKind::ScatterSum,
            ExchangeKind::Max => {
                return Err(
                    at.no_gradient("the largest of all ranks' values has none; reduce them by their sum")
                );
            }
            ExchangeKind::Send(_) | ExchangeKind::Receive(..) => {
                return Err(at.no_gradient(
                    "what one rank sends another comes back where that one sends it; say so where the step is traced",
                ));
            }
            ExchangeKind::From(_) => {
                return Err(at.no_gradient(
                    "values of one rank that all ranks have send none back; broadcast before the loss is traced",
                ));
            }
        };
        let back = Exchange { kind, of: self.of, is_total: self.is_total, anew: false };
        let dx = at.push(back, &[&at.grad(0)?])?.remove(0);
        let dx = if dx.ty() == at.input_type(0) { dx } else { dx.reshape(&at.input_type(0).shape)? };
        // A token has no gradient.
        Ok([Some(dx)].into_iter().chain((1..at.n_inputs()).map(|_| None)).collect())
    }

    /// What comes out where all ranks have the same values: the one case that a single rank can compute.
    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, shape) = (inputs[0], &outputs[0].shape);
        let ranks = self.of.ranks as f64;
        let data = match &self.kind {
            ExchangeKind::Max | ExchangeKind::From(_) => x.data.clone(),
            ExchangeKind::Sum => x.data.iter().map(|x| x * ranks).collect(),
            ExchangeKind::ScatterSum => {
                x.data[self.of.shard(x.data.len())].iter().map(|x| x * ranks).collect()
            }
            // All ranks' shards are taken to begin with the same values.
            ExchangeKind::Gather(_) => {
                let n = shape.elements();
                let of = |rank| 0..shard(n, self.of.ranks, rank).len();
                let at = |i: usize| x.data.get(i).or(x.data.last()).copied().unwrap_or(0.0);
                (0..self.of.ranks).flat_map(of).map(at).collect()
            }
            // Nobody is there to send or to receive.
            ExchangeKind::Send(_) | ExchangeKind::Receive(..) => vec![0.0; shape.elements()],
        };
        vec![Array::new(shape.clone(), data), Array::new([0], Vec::new())]
    }

    /// Of the only rank: what a device does that is connected to nobody. Several ranks are tested where they are connected.
    fn examples(dice: &mut Dice) -> Vec<Example> {
        let shape = Shape::from([dice.range(1, 4), dice.range(1, 9)]);
        let flat = Shape::from([shape.elements()]);
        let kinds = [
            (ExchangeKind::Sum, &shape),
            (ExchangeKind::Max, &shape),
            (ExchangeKind::ScatterSum, &shape),
            (ExchangeKind::Gather(shape.clone()), &flat),
            (ExchangeKind::From(0), &shape),
        ];
        let mut examples = Vec::new();
        for (kind, shape) in kinds {
            for (dtype, domain) in [(DType::F32, Domain::Normal), (DType::I64, Domain::Index(9))] {
                let op = Exchange { kind: kind.clone(), of: Rank::ONLY, is_total: false, anew: false };
                examples.push(Example::new(op, vec![(Type::new(dtype, shape.clone()), domain)]));
            }
        }
        examples
    }
}

/// What ranks do with each other's values. All of them do the same in the same order.
///
/// ```
/// use plimsoll_graph::{DType, ExchangeOps, TensorOps, Trace, Type, ops::Rank};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [2, 3]));
/// let of = Rank::new(1, 4);
/// assert_eq!(x.all_reduce(of)?.ty(), x.ty());
/// // 6 values among 4 ranks: 2, 2, 1, 1.
/// let own = x.reduce_scatter(of)?;
/// assert_eq!(own.shape()[..], [2]);
/// assert_eq!(own.all_gather(of, [2, 3])?.ty(), x.ty());
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait ExchangeOps: TensorOps {
    /// The sum of all ranks' values.
    #[track_caller]
    fn all_reduce(&self, of: Rank) -> Result<Self, Self::Error> {
        exchanged(self, Exchange { kind: ExchangeKind::Sum, of, is_total: false, anew: false })
    }

    /// The sum of all ranks' totals over samples: counts for a metric, say.
    #[track_caller]
    fn all_reduce_total(&self, of: Rank) -> Result<Self, Self::Error> {
        exchanged(self, Exchange { kind: ExchangeKind::Sum, of, is_total: true, anew: false })
    }

    /// The largest of all ranks' values. It has no gradient.
    #[track_caller]
    fn all_reduce_max(&self, of: Rank) -> Result<Self, Self::Error> {
        exchanged(self, Exchange { kind: ExchangeKind::Max, of, is_total: false, anew: false })
    }

    /// This rank's shard of the sum of all ranks' values, in one axis.
    #[track_caller]
    fn reduce_scatter(&self, of: Rank) -> Result<Self, Self::Error> {
        exchanged(self, Exchange { kind: ExchangeKind::ScatterSum, of, is_total: false, anew: false })
    }

    /// The values of which every rank has its shard.
    #[track_caller]
    fn all_gather(&self, of: Rank, shape: impl Into<Shape>) -> Result<Self, Self::Error> {
        let kind = ExchangeKind::Gather(shape.into());
        exchanged(self, Exchange { kind, of, is_total: false, anew: false })
    }

    /// As [`ExchangeOps::all_gather`]; what a gradient reads of the values is gathered anew on the way back, so that they need not be there in
    /// between.
    #[track_caller]
    fn all_gather_anew(&self, of: Rank, shape: impl Into<Shape>) -> Result<Self, Self::Error> {
        let kind = ExchangeKind::Gather(shape.into());
        exchanged(self, Exchange { kind, of, is_total: false, anew: true })
    }

    /// The values of one rank. They have no gradient.
    #[track_caller]
    fn of_rank(&self, of: Rank, root: usize) -> Result<Self, Self::Error> {
        exchanged(self, Exchange { kind: ExchangeKind::From(root), of, is_total: false, anew: false })
    }

    /// Sends these values to a rank, which receives them ([`ExchangeOps::received`]) at its place in the order: nothing comes out here. They have no
    /// gradient.
    ///
    /// All messages between ranks stand in one order, in which each rank does its own: then none waits for one that waits for it.
    #[track_caller]
    fn send_to(&self, of: Rank, to: usize) -> Result<Self, Self::Error> {
        exchanged(self, Exchange { kind: ExchangeKind::Send(to), of, is_total: false, anew: false })
    }

    /// Values of a type that a rank sends. Of this tensor nothing is read.
    #[track_caller]
    fn received(&self, of: Rank, from: usize, ty: Type) -> Result<Self, Self::Error> {
        let nothing = self.full_like(Exchange::token(), 0.0)?;
        exchanged(
            &nothing,
            Exchange { kind: ExchangeKind::Receive(from, ty), of, is_total: false, anew: false },
        )
    }
}

impl<T: TensorOps> ExchangeOps for T {}

#[track_caller]
fn exchanged<T: TensorOps>(x: &T, op: Exchange) -> Result<T, T::Error> {
    let name = Rule::name(&op);
    let made = x.emit(op.into(), &[x], Site::here())?;
    made.into_iter().next().ok_or_else(|| Error::Internal(format!("{name} made nothing")).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::interpret;
    use crate::{Op, Trace, gradients};

    fn ranks() -> impl Iterator<Item = Rank> {
        (1..5).flat_map(|ranks| (0..ranks).map(move |rank| Rank::new(rank, ranks)))
    }

    #[test]
    fn shards_of_all_ranks_are_the_whole() {
        for n in [1, 5, 8] {
            for ranks in 1..5 {
                let own = (0..ranks).map(|rank| {
                    let op = Exchange {
                        kind: ExchangeKind::ScatterSum,
                        of: Rank::new(rank, ranks),
                        is_total: false,
                        anew: false,
                    };
                    Op::from(op).infer(&[&Type::new(DType::F32, [n])]).unwrap()[0].elements()
                });
                assert_eq!(own.sum::<usize>(), n);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let why = |kind: ExchangeKind, ty: Type| {
            let op = Exchange { kind, of: Rank::new(1, 2), is_total: false, anew: false };
            Op::from(op).infer(&[&ty]).unwrap_err()
        };
        let x = |n: usize| Type::new(DType::F32, [n]);
        assert!(why(ExchangeKind::Gather([5].into()), x(3)).contains("has 2 elements"));
        assert!(why(ExchangeKind::From(2), x(3)).contains("no rank 2 among 2"));
        assert!(why(ExchangeKind::Sum, Type::new(DType::Bool, [3])).contains("cast"));
        let sum = |of: Rank| Op::from(Exchange { kind: ExchangeKind::Sum, of, is_total: false, anew: false });
        let op = sum(Rank::new(2, 2));
        assert!(op.infer(&[&x(1)]).unwrap_err().contains("no rank 2"));
        let op = sum(Rank::ONLY);
        assert!(op.infer(&[&x(1), &x(1)]).unwrap_err().contains("token"));
    }

    #[test]
    fn what_two_ranks_exchange_has_the_senders_type_and_a_place_in_the_order() {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [4]));
        let (of, other) = (Rank::new(0, 2), Type::new(DType::BF16, [2, 3]));
        x.send_to(of, 1).unwrap();
        let y = x.received(of, 1, other.clone()).unwrap();
        assert_eq!(*y.ty(), other);
        let graph = crate::passes::optimize(&trace.finish(&[&y]).unwrap()).unwrap();
        let names: Vec<&str> = graph.nodes().iter().map(|node| node.op.name()).collect();
        // What is sent is sent although nobody here reads what comes of it.
        assert_eq!(names.iter().filter(|name| **name == "send").count(), 1, "{graph}");
        assert!(x.send_to(of, 0).is_err() && x.received(of, 2, other).is_err());
    }

    #[test]
    fn each_exchange_reads_the_token_of_the_one_before() {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [4]));
        let of = Rank::new(0, 2);
        let (a, b) = (x.all_reduce(of).unwrap(), x.all_reduce(of).unwrap());
        let loss = a.add(&b).unwrap().square().unwrap().sum(&[], false).unwrap();
        let slope = gradients(&[(&loss, None)], &[&x], Site::here()).unwrap().remove(0).unwrap();
        let graph = crate::passes::optimize(&trace.finish(&[&slope]).unwrap()).unwrap();
        let exchanges: Vec<_> = graph.nodes().iter().filter(|n| n.op.is_exchange()).collect();
        // The same values exchanged twice are two exchanges: ranks would lose count of them otherwise.
        assert_eq!(exchanges.len(), 4, "{graph}");
        for pair in exchanges.windows(2) {
            assert_eq!(pair[1].inputs[1], pair[0].outputs[1], "{graph}");
        }
    }

    #[test]
    fn what_is_gathered_anew_is_read_by_nobody_on_the_way_back() {
        let of = Rank::new(0, 2);
        let graph = |is_anew: bool| {
            let trace = Trace::new();
            let (x, own) = (
                trace.input("x", Type::new(DType::F64, [3, 4])),
                trace.input("w", Type::new(DType::F64, [6])),
            );
            let all = match is_anew {
                true => own.all_gather_anew(of, [12]).unwrap(),
                false => own.all_gather(of, [12]).unwrap(),
            };
            let w = all.reshape([4, 3]).unwrap();
            let y = x.matmul(&w).unwrap().tanh().unwrap().matmul(&w.transpose(&[1, 0]).unwrap()).unwrap();
            let loss = y.square().unwrap().sum(&[], false).unwrap();
            let slopes = gradients(&[(&loss, None)], &[&x, &own], Site::here()).unwrap();
            let slopes: Vec<Sym> = slopes.into_iter().map(Option::unwrap).collect();
            trace.finish(&slopes.iter().collect::<Vec<_>>()).unwrap()
        };
        let (kept, anew) = (graph(false), graph(true));
        let gathers = |graph: &crate::Graph| -> Vec<crate::NodeId> {
            let all = graph.nodes().iter().enumerate();
            all.filter(|(_, node)| node.op.name() == "all_gather")
                .map(|(i, _)| crate::NodeId(i as u32))
                .collect()
        };
        assert_eq!((gathers(&kept).len(), gathers(&anew).len()), (1, 2), "{anew}");
        // What is made of the first gathering alone, and who reads it.
        let mut made = vec![anew.node(gathers(&anew)[0]).outputs[0]];
        for node in anew.nodes() {
            if node.inputs.iter().any(|v| made.contains(v)) {
                assert_ne!(node.phase, crate::Phase::Backward, "{anew}");
                if node.inputs.len() == 1 {
                    made.extend(&node.outputs);
                }
            }
        }
        assert!(made.len() > 2, "{anew}");
        let mut dice = Dice::new(5);
        let types = [Type::new(DType::F64, [3, 4]), Type::new(DType::F64, [6])];
        let values: Vec<Array> = types.iter().map(|ty| Domain::Normal.fill(ty, &mut dice)).collect();
        let (a, b) = (interpret(&kept, &values), interpret(&anew, &values));
        assert!(a.iter().zip(&b).all(|(a, b)| a.data == b.data));
    }

    #[test]
    fn gradients_over_ranks_agree_with_finite_differences() {
        for of in ranks() {
            // Shards of one length, since the reference takes all ranks' values as the same.
            let n = 2 * of.ranks;
            let whole = Type::new(DType::F64, [2, of.ranks]);
            let own = Type::new(DType::F64, [of.shard(n).len()]);
            for (kind, ty) in [(ExchangeKind::Sum, &whole), (ExchangeKind::Gather(whole.shape.clone()), &own)]
            {
                let trace = Trace::new();
                let x = trace.input("x", ty.clone());
                let op = Exchange { kind: kind.clone(), of, is_total: false, anew: false };
                let y = exchanged(&x, op).unwrap();
                let loss = y.square().unwrap().sum(&[], false).unwrap();
                let slope = gradients(&[(&loss, None)], &[&x], Site::here()).unwrap().remove(0).unwrap();
                let (f, g) = (trace.finish(&[&loss]).unwrap(), trace.finish(&[&slope]).unwrap());
                let value = Domain::Normal.fill(ty, &mut Dice::new(3));
                let analytic = interpret(&g, std::slice::from_ref(&value)).remove(0);
                for i in 0..ty.elements() {
                    let at = |delta: f64| {
                        let mut moved = value.clone();
                        moved.data[i] += delta;
                        // All ranks move alike, and the loss is the sum of theirs.
                        interpret(&f, &[moved])[0].data[0]
                    };
                    let numeric = (at(1e-5) - at(-1e-5)) / 2e-5;
                    // Moving the values of all ranks at once counts every rank's part in the one loss.
                    let error = (numeric - analytic.data[i]).abs() / (1.0 + numeric.abs());
                    assert!(error < 1e-6, "{kind:?} of {of:?}: {} but {numeric}", analytic.data[i]);
                }
            }
        }
    }

    #[test]
    fn what_has_no_gradient_says_so() {
        for kind in [ExchangeKind::Max, ExchangeKind::From(0)] {
            let trace = Trace::new();
            let x = trace.input("x", Type::new(DType::F64, [3]));
            let of = Rank::new(0, 2);
            let y = exchanged(&x, Exchange { kind, of, is_total: false, anew: false }).unwrap();
            let loss = y.sum(&[], false).unwrap();
            assert!(gradients(&[(&loss, None)], &[&x], Site::here()).is_err());
        }
    }
}
