//! Sums and the like over axes that are more than one of our ops: norms, logarithms of sums, of truth values and bytes.

use plimsoll_graph::{DType, Shape, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::element::scalar;

/// √(Σ x²)
#[track_caller]
pub fn l2(x: &Tensor, axes: &[usize], keep: bool) -> Result<Tensor> {
    x.square()?.sum(axes, keep)?.sqrt()
}

/// ln Σ e^x, without an overflow where x is large.
#[track_caller]
pub fn log_sum_exp(x: &Tensor, axes: &[usize], keep: bool) -> Result<Tensor> {
    let largest = x.max(axes, true)?;
    // What is infinite is its own maximum; there is nothing to take off.
    let held = largest.is_finite()?.select(&largest, &scalar(&largest, 0.0)?)?;
    let y = x.sub(&held)?.exp()?.sum(axes, true)?.log()?.add(&held)?;
    let shape: Shape = if keep { y.shape().clone() } else { x.shape().reduced(&all(x, axes), false) };
    y.reshape(shape)
}

/// Whether any is true.
#[track_caller]
pub fn any(x: &Tensor, axes: &[usize], keep: bool) -> Result<Tensor> {
    x.cast(DType::U8)?.max(axes, keep)?.cast(DType::Bool)
}

/// Whether all are true.
#[track_caller]
pub fn all_true(x: &Tensor, axes: &[usize], keep: bool) -> Result<Tensor> {
    x.cast(DType::U8)?.min(axes, keep)?.cast(DType::Bool)
}

/// The axes, or all where none is named.
fn all(x: &Tensor, axes: &[usize]) -> Vec<usize> {
    if axes.is_empty() { (0..x.shape().rank()).collect() } else { axes.to_vec() }
}

/// Mean and variance over axes, both with length 1 there.
#[track_caller]
pub fn moments(x: &Tensor, axes: &[usize]) -> Result<(Tensor, Tensor)> {
    let mean = x.mean(axes, true)?;
    let variance = x.sub(&mean)?.square()?.mean(axes, true)?;
    Ok((mean, variance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_a_sum_of_large_exponentials_is_finite() {
        let x =
            Tensor::from_slice(&[1000.0f64, 1000.0, f64::NEG_INFINITY, f64::NEG_INFINITY], [2, 2]).unwrap();
        let y = log_sum_exp(&x, &[1], false).unwrap().to_vec::<f64>().unwrap();
        assert!((y[0] - 1000.0 - 2f64.ln()).abs() < 1e-12, "{y:?}");
        assert_eq!(y[1], f64::NEG_INFINITY);
    }
}
