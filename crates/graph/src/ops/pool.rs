//! What pooling ops share: how windows lie over an image, and the methods that call them.

use crate::example::Dice;
use crate::methods::TensorOps;
use crate::op::{Cost, traffic};
use crate::ops::{AvgPool, MaxPool, Padding, WindowAxis};
use crate::{DType, Shape, Site, Type};

/// The windows of a pooling op.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub window: [usize; 2],
    pub stride: [usize; 2],
    pub pad: [(usize, usize); 2],
}

/// dx of a pooling. [`MaxPool`] gives every dy to the place its byte names, summed where windows overlap: inputs index
/// `u8[N, OH, OW, C]` and dy `[N, OH, OW, C]`; what a byte places outside of the image is lost. [`AvgPool`] gives every element its share
/// of the dy of all windows it is in: input dy alone. Output: `[N, H, W, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolGrad<Pool> {
    /// The pooling whose gradient this is.
    pub forward: Pool,
    /// Height and width of the result.
    pub input: [usize; 2],
}

/// The gradient of a max pooling.
pub type MaxPoolGrad = PoolGrad<MaxPool>;

/// The gradient of a mean pooling.
pub type AvgPoolGrad = PoolGrad<AvgPool>;

impl Frame {
    /// The two axes of images of the given height and width.
    pub(super) fn axes(&self, size: [usize; 2]) -> [WindowAxis; 2] {
        [0, 1].map(|a| WindowAxis {
            len: size[a],
            window: self.window[a],
            stride: self.stride[a],
            pad: self.pad[a],
            dilation: 1,
        })
    }

    /// The shape of the pooled images, or what does not fit.
    pub(super) fn output(&self, x: &Shape) -> Result<Shape, String> {
        let &[n, height, width, channels] = &x[..] else {
            return Err(format!("it takes images [N, H, W, C], not {x}"));
        };
        let [vertical, horizontal] = self.axes([height, width]);
        let outputs = |axis: &WindowAxis, name: &str| {
            let WindowAxis { len, window, pad, .. } = *axis;
            // A window that lies wholly in the padding would have no maximum and no mean.
            if len == 0 || pad.0.max(pad.1) >= window {
                let (low, high) = pad;
                return Err(format!(
                    "{name}: padding of {low} and {high} must be smaller than the window {window}, and the image of {len} not empty"
                ));
            }
            axis.outputs().map_err(|why| format!("{name}: {why}"))
        };
        Ok(Shape::from([n, outputs(&vertical, "height")?, outputs(&horizontal, "width")?, channels]))
    }

    /// The shape of the images of a size that pool to `y`, or what does not fit.
    pub(super) fn input(&self, y: &Shape, size: [usize; 2]) -> Result<Shape, String> {
        if y.rank() != 4 {
            return Err(format!("it takes images [N, H, W, C], not {y}"));
        }
        let x = Shape::from([y[0], size[0], size[1], y[3]]);
        let pooled = self.output(&x)?;
        if pooled == *y { Ok(x) } else { Err(format!("pooling {x} gives {pooled}, not {y}")) }
    }

    /// Calls `f` with every place in y, the place in x of an element of its window, and the number of that element.
    pub(super) fn for_each(&self, x: &Shape, y: &Shape, mut f: impl FnMut(usize, usize, usize)) {
        let [vertical, horizontal] = self.axes([x[1], x[2]]);
        for n in 0..y[0] {
            for (oy, ky) in (0..y[1]).flat_map(|o| vertical.taps(o).map(move |k| (o, k))) {
                for (ox, kx) in (0..y[2]).flat_map(|o| horizontal.taps(o).map(move |k| (o, k))) {
                    let (iy, ix) =
                        (oy * self.stride[0] + ky - self.pad[0].0, ox * self.stride[1] + kx - self.pad[1].0);
                    for c in 0..y[3] {
                        let place = |s: &Shape, row: usize, column: usize| {
                            ((n * s[1] + row) * s[2] + column) * s[3] + c
                        };
                        f(place(y, oy, ox), place(x, iy, ix), ky * self.window[1] + kx);
                    }
                }
            }
        }
    }

    /// One operation for each element of every window, of which `y` has one an element.
    pub(super) fn cost(&self, y: &Type, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let flops = y.elements() as f64 * (self.window[0] * self.window[1]) as f64;
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    /// Windows with the types of x and y, for examples: the usual halving, overlapping ones, ones with gaps between,
    /// uneven padding, the whole image, one pixel; few and many channels.
    pub(super) fn samples(dice: &mut Dice) -> Vec<(Frame, Type, Type)> {
        let frame = |window, stride, pad| Frame { window, stride, pad };
        let cases = [
            (frame([2, 2], [2, 2], [(0, 0); 2]), 40),
            (frame([2, 2], [2, 2], [(0, 0); 2]), 3),
            (frame([3, 3], [2, 2], [(1, 1); 2]), 17),
            (frame([3, 2], [1, 1], [(0, 0); 2]), 5),
            (frame([2, 3], [3, 1], [(1, 0), (0, 2)]), 2),
            (frame([1, 1], [2, 3], [(0, 0); 2]), 4),
            (frame([1, 4], [1, 2], [(0, 0), (2, 1)]), 70),
            (frame([3, 3], [1, 1], [(1, 1); 2]), 1),
        ];
        let mut samples = Vec::new();
        for (frame, channels) in cases {
            let x = Type::new(DType::F32, [dice.range(1, 3), dice.range(3, 7), dice.range(3, 8), channels]);
            if let Ok(y) = frame.output(&x.shape) {
                let y = x.with_shape(y);
                samples.push((frame, x, y));
            }
        }
        samples
    }
}

/// Pooling of images `[N, H, W, C]` and sequences `[N, L, C]`, channels last.
///
/// ```
/// use plimsoll_graph::{DType, Padding, PoolOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [8, 32, 32, 16]));
/// assert_eq!(x.max_pool2d([2, 2], [2, 2], Padding::Valid)?.shape().to_string(), "[8, 16, 16, 16]");
/// assert_eq!(x.global_avg_pool2d()?.shape().to_string(), "[8, 16]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait PoolOps: TensorOps {
    /// The largest element of every window, channel by channel; padding never wins. A not-a-number does.
    #[track_caller]
    fn max_pool2d(&self, window: [usize; 2], stride: [usize; 2], pad: Padding) -> Result<Self, Self::Error> {
        let pad = resolve(self.shape(), window, stride, pad);
        self.emit_one(MaxPool { window, stride, pad }, &[self], Site::here())
    }

    /// The mean of every window, channel by channel. Zeros of the padding count as elements with `count_pad`;
    /// without, the mean is over what lies inside of the image.
    #[track_caller]
    fn avg_pool2d(
        &self,
        window: [usize; 2],
        stride: [usize; 2],
        pad: Padding,
        count_pad: bool,
    ) -> Result<Self, Self::Error> {
        let pad = resolve(self.shape(), window, stride, pad);
        self.emit_one(AvgPool { window, stride, pad, count_pad }, &[self], Site::here())
    }

    /// [`PoolOps::max_pool2d`] along sequences `[N, L, C]`.
    #[track_caller]
    fn max_pool1d(&self, window: usize, stride: usize, pad: Padding<1>) -> Result<Self, Self::Error> {
        let site = Site::here();
        let x = widen(self, site)?;
        let pad = [(0, 0), pad.resolve(0, x.shape()[2], window, stride, 1)];
        let op = MaxPool { window: [1, window], stride: [1, stride], pad };
        narrow(&x.emit_one(op, &[&x], site)?)
    }

    /// [`PoolOps::avg_pool2d`] along sequences `[N, L, C]`.
    #[track_caller]
    fn avg_pool1d(
        &self,
        window: usize,
        stride: usize,
        pad: Padding<1>,
        count_pad: bool,
    ) -> Result<Self, Self::Error> {
        let site = Site::here();
        let x = widen(self, site)?;
        let pad = [(0, 0), pad.resolve(0, x.shape()[2], window, stride, 1)];
        let op = AvgPool { window: [1, window], stride: [1, stride], pad, count_pad };
        narrow(&x.emit_one(op, &[&x], site)?)
    }

    /// The mean of every channel of every image: `[N, H, W, C]` becomes `[N, C]`.
    #[track_caller]
    fn global_avg_pool2d(&self) -> Result<Self, Self::Error> {
        self.mean(&[1, 2], false)
    }

    /// The largest element of every channel of every image: `[N, H, W, C]` becomes `[N, C]`.
    #[track_caller]
    fn global_max_pool2d(&self) -> Result<Self, Self::Error> {
        self.max(&[1, 2], false)
    }
}

impl<T: TensorOps> PoolOps for T {}

/// Padding as numbers. Shapes that do not fit are left for the op to refuse.
fn resolve(x: &Shape, window: [usize; 2], stride: [usize; 2], pad: Padding) -> [(usize, usize); 2] {
    let length = |axis: usize| x.get(axis + 1).copied().unwrap_or(0);
    [0, 1].map(|axis| pad.resolve(axis, length(axis), window[axis], stride[axis], 1))
}

/// Sequences as images of height 1.
fn widen<T: TensorOps>(x: &T, site: Site) -> Result<T, T::Error> {
    let &[n, len, channels] = &x.shape()[..] else {
        let why = format!("it takes sequences [N, L, C], not {}", x.shape());
        return Err(crate::Error::Shape {
            op: "pool1d",
            layer: String::new(),
            site,
            inputs: vec![x.ty().clone()],
            why,
        }
        .into());
    };
    x.reshape([n, 1, len, channels])
}

/// Images of height 1 as sequences.
fn narrow<T: TensorOps>(y: &T) -> Result<T, T::Error> {
    let shape = y.shape();
    y.reshape([shape[0], shape[2], shape[3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trace;
    use crate::reference::{Array, interpret};

    #[test]
    fn every_sample_fits() {
        for seed in 0..20 {
            assert_eq!(Frame::samples(&mut Dice::new(seed)).len(), 8);
        }
    }

    #[test]
    fn a_sequence_is_pooled_along_its_length() {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [1, 5, 1]));
        let max = x.max_pool1d(2, 2, Padding::Same).unwrap();
        let mean = x.avg_pool1d(2, 2, Padding::Same, false).unwrap();
        let counted = x.avg_pool1d(2, 2, Padding::Same, true).unwrap();
        let graph = trace.finish(&[&max, &mean, &counted]).unwrap();
        let pooled = interpret(&graph, &[Array::new([1, 5, 1], vec![1.0, 3.0, -5.0, -7.0, -2.0])]);
        assert_eq!(pooled[0].data, [3.0, -5.0, -2.0]);
        assert_eq!(pooled[1].data, [2.0, -6.0, -2.0]);
        assert_eq!(pooled[2].data, [2.0, -6.0, -1.0]);
    }

    #[test]
    fn windows_that_cannot_be_pooled_are_refused_with_a_reason() {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [1, 40, 40, 3]));
        let text = |r: crate::Result<crate::Sym>| r.unwrap_err().to_string();
        assert!(text(x.max_pool2d([17, 16], [1, 1], Padding::Valid)).contains("272 elements"));
        assert!(text(x.max_pool2d([2, 2], [1, 1], Padding::all(2))).contains("smaller than the window"));
        assert!(text(x.avg_pool2d([2, 0], [1, 1], Padding::Valid, true)).contains("width"));
        assert!(text(x.max_pool1d(2, 2, Padding::Valid)).contains("[N, L, C]"));
    }
}
