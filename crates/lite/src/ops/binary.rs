//! Functions of two elements, with operands that are repeated along dimensions of length one.

use super::element::broadcast;
use super::moves::Places;
use super::{Call, byte_range};
use crate::bytes::{b, chunks, chunks_mut, f, i, s};
use crate::error::{Error, Result};
use crate::model::Operand;
use crate::quant::Scale;
use crate::schema::{Code, Type};
use crate::tensor::MAX_RANK;

/// A function of two operands.
#[derive(Debug)]
pub struct Binary {
    code: Code,
    dims: [usize; MAX_RANK],
    strides: [[isize; MAX_RANK]; 2],
    /// Whether both operands have the result's shape.
    plain: bool,
    numbers: Numbers,
}

#[derive(Debug)]
enum Numbers {
    Floats(f32, f32),
    Whole,
    Bytes(Bytes),
}

/// How bytes are brought to one scale, computed with, and brought to the result's.
#[derive(Debug)]
struct Bytes {
    zeros: [i32; 3],
    in_scales: [Scale; 2],
    out_scale: Scale,
    low: i32,
    high: i32,
}

/// By so many bits sums are finer than their operands.
const FINER: i32 = 20;

/// Checks a function of two operands.
pub fn prepare(call: &Call<'_, '_>) -> Result<Binary> {
    let (x, y, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
    call.same_type(x, out)?;
    call.same_type(y, out)?;
    let dims = out.shape.padded();
    let fit = |shape: &crate::tensor::Shape| {
        call.some(broadcast(&shape.padded(), &dims), "the shapes of its tensors do not fit together")
    };
    let strides = [fit(&x.shape)?, fit(&y.shape)?];
    let code = call.info.code;
    let fused = !matches!(code, Code::Maximum | Code::Minimum);
    let range = if fused { call.activation(0)? } else { (f32::NEG_INFINITY, f32::INFINITY) };
    let numbers = match out.kind {
        Type::F32 => Numbers::Floats(range.0, range.1),
        Type::I32 => {
            call.ensure(
                range == (f32::NEG_INFINITY, f32::INFINITY),
                "a fused activation of whole numbers is not supported",
            )?;
            Numbers::Whole
        }
        Type::I8 => {
            if code == Code::Div {
                return call.refuse("of int8 there is no division");
            }
            let (a, c, to) = (call.affine(x)?, call.affine(y)?, call.affine(out)?);
            let (low, high) = byte_range(range, to);
            let scale = |real: f64| call.some(Scale::new(real), "its scales are too far apart");
            let mut bytes = Bytes {
                zeros: [a.zero, c.zero, to.zero],
                in_scales: [Scale::default(); 2],
                out_scale: Scale::default(),
                low,
                high,
            };
            match code {
                Code::Add | Code::Sub => {
                    let twice = 2.0 * f64::from(a.scale.max(c.scale));
                    bytes.in_scales =
                        [scale(f64::from(a.scale) / twice)?, scale(f64::from(c.scale) / twice)?];
                    bytes.out_scale = scale(twice / (f64::from(1 << FINER) * f64::from(to.scale)))?;
                }
                Code::Mul => {
                    bytes.out_scale = scale(f64::from(a.scale) * f64::from(c.scale) / f64::from(to.scale))?;
                }
                _ => {
                    call.same_quantization(x, out)?;
                    call.same_quantization(y, out)?;
                }
            }
            Numbers::Bytes(bytes)
        }
        _ => return call.refuse("its type is none of float32, int32 and int8"),
    };
    let plain = x.shape.count() == out.shape.count() && y.shape.count() == out.shape.count();
    Ok(Binary { code, dims, strides, plain, numbers })
}

/// Computes the function of all elements.
pub fn run(binary: &Binary, out: &mut [u8], x: Operand<'_>, y: Operand<'_>) -> Result<()> {
    match &binary.numbers {
        Numbers::Floats(low, high) => {
            let (low, high) = (*low, *high);
            macro_rules! floats {
                ($function:expr) => {
                    each::<4>(binary, out, x, y, |x, y| {
                        let function: fn(f32, f32) -> f32 = $function;
                        function(f(x), f(y)).max(low).min(high).to_le_bytes()
                    })
                };
            }
            match binary.code {
                Code::Add => floats!(|x, y| x + y),
                Code::Sub => floats!(|x, y| x - y),
                Code::Mul => floats!(|x, y| x * y),
                Code::Div => floats!(|x, y| x / y),
                Code::Maximum => floats!(|x, y| if x > y { x } else { y }),
                _ => floats!(|x, y| if x < y { x } else { y }),
            }
        }
        Numbers::Whole => each::<4>(binary, out, x, y, |x, y| {
            let (x, y) = (i(x), i(y));
            let value = match binary.code {
                Code::Add => x.wrapping_add(y),
                Code::Sub => x.wrapping_sub(y),
                Code::Mul => x.wrapping_mul(y),
                // Of a division by zero there is no number; zero as good as any.
                Code::Div => x.checked_div(y).unwrap_or(0),
                Code::Maximum => x.max(y),
                _ => x.min(y),
            };
            value.to_le_bytes()
        }),
        Numbers::Bytes(bytes) => run_bytes(binary, bytes, out, x, y),
    }
}

fn run_bytes(binary: &Binary, bytes: &Bytes, out: &mut [u8], x: Operand<'_>, y: Operand<'_>) -> Result<()> {
    let Bytes { zeros, in_scales, out_scale, low, high } = bytes;
    let finish =
        |value: i32| [b(out_scale.apply(value).saturating_add(zeros[2]).clamp(*low, (*high).max(*low)))];
    let part = |byte: [u8; 1], which: usize| in_scales[which].apply((s(byte[0]) - zeros[which]) << FINER);
    match binary.code {
        Code::Add => each::<1>(binary, out, x, y, |x, y| finish(part(x, 0).wrapping_add(part(y, 1)))),
        Code::Sub => each::<1>(binary, out, x, y, |x, y| finish(part(x, 0).wrapping_sub(part(y, 1)))),
        Code::Mul => each::<1>(binary, out, x, y, |x, y| finish((s(x[0]) - zeros[0]) * (s(y[0]) - zeros[1]))),
        Code::Maximum => each::<1>(binary, out, x, y, |x, y| [b(s(x[0]).max(s(y[0])))]),
        _ => each::<1>(binary, out, x, y, |x, y| [b(s(x[0]).min(s(y[0])))]),
    }
}

/// Goes through all elements of `N` bytes. An operand that lies where the result will has its shape, so that an element is read before
/// it is written.
#[inline(always)]
fn each<const N: usize>(
    binary: &Binary,
    out: &mut [u8],
    x: Operand<'_>,
    y: Operand<'_>,
    function: impl Fn([u8; N], [u8; N]) -> [u8; N],
) -> Result<()> {
    let out = chunks_mut::<N>(out);
    let read = |operand: Operand<'_>| match operand {
        Operand::At(_) | Operand::Own => Ok(()),
        Operand::Absent => Err(Error::Bug("an operand is missing")),
    };
    read(x)?;
    read(y)?;
    if binary.plain {
        match (x, y) {
            (Operand::At(x), Operand::At(y)) => {
                let both = chunks::<N>(x).iter().zip(chunks::<N>(y));
                out.iter_mut().zip(both).for_each(|(out, (x, y))| *out = function(*x, *y));
            }
            (Operand::At(x), _) => {
                out.iter_mut().zip(chunks::<N>(x)).for_each(|(out, x)| *out = function(*x, *out));
            }
            (_, Operand::At(y)) => {
                out.iter_mut().zip(chunks::<N>(y)).for_each(|(out, y)| *out = function(*out, *y));
            }
            _ => out.iter_mut().for_each(|out| *out = function(*out, *out)),
        }
        return Ok(());
    }
    let mut places = Places::new(&binary.dims, [&binary.strides[0], &binary.strides[1]]);
    for out in out {
        let [at_x, at_y] = places.next();
        let x = if let Operand::At(x) = x { chunks::<N>(x)[at_x] } else { *out };
        let y = if let Operand::At(y) = y { chunks::<N>(y)[at_y] } else { *out };
        *out = function(x, y);
    }
    Ok(())
}
