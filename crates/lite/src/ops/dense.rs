//! FULLY_CONNECTED: rows times rows of weights.

use super::conv::{Numbers, numbers};
use super::layer::{Layer, Weights, Window};
use super::products::{Kernel, Operands, Products};
use super::{Call, Store, fast};
use crate::error::Result;

/// A FULLY_CONNECTED.
#[derive(Debug)]
pub struct Dense {
    rows: usize,
    deep: usize,
    channels: usize,
    numbers: Numbers,
    packed: Option<fast::Packed>,
}

/// Checks a FULLY_CONNECTED.
pub fn prepare(call: &Call<'_, '_>, store: &mut Store) -> Result<Dense> {
    let (x, weights, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
    let &[channels, deep] = weights.shape.dims() else { return call.refuse("its weights are no matrix") };
    call.ensure(call.option_byte(1)? == 0, "its weights are stored in an order of their own")?;
    let rows = x.shape.count() / deep;
    call.ensure(rows * deep == x.shape.count(), "its weights do not fit its operand")?;
    let fits = out.shape.dims().last() == Some(&channels) && out.shape.count() == rows * channels;
    call.ensure(fits, "its result has another shape")?;
    let range = call.activation(0)?;
    let numbers = numbers(call, store, [x, weights, out], call.optional(2), (0, channels), range)?;
    let bias = call.optional(2);
    let what = Weights { numbers: &numbers, weights, bias, taps: 1, deep, channels, pixels: rows };
    let packed = fast::pack(store, &what);
    Ok(Dense { rows, deep, channels, numbers, packed })
}

/// Computes a FULLY_CONNECTED.
pub fn run(dense: &Dense, operands: Operands<'_>, out: &mut [u8]) -> Result<()> {
    match &dense.packed {
        Some(packed) => {
            let window = Window::of_rows(dense.rows, dense.deep);
            let layer = Layer { packed, store: operands.store, window, x: operands.x };
            fast::run(&layer, &dense.numbers, out)
        }
        None => {
            dense.numbers.run(dense, operands, out);
            Ok(())
        }
    }
}

impl Kernel for Dense {
    #[inline(always)]
    fn run<P: Products>(&self, products: &P, x: &[P::X], weights: &[P::Weight], out: &mut [P::X]) {
        for (x, out) in x.chunks_exact(self.deep).zip(out.chunks_exact_mut(self.channels)) {
            for (channel, out) in out.iter_mut().enumerate() {
                let row = &weights[channel * self.deep..(channel + 1) * self.deep];
                *out = products.finish(products.dot(x, row), channel);
            }
        }
    }
}
