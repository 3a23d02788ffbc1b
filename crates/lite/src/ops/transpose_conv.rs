//! TRANSPOSE_CONV: each element of the result gathers those of the operand whose window it lies in.

use core::ops::Range;

use super::conv::{Conv, numbers};
use super::layer::{Layer, Order, Part, Spread, Weights, Window};
use super::products::{BLOCK, Kernel, Operands, Products, Sum};
use super::window::Span;
use super::{Call, Store, fast};
use crate::error::Result;
use crate::tensor::Tensor;

/// A transposed convolution.
#[derive(Debug)]
pub struct Transposed {
    conv: Conv,
    /// Where in the store its parts are; none where weights are not packed.
    parts: Range<u32>,
}

/// The most parts that one is computed in.
const PARTS: usize = 64;

/// Checks a TRANSPOSE_CONV. Its spans are those of the convolution that it turns around: from the result to the operand.
pub fn prepare(call: &Call<'_, '_>, store: &mut Store) -> Result<Transposed> {
    let (shape, weights, x, out) = (call.input(0)?, call.input(1)?, call.input(2)?, call.output(0)?);
    let [of_x, of_weights, of_out] = call.fours([x, weights, out])?;
    let [batch, height, width, in_channels] = of_x;
    let [channels, k_height, k_width, deep] = of_weights;
    let [out_batch, out_height, out_width, out_channels] = of_out;
    // A shape that is computed is that of the file's result, or the file's shapes would not fit each other.
    if shape.constant().is_some() {
        let (numbers, count) = call.numbers::<4>(0)?;
        let same = count == 4 && numbers.iter().zip(of_out).all(|(number, dim)| *number == dim as i64);
        call.ensure(same, "its result has another shape than it asks for")?;
    }
    call.ensure(
        batch == out_batch && channels == out_channels && deep == in_channels,
        "its shapes do not fit together",
    )?;
    let padding = call.option_byte(0)?;
    let y = Span::new(call, padding, out_height, height, k_height, call.option(2, 0)?, 1)?;
    let across = Span::new(call, padding, out_width, width, k_width, call.option(1, 0)?, 1)?;
    let range = call.activation(3)?;
    let numbers = numbers(call, store, [x, weights, out], call.optional(3), (0, out_channels), range)?;
    let conv = Conv { y, x: across, in_channels, out_channels, deep, numbers, packed: None };
    Ok(Transposed::new(conv, store, weights, call.optional(3), batch))
}

impl Transposed {
    /// The one that turns a convolution around, in parts if its weights can be packed.
    pub fn new(
        conv: Conv,
        store: &mut Store,
        weights: &Tensor<'_>,
        bias: Option<&Tensor<'_>>,
        batch: usize,
    ) -> Self {
        let (packs, first) = (store.packs.len(), store.parts.len());
        if pack(&conv, store, weights, bias, batch).is_none() {
            store.forget(packs, first);
        }
        Self { conv, parts: first as u32..store.parts.len() as u32 }
    }
}

/// Packs weights in parts. Every so many results in each direction are made of the same elements of the window, so that they are a convolution
/// of their own, with a step of one.
fn pack(
    conv: &Conv,
    store: &mut Store,
    weights: &Tensor<'_>,
    bias: Option<&Tensor<'_>>,
    batch: usize,
) -> Option<()> {
    let Conv { y, x, out_channels: channels, deep, .. } = *conv;
    let line = x.length * channels;
    if y.step.saturating_mul(x.step) > PARTS {
        return None;
    }
    for (down, right) in (0..y.step).flat_map(|down| (0..x.step).map(move |right| (down, right))) {
        let ((part_y, last_y), (part_x, last_x)) = (part(&y, down)?, part(&x, right)?);
        if part_y.places == 0 || part_x.places == 0 {
            continue;
        }
        let spread = Spread {
            first: down * line + right * channels,
            pixel: x.step * channels,
            line: y.step * line,
            picture: y.length * line,
            across: part_x.places,
            down: part_y.places,
        };
        let taps = part_y.size * part_x.size;
        let pixels = batch * part_y.places * part_x.places;
        let what = Weights { numbers: &conv.numbers, weights, bias, taps, deep, channels, pixels };
        let steps = [-((y.step * x.size) as isize), -(x.step as isize)];
        let order =
            Order { all: y.size * x.size, first: last_y * x.size + last_x, across: part_x.size, steps };
        let packed = fast::pack_taps(store, &what, order)?;
        let window = Window { y: part_y, x: part_x, channels: conv.in_channels };
        store.parts.push(Part { window, spread, packed });
    }
    Some(())
}

/// The window over the operand for the results from `first` on, as far apart as the window's step, and which of its elements is the last; none
/// where no element reaches them, or the first of them lies beyond what such a window sees.
fn part(span: &Span, first: usize) -> Option<(Span, usize)> {
    let element = (first + span.before) % span.step;
    let size = span.size.checked_sub(element)?.div_ceil(span.step);
    let last = size.checked_sub(1)?;
    let before = last.checked_sub((first + span.before) / span.step)?;
    let places = span.length.saturating_sub(first).div_ceil(span.step);
    let part = Span { length: span.places, places, size, step: 1, dilation: 1, before };
    Some((part, element + last * span.step))
}

/// Computes a TRANSPOSE_CONV.
pub fn run(transposed: &Transposed, operands: Operands<'_>, out: &mut [u8]) -> Result<()> {
    let Transposed { conv, parts } = transposed;
    let Operands { store, x, .. } = operands;
    if parts.is_empty() {
        conv.numbers.run(&Gathered(conv), operands, out);
    }
    let pictures = x.len() / (conv.in_channels * conv.numbers.width()) / (conv.y.places * conv.x.places);
    for Part { window, spread, packed } in &store.parts[parts.start as usize..parts.end as usize] {
        let layer = Layer { packed, store, window: *window, x };
        let pixels = pictures * spread.down * spread.across;
        fast::run_spread(&layer, &conv.numbers, spread, pixels, out)?;
    }
    Ok(())
}

struct Gathered<'r>(&'r Conv);

impl Kernel for Gathered<'_> {
    #[inline(always)]
    fn run<P: Products>(&self, products: &P, x: &[P::X], weights: &[P::Weight], out: &mut [P::X]) {
        let (conv, deep) = (self.0, self.0.deep);
        let taps = conv.y.size * conv.x.size;
        for (pixel, out) in out.chunks_exact_mut(conv.out_channels).enumerate() {
            let (at_x, rest) = (pixel % conv.x.length, pixel / conv.x.length);
            let (at_y, batch) = (rest % conv.y.length, rest / conv.y.length);
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                let mut sums = [P::Sum::default(); BLOCK];
                // Where an element is is found once for several channels, and without a closure, which would not be compiled for the processor's
                // widest vectors.
                for ky in 0..conv.y.size {
                    let Some(y) = place(&conv.y, at_y, ky) else { continue };
                    for kx in 0..conv.x.size {
                        let Some(x_place) = place(&conv.x, at_x, kx) else { continue };
                        let from = ((batch * conv.y.places + y) * conv.x.places + x_place) * conv.in_channels;
                        let x = &x[from..from + deep];
                        for (lane, sum) in sums.iter_mut().enumerate().take(out.len()) {
                            let at = ((block * BLOCK + lane) * taps + ky * conv.x.size + kx) * deep;
                            *sum = sum.plus(products.dot(x, &weights[at..at + deep]));
                        }
                    }
                }
                for (lane, out) in out.iter_mut().enumerate() {
                    *out = products.finish(sums[lane], block * BLOCK + lane);
                }
            }
        }
    }
}

/// The place of a window whose element is here, if there is one.
#[inline(always)]
fn place(span: &Span, at: usize, element: usize) -> Option<usize> {
    let from = (at + span.before).checked_sub(element)?;
    (from % span.step == 0).then_some(from / span.step).filter(|place| *place < span.places)
}
