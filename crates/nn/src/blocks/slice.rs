//! Ranges of axes as Python has them: bounds from the end, steps backwards, bounds that reach beyond.

use plimsoll_graph::{ReorderOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;

/// A range of one axis as it is written: `start:stop:step`, either bound from the end where negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The axis.
    pub axis: usize,
    /// Where it begins.
    pub start: i64,
    /// Where it ends, which is not part of it.
    pub stop: i64,
    /// How far from one element to the next; negative: backwards.
    pub step: i64,
}

/// The elements of some ranges; axes that none names stay whole.
#[track_caller]
pub fn slice(x: &Tensor, ranges: &[Range]) -> Result<Tensor> {
    let mut parts = Vec::new();
    let mut flipped = Vec::new();
    for &Range { axis, start, stop, step } in ranges {
        let Some(&length) = x.shape().get(axis) else {
            return Err(refuse(format!("slices axis {axis} of {}", x.ty())));
        };
        if step == 0 {
            return Err(refuse("slices with a step of 0"));
        }
        let n = length as i64;
        let from_end = |bound: i64| if bound < 0 { bound.saturating_add(n) } else { bound };
        if step > 0 {
            let start = from_end(start).clamp(0, n);
            let stop = from_end(stop).clamp(start, n);
            parts.push((axis, start as usize, stop as usize, step.min(n.max(1)) as usize));
            continue;
        }
        // Backwards: from `start` down to what is above `stop`. Seen from the other end these are places that rise.
        let start = from_end(start).clamp(-1, n - 1);
        let stop = from_end(stop).clamp(-1, start.max(-1));
        let (first, last) = (n - 1 - start, n - 1 - stop);
        flipped.push(axis as isize);
        let back = step.checked_neg().unwrap_or(i64::MAX).min(n.max(1));
        parts.push((
            axis,
            first.clamp(0, n) as usize,
            last.clamp(first.clamp(0, n), n) as usize,
            back as usize,
        ));
    }
    let x = if flipped.is_empty() { x.clone() } else { x.flip(&flipped)? };
    let is_whole = |&(axis, start, stop, step): &(usize, usize, usize, usize)| {
        start == 0 && stop == x.shape()[axis] && step == 1
    };
    if parts.iter().all(is_whole) { Ok(x) } else { x.slice(&parts) }
}

/// One place of an axis, which goes.
#[track_caller]
pub fn select(x: &Tensor, axis: usize, place: usize) -> Result<Tensor> {
    let part = x.narrow(axis, place, place + 1)?;
    let shape = part.shape().reduced(&[axis], false);
    part.reshape(shape)
}

/// x repeated along every axis so many times.
#[track_caller]
pub fn tile(x: &Tensor, repeats: &[usize]) -> Result<Tensor> {
    if repeats.len() != x.shape().rank() {
        return Err(refuse(format!("repeats {} by {repeats:?}, one number an axis is wanted", x.ty())));
    }
    let mut y = x.clone();
    for (axis, &times) in repeats.iter().enumerate() {
        if times == 1 {
            continue;
        }
        // [.., n, ..] as [.., 1, n, ..], repeated along the 1.
        let shape = y.shape().clone();
        let (before, behind) = (&shape[..axis], &shape[axis..]);
        let single: Vec<usize> = before.iter().copied().chain([1]).chain(behind.iter().copied()).collect();
        let many: Vec<usize> = before.iter().copied().chain([times]).chain(behind.iter().copied()).collect();
        let whole = shape.with(axis, shape[axis].saturating_mul(times));
        y = y.reshape(&single[..])?.broadcast(&many[..])?.reshape(whole)?;
    }
    Ok(y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_python() {
        let x = Tensor::from_slice(&(0..6i64).collect::<Vec<_>>(), [6]).unwrap();
        let part = |start, stop, step| {
            slice(&x, &[Range { axis: 0, start, stop, step }]).unwrap().to_vec::<i64>().unwrap()
        };
        assert_eq!(part(1, -1, 2), [1, 3]);
        assert_eq!(part(-100, 100, 3), [0, 3]);
        assert_eq!(part(-1, i64::MIN, -2), [5, 3, 1]);
        assert_eq!(part(3, 0, -1), [3, 2, 1]);
        assert_eq!(part(100, -3, -1), [5, 4]);
        assert_eq!(part(4, 2, 1), [0i64; 0]);
        assert_eq!(part(2, 4, -1), [0i64; 0]);
        assert_eq!(part(-7, 6, -1), [0i64; 0]);
        assert!(slice(&x, &[Range { axis: 0, start: 0, stop: 1, step: 0 }]).is_err());
    }

    #[test]
    fn tiles_stand_beside_each_other() {
        let x = Tensor::from_slice(&[1i64, 2, 3, 4], [2, 2]).unwrap();
        let y = tile(&x, &[1, 2]).unwrap();
        assert_eq!(y.to_vec::<i64>().unwrap(), [1, 2, 1, 2, 3, 4, 3, 4]);
    }
}
