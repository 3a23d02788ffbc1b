//! The two gradients of a convolution, of which one is the transposed convolution.

use smallvec::smallvec;

use super::conv::{ConvFrame, check_bias, operands, samples};
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{Shape, Type};

/// dx of y = x ∗ w from dy and w, plus a bias; forward, this is the transposed convolution of dy.
///
/// Inputs: dy `[N, OH, OW, CO]`, w `[KH, KW, CI / groups, CO]`, and with `bias` a vector `[CI]`. Output: `[N, H, W, CI]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvGradInput {
    /// How the filter slides over the result.
    pub frame: ConvFrame,
    /// Height and width of the result; several sizes lead to the same OH and OW when a stride is above 1.
    pub input: [usize; 2],
    /// Whether a bias is added to the result.
    pub bias: bool,
}

impl Rule for ConvGradInput {
    const NAME: &'static str = "conv_grad_input";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let (dy, w) = operands(inputs, self.bias)?;
        if dy.shape.rank() != 4 || w.shape.rank() != 4 {
            let (dy, w) = (&dy.shape, &w.shape);
            return Err(format!(
                "it takes images [N, H, W, C] and a filter [KH, KW, CI, CO], not {dy} and {w}"
            ));
        }
        let x = Shape::from([
            dy.shape[0],
            self.input[0],
            self.input[1],
            w.shape[2].saturating_mul(self.frame.groups),
        ]);
        let y = self.frame.output(&x, &w.shape)?;
        if y != dy.shape {
            return Err(format!("a convolution of {x} by {} gives {y}, not {}", w.shape, dy.shape));
        }
        check_bias(inputs, x[3])?;
        Ok(smallvec![dy.with_shape(x)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        (along.operand, along.axis) == (0, 0)
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        ConvFrame::cost(inputs[0], inputs[1], inputs, outputs)
    }

    const KEEP: Keep = Keep::inputs(3);

    /// With the gradient g at dx: that of dy is g ∗ w, that of w is the filter's gradient with g for x.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let g = at.grad(0)?;
        let mut grads = vec![None; at.n_inputs()];
        if at.wants(0) {
            grads[0] = Some(self.frame.convolve(at, &g, &at.input(1)?)?);
        }
        if at.wants(1) {
            grads[1] = Some(self.frame.grad_filter(at, &g, &at.input(0)?, at.input_type(1))?);
        }
        if self.bias && at.wants(2) {
            grads[2] = Some(g.sum(&[0, 1, 2], false)?);
        }
        Ok(grads)
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (dy, w, shape) = (inputs[0], inputs[1], &outputs[0].shape);
        let bias = |i: usize| if self.bias { inputs[2].data[i % shape[3]] } else { 0.0 };
        let mut x: Vec<f64> = (0..shape.elements()).map(bias).collect();
        self.frame.for_each(shape, &w.shape, &dy.shape, |ix, iw, iy| x[ix] += dy.data[iy] * w.data[iw]);
        vec![Array::new(shape.clone(), x)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let make = |(i, (frame, x, w, y)): (usize, (ConvFrame, Type, Type, Type))| {
            let (input, bias) = ([x.shape[1], x.shape[2]], i % 3 == 1);
            let mut inputs = vec![(y, Domain::Normal), (w, Domain::Normal)];
            if bias {
                inputs.push((x.with_shape([x.shape[3]]), Domain::Normal));
            }
            Example::new(ConvGradInput { frame, input, bias }, inputs)
        };
        samples(dice).into_iter().enumerate().map(make).collect()
    }
}

/// dw of y = x ∗ w from x and dy.
///
/// Inputs: x `[N, H, W, CI]`, dy `[N, OH, OW, CO]`. Output: `[KH, KW, CI / groups, CO]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvGradFilter {
    /// How the filter slides over x.
    pub frame: ConvFrame,
    /// Height and width of the result.
    pub filter: [usize; 2],
}

impl Rule for ConvGradFilter {
    const NAME: &'static str = "conv_grad_filter";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let (x, dy) = operands(inputs, false)?;
        if x.shape.rank() != 4 || dy.shape.rank() != 4 {
            return Err(format!("it takes two images [N, H, W, C], not {} and {}", x.shape, dy.shape));
        }
        let group_in = x.shape[3] / self.frame.groups.max(1);
        let w = Shape::from([self.filter[0], self.filter[1], group_in, dy.shape[3]]);
        let y = self.frame.output(&x.shape, &w)?;
        if y != dy.shape {
            return Err(format!("a convolution of {} by {w} gives {y}, not {}", x.shape, dy.shape));
        }
        Ok(smallvec![x.with_shape(w)])
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        ConvFrame::cost(inputs[1], outputs[0], inputs, outputs)
    }

    const KEEP: Keep = Keep::inputs(3);

    /// With the gradient g at dw: that of x is the input's gradient with g for w, that of dy is x ∗ g.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let g = at.grad(0)?;
        let mut grads = vec![None; 2];
        if at.wants(0) {
            grads[0] = Some(self.frame.grad_input(at, &at.input(1)?, &g, at.input_type(0))?);
        }
        if at.wants(1) {
            grads[1] = Some(self.frame.convolve(at, &at.input(0)?, &g)?);
        }
        Ok(grads)
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, dy, shape) = (inputs[0], inputs[1], &outputs[0].shape);
        let mut w = vec![0.0; shape.elements()];
        self.frame.for_each(&x.shape, shape, &dy.shape, |ix, iw, iy| w[iw] += x.data[ix] * dy.data[iy]);
        vec![Array::new(shape.clone(), w)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let make = |(frame, x, w, y): (ConvFrame, Type, Type, Type)| {
            let filter = [w.shape[0], w.shape[1]];
            let inputs = vec![(x, Domain::Normal), (y, Domain::Normal)];
            Example::new(ConvGradFilter { frame, filter }, inputs)
        };
        samples(dice).into_iter().map(make).collect()
    }
}
