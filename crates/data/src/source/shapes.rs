//! Makes images of shapes on noise, and for every pixel the class of what is there: data for segmentation without a
//! download.

use plimsoll_graph::DType;
use plimsoll_graph::philox::philox4x32;

use super::{Scratch, Source};
use crate::error::Result;
use crate::sample::{FieldSpec, SampleMut};

/// Images of circles (class 1), rectangles (2) and triangles (3) on a noisy background (0).
///
/// Image `i` is a function of seed and `i` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shapes {
    /// How many images.
    pub count: u64,
    /// Pixels from top to bottom.
    pub height: usize,
    /// Pixels from left to right.
    pub width: usize,
    /// 3 for color, 1 for gray.
    pub channels: usize,
    /// Shapes on each image: from one to so many.
    pub most: u32,
    /// What tells one set of images from another.
    pub seed: u64,
}

impl Shapes {
    /// Classes of pixels.
    pub const CLASSES: usize = 4;
}

pub(crate) struct ShapesSource {
    shapes: Shapes,
    spec: Vec<FieldSpec>,
}

impl ShapesSource {
    pub fn new(shapes: Shapes) -> ShapesSource {
        let Shapes { height, width, channels, .. } = shapes;
        let x = FieldSpec::new("x", DType::F32, [height, width, channels]);
        ShapesSource { shapes, spec: vec![x, FieldSpec::new("y", DType::I64, [height, width])] }
    }
}

/// What a shape is, in pixels.
#[derive(Clone, Copy)]
enum Shape {
    Circle { y: f32, x: f32, radius: f32 },
    Rectangle { top: f32, left: f32, bottom: f32, right: f32 },
    Triangle([(f32, f32); 3]),
}

impl Shape {
    fn class(self) -> i64 {
        match self {
            Shape::Circle { .. } => 1,
            Shape::Rectangle { .. } => 2,
            Shape::Triangle(_) => 3,
        }
    }

    fn covers(self, py: f32, px: f32) -> bool {
        match self {
            Shape::Circle { y, x, radius } => (py - y) * (py - y) + (px - x) * (px - x) <= radius * radius,
            Shape::Rectangle { top, left, bottom, right } => {
                (top..=bottom).contains(&py) && (left..=right).contains(&px)
            }
            Shape::Triangle(corners) => {
                // Inside, the point lies on the same side of all three edges.
                let side = |i: usize| {
                    let ((ay, ax), (by, bx)) = (corners[i], corners[(i + 1) % 3]);
                    (bx - ax) * (py - ay) - (by - ay) * (px - ax)
                };
                let sides = [side(0), side(1), side(2)];
                sides.iter().all(|&s| s >= 0.0) || sides.iter().all(|&s| s <= 0.0)
            }
        }
    }
}

impl Source for ShapesSource {
    fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn len(&self) -> u64 {
        self.shapes.count
    }

    fn white(&self) -> Option<f32> {
        Some(1.0)
    }

    fn read(&self, index: u64, _: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let Shapes { height, width, channels, most, seed, .. } = self.shapes;
        let key = [seed as u32, (seed >> 32) as u32];
        let block = |stream: u32, block: u32| {
            let words = philox4x32([block, index as u32, (index >> 32) as u32, stream], key);
            words.map(|word| (word >> 8) as f32 / (1 << 24) as f32)
        };
        let pixels = out.get_mut::<f32>(0)?;
        for (at, pixel) in pixels.chunks_mut(4).enumerate() {
            let noise = block(0, at as u32);
            pixel.iter_mut().zip(noise).for_each(|(pixel, noise)| *pixel = 0.5 * noise);
        }
        out.get_mut::<i64>(1)?.fill(0);
        let (h, w) = (height as f32, width as f32);
        let size = h.min(w);
        let count = 1 + (block(1, 0)[0] * most.max(1) as f32) as u32;
        for shape in 0..count.min(most.max(1)) {
            let [kind, a, b, c] = block(2, 2 * shape);
            let [d, red, green, blue] = block(2, 2 * shape + 1);
            let (y, x, radius) = (a * h, b * w, size * (0.1 + 0.2 * c));
            let what = match (kind * 3.0) as u32 {
                0 => Shape::Circle { y, x, radius },
                1 => {
                    let (tall, wide) = (radius, radius * (0.5 + d));
                    Shape::Rectangle { top: y - tall, left: x - wide, bottom: y + tall, right: x + wide }
                }
                _ => {
                    let corner = |turn: f32| {
                        let angle = std::f32::consts::TAU * (d + turn);
                        (y + radius * 1.3 * angle.sin(), x + radius * 1.3 * angle.cos())
                    };
                    Shape::Triangle([corner(0.0), corner(1.0 / 3.0), corner(2.0 / 3.0)])
                }
            };
            let color = [red, green, blue].map(|value| 0.5 + 0.5 * value);
            let reach = |center: f32, most: usize| {
                let from = (center - 1.6 * radius).max(0.0) as usize;
                from..((center + 1.6 * radius + 1.0).max(0.0) as usize).min(most)
            };
            for py in reach(y, height) {
                for px in reach(x, width) {
                    if what.covers(py as f32 + 0.5, px as f32 + 0.5) {
                        let at = py * width + px;
                        out.get_mut::<i64>(1)?[at] = what.class();
                        let pixel = &mut out.get_mut::<f32>(0)?[at * channels..(at + 1) * channels];
                        pixel.iter_mut().zip(color.iter().cycle()).for_each(|(pixel, &value)| *pixel = value);
                    }
                }
            }
        }
        Ok(())
    }
}
