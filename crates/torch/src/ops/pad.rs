//! Tensors with a border around them.

use plimsoll_graph::{ReorderOps, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::cut::{cut, sliced};
use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;

pub(super) const OPS: Table = &[
    ("aten.pad.default", |c| {
        let (x, pad, mode) = (c.laid("self")?, c.ints("pad")?, c.text("mode")?);
        let value = c.opt_number("value")?.map_or(0.0, |n| n.value);
        one(padded(&x, &pad, &mode, value)?)
    }),
    ("aten.constant_pad_nd.default", |c| {
        let (x, pad, value) = (c.laid("self")?, c.ints("pad")?, c.float("value")?);
        one(padded(&x, &pad, "constant", value)?)
    }),
    ("aten.reflection_pad1d.default", |c| pad_by(c, "reflect")),
    ("aten.reflection_pad2d.default", |c| pad_by(c, "reflect")),
    ("aten.reflection_pad3d.default", |c| pad_by(c, "reflect")),
    ("aten.replication_pad1d.default", |c| pad_by(c, "replicate")),
    ("aten.replication_pad2d.default", |c| pad_by(c, "replicate")),
    ("aten.replication_pad3d.default", |c| pad_by(c, "replicate")),
];

fn pad_by(c: &mut Call<'_, '_>, mode: &str) -> Values {
    let (x, pad) = (c.laid("self")?, c.ints("padding")?);
    one(padded(&x, &pad, mode, 0.0)?)
}

/// Padded as PyTorch writes it: pairs from the last axis on. Negative numbers cut.
pub(super) fn padded(x: &Laid, pad: &[i64], mode: &str, value: f64) -> Result<Laid> {
    let rank = x.rank();
    if !pad.len().is_multiple_of(2) || pad.len() / 2 > rank {
        return Err(refuse(format!("pads {rank} axes by {pad:?}")));
    }
    let mut y = x.clone();
    for (i, pair) in pad.chunks_exact(2).enumerate() {
        let at = rank - 1 - i;
        let (low, high) = (pair[0], pair[1]);
        let n = y.shape()[at] as i64;
        if low < 0 || high < 0 {
            let (start, stop) = ((-low).max(0), n - (-high).max(0));
            if start > stop {
                return Err(refuse(format!("cuts more than there is: {pad:?}")));
            }
            y = sliced(&y, at, start as usize, stop as usize, 1)?;
        }
    }
    let amount = |at: usize| -> (usize, usize) {
        let i = rank - 1 - at;
        match pad.get(2 * i..2 * i + 2) {
            Some(pair) => (pair[0].max(0) as usize, pair[1].max(0) as usize),
            None => (0, 0),
        }
    };
    if (0..rank).all(|at| amount(at) == (0, 0)) {
        return Ok(y);
    }
    if mode == "constant" {
        let mut padding = vec![(0, 0); rank];
        (0..rank).for_each(|at| padding[y.order()[at]] = amount(at));
        return Ok(Laid::ordered(y.lying().pad(&padding, value)?, y.order()));
    }
    let mut tensor = y.lying().clone();
    for at in 0..rank {
        let ((low, high), own) = (amount(at), y.order()[at]);
        if (low, high) != (0, 0) {
            tensor = mirrored(&tensor, own, low, high, mode)?;
        }
    }
    Ok(Laid::ordered(tensor, y.order()))
}

/// Padded along one axis by its own elements.
fn mirrored(x: &Tensor, at: usize, low: usize, high: usize, mode: &str) -> Result<Tensor> {
    let n = x.shape()[at];
    let fits = match mode {
        "reflect" => low < n && high < n,
        "replicate" => n > 0,
        "circular" => low <= n && high <= n,
        _ => return Err(refuse(format!("pads by {mode}, which is not known here"))),
    };
    if !fits {
        return Err(refuse(format!("pads an axis of {n} by {low} and {high} of its own elements")));
    }
    let repeated = |from: usize, count: usize| -> Result<Tensor> {
        let mut shape = x.shape().to_vec();
        shape[at] = count;
        cut(x, at, from, from + 1, 1)?.broadcast(shape)
    };
    let (before, after) = match mode {
        "reflect" => {
            let flipped = |from: usize, to: usize| cut(x, at, from, to, 1)?.flip(&[at as isize]);
            (flipped(1, low + 1)?, flipped(n - 1 - high, n - 1)?)
        }
        "replicate" => (repeated(0, low)?, repeated(n - 1, high)?),
        _ => (cut(x, at, n - low, n, 1)?, cut(x, at, 0, high, 1)?),
    };
    let parts: Vec<&Tensor> = [(low, &before), (n, x), (high, &after)]
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(_, t)| t)
        .collect();
    Tensor::concat(&parts, at as isize)
}
