//! Convolutions, pooling and sampling. Images come channels first and are kept channels last.

use plimsoll_graph::ops::ResizeMode;
use plimsoll_graph::{DType, GridSampleOps, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_nn::blocks::conv::{Sliding, conv, conv_transpose};
use plimsoll_nn::blocks::pool::{Windows, avg_pool, lp_pool, max_pool};
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
