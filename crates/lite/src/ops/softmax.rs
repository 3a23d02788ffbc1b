//! SOFTMAX and LOG_SOFTMAX over the last dimension.

use super::element::bring;
use super::{Call, Store};
use crate::bytes::{b, chunks_mut, f, s};
use crate::error::Result;
use crate::math;
use crate::model::Operand;
use crate::quant::Affine;
use crate::quick;
use crate::schema::{Code, Type};

/// A softmax.
#[derive(Debug)]
pub struct Softmax {
    length: usize,
    log: bool,
    beta: f32,
    bytes: Option<Bytes>,
}

/// Of bytes: how far they are apart as numbers, the powers of all that one can be below the largest, and how results are made.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    step: f32,
    powers: usize,
    to: Affine,
}

/// Checks a softmax.
pub fn prepare(call: &Call<'_, '_>, store: &mut Store) -> Result<Softmax> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    call.same_type(x, out)?;
    call.ensure(x.shape == out.shape, "its result has another shape than its operand")?;
    let length = *call.some(x.shape.dims().last(), "its operand is a single number")?;
    let log = call.info.code == Code::LogSoftmax;
    let beta = if log { 1.0 } else { call.option_float(0)? };
    call.ensure(beta.is_finite(), "its factor is not a number")?;
    let bytes = match x.kind {
        Type::F32 => None,
        Type::I8 => {
            let step = call.affine(x)?.scale * beta;
            let powers = store.add_floats(256, |below| Some(math::exp(below as f32 * -step)))?;
            Some(Bytes { step, powers, to: call.affine(out)? })
        }
        _ => return call.refuse("its type is neither float32 nor int8"),
    };
    Ok(Softmax { length, log, beta, bytes })
}

/// Computes a softmax, row by row where the result lies.
#[inline(always)]
pub fn run(softmax: &Softmax, store: &Store, out: &mut [u8], x: Operand<'_>) -> Result<()> {
    bring(out, x)?;
    match softmax.bytes {
        None => {
            for row in chunks_mut::<4>(out).chunks_exact_mut(softmax.length) {
                let most = quick::largest(row);
                if softmax.log {
                    let sum: f32 = row.iter().map(|x| math::exp(f(*x) - most)).sum();
                    let sum = math::ln(sum);
                    for x in row.iter_mut() {
                        *x = (f(*x) - most - sum).to_le_bytes();
                    }
                    continue;
                }
                for x in row.iter_mut() {
                    *x = quick::exp((f(*x) - most) * softmax.beta).to_le_bytes();
                }
                let by = 1.0 / quick::sum(row);
                for x in row.iter_mut() {
                    *x = (f(*x) * by).to_le_bytes();
                }
            }
        }
        Some(Bytes { step, powers, to }) => {
            let powers = &store.reals[powers..powers + 256];
            for row in out.chunks_exact_mut(softmax.length) {
                let most = row.iter().map(|x| s(*x)).max().unwrap_or(0);
                let below = |x: u8| (most - s(x)) as usize;
                let sum: f32 = row.iter().map(|x| powers[below(*x)]).sum();
                let log = math::ln(sum);
                for x in row {
                    let value =
                        if softmax.log { below(*x) as f32 * -step - log } else { powers[below(*x)] / sum };
                    *x = b(to.quantize(value, -128, 127));
                }
            }
        }
    }
    Ok(())
}
