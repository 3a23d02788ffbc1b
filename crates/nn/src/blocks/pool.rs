//! Pooling of sequences, images and volumes, channels last: windows that reach over the end (ceil mode), and windows of uneven sizes
//! (adaptive).

use plimsoll_graph::{Padding, PoolOps, TensorOps, VolumeOps};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;

/// How windows slide: one entry for each axis between samples and channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Elements of a window.
    pub window: Vec<usize>,
    /// Elements from one window to the next.
    pub stride: Vec<usize>,
    /// Elements added before and after.
    pub pad: Vec<(usize, usize)>,
    /// Whether a last window that reaches over the end counts, if it begins before it.
    pub ceil: bool,
}

impl Windows {
    /// The padding with which every window lies inside: more at the end, where the last one reaches over it.
    fn padding(&self, lengths: &[usize]) -> Result<Vec<(usize, usize)>> {
        let axes = lengths.len();
        if self.window.len() != axes || self.stride.len() != axes || self.pad.len() != axes {
            return Err(refuse(format!("pools over {axes} axes with windows of {:?}", self.window)));
        }
        let padded = |axis: usize| {
            let (n, window, stride, (low, high)) =
                (lengths[axis], self.window[axis], self.stride[axis], self.pad[axis]);
            let whole = n.saturating_add(low).saturating_add(high);
            if !self.ceil || stride == 0 || whole < window {
                return (low, high);
            }
            let mut windows = (whole - window).div_ceil(stride) + 1;
            // The last one must begin on an element or before the first.
            if (windows - 1) * stride >= n + low {
                windows -= 1;
            }
            let end = (windows - 1) * stride + window;
            (low, high.max(end.saturating_sub(n + low)))
        };
        Ok((0..axes).map(padded).collect())
    }
}

fn lengths(x: &Tensor) -> Result<Vec<usize>> {
    match x.shape().rank() {
        3..=5 => Ok(x.shape()[1..x.shape().rank() - 1].to_vec()),
        rank => {
            Err(refuse(format!("pools a tensor of {rank} axes; it takes samples, 1 to 3 axes and channels")))
        }
    }
}

fn fixed<const N: usize, T: Copy>(given: &[T]) -> Result<[T; N]> {
    given.try_into().map_err(|_| refuse(format!("pools over {N} axes with {} numbers", given.len())))
}

/// The largest element of every window of `[N, .., C]`; padding never wins.
#[track_caller]
pub fn max_pool(x: &Tensor, windows: &Windows) -> Result<Tensor> {
    let pad = windows.padding(&lengths(x)?)?;
    let (window, stride) = (&windows.window[..], &windows.stride[..]);
    match pad.len() {
        1 => x.max_pool1d(window[0], stride[0], Padding::Explicit(fixed(&pad)?)),
        2 => x.max_pool2d(fixed(window)?, fixed(stride)?, Padding::Explicit(fixed(&pad)?)),
        _ => x.max_pool3d(fixed(window)?, fixed(stride)?, Padding::Explicit(fixed(&pad)?)),
    }
}

/// The mean of every window of `[N, .., C]`. With `count_pad` zeros of the padding count, though not what a last window reads beyond it;
/// without, the mean is over what lies inside. A `divisor` is divided by in place of the number of elements.
#[track_caller]
pub fn avg_pool(x: &Tensor, windows: &Windows, count_pad: bool, divisor: Option<usize>) -> Result<Tensor> {
    let lengths = lengths(x)?;
    let pad = windows.padding(&lengths)?;
    let (window, stride) = (&windows.window[..], &windows.stride[..]);
    let count = count_pad || divisor.is_some();
    let y = match pad.len() {
        1 => x.avg_pool1d(window[0], stride[0], Padding::Explicit(fixed(&pad)?), count)?,
        2 => x.avg_pool2d(fixed(window)?, fixed(stride)?, Padding::Explicit(fixed(&pad)?), count)?,
        _ => x.avg_pool3d(fixed(window)?, fixed(stride)?, Padding::Explicit(fixed(&pad)?), count)?,
    };
    let whole: usize = window.iter().product();
    if let Some(divisor) = divisor {
        return y.mul_scalar(whole as f64 / divisor as f64);
    }
    if !count || pad == windows.pad {
        return Ok(y);
    }
    // Windows that reach beyond the padding have fewer elements.
    let mut y = y;
    for axis in 0..pad.len() {
        let (end, n) = (lengths[axis] + windows.pad[axis].0 + windows.pad[axis].1, y.shape()[axis + 1]);
        let share = |o: usize| {
            let start = o * stride[axis];
            window[axis] as f32 / (end.min(start + window[axis]) - start.min(end)).max(1) as f32
        };
        let shares: Vec<f32> = (0..n).map(share).collect();
        if shares.iter().any(|&share| share != 1.0) {
            let mut shape = vec![1; y.shape().rank()];
            shape[axis + 1] = n;
            y = y.mul(&Tensor::from_slice(&shares, shape)?.cast(y.dtype())?)?;
        }
    }
    Ok(y)
}

/// The part of `n` elements that makes element `i` of `out`.
fn part(i: usize, n: usize, out: usize) -> (usize, usize) {
    (i * n / out, ((i + 1) * n).div_ceil(out))
}

/// `[N, .., C]` with each of the axes between at another length, every element the mean of its part.
#[track_caller]
pub fn adaptive_avg_pool(x: &Tensor, out: &[usize]) -> Result<Tensor> {
    let lengths = lengths(x)?;
    check_out(&lengths, out)?;
    if out.iter().all(|&n| n == 1) {
        let axes: Vec<usize> = (1..=out.len()).collect();
        return x.mean(&axes, true);
    }
    if let Some(windows) = even(&lengths, out) {
        return avg_pool(x, &windows, false, None);
    }
    let mut y = x.clone();
    for (axis, (&n, &out)) in lengths.iter().zip(out).enumerate() {
        if n != out {
            let weight = |i: usize, j: usize| {
                let (start, stop) = part(i, n, out);
                if (start..stop).contains(&j) { 1.0 / (stop - start) as f64 } else { 0.0 }
            };
            y = super::resize::along(&y, axis + 1, out, weight)?;
        }
    }
    Ok(y)
}

/// `[N, .., C]` with each of the axes between at another length, every element the largest of its part.
#[track_caller]
pub fn adaptive_max_pool(x: &Tensor, out: &[usize]) -> Result<Tensor> {
    let lengths = lengths(x)?;
    check_out(&lengths, out)?;
    if let Some(windows) = even(&lengths, out) {
        return max_pool(x, &windows);
    }
    let mut y = x.clone();
    for (axis, (&n, &out)) in lengths.iter().zip(out).enumerate() {
        if n == out {
            continue;
        }
        let pieces = (0..out).map(|i| {
            let (start, stop) = part(i, n, out);
            y.narrow(axis + 1, start, stop)?.max(&[axis + 1], true)
        });
        let pieces = pieces.collect::<Result<Vec<Tensor>>>()?;
        y = Tensor::concat(&pieces.iter().collect::<Vec<_>>(), axis as isize + 1)?;
    }
    Ok(y)
}

fn check_out(lengths: &[usize], out: &[usize]) -> Result<()> {
    if lengths.len() == out.len() && out.iter().all(|&n| n > 0) && lengths.iter().all(|&n| n > 0) {
        return Ok(());
    }
    Err(refuse(format!("pools axes of lengths {lengths:?} to {out:?}")))
}

/// Windows of one size that do it, where lengths are multiples.
fn even(lengths: &[usize], out: &[usize]) -> Option<Windows> {
    let is_even = lengths.iter().zip(out).all(|(n, out)| n % out == 0);
    let window: Vec<usize> = lengths.iter().zip(out).map(|(n, out)| n / out).collect();
    is_even.then(|| Windows { stride: window.clone(), pad: vec![(0, 0); out.len()], window, ceil: false })
}

/// The p-norm of every window: (Σ |x|ᵖ)^(1/p).
#[track_caller]
pub fn lp_pool(x: &Tensor, windows: &Windows, p: f64) -> Result<Tensor> {
    let whole: usize = windows.window.iter().product();
    let powers = x.abs()?.pow_scalar(p)?;
    avg_pool(&powers, windows, true, None)?.mul_scalar(whole as f64)?.pow_scalar(1.0 / p)
}
