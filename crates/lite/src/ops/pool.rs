//! AVERAGE_POOL_2D and MAX_POOL_2D.

use super::reduce::Fold;
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
                b(quotient(sum.wrapping_add(half), count.max(1)).clamp(low, high))
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

/// A sum of at most as many bytes divided by how many they are, towards zero.
#[inline(always)]
fn quotient(sum: i32, count: i32) -> i32 {
    // Processors divide floats sixteen at once. What is farther from a whole number than 2^-15 and less than 256 is not rounded to it.
    if count < 1 << 15 { (sum as f32 / count as f32) as i32 } else { sum / count }
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
    let channels = pool.channels;
    let line = pool.x.length * channels;
    for (number, out) in out.chunks_exact_mut(pool.x.places * channels).enumerate() {
        let (batch, place_y) = (number / pool.y.places, number % pool.y.places);
        let of_y = inside(&pool.y, place_y);
        let first = (batch * pool.y.length + of_y.start) * line;
        for (place_x, out) in out.chunks_exact_mut(channels).enumerate() {
            let of_x = inside(&pool.x, place_x);
            let window = Places { lines: of_y.len(), line, columns: of_x.len(), channels };
            window.pool(&x[first + of_x.start * channels..], out, &fold(of_y.len() * of_x.len()));
        }
    }
}

/// Where the elements of a window are: how many lines, how far they are apart, how many columns in each, and how far those are.
struct Places {
    lines: usize,
    line: usize,
    columns: usize,
    channels: usize,
}

impl Places {
    /// Reduces all channels of a pixel, in blocks of lengths that are known when this is compiled: those that become whole vectors. The last one begins before the end of the
    /// one before it, rather than that what is left is computed in small ones.
    #[inline(always)]
    fn pool<T: Copy, X: Copy, Out, A, F>(&self, x: &[X], out: &mut [Out], fold: &Fold<T, A, F>)
    where
        A: Fn(T, X) -> T,
        F: Fn(T) -> Out,
    {
        let mut done = 0;
        while done < out.len() {
            match out.len() - done {
                64.. => done += self.block::<64, _, _, _, _, _>(x, out, done, fold),
                32.. if size_of::<X>() == 1 => done += self.block::<32, _, _, _, _, _>(x, out, done, fold),
                16.. => done += self.block::<16, _, _, _, _, _>(x, out, done, fold),
                _ if done >= 16 => done = out.len() - 16,
                4.. => done += self.block::<4, _, _, _, _, _>(x, out, done, fold),
                _ => done += self.block::<1, _, _, _, _, _>(x, out, done, fold),
            }
        }
    }

    #[inline(always)]
    fn block<const LENGTH: usize, T: Copy, X: Copy, Out, A: Fn(T, X) -> T, F: Fn(T) -> Out>(
        &self,
        x: &[X],
        out: &mut [Out],
        done: usize,
        Fold(start, add, finish): &Fold<T, A, F>,
    ) -> usize {
        let mut values = [*start; LENGTH];
        for line in 0..self.lines {
            for column in 0..self.columns {
                let from = line * self.line + column * self.channels + done;
                let Some(x) = x[from..].first_chunk::<LENGTH>() else { continue };
                values = core::array::from_fn(|lane| add(values[lane], x[lane]));
            }
        }
        for (out, value) in out[done..done + LENGTH].iter_mut().zip(values) {
            *out = finish(value);
        }
        LENGTH
    }
}

/// The elements of a window that are inside, whose elements are neighbours.
#[inline(always)]
fn inside(span: &Span, place: usize) -> core::ops::Range<usize> {
    let start = place * span.step;
    start.saturating_sub(span.before)..(start + span.size).saturating_sub(span.before).min(span.length)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn quotients_of_floats_are_those_of_whole_numbers() {
        for count in (1..600).chain([1000, 4095, 4097, 32_749, 32_767, 32_768, 40_000]) {
            for times in [-129, -128, -3, -1, 0, 1, 2, 63, 64, 127, 128] {
                for sum in [times * count - 1, times * count, times * count + 1, times * count + count / 2] {
                    assert_eq!(quotient(sum, count), sum / count, "{sum} / {count}");
                }
            }
        }
    }

    #[test]
    fn pools_of_any_number_of_channels_are_those_of_each_channel() {
        let span = |length, places, before| Span { length, places, size: 3, step: 2, dilation: 1, before };
        for (channels, average) in
            [1, 3, 4, 7, 16, 19, 33, 50, 64, 100].into_iter().flat_map(|n| [(n, false), (n, true)])
        {
            let (y, across) = (span(5, 3, 1), span(8, 4, 0));
            let x: Vec<u8> = (0..2 * 40 * channels).map(|n| (n * n * 37 + n * 11) as u8).collect();
            let pool = Pool { y, x: across, channels, average, numbers: Numbers::Bytes(-100, 110) };
            let mut out = alloc::vec![0; 2 * 12 * channels];
            run(&pool, &mut out, &x).unwrap();
            for (number, found) in out.iter().enumerate() {
                let (pixel, channel) = (number / channels, number % channels);
                let (place_x, place_y, batch) = (pixel % 4, pixel / 4 % 3, pixel / 12);
                let taps =
                    (0..9).filter_map(|tap| Some((y.at(place_y, tap / 3)?, across.at(place_x, tap % 3)?)));
                let at = |(y, x): (usize, usize)| ((batch * 5 + y) * 8 + x) * channels + channel;
                let taps: Vec<i32> = taps.map(|tap| i32::from(x[at(tap)] as i8)).collect();
                let (sum, count) = (taps.iter().sum::<i32>(), taps.len() as i32);
                let half = if sum > 0 { count / 2 } else { -(count / 2) };
                let wanted = if average { (sum + half) / count } else { *taps.iter().max().unwrap() };
                assert_eq!(i32::from(*found as i8), wanted.clamp(-100, 110), "{channels} channels, {number}");
            }
        }
    }
}
