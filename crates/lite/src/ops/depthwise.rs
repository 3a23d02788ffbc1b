//! DEPTHWISE_CONV_2D: every channel with a window of its own.

use super::conv::{Conv, Kind, Pack};
use super::products::{BLOCK, Kernel, Operands, Products, Sum};
use super::{Call, Store, fast};
use crate::error::Result;

/// Checks a DEPTHWISE_CONV_2D.
pub fn prepare(call: &Call<'_, '_>, store: &mut Store) -> Result<Conv> {
    let operands = [call.input(0)?, call.input(1)?, call.output(0)?];
    let [[batch, .., in_channels], [one, .., channels], [out_batch, .., out_channels]] =
        call.fours(operands)?;
    call.ensure(batch == out_batch && channels == out_channels && one == 1, "its result has another shape")?;
    call.ensure(out_channels % in_channels == 0, "its weights do not fit the channels of its operand")?;
    let pack = (out_channels == in_channels).then_some(fast::pack_depthwise as Pack);
    let kind = Kind { activation: 4, axis: 3, row: 1, pack };
    kind.prepare(call, store, operands, out_channels / in_channels)
}

/// Computes a DEPTHWISE_CONV_2D.
pub fn run(conv: &Conv, operands: Operands<'_>, out: &mut [u8]) -> Result<()> {
    match &conv.packed {
        Some(packed) => fast::run_depthwise(&conv.layer(packed, operands), &conv.numbers, out),
        None => {
            conv.numbers.run(&Depthwise(conv), operands, out);
            Ok(())
        }
    }
}

struct Depthwise<'r>(&'r Conv);

impl Kernel for Depthwise<'_> {
    #[inline(always)]
    fn run<P: Products>(&self, products: &P, x: &[P::X], weights: &[P::Weight], out: &mut [P::X]) {
        let conv = self.0;
        for (pixel, out) in out.chunks_exact_mut(conv.out_channels).enumerate() {
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                let first = block * BLOCK;
                let mut sums = [P::Sum::default(); BLOCK];
                each_tap(conv, pixel, |from, tap| {
                    if conv.deep == 1 {
                        let x = &x[from + first..from + first + out.len()];
                        let weights = &weights[tap + first..tap + first + out.len()];
                        for ((sum, x), w) in sums.iter_mut().zip(x).zip(weights) {
                            *sum = sum.plus(products.product(*x, *w));
                        }
                    } else {
                        for (lane, sum) in sums.iter_mut().enumerate().take(out.len()) {
                            let channel = first + lane;
                            let x = x[from + channel / conv.deep];
                            *sum = sum.plus(products.product(x, weights[tap + channel]));
                        }
                    }
                });
                for (lane, out) in out.iter_mut().enumerate() {
                    *out = products.finish(sums[lane], first + lane);
                }
            }
        }
    }
}

/// Calls with where operand and weights of each element of the window begin, for a pixel of the result.
#[inline(always)]
fn each_tap(conv: &Conv, pixel: usize, mut call: impl FnMut(usize, usize)) {
    let (place_x, rest) = (pixel % conv.x.places, pixel / conv.x.places);
    let (place_y, batch) = (rest % conv.y.places, rest / conv.y.places);
    for ky in 0..conv.y.size {
        let Some(y) = conv.y.at(place_y, ky) else { continue };
        for kx in 0..conv.x.size {
            let Some(x) = conv.x.at(place_x, kx) else { continue };
            let from = ((batch * conv.y.length + y) * conv.x.length + x) * conv.in_channels;
            call(from, (ky * conv.x.size + kx) * conv.out_channels);
        }
    }
}
