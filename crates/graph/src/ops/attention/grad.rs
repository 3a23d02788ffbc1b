//! The gradient of attention, from its results and the logs of its sums.

use smallvec::smallvec;

use super::{Attention, array_dims, cases, probability};
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Rule, Types, traffic};
use crate::ops::AttentionDims;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{Scalar, Type, ops};

/// The gradients of q, k and v. Inputs: those of the attention, o, lse, do.
///
/// With P = exp(S + mask - lse), computed again from the capped scores S, and δ = Σ o ∘ do over the features: dv = Pᵀ do,
/// dS = P ∘ (do vᵀ - δ) ∘ (1 - (S / cap)²), dq = scale · dS k, dk = scale · dSᵀ q.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGrad(
    /// The attention whose gradient it is.
    pub Attention,
);

impl Rule for AttentionGrad {
    const NAME: &'static str = "attention_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let (dims, rest) = self.0.split(inputs)?;
        let [o, lse, d_o] = ops::arity(&rest)?;
        let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
        let o_type = q.with_shape([dims.batch, dims.tq, dims.heads, dims.dv]);
        if *o != o_type || *d_o != o_type || *lse != dims.lse_type(q) {
            return Err(format!(
                "{o}, {lse} and {d_o} are not the results {o_type} and {} and a gradient",
                dims.lse_type(q)
            ));
        }
        Ok(smallvec![q.clone(), k.clone(), v.clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let flops = AttentionDims::new(inputs[0], inputs[1], inputs[2])
            .map_or(0.0, |d| self.0.pairs(&d) * (2 * (3 * d.d + 2 * d.dv) + 8) as f64);
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient(
            "attention is differentiated once only; write it with matmul and softmax for a second time",
        ))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let d = array_dims(inputs);
        let [o, lse, d_o] = [0, 1, 2].map(|i| inputs[self.0.n_inputs() + i]);
        let mut grads: Vec<Array> =
            outputs.iter().map(|t| Array::new(t.shape.clone(), vec![0.0; t.elements()])).collect();
        let mut add = |which: usize, index: [usize; 4], value: f64| {
            let offset = grads[which].offset(&index);
            grads[which].data[offset] += value;
        };
        for b in 0..d.batch {
            for h in 0..d.heads {
                let hk = h / d.group();
                for i in 0..d.tq {
                    let delta: f64 = (0..d.dv).map(|f| o.at(&[b, i, h, f]) * d_o.at(&[b, i, h, f])).sum();
                    for score in self.0.scores(&d, inputs, b, h, i) {
                        let j = score.key;
                        let p = probability(score.value, lse.at(&[b, h, i]));
                        let dp: f64 =
                            (0..d.dv).map(|f| d_o.at(&[b, i, h, f]) * inputs[2].at(&[b, j, hk, f])).sum();
                        let ds = p * (dp - delta) * score.slope * self.0.scale.0;
                        (0..d.dv).for_each(|f| add(2, [b, j, hk, f], p * d_o.at(&[b, i, h, f])));
                        for f in 0..d.d {
                            add(0, [b, i, h, f], ds * inputs[1].at(&[b, j, hk, f]));
                            add(1, [b, j, hk, f], ds * inputs[0].at(&[b, i, h, f]));
                        }
                    }
                }
            }
        }
        grads
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let examples = cases(dice).into_iter().map(|(op, mut inputs, dims)| {
            let o = inputs[0].0.with_shape([dims.batch, dims.tq, dims.heads, dims.dv]);
            let lse = dims.lse_type(&inputs[0].0);
            let wide = 1 << (inputs.len() + 1);
            inputs.extend([(o.clone(), Domain::Normal), (lse, Domain::Positive), (o, Domain::Normal)]);
            // The log-sums are not those of the scores; flat scores keep exp(score - lse) small all the same.
            let op = Attention { scale: Scalar(0.25 * op.scale.0), ..op };
            Example::new(AttentionGrad(op), inputs).wide(wide)
        });
        examples.collect()
    }
}
