//! AVERAGE_POOL_2D and MAX_POOL_2D.

use super::reduce::blocks;
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
#[inline(always)]
pub fn run(pool: &Pool, out: &mut [u8], x: &[u8]) -> Result<()> {
    match pool.numbers {
        Numbers::Floats(low, high) => {
            let (x, out) = (chunks::<4>(x), chunks_mut::<4>(out));
            match pool.average {
                true => each(
                    pool,
                    out,
                    x,
                    0.0,
                    |sum, x| sum + f(x),
                    |sum, count| (sum / count as f32).max(low).min(high).to_le_bytes(),
                ),
                false => each(
                    pool,
                    out,
                    x,
                    f32::MIN,
                    |most, x| if f(x) > most { f(x) } else { most },
                    |most, _| most.max(low).min(high).to_le_bytes(),
                ),
            }
        }
        Numbers::Bytes(low, high) => match pool.average {
            true => each(
                pool,
                out,
                x,
                0i32,
                |sum, x| sum.wrapping_add(s(x)),
                |sum, count| {
                    // To the nearest, halves away from zero.
                    let half = if sum > 0 { count as i32 / 2 } else { -(count as i32 / 2) };
                    b((sum.wrapping_add(half) / (count as i32).max(1)).clamp(low, high))
                },
            ),
            false => each(
                pool,
                out,
                x,
                i8::MIN,
                |most, x| most.max(x as i8),
                |most, _| b(i32::from(most).clamp(low, high)),
            ),
        },
    }
    Ok(())
}

/// Goes through all pixels of the result, and for some channels of each through its window.
#[inline(always)]
fn each<T: Copy, X: Copy, Out>(
    pool: &Pool,
    out: &mut [Out],
    x: &[X],
    start: T,
    add: impl Fn(T, X) -> T,
    finish: impl Fn(T, usize) -> Out,
) {
    let (places_y, places_x) = (pool.y.places, pool.x.places);
    for (pixel, out) in out.chunks_exact_mut(pool.channels).enumerate() {
        let (line, place_x) = (pixel / places_x, pixel % places_x);
        let (batch, place_y) = (line / places_y, line % places_y);
        let (of_y, of_x) = (inside(&pool.y, place_y), inside(&pool.x, place_x));
        let (lines, count) = (of_x.len(), of_y.len() * of_x.len());
        let line = pool.x.length * pool.channels;
        let first = (batch * pool.y.length + of_y.start) * line + of_x.start * pool.channels;
        let place = |tap: usize| first + tap / lines * line + tap % lines * pool.channels;
        blocks(out, x, count, place, start, &add, |value| finish(value, count));
    }
}

/// The elements of a window that are inside, whose elements are neighbours.
#[inline(always)]
fn inside(span: &Span, place: usize) -> core::ops::Range<usize> {
    let start = place * span.step;
    start.saturating_sub(span.before)..(start + span.size).saturating_sub(span.before).min(span.length)
}
