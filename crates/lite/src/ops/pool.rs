//! AVERAGE_POOL_2D and MAX_POOL_2D.

use super::window::Span;
use super::{Call, byte_range};
use crate::bytes::{b, chunks, chunks_mut, f, s};
use crate::error::Result;
use crate::schema::{Code, Type};

/// A pool.
#[derive(Debug)]
pub struct Pool {
    y: Span,
    x: Span,
    channels: usize,
    average: bool,
    numbers: Numbers,
}

#[derive(Debug)]
enum Numbers {
    Floats(f32, f32),
    Bytes(i32, i32),
}

/// Checks a pool.
pub fn prepare(call: &Call<'_, '_>) -> Result<Pool> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    call.same_type(x, out)?;
    let ([batch, height, width, channels], [out_batch, out_height, out_width, out_channels]) =
        call.some(x.shape.four().zip(out.shape.four()), "its tensors do not have four dimensions")?;
    call.ensure(batch == out_batch && channels == out_channels, "its result has another shape")?;
    let size = |field| call.option(field, 0).map(|size| usize::try_from(size).unwrap_or(0));
    let padding = call.option_byte(0)?;
    let y = Span::new(call, padding, height, out_height, size(4)?, call.option(2, 0)?, 1)?;
    let across = Span::new(call, padding, width, out_width, size(3)?, call.option(1, 0)?, 1)?;
    let range = call.activation(5)?;
    let numbers = match x.kind {
        Type::F32 => Numbers::Floats(range.0, range.1),
        Type::I8 => {
            call.same_quantization(x, out)?;
            let (low, high) = byte_range(range, call.affine(out)?);
            Numbers::Bytes(low, high.max(low))
        }
        _ => return call.refuse("its type is neither float32 nor int8"),
    };
    Ok(Pool { y, x: across, channels, average: call.info.code == Code::AveragePool, numbers })
}

/// Computes a pool.
pub fn run(pool: &Pool, out: &mut [u8], x: &[u8]) -> Result<()> {
    match pool.numbers {
        Numbers::Floats(low, high) => {
            let x = chunks::<4>(x);
            for (pixel, out) in chunks_mut::<4>(out).chunks_exact_mut(pool.channels).enumerate() {
                let start = if pool.average { 0.0 } else { f32::MIN };
                out.fill(f32::to_le_bytes(start));
                let count = each_tap(pool, pixel, |from| {
                    for (out, x) in out.iter_mut().zip(&x[from..from + pool.channels]) {
                        let (sum, x) = (f(*out), f(*x));
                        *out = (if pool.average { sum + x } else { sum.max(x) }).to_le_bytes();
                    }
                });
                let by = if pool.average { count as f32 } else { 1.0 };
                out.iter_mut().for_each(|out| *out = (f(*out) / by).max(low).min(high).to_le_bytes());
            }
        }
        Numbers::Bytes(low, high) => {
            for (pixel, out) in out.chunks_exact_mut(pool.channels).enumerate() {
                for (block, out) in out.chunks_mut(16).enumerate() {
                    let mut values = [if pool.average { 0i32 } else { -128 }; 16];
                    let count = each_tap(pool, pixel, |from| {
                        let from = from + block * 16;
                        for (value, x) in values.iter_mut().zip(&x[from..from + out.len()]) {
                            *value = if pool.average { value.wrapping_add(s(*x)) } else { s(*x).max(*value) };
                        }
                    });
                    let by = if pool.average { count as i32 } else { 1 };
                    for (out, value) in out.iter_mut().zip(values) {
                        // To the nearest, halves away from zero.
                        let half = if value > 0 { by / 2 } else { -(by / 2) };
                        *out = b((value.wrapping_add(half) / by.max(1)).clamp(low, high));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Calls with where each pixel of the window begins; answers how many there are.
#[inline(always)]
fn each_tap(pool: &Pool, pixel: usize, mut call: impl FnMut(usize)) -> usize {
    let (place_x, rest) = (pixel % pool.x.places, pixel / pool.x.places);
    let (place_y, batch) = (rest % pool.y.places, rest / pool.y.places);
    let mut count = 0;
    for ky in 0..pool.y.size {
        let Some(y) = pool.y.at(place_y, ky) else { continue };
        for kx in 0..pool.x.size {
            let Some(x) = pool.x.at(place_x, kx) else { continue };
            call(((batch * pool.y.length + y) * pool.x.length + x) * pool.channels);
            count += 1;
        }
    }
    count
}
