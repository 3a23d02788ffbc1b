//! AVERAGE_POOL_2D and MAX_POOL_2D.

use super::reduce::{Fold, blocks};
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
            let finish = |value: f32| value.max(low).min(high).to_le_bytes();
            match pool.average {
                true => each(pool, out, x, |count| {
                    Fold(0.0, |sum: f32, x| sum + f(x), move |sum| finish(sum / count as f32))
                }),
                false => each(pool, out, x, |_| {
                    Fold(f32::MIN, |most: f32, x| if f(x) > most { f(x) } else { most }, finish)
                }),
            }
        }
        Numbers::Bytes(low, high) => {
            // To the nearest, halves away from zero.
            let mean = |sum: i32, count: i32| {
                let half = if sum > 0 { count / 2 } else { -(count / 2) };
                b((sum.wrapping_add(half) / count.max(1)).clamp(low, high))
            };
            match pool.average {
                true => each(pool, out, x, |count| {
                    Fold(0, |sum: i32, x| sum.wrapping_add(s(x)), move |sum| mean(sum, count as i32))
                }),
                false => each(pool, out, x, |_| {
                    Fold(i8::MIN, |most: i8, x| most.max(x as i8), |most| b(i32::from(most).clamp(low, high)))
                }),
            }
        }
    }
    Ok(())
}

/// Goes through all pixels of the result. How a window of so many elements is reduced is asked for each.
#[inline(always)]
fn each<T: Copy, X: Copy, Out, A, F>(
    pool: &Pool,
    out: &mut [Out],
    x: &[X],
    fold: impl Fn(usize) -> Fold<T, A, F>,
) where
    A: Fn(T, X) -> T,
    F: Fn(T) -> Out,
{
    let (places_y, places_x) = (pool.y.places, pool.x.places);
    for (pixel, out) in out.chunks_exact_mut(pool.channels).enumerate() {
        let (line, place_x) = (pixel / places_x, pixel % places_x);
        let (batch, place_y) = (line / places_y, line % places_y);
        let (of_y, of_x) = (inside(&pool.y, place_y), inside(&pool.x, place_x));
        let (lines, count) = (of_x.len(), of_y.len() * of_x.len());
        let line = pool.x.length * pool.channels;
        let first = (batch * pool.y.length + of_y.start) * line + of_x.start * pool.channels;
        let place = |tap: usize| first + tap / lines * line + tap % lines * pool.channels;
        blocks(out, x, count, place, &fold(count));
    }
}

/// The elements of a window that are inside, whose elements are neighbours.
#[inline(always)]
fn inside(span: &Span, place: usize) -> core::ops::Range<usize> {
    let start = place * span.step;
    start.saturating_sub(span.before)..(start + span.size).saturating_sub(span.before).min(span.length)
}
