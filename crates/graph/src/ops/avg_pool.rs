//! The mean of every window.

use smallvec::smallvec;

use super::pool::{AvgPoolGrad, Frame};
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Rule, Types};
use crate::ops::WindowAxis;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{Type, ops};

/// y = the mean of every window. Input: `[N, H, W, C]`. Output: `[N, OH, OW, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AvgPool {
    /// Height and width of a window.
    pub window: [usize; 2],
    /// Elements from one window to the next.
    pub stride: [usize; 2],
    /// Zeros before and after each axis, fewer than a window has.
    pub pad: [(usize, usize); 2],
    /// Whether the zeros of the padding count as elements.
    pub count_pad: bool,
}

impl AvgPool {
    fn frame(&self) -> Frame {
        Frame { window: self.window, stride: self.stride, pad: self.pad }
    }

    /// The windows along the two axes of images of a height and width.
    pub fn axes(&self, size: [usize; 2]) -> [WindowAxis; 2] {
        self.frame().axes(size)
    }

    /// The number by which the sum of window (oy, ox) is divided.
    pub fn count(&self, axes: &[WindowAxis; 2], oy: usize, ox: usize) -> usize {
        match self.count_pad {
            true => self.window[0] * self.window[1],
            false => axes[0].taps(oy).len() * axes[1].taps(ox).len(),
        }
    }

    /// Calls `f` with every place in y, a place in x, and the weight of that element in that mean.
    fn for_each(&self, x: &Type, y: &Type, mut f: impl FnMut(usize, usize, f64)) {
        let axes = self.axes([x.shape[1], x.shape[2]]);
        let [_, _, width, channels] = [0, 1, 2, 3].map(|a| y.shape[a]);
        self.frame().for_each(&x.shape, &y.shape, |iy, ix, _| {
            let pixel = iy / channels;
            f(iy, ix, 1.0 / self.count(&axes, pixel / width % y.shape[1], pixel % width) as f64);
        });
    }
}

impl Rule for AvgPool {
    const NAME: &'static str = "avg_pool";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        ops::float(x)?;
        Ok(smallvec![x.with_shape(self.frame().output(&x.shape)?)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        self.frame().cost(outputs[0], inputs, outputs)
    }

    /// Every element of a window gets its share of dy.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let x = at.input_type(0);
        let op = AvgPoolGrad { forward: *self, input: [x.shape[1], x.shape[2]] };
        Ok(vec![Some(at.push(op, &[&at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, shape) = (inputs[0], &outputs[0].shape);
        let mut y = vec![0.0; shape.elements()];
        self.for_each(&outputs[0].with_shape(&x.shape), &outputs[0], |iy, ix, weight| {
            y[iy] += weight * x.data[ix]
        });
        vec![Array::new(shape.clone(), y)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let make = |(op, x, _): (AvgPool, Type, Type)| Example::new(op, vec![(x, Domain::Normal)]);
        samples(dice).into_iter().map(make).collect()
    }
}

impl Rule for AvgPoolGrad {
    const NAME: &'static str = "avg_pool_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [dy] = ops::arity(inputs)?;
        ops::float(dy)?;
        Ok(smallvec![dy.with_shape(self.forward.frame().input(&dy.shape, self.input)?)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        self.forward.frame().cost(inputs[0], inputs, outputs)
    }

    /// Linear in dy, so its gradient is the pooling itself.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![Some(at.push(self.forward, &[&at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (dy, shape) = (inputs[0], &outputs[0].shape);
        let mut dx = vec![0.0; shape.elements()];
        let y = outputs[0].with_shape(&dy.shape);
        self.forward.for_each(&outputs[0], &y, |iy, ix, weight| dx[ix] += weight * dy.data[iy]);
        vec![Array::new(shape.clone(), dx)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let make = |(forward, x, y): (AvgPool, Type, Type)| {
            let op = AvgPoolGrad { forward, input: [x.shape[1], x.shape[2]] };
            Example::new(op, vec![(y, Domain::Normal)])
        };
        samples(dice).into_iter().map(make).collect()
    }
}

/// Poolings with the types of x and y: twice, so that every kind of window is counted both ways.
fn samples(dice: &mut Dice) -> Vec<(AvgPool, Type, Type)> {
    let mut samples = Vec::new();
    for round in 0..2 {
        for (i, (Frame { window, stride, pad }, x, y)) in Frame::samples(dice).into_iter().enumerate() {
            samples.push((AvgPool { window, stride, pad, count_pad: (i + round) % 2 == 0 }, x, y));
        }
    }
    samples
}
