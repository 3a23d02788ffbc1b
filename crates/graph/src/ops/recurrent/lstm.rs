//! A long short-term memory over a sequence, and its gradient.

use smallvec::smallvec;

use super::{
    RecurrentDims, add_outer, add_to, array_dims, cases, cost, dot, grad_cases, gradients, normal, row,
    sigmoid, times_transposed, zeros,
};
use crate::error::Result;
use crate::example::{Dice, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Keep, Rule, Types};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{Type, ops};

/// A long short-term memory over a sequence.
///
/// ```text
/// i, f, o = σ(x w + h u + bias)   g = tanh(x w + h u + bias)      gates in the order i, f, g, o
/// c' = f ∘ c + i ∘ g              h' = o ∘ tanh(c')
/// ```
///
/// Inputs: x `[B, T, I]`, w `[I, 4H]`, u `[H, 4H]`, bias `[4H]`, h₀ `[B, H]`, c₀ `[B, H]`. Outputs: y `[B, T, H]` (every
/// h'), the last h and c `[B, H]`, and for the gradient the gates after activation `[T, B, 4H]` and the cells
/// `[T, B, H]`. PyTorch's two biases are one here: their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lstm;

impl Rule for Lstm {
    const NAME: &'static str = "lstm";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, w, u, bias, h0, c0] = ops::arity(inputs)?;
        let d = RecurrentDims::checked(x, w, u, 4)?;
        d.expect("bias", bias, x, [4 * d.units])?;
        d.expect("first state", h0, x, d.state())?;
        d.expect("first cell", c0, x, d.state())?;
        let [y, state, gates, cells] =
            [d.sequence(), d.state(), d.saved(4), d.saved(1)].map(|s| x.with_shape(s));
        Ok(smallvec![y, state.clone(), state, gates, cells])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        matches!((along.operand, along.axis), (0 | 4 | 5, 0))
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        cost(inputs, outputs, 4, 1.0)
    }

    /// All inputs but the bias; y, gates and cells.
    const KEEP: Keep = Keep::both(0b110111, 0b11001);

    /// See [`LstmGrad`]; gradients may arrive at y and at the last h and c.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        if at.try_grad(3).is_some() || at.try_grad(4).is_some() {
            return Err(at.no_gradient("its gates and cells are kept for the gradient alone; use y, h and c"));
        }
        let others = vec![at.output(0)?, at.output(3)?, at.output(4)?, at.grad(0)?, at.grad(1)?, at.grad(2)?];
        gradients(at, LstmGrad, &[0, 1, 2, 4, 5], others)
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, w, u, bias, h0, c0] = [0, 1, 2, 3, 4, 5].map(|i| inputs[i]);
        let d = array_dims(x, u);
        let n = d.units;
        let mut out: Vec<Array> = outputs.iter().map(zeros).collect();
        for b in 0..d.batch {
            let (mut h, mut c) = (row(h0, &[b]).to_vec(), row(c0, &[b]).to_vec());
            for t in 0..d.steps {
                let sum = |j: usize| bias.data[j] + dot(row(x, &[b, t]), w, j) + dot(&h, u, j);
                let act = |j: usize| if j / n == 2 { sum(j).tanh() } else { sigmoid(sum(j)) };
                let gates: Vec<f64> = (0..4 * n).map(act).collect();
                for j in 0..n {
                    c[j] = gates[n + j] * c[j] + gates[j] * gates[2 * n + j];
                    h[j] = gates[3 * n + j] * c[j].tanh();
                }
                let (rows_y, rows_saved) = (b * d.steps + t, t * d.batch + b);
                out[0].data[rows_y * n..][..n].copy_from_slice(&h);
                out[3].data[rows_saved * 4 * n..][..4 * n].copy_from_slice(&gates);
                out[4].data[rows_saved * n..][..n].copy_from_slice(&c);
            }
            out[1].data[b * n..][..n].copy_from_slice(&h);
            out[2].data[b * n..][..n].copy_from_slice(&c);
        }
        out
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |d: RecurrentDims| {
            let ([x, w, u], state) = (d.operands(4), d.state());
            Example::new(Lstm, [x, w, u, [4 * d.units].into(), state.clone(), state].map(normal).into())
        };
        cases(dice).map(example).into()
    }
}

/// The gradients of x, w, u, bias, h₀ and c₀ of an [`Lstm`].
///
/// Inputs: x, w, u, h₀, c₀, y, gates, cells, dy `[B, T, H]`, and the gradients of the last h and c `[B, H]`. From the last
/// step to the first, with dh = dy + what the next step hands back:
///
/// ```text
/// do = dh ∘ tanh(c') ∘ o(1-o)     dc = what the next step hands back + dh ∘ o ∘ (1 - tanh²(c'))
/// di = dc ∘ g ∘ i(1-i)    df = dc ∘ c ∘ f(1-f)    dg = dc ∘ i ∘ (1-g²)    handed back: dc ∘ f and [di df dg do] uᵀ
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LstmGrad;

impl Rule for LstmGrad {
    const NAME: &'static str = "lstm_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, w, u, h0, c0, y, gates, cells, dy, dh, dc] = ops::arity(inputs)?;
        let d = RecurrentDims::checked(x, w, u, 4)?;
        for (what, state) in [("first state", h0), ("first cell", c0), ("last state", dh), ("last cell", dc)]
        {
            d.expect(what, state, x, d.state())?;
        }
        d.expect("result", y, x, d.sequence())?;
        d.expect("result's gradient", dy, x, d.sequence())?;
        d.expect("saved gates", gates, x, d.saved(4))?;
        d.expect("saved cells", cells, x, d.saved(1))?;
        let bias = x.with_shape([4 * d.units]);
        Ok([x, w, u, &bias, h0, c0].into_iter().cloned().collect())
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        cost(inputs, outputs, 4, 2.0)
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient(
            "an lstm is differentiated once only; write its steps with matmul, sigmoid and tanh instead",
        ))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, w, u, h0, c0, y, saved, cells, dy, dh_last, dc_last] =
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|i| inputs[i]);
        let d = array_dims(x, u);
        let n = d.units;
        let mut out: Vec<Array> = outputs.iter().map(zeros).collect();
        for b in 0..d.batch {
            let (mut dh, mut dc) = (row(dh_last, &[b]).to_vec(), row(dc_last, &[b]).to_vec());
            for t in (0..d.steps).rev() {
                add_to(&mut dh, row(dy, &[b, t]));
                let (gates, cell) = (row(saved, &[t, b]), row(cells, &[t, b]));
                let (h_before, c_before) = if t == 0 {
                    (row(h0, &[b]), row(c0, &[b]))
                } else {
                    (row(y, &[b, t - 1]), row(cells, &[t - 1, b]))
                };
                let mut grad = vec![0.0; 4 * n];
                for j in 0..n {
                    let [i, f, g, o] = [0, 1, 2, 3].map(|k| gates[k * n + j]);
                    let tanh = cell[j].tanh();
                    dc[j] += dh[j] * o * (1.0 - tanh * tanh);
                    grad[j] = dc[j] * g * i * (1.0 - i);
                    grad[n + j] = dc[j] * c_before[j] * f * (1.0 - f);
                    grad[2 * n + j] = dc[j] * i * (1.0 - g * g);
                    grad[3 * n + j] = dh[j] * tanh * o * (1.0 - o);
                    dc[j] *= f;
                }
                let place = (b * d.steps + t) * d.inputs;
                out[0].data[place..place + d.inputs].copy_from_slice(&times_transposed(&grad, w));
                add_outer(&mut out[1], row(x, &[b, t]), &grad);
                add_outer(&mut out[2], h_before, &grad);
                add_to(&mut out[3].data, &grad);
                dh = times_transposed(&grad, u);
            }
            out[4].data[b * n..][..n].copy_from_slice(&dh);
            out[5].data[b * n..][..n].copy_from_slice(&dc);
        }
        out
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |d: RecurrentDims| {
            let [x, w, u] = d.operands(4);
            let (state, y) = (|| d.state(), d.sequence());
            let saved = [y.clone(), d.saved(4), d.saved(1), y];
            let shapes = [x, w, u, state(), state()].into_iter().chain(saved).chain([state(), state()]);
            Example::new(LstmGrad, shapes.map(normal).collect())
        };
        grad_cases(dice).map(example).into()
    }
}
