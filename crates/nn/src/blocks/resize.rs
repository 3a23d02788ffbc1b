//! Images, sequences and volumes at other sizes, channels last: by the engine's kernels where they mean the same, else along one axis
//! after the other by a matrix of weights.

use plimsoll_graph::ops::ResizeMode;
use plimsoll_graph::{ResizeOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;

/// How an element of the result is made from its neighbours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Interpolation {
    /// The nearest one at or below its place.
    Nearest,
    /// The nearest one to its place, with places taken in the middle of elements.
    NearestExact,
    /// The two beside it along each axis.
    Linear,
    /// The four beside it along each axis, by a cubic of this parameter (PyTorch's is -0.75).
    Cubic(f64),
    /// As linear, but where the result is smaller over all elements that it covers: antialiased.
    SmoothLinear,
    /// As cubic, likewise (PyTorch's parameter is -0.5 here).
    SmoothCubic(f64),
}

/// How places of the result are found in what is resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corners {
    /// The first and the last elements of both coincide.
    Aligned,
    /// The outer edges of both coincide.
    Edges,
}

/// `[N, .., C]` with the axes between at other lengths. A `scale` says how many elements of the result there are for one, where that is
/// not the proportion of the lengths.
#[track_caller]
pub fn resize(
    x: &Tensor,
    out: &[usize],
    scale: Option<&[f64]>,
    how: Interpolation,
    corners: Corners,
) -> Result<Tensor> {
    let rank = x.shape().rank();
    if rank < 3 || out.len() != rank - 2 || out.contains(&0) || x.shape().contains(&0) {
        return Err(refuse(format!("resizes {} to {out:?}", x.shape())));
    }
    let lengths = x.shape()[1..rank - 1].to_vec();
    if scale.is_some_and(|scale| scale.len() != out.len() || scale.iter().any(|s| s.is_nan() || *s <= 0.0)) {
        return Err(refuse(format!("resizes {} by {scale:?}", x.shape())));
    }
    // A scale that is the proportion of the lengths says nothing of its own.
    let scale = scale.filter(|scale| {
        corners == Corners::Edges && (0..out.len()).any(|i| lengths[i] as f64 * scale[i] != out[i] as f64)
    });
    if let (&[height, width], None) = (out, scale) {
        let mode = match how {
            Interpolation::Nearest => Some(ResizeMode::Nearest),
            Interpolation::Linear => Some(ResizeMode::Bilinear),
            _ => None,
        };
        if let Some(mode) = mode {
            let aligned = corners == Corners::Aligned && mode == ResizeMode::Bilinear;
            return x.resize2d([height, width], mode, aligned);
        }
    }
    let mut y = x.clone();
    for (i, (&n, &new)) in lengths.iter().zip(out).enumerate() {
        // With cubics a length that stays still weighs its neighbours by nothing.
        if n == new && scale.is_none() {
            continue;
        }
        let step = match corners {
            Corners::Aligned if new > 1 => (n - 1) as f64 / (new - 1) as f64,
            Corners::Aligned => 0.0,
            Corners::Edges => scale.map_or(n as f64 / new as f64, |scale| 1.0 / scale[i]),
        };
        let weights: Vec<Vec<(usize, f64)>> = (0..new).map(|o| sources(o, n, step, how, corners)).collect();
        y = along(&y, i + 1, new, |o, j| {
            weights[o].iter().filter(|(at, _)| *at == j).map(|(_, weight)| weight).sum()
        })?;
    }
    Ok(y)
}

/// The elements that element `o` of the result is made from, each with its weight.
fn sources(o: usize, n: usize, step: f64, how: Interpolation, corners: Corners) -> Vec<(usize, f64)> {
    let held = |at: f64| at.clamp(0.0, (n - 1) as f64) as usize;
    let middle = match corners {
        Corners::Aligned => o as f64 * step,
        Corners::Edges => (o as f64 + 0.5) * step - 0.5,
    };
    match how {
        Interpolation::Nearest => vec![(held((o as f64 * step).floor()), 1.0)],
        Interpolation::NearestExact => vec![(held(((o as f64 + 0.5) * step).floor()), 1.0)],
        Interpolation::Linear => {
            let at = middle.max(0.0);
            let (first, share) = (held(at.floor()), at - at.floor());
            vec![(first, 1.0 - share), ((first + 1).min(n - 1), share)]
        }
        Interpolation::Cubic(a) => {
            let first = middle.floor();
            (-1..3).map(|k| first + f64::from(k)).map(|at| (held(at), cubic(a, middle - at))).collect()
        }
        Interpolation::SmoothLinear => covered(o, n, step, 1.0, |x| (1.0 - x.abs()).max(0.0)),
        Interpolation::SmoothCubic(a) => covered(o, n, step, 2.0, |x| cubic(a, x)),
    }
}

/// The weight of an element so far away, by a cubic of a parameter.
fn cubic(a: f64, away: f64) -> f64 {
    let x = away.abs();
    match x {
        _ if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        _ if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

/// All elements that element `o` of the result covers, weighted by a function that is as wide as an element of the larger of the two, and to 1 in all.
fn covered(o: usize, n: usize, step: f64, reach: f64, weight: impl Fn(f64) -> f64) -> Vec<(usize, f64)> {
    let (wide, middle) = (step.max(1.0), step * (o as f64 + 0.5));
    let first = ((middle - reach * wide + 0.5) as usize).min(n - 1);
    let end = ((middle + reach * wide + 0.5) as usize).clamp(first + 1, n);
    let weights: Vec<f64> = (first..end).map(|j| weight((j as f64 - middle + 0.5) / wide)).collect();
    let whole: f64 = weights.iter().sum();
    (first..end).zip(weights).map(|(j, weight)| (j, weight / whole)).collect()
}

/// `x` with one axis replaced by `new` weighted sums of its elements: `weight(i, j)` is that of element j in sum i.
#[track_caller]
pub fn along(x: &Tensor, axis: usize, new: usize, weight: impl Fn(usize, usize) -> f64) -> Result<Tensor> {
    let n = x.shape()[axis];
    let weights: Vec<f64> = (0..new * n).map(|at| weight(at / n, at % n)).collect();
    let matrix = Tensor::from_slice(&weights, [new, n])?.cast(x.dtype())?;
    let before: usize = x.shape()[..axis].iter().product();
    let after: usize = x.shape()[axis + 1..].iter().product();
    let mut shape = x.shape().to_vec();
    shape[axis] = new;
    matrix.matmul(&x.reshape([before, n, after])?)?.reshape(shape)
}
