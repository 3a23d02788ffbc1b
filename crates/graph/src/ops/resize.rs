//! Images at another size, by the nearest pixel or between four of them.
//!
//! The meaning is that of `torch.nn.functional.interpolate`. Source places are computed exactly for the nearest pixel
//! and in f64 between pixels; the two axes are independent, so all of it is said of one axis.

use std::ops::Range;

use smallvec::smallvec;

use crate::error::{Error, Result};
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Rule, Types, traffic};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Shape, Site, Type, ops};

/// How a pixel of the result is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResizeMode {
    /// Pixel i takes pixel ⌊i · old / new⌋.
    Nearest,
    /// Pixel i is a weighted mean of its neighbours along each axis.
    Bilinear,
}

/// One axis of a resize.
///
/// ```
/// use plimsoll_graph::ops::{ResizeAxis, ResizeMode};
/// let axis = ResizeAxis { mode: ResizeMode::Bilinear, align_corners: false, old: 2, new: 4 };
/// assert_eq!(axis.source(1), (0, 1, 0.25));
/// assert_eq!(axis.readers(0), 0..3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResizeAxis {
    /// How a pixel is made.
    pub mode: ResizeMode,
    /// Whether the first and last pixels of both sizes coincide, rather than the images' edges.
    pub align_corners: bool,
    /// Pixels of the image.
    pub old: usize,
    /// Pixels of the result.
    pub new: usize,
}

impl ResizeAxis {
    /// The two pixels that pixel `i` of the result reads, and the weight of the second.
    pub fn source(&self, i: usize) -> (usize, usize, f64) {
        let place = match (self.mode, self.align_corners) {
            (ResizeMode::Nearest, _) => {
                let pixel = i * self.old / self.new;
                return (pixel, pixel, 0.0);
            }
            (ResizeMode::Bilinear, true) if self.new > 1 => {
                i as f64 * (self.old - 1) as f64 / (self.new - 1) as f64
            }
            (ResizeMode::Bilinear, true) => 0.0,
            (ResizeMode::Bilinear, false) => {
                ((i as f64 + 0.5) * self.old as f64 / self.new as f64 - 0.5).max(0.0)
            }
        };
        let first = (place as usize).min(self.old - 1);
        (first, (first + 1).min(self.old - 1), place - first as f64)
    }

    /// The pixels of the result that read pixel `j`: a range, since sources ascend.
    pub fn readers(&self, j: usize) -> Range<usize> {
        let start = first(self.new, |i| self.source(i).1 >= j);
        start..first(self.new, |i| self.source(i).0 > j).max(start)
    }

    /// The weight of pixel `j` in pixel `i` of the result.
    pub fn weight(&self, i: usize, j: usize) -> f64 {
        let (first, second, weight) = self.source(i);
        (if first == j { 1.0 - weight } else { 0.0 }) + (if second == j { weight } else { 0.0 })
    }
}

/// The first number below `n` that satisfies an ascending condition, or `n`.
fn first(n: usize, condition: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low + (high - low) / 2;
        if condition(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// y = x at another height and width. Input: `[N, H, W, C]`. Output: `[N, out, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resize {
    /// How a pixel is made.
    pub mode: ResizeMode,
    /// Height and width of the result.
    pub out: [usize; 2],
    /// Whether the first and last pixels of both sizes coincide; only for [`ResizeMode::Bilinear`].
    pub align_corners: bool,
}

impl Resize {
    /// The two axes for images of a height and width.
    pub fn axes(&self, size: [usize; 2]) -> [ResizeAxis; 2] {
        let Resize { mode, align_corners, .. } = *self;
        [0, 1].map(|a| ResizeAxis { mode, align_corners, old: size[a], new: self.out[a] })
    }

    fn output(&self, x: &Shape) -> Result<Shape, String> {
        let &[n, height, width, channels] = &x[..] else {
            return Err(format!("it takes images [N, H, W, C], not {x}"));
        };
        let [out_height, out_width] = self.out;
        if height * width == 0 || out_height == 0 || out_width == 0 {
            return Err(format!("images of {height} by {width} cannot become {out_height} by {out_width}"));
        }
        if self.align_corners && self.mode == ResizeMode::Nearest {
            return Err("align_corners has a meaning for bilinear resizing only".into());
        }
        Ok(Shape::from([n, out_height, out_width, channels]))
    }

    /// Calls `f` with every place in y, a place in x, and the weight of that element.
    fn for_each(&self, x: &Shape, y: &Shape, mut f: impl FnMut(usize, usize, f64)) {
        let [vertical, horizontal] = self.axes([x[1], x[2]]);
        for (n, oy) in (0..y[0]).flat_map(|n| (0..y[1]).map(move |oy| (n, oy))) {
            for (ox, c) in (0..y[2]).flat_map(|ox| (0..y[3]).map(move |c| (ox, c))) {
                let ((y0, y1, wy), (x0, x1, wx)) = (vertical.source(oy), horizontal.source(ox));
                for (iy, wy) in [(y0, 1.0 - wy), (y1, wy)] {
                    for (ix, wx) in [(x0, 1.0 - wx), (x1, wx)] {
                        let place = |s: &Shape, row: usize, column: usize| {
                            ((n * s[1] + row) * s[2] + column) * s[3] + c
                        };
                        f(place(y, oy, ox), place(x, iy, ix), wy * wx);
                    }
                }
            }
        }
    }
}

impl Rule for Resize {
    const NAME: &'static str = "resize";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        ops::float(x)?;
        Ok(smallvec![x.with_shape(self.output(&x.shape)?)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: outputs[0].elements() as f64 * flops(self.mode), bytes: traffic(inputs, outputs) }
    }

    /// Every element gets back what it gave.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let x = at.input_type(0);
        let op = ResizeGrad {
            mode: self.mode,
            input: [x.shape[1], x.shape[2]],
            align_corners: self.align_corners,
        };
        Ok(vec![Some(at.push(op, &[&at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, shape) = (inputs[0], &outputs[0].shape);
        let mut y = vec![0.0; shape.elements()];
        self.for_each(&x.shape, shape, |iy, ix, weight| y[iy] += weight * x.data[ix]);
        vec![Array::new(shape.clone(), y)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        samples(dice).into_iter().map(|(op, x)| Example::new(op, vec![(x, Domain::Normal)])).collect()
    }
}

/// dx of a resize. Input: dy `[N, OH, OW, C]`. Output: `[N, input, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResizeGrad {
    /// How a pixel was made.
    pub mode: ResizeMode,
    /// Height and width of the result.
    pub input: [usize; 2],
    /// Whether the first and last pixels of both sizes coincide.
    pub align_corners: bool,
}

impl ResizeGrad {
    /// The resize whose gradient this is, given the shape of dy.
    pub fn forward(&self, dy: &Shape) -> Resize {
        Resize { mode: self.mode, out: [dy[1], dy[2]], align_corners: self.align_corners }
    }
}

impl Rule for ResizeGrad {
    const NAME: &'static str = "resize_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [dy] = ops::arity(inputs)?;
        ops::float(dy)?;
        let &[n, _, _, channels] = &dy.shape[..] else {
            return Err(format!("it takes images [N, H, W, C], not {}", dy.shape));
        };
        let x = Shape::from([n, self.input[0], self.input[1], channels]);
        self.forward(&dy.shape).output(&x)?;
        Ok(smallvec![dy.with_shape(x)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: inputs[0].elements() as f64 * flops(self.mode), bytes: traffic(inputs, outputs) }
    }

    /// Linear in dy, so its gradient is the resize itself.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let op = self.forward(&at.input_type(0).shape);
        Ok(vec![Some(at.push(op, &[&at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (dy, shape) = (inputs[0], &outputs[0].shape);
        let mut dx = vec![0.0; shape.elements()];
        self.forward(&dy.shape).for_each(shape, &dy.shape, |iy, ix, weight| dx[ix] += weight * dy.data[iy]);
        vec![Array::new(shape.clone(), dx)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let make = |(op, x): (Resize, Type)| {
            let input = [x.shape[1], x.shape[2]];
            let dy = x.with_shape([x.shape[0], op.out[0], op.out[1], x.shape[3]]);
            let op = ResizeGrad { mode: op.mode, input, align_corners: op.align_corners };
            Example::new(op, vec![(dy, Domain::Normal)])
        };
        samples(dice).into_iter().map(make).collect()
    }
}

/// Operations an element of the larger side: a copy, or four products and their sum.
fn flops(mode: ResizeMode) -> f64 {
    match mode {
        ResizeMode::Nearest => 1.0,
        ResizeMode::Bilinear => 8.0,
    }
}

/// Larger, smaller, mixed, doubled and single-pixel results in every mode, with the type of x.
fn samples(dice: &mut Dice) -> Vec<(Resize, Type)> {
    let modes = [(ResizeMode::Nearest, false), (ResizeMode::Bilinear, false), (ResizeMode::Bilinear, true)];
    let mut samples = Vec::new();
    for (mode, align_corners) in modes {
        for (i, channels) in [1, 3, 17, 70, 4].into_iter().enumerate() {
            let size = [dice.range(1, 6), dice.range(1, 6)];
            let out = match i {
                0 => size.map(|n| 2 * n),
                1 => [1, 1],
                _ => [dice.range(1, 11), dice.range(1, 11)],
            };
            let x = Type::new(DType::F32, [dice.range(1, 3), size[0], size[1], channels]);
            samples.push((Resize { mode, out, align_corners }, x));
        }
    }
    samples
}

/// Resizing of images `[N, H, W, C]`.
///
/// ```
/// use plimsoll_graph::{DType, ResizeOps, TensorOps, Trace, Type, ops::ResizeMode};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [8, 7, 7, 16]));
/// assert_eq!(x.upsample2d(2, ResizeMode::Nearest)?.shape().to_string(), "[8, 14, 14, 16]");
/// assert_eq!(x.resize2d([5, 9], ResizeMode::Bilinear, false)?.shape().to_string(), "[8, 5, 9, 16]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait ResizeOps: TensorOps {
    /// The images at another height and width. With `align_corners` (bilinear only) the corner pixels coincide, else
    /// the images' edges do.
    #[track_caller]
    fn resize2d(&self, out: [usize; 2], mode: ResizeMode, align_corners: bool) -> Result<Self, Self::Error> {
        self.emit_one(Resize { mode, out, align_corners }, &[self], Site::here())
    }

    /// The images at `factor` times their height and width.
    #[track_caller]
    fn upsample2d(&self, factor: usize, mode: ResizeMode) -> Result<Self, Self::Error> {
        let site = Site::here();
        let &[_, height, width, _] = &self.shape()[..] else {
            let why = format!("it takes images [N, H, W, C], not {}", self.shape());
            return Err(Error::Shape {
                op: "upsample2d",
                layer: String::new(),
                site,
                inputs: vec![self.ty().clone()],
                why,
            }
            .into());
        };
        let out = [height.saturating_mul(factor), width.saturating_mul(factor)];
        self.emit_one(Resize { mode, out, align_corners: false }, &[self], site)
    }
}

impl<T: TensorOps> ResizeOps for T {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resizes one line of pixels.
    fn line(mode: ResizeMode, align_corners: bool, x: &[f64], new: usize) -> Vec<f64> {
        let op = Resize { mode, out: [1, new], align_corners };
        let x = Array::new([1, 1, x.len(), 1], x.to_vec());
        op.reference(&[&x], &[Type::new(DType::F32, [1, 1, new, 1])]).remove(0).data
    }

    #[test]
    fn the_three_modes_give_the_published_values() {
        let x = [1.0, 2.0, 4.0];
        assert_eq!(line(ResizeMode::Nearest, false, &x, 5), [1.0, 1.0, 2.0, 2.0, 4.0]);
        assert_eq!(line(ResizeMode::Nearest, false, &x, 2), [1.0, 2.0]);
        assert_eq!(line(ResizeMode::Bilinear, false, &x, 6), [1.0, 1.25, 1.75, 2.5, 3.5, 4.0]);
        assert_eq!(line(ResizeMode::Bilinear, true, &x, 5), [1.0, 1.5, 2.0, 3.0, 4.0]);
        assert_eq!(line(ResizeMode::Bilinear, true, &x, 1), [1.0]);
        // Halving without smoothing reads between pixels 0 and 1, and between 2 and 3.
        assert_eq!(line(ResizeMode::Bilinear, false, &[1.0, 2.0, 4.0, 8.0], 2), [1.5, 6.0]);
    }

    #[test]
    fn the_readers_of_a_pixel_are_those_whose_source_it_is() {
        for (mode, align_corners) in
            [(ResizeMode::Nearest, false), (ResizeMode::Bilinear, false), (ResizeMode::Bilinear, true)]
        {
            for (old, new) in (1..9).flat_map(|old| (1..12).map(move |new| (old, new))) {
                let axis = ResizeAxis { mode, align_corners, old, new };
                for (i, j) in (0..new).flat_map(|i| (0..old).map(move |j| (i, j))) {
                    let (first, second, _) = axis.source(i);
                    let reads = first == j || second == j;
                    assert_eq!(axis.readers(j).contains(&i), reads, "{axis:?} {i} {j}");
                    assert!(reads || axis.weight(i, j) == 0.0);
                }
                let total = |i: usize| (0..old).map(|j| axis.weight(i, j)).sum::<f64>();
                assert!((0..new).all(|i| (total(i) - 1.0).abs() < 1e-12), "{axis:?}");
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused_with_a_reason() {
        let x = Type::new(DType::F32, [1, 4, 4, 1]);
        let refusal =
            |mode, out, align_corners| Resize { mode, out, align_corners }.infer(&[&x]).unwrap_err();
        assert!(refusal(ResizeMode::Nearest, [0, 3], false).contains("4 by 4 cannot become 0 by 3"));
        assert!(refusal(ResizeMode::Nearest, [3, 3], true).contains("bilinear"));
    }
}
