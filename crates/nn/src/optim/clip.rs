//! Gradients held within bounds, before an optimizer sees them.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

/// Every element held between minus and plus a limit.
pub fn clip_by_value(grads: &[Tensor], limit: f64) -> Result<Vec<Tensor>> {
    grads.iter().map(|g| g.clamp(-limit, limit)).collect()
}

/// All gradients scaled down together where their common norm is above a limit; and that norm, before, as a
/// scalar.
///
/// The scale is limit / (norm + 1e-6), at most 1, as PyTorch's. No gradient is final before the last one is known:
/// all of them live at once, and updates wait for the end of the backward pass.
///
/// ```
/// use plimsoll_nn::clip_by_global_norm;
/// use plimsoll_run::Tensor;
/// let grads = [Tensor::from_slice(&[3.0f32], [1])?, Tensor::from_slice(&[4.0f32], [1])?];
/// let (clipped, norm) = clip_by_global_norm(&grads, 1.0)?;
/// assert!((norm.item()? - 5.0).abs() < 1e-6 && (clipped[1].item()? - 0.8).abs() < 1e-5);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[track_caller]
pub fn clip_by_global_norm(grads: &[Tensor], limit: f64) -> Result<(Vec<Tensor>, Tensor)> {
    clip_by_norm_over(grads, limit, NormScale::Padded, added)
}

/// What gradients above a limit are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormScale {
    /// limit / (norm + 1e-6), at most 1, as PyTorch's.
    Padded,
    /// limit / max(norm, limit), as Keras's.
    Plain,
}

/// As [`clip_by_global_norm`], of gradients that are only a part of all: `over` makes the sum of all parts' squares of this part's, one a gradient.
#[track_caller]
pub(crate) fn clip_by_norm_over(
    grads: &[Tensor],
    limit: f64,
    scale: NormScale,
    over: impl Fn(Vec<Tensor>) -> Result<Option<Tensor>>,
) -> Result<(Vec<Tensor>, Tensor)> {
    scaled(grads, over, |norm| match scale {
        NormScale::Padded => norm.add_scalar(1e-6)?.rdiv_scalar(limit)?.clamp(0.0, 1.0),
        NormScale::Plain => norm.clamp(limit, f64::INFINITY)?.rdiv_scalar(limit),
    })
}

/// Gradients multiplied by a function of their common norm, and that norm.
fn scaled(
    grads: &[Tensor],
    over: impl Fn(Vec<Tensor>) -> Result<Option<Tensor>>,
    scale: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<(Vec<Tensor>, Tensor)> {
    // In f32, or f64 where any gradient is.
    let wide = if grads.iter().any(|g| g.dtype() == DType::F64) { DType::F64 } else { DType::F32 };
    let squares = grads.iter().map(|grad| grad.cast(wide)?.square()?.sum(&[], false));
    let Some(total) = over(squares.collect::<Result<_>>()?)? else {
        return Ok((Vec::new(), Tensor::zeros(Type::new(DType::F32, []))?));
    };
    let norm = total.sqrt()?;
    let scale = scale(&norm)?;
    let clipped = grads.iter().map(|g| g.mul(&scale.cast(g.dtype())?)).collect::<Result<Vec<Tensor>>>()?;
    Ok((clipped, norm))
}

/// The sum of all; nothing of nothing.
pub(crate) fn added(all: impl IntoIterator<Item = Tensor>) -> Result<Option<Tensor>> {
    let mut all = all.into_iter();
    let Some(first) = all.next() else { return Ok(None) };
    all.try_fold(first, |sum, next| sum.add(&next)).map(Some)
}
