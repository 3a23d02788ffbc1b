//! The largest element of every window, with one byte that says which it was.
//!
//! The byte is all that the gradient keeps: four to eight times less than the input.

use smallvec::smallvec;

use super::pool::{Frame, MaxPoolGrad};
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Keep, Rule, Types};
use crate::ops::WindowAxis;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Type, ops};

/// The most elements of a window: a place in it must fit into a byte.
const LARGEST: usize = 256;

/// y = the largest element of every window, and the number of that element in the window, row by row.
///
/// Input: `[N, H, W, C]`. Outputs: y `[N, OH, OW, C]` and a byte for each of its elements. Of equal elements the first
/// wins; a not-a-number wins over all before it; padding never wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaxPool {
    /// Height and width of a window; at most 256 elements.
    pub window: [usize; 2],
    /// Elements from one window to the next.
    pub stride: [usize; 2],
    /// Elements added before and after each axis, fewer than a window has.
    pub pad: [(usize, usize); 2],
}

impl MaxPool {
    fn frame(&self) -> Frame {
        Frame { window: self.window, stride: self.stride, pad: self.pad }
    }

    /// The windows along the two axes of images of a height and width.
    pub fn axes(&self, size: [usize; 2]) -> [WindowAxis; 2] {
        self.frame().axes(size)
    }

    fn check(&self) -> Result<(), String> {
        let [height, width] = self.window;
        match height.saturating_mul(width) {
            elements if elements > LARGEST => Err(format!(
                "a window of {height} by {width} has {elements} elements, and its place is kept in one byte: \
                 pool over at most {LARGEST} elements, or over the whole image with global_max_pool2d"
            )),
            _ => Ok(()),
        }
    }

    /// Any byte of a window for every element of y, so also places in the padding, which a kernel must not write to.
    fn any_index(&self, y: &Type) -> (Type, Domain) {
        (y.with_dtype(DType::U8), Domain::Index(self.window[0] * self.window[1]))
    }

    fn spread(&self, at: &Backward<'_>, index: &Sym, dy: &Sym, x: &Type) -> Result<Sym> {
        let op = MaxPoolGrad { forward: *self, input: [x.shape[1], x.shape[2]] };
        Ok(at.push(op, &[index, dy])?.remove(0))
    }
}

impl Rule for MaxPool {
    const NAME: &'static str = "max_pool";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        ops::float(x)?;
        self.check()?;
        let y = self.frame().output(&x.shape)?;
        Ok(smallvec![x.with_shape(&y), Type::new(DType::U8, y)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        self.frame().cost(outputs[0], inputs, outputs)
    }

    const KEEP: Keep = Keep::outputs(2);

    /// dy goes to the element that won.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![Some(self.spread(at, &at.output(1)?, &at.grad(0)?, at.input_type(0))?)])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, shape) = (inputs[0], &outputs[0].shape);
        let mut best: Vec<Option<(f64, usize)>> = vec![None; shape.elements()];
        self.frame().for_each(&x.shape, shape, |iy, ix, k| {
            let value = x.data[ix];
            if best[iy].is_none_or(|(before, _)| value > before || value.is_nan()) {
                best[iy] = Some((value, k));
            }
        });
        let (y, index) = best.into_iter().map(|b| b.map_or((f64::NAN, 0.0), |(v, k)| (v, k as f64))).unzip();
        vec![Array::new(shape.clone(), y), Array::new(shape.clone(), index)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let make = |(op, x, _): (MaxPool, Type, Type)| Example::new(op, vec![(x, Domain::Distinct)]);
        samples(dice).map(make).collect()
    }
}

impl Rule for MaxPoolGrad {
    const NAME: &'static str = "max_pool_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [index, dy] = ops::arity(inputs)?;
        ops::float(dy)?;
        check_index(index, dy)?;
        self.forward.check()?;
        let x = self.forward.frame().input(&dy.shape, self.input)?;
        Ok(smallvec![dy.with_shape(x)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    const KEEP: Keep = Keep::inputs(1);

    /// Linear in dy: the gradient at dx is read where dy was written.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let op = MaxPoolGather(self.forward);
        Ok(vec![None, Some(at.push(op, &[&at.input(0)?, &at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (index, dy, shape) = (inputs[0], inputs[1], &outputs[0].shape);
        let mut dx = vec![0.0; shape.elements()];
        self.forward.frame().for_each(shape, &dy.shape, |iy, ix, k| {
            if index.data[iy] == k as f64 {
                dx[ix] += dy.data[iy];
            }
        });
        vec![Array::new(shape.clone(), dx)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let make = |(forward, x, y): (MaxPool, Type, Type)| {
            let op = MaxPoolGrad { forward, input: [x.shape[1], x.shape[2]] };
            Example::new(op, vec![forward.any_index(&y), (y, Domain::Normal)])
        };
        samples(dice).map(make).collect()
    }
}

/// y = the element of every window that its byte names: max pooling with the choice already made.
///
/// Inputs: index `u8[N, OH, OW, C]`, x `[N, H, W, C]`. Output: `[N, OH, OW, C]`, 0 where a byte names a place outside of
/// the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaxPoolGather(pub MaxPool);

impl Rule for MaxPoolGather {
    const NAME: &'static str = "max_pool_gather";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [index, x] = ops::arity(inputs)?;
        ops::float(x)?;
        self.0.check()?;
        let y = x.with_shape(self.0.frame().output(&x.shape)?);
        check_index(index, &y)?;
        Ok(smallvec![y])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    const KEEP: Keep = Keep::inputs(1);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![None, Some(self.0.spread(at, &at.input(0)?, &at.grad(0)?, at.input_type(1))?)])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (index, x, shape) = (inputs[0], inputs[1], &outputs[0].shape);
        let mut y = vec![0.0; shape.elements()];
        self.0.frame().for_each(&x.shape, shape, |iy, ix, k| {
            if index.data[iy] == k as f64 {
                y[iy] = x.data[ix];
            }
        });
        vec![Array::new(shape.clone(), y)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let make = |(forward, x, y): (MaxPool, Type, Type)| {
            Example::new(MaxPoolGather(forward), vec![forward.any_index(&y), (x, Domain::Normal)])
        };
        samples(dice).map(make).collect()
    }
}

/// Checks that there is a byte for every element.
fn check_index(index: &Type, y: &Type) -> Result<(), String> {
    let wanted = y.with_dtype(DType::U8);
    if *index == wanted { Ok(()) } else { Err(format!("the index of {y} is {wanted}, not {index}")) }
}

/// Poolings with the types of x and y.
fn samples(dice: &mut Dice) -> impl Iterator<Item = (MaxPool, Type, Type)> {
    let pooling = |(Frame { window, stride, pad }, x, y)| (MaxPool { window, stride, pad }, x, y);
    Frame::samples(dice).into_iter().map(pooling)
}
