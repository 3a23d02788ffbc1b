//! Convolution and pooling of volumes `[N, D, H, W, C]`, made of those of their planes.
//!
//! A filter of depth KD is KD filters of planes, each over the planes it meets, added up: what is held beside the input and the result is one
//! input and one result at a time, and the filter's gradient needs nothing but the input. In 16-bit types each of the KD sums is
//! rounded by itself. Windows of pooling are taken plane by plane and then along the depth, which is the same.

use smallvec::SmallVec;

use crate::methods::TensorOps;
use crate::ops::{
    self, AvgPool, Binary, ConvGeometry, ConvOps, MaxPool, Pad, PadAxis, Padding, Reshape, Slice, SliceAxis,
    WindowAxis,
};
use crate::{Op, Scalar, Shape, Site};

/// `[N, D, H, W, C]`, or the sentence that says what was given.
fn volume(shape: &Shape) -> Result<[usize; 5], String> {
    shape[..].try_into().map_err(|_| format!("it takes volumes [N, D, H, W, C], not {shape}"))
}

/// The same range of an axis of a value, others whole; the value itself where that is all of it.
fn part<T: TensorOps>(x: &T, axis: usize, range: SliceAxis, site: Site) -> Result<T, T::Error> {
    let whole = |length: usize| SliceAxis { start: 0, stop: length, step: 1 };
    if range == whole(x.shape()[axis]) {
        return Ok(x.clone());
    }
    let mut ranges: SmallVec<[SliceAxis; 4]> = x.shape().iter().map(|&n| whole(n)).collect();
    ranges[axis] = range;
    x.emit_one(Slice(ranges), &[x], site)
}

/// Zeros before, after and between the planes of a volume.
fn deepened<T: TensorOps>(x: &T, depth: PadAxis, site: Site) -> Result<T, T::Error> {
    if depth == PadAxis::default() {
        return Ok(x.clone());
    }
    let mut axes = SmallVec::from_elem(PadAxis::default(), x.shape().rank());
    axes[1] = depth;
    x.emit_one(Pad { axes, value: Scalar(0.0) }, &[x], site)
}

/// The planes of a volume as images.
fn planes<T: TensorOps>(x: &T, site: Site) -> Result<T, T::Error> {
    let shape = x.shape();
    let images = Shape::from([shape[0] * shape[1], shape[2], shape[3], shape[4]]);
    x.emit_one(Reshape(images), &[x], site)
}

/// Images as the planes of volumes.
fn stacked<T: TensorOps>(x: &T, batch: usize, depth: usize, site: Site) -> Result<T, T::Error> {
    let shape = x.shape();
    x.emit_one(Reshape([batch, depth, shape[1], shape[2], shape[3]].into()), &[x], site)
}

/// The filter of planes at a depth of a filter of volumes.
fn filter<T: TensorOps>(w: &T, depth: usize, site: Site) -> Result<T, T::Error> {
    let w = part(w, 0, SliceAxis { start: depth, stop: depth + 1, step: 1 }, site)?;
    w.emit_one(Reshape(Shape::from(&w.shape()[1..])), &[&w], site)
}

fn added<T: TensorOps>(sum: Option<T>, term: T, site: Site) -> Result<T, T::Error> {
    match sum {
        None => Ok(term),
        Some(sum) => sum.emit_one(Binary::Add, &[&sum, &term], site),
    }
}

impl ConvGeometry<3> {
    /// The same over planes.
    fn flat(&self) -> ConvGeometry {
        let pad = match self.pad {
            Padding::Valid => Padding::Valid,
            Padding::Same => Padding::Same,
            Padding::Explicit([_, height, width]) => Padding::Explicit([height, width]),
        };
        let [_, height, width] = self.stride;
        let [_, down, across] = self.dilation;
        ConvGeometry { stride: [height, width], pad, dilation: [down, across], groups: self.groups }
    }
}

/// Pools planes and then the depth; `op` makes the op for windows, strides and paddings.
fn pool<T: TensorOps>(
    x: &T,
    name: &'static str,
    [window, stride]: [[usize; 3]; 2],
    pad: Padding<3>,
    op: impl Fn([usize; 2], [usize; 2], [(usize, usize); 2]) -> Op,
    site: Site,
) -> Result<T, T::Error> {
    let [n, d, h, w, _] = volume(x.shape()).map_err(|why| ops::refuse(name, site, &[x.ty()], why))?;
    let around = |axis: usize, length: usize| pad.resolve(axis, length, window[axis], stride[axis], 1);
    // The op would call it height.
    let depth = WindowAxis { len: d, window: window[0], stride: stride[0], pad: around(0, d), dilation: 1 };
    if d == 0 || depth.pad.0.max(depth.pad.1) >= depth.window || depth.outputs().is_err() {
        let WindowAxis { window, stride, pad, .. } = depth;
        let why =
            format!("depth: window {window}, stride {stride} and padding {pad:?} do not fit {d} planes");
        return Err(ops::refuse(name, site, &[x.ty()], why));
    }
    let images = planes(x, site)?;
    let pads = [around(1, h), around(2, w)];
    let y = x.emit_one(op([window[1], window[2]], [stride[1], stride[2]], pads), &[&images], site)?;
    // Along the depth, a plane is a row of pixels.
    let (height, width, channels) = (y.shape()[1], y.shape()[2], y.shape()[3]);
    let y = x.emit_one(Reshape([n, d, height * width, channels].into()), &[&y], site)?;
    let y = x.emit_one(op([window[0], 1], [stride[0], 1], [depth.pad, (0, 0)]), &[&y], site)?;
    let depth = y.shape()[1];
    x.emit_one(Reshape([n, depth, height, width, channels].into()), &[&y], site)
}

/// Convolution and pooling of volumes `[N, D, H, W, C]`, channels last.
///
/// ```
/// use plimsoll_graph::{ConvGeometry, DType, Padding, TensorOps, Trace, Type, VolumeOps};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [2, 16, 32, 32, 1]));
/// let w = trace.input("w", Type::new(DType::F32, [3, 3, 3, 1, 8]));
/// let same = ConvGeometry { pad: Padding::Same, ..Default::default() };
/// let y = x.conv3d(&w, None, same)?;
/// assert_eq!(y.max_pool3d([2; 3], [2; 3], Padding::Valid)?.shape().to_string(), "[2, 8, 16, 16, 8]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait VolumeOps: TensorOps {
    /// `self` is `[N, D, H, W, CI]`, the filter `[KD, KH, KW, CI / groups, CO]`, the bias `[CO]`.
    #[track_caller]
    fn conv3d(&self, w: &Self, bias: Option<&Self>, geometry: ConvGeometry<3>) -> Result<Self, Self::Error> {
        let site = Site::here();
        let fail = |why: String| -> Self::Error { ops::refuse("conv3d", site, &[self.ty(), w.ty()], why) };
        let [n, d, ..] = volume(self.shape()).map_err(fail)?;
        let &[window, _, _, _, _] = &w.shape()[..] else {
            return Err(fail(format!("it takes a filter [KD, KH, KW, CI, CO], not {}", w.shape())));
        };
        let (stride, dilation) = (geometry.stride[0], geometry.dilation[0]);
        let pad = geometry.pad.resolve(0, d, window, stride, dilation);
        let depth = WindowAxis { len: d, window, stride, pad, dilation };
        let depth = depth.outputs().map_err(|why| fail(format!("depth: {why}")))?;
        let x = deepened(self, PadAxis { low: pad.0, high: pad.1, inner: 0 }, site)?;
        let mut sum: Option<Self> = None;
        for k in 0..window {
            let start = k * dilation;
            let stop = start + depth.saturating_sub(1) * stride + usize::from(depth > 0);
            let met = planes(&part(&x, 1, SliceAxis { start, stop, step: stride }, site)?, site)?;
            // The bias is added once.
            let y = met.conv2d(&filter(w, k, site)?, bias.filter(|_| k == 0), geometry.flat())?;
            sum = Some(added(sum, y, site)?);
        }
        let y = sum.ok_or_else(|| fail("the filter has no depth".into()))?;
        stacked(&y, n, depth, site)
    }

    /// The transposed convolution of volumes, as [`ConvOps::conv_transpose2d`] is of images: the filter is
    /// `[KD, KH, KW, CO / groups, CI]`.
    #[track_caller]
    fn conv_transpose3d(
        &self,
        w: &Self,
        bias: Option<&Self>,
        geometry: ConvGeometry<3>,
        output_padding: [usize; 3],
    ) -> Result<Self, Self::Error> {
        let site = Site::here();
        let fail =
            |why: String| -> Self::Error { ops::refuse("conv_transpose3d", site, &[self.ty(), w.ty()], why) };
        let [n, d, ..] = volume(self.shape()).map_err(fail)?;
        let &[window, _, _, _, _] = &w.shape()[..] else {
            return Err(fail(format!("it takes a filter [KD, KH, KW, CO, CI], not {}", w.shape())));
        };
        let (stride, dilation, [extra, down, across]) =
            (geometry.stride[0], geometry.dilation[0], output_padding);
        if d == 0 || window == 0 || stride == 0 || dilation == 0 {
            return Err(fail("depth, filter, stride and dilation must be at least 1".into()));
        }
        let reach = (window - 1) * dilation;
        let whole = (d - 1) * stride + reach + 1;
        let same = geometry.pad == Padding::Same;
        if same && extra != 0 {
            return Err(fail(format!("output padding {extra} has no place beside Padding::Same")));
        }
        if extra >= stride.max(dilation) {
            let limit = format!("the stride {stride} or the dilation {dilation}");
            return Err(fail(format!("output padding {extra} must be smaller than {limit}")));
        }
        let pad = geometry.pad.resolve(0, if same { d * stride } else { 0 }, window, stride, dilation);
        let length = if same { Some(d * stride) } else { (whole + extra).checked_sub(pad.0 + pad.1) };
        let Some(length) = length.filter(|&length| length > 0) else {
            let cut = pad.0 + pad.1;
            return Err(fail(format!(
                "padding of {cut} elements leaves nothing of a result of {}",
                whole + extra
            )));
        };
        // What the result has behind the last plane that a filter reaches.
        let behind = (pad.0 + length).saturating_sub(whole);
        let images = planes(self, site)?;
        let mut sum: Option<Self> = None;
        for k in 0..window {
            let y = images.conv_transpose2d(&filter(w, k, site)?, None, geometry.flat(), [down, across])?;
            let (low, high) = (k * dilation, reach - k * dilation + behind);
            let y = deepened(&stacked(&y, n, d, site)?, PadAxis { low, high, inner: stride - 1 }, site)?;
            sum = Some(added(sum, y, site)?);
        }
        let y = sum.ok_or_else(|| fail("the filter has no depth".into()))?;
        let y = part(&y, 1, SliceAxis { start: pad.0, stop: pad.0 + length, step: 1 }, site)?;
        match bias {
            None => Ok(y),
            Some(bias) => y.emit_one(Binary::Add, &[&y, bias], site),
        }
    }

    /// The largest element of every window, channel by channel; padding never wins.
    #[track_caller]
    fn max_pool3d(
        &self,
        window: [usize; 3],
        stride: [usize; 3],
        pad: Padding<3>,
    ) -> Result<Self, Self::Error> {
        let op = |window, stride, pad| MaxPool { window, stride, pad }.into();
        pool(self, "max_pool3d", [window, stride], pad, op, Site::here())
    }

    /// The mean of every window, channel by channel. Zeros of the padding count as elements with `count_pad`;
    /// without, the mean is over what lies inside of the volume.
    #[track_caller]
    fn avg_pool3d(
        &self,
        window: [usize; 3],
        stride: [usize; 3],
        pad: Padding<3>,
        count_pad: bool,
    ) -> Result<Self, Self::Error> {
        let op = |window, stride, pad| AvgPool { window, stride, pad, count_pad }.into();
        pool(self, "avg_pool3d", [window, stride], pad, op, Site::here())
    }
}

impl<T: TensorOps> VolumeOps for T {}
