//! Group norm: statistics over the positions and a part of the channels of each sample, channels last.

use smallvec::smallvec;

use super::{Statistics, View, backward_cost, check_dy, check_wide, forward_cost, shaped};
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Cost, Keep, Rule, Types};
use crate::ops::composed::through;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Shape, Type, ops};

/// y = γ (x - mean) rstd + β with a mean and rstd for each sample and group of channels.
/// Inputs: x `[N, .., C]`, γ, β `[C]`. Outputs: y, mean, rstd `[N, groups]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupNorm {
    /// The number of equal parts of the channels.
    pub groups: usize,
    /// ε, added to the variance.
    pub eps: Scalar,
}

/// The gradient of group norm. Inputs: x, γ, mean, rstd, dy. Outputs: dx, dγ, dβ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupNormGrad {
    /// The number of equal parts of the channels.
    pub groups: usize,
}

/// The shapes of γ and of the statistics, or what does not fit.
fn parts(x: &Type, groups: usize) -> Result<(Shape, Shape), String> {
    ops::float(x)?;
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
    view(&x.shape, groups).check(x)?;
    Ok(([channels].into(), [x.shape[0], groups].into()))
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

impl Rule for GroupNorm {
    const NAME: &'static str = "group_norm";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, gamma, beta] = ops::arity(inputs)?;
        let (scale, stats) = parts(x, self.groups)?;
        check_wide("gamma and beta", x, &scale, &[gamma, beta])?;
        let stats = Type::new(x.dtype.accumulator(), stats);
        Ok(smallvec![x.clone(), stats.clone(), stats])
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        forward_cost(inputs, outputs)
    }

    const KEEP: Keep = Keep::both(0b11, 0b110);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let (mean, rstd) = (at.output(1)?, at.output(2)?);
        let op = GroupNormGrad { groups: self.groups };
        let grads = at.push(op, &[&at.input(0)?, &at.input(1)?, &mean, &rstd, &at.grad(0)?])?;
        let stats = Statistics {
            mean: Some(&mean),
            rstd: &rstd,
            dmean: at.try_grad(1),
            dvar: None,
            drstd: at.try_grad(2),
        };
        let dx = view(&at.input_type(0).shape, self.groups).statistics_part(at, grads[0].clone(), stats)?;
        Ok(vec![Some(dx), Some(grads[1].clone()), Some(grads[2].clone())])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let f = view(&inputs[0].shape, self.groups).forward(inputs[0], inputs[1], Some(inputs[2]), self.eps);
        vec![shaped(f.y, &outputs[0]), shaped(f.mean, &outputs[1]), shaped(f.rstd, &outputs[2])]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for (groups, part) in [(1, 5), (2, 3), (4, 4), (3, 1), (2, 20)] {
            let x =
                Type::new(DType::F32, [dice.range(1, 3), dice.range(2, 5), dice.range(1, 5), groups * part]);
            let scale = x.with_shape([groups * part]);
            let inputs = vec![(x, Domain::Normal), (scale.clone(), Domain::Normal), (scale, Domain::Normal)];
            examples.push(Example::new(GroupNorm { groups, eps: Scalar(1e-1) }, inputs).wide(0b110));
        }
        examples
    }
}

impl Rule for GroupNormGrad {
    const NAME: &'static str = "group_norm_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, gamma, mean, rstd, dy] = ops::arity(inputs)?;
        let (scale, stats) = parts(x, self.groups)?;
        check_wide("gamma", x, &scale, &[gamma])?;
        check_wide("mean and rstd", x, &stats, &[mean, rstd])?;
        check_dy(x, dy)?;
        Ok(smallvec![x.clone(), gamma.clone(), gamma.clone()])
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 4), (0, 0)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        backward_cost(inputs, outputs)
    }

    const KEEP: Keep = Keep::inputs(0b11111);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let view = view(&at.input_type(0).shape, self.groups);
        through(at, |i| Ok(view.backward_ops(&i[0], &i[1], Some(&i[2]), &i[3], &i[4])?.into()))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, gamma, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|i| inputs[i]);
        let grads = view(&x.shape, self.groups).backward(x, gamma, Some(mean), rstd, dy);
        grads.into_iter().zip(outputs).map(|(g, ty)| shaped(g, ty)).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for (groups, part) in [(1, 5), (2, 3), (3, 1), (2, 20)] {
            let x =
                Type::new(DType::F32, [dice.range(1, 3), dice.range(1, 5), dice.range(1, 5), groups * part]);
            let (scale, stats) = (x.with_shape([groups * part]), x.with_shape([x.shape[0], groups]));
            let inputs = vec![
                (x.clone(), Domain::Normal),
                (scale, Domain::Normal),
                (stats.clone(), Domain::Normal),
                (stats, Domain::Positive),
                (x, Domain::Normal),
            ];
            examples.push(Example::new(GroupNormGrad { groups }, inputs).wide(0b1110));
        }
        examples
    }
}
