//! TRANSPOSE_CONV: each element of the result gathers those of the operand whose window it lies in.

use super::conv::{Bytes, Conv, Floats, Numbers, dot, dot_bytes, numbers};
use super::window::Span;
use super::{Call, Store};
use crate::bytes::{chunks, chunks_mut, f, half, s};
use crate::error::Result;
use crate::schema::Type;

/// Checks a TRANSPOSE_CONV. Its spans are those of the convolution that it turns around: from the result to the operand.
pub fn prepare(call: &Call<'_, '_>, store: &mut Store) -> Result<Conv> {
    let (shape, weights, x, out) = (call.input(0)?, call.input(1)?, call.input(2)?, call.output(0)?);
    let shapes = [x, weights, out].map(|tensor| tensor.shape.four());
    let [Some(of_x), Some(of_weights), Some(of_out)] = shapes else {
        return call.refuse("its tensors do not have four dimensions");
    };
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
pub fn run(
    conv: &Conv,
    store: &Store,
    out: &mut [u8],
    x: &[u8],
    weights: &[u8],
    bias: Option<&[u8]>,
) -> Result<()> {
    match &conv.numbers {
        Numbers::Floats(floats) => {
            let x = chunks::<4>(x);
            match floats.weights {
                Type::F32 => run_floats(conv, floats, store, out, x, chunks::<4>(weights), f, bias),
                Type::F16 => run_floats(conv, floats, store, out, x, chunks::<2>(weights), half, bias),
                _ => run_floats(conv, floats, store, out, x, chunks::<1>(weights), |w| s(w[0]) as f32, bias),
            }
        }
        Numbers::Bytes(bytes) => run_bytes(conv, bytes, store, out, x, weights, bias),
    }
    Ok(())
}

fn run_floats<const N: usize>(
    conv: &Conv,
    floats: &Floats,
    store: &Store,
    out: &mut [u8],
    x: &[[u8; 4]],
    weights: &[[u8; N]],
    get: impl Fn([u8; N]) -> f32 + Copy,
    bias: Option<&[u8]>,
) {
    let deep = conv.deep;
    for (pixel, out) in chunks_mut::<4>(out).chunks_exact_mut(conv.out_channels).enumerate() {
        for (channel, out) in out.iter_mut().enumerate() {
            let mut sum = 0.0;
            each_tap(conv, pixel, channel, |from, tap| {
                sum += dot(&x[from..from + deep], &weights[tap..tap + deep], get);
            });
            *out = floats.finish(store, sum, bias, channel);
        }
    }
}

fn run_bytes(
    conv: &Conv,
    bytes: &Bytes,
    store: &Store,
    out: &mut [u8],
    x: &[u8],
    weights: &[u8],
    bias: Option<&[u8]>,
) {
    let deep = conv.deep;
    for (pixel, out) in out.chunks_exact_mut(conv.out_channels).enumerate() {
        for (channel, out) in out.iter_mut().enumerate() {
            let mut sum = 0i32;
            each_tap(conv, pixel, channel, |from, tap| {
                sum = sum.wrapping_add(dot_bytes(
                    &x[from..from + deep],
                    &weights[tap..tap + deep],
                    bytes.in_zero,
                ));
            });
            *out = bytes.finish(store, sum, bias, channel);
        }
    }
}

/// The place of a window whose element is here, if there is one.
fn place(span: &Span, at: usize, element: usize) -> Option<usize> {
    let from = (at + span.before).checked_sub(element)?;
    (from % span.step == 0).then_some(from / span.step).filter(|place| *place < span.places)
}

fn each_tap(conv: &Conv, pixel: usize, channel: usize, mut call: impl FnMut(usize, usize)) {
    let (at_x, rest) = (pixel % conv.x.length, pixel / conv.x.length);
    let (at_y, batch) = (rest % conv.y.length, rest / conv.y.length);
    for ky in 0..conv.y.size {
        let Some(y) = place(&conv.y, at_y, ky) else { continue };
        for kx in 0..conv.x.size {
            let Some(x) = place(&conv.x, at_x, kx) else { continue };
            let from = ((batch * conv.y.places + y) * conv.x.places + x) * conv.in_channels;
            call(from, ((channel * conv.y.size + ky) * conv.x.size + kx) * conv.deep);
        }
    }
}
