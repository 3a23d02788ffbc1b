//! Batch norm in training: statistics of each channel over all other axes, channels last.

use smallvec::smallvec;

use super::{Statistics, View, backward_cost, check_dy, check_wide, forward_cost, shaped};
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Cost, Keep, Rule, Types};
use crate::ops::composed::through;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Shape, Type, ops};

/// y = γ (x - mean) rstd + β with rstd = 1/√(var + ε), mean and biased variance of each channel over the batch.
/// Inputs: x `[.., C]`, γ, β `[C]`. Outputs: y, mean, var, rstd `[C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchNorm {
    /// ε, added to the variance.
    pub eps: Scalar,
    /// Whether y is its relu instead.
    pub relu: bool,
}

/// The gradient of batch norm. Inputs: x, γ, mean, rstd, dy, and β where a relu follows. Outputs: dx, dγ, dβ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchNormGrad {
    /// Whether dy is the gradient at the relu of y. The sign of y is computed again from x: y need not be alive.
    pub relu: bool,
}

/// The shape of γ and the statistics, or what does not fit.
fn channels(x: &Type) -> Result<Shape, String> {
    ops::float(x)?;
    let Some(&channels) = x.shape.last() else {
        return Err("it takes a last axis of channels, and a scalar has none".into());
    };
    view(&x.shape).check(x)?;
    Ok([channels].into())
}

fn view(x: &Shape) -> View {
    let channels = x.last().copied().unwrap_or(1);
    let rows = x[..x.rank().saturating_sub(1)].iter().product();
    View { x: [rows, channels].into(), stats: [1, channels].into(), scale: [1, channels].into() }
}

impl Rule for BatchNorm {
    const NAME: &'static str = "batch_norm";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, gamma, beta] = ops::arity(inputs)?;
        let channels = channels(x)?;
        check_wide("gamma and beta", x, &channels, &[gamma, beta])?;
        Ok(smallvec![x.clone(), gamma.clone(), gamma.clone(), gamma.clone()])
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        // x passes twice: once for the statistics, once to be normalised.
        let Cost { flops, bytes } = forward_cost(inputs, outputs);
        Cost { flops, bytes: bytes + inputs[0].bytes() as f64 }
    }

    fn keep(&self) -> Keep {
        Keep::both(if self.relu { 0b111 } else { 0b11 }, 0b1010)
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let (mean, rstd) = (at.output(1)?, at.output(3)?);
        let (x, gamma, dy) = (at.input(0)?, at.input(1)?, at.grad(0)?);
        let op = BatchNormGrad { relu: self.relu };
        let grads = match self.relu {
            true => at.push(op, &[&x, &gamma, &mean, &rstd, &dy, &at.input(2)?])?,
            false => at.push(op, &[&x, &gamma, &mean, &rstd, &dy])?,
        };
        let stats = Statistics {
            mean: Some(&mean),
            rstd: &rstd,
            dmean: at.try_grad(1),
            dvar: at.try_grad(2),
            drstd: at.try_grad(3),
        };
        let dx = view(&at.input_type(0).shape).statistics_part(at, grads[0].clone(), stats)?;
        Ok(vec![Some(dx), Some(grads[1].clone()), Some(grads[2].clone())])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut f = view(&inputs[0].shape).forward(inputs[0], inputs[1], Some(inputs[2]), self.eps);
        if self.relu {
            f.y.data.iter_mut().for_each(|y| *y = y.max(0.0));
        }
        [f.y, f.mean, f.var, f.rstd].into_iter().zip(outputs).map(|(a, ty)| shaped(a, ty)).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for (x, scale) in samples(dice, 2) {
            let inputs = vec![(x, Domain::Normal), (scale.clone(), Domain::Normal), (scale, Domain::Normal)];
            for relu in [false, true] {
                examples
                    .push(Example::new(BatchNorm { eps: Scalar(1e-1), relu }, inputs.clone()).wide(0b110));
            }
        }
        examples
    }
}

impl Rule for BatchNormGrad {
    const NAME: &'static str = "batch_norm_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let (x, gamma, mean, rstd, dy, beta) = if self.relu {
            let [x, gamma, mean, rstd, dy, beta] = ops::arity(inputs)?;
            (x, gamma, mean, rstd, dy, beta)
        } else {
            let [x, gamma, mean, rstd, dy] = ops::arity(inputs)?;
            (x, gamma, mean, rstd, dy, gamma)
        };
        let channels = channels(x)?;
        check_wide("gamma, beta, mean and rstd", x, &channels, &[gamma, beta, mean, rstd])?;
        check_dy(x, dy)?;
        Ok(smallvec![x.clone(), gamma.clone(), gamma.clone()])
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 4), (0, 0)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        // x and dy pass twice: once for the sums, once for dx.
        let Cost { flops, bytes } = backward_cost(inputs, outputs);
        Cost { flops, bytes: bytes + 2.0 * inputs[0].bytes() as f64 }
    }

    fn keep(&self) -> Keep {
        Keep::inputs(if self.relu { 0b111111 } else { 0b11111 })
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let view = view(&at.input_type(0).shape);
        through(at, |i| {
            let mut dy = i[4].clone();
            if self.relu {
                let wide = i[3].dtype();
                let y = i[0].cast(wide)?.sub(&i[2])?.mul(&i[1].mul(&i[3])?)?.add(&i[5])?;
                dy = y.greater(&y.mul_scalar(0.0)?)?.select(&dy, &dy.mul_scalar(0.0)?)?;
            }
            Ok(view.backward_ops(&i[0], &i[1], Some(&i[2]), &i[3], &dy)?.into())
        })
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, gamma, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|i| inputs[i]);
        let mut dy = dy.clone();
        if self.relu {
            let channels = gamma.data.len().max(1);
            for (i, g) in dy.data.iter_mut().enumerate() {
                let c = i % channels;
                let scale = gamma.data[c] * rstd.data[c];
                if (x.data[i] - mean.data[c]) * scale + inputs[5].data[c] <= 0.0 {
                    *g = 0.0;
                }
            }
        }
        let grads = view(&x.shape).backward(x, gamma, Some(mean), rstd, &dy);
        grads.into_iter().zip(outputs).map(|(g, ty)| shaped(g, ty)).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for (x, scale) in samples(dice, 1) {
            let mut inputs = vec![
                (x.clone(), Domain::Normal),
                (scale.clone(), Domain::Normal),
                (scale.clone(), Domain::Normal),
                (scale.clone(), Domain::Positive),
                (x, Domain::Normal),
            ];
            examples.push(Example::new(BatchNormGrad { relu: false }, inputs.clone()).wide(0b1110));
            inputs.push((scale, Domain::Normal));
            examples.push(Example::new(BatchNormGrad { relu: true }, inputs).wide(0b101110));
        }
        examples
    }
}

/// The types of x and γ for images, rows and many channels, with so many values a statistic at least.
fn samples(dice: &mut Dice, least: usize) -> [(Type, Type); 3] {
    let shapes = [
        vec![2, dice.range(least, 6), dice.range(least, 6), dice.range(1, 40)],
        vec![dice.range(least, 300), dice.range(1, 5)],
        vec![dice.range(least, 9), 64],
    ];
    shapes.map(|shape| {
        let x = Type::new(DType::F32, &shape[..]);
        let scale = x.with_shape(&shape[shape.len() - 1..]);
        (x, scale)
    })
}
