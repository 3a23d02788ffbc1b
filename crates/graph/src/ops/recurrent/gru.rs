//! A gated recurrent unit over a sequence, and its gradient.

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
use crate::{Shape, Type, ops};

/// A gated recurrent unit over a sequence, in the form that resets after the product (PyTorch's, and Keras' default).
///
/// ```text
/// r, z = σ(x w + bias + h u + bias_u)             gates in the order r, z, n
/// n = tanh(x w + bias + r ∘ (h u + bias_u))       h' = (1 - z) ∘ n + z ∘ h
/// ```
///
/// Inputs: x `[B, T, I]`, w `[I, 3H]`, u `[H, 3H]`, bias `[3H]`, bias_u `[3H]`, h₀ `[B, H]`. Outputs: y `[B, T, H]`, the last
/// h `[B, H]`, and for the gradient r, z, n and h u + bias_u of n, `[T, B, 4H]`. Keras writes the same formula with its
/// gates in the order z, r, n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gru;

impl Rule for Gru {
    const NAME: &'static str = "gru";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, w, u, bias, bias_u, h0] = ops::arity(inputs)?;
        let d = RecurrentDims::checked(x, w, u, 3)?;
        d.expect("bias", bias, x, [3 * d.units])?;
        d.expect("recurrent bias", bias_u, x, [3 * d.units])?;
        d.expect("first state", h0, x, d.state())?;
        Ok(smallvec![x.with_shape(d.sequence()), x.with_shape(d.state()), x.with_shape(d.saved(4))])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        matches!((along.operand, along.axis), (0 | 5, 0))
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        cost(inputs, outputs, 3, 1.0)
    }

    /// x, w, u and h₀; y and the saved gates.
    const KEEP: Keep = Keep::both(0b100111, 0b101);

    /// See [`GruGrad`]; gradients may arrive at y and at the last h.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        if at.try_grad(2).is_some() {
            return Err(at.no_gradient("its gates are kept for the gradient alone; use y and h"));
        }
        let others = vec![at.output(0)?, at.output(2)?, at.grad(0)?, at.grad(1)?];
        gradients(at, GruGrad, &[0, 1, 2, 5], others)
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, w, u, bias, bias_u, h0] = [0, 1, 2, 3, 4, 5].map(|i| inputs[i]);
        let d = array_dims(x, u);
        let n = d.units;
        let mut out: Vec<Array> = outputs.iter().map(zeros).collect();
        for b in 0..d.batch {
            let mut h = row(h0, &[b]).to_vec();
            for t in 0..d.steps {
                let input: Vec<f64> = (0..3 * n).map(|j| bias.data[j] + dot(row(x, &[b, t]), w, j)).collect();
                let state: Vec<f64> = (0..3 * n).map(|j| bias_u.data[j] + dot(&h, u, j)).collect();
                let saved = &mut out[2].data[(t * d.batch + b) * 4 * n..][..4 * n];
                for j in 0..n {
                    let r = sigmoid(input[j] + state[j]);
                    let z = sigmoid(input[n + j] + state[n + j]);
                    let new = (input[2 * n + j] + r * state[2 * n + j]).tanh();
                    (saved[j], saved[n + j], saved[2 * n + j], saved[3 * n + j]) =
                        (r, z, new, state[2 * n + j]);
                    h[j] = (1.0 - z) * new + z * h[j];
                }
                out[0].data[(b * d.steps + t) * n..][..n].copy_from_slice(&h);
            }
            out[1].data[b * n..][..n].copy_from_slice(&h);
        }
        out
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |d: RecurrentDims| {
            let ([x, w, u], bias) = (d.operands(3), Shape::from([3 * d.units]));
            Example::new(Gru, [x, w, u, bias.clone(), bias, d.state()].map(normal).into())
        };
        cases(dice).map(example).into()
    }
}

/// The gradients of x, w, u, both biases and h₀ of a [`Gru`].
///
/// Inputs: x, w, u, h₀, y, the saved gates, dy `[B, T, H]`, the gradient of the last h `[B, H]`. From the last step to the
/// first, with s = h u + bias_u of n and dh = dy + what the next step hands back:
///
/// ```text
/// dn = dh ∘ (1-z) ∘ (1-n²)    dz = dh ∘ (h-n) ∘ z(1-z)    dr = dn ∘ s ∘ r(1-r)    ds = dn ∘ r
/// x w + bias gets [dr dz dn], h u + bias_u gets [dr dz ds]; handed back: dh ∘ z + [dr dz ds] uᵀ
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GruGrad;

impl Rule for GruGrad {
    const NAME: &'static str = "gru_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, w, u, h0, y, saved, dy, dh] = ops::arity(inputs)?;
        let d = RecurrentDims::checked(x, w, u, 3)?;
        d.expect("first state", h0, x, d.state())?;
        d.expect("last state", dh, x, d.state())?;
        d.expect("result", y, x, d.sequence())?;
        d.expect("result's gradient", dy, x, d.sequence())?;
        d.expect("saved gates", saved, x, d.saved(4))?;
        let bias = x.with_shape([3 * d.units]);
        Ok([x, w, u, &bias, &bias, h0].into_iter().cloned().collect())
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        cost(inputs, outputs, 3, 2.0)
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient(
            "a gru is differentiated once only; write its steps with matmul, sigmoid and tanh instead",
        ))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, w, u, h0, y, saved, dy, dh_last] = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| inputs[i]);
        let d = array_dims(x, u);
        let n = d.units;
        let mut out: Vec<Array> = outputs.iter().map(zeros).collect();
        for b in 0..d.batch {
            let mut dh = row(dh_last, &[b]).to_vec();
            for t in (0..d.steps).rev() {
                add_to(&mut dh, row(dy, &[b, t]));
                let gates = row(saved, &[t, b]);
                let h_before = if t == 0 { row(h0, &[b]) } else { row(y, &[b, t - 1]) };
                let (mut to_x, mut to_h) = (vec![0.0; 3 * n], vec![0.0; 3 * n]);
                for j in 0..n {
                    let [r, z, new, s] = [0, 1, 2, 3].map(|k| gates[k * n + j]);
                    let dn = dh[j] * (1.0 - z) * (1.0 - new * new);
                    to_x[j] = dn * s * r * (1.0 - r);
                    to_x[n + j] = dh[j] * (h_before[j] - new) * z * (1.0 - z);
                    to_x[2 * n + j] = dn;
                    to_h[2 * n + j] = dn * r;
                    dh[j] *= z;
                }
                to_h[..2 * n].copy_from_slice(&to_x[..2 * n]);
                let place = (b * d.steps + t) * d.inputs;
                out[0].data[place..place + d.inputs].copy_from_slice(&times_transposed(&to_x, w));
                add_outer(&mut out[1], row(x, &[b, t]), &to_x);
                add_outer(&mut out[2], h_before, &to_h);
                add_to(&mut out[3].data, &to_x);
                add_to(&mut out[4].data, &to_h);
                add_to(&mut dh, &times_transposed(&to_h, u));
            }
            out[5].data[b * n..][..n].copy_from_slice(&dh);
        }
        out
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |d: RecurrentDims| {
            let ([x, w, u], y) = (d.operands(3), d.sequence());
            let shapes = [x, w, u, d.state(), y.clone(), d.saved(4), y, d.state()];
            Example::new(GruGrad, shapes.map(normal).into())
        };
        grad_cases(dice).map(example).into()
    }
}
