//! Turns a JPEG into a picture of a half, a quarter or an eighth of its size in each direction, without ever holding it whole.
//!
//! A block of 8 × 8 samples is decoded from its lowest frequencies alone to 4 × 4, 2 × 2 or 1; colors that are stored at half the
//! size are decoded to twice as many, so that nothing is enlarged again.

use super::super::{Encoded, Scale, Size, check, exif, fit, unreadable};
use super::bits::{Bits, Codes};
use super::frame::{Frame, Grid};
use super::transform::{self, Weights};
use crate::Result;

/// Places of coefficients in the order in which they are coded.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// All that stands before the pixels.
#[derive(Default)]
struct Head {
    frame: Option<Frame>,
    adobe: Option<u8>,
    /// Tables of quantization in the order of the codes.
    steps: [Option<[f32; 64]>; 4],
    /// Tables of codes, of means and of the others.
    codes: [[Option<Box<Codes>>; 4]; 2],
    /// Units between restarts, or 0.
    restart: usize,
    /// By component: the numbers of its tables of codes.
    chosen: Vec<[usize; 2]>,
    /// Where the coded bytes begin.
    scan: usize,
    /// Whether a table is none.
    is_damaged: bool,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Head> {
        let mut head = Head::default();
        for (marker, body, end) in exif::segments(bytes) {
            match marker {
                0xc4 => head.is_damaged |= head.read_codes(body).is_none(),
                0xdb => head.is_damaged |= head.read_steps(body).is_none(),
                0xdd => match body {
                    [high, low, ..] => head.restart = usize::from(*high) << 8 | usize::from(*low),
                    _ => head.is_damaged = true,
                },
                0xee => head.adobe = adobe(body).or(head.adobe),
                0xc0..=0xcf if ![0xc8, 0xcc].contains(&marker) => {
                    head.frame = Some(Frame::read(marker, body)?);
                }
                0xda => {
                    let (count, list) = body.split_first()?;
                    let list = list.get(..2 * usize::from(*count))?;
                    let parts = head.frame?.parts().to_vec();
                    let mut pairs = parts.iter().zip(list.chunks_exact(2));
                    head.is_damaged |= !pairs.all(|(part, of)| part.id == of[0]);
                    let tables = list.chunks_exact(2).map(|of| [of[1] >> 4 & 3, of[1] & 3].map(usize::from));
                    head.chosen = tables.collect();
                    head.scan = end;
                    return Some(head);
                }
                _ => {}
            }
        }
        None
    }

    fn read_codes(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((class, rest)) = body.split_first() {
            let (codes, len) = Codes::read(rest)?;
            *self.codes.get_mut(usize::from(class >> 4))?.get_mut(usize::from(class & 15))? =
                Some(Box::new(codes));
            body = &rest[len..];
        }
        Some(())
    }

    fn read_steps(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((class, rest)) = body.split_first() {
            let wide = usize::from(class >> 4 != 0) + 1;
            let list = rest.get(..64 * wide)?;
            let step = |of: &[u8]| of.iter().fold(0.0, |sum, &byte| 256.0 * sum + f32::from(byte));
            let mut steps = [0.0; 64];
            steps.iter_mut().zip(list.chunks_exact(wide)).for_each(|(to, of)| *to = step(of));
            *self.steps.get_mut(usize::from(class & 15))? = Some(steps);
            body = &rest[64 * wide..];
        }
        Some(())
    }
}

/// The transform of colors that an Adobe segment names.
pub fn adobe(body: &[u8]) -> Option<u8> {
    body.strip_prefix(b"Adobe").and_then(|rest| rest.get(6)).copied()
}

/// A component while it is decoded.
struct Plane<'a> {
    /// Blocks in a unit: across and down.
    across: usize,
    down: usize,
    steps: [f32; 64],
    codes: (&'a Codes, &'a Codes),
    before: i32,
    wide: Weights,
    high: Weights,
    /// The samples of a row of units.
    strip: Vec<u8>,
}

impl Plane<'_> {
    /// Decodes the blocks of the unit at column `unit` of the strip; without `is_wanted` they are read and left out.
    fn unit(&mut self, bits: &mut Bits<'_>, unit: usize, stride: usize, is_wanted: bool) -> Option<()> {
        let [rows, columns] = [self.high.side, self.wide.side];
        for down in 0..self.down {
            for across in 0..self.across {
                let mut values = [0.0; 64];
                let mut is_flat = true;
                bits.block(self.codes, &mut self.before, |place, value| {
                    let to = usize::from(ZIGZAG[place]);
                    if to / 8 < rows && to % 8 < columns {
                        values[to] = value as f32 * self.steps[place];
                        is_flat &= place == 0;
                    }
                })?;
                if !is_wanted {
                    continue;
                }
                let at = down * rows * stride + (unit * self.across + across) * columns;
                let out = &mut self.strip[at..];
                match is_flat {
                    true => transform::flat(values[0], &self.high, &self.wide, stride, out),
                    false => transform::block(&values, &self.high, &self.wide, stride, out),
                }
            }
        }
        Some(())
    }
}

/// Decodes an image at the least scale that is enough for `to` rows and columns. None where that is the whole, and where it cannot be scaled, as
/// its [`Frame::grid`] says.
pub fn decode(image: &Encoded<'_>, to: [usize; 2], pixels: &mut Vec<u8>) -> Result<Option<(Size, [f64; 2])>> {
    let Encoded { bytes, file, channels, limit } = *image;
    let damaged = unreadable(file, "JPEG");
    let Some((frame, head)) = Head::read(bytes).and_then(|head| Some((head.frame?, head))) else {
        return Ok(None);
    };
    let scale = Scale::least([frame.height, frame.width], to);
    let grid = frame.grid(head.chosen.len(), head.adobe).filter(|_| scale != Scale::WHOLE);
    let Some(grid) = grid else { return Ok(None) };
    check(file, frame.width, frame.height, limit)?;
    if head.is_damaged {
        return Err(damaged(&"a table that stands before its pixels is none"));
    }
    let side = scale.eighths();
    let mut planes = planes(&head, &frame, &grid, side)
        .ok_or_else(|| damaged(&"a table that its pixels need is missing"))?;
    let [height, width] = grid.size(side);
    fit(pixels, height * width * channels);
    let mut bits = Bits::new(&bytes[head.scan..]);
    let [rows, columns] = grid.units();
    let [strip_rows, stride] = grid.strip(side);
    let (mut left, mut restarts) = (head.restart, 0);
    for row in 0..rows {
        for unit in 0..columns {
            if head.restart > 0 && left == 0 {
                bits.restart(restarts).ok_or_else(|| damaged(&"a restart is missing"))?;
                (left, restarts) = (head.restart, (restarts + 1) % 8);
                planes.iter_mut().for_each(|plane| plane.before = 0);
            }
            left = left.saturating_sub(1);
            for (number, plane) in planes.iter_mut().enumerate() {
                let done = plane.unit(&mut bits, unit, stride, number == 0 || channels > 1);
                done.ok_or_else(|| damaged(&"its pixels have a code that is none"))?;
            }
        }
        if bits.is_overrun() {
            return Err(damaged(&"it ends within its pixels"));
        }
        let first = row * strip_rows;
        let out = pixels.chunks_exact_mut(width * channels).skip(first).take(strip_rows);
        for (at, out) in out.enumerate() {
            color(&planes, at * stride, out, channels);
        }
    }
    Ok(Some((Size { height, width, channels }, scale.part([frame.height, frame.width]))))
}

fn planes<'a>(head: &'a Head, frame: &Frame, grid: &Grid, side: usize) -> Option<Vec<Plane<'a>>> {
    let [rows, stride] = grid.strip(side);
    let plane = |(part, chosen): (&super::frame::Part, &[usize; 2])| {
        // Blocks of a picture with one component stand one after the other, whatever it says of them.
        let (across, down) = if grid.parts == 1 { (1, 1) } else { (part.across, part.down) };
        Some(Plane {
            across,
            down,
            steps: (*head.steps.get(part.table)?)?,
            codes: (head.codes[0][chosen[0]].as_deref()?, head.codes[1][chosen[1]].as_deref()?),
            before: 0,
            wide: Weights::new(side * grid.across / across),
            high: Weights::new(side * grid.down / down),
            strip: vec![0; rows * stride],
        })
    };
    frame.parts().iter().zip(&head.chosen).map(plane).collect()
}

/// Writes a row of pixels from the samples at `at` of each component.
fn color(planes: &[Plane<'_>], at: usize, out: &mut [u8], channels: usize) {
    let [y, colors @ ..] = planes else { return };
    let y = &y.strip[at..];
    let ([u, v], 3) = (colors, channels) else {
        out.chunks_exact_mut(channels).zip(y).for_each(|(pixel, &level)| pixel.fill(level));
        return;
    };
    let (u, v) = (&u.strip[at..], &v.strip[at..]);
    for (((pixel, &y), &u), &v) in out.chunks_exact_mut(3).zip(y).zip(u).zip(v) {
        let [y, u, v] = [i32::from(y), i32::from(u) - 128, i32::from(v) - 128];
        // The matrix of JFIF in 65536ths, rounded.
        let red = y + ((91_881 * v + 32_768) >> 16);
        let green = y - ((22_554 * u + 46_802 * v + 32_768) >> 16);
        let blue = y + ((116_130 * u + 32_768) >> 16);
        pixel.copy_from_slice(&[red, green, blue].map(|level| level.clamp(0, 255) as u8));
    }
}
