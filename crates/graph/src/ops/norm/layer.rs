//! Layer norm: statistics over the trailing axes of each row.

use smallvec::smallvec;

use super::with_mean::norm_with_mean;
use super::{Statistics, View, backward_cost, check_wide, forward_cost, shaped};
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Keep, Rule, Types};
use crate::ops::composed::through;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Shape, Type, ops};

norm_with_mean! {
    /// y = γ (x - mean) rstd + β over the last axes. Inputs: x, γ, β (of the last axes' shape). Outputs: y, mean, rstd.
    LayerNorm = "layer_norm",
    /// The gradient of layer norm. Inputs: x, γ, mean, rstd, dy. Outputs: dx, dγ, dβ.
    LayerNormGrad = "layer_norm_grad",
    /// The number of last axes that are normalised together.
    axes,
    /// The 16-bit type in which y is written where x is f32: rounded once, as by a cast behind it. None: x's own.
    to
}

/// The type of y.
fn result(norm: &LayerNorm, x: &Type) -> Result<Type, String> {
    match norm.to {
        None => Ok(x.clone()),
        Some(to) if is_narrower(to, x) => Ok(Type::new(to, x.shape.clone())),
        Some(to) => Err(format!("the norm of {x} cannot be written as {to}")),
    }
}

/// Whether a type has 16 bits where x has f32.
pub(super) fn is_narrower(to: DType, x: &Type) -> bool {
    x.dtype == DType::F32 && matches!(to, DType::BF16 | DType::F16)
}

/// Checks that the gradient of y is of a type in which y can be.
fn check_dy(x: &Type, dy: &Type) -> Result<(), String> {
    if x == dy || (x.shape == dy.shape && is_narrower(dy.dtype, x)) {
        return Ok(());
    }
    Err(format!("the gradient of the result must be {x} or of 16 bits, not {dy}"))
}

/// The shape of a row (γ, β) and of the rows (statistics), or why there are none.
fn parts(x: &Type, axes: usize) -> Result<(Shape, Shape), String> {
    if axes == 0 || axes > x.shape.rank() {
        return Err(format!("{x} has no {axes} last axes to normalise"));
    }
    let (rows, row) = x.shape.split_at(x.shape.rank() - axes);
    Ok((row.into(), rows.into()))
}

/// Axes, from the first, along which nothing is shared: those of the rows.
fn leading(x: &Type, axes: usize) -> usize {
    x.shape.rank().saturating_sub(axes)
}

pub(super) fn view(x: &Shape, axes: usize) -> View {
    let (rows, row) = x.split_at(x.rank() - axes);
    let (rows, row) = (rows.iter().product(), row.iter().product());
    View { x: [rows, row].into(), stats: [rows, 1].into(), scale: [1, row].into() }
}

/// Ops with x and γ.
fn forward_examples(dice: &mut Dice) -> Vec<(LayerNorm, Type, Type)> {
    let settings = [(1, 1e-2), (2, 1e-1), (3, 1e-2), (1, 1e-1)].map(|(axes, eps)| {
        let x = Type::new(DType::F32, [dice.range(1, 4), dice.range(2, 6), dice.range(2, 70)]);
        let row = x.with_shape(&x.shape[3 - axes..]);
        (LayerNorm { eps: Scalar(eps), axes, to: None }, x, row)
    });
    settings.into()
}

/// Ops with x, γ and the mean.
fn backward_examples(dice: &mut Dice) -> Vec<(LayerNormGrad, Type, Type, Type)> {
    let settings = [1, 2, 3].map(|axes| {
        let x = Type::new(DType::F32, [dice.range(1, 4), dice.range(1, 6), dice.range(1, 70)]);
        let (row, rows) = (x.with_shape(&x.shape[3 - axes..]), x.with_shape(&x.shape[..3 - axes]));
        (LayerNormGrad { axes }, x, row, rows)
    });
    settings.into()
}
