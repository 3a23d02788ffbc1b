//! Group norm: statistics over the positions and a part of the channels of each sample, channels last.

use smallvec::smallvec;

use super::with_mean::norm_with_mean;
use super::{Statistics, View, backward_cost, check_dy, check_wide, forward_cost, shaped};
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Keep, Rule, Types};
use crate::ops::composed::through;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Shape, Type, ops};

norm_with_mean! {
    /// y = γ (x - mean) rstd + β with a mean and rstd for each sample and group of channels.
    /// Inputs: x `[N, .., C]`, γ, β `[C]`. Outputs: y, mean, rstd `[N, groups]`.
    GroupNorm = "group_norm",
    /// The gradient of group norm. Inputs: x, γ, mean, rstd, dy. Outputs: dx, dγ, dβ.
    GroupNormGrad = "group_norm_grad",
    /// The number of equal parts of the channels.
    groups
}

/// The shapes of γ and of the statistics.
fn parts(x: &Type, groups: usize) -> Result<(Shape, Shape), String> {
    if x.shape.rank() < 2 {
        return Err(format!("it takes samples and channels, [N, .., C], not {}", x.shape));
    }
    let channels = x.shape[x.shape.rank() - 1];
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(format!(
            "the {channels} channels of {} cannot be split into {groups} equal groups",
            x.shape
        ));
    }
    Ok(([channels].into(), [x.shape[0], groups].into()))
}

/// Axes, from the first, along which nothing is shared: the samples.
fn leading(_: &Type, _: usize) -> usize {
    1
}

fn view(x: &Shape, groups: usize) -> View {
    let (samples, channels) = (x[0], x[x.rank() - 1]);
    let positions = x[1..x.rank() - 1].iter().product();
    let part = channels / groups;
    View {
        x: [samples, positions, groups, part].into(),
        stats: [samples, 1, groups, 1].into(),
        scale: [1, 1, groups, part].into(),
    }
}

/// Images of `groups` times `part` channels, and γ.
fn images(dice: &mut Dice, least_height: usize, groups: usize, part: usize) -> (Type, Type) {
    let (samples, height, width) = (dice.range(1, 3), dice.range(least_height, 5), dice.range(1, 5));
    let x = Type::new(DType::F32, [samples, height, width, groups * part]);
    let scale = x.with_shape([groups * part]);
    (x, scale)
}

/// The type of y.
fn result(_: &GroupNorm, x: &Type) -> Result<Type, String> {
    Ok(x.clone())
}

/// Ops with x and γ.
fn forward_examples(dice: &mut Dice) -> Vec<(GroupNorm, Type, Type)> {
    let sizes = [(1, 5), (2, 3), (4, 4), (3, 1), (2, 20)];
    let example = |(groups, part): (usize, usize)| {
        let (x, scale) = images(dice, 2, groups, part);
        (GroupNorm { groups, eps: Scalar(1e-1) }, x, scale)
    };
    sizes.map(example).into()
}

/// Ops with x, γ and the mean.
fn backward_examples(dice: &mut Dice) -> Vec<(GroupNormGrad, Type, Type, Type)> {
    let sizes = [(1, 5), (2, 3), (3, 1), (2, 20)];
    let example = |(groups, part): (usize, usize)| {
        let (x, scale) = images(dice, 1, groups, part);
        let stats = x.with_shape([x.shape[0], groups]);
        (GroupNormGrad { groups }, x, scale, stats)
    };
    sizes.map(example).into()
}
