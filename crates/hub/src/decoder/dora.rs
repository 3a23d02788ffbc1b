//! A linear layer whose weight has directions and magnitudes (DoRA): y = m / ‖W + s B A‖ · (W + s B A) x + b, with a norm for each output.
//!
//! After Liu and others, "DoRA: Weight-Decomposed Low-Rank Adaptation" (2024), as PEFT has it: the norm is taken as a constant in the gradient,
//! and what is dropped of x before the adapter is dropped before its share of W, too.

use plimsoll_graph::{GradientOps, MatMulAddOps, TensorOps};
use plimsoll_nn::blocks::refuse;
use plimsoll_nn::{Init, Net};
use plimsoll_run::{Result, Tensor};

use super::Decoder;
use crate::config::Family;
use crate::tuning::Lora;

impl Decoder {
    /// The layer of the scope at hand, without its bias.
    pub(super) fn with_magnitudes(
        &self,
        net: &mut Net,
        lora: &Lora,
        x: &Tensor,
        units: usize,
    ) -> Result<Tensor> {
        if self.base.is_some() {
            return Err(refuse(
                "gives magnitudes (DoRA) to weights that are kept in few bits; leave one of the two out",
            ));
        }
        let width = x.shape().last().copied().unwrap_or(0);
        let is_turned = self.config.family == Family::Gpt2;
        let w = self.weight(net, "weight", if is_turned { [width, units] } else { [units, width] })?;
        let [a, b] = self.adapter(net, lora, width, units)?;
        // It starts as the norms of W's own rows, which a folder gives: see `Folder::magnitudes`.
        let magnitude = net.master("lora_magnitude_vector", [units], Init::Constant(1.0))?;
        let norm = row_norms(&w, &a, &b, lora.scale(), is_turned)?.cast(magnitude.dtype())?;
        let gain = magnitude.div(&norm)?.cast(x.dtype())?;
        let of_base = |x: &Tensor| x.matmul_with(&w, None, false, !is_turned);
        let moved = |x: &Tensor, base: &Tensor| {
            x.matmul_with(&a, None, false, true)?.matmul_onto(&b, false, true, lora.scale(), base)?.mul(&gain)
        };
        if lora.dropout == 0.0 || !net.is_training() {
            return moved(x, &of_base(x)?);
        }
        let dropped = net.dropout("lora_dropout", x, lora.dropout)?;
        let base = of_base(&dropped)?;
        moved(&dropped, &base)?.add(&of_base(x)?)?.sub(&base)
    }
}

/// ‖W + s B A‖ of each output, a constant: ‖w‖² + 2 s w Aᵀ b + s² b A Aᵀ b, without the sum of the matrices.
fn row_norms(w: &Tensor, a: &Tensor, b: &Tensor, scale: f64, is_turned: bool) -> Result<Tensor> {
    let (w, a, b) = (w.stop_gradient()?, a.stop_gradient()?, b.stop_gradient()?);
    let wide = w.dtype().accumulator();
    let own = w.cast(wide)?.square()?.sum(&[if is_turned { 0 } else { 1 }], false)?;
    let with_b = |x: &Tensor| x.cast(wide)?.mul(&b.cast(wide)?)?.sum(&[1], false);
    let cross = with_b(&w.matmul_with(&a, None, is_turned, true)?)?;
    let among = with_b(&b.matmul(&a.matmul_with(&a, None, false, true)?)?)?;
    own.add(&cross.mul_scalar(2.0 * scale)?)?.add(&among.mul_scalar(scale * scale)?)?.sqrt()
}
