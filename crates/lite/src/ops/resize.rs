//! RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR, in the reference's arithmetic: floats for floats, parts of 1024 for bytes.

use super::Call;
use crate::bytes::{b, chunks, chunks_mut, f, s};
use crate::error::Result;
use crate::math;
use crate::schema::{Code, Type};

/// A change of a picture's size.
#[derive(Debug)]
pub struct Resize {
    y: Axis,
    x: Axis,
    channels: usize,
    kind: Type,
    nearest: bool,
}

#[derive(Debug)]
struct Axis {
    from: usize,
    to: usize,
    align: bool,
    centers: bool,
}

/// Checks a change of size.
pub fn prepare(call: &Call<'_, '_>) -> Result<Resize> {
    let (x, out) = call.moved()?;
    let [of_x, of_out] = call.fours([x, out])?;
    let (size, count) = call.numbers::<2>(1)?;
    let same = count == 2 && size[0] == of_out[1] as i64 && size[1] == of_out[2] as i64;
    call.ensure(same && of_x[0] == of_out[0] && of_x[3] == of_out[3], "its result has another shape")?;
    let most = of_x[1].max(of_x[2]).max(of_out[1]).max(of_out[2]);
    call.ensure(most < 1 << 20, "a side is longer than a million")?;
    let nearest = call.info.code == Code::ResizeNearest;
    let field = if nearest { 0 } else { 2 };
    let (align, centers) = (call.option_byte(field)? != 0, call.option_byte(field + 1)? != 0);
    call.ensure(!(align && centers), "aligned corners and centers of pixels exclude each other")?;
    call.ensure(nearest || matches!(x.kind, Type::F32 | Type::I8), "its type is neither float32 nor int8")?;
    let axis = |index: usize| Axis { from: of_x[index], to: of_out[index], align, centers };
    Ok(Resize { y: axis(1), x: axis(2), channels: of_x[3], kind: x.kind, nearest })
}

impl Axis {
    fn factor(&self) -> f32 {
        if self.align && self.to > 1 {
            (self.from - 1) as f32 / (self.to - 1) as f32
        } else {
            self.from as f32 / self.to as f32
        }
    }

    fn nearest(&self, at: usize) -> usize {
        let place = (at as f32 + if self.centers { 0.5 } else { 0.0 }) * self.factor();
        let place = if self.align { math::round(f64::from(place)) as f32 } else { math::floor(place) };
        (place.max(0.0) as usize).min(self.from - 1)
    }

    /// The neighbours of a place, and how far it is from the first.
    fn between(&self, at: usize) -> (usize, usize, f32) {
        let factor = self.factor();
        let place = if self.centers { (at as f32 + 0.5) * factor - 0.5 } else { at as f32 * factor };
        let below = math::floor(place);
        let low = below.max(0.0);
        let above = if below == place { below } else { below + 1.0 };
        let high = (above.max(0.0) as usize).min(self.from - 1);
        ((low as usize).min(self.from - 1), high, place - low)
    }

    /// The same in parts of 1024.
    fn between_parts(&self, at: usize) -> (usize, usize, i64) {
        let (from, to, at) = (self.from as i64, self.to as i64, at as i64);
        let factor = if self.align && to > 1 {
            (1024 * (from - 1) + (to - 1) / 2) / (to - 1)
        } else {
            (1024 * from + to / 2) / to
        };
        let place = if self.centers { at * factor + factor / 2 - 512 } else { at * factor };
        let low = (place / 1024).clamp(0, from - 1);
        let high = ((place + 1023) / 1024).clamp(0, from - 1);
        (low as usize, high as usize, place - 1024 * low)
    }
}

/// Places that are found at once, for all lines.
const PLACES: usize = 32;

/// Changes the size.
#[inline(always)]
pub fn run(resize: &Resize, out: &mut [u8], x: &[u8]) -> Result<()> {
    let Resize { y: down, x: across, channels, kind, nearest } = resize;
    let pixel_bytes = channels * kind.bytes();
    let row = |line: usize| &x[line * across.from * pixel_bytes..][..across.from * pixel_bytes];
    for first in (0..across.to).step_by(PLACES) {
        let places = first..(first + PLACES).min(across.to);
        let (mut floats, mut parts) = ([(0, 0, 0.0); PLACES], [(0, 0, 0); PLACES]);
        for (at, (float, part)) in places.clone().zip(floats.iter_mut().zip(&mut parts)) {
            match (nearest, kind) {
                (true, _) => *part = (across.nearest(at), 0, 0),
                (_, Type::F32) => *float = across.between(at),
                _ => *part = across.between_parts(at),
            }
        }
        let lines = out.chunks_exact_mut(across.to * pixel_bytes).enumerate();
        for (number, out) in lines {
            let (at_y, batch) = (number % down.to, number / down.to);
            let out = out[first * pixel_bytes..places.end * pixel_bytes].chunks_exact_mut(pixel_bytes);
            let line = |y: usize| row(batch * down.from + y);
            if *nearest {
                let line = line(down.nearest(at_y));
                for (out, (place, ..)) in out.zip(&parts) {
                    out.copy_from_slice(&line[place * pixel_bytes..][..pixel_bytes]);
                }
            } else if *kind == Type::F32 {
                let (y0, y1, dy) = down.between(at_y);
                let lines = [line(y0), line(y1)];
                for (out, (x0, x1, dx)) in out.zip(&floats) {
                    let corners = corners(lines, [*x0, *x1], pixel_bytes).map(chunks::<4>);
                    let parts = [(1.0 - dy) * (1.0 - dx), (1.0 - dy) * dx, dy * (1.0 - dx), dy * dx];
                    blend(chunks_mut::<4>(out), corners, |of: [[u8; 4]; 4]| {
                        let sum = f(of[0]) * parts[0] + f(of[1]) * parts[1];
                        (sum + f(of[2]) * parts[2] + f(of[3]) * parts[3]).to_le_bytes()
                    });
                }
            } else {
                let (y0, y1, dy) = down.between_parts(at_y);
                let lines = [line(y0), line(y1)];
                for (out, (x0, x1, dx)) in out.zip(&parts) {
                    let corners = corners(lines, [*x0, *x1], pixel_bytes);
                    let parts = [(1024 - dy) * (1024 - dx), (1024 - dy) * dx, dy * (1024 - dx), dy * dx];
                    // As far as neighbours are apart at most, so that sums are within 32 bits.
                    if dy.abs().max(dx.abs()) <= 1024 {
                        let parts = parts.map(|part| part as i32);
                        blend(out, corners, |of: [u8; 4]| {
                            let sum = (0..4).fold(0i32, |sum, k| sum.wrapping_add(s(of[k]) * parts[k]));
                            let half = if sum > 0 { 1 << 19 } else { -(1 << 19) };
                            b(sum.wrapping_add(half) / (1 << 20))
                        });
                    } else {
                        blend_far(out, corners, parts);
                    }
                }
            }
        }
    }
    Ok(())
}

/// The pixels at two places of two lines.
#[inline(always)]
fn corners([above, below]: [&[u8]; 2], [left, right]: [usize; 2], bytes: usize) -> [&[u8]; 4] {
    let [a, b] = [left, right].map(|at| at * bytes..(at + 1) * bytes);
    [&above[a.clone()], &above[b.clone()], &below[a], &below[b]]
}

/// Makes each number of a pixel of those of four others, sixteen at once as far as they go.
#[inline(always)]
fn blend<T: Copy>(out: &mut [T], corners: [&[T]; 4], one: impl Fn([T; 4]) -> T) {
    let (blocks, rest) = out.as_chunks_mut::<16>();
    let split = corners.map(|corner| corner.as_chunks::<16>());
    for (number, out) in blocks.iter_mut().enumerate() {
        let [x, y, z, w] = split.map(|(blocks, _)| &blocks[number]);
        *out = core::array::from_fn(|lane| one([x[lane], y[lane], z[lane], w[lane]]));
    }
    for (lane, out) in rest.iter_mut().enumerate() {
        *out = one(split.map(|(_, rest)| rest[lane]));
    }
}

/// The same of bytes with parts so large that a sum needs more than 32 bits.
#[inline(never)]
fn blend_far(out: &mut [u8], corners: [&[u8]; 4], parts: [i64; 4]) {
    for (channel, out) in out.iter_mut().enumerate() {
        let sum: i64 =
            corners.iter().zip(parts).map(|(corner, part)| i64::from(s(corner[channel])) * part).sum();
        let half = if sum > 0 { 1 << 19 } else { -(1 << 19) };
        *out = b(((sum + half) / (1 << 20)) as i32);
    }
}
