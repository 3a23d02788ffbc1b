//! Functions of one element: floats by formula, bytes by a table that is made when a model is loaded.

use super::{Call, Kind, Store, fast};
use crate::bytes::{b, chunks, chunks_mut, f, s};
use crate::error::{Error, Result};
use crate::math;
use crate::model::Operand;
use crate::quant::{Affine, Scale};
use crate::quick;
use crate::schema::{Code, Type};
use crate::tensor::{MAX_RANK, strides};

/// A function of one float.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Unary {
    Clamp(f32, f32),
    Leaky(f32),
    Logistic,
    Tanh,
    HardSwish,
    Elu,
    GeluTanh,
    GeluErf,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Neg,
    Abs,
    Square,
}

impl Unary {
    #[inline(always)]
    fn of(self, x: f32) -> f32 {
        match self {
            Self::Clamp(low, high) => x.max(low).min(high),
            Self::Leaky(alpha) => {
                if x > 0.0 {
                    x
                } else {
                    x * alpha
                }
            }
            Self::Logistic => math::logistic(x),
            Self::Tanh => math::tanh(x),
            Self::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
            Self::Elu => {
                if x < 0.0 {
                    math::exp(x) - 1.0
                } else {
                    x
                }
            }
            // The constant is the square root of 2/pi.
            Self::GeluTanh => 0.5 * x * (1.0 + math::tanh(0.797_884_6 * (x + 0.044_715 * x * x * x))),
            Self::GeluErf => 0.5 * x * (1.0 + math::erf(x * core::f32::consts::FRAC_1_SQRT_2)),
            Self::Exp => math::exp(x),
            Self::Log => math::ln(x),
            Self::Sqrt => math::sqrt(x),
            Self::Rsqrt => 1.0 / math::sqrt(x),
            Self::Neg => -x,
            Self::Abs => x.abs(),
            Self::Square => x * x,
        }
    }

    /// The same for all floats of a tensor.
    #[inline(always)]
    fn quick(self, x: f32) -> f32 {
        match self {
            Self::Logistic => quick::logistic(x),
            Self::Tanh => quick::tanh(x),
            Self::GeluTanh => quick::gelu_tanh(x),
            Self::GeluErf => quick::gelu_erf(x),
            _ => self.of(x),
        }
    }
}

fn function(call: &Call<'_, '_>) -> Result<Unary> {
    Ok(match call.info.code {
        Code::Relu => Unary::Clamp(0.0, f32::INFINITY),
        Code::Relu6 => Unary::Clamp(0.0, 6.0),
        Code::ReluN1To1 => Unary::Clamp(-1.0, 1.0),
        Code::Relu0To1 => Unary::Clamp(0.0, 1.0),
        Code::LeakyRelu => Unary::Leaky(call.option_float(0)?),
        Code::Logistic => Unary::Logistic,
        Code::Tanh => Unary::Tanh,
        Code::HardSwish => Unary::HardSwish,
        Code::Elu => Unary::Elu,
        Code::Gelu if call.option_byte(0)? != 0 => Unary::GeluTanh,
        Code::Gelu => Unary::GeluErf,
        Code::Exp => Unary::Exp,
        Code::Log => Unary::Log,
        Code::Sqrt => Unary::Sqrt,
        Code::Rsqrt => Unary::Rsqrt,
        Code::Neg => Unary::Neg,
        Code::Abs => Unary::Abs,
        Code::Square => Unary::Square,
        _ => return Err(Error::Bug("an operator has no kernel")),
    })
}

/// Checks a function of one operand.
pub fn prepare(call: &Call<'_, '_>, store: &mut Store) -> Result<Kind> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    let unary = function(call)?;
    call.same_type(x, out)?;
    call.ensure(x.shape == out.shape, "its result has another shape than its operand")?;
    match x.kind {
        Type::F32 => Ok(Kind::Unary(unary)),
        Type::I8 => {
            let (from, to) = (call.affine(x)?, call.affine(out)?);
            // Those that only scale are rounded in whole numbers, as in the reference.
            Ok(Kind::Table(match unary {
                Unary::Clamp(low, high) => {
                    let scale = scale(call, f64::from(from.scale) / f64::from(to.scale))?;
                    let (low, high) = super::byte_range((low, high), to);
                    store.add_table(|byte| {
                        scale.apply(byte - from.zero).saturating_add(to.zero).clamp(low, high.max(low))
                    })
                }
                Unary::Leaky(alpha) if alpha >= 0.0 => {
                    let same = scale(call, f64::from(from.scale) / f64::from(to.scale))?;
                    let less = scale(call, f64::from(from.scale * alpha) / f64::from(to.scale))?;
                    store.add_table(|byte| {
                        let value = byte - from.zero;
                        let scaled = if value >= 0 { same.apply(value) } else { less.apply(value) };
                        scaled.saturating_add(to.zero).clamp(-128, 127)
                    })
                }
                _ => store.add_table(|byte| byte_function(unary, byte, from, to)),
            }))
        }
        _ => call.refuse("its type is neither float32 nor int8"),
    }
}

fn scale(call: &Call<'_, '_>, real: f64) -> Result<Scale> {
    call.some(Scale::new(real), "its scales are too far apart")
}

fn byte_function(unary: Unary, byte: i32, from: Affine, to: Affine) -> i32 {
    let value = unary.of(from.real(byte));
    // Of a number that is none, what the reference's cast makes of it is not defined; here it is the byte of zero.
    if value.is_nan() { to.zero } else { to.quantize(value, -128, 127) }
}

/// Copies an operand that lies elsewhere to where the result will be.
pub fn bring(out: &mut [u8], x: Operand<'_>) -> Result<()> {
    if let Operand::At(bytes) = x {
        if bytes.len() != out.len() {
            return Err(Error::Bug("an operand has another length than its result"));
        }
        out.copy_from_slice(bytes);
    }
    Ok(())
}

/// Computes a function of floats.
#[inline(always)]
pub fn run(unary: &Unary, out: &mut [u8], x: Operand<'_>) -> Result<()> {
    bring(out, x)?;
    let out = chunks_mut::<4>(out);
    // The function is chosen once, not for every element.
    macro_rules! each {
        ($($name:ident $(($($field:ident),+))?)|+) => {
            match *unary {
                $(Unary::$name $(($($field),+))? => {
                    let unary = Unary::$name $(($($field),+))?;
                    for value in out.iter_mut() {
                        *value = unary.quick(f(*value)).to_le_bytes();
                    }
                })+
            }
        };
    }
    each!(
        Clamp(low, high)
            | Leaky(alpha)
            | Logistic
            | Tanh
            | HardSwish
            | Elu
            | GeluTanh
            | GeluErf
            | Exp
            | Log
            | Sqrt
            | Rsqrt
            | Neg
            | Abs
            | Square
    );
    Ok(())
}

/// Computes a function of bytes.
pub fn run_table(table: &[u8; 256], out: &mut [u8], x: Operand<'_>) -> Result<()> {
    bring(out, x)?;
    fast::lookup(table, out);
    Ok(())
}

/// `x` where it is positive, `alpha x` elsewhere, with an alpha that is a tensor.
#[derive(Debug)]
pub struct Prelu {
    dims: [usize; MAX_RANK],
    alpha: [isize; MAX_RANK],
    bytes: Option<PreluBytes>,
}

#[derive(Debug)]
struct PreluBytes {
    zeros: [i32; 3],
    same: Scale,
    less: Scale,
}

/// Checks a PRELU.
pub fn prepare_prelu(call: &Call<'_, '_>) -> Result<Prelu> {
    let (x, alpha, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
    call.same_type(x, out)?;
    call.same_type(x, alpha)?;
    call.ensure(x.shape == out.shape, "its result has another shape than its operand")?;
    let dims = x.shape.padded();
    let strides = call.some(broadcast(&alpha.shape.padded(), &dims), "its slopes do not fit its operand")?;
    let bytes = match x.kind {
        Type::F32 => None,
        Type::I8 => {
            let (from, by, to) = (call.affine(x)?, call.affine(alpha)?, call.affine(out)?);
            Some(PreluBytes {
                zeros: [from.zero, by.zero, to.zero],
                same: scale(call, f64::from(from.scale) / f64::from(to.scale))?,
                less: scale(call, f64::from(from.scale * by.scale) / f64::from(to.scale))?,
            })
        }
        _ => return call.refuse("its type is neither float32 nor int8"),
    };
    Ok(Prelu { dims, alpha: strides, bytes })
}

/// The strides by which a smaller tensor is read as a larger one; none if it does not fit.
pub fn broadcast(small: &[usize; MAX_RANK], large: &[usize; MAX_RANK]) -> Option<[isize; MAX_RANK]> {
    let mut all = strides(small);
    for axis in 0..MAX_RANK {
        if small[axis] != large[axis] {
            if small[axis] != 1 {
                return None;
            }
            all[axis] = 0;
        } else if small[axis] == 1 {
            all[axis] = 0;
        }
    }
    Some(all)
}

/// Computes a PRELU.
pub fn run_prelu(prelu: &Prelu, out: &mut [u8], x: Operand<'_>, alpha: &[u8]) -> Result<()> {
    bring(out, x)?;
    let mut places = super::moves::Places::new(&prelu.dims, [&prelu.alpha]);
    match &prelu.bytes {
        None => {
            let slopes = chunks::<4>(alpha);
            for value in chunks_mut::<4>(out) {
                let ([at], x) = (places.next(), f(*value));
                *value = (if x >= 0.0 { x } else { x * f(slopes[at]) }).to_le_bytes();
            }
        }
        Some(PreluBytes { zeros, same, less }) => {
            for value in out {
                let ([at], x) = (places.next(), s(*value) - zeros[0]);
                let scaled = if x >= 0 { same.apply(x) } else { less.apply(x * (s(alpha[at]) - zeros[1])) };
                *value = b(scaled.saturating_add(zeros[2]).clamp(-128, 127));
            }
        }
    }
    Ok(())
}
