//! Arithmetic of whole numbers of every width, as languages have it: results that do not fit wrap around, quotients are cut off.
//!
//! The engine adds and multiplies 32 and 64 bits; narrower ones are computed in 64 and wrapped. Quotients go through f64, which is exact
//! up to 2⁵³.

use plimsoll_graph::{DType, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::element::{floor_mod, fmod, scalar, trunc};

/// Runs `f` on two operands of any element type: floats and wide integers as they are, narrow ones in 64 bits.
#[track_caller]
pub fn arithmetic(a: &Tensor, b: &Tensor, f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let dtype = a.dtype();
    if !is_narrow(dtype) {
        return f(a, b);
    }
    wrap(&f(&a.cast(DType::I64)?, &b.cast(DType::I64)?)?, dtype)
}

/// Runs `f` on an operand of any element type, as [`arithmetic`] does.
#[track_caller]
pub fn arithmetic_one(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let dtype = x.dtype();
    if !is_narrow(dtype) {
        return f(x);
    }
    wrap(&f(&x.cast(DType::I64)?)?, dtype)
}

fn is_narrow(dtype: DType) -> bool {
    DType::SMALL_INTEGERS.contains(&dtype)
}

/// 64-bit numbers in a narrower type: the lowest bits stay.
#[track_caller]
pub fn wrap(x: &Tensor, dtype: DType) -> Result<Tensor> {
    let Some((low, high)) = dtype.range() else { return x.cast(dtype) };
    let (low, count) = (low as f64, (high - low + 1) as f64);
    let wide = x.cast(DType::F64)?.add_scalar(-low)?;
    floor_mod(&wide, &scalar(&wide, count)?)?.add_scalar(low)?.cast(DType::I64)?.cast(dtype)
}

/// a / b, cut off towards zero.
#[track_caller]
pub fn quotient(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    through_f64(a, b, |a, b| trunc(&a.div(b)?))
}

/// The remainder with the sign of b.
#[track_caller]
pub fn remainder(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    through_f64(a, b, floor_mod)
}

/// The remainder with the sign of a.
#[track_caller]
pub fn cut_remainder(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    through_f64(a, b, fmod)
}

/// a^b, cut off towards zero.
#[track_caller]
pub fn power(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    through_f64(a, b, |a, b| trunc(&a.pow(b)?.add_scalar(0.0)?))
}

fn through_f64(a: &Tensor, b: &Tensor, f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    f(&a.cast(DType::F64)?, &b.cast(DType::F64)?)?.cast(a.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wrap_around_and_quotients_are_cut_off() {
        let (a, b) =
            (Tensor::from_slice(&[250u8, 3], [2]).unwrap(), Tensor::from_slice(&[10u8, 7], [2]).unwrap());
        assert_eq!(arithmetic(&a, &b, |a, b| a.add(b)).unwrap().to_vec::<u8>().unwrap(), [4, 10]);
        assert_eq!(arithmetic(&b, &a, |a, b| a.sub(b)).unwrap().to_vec::<u8>().unwrap(), [16, 4]);
        let (a, b) =
            (Tensor::from_slice(&[-7i64, 7], [2]).unwrap(), Tensor::from_slice(&[2i64, -2], [2]).unwrap());
        assert_eq!(quotient(&a, &b).unwrap().to_vec::<i64>().unwrap(), [-3, -3]);
        assert_eq!(remainder(&a, &b).unwrap().to_vec::<i64>().unwrap(), [1, -1]);
        assert_eq!(cut_remainder(&a, &b).unwrap().to_vec::<i64>().unwrap(), [-1, 1]);
    }
}
