//! Convolutions, pooling and resizing. Images come channels first and are kept channels last.

use plimsoll_graph::ops::ResizeMode;
use plimsoll_graph::{DType, GridSampleOps, ResizeOps, TensorOps};
use plimsoll_nn::blocks::conv::{Sliding, conv, conv_transpose};
use plimsoll_nn::blocks::pool::{Windows, avg_pool, lp_pool, max_pool};
use plimsoll_nn::blocks::resize::along;
use plimsoll_nn::blocks::{Laid, element};
use plimsoll_run::{Result, Tensor};

use super::Table;
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("Conv", convolve),
    ("ConvTranspose", convolve_transposed),
    ("MaxPool", |c| {
        if c.wants(1) {
            return Err(refuse("gives the places of its largest elements"));
        }
        c.int("storage_order", 0)?;
        let (x, windows, gaps) = windows(c)?;
        let last = x.to_channels_last()?;
        let pool = |x: &Tensor| match &gaps {
            None => max_pool(x, &windows),
            Some(gaps) => gapped(x, &windows, gaps, f64::NEG_INFINITY, |a, b| a.maximum(b)),
        };
        let y = match last.dtype() {
            dtype if dtype.is_float() => pool(&last)?,
            dtype => pool(&last.cast(DType::F32)?)?.cast(dtype)?,
        };
        Ok(vec![Laid::channels_last(y).into()])
    }),
    ("AveragePool", |c| {
        let count_pad = c.flag("count_include_pad", false)?;
        let (x, windows, gaps) = windows(c)?;
        let last = x.to_channels_last()?;
        let Some(gaps) = gaps else {
            return Ok(vec![Laid::channels_last(avg_pool(&last, &windows, count_pad, None)?).into()]);
        };
        let sum = |x: &Tensor, windows: &Windows| gapped(x, windows, &gaps, 0.0, |a, b| a.add(b));
        // How many elements a window has: those inside, or inside and padding.
        let ones = last.full_like(last.ty().clone(), 1.0)?;
        let count = match count_pad {
            false => sum(&ones, &windows)?,
            true => {
                let around: Vec<(usize, usize)> =
                    std::iter::once((0, 0)).chain(windows.pad.iter().copied()).chain([(0, 0)]).collect();
                let none = Windows { pad: vec![(0, 0); windows.pad.len()], ..windows.clone() };
                sum(&ones.pad(&around, 1.0)?, &none)?
            }
        };
        Ok(vec![Laid::channels_last(sum(&last, &windows)?.div(&count)?).into()])
    }),
    ("LpPool", |c| {
        let p = c.int("p", 2)? as f64;
        let (x, windows, gaps) = windows(c)?;
        let last = x.to_channels_last()?;
        let y = match gaps {
            None => lp_pool(&last, &windows, p)?,
            Some(gaps) => {
                let powers = last.abs()?.pow_scalar(p)?;
                gapped(&powers, &windows, &gaps, 0.0, |a, b| a.add(b))?.pow_scalar(1.0 / p)?
            }
        };
        Ok(vec![Laid::channels_last(y).into()])
    }),
    ("GlobalAveragePool", |c| global(c, |x, axes| x.mean(axes, true))),
    ("GlobalMaxPool", |c| global(c, |x, axes| x.max(axes, true))),
    ("GlobalLpPool", |c| {
        let p = c.int("p", 2)? as f64;
        global(c, move |x, axes| x.abs()?.pow_scalar(p)?.sum(axes, true)?.pow_scalar(1.0 / p))
    }),
    ("Resize", resize),
    ("Upsample", resize),
    ("GridSample", |c| {
        let mode = c.one_of("mode", &["linear", "bilinear", "nearest"])?;
        let border = c.one_of("padding_mode", &["zeros", "border"])? == "border";
        let align = c.flag("align_corners", false)?;
        let (x, grid) = (c.x(0)?, c.plain(1)?);
        if x.rank() != 4 {
            return Err(refuse(format!("samples {}, which are no images", x.shape())));
        }
        let mode = if mode == "nearest" { ResizeMode::Nearest } else { ResizeMode::Bilinear };
        let y = x.to_channels_last()?.grid_sample(&grid, mode, border, align)?;
        Ok(vec![Laid::channels_last(y).into()])
    }),
    ("LRN", |c| {
        let (alpha, beta, bias) = (c.float("alpha", 1e-4)?, c.float("beta", 0.75)?, c.float("bias", 1.0)?);
        let size = c.int("size", 1)?;
        let size = usize::try_from(size).ok().filter(|size| (1..=MOST_PLACES).contains(size));
        let size = size.ok_or_else(|| refuse("norms over a number of channels that is none"))?;
        let x = c.x(0)?.to_channels_last()?;
        let rank = x.shape().rank();
        let channels = x.shape().last().copied().unwrap_or(1);
        let mut padding = vec![(0, 0); rank];
        padding[rank - 1] = ((size - 1) / 2, size / 2);
        let squares = x.square()?.pad(&padding, 0.0)?;
        let mut sum = squares.narrow(rank - 1, 0, channels)?;
        for k in 1..size {
            sum = sum.add(&squares.narrow(rank - 1, k, k + channels)?)?;
        }
        let scale = sum.mul_scalar(alpha / size as f64)?.add_scalar(bias)?.pow_scalar(-beta)?;
        Ok(vec![Laid::channels_last(x.mul(&scale)?).into()])
    }),
];

/// The most places of a window that are ops of their own.
const MOST_PLACES: usize = 1024;

/// Padding of so many axes: given, or what keeps the size.
fn padding(
    c: &Call<'_>,
    lengths: &[usize],
    window: &[usize],
    stride: &[usize],
    dilation: &[usize],
) -> Result<Vec<(usize, usize)>> {
    let axes = lengths.len();
    let pads = c.lengths("pads")?;
    match c.one_of("auto_pad", &["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])? {
        "NOTSET" => {
            let pads = pads.unwrap_or_else(|| vec![0; 2 * axes]);
            if pads.len() != 2 * axes {
                return Err(refuse(format!("pads {axes} axes by {pads:?}")));
            }
            Ok((0..axes).map(|i| (pads[i], pads[i + axes])).collect())
        }
        "VALID" => Ok(vec![(0, 0); axes]),
        same => {
            let one = |i: usize| {
                let reach = dilation[i] * (window[i].max(1) - 1) + 1;
                let out = lengths[i].div_ceil(stride[i].max(1));
                let all = (out.saturating_sub(1) * stride[i] + reach).saturating_sub(lengths[i]);
                if same == "SAME_UPPER" { (all / 2, all - all / 2) } else { (all - all / 2, all / 2) }
            };
            Ok((0..axes).map(one).collect())
        }
    }
}

/// A list with an entry an axis, ones where it is left out.
fn per_axis(c: &Call<'_>, name: &str, axes: usize) -> Result<Vec<usize>> {
    match c.lengths(name)? {
        None => Ok(vec![1; axes]),
        Some(list) if list.len() == axes && !list.contains(&0) => Ok(list),
        Some(list) => Err(refuse(format!("sets {name} to {list:?} for {axes} axes"))),
    }
}

fn spatial(x: &Laid) -> Result<Vec<usize>> {
    if x.rank() < 3 {
        return Err(refuse(format!(
            "slides over {}, which has no axes beside samples and channels",
            x.shape()
        )));
    }
    Ok(x.shape()[2..].to_vec())
}

/// The filter `[O, I, ..]` as `[.., I, O]`.
fn filter(w: &Laid) -> Result<Tensor> {
    let order: Vec<usize> = (2..w.rank()).chain([1, 0]).collect();
    w.in_order(&order)
}

fn check_kernel(c: &Call<'_>, window: &[usize]) -> Result<()> {
    match c.lengths("kernel_shape")? {
        Some(said) if said != window => Err(refuse(format!("says windows of {said:?} and has {window:?}"))),
        _ => Ok(()),
    }
}

/// What a convolution is given.
struct Convolved {
    x: Laid,
    w: Laid,
    bias: Option<Tensor>,
    /// Of the axes that it goes along.
    lengths: Vec<usize>,
    window: Vec<usize>,
}

impl Convolved {
    fn read(c: &mut Call<'_>) -> Result<Convolved> {
        let (x, w) = (c.x(0)?, c.x(1)?);
        let bias = c.maybe_plain(2)?;
        let lengths = spatial(&x)?;
        if w.rank() != x.rank() {
            return Err(refuse(format!("convolves {} with a filter {}", x.shape(), w.shape())));
        }
        let window = w.shape()[2..].to_vec();
        check_kernel(c, &window)?;
        Ok(Convolved { x, w, bias, lengths, window })
    }
}

fn convolve(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let Convolved { x, w, bias, lengths, window } = Convolved::read(c)?;
    let (stride, dilation) =
        (per_axis(c, "strides", lengths.len())?, per_axis(c, "dilations", lengths.len())?);
    let pad = padding(c, &lengths, &window, &stride, &dilation)?;
    let groups = c.int("group", 1)?.max(0) as usize;
    let sliding = Sliding { stride, pad, dilation, groups };
    let y = conv(&x.to_channels_last()?, &filter(&w)?, bias.as_ref(), &sliding)?;
    Ok(vec![Laid::channels_last(y).into()])
}

fn convolve_transposed(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let Convolved { x, w, bias, lengths, window } = Convolved::read(c)?;
    let axes = lengths.len();
    let (stride, dilation) = (per_axis(c, "strides", axes)?, per_axis(c, "dilations", axes)?);
    let mut more = c.lengths("output_padding")?.unwrap_or_else(|| vec![0; axes]);
    let groups = c.int("group", 1)?.max(0) as usize;
    let wanted = c.lengths("output_shape")?;
    let auto = c.one_of("auto_pad", &["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])?;
    if more.len() != axes {
        return Err(refuse(format!("adds {more:?} to {axes} axes")));
    }
    let reach = |i: usize| (lengths[i].max(1) - 1) * stride[i] + dilation[i] * (window[i].max(1) - 1) + 1;
    let target = match wanted {
        Some(wanted) => {
            let own = wanted.len().checked_sub(axes).map(|skip| wanted[skip..].to_vec());
            Some(own.ok_or_else(|| refuse(format!("makes {wanted:?} of {axes} axes")))?)
        }
        None if auto.starts_with("SAME") => Some((0..axes).map(|i| lengths[i] * stride[i]).collect()),
        None => None,
    };
    let pad = match target {
        None => padding(c, &lengths, &window, &stride, &dilation)?,
        Some(target) => {
            c.lengths("pads")?;
            let mut pad = Vec::new();
            for i in 0..axes {
                let whole = reach(i) + more[i];
                if target[i] > whole {
                    // More than the windows reach: zeros at the end.
                    more[i] += target[i] - whole;
                    pad.push((0, 0));
                    continue;
                }
                let all = whole - target[i];
                pad.push(if auto == "SAME_UPPER" {
                    (all / 2, all - all / 2)
                } else {
                    (all - all / 2, all / 2)
                });
            }
            pad
        }
    };
    let sliding = Sliding { stride, pad, dilation, groups };
    let y = conv_transpose(&x.to_channels_last()?, &filter(&w)?, bias.as_ref(), &sliding, &more)?;
    Ok(vec![Laid::channels_last(y).into()])
}

/// The windows of a pool, and how far apart their elements are, where that is more than 1.
fn windows(c: &Call<'_>) -> Result<(Laid, Windows, Option<Vec<usize>>)> {
    let x = c.x(0)?;
    let lengths = spatial(&x)?;
    let axes = lengths.len();
    let window =
        c.lengths("kernel_shape")?.ok_or_else(|| refuse("does not say how large its windows are"))?;
    if window.len() != axes {
        return Err(refuse(format!("pools {axes} axes by windows of {window:?}")));
    }
    let stride = per_axis(c, "strides", axes)?;
    let dilation = per_axis(c, "dilations", axes)?;
    let pad = padding(c, &lengths, &window, &stride, &dilation)?;
    let ceil = c.flag("ceil_mode", false)?;
    let gaps = dilation.iter().any(|&step| step != 1).then_some(dilation);
    Ok((x, Windows { window, stride, pad, ceil }, gaps))
}

/// Windows whose elements are apart: those at each place of all windows together, one place after the other.
fn gapped(
    x: &Tensor,
    windows: &Windows,
    gaps: &[usize],
    outside: f64,
    f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let axes = gaps.len();
    let (mut padding, mut counts) = (vec![(0, 0)], Vec::new());
    for i in 0..axes {
        let (n, (low, high)) = (x.shape()[i + 1], windows.pad[i]);
        let (reach, stride) = ((windows.window[i].max(1) - 1) * gaps[i] + 1, windows.stride[i]);
        let Some(room) = (n + low + high).checked_sub(reach) else {
            return Err(refuse(format!("pools {n} elements by windows that reach over {reach}")));
        };
        let mut count = room / stride + 1;
        // One more that reaches over the end, if it begins before it.
        if windows.ceil && room % stride != 0 && count * stride < n + low {
            count += 1;
        }
        counts.push(count);
        padding.push((low, ((count - 1) * stride + reach).saturating_sub(n + low)));
    }
    padding.push((0, 0));
    let whole = x.pad(&padding, outside)?;
    let places =
        windows.window.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).filter(|&n| n <= MOST_PLACES);
    let places = places.ok_or_else(|| refuse(format!("pools windows of {:?} with gaps", windows.window)))?;
    let mut y: Option<Tensor> = None;
    for place in 0..places {
        let mut rest = place;
        let mut parts = Vec::with_capacity(axes);
        for i in (0..axes).rev() {
            let start = (rest % windows.window[i]) * gaps[i];
            rest /= windows.window[i];
            parts.push((i + 1, start, start + (counts[i] - 1) * windows.stride[i] + 1, windows.stride[i]));
        }
        let part = whole.slice(&parts)?;
        y = Some(match y {
            Some(y) => f(&y, &part)?,
            None => part,
        });
    }
    y.ok_or_else(|| refuse("pools windows without elements"))
}

fn global(c: &mut Call<'_>, f: impl Fn(&Tensor, &[usize]) -> Result<Tensor>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    spatial(&x)?;
    let axes: Vec<usize> = (2..x.rank()).map(|axis| x.order()[axis]).collect();
    Ok(vec![Laid::ordered(f(x.lying(), &axes)?, x.order()).into()])
}

/// How an axis is resized.
struct Axis {
    /// Elements before and after.
    from: usize,
    to: usize,
    /// How many elements of the result there are for one.
    scale: f64,
    /// The part that is looked at, where there is one: from 0 to 1 of the axis.
    part: (f64, f64),
}

fn resize(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    let rank = x.rank();
    let mode = c.one_of("mode", &["nearest", "linear", "cubic"])?;
    let is_old = c.node.op == "Upsample" || c.opset < 11;
    let (how, nearest) = if is_old {
        ("asymmetric", if mode == "nearest" { "floor" } else { "round_prefer_floor" })
    } else {
        let known = [
            "half_pixel",
            "half_pixel_symmetric",
            "pytorch_half_pixel",
            "align_corners",
            "asymmetric",
            "tf_half_pixel_for_nn",
            "tf_crop_and_resize",
        ];
        let rounding = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"];
        (c.one_of("coordinate_transformation_mode", &known)?, c.one_of("nearest_mode", &rounding)?)
    };
    let cubic = c.float("cubic_coeff_a", -0.75)?;
    let excludes = c.flag("exclude_outside", false)?;
    let beyond = c.float("extrapolation_value", 0.0)?;
    if c.flag("antialias", false)? {
        return Err(refuse("smooths what it makes smaller (antialias)"));
    }
    let policy = c.one_of("keep_aspect_ratio_policy", &["stretch", "not_larger", "not_smaller"])?;
    let axes: Vec<usize> = match c.int_list("axes")? {
        Some(axes) => c.axes(&axes, rank)?,
        None => (0..rank).collect(),
    };
    let at = if is_old { 1 } else { 2 };
    let roi = if is_old { None } else { c.given(1).map(|_| c.known(1)).transpose()? };
    let roi = roi.map(crate::constant::Constant::to_f64).filter(|roi| !roi.is_empty());
    let scales = match c.given(at) {
        Some(_) => Some(c.known(at)?.to_f64()).filter(|scales| !scales.is_empty()),
        None => c.float_list("scales")?,
    };
    let sizes = if is_old { None } else { c.maybe_ints(3)?.filter(|sizes| !sizes.is_empty()) };
    let mut plan: Vec<Axis> =
        x.shape().iter().map(|&n| Axis { from: n, to: n, scale: 1.0, part: (0.0, 1.0) }).collect();
    match (scales, sizes) {
        (Some(scales), None) if scales.len() == axes.len() => {
            for (&axis, &scale) in axes.iter().zip(&scales) {
                let own = &mut plan[axis];
                let part = roi.as_ref().map(|roi| roi_of(roi, &axes, axis));
                let seen =
                    part.filter(|_| how == "tf_crop_and_resize").map_or(1.0, |(start, end)| end - start);
                let to = (own.from as f64 * seen * scale).floor();
                if !(scale > 0.0 && (0.0..1e9).contains(&to)) {
                    return Err(refuse(format!("resizes by {scale}")));
                }
                (own.to, own.scale) = (to as usize, scale);
            }
        }
        (None, Some(sizes)) if sizes.len() == axes.len() => {
            let proportion = |i: usize| sizes[i] as f64 / x.shape()[axes[i]] as f64;
            let all = (0..axes.len()).map(proportion);
            let common = match policy {
                "not_larger" => Some(all.fold(f64::INFINITY, f64::min)),
                "not_smaller" => Some(all.fold(0.0, f64::max)),
                _ => None,
            };
            for (i, &axis) in axes.iter().enumerate() {
                let own = &mut plan[axis];
                own.to = usize::try_from(sizes[i]).map_err(|_| refuse(format!("resizes to {sizes:?}")))?;
                own.scale = own.to as f64 / own.from as f64;
                if let Some(common) = common {
                    own.to = (common * own.from as f64).round() as usize;
                    own.scale = common;
                }
            }
        }
        _ => return Err(refuse("says neither scales nor sizes of its axes, or both")),
    }
    if let Some(roi) = roi.filter(|_| how == "tf_crop_and_resize") {
        if roi.len() != 2 * axes.len() {
            return Err(refuse("looks at parts of other axes"));
        }
        axes.iter().for_each(|&axis| plan[axis].part = roi_of(&roi, &axes, axis));
    }
    if plan.iter().any(|axis| axis.to == 0 || axis.from == 0) {
        return Err(refuse(format!("resizes {} to nothing", x.shape())));
    }
    let is_image = rank == 4 && plan[..2].iter().all(|axis| axis.from == axis.to && axis.scale == 1.0);
    let is_even = plan.iter().all(|axis| axis.from as f64 * axis.scale == axis.to as f64);
    // What the engine has a kernel for.
    if is_image && is_even && x.dtype().is_float() {
        let out = [plan[2].to, plan[3].to];
        let own = match (mode, how, nearest) {
            ("nearest", "asymmetric", "floor") => Some((ResizeMode::Nearest, false)),
            ("linear", "half_pixel", _) => Some((ResizeMode::Bilinear, false)),
            ("linear", "pytorch_half_pixel", _) if out.iter().all(|&n| n > 1) => {
                Some((ResizeMode::Bilinear, false))
            }
            ("linear", "align_corners", _) => Some((ResizeMode::Bilinear, true)),
            _ => None,
        };
        if let Some((mode, aligned)) = own {
            let y = x.to_channels_last()?.resize2d(out, mode, aligned)?;
            return Ok(vec![Laid::channels_last(y).into()]);
        }
    }
    let (order, dtype) = (x.order().to_vec(), x.dtype());
    let mut y = if dtype.is_float() { x.lying().clone() } else { x.lying().cast(DType::F32)? };
    for (axis, own) in plan.iter().enumerate() {
        let is_plain = own.from == own.to && own.scale == 1.0 && own.part == (0.0, 1.0);
        if is_plain {
            continue;
        }
        let rows: Vec<Row> =
            (0..own.to).map(|o| sources(o, own, mode, how, nearest, cubic, excludes)).collect();
        y = along(&y, order[axis], own.to, |o, j| rows[o].weight(j))?;
        if rows.iter().any(|row| row.is_beyond) {
            let kept: Vec<bool> = rows.iter().map(|row| !row.is_beyond).collect();
            let mut shape = vec![1; y.shape().rank()];
            shape[order[axis]] = own.to;
            let kept = Tensor::from_bools(&kept, shape)?;
            y = kept.select(&y, &element::scalar(&y, beyond)?)?;
        }
    }
    Ok(vec![Laid::ordered(y.cast(dtype)?, &order).into()])
}

fn roi_of(roi: &[f64], axes: &[usize], axis: usize) -> (f64, f64) {
    let i = axes.iter().position(|&own| own == axis).unwrap_or(0);
    let end = roi.get(i + axes.len()).copied().unwrap_or(1.0);
    (roi.get(i).copied().unwrap_or(0.0), end)
}

/// What an element of the result is made from.
struct Row {
    sources: Vec<(usize, f64)>,
    /// Whether its place is outside of what there is.
    is_beyond: bool,
}

impl Row {
    fn weight(&self, j: usize) -> f64 {
        self.sources.iter().filter(|(at, _)| *at == j).map(|(_, weight)| weight).sum()
    }
}

fn sources(o: usize, axis: &Axis, mode: &str, how: &str, nearest: &str, cubic: f64, excludes: bool) -> Row {
    let (n, new, at) = (axis.from as f64, axis.to as f64, o as f64);
    let place = match how {
        "align_corners" if axis.to > 1 => at * (n - 1.0) / (n * axis.scale - 1.0),
        "align_corners" => 0.0,
        "asymmetric" => at / axis.scale,
        "pytorch_half_pixel" if axis.to <= 1 => 0.0,
        "tf_half_pixel_for_nn" => (at + 0.5) / axis.scale,
        "tf_crop_and_resize" => {
            let (start, end) = axis.part;
            if axis.to > 1 {
                start * (n - 1.0) + at * (end - start) * (n - 1.0) / (new - 1.0)
            } else {
                0.5 * (start + end) * (n - 1.0)
            }
        }
        "half_pixel_symmetric" => {
            let adjustment = new / (n * axis.scale);
            let middle = n / 2.0;
            middle * (1.0 - adjustment) + (at + 0.5) / axis.scale - 0.5
        }
        _ => (at + 0.5) / axis.scale - 0.5,
    };
    let is_beyond = how == "tf_crop_and_resize" && (place < 0.0 || place > n - 1.0);
    let held = |at: f64| at.clamp(0.0, n - 1.0) as usize;
    let sources = match mode {
        "nearest" => {
            let at = match nearest {
                "floor" => place.floor(),
                "ceil" => place.ceil(),
                "round_prefer_ceil" => (place + 0.5).floor(),
                _ => (place - 0.5).ceil(),
            };
            vec![(held(at), 1.0)]
        }
        "linear" => {
            let place = place.clamp(0.0, n - 1.0);
            let share = place - place.floor();
            vec![(held(place.floor()), 1.0 - share), (held(place.floor() + 1.0), share)]
        }
        _ => {
            let (first, t, a) = (place.floor(), place - place.floor(), cubic);
            let near = |x: f64| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
            let far = |x: f64| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
            let weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
            let mut all: Vec<(f64, f64)> = (0..4).map(|k| (first + k as f64 - 1.0, weights[k])).collect();
            if excludes {
                all.iter_mut()
                    .filter(|(at, _)| *at < 0.0 || *at > n - 1.0)
                    .for_each(|(_, weight)| *weight = 0.0);
                let sum: f64 = all.iter().map(|(_, weight)| weight).sum();
                all.iter_mut().for_each(|(_, weight)| *weight /= sum);
            }
            all.into_iter().map(|(at, weight)| (held(at), weight)).collect()
        }
    };
    Row { sources, is_beyond }
}
