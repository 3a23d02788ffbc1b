//! What fast kernels are told of an operator with weights, on whatever processor.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use super::conv::Numbers;
use super::fast::Packed;
use super::store::Store;
use super::window::Span;
use crate::tensor::Tensor;

/// Weights to pack: channels of taps of rows, or taps of channels where a row is one number deep.
pub struct Weights<'w, 'a> {
    pub numbers: &'w Numbers,
    pub weights: &'w Tensor<'a>,
    pub bias: Option<&'w Tensor<'a>>,
    pub taps: usize,
    pub deep: usize,
    pub channels: usize,
    /// How many pixels the result has.
    pub pixels: usize,
}

/// In what order taps of the file are those of a window, line by line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// How many a channel has in the file.
    pub all: usize,
    /// Which of them is the window's first.
    pub first: usize,
    /// How many the window has in a line.
    pub across: usize,
    /// How far the next line and the next of a line are from there, in the file.
    pub steps: [isize; 2],
}

impl Order {
    /// All taps as they are in the file.
    pub fn plain(taps: usize) -> Self {
        Self { all: taps, first: 0, across: taps, steps: [0, 1] }
    }

    /// Where in the file a window's tap is.
    pub fn tap(&self, tap: usize) -> usize {
        let (down, right) = ((tap / self.across) as isize, (tap % self.across) as isize);
        self.first.wrapping_add_signed(down * self.steps[0] + right * self.steps[1])
    }
}

/// Where results lie, in numbers from the first on.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub first: usize,
    /// How far neighbours, lines and pictures are apart.
    pub pixel: usize,
    pub line: usize,
    pub picture: usize,
    /// Pixels of a line and lines of a picture.
    pub across: usize,
    pub down: usize,
}

impl Spread {
    /// One after the other.
    pub fn dense(pixels: usize, channels: usize) -> Self {
        Self { first: 0, pixel: channels, line: 0, picture: 0, across: pixels, down: 1 }
    }

    /// Behind the last of so many pixels, of whole lines.
    pub fn end(&self, pixels: usize, channels: usize) -> usize {
        let Some(last) = pixels.checked_sub(1) else { return 0 };
        let (line, x) = (last / self.across, last % self.across);
        let at = self.first + x * self.pixel + (line / self.down) * self.picture;
        // The last line of a picture, of which there may be several.
        at + (line.min(self.down - 1)) * self.line + channels
    }
}

/// A part of results that is computed at once: which windows give it, and where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub window: Window,
    pub spread: Spread,
    pub packed: Packed,
}

/// How results are found in their operand.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub y: Span,
    pub x: Span,
    /// Numbers of a pixel.
    pub channels: usize,
}

impl Window {
    /// Rows one after the other.
    pub fn of_rows(rows: usize, channels: usize) -> Self {
        let one = Span { length: 1, places: 1, size: 1, step: 1, dilation: 1, before: 0 };
        Self { y: Span { length: rows, places: rows, ..one }, x: one, channels }
    }
}

/// What is computed: packed weights over an operand.
pub struct Layer<'r> {
    pub packed: &'r Packed,
    pub store: &'r Store,
    pub window: Window,
    pub x: &'r [u8],
}

/// Work that is written once and compiled for several sets of instructions.
pub trait Work {
    type Result;

    /// Does it; inlined always, so that it is compiled as its caller is.
    fn run(self) -> Self::Result;
}
