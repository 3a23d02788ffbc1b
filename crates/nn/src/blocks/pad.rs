//! More elements around a tensor: of a value, of its own mirrored, of its edge, or of its other end. Less where a length is negative.

use plimsoll_graph::{ReorderOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::slice::tile;
use crate::error::refuse;

/// What stands in the place of what is not there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// A value.
    Constant(f64),
    /// The elements in the mirror of the edge, without the edge itself.
    Reflect,
    /// The element at the edge.
    Edge,
    /// The elements from the other end.
    Wrap,
}

/// x with `(before, behind)` elements more along each axis.
#[track_caller]
pub fn pad(x: &Tensor, padding: &[(i64, i64)], mode: PadMode) -> Result<Tensor> {
    if padding.len() != x.shape().rank() {
        return Err(refuse(format!("pads {} by {padding:?}, one pair an axis is wanted", x.ty())));
    }
    let mut y = x.clone();
    // What is cut off goes first: it is not there to be mirrored.
    for (axis, &(before, behind)) in padding.iter().enumerate() {
        let n = y.shape()[axis] as i64;
        let (start, stop) = ((-before).max(0), n - (-behind).max(0));
        if start > stop {
            return Err(refuse(format!("pads axis {axis} of {} by {before} and {behind}", x.ty())));
        }
        if (start, stop) != (0, n) {
            y = y.narrow(axis, start as usize, stop as usize)?;
        }
    }
    let more: Vec<(usize, usize)> =
        padding.iter().map(|&(before, behind)| (before.max(0) as usize, behind.max(0) as usize)).collect();
    if more.iter().all(|&pair| pair == (0, 0)) {
        return Ok(y);
    }
    if let PadMode::Constant(value) = mode {
        return y.pad(&more, value);
    }
    for (axis, &(before, behind)) in more.iter().enumerate() {
        let before = beyond(&y, axis, before, mode, true)?;
        let behind = beyond(&y, axis, behind, mode, false)?;
        let parts: Vec<&Tensor> = before.iter().chain([&y]).chain(&behind).collect();
        if parts.len() > 1 {
            y = Tensor::concat(&parts, axis as isize)?;
        }
    }
    Ok(y)
}

/// What stands before or behind an axis.
fn beyond(x: &Tensor, axis: usize, n: usize, mode: PadMode, is_before: bool) -> Result<Option<Tensor>> {
    let length = x.shape()[axis];
    if n == 0 {
        return Ok(None);
    }
    let most = match mode {
        PadMode::Reflect => length.saturating_sub(1),
        PadMode::Wrap => length,
        _ => usize::MAX,
    };
    if n > most || length == 0 {
        let why = format!("pads axis {axis} of {} by {n} elements of its own, which has not so many", x.ty());
        return Err(refuse(why));
    }
    let part = match (mode, is_before) {
        (PadMode::Constant(_), _) => return Ok(None),
        (PadMode::Reflect, true) => x.narrow(axis, 1, n + 1)?.flip(&[axis as isize])?,
        (PadMode::Reflect, false) => x.narrow(axis, length - 1 - n, length - 1)?.flip(&[axis as isize])?,
        (PadMode::Wrap, true) => x.narrow(axis, length - n, length)?,
        (PadMode::Wrap, false) => x.narrow(axis, 0, n)?,
        (PadMode::Edge, _) => {
            let at = if is_before { 0 } else { length - 1 };
            let mut repeats = vec![1; x.shape().rank()];
            repeats[axis] = n;
            tile(&x.narrow(axis, at, at + 1)?, &repeats)?
        }
    };
    Ok(Some(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modes_are_those_of_numpy() {
        let x = Tensor::from_slice(&[1i64, 2, 3], [3]).unwrap();
        let padded = |pair, mode| pad(&x, &[pair], mode).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(padded((1, 2), PadMode::Constant(9.0)), [9, 1, 2, 3, 9, 9]);
        assert_eq!(padded((2, 1), PadMode::Reflect), [3, 2, 1, 2, 3, 2]);
        assert_eq!(padded((2, 1), PadMode::Edge), [1, 1, 1, 2, 3, 3]);
        assert_eq!(padded((2, 1), PadMode::Wrap), [2, 3, 1, 2, 3, 1]);
        assert_eq!(padded((-1, 1), PadMode::Constant(0.0)), [2, 3, 0]);
        assert!(pad(&x, &[(3, 0)], PadMode::Reflect).is_err());
        assert!(pad(&x, &[(-2, -2)], PadMode::Edge).is_err());
    }
}
