//! Turns the places that a picture's pixels come from into the picture: one resampling for all flips, shifts and turns.

use super::levels::Level;

/// From a pixel of the result to the place in the picture that it comes from. Each row holds what is multiplied by the
/// pixel's row, what is multiplied by its column, and what is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    down: [f32; 3],
    right: [f32; 3],
    /// Whether every pixel comes from the middle of one.
    is_whole: bool,
}

impl Place {
    pub const SAME: Place = Place { down: [1.0, 0.0, 0.0], right: [0.0, 1.0, 0.0], is_whole: true };

    /// Mirrored left to right, after what was done before.
    pub fn flipped(self, width: usize) -> Place {
        self.after([1.0, 0.0, 0.0], [0.0, -1.0, width as f32 - 1.0], true)
    }

    /// Moved by whole pixels.
    pub fn moved(self, down: f32, right: f32) -> Place {
        self.after([1.0, 0.0, down], [0.0, 1.0, right], true)
    }

    /// Turned around the middle.
    pub fn turned(self, radians: f32, [height, width]: [usize; 2]) -> Place {
        let (sin, cos) = radians.sin_cos();
        let (y, x) = ((height as f32 - 1.0) / 2.0, (width as f32 - 1.0) / 2.0);
        self.after([cos, sin, y - cos * y - sin * x], [-sin, cos, x + sin * y - cos * x], false)
    }

    /// A step more: pixels of its result come from `down` and `right` of what this one makes.
    fn after(self, down: [f32; 3], right: [f32; 3], is_whole: bool) -> Place {
        let through = |own: [f32; 3]| {
            let of = |at: usize| own[0] * down[at] + own[1] * right[at];
            [of(0), of(1), of(2) + own[2]]
        };
        Place { down: through(self.down), right: through(self.right), is_whole: self.is_whole && is_whole }
    }

    fn of(&self, y: usize, x: usize) -> [f32; 2] {
        [self.down, self.right].map(|row| row[0] * y as f32 + row[1] * x as f32 + row[2])
    }

    /// Takes each pixel from the one that is nearest to its place, whatever a pixel is. Beyond the edge stands the nearest pixel of
    /// the edge.
    pub fn nearest<T: Copy>(&self, from: &[T], sides: [usize; 2], out: &mut [T]) {
        let [height, width] = sides;
        let pixel = from.len() / (height * width);
        for (y, row) in out.chunks_exact_mut(width * pixel).enumerate() {
            for (x, slot) in row.chunks_exact_mut(pixel).enumerate() {
                let place = self.of(y, x);
                let [down, right] = [0, 1].map(|axis| {
                    let at = (place[axis] + 0.5).floor().max(0.0) as usize;
                    at.min(sides[axis] - 1)
                });
                slot.copy_from_slice(&from[(down * width + right) * pixel..][..pixel]);
            }
        }
    }

    /// Mixes each pixel from the four around its place, by their distance; beyond the edge stands the nearest pixel of the edge.
    pub fn resample<T: Level>(&self, from: &[T], sides: [usize; 2], out: &mut [T]) {
        if self.is_whole {
            return self.nearest(from, sides, out);
        }
        let [height, width] = sides;
        let channels = from.len() / (height * width);
        for (y, row) in out.chunks_exact_mut(width * channels).enumerate() {
            for (x, slot) in row.chunks_exact_mut(channels).enumerate() {
                let place = self.of(y, x);
                let [(top, bottom, lower), (left, other, righter)] = [0, 1].map(|axis| {
                    let most = (sides[axis] - 1) as f32;
                    let at = place[axis].clamp(0.0, most);
                    let first = at as usize;
                    (first, (first + 1).min(sides[axis] - 1), at - first as f32)
                });
                for (channel, slot) in slot.iter_mut().enumerate() {
                    let level = |y: usize, x: usize| from[(y * width + x) * channels + channel].level();
                    let across = |y: usize| level(y, left) + righter * (level(y, other) - level(y, left));
                    let (upper, under) = (across(top), across(bottom));
                    *slot = T::of(upper + lower * (under - upper));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICTURE: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];

    fn made(place: Place) -> Vec<f32> {
        let mut out = vec![0.0; 6];
        place.resample(&PICTURE, [2, 3], &mut out);
        out
    }

    #[test]
    fn flips_and_shifts_move_whole_pixels_and_repeat_the_edge() {
        assert_eq!(made(Place::SAME), PICTURE);
        assert_eq!(made(Place::SAME.flipped(3)), [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]);
        assert_eq!(made(Place::SAME.moved(1.0, 0.0)), [4.0, 5.0, 6.0, 4.0, 5.0, 6.0]);
        assert_eq!(made(Place::SAME.moved(0.0, -2.0)), [1.0, 1.0, 1.0, 4.0, 4.0, 4.0]);
        // First mirrored, then moved: the mirrored picture moves.
        assert_eq!(made(Place::SAME.flipped(3).moved(0.0, 1.0)), [2.0, 1.0, 1.0, 5.0, 4.0, 4.0]);
    }

    #[test]
    fn turns_go_around_the_middle_and_mix_neighbors() {
        let mut out = [0.0; 9];
        let picture = [0.0, 1.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0];
        Place::SAME.turned(std::f32::consts::FRAC_PI_2, [3, 3]).resample(&picture, [3, 3], &mut out);
        assert!((out[4] - 5.0).abs() < 1e-5, "{out:?}");
        // The pixel above the middle has come to stand beside it.
        assert!((out[3] - 1.0).abs() < 1e-5 || (out[5] - 1.0).abs() < 1e-5, "{out:?}");
        let same = Place::SAME.turned(0.3, [2, 3]).turned(-0.3, [2, 3]);
        for (one, other) in made(same).iter().zip(PICTURE) {
            assert!((one - other).abs() < 1e-4, "{one} {other}");
        }
        let mut classes = [0u8; 6];
        Place::SAME.turned(0.3, [2, 3]).nearest(&[1u8, 1, 7, 7, 1, 1], [2, 3], &mut classes);
        assert!(classes.iter().all(|class| [1, 7].contains(class)), "{classes:?}");
    }
}
