//! A linear layer whose weight has directions and magnitudes (DoRA): y = m / ‖W + s B A‖ · (W + s B A) x + b, with a norm for each output.
//!
//! After Liu and others, "DoRA: Weight-Decomposed Low-Rank Adaptation" (2024), as PEFT has it: the norm is taken as a constant in the gradient,
//! and what is dropped of x before the adapter is dropped before its share of W, too. W may be kept in few bits: of it the norm reads products
//! with tiles, and squares that came with it, so that W is never there whole.

use plimsoll_graph::{DType, GradientOps, MatMulAddOps, TensorOps};
use plimsoll_nn::{Init, Net};
use plimsoll_run::{Result, Tensor};

use super::Decoder;
use crate::base::{Small, squares};
use crate::config::Family;
use crate::tuning::Lora;

/// The weight of a layer, as it is kept.
enum Base {
    Whole(Tensor),
    Small(Small),
}

impl Base {
    /// x Wᵀ, or x W where it is turned.
    fn of(&self, x: &Tensor, is_turned: bool) -> Result<Tensor> {
        match self {
            Base::Whole(w) => x.matmul_with(w, None, false, !is_turned),
            Base::Small(small) => small.product(x, is_turned),
        }
    }
}

impl Decoder {
    /// The layer of the scope at hand, without its bias.
    pub(super) fn with_magnitudes(
        &self,
        net: &mut Net,
        lora: &Lora,
        x: &Tensor,
        units: usize,
    ) -> Result<Tensor> {
        let width = x.shape().last().copied().unwrap_or(0);
        let is_turned = self.config.family == Family::Gpt2;
        let shape = if is_turned { [width, units] } else { [units, width] };
        let wide = x.dtype().accumulator();
        let (base, own) = match self.base {
            None => {
                let w = self.weight(net, "weight", shape)?;
                let own = own_squares(&w, wide, is_turned)?;
                (Base::Whole(w), own)
            }
            Some(form) => (Base::Small(Small::of(net, form, shape)?), squares(net, units)?.cast(wide)?),
        };
        let [a, b] = self.adapter(net, lora, width, units)?;
        // It starts as the norms of W's own rows, which a folder gives: see `Folder::magnitudes`.
        let magnitude = net.master("lora_magnitude_vector", [units], Init::Constant(1.0))?;
        let norm = row_norms(&own, &base, [&a, &b], lora.scale(), is_turned)?.cast(magnitude.dtype())?;
        let gain = magnitude.div(&norm)?.cast(x.dtype())?;
        let moved = |x: &Tensor, base: &Tensor| {
            x.matmul_with(&a, None, false, true)?.matmul_onto(&b, false, true, lora.scale(), base)?.mul(&gain)
        };
        if lora.dropout == 0.0 || !net.is_training() {
            return moved(x, &base.of(x, is_turned)?);
        }
        let dropped = net.dropout("lora_dropout", x, lora.dropout)?;
        let of_dropped = base.of(&dropped, is_turned)?;
        moved(&dropped, &of_dropped)?.add(&base.of(x, is_turned)?)?.sub(&of_dropped)
    }
}

/// ‖w‖² of each output of a weight that is there whole.
fn own_squares(w: &Tensor, wide: DType, is_turned: bool) -> Result<Tensor> {
    w.stop_gradient()?.cast(wide)?.square()?.sum(&[if is_turned { 0 } else { 1 }], false)
}

/// ‖W + s B A‖ of each output, a constant: ‖w‖² + 2 s w Aᵀ b + s² b A Aᵀ b, without the sum of the matrices.
fn row_norms(own: &Tensor, base: &Base, [a, b]: [&Tensor; 2], scale: f64, is_turned: bool) -> Result<Tensor> {
    let (a, b) = (a.stop_gradient()?, b.stop_gradient()?);
    let wide = own.dtype();
    let with_b = |x: &Tensor| x.cast(wide)?.mul(&b.cast(wide)?)?.sum(&[1], false);
    // A Wᵀ is what the layer makes of A's rows.
    let cross = with_b(&base.of(&a, is_turned)?.stop_gradient()?.transpose(&[1, 0])?)?;
    let among = with_b(&b.matmul(&a.matmul_with(&a, None, false, true)?)?)?;
    own.add(&cross.mul_scalar(2.0 * scale)?)?.add(&among.mul_scalar(scale * scale)?)?.sqrt()
}
