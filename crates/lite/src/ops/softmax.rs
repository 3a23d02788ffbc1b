//! SOFTMAX and LOG_SOFTMAX over the last dimension.

use super::element::bring;
use super::{Call, Store, fast};
use crate::bytes::{b, chunks_mut, f};
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
        Some(bytes) => {
            let powers = &store.reals[bytes.powers..];
            if let Some(powers) = powers.first_chunk() {
                run_bytes(softmax, bytes, powers, out);
            }
        }
    }
    Ok(())
}

/// Rows that are summed at once: each sum is one after the other, as in the reference, so that a processor waits for each.
const ROWS: usize = 4;

/// Computes a softmax of bytes.
#[inline(always)]
fn run_bytes(softmax: &Softmax, bytes: Bytes, powers: &[f32; 256], out: &mut [u8]) {
    let length = softmax.length;
    let mut fours = out.chunks_exact_mut(ROWS * length);
    for rows in &mut fours {
        // What is below the largest of each row, as bytes.
        rows.chunks_exact_mut(length).for_each(below);
        let mut sums = [0.0; ROWS];
        for at in 0..length {
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum += powers[rows[row * length + at] as usize];
            }
        }
        for (row, sum) in rows.chunks_exact_mut(length).zip(sums) {
            finish(softmax, bytes, powers, row, sum);
        }
    }
    for row in fours.into_remainder().chunks_exact_mut(length) {
        below(row);
        let sum = row.iter().map(|below| powers[*below as usize]).sum();
        finish(softmax, bytes, powers, row, sum);
    }
}

/// Makes of bytes by how much they are less than the largest.
#[inline(always)]
fn below(row: &mut [u8]) {
    let most = row.iter().fold(i8::MIN, |most, x| most.max(*x as i8)) as u8;
    row.iter_mut().for_each(|x| *x = most.wrapping_sub(*x));
}

/// Makes results of what bytes are below the largest: all that there can be in a row are computed, then looked up.
#[inline(always)]
fn finish(softmax: &Softmax, Bytes { step, to, .. }: Bytes, powers: &[f32; 256], row: &mut [u8], sum: f32) {
    let deepest = row.iter().fold(0, |deepest, below| deepest.max(*below));
    let count = (usize::from(deepest) + 1).next_multiple_of(16);
    let mut table = [0; 256];
    if softmax.log {
        let log = math::ln(sum);
        for (below, made) in table[..count].iter_mut().enumerate() {
            *made = b(to.quantize(below as f32 * -step - log, -128, 127));
        }
    } else {
        for (power, made) in powers.iter().zip(&mut table[..count]) {
            *made = b(to.quantize(power / sum, -128, 127));
        }
    }
    fast::lookup(&table, row);
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::bytes::s;

    /// Element by element, as the reference has it.
    fn by_definition(softmax: &Softmax, bytes: Bytes, powers: &[f32; 256], out: &mut [u8]) {
        for row in out.chunks_exact_mut(softmax.length) {
            let most = row.iter().map(|x| s(*x)).max().unwrap();
            let below = |x: u8| (most - s(x)) as usize;
            let sum: f32 = row.iter().map(|x| powers[below(*x)]).sum();
            for x in row {
                let value = match softmax.log {
                    true => below(*x) as f32 * -bytes.step - math::ln(sum),
                    false => powers[below(*x)] / sum,
                };
                *x = b(bytes.to.quantize(value, -128, 127));
            }
        }
    }

    #[test]
    fn rows_of_bytes_are_what_they_are_one_by_one() {
        let mut state = 9u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as u8
        };
        for (rows, length, log) in
            [(1, 1, false), (3, 10, true), (4, 64, false), (9, 17, false), (10, 197, false), (5, 300, true)]
        {
            let scale = if log { 1.0 / 16.0 } else { 1.0 / 256.0 };
            let bytes =
                Bytes { step: 0.05, powers: 0, to: Affine { scale, zero: if log { 127 } else { -128 } } };
            let powers = core::array::from_fn(|below| math::exp(below as f32 * -bytes.step));
            let softmax = Softmax { length, log, beta: 1.0, bytes: Some(bytes) };
            let mut found: Vec<u8> = (0..rows * length).map(|_| byte()).collect();
            let mut wanted = found.clone();
            by_definition(&softmax, bytes, &powers, &mut wanted);
            run_bytes(&softmax, bytes, &powers, &mut found);
            assert_eq!(found, wanted, "{rows} {length} {log}");
        }
    }
}
