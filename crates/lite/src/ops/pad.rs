//! PAD, PADV2 and MIRROR_PAD: borders around an operand.

use super::Call;
use super::moves::{Move, Six};
use crate::error::Result;
use crate::schema::{Code, Type};
use crate::tensor::{Border, MAX_RANK, Tensor, strides};

/// Checks a PAD.
pub fn prepare_pad(call: &Call<'_, '_>) -> Result<Move> {
    let (x, out) = call.moved()?;
    let before = paddings(call)?;
    let mut fill = [0; 8];
    if call.info.code == Code::PadV2 {
        let value = call.input(2)?;
        call.same_type(x, value)?;
        call.same_quantization(x, value)?;
        let bytes = call.some(value.constant(), "the value that it fills with must be in the file")?;
        call.ensure(bytes.len() == x.kind.bytes(), "the value that it fills with is not one value")?;
        fill[..bytes.len()].copy_from_slice(bytes);
    } else if matches!(x.kind, Type::I8 | Type::U8) {
        fill[0] = x.affine().map_or(0, |affine| affine.zero) as u8;
    }
    let to = strides(&out.shape.padded());
    let base = before.iter().zip(&to).map(|(before, stride)| *before as isize * stride).sum();
    let dims = x.shape.padded();
    let moved =
        Move { dims, from: (0, strides(&dims)), to: (base, to), width: x.kind.bytes(), fill: Some(fill) };
    call.ensure(moved.fits(x.shape.count(), out.shape.count()), "it writes outside its result")?;
    Ok(moved)
}

/// The border of zeros around pictures that a PAD adds, if it adds nothing else.
pub fn border(pad: &Move, x: &Tensor<'_>, out: &Tensor<'_>) -> Option<Border> {
    let zero = if x.kind == Type::I8 { x.affine()?.zero as u8 } else { 0 };
    let mut fill = [0; 8];
    fill[0] = zero;
    let ([batch, height, width, channels], [out_batch, out_height, out_width, out_channels]) =
        x.shape.four().zip(out.shape.four())?;
    if pad.fill != Some(fill) || batch != out_batch || channels != out_channels {
        return None;
    }
    // What is before the first element, in lines and pixels of the result.
    let first = usize::try_from(pad.to.0).ok()? / channels;
    let (top, left) = (first / out_width, first % out_width);
    Some([[top, out_height - height - top], [left, out_width - width - left]])
}

/// How much is added before each of six dimensions; what is added behind must make up the result's shape.
fn paddings(call: &Call<'_, '_>) -> Result<Six<usize>> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    let (numbers, count) = call.numbers::<{ 2 * MAX_RANK }>(1)?;
    let rank = x.shape.dims().len();
    call.ensure(count == 2 * rank && out.shape.dims().len() == rank, "its paddings are of the wrong length")?;
    let mut before = [0; MAX_RANK];
    for axis in 0..rank {
        let (front, back) = (numbers[2 * axis], numbers[2 * axis + 1]);
        let range = 0..=i64::from(i32::MAX);
        call.ensure(range.contains(&front) && range.contains(&back), "a padding is negative")?;
        let length = x.shape.dims()[axis] as i64 + front + back;
        call.ensure(length == out.shape.dims()[axis] as i64, "its result has another shape")?;
        before[MAX_RANK - rank + axis] = front as usize;
    }
    Ok(before)
}

/// A MIRROR_PAD.
#[derive(Debug)]
pub struct Mirror {
    from: Six<usize>,
    to: Six<usize>,
    before: Six<usize>,
    /// One where the border itself is repeated.
    symmetric: usize,
    width: usize,
}

/// Checks a MIRROR_PAD.
pub fn prepare_mirror(call: &Call<'_, '_>) -> Result<Mirror> {
    let (x, out) = call.moved()?;
    let before = paddings(call)?;
    let mode = call.option_byte(0)?;
    call.ensure(mode <= 1, "its mode is neither reflect nor symmetric")?;
    let (mut from, mut to) = (x.shape.padded(), out.shape.padded());
    for axis in 0..MAX_RANK {
        let most = from[axis] - 1 + usize::from(mode);
        let after = to[axis] - from[axis] - before[axis];
        call.ensure(before[axis] <= most && after <= most, "a padding is longer than what it mirrors")?;
    }
    // What lies side by side in both is one element.
    let mut width = x.kind.bytes();
    for axis in (0..MAX_RANK).rev() {
        if from[axis] != to[axis] {
            break;
        }
        width *= from[axis];
        (from[axis], to[axis]) = (1, 1);
    }
    Ok(Mirror { from, to, before, symmetric: usize::from(mode), width })
}

/// Computes a MIRROR_PAD.
pub fn run_mirror(mirror: &Mirror, out: &mut [u8], x: &[u8]) -> Result<()> {
    let strides = strides(&mirror.from);
    let width = mirror.width;
    for (number, element) in out.chunks_exact_mut(width).enumerate() {
        let (mut rest, mut from) = (number, 0);
        for axis in (0..MAX_RANK).rev() {
            let at = rest % mirror.to[axis];
            rest /= mirror.to[axis];
            let (before, length) = (mirror.before[axis], mirror.from[axis]);
            let inside = if at < before {
                before - at - mirror.symmetric
            } else if at - before < length {
                at - before
            } else {
                2 * length - 2 + mirror.symmetric - (at - before)
            };
            from += inside * strides[axis] as usize;
        }
        element.copy_from_slice(&x[from * width..(from + 1) * width]);
    }
    Ok(())
}
