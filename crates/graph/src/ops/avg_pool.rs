//! The mean of every window.

use smallvec::smallvec;

use super::pool::Frame;
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Rule, Types, traffic};
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
        let flops = outputs[0].elements() as f64 * (self.window[0] * self.window[1]) as f64;
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    /// Every element of a window gets its share of dy.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let (AvgPool { window, stride, pad, count_pad }, x) = (*self, at.input_type(0));
        let op = AvgPoolGrad { window, stride, pad, count_pad, input: [x.shape[1], x.shape[2]] };
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
        let make = |(i, (Frame { window, stride, pad }, x, _)): (usize, (Frame, Type, Type))| {
            Example::new(AvgPool { window, stride, pad, count_pad: i % 2 == 0 }, vec![(x, Domain::Normal)])
        };
        // Twice, so that every kind of window is counted both ways.
        (0..2)
            .flat_map(|round| {
                Frame::samples(dice).into_iter().enumerate().map(move |(i, s)| make((i + round, s)))
            })
            .collect()
    }
}

/// dx of a mean pooling: every element gets its share of the dy of all windows it is in.
///
/// Input: dy `[N, OH, OW, C]`. Output: `[N, H, W, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AvgPoolGrad {
    /// Height and width of a window.
    pub window: [usize; 2],
    /// Elements from one window to the next.
    pub stride: [usize; 2],
    /// Zeros before and after each axis.
    pub pad: [(usize, usize); 2],
    /// Whether the zeros of the padding count as elements.
    pub count_pad: bool,
    /// Height and width of the result.
    pub input: [usize; 2],
}

impl AvgPoolGrad {
    /// The pooling whose gradient this is.
    pub fn forward(&self) -> AvgPool {
        AvgPool { window: self.window, stride: self.stride, pad: self.pad, count_pad: self.count_pad }
    }
}

impl Rule for AvgPoolGrad {
    const NAME: &'static str = "avg_pool_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [dy] = ops::arity(inputs)?;
        ops::float(dy)?;
        Ok(smallvec![dy.with_shape(self.forward().frame().input(&dy.shape, self.input)?)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let flops = inputs[0].elements() as f64 * (self.window[0] * self.window[1]) as f64;
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    /// Linear in dy, so its gradient is the pooling itself.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![Some(at.push(self.forward(), &[&at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (dy, shape) = (inputs[0], &outputs[0].shape);
        let mut dx = vec![0.0; shape.elements()];
        let y = outputs[0].with_shape(&dy.shape);
        self.forward().for_each(&outputs[0], &y, |iy, ix, weight| dx[ix] += weight * dy.data[iy]);
        vec![Array::new(shape.clone(), dx)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let make = |(i, (Frame { window, stride, pad }, x, y)): (usize, (Frame, Type, Type))| {
            let input = [x.shape[1], x.shape[2]];
            let op = AvgPoolGrad { window, stride, pad, count_pad: i % 2 == 0, input };
            Example::new(op, vec![(y, Domain::Normal)])
        };
        (0..2)
            .flat_map(|round| {
                Frame::samples(dice).into_iter().enumerate().map(move |(i, s)| make((i + round, s)))
            })
            .collect()
    }
}
