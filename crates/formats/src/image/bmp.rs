//! Turns BMP files without compression into pixels: 1, 4 and 8 bits with a palette, 16, 24 and 32 bits of color.
//!
//! Written by hand: a page of format.

use super::{Encoded, Size, check, fit, recolor};
use crate::{FileError, Result};

/// What the header says.
pub(super) struct Header {
    pub width: usize,
    pub height: usize,
    is_top_down: bool,
    bits: usize,
    compression: u32,
    /// Where the palette begins, bytes of an entry, entries.
    palette: (usize, usize, usize),
    masks: [u32; 3],
    start: usize,
}

fn two(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn four(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Header {
    /// Reads a header; nothing where it ends too early.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let (start, size) = (four(bytes, 10)? as usize, four(bytes, 14)? as usize);
        if size == 12 {
            let (width, height) = (two(bytes, 18)?.into(), two(bytes, 20)?.into());
            let bits: usize = two(bytes, 24)?.into();
            let entries = if bits <= 8 { 1 << bits } else { 0 };
            let palette = (26, 3, entries);
            let (is_top_down, compression, masks) = (false, 0, [0; 3]);
            return Some(Header { width, height, is_top_down, bits, compression, palette, masks, start });
        }
        let (width, height) = (four(bytes, 18)? as i32, four(bytes, 22)? as i32);
        let (bits, compression): (usize, u32) = (two(bytes, 28)?.into(), four(bytes, 30)?);
        let said = four(bytes, 46)? as usize;
        let entries = match bits {
            1..=8 if said == 0 => 1 << bits,
            1..=8 => said.min(256),
            _ => 0,
        };
        let masks = match (compression, bits) {
            (3 | 6, _) => [four(bytes, 54)?, four(bytes, 58)?, four(bytes, 62)?],
            (_, 16) => [0x7c00, 0x03e0, 0x001f],
            _ => [0x00ff_0000, 0x0000_ff00, 0x0000_00ff],
        };
        Some(Header {
            width: width.unsigned_abs() as usize,
            height: height.unsigned_abs() as usize,
            is_top_down: height < 0,
            bits,
            compression,
            palette: (14 + size, 4, entries),
            masks,
            start,
        })
    }
}

pub fn decode(image: &Encoded<'_>, pixels: &mut Vec<u8>) -> Result<Size> {
    let Encoded { bytes, file, channels, limit } = *image;
    let early = || FileError::damaged(file, "the BMP is not readable: it ends too early");
    let header = Header::read(bytes).ok_or_else(early)?;
    let Header { width, height, bits, compression, masks, .. } = header;
    check(file, width, height, limit)?;
    let is_known = matches!((bits, compression), (1 | 4 | 8 | 24, 0) | (16 | 32, 0 | 3 | 6));
    if !is_known {
        let what =
            format!("a BMP of {bits} bits a pixel in compression {compression} is not read; save it as PNG");
        return Err(FileError::unsupported(file, what));
    }
    let line = (width * bits).div_ceil(32) * 4;
    let (at, entry, entries) = header.palette;
    let palette = bytes.get(at..at.saturating_add(entry * entries)).ok_or_else(early)?;
    let body = bytes.get(header.start..).and_then(|rest| rest.get(..line * height)).ok_or_else(early)?;
    fit(pixels, width * height * 3);
    pixels.fill(0);
    for (row, input) in body.chunks_exact(line).enumerate() {
        let row = if header.is_top_down { row } else { height - 1 - row };
        let output = &mut pixels[row * width * 3..][..width * 3];
        for (column, pixel) in output.chunks_exact_mut(3).enumerate() {
            match bits {
                1 | 4 | 8 => {
                    let place = column * bits;
                    let mask = ((1u16 << bits) - 1) as u8;
                    let number = usize::from(input[place / 8] >> (8 - bits - place % 8) & mask);
                    let Some([blue, green, red, ..]) = palette.get(entry * number..) else {
                        let what = format!("the BMP is not readable: it has no color {number}");
                        return Err(FileError::damaged(file, what));
                    };
                    pixel.copy_from_slice(&[*red, *green, *blue]);
                }
                24 => {
                    pixel.copy_from_slice(&[input[column * 3 + 2], input[column * 3 + 1], input[column * 3]])
                }
                _ => {
                    let wide = bits / 8;
                    let mut word = [0; 4];
                    word[..wide].copy_from_slice(&input[column * wide..][..wide]);
                    let word = u32::from_le_bytes(word);
                    pixel.iter_mut().zip(masks).for_each(|(pixel, mask)| *pixel = level(word, mask));
                }
            }
        }
    }
    recolor(pixels, 3, channels);
    Ok(Size { height, width, channels })
}

/// The bits of `word` under a mask as a level from 0 to 255.
fn level(word: u32, mask: u32) -> u8 {
    let shift = mask.trailing_zeros().min(31);
    let most = u64::from(mask >> shift).max(1);
    ((u64::from((word & mask) >> shift) * 255 + most / 2) / most) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of 40 bytes, then whatever follows.
    fn bmp(width: i32, height: i32, bits: u16, palette: &[u8], body: &[u8]) -> Vec<u8> {
        let mut bytes = b"BM\0\0\0\0\0\0\0\0".to_vec();
        bytes.extend((54 + palette.len() as u32).to_le_bytes());
        bytes.extend(40u32.to_le_bytes());
        bytes.extend(width.to_le_bytes());
        bytes.extend(height.to_le_bytes());
        bytes.extend([1, 0]);
        bytes.extend(bits.to_le_bytes());
        bytes.extend([0; 16]);
        bytes.extend((palette.len() as u32 / 4).to_le_bytes());
        bytes.extend([0; 4]);
        [&bytes, palette, body].concat()
    }

    fn read(bytes: &[u8]) -> Result<Vec<u8>> {
        let mut pixels = Vec::new();
        decode(&Encoded { bytes, file: "a.bmp".as_ref(), channels: 3, limit: 1 << 16 }, &mut pixels)
            .map(|_| pixels)
    }

    #[test]
    fn every_depth_is_read_from_the_bottom_up_or_the_top_down() {
        // Two rows of two: blue, green over red, white. Rows are filled up to four bytes.
        let (blue, green, red, white) = ([255, 0, 0], [0, 255, 0], [0, 0, 255], [255; 3]);
        let rows = [[&red[..], &white, &[0; 2]].concat(), [&blue[..], &green, &[0; 2]].concat()];
        let expected = [0, 0, 255, 0, 255, 0, 255, 0, 0, 255, 255, 255];
        assert_eq!(read(&bmp(2, 2, 24, &[], &rows.concat())).unwrap(), expected);
        let turned = [rows[1].clone(), rows[0].clone()].concat();
        assert_eq!(read(&bmp(2, -2, 24, &[], &turned)).unwrap(), expected);
        let palette = [255, 0, 0, 0, 0, 255, 0, 0, 0, 0, 255, 0, 255, 255, 255, 0];
        assert_eq!(read(&bmp(2, 2, 8, &palette, &[2, 3, 0, 0, 0, 1, 0, 0])).unwrap(), expected);
        assert_eq!(read(&bmp(2, 2, 4, &palette, &[0x23, 0, 0, 0, 0x01, 0, 0, 0])).unwrap(), expected);
        let words: Vec<u8> =
            [0x7c00u16, 0x7fff, 0x001f, 0x03e0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(read(&bmp(2, 2, 16, &[], &words)).unwrap(), expected);
        let words: Vec<u8> =
            [0xff_0000u32, 0xff_ffff, 0xff, 0xff00].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(read(&bmp(2, 2, 32, &[], &words)).unwrap(), expected);
        assert!(read(&bmp(2, 2, 8, &palette, &[9; 8])).unwrap_err().to_string().contains("no color 9"));
        assert!(read(&bmp(2, 2, 2, &[], &[0; 99])).unwrap_err().to_string().contains("save it as PNG"));
    }

    #[test]
    fn no_truncation_and_no_mutation_panics() {
        let sound = bmp(3, 2, 8, &[7; 16], &[1; 8]);
        assert!(read(&sound).is_ok());
        for at in 0..sound.len() {
            assert!(read(&sound[..at]).is_err(), "{at}");
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut mutated = sound.clone();
                mutated[at] = byte;
                let _ = read(&mutated);
            }
        }
    }
}
