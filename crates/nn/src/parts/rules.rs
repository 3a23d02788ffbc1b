//! Turns an op over values of which ranks have parts into what a rank does: the same op over parts, or a sum over ranks of what parts come to.
//!
//! The same rules say where a model can be cut and how it is run when it is, so that the two cannot differ. What is not known here is done on whole
//! values.

use plimsoll_graph::ops::{self, Binary, ReduceKind, Unary};
use plimsoll_graph::{Op, Shape, Type};
use smallvec::{SmallVec, smallvec};

use super::Cut;

/// Of each operand: the cut it must have, none where it is whole.
pub(super) type Needs = SmallVec<[Option<Cut>; 4]>;

/// How ranks do an op on parts.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// Each does this op on its parts and has its part of what it gives.
    Local { op: Op, needs: Needs, made: Cut },
    /// What each finds on its parts is added up over ranks.
    Summed { needs: Needs },
    /// Each draws the mask of the whole and takes its part.
    Dropped { cut: Cut },
    /// Rows of a table, each from the rank that has them.
    Rows,
    /// Cross-entropy over classes of which each has some.
    Loss,
    /// The same of a linear layer of which each has some classes.
    LinearLoss,
    /// The place of the largest, of which each has some.
    Largest,
}

/// An op as it was traced on whole values.
#[derive(Clone, Copy)]
pub(super) struct Whole<'a> {
    pub(super) op: &'a Op,
    pub(super) inputs: &'a [&'a Type],
    /// Its first output.
    pub(super) output: &'a Type,
    pub(super) ranks: usize,
}

impl Whole<'_> {
    /// How ranks do it, where its operands have these cuts; nothing where they must have whole ones. Some operand is cut.
    pub(super) fn way(&self, cuts: &[Option<Cut>]) -> Option<Way> {
        let (i, cut) = cuts.iter().enumerate().find_map(|(i, cut)| cut.map(|cut| (i, cut)))?;
        let x = self.inputs[i];
        let others_are_whole = cuts.iter().skip(i + 1).all(Option::is_none);
        match self.op {
            Op::CrossEntropy(_) if i == 0 && cut == Cut::at(x.shape.rank() - 1) && others_are_whole => {
                return Some(Way::Loss);
            }
            Op::LinearCrossEntropy(_) | Op::FrozenCrossEntropy(_)
                if i == 1 && cut == Cut::at(0) && others_are_whole =>
            {
                return Some(Way::LinearLoss);
            }
            Op::ArgMax(ops::ArgMax { axis }) if cut == Cut::at(*axis) => return Some(Way::Largest),
            Op::Gather(ops::Gather { axis: 0 })
                if i == 0 && cut == Cut::at(0) && others_are_whole && x.shape.rank() == 2 =>
            {
                return Some(Way::Rows);
            }
            _ => {}
        }
        if let Some(needs) = self.summed(i, cut) {
            return self.agrees(cuts, &needs, true).then_some(Way::Summed { needs });
        }
        let made = self.arrives(i, cut)?;
        let needs = self.needs(made)?;
        if !made.fits(self.output, self.ranks) || !self.agrees(cuts, &needs, false) {
            return None;
        }
        if let Op::Dropout(_) = self.op {
            return Some(Way::Dropped { cut });
        }
        Some(Way::Local { op: self.local(made), needs, made })
    }

    /// Whether operands that are cut are cut as they must be, and others can be. Zeros that fill up a part must not come to anything.
    fn agrees(&self, cuts: &[Option<Cut>], needs: &Needs, is_summed: bool) -> bool {
        let linear = matches!(
            self.op,
            Op::Cast(_)
                | Op::StopGradient(_)
                | Op::Reshape(_)
                | Op::MatMul(_)
                | Op::MatMulAdd(_)
                | Op::Binary(Binary::Add | Binary::Sub | Binary::Mul)
        );
        cuts.iter().zip(needs).zip(self.inputs).enumerate().all(|(i, ((cut, need), x))| match (cut, need) {
            (None, None) => true,
            (Some(_), None) => false,
            (Some(cut), Some(need)) if cut != need => false,
            (_, Some(need)) => {
                let is_even = need.is_even(x, self.ranks);
                // A part of sums must have zeros itself, which what is computed need not have.
                need.fits(x, self.ranks) && (is_even || linear && !(is_summed && i == 0 && cut.is_some()))
            }
        })
    }

    /// What operands of a sum over a cut axis must be, where this is one of operand `i`.
    fn summed(&self, i: usize, cut: Cut) -> Option<Needs> {
        if let Some(op) = product(self.op) {
            let axes = self.summed_axes(&op);
            if i > 1 || axes[i] != cut.axis {
                return None;
            }
            let mut needs: Needs = smallvec![None; self.inputs.len()];
            for (need, axis) in needs.iter_mut().zip(axes) {
                *need = Some(Cut { axis, ..cut });
            }
            return Some(needs);
        }
        match self.op {
            Op::Reduce(ops::Reduce { kind: ReduceKind::Sum | ReduceKind::Mean, axes, .. })
                if axes.contains(&cut.axis) && cut.is_even(self.inputs[0], self.ranks) =>
            {
                Some(smallvec![Some(cut)])
            }
            _ => None,
        }
    }

    /// The axes of both operands of a product that it sums over.
    fn summed_axes(&self, op: &ops::MatMul) -> [usize; 2] {
        let [a, b] = [self.inputs[0].shape.rank(), self.inputs[1].shape.rank()];
        [if op.ta { a - 2 } else { a - 1 }, if op.tb { b - 1 } else { b - 2 }]
    }

    /// The axis of the second operand that is the last of a product.
    pub(super) fn columns_axis(&self, op: &ops::MatMul) -> usize {
        2 * self.inputs[1].shape.rank() - 3 - self.summed_axes(op)[1]
    }

    /// The cut of the output, where operand `i` is cut so and passes place by place.
    fn arrives(&self, i: usize, cut: Cut) -> Option<Cut> {
        let (x, y) = (&self.inputs[i].shape, &self.output.shape);
        let behind = |axis: usize| axis + y.rank() - x.rank();
        let found = |axis: usize| Some(Cut { axis, ..cut });
        match self.op {
            op if is_elementwise(op) => found(behind(cut.axis)),
            Op::Dropout(_) if i == 0 => found(cut.axis),
            Op::Reshape(_) => reshaped(cut, x, y, self.ranks),
            Op::Transpose(ops::Transpose(order)) => found(order.iter().position(|&from| from == cut.axis)?),
            Op::Slice(ops::Slice(axes)) if is_all(axes[cut.axis], x[cut.axis]) => found(cut.axis),
            Op::Split(ops::Split { axis, .. }) if *axis != cut.axis => found(cut.axis),
            Op::Split(ops::Split { axis, sizes }) => {
                let unit = x[*axis] / cut.blocks;
                let is_alike = sizes.iter().all(|size| *size == sizes[0] && size.is_multiple_of(unit));
                is_alike.then(|| Cut { axis: *axis, blocks: sizes[0] / unit })
            }
            Op::Concat(ops::Concat { axis }) if *axis != cut.axis => found(cut.axis),
            Op::Broadcast(_) => found(behind(cut.axis)),
            Op::Reduce(ops::Reduce { axes, keep, .. }) if !axes.contains(&cut.axis) => {
                let gone = if *keep { 0 } else { axes.iter().filter(|axis| **axis < cut.axis).count() };
                found(cut.axis - gone)
            }
            Op::Softmax(ops::Softmax { axis }) | Op::LogSoftmax(ops::LogSoftmax { axis })
                if *axis != cut.axis =>
            {
                found(cut.axis)
            }
            Op::LayerNorm(op) if i == 0 && cut.axis + op.axes < x.rank() => found(cut.axis),
            Op::RmsNorm(_) if i == 0 && cut.axis + 1 < x.rank() => found(cut.axis),
            Op::Attention(_) if i < 3 && cut == Cut::at(2) => found(2),
            // A turn is of a head's features, and all heads of a position turn alike.
            Op::Rotary(_) if i == 0 && cut.axis == 2 => found(2),
            Op::MatMulAdd(_) if i == 2 => found(cut.axis),
            op => product(op).and_then(|op| match i {
                0 if cut.axis + 2 < x.rank() => found(cut.axis),
                // The one of the last two axes that is not summed over is that of rows.
                0 => found(y.rank() - 2),
                1 if cut.axis == self.columns_axis(&op) => found(y.rank() - 1),
                1 => found(cut.axis),
                _ => found(y.rank() - 1),
            }),
        }
    }

    /// What operands must be for the output to be cut so.
    pub(super) fn needs(&self, cut: Cut) -> Option<Needs> {
        let y = &self.output.shape;
        let same = |axis: usize| Some(Cut { axis, ..cut });
        let aligned = |x: &&Type| {
            let axis = (cut.axis + x.shape.rank()).checked_sub(y.rank())?;
            (x.shape[axis] == y[cut.axis] && y[cut.axis] > 1).then_some(Cut { axis, ..cut })
        };
        let first = |need: Option<Cut>| -> Option<Needs> {
            let mut needs: Needs = smallvec![None; self.inputs.len()];
            needs[0] = Some(need?);
            Some(needs)
        };
        match self.op {
            op if is_elementwise(op) => Some(self.inputs.iter().map(aligned).collect()),
            Op::Broadcast(_) => Some(self.inputs.iter().map(aligned).collect()),
            Op::Dropout(_) => first(same(cut.axis)),
            Op::Reshape(_) => first(reshaped(cut, y, &self.inputs[0].shape, self.ranks)),
            Op::Transpose(ops::Transpose(order)) => first(same(order[cut.axis])),
            Op::Slice(ops::Slice(axes)) => {
                first(same(cut.axis).filter(|_| is_all(axes[cut.axis], self.inputs[0].shape[cut.axis])))
            }
            Op::Split(ops::Split { axis, .. }) if *axis != cut.axis => first(same(cut.axis)),
            Op::Split(ops::Split { axis, sizes }) => {
                let is_alike = sizes.iter().all(|size| *size == sizes[0]);
                let blocks = sizes.len() * cut.blocks;
                first(is_alike.then_some(Cut { axis: *axis, blocks }))
            }
            Op::Concat(ops::Concat { axis }) if *axis != cut.axis => {
                Some(smallvec![same(cut.axis); self.inputs.len()])
            }
            Op::Reduce(ops::Reduce { axes, keep, .. }) => {
                let stay = (0..self.inputs[0].shape.rank()).filter(|axis| *keep || !axes.contains(axis));
                let from = stay.into_iter().nth(cut.axis).filter(|axis| !axes.contains(axis));
                first(same(from?))
            }
            Op::Softmax(ops::Softmax { axis }) | Op::LogSoftmax(ops::LogSoftmax { axis }) => {
                first(same(cut.axis).filter(|_| *axis != cut.axis))
            }
            Op::LayerNorm(op) => first(same(cut.axis).filter(|_| cut.axis + op.axes < y.rank())),
            Op::RmsNorm(_) => first(same(cut.axis).filter(|_| cut.axis + 1 < y.rank())),
            Op::Attention(op) if cut == Cut::at(2) => {
                let mut needs: Needs = smallvec![None; self.inputs.len()];
                needs[..3].fill(Some(cut));
                if op.mask && self.inputs[3].shape[1] > 1 {
                    needs[3] = Some(Cut::at(1));
                }
                Some(needs)
            }
            Op::Rotary(_) => first(same(2).filter(|_| cut.axis == 2)),
            op => {
                let product = product(op)?;
                let [a, b] = [self.inputs[0].shape.rank(), self.inputs[1].shape.rank()];
                let summed = self.summed_axes(&product);
                let mut needs: Needs = smallvec![None; self.inputs.len()];
                if cut.axis + 1 == y.rank() {
                    needs[1] = same(self.columns_axis(&product));
                    needs.iter_mut().skip(2).for_each(|bias| *bias = same(0));
                } else if cut.axis + 2 == y.rank() {
                    needs[0] = same(2 * a - 3 - summed[0]);
                } else {
                    needs[0] = same(cut.axis).filter(|_| a > 2);
                    needs[1] = same(cut.axis).filter(|_| b > 2);
                }
                if let (Op::MatMulAdd(_), Some(added)) = (op, needs.get_mut(2)) {
                    *added = same(cut.axis);
                }
                Some(needs)
            }
        }
    }

    /// The op on parts, where its output is cut so.
    fn local(&self, made: Cut) -> Op {
        let shape = || made.of_type(self.output, self.ranks).shape;
        match self.op {
            Op::Reshape(_) => ops::Reshape(shape()).into(),
            Op::Broadcast(_) => ops::Broadcast(shape()).into(),
            Op::Slice(ops::Slice(axes)) => {
                let mut axes = axes.clone();
                axes[made.axis].stop = shape()[made.axis];
                ops::Slice(axes).into()
            }
            Op::Split(ops::Split { axis, sizes }) if *axis == made.axis => {
                let sizes = sizes.iter().map(|size| size / self.ranks).collect();
                ops::Split { axis: *axis, sizes }.into()
            }
            op => op.clone(),
        }
    }
}

/// The product of matrices that an op is, whatever is done to it behind.
pub(super) fn product(op: &Op) -> Option<ops::MatMul> {
    match op {
        Op::MatMul(op) => Some(*op),
        Op::MatMulAdd(op) => Some(op.product()),
        _ => None,
    }
}

fn is_elementwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Cast(_) | Op::StopGradient(_)
    )
}

fn is_all(range: ops::SliceAxis, len: usize) -> bool {
    range == ops::SliceAxis { start: 0, stop: len, step: 1 }
}

/// The cut of the same elements under another shape: of so many elements each rank has its part, wherever axes end.
fn reshaped(cut: Cut, from: &Shape, to: &Shape, ranks: usize) -> Option<Cut> {
    let before = |shape: &Shape, axis: usize| shape[..axis].iter().product::<usize>();
    let units = before(from, cut.axis) * cut.blocks;
    let is_even = from[cut.axis].is_multiple_of(cut.blocks * ranks);
    (0..to.rank()).find_map(|axis| {
        let own = before(to, axis);
        if !is_even {
            let is_same = own == units && to[axis] == from[cut.axis];
            return is_same.then_some(Cut { axis, ..cut });
        }
        if own == 0 || !units.is_multiple_of(own) {
            return None;
        }
        let blocks = units / own;
        (blocks > 0 && to[axis] > 0 && to[axis].is_multiple_of(blocks * ranks))
            .then_some(Cut { axis, blocks })
    })
}

/// Whether an operand of an op can be cut where the output is, so that the search for what to cut goes on behind it.
pub(super) fn is_passed(op: &Op) -> bool {
    let moves = matches!(op, Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Split(_) | Op::Concat(_));
    let by_rows = matches!(op, Op::Broadcast(_) | Op::Dropout(_) | Op::LayerNorm(_) | Op::RmsNorm(_));
    is_elementwise(op) || moves || by_rows || matches!(op, Op::Rotary(_)) || product(op).is_some()
}

/// Whether an op only hands a weight on, in another type or shape.
pub(super) fn hands_on(op: &Op) -> bool {
    matches!(
        op,
        Op::Cast(_)
            | Op::Reshape(_)
            | Op::Transpose(_)
            | Op::StopGradient(_)
            | Op::Unary(Unary::MulScalar(_))
    )
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{DType, Scalar};

    use super::*;

    #[test]
    fn heads_are_found_behind_a_reshape_and_before_it() {
        let (flat, heads) = (Shape::from([2, 5, 24]), Shape::from([2, 5, 3, 4, 2]));
        let three = Cut { axis: 2, blocks: 3 };
        assert_eq!(reshaped(three, &flat, &heads, 2), Some(Cut::at(3)));
        assert_eq!(reshaped(Cut::at(3), &heads, &flat, 2), Some(three));
        // One block would cut queries from keys, and four heads are not for three ranks.
        assert_eq!(reshaped(Cut::at(2), &flat, &heads, 2), None);
        assert_eq!(reshaped(three, &flat, &heads, 3), None);
        // What is filled up keeps its axis.
        let (rows, all) = (Shape::from([2, 5, 7]), Shape::from([10, 7]));
        assert_eq!(reshaped(Cut::at(2), &rows, &all, 2), Some(Cut::at(1)));
        assert_eq!(reshaped(Cut::at(2), &rows, &Shape::from([70]), 2), None);
    }

    fn way(op: impl Into<Op>, inputs: &[&Type], cuts: &[Option<Cut>]) -> Option<Way> {
        let op = op.into();
        let output = op.infer(inputs).unwrap().remove(0);
        Whole { op: &op, inputs, output: &output, ranks: 2 }.way(cuts)
    }

    #[test]
    fn columns_stay_apart_and_rows_are_added_up() {
        let [x, w, bias] = [&[3, 8][..], &[8, 6][..], &[6][..]].map(|shape| Type::new(DType::F32, shape));
        let op = ops::MatMul { ta: false, tb: false, bias: true, act: None };
        let columns = way(op, &[&x, &w, &bias], &[None, Some(Cut::at(1)), None]);
        let Some(Way::Local { needs, made, .. }) = columns else { panic!("{columns:?}") };
        assert_eq!((&needs[..], made), (&[None, Some(Cut::at(1)), Some(Cut::at(0))][..], Cut::at(1)));
        let rows = way(op, &[&x, &w, &bias], &[Some(Cut::at(1)), None, None]);
        let Some(Way::Summed { needs }) = rows else { panic!("{rows:?}") };
        assert_eq!(&needs[..], [Some(Cut::at(1)), Some(Cut::at(0)), None]);
        // Samples apart: the weight stays whole.
        let samples = way(op, &[&Type::new(DType::F32, [4, 8]), &w, &bias], &[Some(Cut::at(0)), None, None]);
        assert!(matches!(samples, Some(Way::Local { made: Cut { axis: 0, .. }, .. })), "{samples:?}");
    }

    #[test]
    fn what_a_product_is_added_to_is_cut_as_the_product_is() {
        let [x, w, c] = [&[3, 8][..], &[8, 6][..], &[3, 6][..]].map(|shape| Type::new(DType::F32, shape));
        let op = ops::MatMulAdd { ta: false, tb: false, scale: Scalar(0.5), add: true };
        let columns = [None, Some(Cut::at(1)), Some(Cut::at(1))];
        for cuts in [[None, Some(Cut::at(1)), None], [None, None, Some(Cut::at(1))]] {
            let found = way(op, &[&x, &w, &c], &cuts);
            let Some(Way::Local { needs, made, .. }) = found else { panic!("{found:?}") };
            assert_eq!((&needs[..], made), (&columns[..], Cut::at(1)));
        }
        let rows = way(op, &[&x, &w, &c], &[Some(Cut::at(1)), None, None]);
        let Some(Way::Summed { needs }) = rows else { panic!("{rows:?}") };
        assert_eq!(&needs[..], [Some(Cut::at(1)), Some(Cut::at(0)), None]);
        // A sum of parts is whole, and so is what it is added to.
        assert!(way(op, &[&x, &w, &c], &[Some(Cut::at(1)), None, Some(Cut::at(1))]).is_none());
    }

    #[test]
    fn heads_turn_apart_and_features_do_not() {
        let [x, angles] = [[2, 5, 4, 6], [1, 5, 1, 3]].map(|shape| Type::new(DType::F32, shape));
        let turned =
            |cut: Cut| way(ops::Rotary { back: false }, &[&x, &angles, &angles], &[Some(cut), None, None]);
        let found = turned(Cut::at(2));
        let Some(Way::Local { needs, made, .. }) = found else { panic!("{found:?}") };
        assert_eq!((&needs[..], made), (&[Some(Cut::at(2)), None, None][..], Cut::at(2)));
        assert!(turned(Cut::at(3)).is_none());
    }

    #[test]
    fn filled_up_parts_pass_only_what_keeps_zeros_harmless() {
        let x = Type::new(DType::F32, [3, 7]);
        let cut = [Some(Cut::at(1))];
        assert!(way(ops::Cast(DType::F64), &[&x], &cut).is_some());
        assert!(way(Unary::Exp, &[&x], &cut).is_none());
        assert!(way(ops::Softmax { axis: 1 }, &[&x], &cut).is_none());
    }
}
