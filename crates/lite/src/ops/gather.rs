//! GATHER: slices of the operand along an axis, by numbers that are looked at when the model runs.

use super::Call;
use crate::error::{Error, Result};
use crate::model::Node;
use crate::schema::Type;

/// A GATHER.
#[derive(Debug)]
pub struct Gather {
    outer: usize,
    length: usize,
    picks: usize,
    /// Bytes of a slice.
    inner: usize,
    wide: bool,
}

/// Checks a GATHER.
pub fn prepare(call: &Call<'_, '_>) -> Result<Gather> {
    let (x, out) = call.moved()?;
    let picks = call.input(1)?;
    call.ensure(matches!(picks.kind, Type::I32 | Type::I64), "its numbers are neither int32 nor int64")?;
    let axis = call.some(x.shape.axis(call.option(0, 0)?), "its axis is not there")?;
    let batches = call.option(1, 0)?;
    let (dims, dims_picks) = (x.shape.dims(), picks.shape.dims());
    let batches = usize::try_from(batches).ok().filter(|count| *count <= axis && *count <= dims_picks.len());
    let batches = call.some(batches, "its batch dimensions do not fit")?;
    call.ensure(dims[..batches] == dims_picks[..batches], "its batches do not fit together")?;
    let expected = dims[..axis].iter().chain(&dims_picks[batches..]).chain(&dims[axis + 1..]);
    call.ensure(expected.eq(out.shape.dims()), "its result has another shape")?;
    Ok(Gather {
        outer: dims[batches..axis].iter().product(),
        length: dims[axis],
        picks: dims_picks[batches..].iter().product(),
        inner: dims[axis + 1..].iter().product::<usize>() * x.kind.bytes(),
        wide: picks.kind == Type::I64,
    })
}

/// Computes a GATHER.
pub fn run(gather: &Gather, node: &Node, out: &mut [u8], x: &[u8], picks: &[u8]) -> Result<()> {
    let &Gather { outer, length, picks: count, inner, wide } = gather;
    let width = if wide { 8 } else { 4 };
    for (number, out) in out.chunks_exact_mut(inner).enumerate() {
        let (pick, rest) = (number % count, number / count);
        let batch = rest / outer;
        let at = (batch * count + pick) * width;
        let mut bytes = [if picks[at + width - 1] >= 128 { 255 } else { 0 }; 8];
        bytes[..width].copy_from_slice(&picks[at..at + width]);
        let Some(pick) = usize::try_from(i64::from_le_bytes(bytes)).ok().filter(|pick| *pick < length) else {
            let why = "it was asked for a slice that its operand does not have";
            return Err(Error::Value { op: node.info.name, index: node.index, why });
        };
        let from = (rest * length + pick) * inner;
        out.copy_from_slice(&x[from..from + inner]);
    }
    Ok(())
}
