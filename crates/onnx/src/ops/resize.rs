//! Resize and its forerunner Upsample: by the engine's kernel where it means the same, else axis by axis as a product.

use plimsoll_graph::ops::ResizeMode;
use plimsoll_graph::{DType, ResizeOps, TensorOps};
use plimsoll_nn::blocks::resize::along;
use plimsoll_nn::blocks::{Laid, element};
use plimsoll_run::{Result, Tensor};

use super::Table;
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const TABLE: Table = &[("Resize", resize), ("Upsample", resize)];

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
