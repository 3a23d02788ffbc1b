//! Turns calls of `conv2d` and its kin into convolution ops: padding resolved, layouts checked.

use crate::methods::TensorOps;
use crate::ops::{Conv, ConvFrame, ConvGradInput, refuse};
use crate::{Shape, Site};

/// What is added around an image before a window slides over it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Padding<const AXES: usize = 2> {
    /// Nothing: windows lie inside.
    #[default]
    Valid,
    /// As much as gives ⌈length / stride⌉ windows; an odd element goes to the end.
    Same,
    /// These numbers of elements before and after each axis.
    Explicit([(usize, usize); AXES]),
}

impl<const AXES: usize> Padding<AXES> {
    /// The same number of elements on every side.
    pub fn all(elements: usize) -> Padding<AXES> {
        Padding::Explicit([(elements, elements); AXES])
    }

    /// The elements before and after one axis, for windows of the given size.
    pub fn resolve(
        &self,
        axis: usize,
        len: usize,
        window: usize,
        stride: usize,
        dilation: usize,
    ) -> (usize, usize) {
        match self {
            Padding::Valid => (0, 0),
            Padding::Explicit(pads) => pads[axis],
            Padding::Same => {
                let reach = window.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
                let windows = len.div_ceil(stride.max(1));
                let total = (windows.saturating_sub(1) * stride).saturating_add(reach).saturating_sub(len);
                (total / 2, total - total / 2)
            }
        }
    }
}

/// How a filter slides over images (`ConvGeometry`) or sequences (`ConvGeometry<1>`).
///
/// By default: stride 1, no padding, no dilation, one group.
///
/// ```
/// use plimsoll_graph::{ConvGeometry, Padding};
/// let halving: ConvGeometry = ConvGeometry { stride: [2, 2], pad: Padding::Same, ..Default::default() };
/// assert_eq!(halving.groups, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvGeometry<const AXES: usize = 2> {
    /// Elements from one window to the next.
    pub stride: [usize; AXES],
    /// What is added around the input.
    pub pad: Padding<AXES>,
    /// Elements from one element of a window to the next.
    pub dilation: [usize; AXES],
    /// Parts that the channels are cut into, each convolved by itself.
    pub groups: usize,
}

impl<const AXES: usize> Default for ConvGeometry<AXES> {
    fn default() -> Self {
        ConvGeometry { stride: [1; AXES], pad: Padding::Valid, dilation: [1; AXES], groups: 1 }
    }
}

impl ConvGeometry<1> {
    /// The same along the width of images of height 1.
    fn widened(&self) -> ConvGeometry {
        let pad = match self.pad {
            Padding::Valid => Padding::Valid,
            Padding::Same => Padding::Same,
            Padding::Explicit([pad]) => Padding::Explicit([(0, 0), pad]),
        };
        ConvGeometry {
            stride: [1, self.stride[0]],
            pad,
            dilation: [1, self.dilation[0]],
            groups: self.groups,
        }
    }
}

/// Convolutions of images `[N, H, W, C]` and sequences `[N, L, C]`, channels last.
///
/// ```
/// use plimsoll_graph::{ConvGeometry, ConvOps, DType, Padding, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [8, 32, 32, 3]));
/// let w = trace.input("w", Type::new(DType::F32, [3, 3, 3, 16]));
/// let b = trace.input("b", Type::new(DType::F32, [16]));
/// let same = ConvGeometry { pad: Padding::Same, ..Default::default() };
/// assert_eq!(x.conv2d(&w, Some(&b), same)?.shape().to_string(), "[8, 32, 32, 16]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait ConvOps: TensorOps {
    /// `y[n, o, co]` = Σ `x[n, o·stride + k·dilation - pad, ci]` · `w[k, ci, co]` + `bias[co]`.
    ///
    /// `self` is `[N, H, W, CI]`, the filter `[KH, KW, CI / groups, CO]`, the bias `[CO]`.
    #[track_caller]
    fn conv2d(&self, w: &Self, bias: Option<&Self>, geometry: ConvGeometry) -> Result<Self, Self::Error> {
        convolve(self, w, bias, geometry, Site::here())
    }

    /// The same along sequences: `self` is `[N, L, CI]`, the filter `[K, CI / groups, CO]`, the bias `[CO]`.
    #[track_caller]
    fn conv1d(&self, w: &Self, bias: Option<&Self>, geometry: ConvGeometry<1>) -> Result<Self, Self::Error> {
        let site = Site::here();
        let (&[n, len, ci], &[k, group_in, co]) = (&self.shape()[..], &w.shape()[..]) else {
            let (x, w) = (self.ty(), w.ty());
            let why = format!(
                "it takes sequences [N, L, C] and a filter [K, CI, CO], not {} and {}",
                x.shape, w.shape
            );
            return Err(refuse("conv1d", site, &[x, w], why));
        };
        let (x, w) = (self.reshape([n, 1, len, ci])?, w.reshape([1, k, group_in, co])?);
        let y = convolve(&x, &w, bias, geometry.widened(), site)?;
        let (windows, co) = (y.shape()[2], y.shape()[3]);
        y.reshape([n, windows, co])
    }

    /// Every channel convolved by itself, with M filters each: the filter is `[KH, KW, 1, C · M]`, and filters
    /// `c · M .. (c + 1) · M` read channel c. The geometry's `groups` is not read.
    #[track_caller]
    fn depthwise_conv2d(
        &self,
        w: &Self,
        bias: Option<&Self>,
        geometry: ConvGeometry,
    ) -> Result<Self, Self::Error> {
        let groups = self.shape().last().copied().unwrap_or(1);
        convolve(self, w, bias, ConvGeometry { groups, ..geometry }, Site::here())
    }

    /// The transposed convolution: what the gradient of a convolution does to images, as a layer of its own.
    ///
    /// `self` is `[N, H, W, CI]`. The filter is that of the convolution whose gradient this is, which leads from the
    /// result's channels to this one's: `[KH, KW, CO / groups, CI]`. The bias is `[CO]`. The result's height is
    /// (H - 1) · stride - pad + dilation · (KH - 1) + 1 + output_padding; with [`Padding::Same`] it is H · stride, and
    /// `output_padding` must be 0.
    #[track_caller]
    fn conv_transpose2d(
        &self,
        w: &Self,
        bias: Option<&Self>,
        geometry: ConvGeometry,
        output_padding: [usize; 2],
    ) -> Result<Self, Self::Error> {
        let site = Site::here();
        let fail = |why: String| refuse("conv_transpose2d", site, &[self.ty(), w.ty()], why);
        let (x, filter) = (self.shape(), w.shape());
        if x.rank() != 4 || filter.rank() != 4 {
            return Err(fail(format!(
                "it takes images [N, H, W, C] and a filter [KH, KW, CO, CI], not {x} and {filter}"
            )));
        }
        let (mut input, mut pad) = ([0; 2], [(0, 0); 2]);
        for axis in 0..2 {
            let (stride, dilation) = (geometry.stride[axis], geometry.dilation[axis]);
            let (len, window, extra) = (x[axis + 1], filter[axis], output_padding[axis]);
            if geometry.pad == Padding::Same {
                if extra != 0 {
                    return Err(fail(format!("output padding {extra} has no place beside Padding::Same")));
                }
                input[axis] = len.saturating_mul(stride);
                pad[axis] = geometry.pad.resolve(axis, input[axis], window, stride, dilation);
                continue;
            }
            if extra >= stride.max(dilation) {
                let limit = format!("the stride {stride} or the dilation {dilation}");
                return Err(fail(format!("output padding {extra} must be smaller than {limit}")));
            }
            pad[axis] = geometry.pad.resolve(axis, 0, window, stride, dilation);
            let reach = window.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
            let whole =
                len.saturating_sub(1).saturating_mul(stride).saturating_add(reach).saturating_add(extra);
            let cut = pad[axis].0.saturating_add(pad[axis].1);
            input[axis] = whole.checked_sub(cut).ok_or_else(|| {
                fail(format!("padding of {cut} elements leaves nothing of a result of {whole}"))
            })?;
        }
        let ConvGeometry { stride, dilation, groups, .. } = geometry;
        let frame = ConvFrame { stride, pad, dilation, groups };
        let op = ConvGradInput { frame, input, bias: bias.is_some() };
        match bias {
            Some(bias) => self.emit_one(op, &[self, w, bias], site),
            None => self.emit_one(op, &[self, w], site),
        }
    }
}

impl<T: TensorOps> ConvOps for T {}

/// Emits a convolution, padding resolved. Shapes that do not fit are left for the op to refuse.
fn convolve<T: TensorOps>(
    x: &T,
    w: &T,
    bias: Option<&T>,
    geometry: ConvGeometry,
    site: Site,
) -> Result<T, T::Error> {
    let ConvGeometry { stride, dilation, groups, .. } = geometry;
    let length = |shape: &Shape, axis: usize| shape.get(axis).copied().unwrap_or(0);
    let pad = [0, 1].map(|axis| {
        let (len, window) = (length(x.shape(), axis + 1), length(w.shape(), axis));
        geometry.pad.resolve(axis, len, window, stride[axis], dilation[axis])
    });
    let frame = ConvFrame { stride, pad, dilation, groups };
    let op = Conv { frame, bias: bias.is_some(), act: None };
    match bias {
        Some(bias) => x.emit_one(op, &[x, w, bias], site),
        None => x.emit_one(op, &[x, w], site),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{Array, interpret};
    use crate::{DType, Sym, Trace, Type, gradient};

    fn inputs<const N: usize>(shapes: [&[usize]; N]) -> (Trace, [Sym; N]) {
        let trace = Trace::new();
        let syms = shapes.map(|shape| trace.input("x", Type::new(DType::F64, shape)));
        (trace, syms)
    }

    #[test]
    fn same_padding_gives_the_length_over_the_stride_rounded_up() {
        for (len, window, stride, dilation) in
            [(7, 3, 1, 1), (7, 3, 2, 1), (8, 4, 3, 2), (5, 1, 2, 1), (6, 2, 4, 1)]
        {
            let (_, [x, w]) = inputs([&[1, len, 9, 2], &[window, 1, 2, 3]]);
            let geometry =
                ConvGeometry { stride: [stride, 1], pad: Padding::Same, dilation: [dilation, 1], groups: 1 };
            assert_eq!(
                x.conv2d(&w, None, geometry).unwrap().shape()[1],
                len.div_ceil(stride),
                "{len} {window}"
            );
        }
    }

    #[test]
    fn a_transposed_convolution_spreads_each_pixel_over_its_window() {
        let (trace, [x, w, b]) = inputs([&[1, 1, 2, 1], &[1, 3, 1, 1], &[1]]);
        let geometry =
            ConvGeometry { stride: [1, 2], pad: Padding::Explicit([(0, 0), (1, 1)]), ..Default::default() };
        let y = x.conv_transpose2d(&w, Some(&b), geometry, [0, 1]).unwrap();
        // Pixels 1 and 10 under the filter 1 2 3 at stride 2: 1 2 13 20 30, cut by one on the left, plus bias.
        let values = [
            (vec![1, 1, 2, 1], vec![1.0, 10.0]),
            (vec![1, 3, 1, 1], vec![1.0, 2.0, 3.0]),
            (vec![1], vec![0.5]),
        ];
        let values = values.map(|(shape, data)| Array::new(shape, data));
        let y = interpret(&trace.finish(&[&y]).unwrap(), &values).remove(0);
        assert_eq!((y.shape, y.data), (Shape::from([1, 1, 4, 1]), vec![2.5, 13.5, 20.5, 30.5]));
    }

    #[test]
    fn a_sequence_is_convolved_like_an_image_of_one_line() {
        let (trace, [x, w, b]) = inputs([&[1, 4, 1], &[2, 1, 1], &[1]]);
        let geometry = ConvGeometry { dilation: [2], pad: Padding::Explicit([(1, 0)]), ..Default::default() };
        let y = x.conv1d(&w, Some(&b), geometry).unwrap();
        let values = [
            (vec![1, 4, 1], vec![1.0, 2.0, 3.0, 4.0]),
            (vec![2, 1, 1], vec![1.0, 10.0]),
            (vec![1], vec![0.5]),
        ];
        let values = values.map(|(shape, data)| Array::new(shape, data));
        let y = interpret(&trace.finish(&[&y]).unwrap(), &values).remove(0);
        assert_eq!((y.shape, y.data), (Shape::from([1, 3, 1]), vec![20.5, 31.5, 42.5]));
    }

    #[test]
    fn depthwise_filters_stay_with_their_channel() {
        let (trace, [x, w]) = inputs([&[1, 1, 1, 2], &[1, 1, 1, 4]]);
        let y = x.depthwise_conv2d(&w, None, ConvGeometry::default()).unwrap();
        let values =
            [Array::new([1, 1, 1, 2], vec![1.0, 10.0]), Array::new([1, 1, 1, 4], vec![1.0, 2.0, 3.0, 4.0])];
        let y = interpret(&trace.finish(&[&y]).unwrap(), &values).remove(0);
        assert_eq!(y.data, [1.0, 2.0, 30.0, 40.0]);
    }

    #[test]
    fn the_second_derivative_of_a_squared_convolution_is_its_curvature() {
        // f = Σ (x ∗ w)², so the derivative along w of df/dx · v needs the gradients of both gradient ops.
        let (trace, [x, w, v]) = inputs([&[1, 4, 4, 2], &[3, 3, 2, 3], &[1, 4, 4, 2]]);
        let y = x.conv2d(&w, None, ConvGeometry { pad: Padding::Same, ..Default::default() }).unwrap();
        let f = y.square().unwrap().sum(&[], false).unwrap();
        let dx = gradient(&f, None, &[&x]).unwrap().remove(0).unwrap();
        let along = dx.mul(&v).unwrap().sum(&[], false).unwrap();
        let dw = gradient(&along, None, &[&w]).unwrap().remove(0).unwrap();
        let (value, slope) = (trace.finish(&[&along]).unwrap(), trace.finish(&[&dw]).unwrap());
        let mut dice = crate::example::Dice::new(3);
        let mut values = [&x, &w, &v].map(|s| crate::example::Domain::Normal.fill(s.ty(), &mut dice));
        let slope = interpret(&slope, &values).remove(0);
        for i in [0, 17, 53] {
            let mut at = |delta: f64| {
                values[1].data[i] += delta;
                interpret(&value, &values)[0].data[0]
            };
            let (high, low) = (at(1e-5), at(-2e-5));
            at(1e-5);
            let numeric = (high - low) / 2e-5;
            assert!(
                (numeric - slope.data[i]).abs() < 1e-5 * (1.0 + numeric.abs()),
                "{numeric} {}",
                slope.data[i]
            );
        }
    }

    #[test]
    fn impossible_transposed_convolutions_are_refused_with_a_reason() {
        let (_, [x, w]) = inputs([&[1, 2, 2, 3], &[2, 2, 4, 3]]);
        let with =
            |pad, extra| x.conv_transpose2d(&w, None, ConvGeometry { pad, ..Default::default() }, extra);
        assert!(with(Padding::all(9), [0, 0]).unwrap_err().to_string().contains("leaves nothing"));
        assert!(with(Padding::Valid, [1, 0]).unwrap_err().to_string().contains("output padding 1"));
        assert!(with(Padding::Same, [1, 0]).unwrap_err().to_string().contains("Padding::Same"));
        assert!(x.conv1d(&w, None, ConvGeometry::default()).unwrap_err().to_string().contains("[N, L, C]"));
    }
}
