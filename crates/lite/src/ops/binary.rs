//! Functions of two elements, with operands that are repeated along dimensions of length one.

use super::element::broadcast;
use super::moves::Places;
use super::{Call, byte_range};
use crate::bytes::{b, chunks, chunks_mut, f, i, s};
use crate::error::{Error, Result};
use crate::model::Operand;
use crate::quant::{Rounding, Scale, Sum};
use crate::schema::{Code, Type};
use crate::tensor::MAX_RANK;

/// A function of two operands.
#[derive(Debug)]
pub struct Binary {
    code: Code,
    strides: [[isize; MAX_RANK]; 2],
    /// The dimensions before those that are gone through at once, how many elements those are, and how each operand goes on there.
    outer: [usize; MAX_RANK],
    run: usize,
    steps: [usize; 2],
    numbers: Numbers,
}

#[derive(Debug)]
enum Numbers {
    Floats(f32, f32),
    Whole,
    Bytes(Bytes),
    Sum(Sum),
}

/// What bytes are multiplied with to be numbers of the result's scale, what is added, and how bytes are made of those.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    factors: [f32; 2],
    offset: f32,
    zeros: [i32; 2],
    rounding: Rounding,
}

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
            let mut bytes = Bytes {
                factors: [0.0; 2],
                offset: 0.0,
                zeros: [a.zero, c.zero],
                rounding: Rounding::new(low, high, to.zero),
            };
            let factor = |real: f64| {
                call.ensure(Scale::new(real).is_some(), "its scales are too far apart").map(|()| real)
            };
            match code {
                Code::Add | Code::Sub => {
                    let of_x = factor(f64::from(a.scale) / f64::from(to.scale))?;
                    let of_y = factor(f64::from(c.scale) / f64::from(to.scale))?;
                    let of_y = if code == Code::Sub { -of_y } else { of_y };
                    let sign = if code == Code::Sub { -1.0 } else { 1.0 };
                    let factors = [a.scale / to.scale, sign * c.scale / to.scale];
                    if let Some(sum) = Sum::new(factors, [a.zero, c.zero], [low, high, to.zero]) {
                        let (run, steps, outer) = runs(&dims, &strides);
                        return Ok(Binary { code, strides, outer, run, steps, numbers: Numbers::Sum(sum) });
                    }
                    bytes.factors = [of_x as f32, of_y as f32];
                    bytes.offset = -(of_x * f64::from(a.zero) + of_y * f64::from(c.zero)) as f32;
                }
                Code::Mul => {
                    let real = f64::from(a.scale) * f64::from(c.scale) / f64::from(to.scale);
                    bytes.factors[0] = factor(real)? as f32;
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
    let (run, steps, outer) = runs(&dims, &strides);
    Ok(Binary { code, strides, outer, run, steps, numbers })
}

/// Computes the function of all elements.
#[inline(always)]
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
        Numbers::Sum(sum) => each::<1>(binary, out, x, y, |x, y| [sum.byte(s(x[0]), s(y[0]))]),
        Numbers::Bytes(bytes) => run_bytes(binary, bytes, out, x, y),
    }
}

#[inline(always)]
fn run_bytes(binary: &Binary, bytes: &Bytes, out: &mut [u8], x: Operand<'_>, y: Operand<'_>) -> Result<()> {
    let Bytes { factors: [of_x, of_y], offset, zeros, rounding } = *bytes;
    let number = |byte: [u8; 1]| s(byte[0]) as f32;
    match binary.code {
        // Of factors that a sum in whole numbers is not for. Of a difference the second is negative.
        Code::Add | Code::Sub => {
            each::<1>(binary, out, x, y, |x, y| [rounding.byte(number(x) * of_x + number(y) * of_y + offset)])
        }
        Code::Mul => each::<1>(binary, out, x, y, |x, y| {
            [rounding.byte(((s(x[0]) - zeros[0]) * (s(y[0]) - zeros[1])) as f32 * of_x)]
        }),
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
    // Operands that lie where the result does have its shape, and so each run of them is where that of the result is.
    let [step_x, step_y] = binary.steps;
    let mut places = Places::new(&binary.outer, [&binary.strides[0], &binary.strides[1]]);
    for out in out.chunks_exact_mut(binary.run) {
        let [at_x, at_y] = places.next();
        let (of_x, of_y) = (binary.part::<N>(x, at_x, step_x), binary.part::<N>(y, at_y, step_y));
        match (of_x, of_y) {
            (Some([x]), Some(y)) => apply(out, y, |y, _| function(*x, y)),
            (Some(x), Some([y])) => apply(out, x, |x, _| function(x, *y)),
            (Some(x), Some(y)) => {
                for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
                    *out = function(*x, *y);
                }
            }
            (Some([x]), None) => own(out, |y| function(*x, y)),
            (Some(x), None) => apply(out, x, &function),
            (None, Some([y])) => own(out, |x| function(x, *y)),
            (None, Some(y)) => apply(out, y, |y, out| function(out, y)),
            (None, None) => own(out, |x| function(x, x)),
        }
    }
    Ok(())
}

impl Binary {
    /// The elements of an operand for a run of the result; none if they lie where the result does.
    #[inline(always)]
    fn part<'r, const N: usize>(
        &self,
        operand: Operand<'r>,
        at: usize,
        step: usize,
    ) -> Option<&'r [[u8; N]]> {
        match operand {
            Operand::At(bytes) => Some(&chunks::<N>(bytes)[at..at + (self.run - 1) * step + 1]),
            _ => None,
        }
    }
}

#[inline(always)]
fn own<const N: usize>(out: &mut [[u8; N]], function: impl Fn([u8; N]) -> [u8; N]) {
    for out in out {
        *out = function(*out);
    }
}

#[inline(always)]
fn apply<const N: usize>(out: &mut [[u8; N]], x: &[[u8; N]], function: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = function(*x, *out);
    }
}

/// The last dimensions along which each operand either goes on element by element or stays: how long they are together, by how much each
/// operand goes on there, and the dimensions before them.
fn runs(dims: &[usize; MAX_RANK], all: &[[isize; MAX_RANK]; 2]) -> (usize, [usize; 2], [usize; MAX_RANK]) {
    let (mut run, mut outer) = (1usize, *dims);
    let mut steps: Option<[isize; 2]> = None;
    for axis in (0..MAX_RANK).rev().filter(|axis| dims[*axis] > 1) {
        let here = all.map(|strides| strides[axis]);
        let fits = here.iter().enumerate().all(|(which, stride)| match steps {
            None => *stride == 0 || *stride == 1,
            Some(steps) => *stride == steps[which] * run as isize,
        });
        if !fits || run.checked_mul(dims[axis]).is_none() {
            break;
        }
        steps = steps.or(Some(here));
        (run, outer[axis]) = (run * dims[axis], 1);
    }
    (run, steps.unwrap_or([0; 2]).map(|step| step as usize), outer)
}
