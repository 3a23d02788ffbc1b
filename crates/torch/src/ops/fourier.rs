//! Fourier transforms, as products with matrices of cosines and sines.

use plimsoll_graph::TensorOps;
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::complex::parts;
use super::cut::sliced;
use super::pad::padded;
use super::{Table, Values, one};
use crate::call::{Call, axis};
use crate::error::refuse;
use crate::value::Value;

/// The longest axis that is transformed: its matrices have as many rows and columns.
const LONGEST: usize = 4096;

pub(super) const OPS: Table = &[
    ("aten.fft_fft.default", |c| along_one(c, Kind::Whole { is_inverse: false })),
    ("aten.fft_ifft.default", |c| along_one(c, Kind::Whole { is_inverse: true })),
    ("aten.fft_rfft.default", |c| along_one(c, Kind::ToHalf)),
    ("aten.fft_irfft.default", |c| along_one(c, Kind::FromHalf)),
    ("aten.fft_fft2.default", |c| along_several(c, Kind::Whole { is_inverse: false })),
    ("aten.fft_ifft2.default", |c| along_several(c, Kind::Whole { is_inverse: true })),
    ("aten.fft_rfft2.default", |c| along_several(c, Kind::ToHalf)),
    ("aten.fft_irfft2.default", |c| along_several(c, Kind::FromHalf)),
    ("aten.fft_fftn.default", |c| along_several(c, Kind::Whole { is_inverse: false })),
    ("aten.fft_ifftn.default", |c| along_several(c, Kind::Whole { is_inverse: true })),
    ("aten.fft_rfftn.default", |c| along_several(c, Kind::ToHalf)),
    ("aten.fft_irfftn.default", |c| along_several(c, Kind::FromHalf)),
];

/// Which of the numbers are complex, and which way it goes.
#[derive(Clone, Copy)]
enum Kind {
    Whole {
        is_inverse: bool,
    },
    /// Of real numbers, the first half of what comes out: the other is its conjugate.
    ToHalf,
    /// Back from that half to real numbers.
    FromHalf,
}

fn along_one(c: &mut Call<'_, '_>, kind: Kind) -> Values {
    let pair = parts(c, "self")?;
    let at = axis(c.int("dim")?, pair.0.rank())?;
    let (n, norm) = (c.opt_int("n")?, c.opt_text("norm")?);
    given(transformed(pair, at, n, kind, norm.as_deref())?, kind)
}

fn along_several(c: &mut Call<'_, '_>, kind: Kind) -> Values {
    let mut pair = parts(c, "self")?;
    let rank = pair.0.rank();
    let (sizes, axes, norm) = (c.opt_ints("s")?, c.opt_ints("dim")?, c.opt_text("norm")?);
    let axes = match (&axes, &sizes) {
        (Some(axes), _) => axes.iter().map(|&n| axis(n, rank)).collect::<Result<Vec<usize>>>()?,
        (None, Some(sizes)) => (rank.saturating_sub(sizes.len())..rank).collect(),
        (None, None) => (0..rank).collect(),
    };
    if sizes.as_ref().is_some_and(|sizes| sizes.len() != axes.len()) {
        return Err(refuse("says other than one length for each axis"));
    }
    let length = |i: usize| sizes.as_ref().map(|sizes| sizes[i]).filter(|&n| n != -1);
    let Some((&last, others)) = axes.split_last() else { return Err(refuse("transforms no axis")) };
    let is_inverse = matches!(kind, Kind::FromHalf | Kind::Whole { is_inverse: true });
    if let Kind::ToHalf = kind {
        pair = transformed(pair, last, length(others.len()), kind, norm.as_deref())?;
    }
    for (i, &at) in others.iter().enumerate() {
        pair = transformed(pair, at, length(i), Kind::Whole { is_inverse }, norm.as_deref())?;
    }
    if !matches!(kind, Kind::ToHalf) {
        pair = transformed(pair, last, length(others.len()), kind, norm.as_deref())?;
    }
    given(pair, kind)
}

fn given((re, im): (Laid, Laid), kind: Kind) -> Values {
    one(if matches!(kind, Kind::FromHalf) { re.into() } else { Value::complex(re, im) })
}

/// The discrete Fourier transform along an axis, of a length to which it is cut or filled up with 0.
fn transformed(
    (re, im): (Laid, Laid),
    at: usize,
    length: Option<i64>,
    kind: Kind,
    norm: Option<&str>,
) -> Result<(Laid, Laid)> {
    let own = re.shape()[at];
    let whole = match (length, kind) {
        (Some(n), _) => usize::try_from(n).map_err(|_| refuse(format!("transforms a length of {n}")))?,
        (None, Kind::FromHalf) => 2 * own.saturating_sub(1),
        (None, _) => own,
    };
    if whole == 0 || whole > LONGEST {
        return Err(refuse(format!("transforms a length of {whole}; here it is one from 1 to {LONGEST}")));
    }
    let half = whole / 2 + 1;
    let (rows, columns) = match kind {
        Kind::Whole { .. } => (whole, whole),
        Kind::ToHalf => (whole, half),
        Kind::FromHalf => (half, whole),
    };
    let is_inverse = matches!(kind, Kind::FromHalf | Kind::Whole { is_inverse: true });
    let scale = match (norm, is_inverse) {
        (Some("ortho"), _) => 1.0 / (whole as f64).sqrt(),
        (Some("forward"), false) | (None | Some("backward"), true) => 1.0 / whole as f64,
        (Some("forward") | Some("backward") | None, _) => 1.0,
        (Some(other), _) => return Err(refuse(format!("norms by {other}"))),
    };
    let wave = |is_cos: bool| -> Result<Tensor> {
        let value = |place: usize| {
            let (row, column) = (place / columns, place % columns);
            let turn = ((row * column) % whole) as f64 / whole as f64 * std::f64::consts::TAU;
            // Of a half, all but the first and the middle stand for their conjugates too.
            let is_twice = matches!(kind, Kind::FromHalf) && row != 0 && 2 * row != whole;
            scale * if is_twice { 2.0 } else { 1.0 } * if is_cos { turn.cos() } else { turn.sin() }
        };
        let values: Vec<f64> = (0..rows * columns).map(value).collect();
        Tensor::from_slice(&values, [rows, columns])?.cast(re.dtype())
    };
    let (cos, sin) = (wave(true)?, wave(false)?);
    // The axis last, and back.
    let rank = re.rank();
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(at, rank - 1);
    let turned = |x: &Laid| -> Result<Tensor> { fitted(x, at, rows)?.permute(&order).plain() };
    let (re, im) = (turned(&re)?, turned(&im)?);
    let rows_of = |x: &Tensor, wave: &Tensor| -> Result<Tensor> {
        let x = if rank == 1 { x.reshape([1, rows])? } else { x.clone() };
        x.matmul(wave)
    };
    let both = |a: (&Tensor, &Tensor), b: (&Tensor, &Tensor), is_sum: bool| -> Result<Laid> {
        let (a, b) = (rows_of(a.0, a.1)?, rows_of(b.0, b.1)?);
        let y = if is_sum { a.add(&b)? } else { a.sub(&b)? };
        let y = if rank == 1 { y.reshape([columns])? } else { y };
        Ok(Laid::from(y).permute(&order))
    };
    // (re + i im)(cos ∓ i sin), forward and back.
    Ok((both((&re, &cos), (&im, &sin), !is_inverse)?, both((&im, &cos), (&re, &sin), is_inverse)?))
}

/// Cut, or filled up with 0, along an axis.
fn fitted(x: &Laid, at: usize, length: usize) -> Result<Laid> {
    let own = x.shape()[at];
    if length <= own {
        return sliced(x, at, 0, length, 1);
    }
    let mut pad = vec![0; 2 * (x.rank() - at)];
    let last = pad.len() - 1;
    pad[last] = (length - own) as i64;
    padded(x, &pad, "constant", 0.0)
}
