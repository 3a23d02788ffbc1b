//! Turns the front of an image file into its size and what decoding it will take.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::jpeg::{Frame, Grid, Part, adobe};
use super::{Format, Orientation, Scale, bmp, exif, no_image};
use crate::{FileError, Result};

/// Fronts of files that hold all there is to know, except for JPEG.
const FRONT: usize = 128;
/// A JPEG with more segments before its pixels than this is none.
const SEGMENTS_MOST: usize = 1024;

/// What the header of an image says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The format of the file.
    pub format: Format,
    /// Pixels from top to bottom, as stored.
    pub height: usize,
    /// Pixels from left to right, as stored.
    pub width: usize,
    /// How the photo must be turned to stand upright.
    pub orientation: Orientation,
    /// Bytes that decoding takes at most, the pixels included, beside those of the file.
    pub decode_bytes: u64,
    /// How a JPEG is decoded at less than its size, if it can be.
    grid: Option<Grid>,
}

impl Probe {
    /// Reads the header of a file.
    pub fn of_file(path: &Path) -> Result<Probe> {
        let file = File::open(path).map_err(|error| FileError::io(path, error))?;
        Probe::read(&mut BufReader::with_capacity(4 << 10, file), path)
    }

    /// Reads the header from the front of `input`; `file` is the name for errors.
    pub fn read(input: &mut (impl Read + Seek), file: &Path) -> Result<Probe> {
        let io = |error| FileError::io(file, error);
        let mut front = Vec::with_capacity(FRONT);
        input.by_ref().take(FRONT as u64).read_to_end(&mut front).map_err(io)?;
        let format = Format::of(&front).ok_or_else(|| no_image(file))?;
        let early = || FileError::damaged(file, "the image ends in its header");
        if format == Format::Jpeg {
            input.seek(SeekFrom::Start(2)).map_err(io)?;
            return jpeg(input, file);
        }
        let (width, height, samples) = sides(format, &front).ok_or_else(early)?;
        let pixels = (width as u64).saturating_mul(height as u64);
        // Pixels as they are decoded, and what lies beside them meanwhile.
        let decode_bytes = match format {
            Format::Png => pixels.saturating_mul(samples) + 8 * width as u64 + (256 << 10),
            Format::Gif => pixels.saturating_mul(4) + (64 << 10),
            Format::Bmp => pixels.saturating_mul(3),
            Format::Webp | Format::Jpeg => pixels.saturating_mul(9) + (256 << 10),
        };
        Ok(Probe { format, height, width, orientation: Orientation::UPRIGHT, decode_bytes, grid: None })
    }

    /// At which size [`super::decode_for`] decodes it for a picture of `to` rows and columns, and the bytes that this takes.
    pub fn decoded_for(&self, to: [usize; 2]) -> (Scale, u64) {
        let scale = Scale::least([self.height, self.width], to);
        match self.grid {
            Some(grid) if scale != Scale::WHOLE => (scale, grid.bytes(scale.eighths())),
            _ => (Scale::WHOLE, self.decode_bytes),
        }
    }

    /// How many pixels it has.
    pub fn pixels(&self) -> u64 {
        (self.width as u64).saturating_mul(self.height as u64)
    }
}

/// Width, height, and bytes of a pixel while it is decoded.
fn sides(format: Format, front: &[u8]) -> Option<(usize, usize, u64)> {
    let big = |at: usize| Some(u32::from_be_bytes(front.get(at..at + 4)?.try_into().ok()?) as usize);
    let two = |at: usize| Some(usize::from(u16::from_le_bytes(front.get(at..at + 2)?.try_into().ok()?)));
    let three = |at: usize| Some(two(at)? | usize::from(*front.get(at + 2)?) << 16);
    match format {
        // Every color becomes three bytes, with transparency four.
        Format::Png => Some((big(16)?, big(20)?, 4)),
        Format::Gif => Some((two(6)?, two(8)?, 4)),
        Format::Bmp => bmp::Header::read(front).map(|header| (header.width, header.height, 3)),
        Format::Webp => match front.get(12..16)? {
            b"VP8X" => Some((three(24)? + 1, three(27)? + 1, 9)),
            b"VP8L" => {
                let bits = two(21)? | two(23)? << 16;
                Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1, 9))
            }
            b"VP8 " => Some((two(26)? & 0x3fff, two(28)? & 0x3fff, 9)),
            _ => None,
        },
        Format::Jpeg => None,
    }
}

/// Follows the segments of a JPEG to its pixels.
fn jpeg(input: &mut (impl Read + Seek), file: &Path) -> Result<Probe> {
    let io = |error| FileError::io(file, error);
    let damaged = |what: &str| FileError::damaged(file, format!("the JPEG is not readable: {what}"));
    let (mut orientation, mut transform) = (Orientation::UPRIGHT, None);
    let mut frame: Option<Frame> = None;
    for _ in 0..SEGMENTS_MOST {
        let mut head = [0; 4];
        input.read_exact(&mut head[..2]).map_err(io)?;
        while head[..2] == [0xff, 0xff] {
            input.read_exact(&mut head[1..2]).map_err(io)?;
        }
        input.read_exact(&mut head[2..]).map_err(io)?;
        let [0xff, marker, high, low] = head else { return Err(damaged("a segment does not begin with FF")) };
        let length = (usize::from(high) << 8 | usize::from(low)).max(2) - 2;
        let is_frame = matches!(marker, 0xc0..=0xcf) && ![0xc4, 0xc8, 0xcc].contains(&marker);
        if !is_frame && ![0xe1, 0xda, 0xee].contains(&marker) {
            input.seek_relative(length as i64).map_err(io)?;
            continue;
        }
        let mut body = vec![0; length];
        input.read_exact(&mut body).map_err(io)?;
        match (marker, &body[..]) {
            (0xe1, body) => {
                let found = body.strip_prefix(b"Exif\0\0").and_then(exif::read);
                orientation = found.map_or(orientation, Orientation);
            }
            (0xee, body) => transform = adobe(body).or(transform),
            (0xda, [scans, ..]) => {
                let Some(frame) = frame else { return Err(damaged("pixels come before their size")) };
                let grid = frame.grid(usize::from(*scans), transform);
                return Ok(Probe { orientation, grid, ..cost(&frame, *scans) });
            }
            (_, body) if is_frame => {
                frame = Some(Frame::read(marker, body).ok_or_else(|| damaged("a segment ends too early"))?);
            }
            _ => return Err(damaged("a segment ends too early")),
        }
    }
    Err(damaged("its pixels do not begin"))
}

/// What decoding all pixels takes.
fn cost(frame: &Frame, scans: u8) -> Probe {
    let Frame { marker, height, width, .. } = *frame;
    let parts = frame.parts();
    let (count, samples) =
        (parts.len() as u64, parts.iter().map(|part| part.across * part.down).sum::<usize>());
    let most = |side: fn(&Part) -> usize| parts.iter().map(side).max().unwrap_or(1).max(1);
    let block = (most(|part| part.across) * most(|part| part.down)) as u64;
    let pixels = width as u64 * height as u64;
    // Coefficients of two bytes are kept where components or bits of them come one after the other.
    let is_kept = matches!(marker, 0xc2 | 0xc6 | 0xca | 0xce) || u64::from(scans) != count;
    // Blocks reach over the edges.
    let padded = (width as u64 + 32) * (height as u64 + 32);
    let kept = if is_kept { 2 * padded * samples as u64 / block } else { 0 };
    let rows = 128 * (width as u64 + 32) * count.max(1);
    let decode_bytes = pixels * count.max(3) + kept + rows + (128 << 10);
    let orientation = Orientation::UPRIGHT;
    Probe { format: Format::Jpeg, height, width, orientation, decode_bytes, grid: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn probe(bytes: &[u8]) -> Result<Probe> {
        Probe::read(&mut Cursor::new(bytes), Path::new("a"))
    }

    #[test]
    fn headers_tell_sizes_and_no_damage_panics() {
        for bytes in [
            &include_bytes!("../../fixtures/gradient.jpg")[..],
            include_bytes!("../../fixtures/gradient.png"),
        ] {
            let found = probe(bytes).unwrap();
            assert_eq!((found.height, found.width, found.orientation), (8, 16, Orientation::UPRIGHT));
            assert!(found.decode_bytes >= 8 * 16 * 3);
            for at in 0..bytes.len() {
                let _ = probe(&bytes[..at]);
                for byte in [0, 0x7f, 0xff] {
                    let mut mutated = bytes.to_vec();
                    mutated[at] = byte;
                    let _ = probe(&mutated);
                }
            }
        }
        assert!(probe(b"hello").is_err());
        let gif = probe(b"GIF89a\x05\0\x03\0\0\0\0").unwrap();
        assert_eq!((gif.width, gif.height), (5, 3));
    }
}
