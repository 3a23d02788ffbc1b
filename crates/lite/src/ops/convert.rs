//! QUANTIZE, DEQUANTIZE, CAST and SHAPE: numbers as other numbers.

use super::{Call, Kind, Store};
use crate::bytes::{b, chunks, chunks_mut, f, half, i};
use crate::error::Result;
use crate::model::{Model, Node};
use crate::quant::{Affine, Scale};
use crate::schema::Type;

/// Checks a QUANTIZE, of floats or of bytes with another scale.
pub fn prepare_quantize(call: &Call<'_, '_>, store: &mut Store) -> Result<Kind> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    call.ensure(x.shape == out.shape, "its result has another shape than its operand")?;
    call.ensure(matches!(out.kind, Type::I8 | Type::U8), "its result is neither int8 nor uint8")?;
    let to = call.affine(out)?;
    match x.kind {
        Type::F32 => Ok(Kind::Quantize(to, out.kind)),
        Type::I8 | Type::U8 => {
            let from = call.affine(x)?;
            let real = f64::from(from.scale) / f64::from(to.scale);
            let scale = call.some(Scale::new(real), "its scales are too far apart")?;
            let (low, high) = range(out.kind);
            let unsigned = x.kind == Type::U8;
            Ok(Kind::Table(store.add_table(|byte| {
                let byte = if unsigned { byte & 255 } else { byte };
                scale.apply(byte - from.zero).saturating_add(to.zero).clamp(low, high)
            })))
        }
        _ => call.refuse("its operand is none of float32, int8 and uint8"),
    }
}

fn range(kind: Type) -> (i32, i32) {
    if kind == Type::U8 { (0, 255) } else { (-128, 127) }
}

/// Quantizes floats.
#[inline(always)]
pub fn run_quantize(to: Affine, kind: Type, out: &mut [u8], x: &[u8]) -> Result<()> {
    let (low, high) = range(kind);
    for (out, x) in out.iter_mut().zip(chunks::<4>(x)) {
        *out = b(to.quantize(f(*x), low, high));
    }
    Ok(())
}

/// Checks a DEQUANTIZE, of bytes or of half floats.
pub fn prepare_dequantize(call: &Call<'_, '_>) -> Result<Kind> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    call.ensure(x.shape == out.shape, "its result has another shape than its operand")?;
    call.ensure(out.kind == Type::F32, "its result is not float32")?;
    match x.kind {
        Type::F16 => Ok(Kind::Dequantize(None)),
        // Weights with a scale a channel: read as they are by those who take weights, and refused for others.
        Type::I8 if x.constant().is_some() && x.scales.len() > 1 => Ok(Kind::Dequantize(None)),
        Type::I8 => Ok(Kind::Dequantize(Some(call.affine(x)?))),
        Type::U8 => call.refuse("uint8 is supported where int8 is made of it only"),
        _ => call.refuse("its operand is neither int8 nor float16"),
    }
}

/// Makes floats of bytes or half floats.
#[inline(always)]
pub fn run_dequantize(from: Option<Affine>, out: &mut [u8], x: &[u8]) -> Result<()> {
    let out = chunks_mut::<4>(out);
    match from {
        None => out.iter_mut().zip(chunks::<2>(x)).for_each(|(out, x)| *out = half(*x).to_le_bytes()),
        Some(from) => {
            out.iter_mut().zip(x).for_each(|(out, x)| *out = from.real(crate::bytes::s(*x)).to_le_bytes());
        }
    }
    Ok(())
}

/// Checks a CAST.
pub fn prepare_cast(call: &Call<'_, '_>) -> Result<Kind> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    call.ensure(x.shape == out.shape, "its result has another shape than its operand")?;
    call.ensure(x.kind != Type::F16 && out.kind != Type::F16, "float16 is supported for weights only")?;
    Ok(Kind::Cast)
}

/// Converts numbers; what is out of range becomes the nearest that is not.
pub fn run_cast(model: &Model<'_>, node: &Node, out: &mut [u8], x: &[u8]) -> Result<()> {
    let to = model.tensors[model.result(node, 0)?].kind;
    let from = model.operand(node, 0).map_or(to, |tensor| model.tensors[tensor].kind);
    for (out, x) in out.chunks_exact_mut(to.bytes()).zip(x.chunks_exact(from.bytes())) {
        let whole = match from {
            Type::F32 => None,
            Type::I32 => chunks::<4>(x).first().map(|x| i64::from(i(*x))),
            Type::I64 => chunks::<8>(x).first().map(|x| i64::from_le_bytes(*x)),
            Type::I8 => Some(i64::from(x[0] as i8)),
            Type::Bool => Some(i64::from(x[0] != 0)),
            _ => Some(i64::from(x[0])),
        };
        let real = chunks::<4>(x).first().map_or(0.0, |x| f(*x));
        match to {
            Type::F32 => out.copy_from_slice(&whole.map_or(real, |whole| whole as f32).to_le_bytes()),
            Type::Bool => out[0] = u8::from(whole.map_or(real != 0.0, |whole| whole != 0)),
            // Of whole numbers the low bytes are kept, as a cast in C keeps them.
            _ => {
                let value = whole.unwrap_or(match to {
                    Type::I8 => i64::from(real as i8),
                    Type::U8 => i64::from(real as u8),
                    Type::I32 => i64::from(real as i32),
                    _ => real as i64,
                });
                out.copy_from_slice(&value.to_le_bytes()[..to.bytes()]);
            }
        }
    }
    Ok(())
}

/// Checks a SHAPE.
pub fn prepare_shape(call: &Call<'_, '_>) -> Result<Kind> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    call.ensure(matches!(out.kind, Type::I32 | Type::I64), "its result is neither int32 nor int64")?;
    call.ensure(out.shape.count() == x.shape.dims().len(), "its result has another shape")?;
    Ok(Kind::Shape)
}

/// Writes the lengths of the operand's dimensions.
pub fn run_shape(model: &Model<'_>, node: &Node, out: &mut [u8]) -> Result<()> {
    let width = model.tensors[model.result(node, 0)?].kind.bytes();
    let shape = model.operand(node, 0).map(|tensor| model.tensors[tensor].shape).unwrap_or_default();
    for (out, dim) in out.chunks_exact_mut(width).zip(shape.dims()) {
        out.copy_from_slice(&(*dim as u64).to_le_bytes()[..width]);
    }
    Ok(())
}
