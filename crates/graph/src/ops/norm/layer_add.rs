//! The gradient of layer norm, added to the gradient that goes past the norm.

use smallvec::{SmallVec, smallvec};

use super::layer::{is_narrower, view};
use super::{backward_cost, shaped};
use crate::error::Result;
use crate::example::{Dice, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Cost, Keep, Rule, Types};
use crate::ops::LayerNormGrad;
use crate::ops::composed::through;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Type};

/// The gradient of a block with a residual: that of its layer norm, and what goes past. Inputs: x, γ, mean, rstd, dy, and what is added. Outputs: dx + what is added,
/// dγ, dβ, and with `to` the sum once more, rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerNormGradAdd {
    /// The number of last axes that are normalised together.
    pub axes: usize,
    /// The 16-bit type in which an f32 sum is written beside itself, for products that read it so.
    pub to: Option<DType>,
}

impl LayerNormGradAdd {
    fn norm(&self) -> LayerNormGrad {
        LayerNormGrad { axes: self.axes }
    }
}

impl Rule for LayerNormGradAdd {
    const NAME: &'static str = "layer_norm_grad_add";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let Some((added, of_norm)) = inputs.split_last() else {
            return Err("it takes six inputs and was given none".into());
        };
        let mut made = self.norm().infer(of_norm)?;
        if **added != made[0] {
            return Err(format!("{added} cannot be added to a gradient of {}", made[0]));
        }
        if let Some(to) = self.to {
            if !is_narrower(to, &made[0]) {
                return Err(format!("a sum of {} cannot be written as {to} beside itself", made[0]));
            }
            made.push(made[0].with_dtype(to));
        }
        Ok(made)
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        match self.to {
            Some(_) => smallvec![(0, 5), (3, 4)],
            None => smallvec![(0, 5), (0, 4)],
        }
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        backward_cost(inputs, outputs)
    }

    const KEEP: Keep = Keep::inputs(0b111111);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let view = view(&at.input_type(0).shape, self.axes);
        through(at, |i| {
            let [dx, dgamma, dbeta] = view.backward_ops(&i[0], &i[1], Some(&i[2]), &i[3], &i[4])?;
            let sum = dx.add(&i[5])?;
            let rounded = self.to.map(|to| sum.cast(to)).transpose()?;
            Ok([sum, dgamma, dbeta].into_iter().chain(rounded).collect())
        })
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut made = self.norm().reference(&inputs[..5], &outputs[..3]);
        made[0].data.iter_mut().zip(&inputs[5].data).for_each(|(sum, added)| *sum += added);
        let rounded = outputs.get(3).map(|ty| shaped(made[0].clone(), ty));
        made.into_iter().chain(rounded).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let of_norm = LayerNormGrad::examples(dice).into_iter();
        let adding = |mut example: Example| {
            let axes = example.inputs[1].0.shape.rank();
            example.inputs.push(example.inputs[0].clone());
            Example { op: LayerNormGradAdd { axes, to: None }.into(), ..example }
        };
        of_norm.map(adding).collect()
    }
}
