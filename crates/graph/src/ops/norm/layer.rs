//! Layer norm: statistics over the trailing axes of each row.

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

/// y = γ (x - mean) rstd + β over the last axes. Inputs: x, γ, β (of the last axes' shape). Outputs: y, mean, rstd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerNorm {
    /// ε, added to the variance.
    pub eps: Scalar,
    /// The number of last axes that are normalised together.
    pub axes: usize,
}

/// The gradient of layer norm. Inputs: x, γ, mean, rstd, dy. Outputs: dx, dγ, dβ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerNormGrad {
    /// The number of last axes that are normalised together.
    pub axes: usize,
}

/// The shape of a row (γ, β) and of the rows (statistics), or why there are none.
fn parts(x: &Type, axes: usize) -> Result<(Shape, Shape), String> {
    ops::float(x)?;
    if axes == 0 || axes > x.shape.rank() {
        return Err(format!("{x} has no {axes} last axes to normalise"));
    }
    let (rows, row) = x.shape.split_at(x.shape.rank() - axes);
    view(&x.shape, axes).check(x)?;
    Ok((row.into(), rows.into()))
}

fn view(x: &Shape, axes: usize) -> View {
    let (rows, row) = x.split_at(x.rank() - axes);
    let (rows, row) = (rows.iter().product(), row.iter().product());
    View { x: [rows, row].into(), stats: [rows, 1].into(), scale: [1, row].into() }
}

impl Rule for LayerNorm {
    const NAME: &'static str = "layer_norm";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, gamma, beta] = ops::arity(inputs)?;
        let (row, rows) = parts(x, self.axes)?;
        check_wide("gamma and beta", x, &row, &[gamma, beta])?;
        let stats = Type::new(x.dtype.accumulator(), rows);
        Ok(smallvec![x.clone(), stats.clone(), stats])
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        forward_cost(inputs, outputs)
    }

    const KEEP: Keep = Keep::both(0b11, 0b110);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let (mean, rstd) = (at.output(1)?, at.output(2)?);
        let op = LayerNormGrad { axes: self.axes };
        let grads = at.push(op, &[&at.input(0)?, &at.input(1)?, &mean, &rstd, &at.grad(0)?])?;
        let stats = Statistics {
            mean: Some(&mean),
            rstd: &rstd,
            dmean: at.try_grad(1),
            dvar: None,
            drstd: at.try_grad(2),
        };
        let dx = view(&at.input_type(0).shape, self.axes).statistics_part(at, grads[0].clone(), stats)?;
        Ok(vec![Some(dx), Some(grads[1].clone()), Some(grads[2].clone())])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let f = view(&inputs[0].shape, self.axes).forward(inputs[0], inputs[1], Some(inputs[2]), self.eps);
        vec![shaped(f.y, &outputs[0]), shaped(f.mean, &outputs[1]), shaped(f.rstd, &outputs[2])]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for (axes, eps) in [(1, 1e-2), (2, 1e-1), (3, 1e-2), (1, 1e-1)] {
            let x = Type::new(DType::F32, [dice.range(1, 4), dice.range(2, 6), dice.range(2, 70)]);
            let row = x.with_shape(&x.shape[3 - axes..]);
            let inputs = vec![(x, Domain::Normal), (row.clone(), Domain::Normal), (row, Domain::Normal)];
            examples.push(Example::new(LayerNorm { eps: Scalar(eps), axes }, inputs).wide(0b110));
        }
        examples
    }
}

impl Rule for LayerNormGrad {
    const NAME: &'static str = "layer_norm_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, gamma, mean, rstd, dy] = ops::arity(inputs)?;
        let (row, rows) = parts(x, self.axes)?;
        check_wide("gamma", x, &row, &[gamma])?;
        check_wide("mean and rstd", x, &rows, &[mean, rstd])?;
        check_dy(x, dy)?;
        Ok(smallvec![x.clone(), gamma.clone(), gamma.clone()])
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 4), (0, 0)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        backward_cost(inputs, outputs)
    }

    const KEEP: Keep = Keep::inputs(0b11111);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let view = view(&at.input_type(0).shape, self.axes);
        through(at, |i| Ok(view.backward_ops(&i[0], &i[1], Some(&i[2]), &i[3], &i[4])?.into()))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, gamma, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|i| inputs[i]);
        let grads = view(&x.shape, self.axes).backward(x, gamma, Some(mean), rstd, dy);
        grads.into_iter().zip(outputs).map(|(g, ty)| shaped(g, ty)).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for axes in 1..4 {
            let x = Type::new(DType::F32, [dice.range(1, 4), dice.range(1, 6), dice.range(1, 70)]);
            let (row, rows) = (x.with_shape(&x.shape[3 - axes..]), x.with_shape(&x.shape[..3 - axes]));
            let inputs = vec![
                (x.clone(), Domain::Normal),
                (row, Domain::Normal),
                (rows.clone(), Domain::Normal),
                (rows, Domain::Positive),
                (x, Domain::Normal),
            ];
            examples.push(Example::new(LayerNormGrad { axes }, inputs).wide(0b1110));
        }
        examples
    }
}
