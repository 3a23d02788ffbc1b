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
