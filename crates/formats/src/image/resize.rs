//! Turns pixels of one size into pixels of another, and pixels of a camera held sideways into upright ones.

use super::{Orientation, Size, fit};

/// Bytes that [`resize`] takes beside its input and output.
pub fn resize_bytes(size: Size, height: usize, width: usize) -> u64 {
    if (size.height, size.width) == (height, width) {
        return 0;
    }
    let (across, down) = (Taps::new(size.width, width), Taps::new(size.height, height));
    let row = (width * size.channels) as u64;
    4 * (across.room() as u64 + down.room() as u64 + (size.height as u64 + 1) * row)
}

/// Resizes by a triangle filter as wide as the scale, so that shrinking averages instead of skipping pixels.
///
/// The result is in `out`; `scratch` holds the weights and the image between its two axes.
pub fn resize(
    pixels: &[u8],
    size: Size,
    height: usize,
    width: usize,
    scratch: &mut Vec<f32>,
    out: &mut [u8],
) {
    let Size { height: from_height, width: from_width, channels } = size;
    if (from_height, from_width) == (height, width) {
        out.copy_from_slice(&pixels[..out.len()]);
        return;
    }
    let (across, down) = (Taps::new(from_width, width), Taps::new(from_height, height));
    let row = width * channels;
    fit(scratch, across.room() + down.room() + from_height * row + row);
    let (x_taps, rest) = scratch.split_at_mut(across.room());
    let (y_taps, rest) = rest.split_at_mut(down.room());
    let (between, sums) = rest.split_at_mut(from_height * row);
    across.fill(x_taps);
    down.fill(y_taps);
    // First every row to its new width, kept as floats so that rounding happens once.
    for (input, output) in pixels.chunks_exact(from_width * channels).zip(between.chunks_exact_mut(row)) {
        for (taps, output) in x_taps.chunks_exact(across.stride).zip(output.chunks_exact_mut(channels)) {
            let first = taps[0] as usize * channels;
            output.fill(0.0);
            // Weights behind the last pixel are zero and meet no pixel.
            for (weight, pixel) in taps[1..].iter().zip(input[first..].chunks_exact(channels)) {
                output.iter_mut().zip(pixel).for_each(|(sum, &value)| *sum += weight * f32::from(value));
            }
        }
    }
    for (taps, output) in y_taps.chunks_exact(down.stride).zip(out.chunks_exact_mut(row)) {
        sums.fill(0.5);
        for (weight, input) in taps[1..].iter().zip(between[taps[0] as usize * row..].chunks_exact(row)) {
            sums.iter_mut().zip(input).for_each(|(sum, value)| *sum += weight * value);
        }
        output.iter_mut().zip(&*sums).for_each(|(pixel, sum)| *pixel = sum.clamp(0.0, 255.0) as u8);
    }
}

/// The weights of the old pixels that make each new pixel: a triangle around its center.
struct Taps {
    from: usize,
    to: usize,
    ratio: f32,
    /// Numbers for each new pixel: the first old pixel, then the weights from there on.
    stride: usize,
}

impl Taps {
    fn new(from: usize, to: usize) -> Taps {
        let ratio = from as f32 / to as f32;
        Taps { from, to, ratio, stride: 2 * ratio.max(1.0).ceil() as usize + 3 }
    }

    fn room(&self) -> usize {
        self.to * self.stride
    }

    fn fill(&self, taps: &mut [f32]) {
        let scale = self.ratio.max(1.0);
        for (at, taps) in taps.chunks_exact_mut(self.stride).enumerate() {
            let center = (at as f32 + 0.5) * self.ratio;
            let first = ((center - scale + 0.5).max(0.0) as usize).min(self.from - 1);
            let end = ((center + scale + 0.5) as usize).clamp(first + 1, self.from);
            let weight = |pixel: usize| (1.0 - (pixel as f32 + 0.5 - center).abs() / scale).max(0.0);
            let total = (first..end).map(weight).sum::<f32>().max(f32::MIN_POSITIVE);
            taps.fill(0.0);
            taps[0] = first as f32;
            taps[1..].iter_mut().zip(first..end).for_each(|(tap, pixel)| *tap = weight(pixel) / total);
        }
    }
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
    fn the_bytes_of_resizing_are_what_it_takes() {
        let size = Size { height: 37, width: 53, channels: 3 };
        let mut scratch = Vec::new();
        resize(&vec![9; 37 * 53 * 3], size, 11, 7, &mut scratch, &mut [0; 11 * 7 * 3]);
        assert_eq!(resize_bytes(size, 11, 7), 4 * scratch.len() as u64);
    }
}
