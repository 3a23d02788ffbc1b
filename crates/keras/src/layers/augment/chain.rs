//! Changes that are chosen among many: RandAugment, and AugMix, which mixes chains of them.

use plimsoll_graph::TensorOps;
use plimsoll_run::{Result as RunResult, Tensor};

use super::draw::{self, number};
use super::warp::Reading;
use super::{Change, Changing, color, histogram, range, unit_factor, warp};
use crate::error::{Result, refuse};
use crate::settings::Settings;

/// The most changes after each other, and the most chains, that are taken from a file.
const MOST: usize = 64;

/// The changes that are chosen among; all, or those that keep away from what tests of robustness do.
fn choices(s: &Settings<'_>, all: bool) -> Result<Vec<Change>> {
    let factor = unit_factor(s, "factor")?;
    let values = range(s)?;
    let reading = Reading::reflecting(s)?;
    let bits = (8.0 * factor.1).floor().max(1.0);
    let mut found = vec![
        warp::sheared(factor, factor, reading),
        warp::translated(factor, factor, reading),
        warp::rotated(factor, reading),
    ];
    if all {
        found.extend([
            color::brightened(factor, values),
            color::degenerated(factor, values),
            color::contrasted(factor, values),
            color::sharpened(factor, values),
        ]);
    }
    // One number of bits is a range from 1 on, of which the last is never drawn.
    found.push(color::posterized((1.0, bits), values));
    found.push(color::solarized(factor, factor, values));
    found.push(Change::fixed(move |x| color::auto_contrast(x, values)));
    found.push(Change::fixed(move |x| histogram::equalized(x, values, 256)));
    Ok(found)
}

/// One of several tensors: the one whose number is drawn, and where it is none of theirs, the last.
fn chosen(number_drawn: &Tensor, of: &[Tensor], otherwise: &Tensor) -> RunResult<Tensor> {
    let mut y = otherwise.clone();
    for (i, one) in of.iter().enumerate() {
        let is_it = number_drawn.equal(&number(number_drawn, i as f64)?)?;
        y = is_it.broadcast(y.shape().clone())?.select(one, &y)?;
    }
    Ok(y)
}

fn few(s: &Settings<'_>, key: &str, default: usize) -> Result<usize> {
    let n = if s.is_null(key) { default } else { s.units(key)? };
    if n > MOST { Err(s.wrong(key, &format!("more than {MOST} is not taken"))) } else { Ok(n) }
}

/// A few changes, each one of eleven. What each of the eleven draws is drawn once a batch, as in Keras.
pub(super) fn rand_augment(s: &Settings<'_>) -> Result<Changing> {
    let times = few(s, "num_ops", 2)?;
    let all = choices(s, true)?;
    Ok(Box::new(move |cx, x| {
        let mut numbers = Vec::with_capacity(times);
        for _ in 0..times {
            numbers.push(draw::whole_once(cx, x, all.len())?);
        }
        let drawn: Vec<Vec<Tensor>> =
            all.iter().map(|change| (change.draw)(cx, x)).collect::<RunResult<_>>()?;
        let mut x = x.clone();
        for number_drawn in numbers {
            let changed: Vec<Tensor> = all
                .iter()
                .zip(&drawn)
                .map(|(change, drawn)| (change.apply)(&x, drawn))
                .collect::<RunResult<_>>()?;
            x = chosen(&number_drawn, &changed, &x)?;
        }
        Ok(x)
    }))
}

/// A mean of chains of changes, mixed with the image. Every link is one of the changes, or none, drawn anew for each batch.
pub(super) fn aug_mix(s: &Settings<'_>) -> Result<Changing> {
    let (chains, depth) = (few(s, "num_chains", 3)?, few(s, "chain_depth", 3)?);
    let alpha = s.number_or("alpha", 1.0)?;
    if alpha <= 0.0 {
        return Err(s.wrong("alpha", "it should be above 0"));
    }
    let (least, most) = range(s)?;
    let all = choices(s, s.flag("all_ops", true)?)?;
    Ok(Box::new(move |cx, x| {
        let shares = draw::shares(cx, x, chains, alpha)?;
        let wide = x.full_like(x.ty().with_dtype(draw::place_type(x)).with_shape([1, 1, 1, 1]), alpha)?;
        let own = draw::beta_once(cx, x, &wide)?.cast(x.dtype())?;
        let mut mixed: Option<Tensor> = None;
        for share in shares {
            let mut y = x.clone();
            for _ in 0..depth {
                let link = draw::whole_once(cx, x, all.len() + 1)?;
                let changed: Vec<Tensor> =
                    all.iter().map(|change| change.run(cx, &y)).collect::<RunResult<_>>()?;
                y = chosen(&link, &changed, &y)?;
            }
            let part = y.mul(&share.cast(x.dtype())?)?;
            mixed = Some(match mixed {
                Some(mixed) => mixed.add(&part)?,
                None => part,
            });
        }
        let mixed = mixed.ok_or_else(|| refuse("mixes no chains"))?;
        x.mul(&own)?.add(&mixed.mul(&own.rsub_scalar(1.0)?)?)?.clamp(least, most)
    }))
}
