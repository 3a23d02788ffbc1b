//! Turns pixels of one size into pixels of another, and pixels of a camera held sideways into upright ones.

use std::path::Path;

use plimsoll_resize::Triangle;

use super::{Orientation, Size};
use crate::{FileError, Result};

/// Resizes by a triangle filter as wide as the scale, so that shrinking averages instead of skipping pixels. It is the filter that
/// Pillow calls bilinear and TensorFlow bilinear with `antialias`; rounding is to the nearest level after each axis.
///
/// It keeps the room that one image took for the next.
///
/// ```
/// use plimsoll_formats::image::{Resizer, Size};
///
/// let mut half = [0; 2];
/// let size = Size { height: 1, width: 4, channels: 1 };
/// Resizer::default().resize(&[0, 100, 100, 200], size, [1, 2], "cat.png".as_ref(), &mut half)?;
/// assert_eq!(half, [57, 143]);
/// # Ok::<(), plimsoll_formats::FileError>(())
/// ```
#[derive(Default)]
pub struct Resizer(Triangle);

impl Resizer {
    /// Bytes that resizing an image of `size` takes beside its input and output.
    pub fn bytes(size: Size, [height, width]: [usize; 2]) -> u64 {
        if (size.height, size.width) == (height, width) {
            return 0;
        }
        between_bytes(size, height) as u64 + taps_bytes(size.width, width) + taps_bytes(size.height, height)
    }

    /// Resizes `pixels` to `height` rows of `width` pixels in `out`; `file` is the name for errors.
    ///
    /// # Errors
    /// There are fewer pixels than `size` says, or `out` is not as long as the result.
    pub fn resize(
        &mut self,
        pixels: &[u8],
        size: Size,
        to: [usize; 2],
        file: &Path,
        out: &mut [u8],
    ) -> Result<()> {
        self.resize_part(pixels, size, [size.height as f64, size.width as f64], to, file, out)
    }

    /// The same of the first rows and columns alone, `part` of them, which may be fractions: a picture that is decoded at an eighth of
    /// its size ends within its last pixels.
    ///
    /// # Errors
    /// As for [`Resizer::resize`]; or the part is larger than the picture.
    pub fn resize_part(
        &mut self,
        pixels: &[u8],
        size: Size,
        part: [f64; 2],
        [height, width]: [usize; 2],
        file: &Path,
        out: &mut [u8],
    ) -> Result<()> {
        let wrong = |what: &dyn std::fmt::Display| {
            let Size { height: rows, width: columns, channels } = size;
            let what = format!(
                "{rows} × {columns} × {channels} pixels cannot be resized to {height} × {width}: {what}"
            );
            FileError::unsupported(file, what)
        };
        let side = |n: usize| u32::try_from(n).map_err(|error| wrong(&error));
        let from = [side(size.width)?, side(size.height)?];
        let to = [side(width)?, side(height)?];
        // A buffer that grows may become twice as long as is needed; one that is made anew does not.
        if self.0.kept_bytes() < between_bytes(size, height) {
            self.0.forget();
        }
        self.0.resize(pixels, from, size.channels, part, to, out).map_err(|why| wrong(&why))
    }
}

/// Bytes of the image between its two axes: it has its new height already, and a pixel more for alignment.
fn between_bytes(size: Size, height: usize) -> usize {
    (size.width * height + 1) * size.channels
}

/// Bytes of the weights along an axis: as numbers of 8 bytes, and as small lists of 2 bytes with what the allocator adds.
fn taps_bytes(from: usize, to: usize) -> u64 {
    let taps = 2 * (from as f64 / to as f64).max(1.0).ceil() as u64 + 1;
    to as u64 * (8 * taps + 8 + 32 + 2 * taps + 32)
}

/// Resizes without mixing: each new pixel is the old one at its center. For pixels that are numbers of classes.
pub fn resize_nearest(pixels: &[u8], size: Size, height: usize, width: usize, out: &mut [u8]) {
    let from = |at: usize, to: usize, have: usize| ((2 * at + 1) * have / (2 * to)).min(have - 1);
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
    for ((y, x), pixel) in places.zip(out.chunks_exact_mut(size.channels)) {
        let at = (from(y, height, size.height) * size.width + from(x, width, size.width)) * size.channels;
        pixel.copy_from_slice(&pixels[at..at + size.channels]);
    }
}

/// Turns and mirrors the pixels of a picture as its camera says; `height` and `width` are those of the result.
pub fn turn(
    pixels: &[u8],
    orientation: Orientation,
    height: usize,
    width: usize,
    channels: usize,
    out: &mut [u8],
) {
    let from_width = if orientation.swaps_axes() { height } else { width };
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
    for ((y, x), pixel) in places.zip(out.chunks_exact_mut(channels)) {
        let (down, right) = (height - 1 - y, width - 1 - x);
        let (from_y, from_x) = match orientation.0 {
            2 => (y, right),
            3 => (down, right),
            4 => (down, x),
            5 => (x, y),
            6 => (right, y),
            7 => (right, down),
            8 => (x, down),
            _ => (y, x),
        };
        let at = (from_y * from_width + from_x) * channels;
        pixel.copy_from_slice(&pixels[at..at + channels]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_never_mixed_by_resizing() {
        let size = Size { height: 2, width: 2, channels: 1 };
        let mut out = [0; 16];
        resize_nearest(&[1, 2, 3, 9], size, 4, 4, &mut out);
        assert_eq!(out, [1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 9, 9, 3, 3, 9, 9]);
        let mut out = [0; 1];
        resize_nearest(
            &[1, 2, 3, 9, 5, 6, 7, 8, 4],
            Size { height: 3, width: 3, channels: 1 },
            1,
            1,
            &mut out,
        );
        assert_eq!(out, [5]);
    }

    #[test]
    fn every_orientation_is_turned_upright() {
        // What EXIF says of the stored rows and columns, from the table of the standard: the upright picture is abc/def.
        let stored: [(u8, &[u8], usize); 8] = [
            (1, b"abcdef", 3),
            (2, b"cbafed", 3),
            (3, b"fedcba", 3),
            (4, b"defabc", 3),
            (5, b"adbecf", 2),
            (6, b"cfbead", 2),
            (7, b"fcebda", 2),
            (8, b"daebfc", 2),
        ];
        for (number, pixels, _) in stored {
            let mut out = [0; 6];
            turn(pixels, Orientation(number), 2, 3, 1, &mut out);
            assert_eq!(&out, b"abcdef", "{number}");
        }
    }

    #[test]
    fn the_room_that_is_kept_is_what_was_declared_for_the_largest() {
        let mut resizer = Resizer::default();
        let mut most = 0;
        for (height, width, to) in [(37, 53, [11, 7]), (90, 20, [10, 9]), (37, 53, [12, 7]), (9, 9, [9, 9])] {
            let size = Size { height, width, channels: 3 };
            most = most.max(Resizer::bytes(size, to));
            let mut out = vec![0; to[0] * to[1] * 3];
            resizer.resize(&vec![9; height * width * 3], size, to, Path::new("a"), &mut out).unwrap();
            assert!(out.iter().all(|&level| level == 9));
            let kept = resizer.0.kept_bytes() as u64;
            assert!(kept <= most, "{kept} of {most} bytes");
        }
    }

    #[test]
    fn pixels_that_are_not_there_are_an_error() {
        let size = Size { height: 3, width: 3, channels: 1 };
        let resize = |pixels: &[u8], out: &mut [u8]| {
            Resizer::default().resize(pixels, size, [2, 2], Path::new("cat.png"), out)
        };
        let short = resize(&[0; 8], &mut [0; 4]).unwrap_err().to_string();
        assert!(short.starts_with("cat.png: 3 × 3 × 1 pixels cannot be resized to 2 × 2"), "{short}");
        assert!(resize(&[0; 9], &mut [0; 3]).is_err());
        assert!(resize(&[0; 9], &mut [0; 4]).is_ok());
    }
}
