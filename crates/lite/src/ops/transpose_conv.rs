//! TRANSPOSE_CONV: each element of the result gathers those of the operand whose window it lies in.

use super::conv::{Conv, numbers};
use super::products::{BLOCK, Kernel, Operands, Products, Sum};
use super::window::Span;
use super::{Call, Store};
use crate::error::Result;

/// Checks a TRANSPOSE_CONV. Its spans are those of the convolution that it turns around: from the result to the operand.
pub fn prepare(call: &Call<'_, '_>, store: &mut Store) -> Result<Conv> {
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
    Ok(Conv { y, x: across, in_channels, out_channels, deep, numbers, packed: None })
}

/// Computes a TRANSPOSE_CONV.
pub fn run(conv: &Conv, operands: Operands<'_>, out: &mut [u8]) -> Result<()> {
    conv.numbers.run(&Transposed(conv), operands, out);
    Ok(())
}

struct Transposed<'r>(&'r Conv);

impl Kernel for Transposed<'_> {
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
