//! RMS norm: x over its root mean square, row by row.

use smallvec::smallvec;

use super::{Statistics, View, backward_cost, check_dy, check_wide, forward_cost, shaped};
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Keep, Rule, Types};
use crate::ops::composed::through;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Shape, Type, ops};

/// y = γ x rstd with rstd = 1/√(mean of x² + ε) over the last axis. Inputs: x, γ. Outputs: y, rstd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmsNorm {
    /// ε, added to the mean square.
    pub eps: Scalar,
}

/// The gradient of RMS norm. Inputs: x, γ, rstd, dy. Outputs: dx, dγ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmsNormGrad;

fn parts(x: &Type) -> Result<(Shape, Shape), String> {
    ops::float(x)?;
    let Some((&row, rows)) = x.shape.split_last() else {
        return Err("it normalises the last axis, and a scalar has none".into());
    };
    view(&x.shape).check(x)?;
    Ok(([row].into(), rows.into()))
}

fn view(x: &Shape) -> View {
    let row = x.last().copied().unwrap_or(1);
    let rows = x[..x.rank().saturating_sub(1)].iter().product();
    View { x: [rows, row].into(), stats: [rows, 1].into(), scale: [1, row].into() }
}

impl Rule for RmsNorm {
    const NAME: &'static str = "rms_norm";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, gamma] = ops::arity(inputs)?;
        let (row, rows) = parts(x)?;
        check_wide("gamma", x, &row, &[gamma])?;
        Ok(smallvec![x.clone(), Type::new(x.dtype.accumulator(), rows)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.operand == 0 && along.from_end() > 1
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        forward_cost(inputs, outputs)
    }

    const KEEP: Keep = Keep::both(0b11, 0b10);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let rstd = at.output(1)?;
        let grads = at.push(RmsNormGrad, &[&at.input(0)?, &at.input(1)?, &rstd, &at.grad(0)?])?;
        let stats = Statistics { mean: None, rstd: &rstd, dmean: None, dvar: None, drstd: at.try_grad(1) };
        let dx = view(&at.input_type(0).shape).statistics_part(at, grads[0].clone(), stats)?;
        Ok(vec![Some(dx), Some(grads[1].clone())])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let f = view(&inputs[0].shape).forward(inputs[0], inputs[1], None, self.eps);
        vec![shaped(f.y, &outputs[0]), shaped(f.rstd, &outputs[1])]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for eps in [1e-2, 1e-1] {
            let x = Type::new(DType::F32, [2, dice.range(1, 6), dice.range(1, 70)]);
            let gamma = x.with_shape(&x.shape[2..]);
            let inputs = vec![(x, Domain::Normal), (gamma, Domain::Normal)];
            examples.push(Example::new(RmsNorm { eps: Scalar(eps) }, inputs).wide(0b10));
        }
        examples
    }
}

impl Rule for RmsNormGrad {
    const NAME: &'static str = "rms_norm_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, gamma, rstd, dy] = ops::arity(inputs)?;
        let (row, rows) = parts(x)?;
        check_wide("gamma", x, &row, &[gamma])?;
        check_wide("rstd", x, &rows, &[rstd])?;
        check_dy(x, dy)?;
        Ok(smallvec![x.clone(), gamma.clone()])
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 3), (0, 0)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        backward_cost(inputs, outputs)
    }

    const KEEP: Keep = Keep::inputs(0b1111);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let view = view(&at.input_type(0).shape);
        through(at, |i| {
            let [dx, dgamma, _] = view.backward_ops(&i[0], &i[1], None, &i[2], &i[3])?;
            Ok(vec![dx, dgamma])
        })
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, gamma, rstd, dy] = [0, 1, 2, 3].map(|i| inputs[i]);
        let grads = view(&x.shape).backward(x, gamma, None, rstd, dy);
        grads.into_iter().zip(outputs).map(|(g, ty)| shaped(g, ty)).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for _ in 0..2 {
            let x = Type::new(DType::F32, [2, dice.range(1, 6), dice.range(1, 70)]);
            let (gamma, rows) = (x.with_shape(&x.shape[2..]), x.with_shape(&x.shape[..2]));
            let inputs = vec![
                (x.clone(), Domain::Normal),
                (gamma, Domain::Normal),
                (rows, Domain::Positive),
                (x, Domain::Normal),
            ];
            examples.push(Example::new(RmsNormGrad, inputs).wide(0b110));
        }
        examples
    }
}
