//! y = act(op(a) · op(b) + bias): the matrix product.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::ops::composed::before_activation;
use crate::ops::{ReduceKind, Unary};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Shape, Type, ops};

/// A product of matrices, or of equally many matrices in a batch; one side may be a single matrix for all.
///
/// Inputs: a `[.., m, k]` (`[.., k, m]` when transposed), b `[.., k, n]` (`[.., n, k]`), and with `bias` a vector `[n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MatMul {
    /// Whether a is transposed.
    pub ta: bool,
    /// Whether b is transposed.
    pub tb: bool,
    /// Whether a bias is added.
    pub bias: bool,
    /// What is applied to each element of the result.
    pub act: Option<Unary>,
}

/// The sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatMulDims {
    /// Matrices in the batch.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Whether a is one matrix for the whole batch.
    pub a_shared: bool,
    /// Whether b is one matrix for the whole batch.
    pub b_shared: bool,
}

impl MatMul {
    /// The sizes of the product for given operands, or what does not fit.
    pub fn dims(&self, a: &Type, b: &Type) -> Result<MatMulDims, String> {
        let (ra, rb) = (a.shape.rank(), b.shape.rank());
        if ra < 2 || rb < 2 {
            return Err(format!("it takes matrices, and the shapes are {} and {}", a.shape, b.shape));
        }
        let (batch_a, batch_b) = (&a.shape[..ra - 2], &b.shape[..rb - 2]);
        if !(batch_a == batch_b || batch_a.is_empty() || batch_b.is_empty()) {
            return Err(format!(
                "the batches of {} and {} differ; broadcast one of them first",
                a.shape, b.shape
            ));
        }
        let pair = |s: &Shape, t: bool| {
            let (r, c) = (s[s.rank() - 2], s[s.rank() - 1]);
            if t { (c, r) } else { (r, c) }
        };
        let ((m, k), (kb, n)) = (pair(&a.shape, self.ta), pair(&b.shape, self.tb));
        if k != kb {
            let side = |t: bool| if t { " transposed" } else { "" };
            return Err(format!(
                "the inner lengths {k} and {kb} of {}{} by {}{} differ",
                a.shape,
                side(self.ta),
                b.shape,
                side(self.tb)
            ));
        }
        let batch = batch_a.iter().product::<usize>().max(batch_b.iter().product());
        let (a_shared, b_shared) = (batch_a.is_empty(), batch_b.is_empty());
        Ok(MatMulDims { batch, m, n, k, a_shared, b_shared })
    }

    /// The gradients of both operands, by products that `mul` makes. With C = A B: dA = dC Bᵀ and dB = Aᵀ dC, transposed where the operand is; summed
    /// over the batch for a shared one.
    pub(super) fn products(
        &self,
        at: &Backward<'_>,
        dc: &Sym,
        mul: impl Fn(MatMul, &Sym, &Sym) -> Result<Sym>,
    ) -> Result<Vec<Option<Sym>>> {
        let (a, b) = (at.input(0)?, at.input(1)?);
        let mul = |x: &Sym, y: &Sym, ta: bool, tb: bool| mul(MatMul { ta, tb, ..MatMul::default() }, x, y);
        let (a_shared, b_shared) = (a.shape().rank() == 2, b.shape().rank() == 2);
        let batched = dc.shape().rank() > 2;
        let mut grads = vec![None; 2];
        if at.wants(0) {
            let da = if self.ta { mul(&b, dc, self.tb, true)? } else { mul(dc, &b, false, !self.tb)? };
            grads[0] = Some(if a_shared && batched { sum_batches(&da)? } else { da });
        }
        if at.wants(1) {
            let db = if b_shared && batched && !self.ta && !a_shared {
                // One product over all rows of the batch: no partial results to add up.
                let rows = |x: &Sym| {
                    let last = x.shape()[x.shape().rank() - 1];
                    x.reshape([x.ty().elements() / last.max(1), last])
                };
                let (a, dc) = (rows(&a)?, rows(dc)?);
                if self.tb { mul(&dc, &a, true, false)? } else { mul(&a, &dc, true, false)? }
            } else {
                let db = if self.tb { mul(dc, &a, true, self.ta)? } else { mul(&a, dc, !self.ta, false)? };
                if b_shared && batched { sum_batches(&db)? } else { db }
            };
            grads[1] = Some(db);
        }
        Ok(grads)
    }
}

impl Rule for MatMul {
    const NAME: &'static str = "matmul";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let (a, b) = match (self.bias, inputs) {
            (false, [a, b]) => (*a, *b),
            (true, [a, b, _]) => (*a, *b),
            _ => {
                return Err(format!(
                    "it takes {} inputs and was given {}",
                    2 + usize::from(self.bias),
                    inputs.len()
                ));
            }
        };
        ops::float(a)?;
        ops::same_dtype(a, b)?;
        let d = self.dims(a, b)?;
        if let [_, _, bias] = inputs {
            ops::same_dtype(a, bias)?;
            if *bias.shape != [d.n] {
                return Err(format!("the bias of {} columns cannot be {bias}", d.n));
            }
        }
        if let Some(act) = self.act {
            act.result(a.dtype).and_then(|r| {
                if r == a.dtype { Ok(()) } else { Err("its activation must keep the type".into()) }
            })?;
        }
        let longer = if d.a_shared { b } else { a };
        let mut shape = Shape::from(&longer.shape[..longer.shape.rank() - 2]);
        shape.push(d.m);
        shape.push(d.n);
        Ok(smallvec![a.with_shape(shape)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        let summed = match along.operand {
            0 => {
                if self.ta {
                    2
                } else {
                    1
                }
            }
            1 => {
                if self.tb {
                    1
                } else {
                    2
                }
            }
            _ => 0,
        };
        along.axis + summed != along.input().shape.rank()
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let flops =
            self.dims(inputs[0], inputs[1]).map_or(0.0, |d| 2.0 * (d.batch * d.m * d.n) as f64 * d.k as f64);
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    fn keep(&self) -> Keep {
        match self.act {
            None => Keep::inputs(3),
            Some(_) if self.bias => Keep::both(7, 1),
            Some(_) => Keep::both(3, 1),
        }
    }

    /// See `MatMul::products`.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let dc = before_activation(at, self.act, MatMul { act: None, ..*self })?;
        let plain = |product: MatMul, x: &Sym, y: &Sym| x.matmul_with(y, None, product.ta, product.tb);
        let mut grads = self.products(at, &dc, plain)?;
        if self.bias {
            grads.push(at.wants(2).then(|| dc.sum_to(&at.input_type(2).shape)).transpose()?);
        }
        Ok(grads)
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (a, b) = (inputs[0], inputs[1]);
        let rank = outputs[0].shape.rank();
        let at = |x: &Array, batch: &[usize], r: usize, c: usize, t: bool| {
            let mut index = if x.shape.rank() == 2 { vec![] } else { batch.to_vec() };
            index.extend(if t { [c, r] } else { [r, c] });
            x.at(&index)
        };
        let k = if self.ta { a.shape[a.shape.rank() - 2] } else { a.shape[a.shape.rank() - 1] };
        vec![Array::from_fn(&outputs[0].shape, |i| {
            let (batch, r, c) = (&i[..rank - 2], i[rank - 2], i[rank - 1]);
            let mut sum: f64 =
                (0..k).map(|j| at(a, batch, r, j, self.ta) * at(b, batch, j, c, self.tb)).sum();
            if self.bias {
                sum += inputs[2].data[c];
            }
            self.act.map_or(sum, |f| f.eval(sum))
        })]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        let f32s = |shape: Vec<usize>| (Type::new(DType::F32, shape), Domain::Normal);
        for flags in 0..16 {
            let (ta, tb) = (flags & 1 == 1, flags & 2 == 2);
            let (batch_a, batch_b) = (flags & 4 == 4, flags & 8 == 8);
            let (m, n, k) = (dice.range(1, 20), dice.range(1, 40), dice.range(1, 20));
            let matrix = |r: usize, c: usize, t: bool, batch: bool| {
                let mut shape = if batch { vec![2, 3] } else { vec![] };
                shape.extend(if t { [c, r] } else { [r, c] });
                f32s(shape)
            };
            let mut inputs = vec![matrix(m, k, ta, batch_a), matrix(k, n, tb, batch_b)];
            let bias = flags % 3 == 0;
            if bias {
                inputs.push(f32s(vec![n]));
            }
            let act = [None, Some(Unary::Relu), Some(Unary::GeluTanh), Some(Unary::Tanh), None][flags % 5];
            examples.push(Example::new(MatMul { ta, tb, bias, act }, inputs));
        }
        // The same product with and without: a backend that remembers products must not mix them up.
        for act in [None, Some(Unary::Tanh), Some(Unary::Relu), Some(Unary::GeluTanh), None] {
            let inputs = vec![f32s(vec![7, 8]), f32s(vec![8, 16])];
            examples.push(Example::new(MatMul { ta: false, tb: false, bias: false, act }, inputs));
        }
        examples
    }
}

/// The sum over all axes but the last two.
fn sum_batches(x: &Sym) -> Result<Sym> {
    let axes: Vec<usize> = (0..x.shape().rank() - 2).collect();
    x.reduce(ReduceKind::Sum, &axes, false)
}
