//! Turns the levels of pixels into others: brightness, contrast, saturation, holes.

use crate::sample::Number;

/// A number that is the level of a pixel.
pub(super) trait Level: Number {
    fn level(self) -> f32;
    fn of(level: f32) -> Self;
}

impl Level for f32 {
    fn level(self) -> f32 {
        self
    }

    fn of(level: f32) -> f32 {
        level
    }
}

impl Level for u8 {
    fn level(self) -> f32 {
        f32::from(self)
    }

    fn of(level: f32) -> u8 {
        // The conversion keeps to 0 and 255.
        (level + 0.5) as u8
    }
}

/// How bright a pixel looks.
fn gray<T: Level>(pixel: &[T]) -> f32 {
    match *pixel {
        [r, g, b] => 0.299 * r.level() + 0.587 * g.level() + 0.114 * b.level(),
        [one, ..] => one.level(),
        [] => 0.0,
    }
}

/// Multiplies brightness, contrast (distance from the picture's mean) and saturation (distance from gray), in this order. Where
/// the level of white is known, nothing becomes darker than black or lighter than white.
pub(super) fn color<T: Level>(
    pixels: &mut [T],
    channels: usize,
    [brightness, contrast, saturation]: [f32; 3],
    white: Option<f32>,
) {
    let count = (pixels.len() / channels).max(1);
    let sum: f64 = pixels.chunks_exact(channels).map(|pixel| f64::from(gray(pixel))).sum();
    let mean = brightness * (sum / count as f64) as f32;
    let limited = |level: f32| white.map_or(level, |white| level.clamp(0.0f32.min(white), white.max(0.0)));
    for pixel in pixels.chunks_exact_mut(channels) {
        // Gray is a weighted mean of the channels, so it takes part in the first two changes as they do.
        let gray = mean + (brightness * gray(pixel) - mean) * contrast;
        for slot in pixel {
            let level = mean + (brightness * slot.level() - mean) * contrast;
            *slot = T::of(limited(gray + (level - gray) * saturation));
        }
    }
}

/// Makes a square black, as far as it lies inside the picture.
pub(super) fn cut<T: Level>(
    pixels: &mut [T],
    sides: [usize; 2],
    channels: usize,
    side: usize,
    middle: [usize; 2],
) {
    let [rows, columns] = [0, 1].map(|axis| {
        let first = (middle[axis] + side).saturating_sub(side + side / 2);
        first..(middle[axis] + side - side / 2).min(sides[axis])
    });
    for y in rows {
        let row = y * sides[1];
        pixels[(row + columns.start) * channels..(row + columns.end) * channels].fill(T::of(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_are_scaled_around_black_mean_and_gray_and_stay_colors() {
        let mut pixels = [0.2f32, 0.4, 0.6, 0.8];
        color(&mut pixels, 1, [1.0, 2.0, 1.0], Some(1.0));
        for (level, expected) in pixels.iter().zip([0.0, 0.3, 0.7, 1.0]) {
            assert!((level - expected).abs() < 1e-6, "{pixels:?}");
        }
        let mut pixels = [100u8, 0, 0];
        color(&mut pixels, 3, [1.0, 1.0, 0.0], Some(255.0));
        assert_eq!(pixels, [30, 30, 30]);
        let mut pixels = [100u8, 200, 3];
        color(&mut pixels, 3, [2.0, 1.0, 1.0], Some(255.0));
        assert_eq!(pixels, [200, 255, 6]);
        let mut pixels = [-3.0f32, 9.0];
        color(&mut pixels, 1, [2.0, 1.0, 1.0], None);
        assert_eq!(pixels, [-6.0, 18.0]);
    }

    #[test]
    fn a_hole_is_a_square_inside_the_picture() {
        let mut pixels = [1u8; 25];
        cut(&mut pixels, [5, 5], 1, 3, [2, 2]);
        assert_eq!(pixels.iter().filter(|&&level| level == 0).count(), 9);
        assert_eq!(pixels[12], 0);
        let mut pixels = [1u8; 25];
        cut(&mut pixels, [5, 5], 1, 3, [0, 4]);
        assert_eq!(pixels.iter().filter(|&&level| level == 0).count(), 4);
        assert_eq!(pixels[4], 0);
    }
}
