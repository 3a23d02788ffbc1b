//! The largest element of windows of uneven or great size, channels last: axis by axis, from the last to the first, so that of equal ones the
//! first in a window has the gradient, as PyTorch has it.

use plimsoll_graph::{GatherOps, TensorOps};
use plimsoll_nn::blocks::pool::{self, Windows};
use plimsoll_run::{Result, Tensor};

/// The most elements of a window that the kernel takes at once.
const MOST: usize = 256;

/// The largest element of every window of `[N, .., C]`.
pub(super) fn max_pool(x: &Tensor, windows: &Windows) -> Result<Tensor> {
    if windows.window.iter().product::<usize>() <= MOST {
        return pool::max_pool(x, windows);
    }
    let axes = windows.window.len();
    let mut x = x.clone();
    for i in (0..axes).rev() {
        let (n, window, (low, high)) = (x.shape()[i + 1], windows.window[i], windows.pad[i]);
        let is_single = !windows.ceil && window.saturating_add(windows.stride[i]) > n + low + high;
        if is_single || window == n + low + high {
            x = largest(&x.narrow(i + 1, 0, window.saturating_sub(low).min(n))?, i + 1)?;
            continue;
        }
        let mut own = Windows {
            window: vec![1; axes],
            stride: vec![1; axes],
            pad: vec![(0, 0); axes],
            ceil: windows.ceil,
        };
        (own.window[i], own.stride[i], own.pad[i]) = (window, windows.stride[i], windows.pad[i]);
        x = pool::max_pool(&x, &own)?;
    }
    Ok(x)
}

/// `[N, .., C]` with each of the axes between at another length, every element the largest of its part.
pub(super) fn adaptive_max_pool(x: &Tensor, out: &[usize]) -> Result<Tensor> {
    let mut x = x.clone();
    for (i, &out) in out.iter().enumerate().rev() {
        let n = x.shape()[i + 1];
        if n == out || out == 0 {
            continue;
        }
        let parts = (0..out).map(|at| {
            let (start, stop) = (at * n / out, ((at + 1) * n).div_ceil(out));
            largest(&x.narrow(i + 1, start, stop)?, i + 1)
        });
        let parts = parts.collect::<Result<Vec<Tensor>>>()?;
        x = Tensor::concat(&parts.iter().collect::<Vec<_>>(), i as isize + 1)?;
    }
    Ok(x)
}

/// The first of the largest elements along an axis, which stays with a length of 1.
fn largest(x: &Tensor, axis: usize) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    shape[axis] = 1;
    x.take_along(&x.argmax(axis as isize)?.reshape(shape)?, axis as isize)
}
