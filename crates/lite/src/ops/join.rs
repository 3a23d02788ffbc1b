//! CONCATENATION and PACK, SPLIT and UNPACK: several tensors as one, and back.

use super::Call;
use crate::error::Result;
use crate::model::{Model, Node};
use crate::schema::Code;
use crate::tensor::{Shape, Tensor};

/// Operands side by side along an axis: each gives some bytes to every row of the result.
#[derive(Debug)]
pub struct Join {
    rows: usize,
}

/// Checks a CONCATENATION or a PACK.
pub fn prepare_join(call: &Call<'_, '_>) -> Result<Join> {
    let out = call.output(0)?;
    let packs = call.info.code == Code::Pack;
    if packs {
        call.ensure(
            call.option(0, 0)? as usize == call.inputs.len(),
            "it has another number of inputs than it says",
        )?;
    } else {
        call.ensure(call.option_byte(1)? == 0, "a fused activation is not supported here")?;
    }
    let axis = call.some(out.shape.axis(call.option(usize::from(packs), 0)?), "its axis is not there")?;
    let pieces = (0..call.inputs.len()).map(|position| call.input(position));
    let whole = make_up(call, pieces, out, axis, packs)?;
    call.ensure(whole, "its operands do not make up its result")?;
    Ok(Join { rows: out.shape.dims()[..axis].iter().product() })
}

/// Whether pieces, one after the other along an axis, make up the whole.
fn make_up<'t, 'a: 't>(
    call: &Call<'_, '_>,
    mut pieces: impl Iterator<Item = Result<&'t Tensor<'a>>>,
    whole: &Tensor<'_>,
    axis: usize,
    single: bool,
) -> Result<bool> {
    let length = pieces.try_fold(0usize, |length, piece| {
        let piece = piece?;
        call.same_elements(piece, whole)?;
        Ok(length.saturating_add(piece_length(call, piece.shape, whole.shape, axis, single)?))
    })?;
    Ok(length == whole.shape.dims()[axis])
}

/// How much of an axis a piece takes; its other dimensions must be those of the whole.
fn piece_length(call: &Call<'_, '_>, piece: Shape, whole: Shape, axis: usize, single: bool) -> Result<usize> {
    let (piece, whole) = (piece.dims(), whole.dims());
    let rest = axis + usize::from(!single);
    let fits = piece.len() + usize::from(single) == whole.len()
        && piece.len() >= rest
        && piece[..axis] == whole[..axis]
        && piece[rest..] == whole[axis + 1..];
    call.ensure(fits, "the shapes of its tensors do not fit together")?;
    Ok(if single { 1 } else { piece[axis] })
}

/// Puts operands side by side.
pub fn run_join(join: &Join, model: &Model<'_>, node: &Node, arena: &mut [u8]) -> Result<()> {
    let mut start = 0;
    for position in 0..node.inputs.len() {
        let input = model.operand(node, position);
        let (out, [x]) = model.views(arena, model.result(node, 0)?, [input])?;
        let x = x.bytes()?;
        if join.rows == 0 || x.is_empty() {
            continue;
        }
        let (piece, whole) = (x.len() / join.rows, out.len() / join.rows);
        for (row, from) in out.chunks_exact_mut(whole).zip(x.chunks_exact(piece)) {
            row[start..start + piece].copy_from_slice(from);
        }
        start += piece;
    }
    Ok(())
}

/// Results side by side along an axis of the operand.
#[derive(Debug)]
pub struct Cut {
    rows: usize,
    operand: usize,
}

/// Checks a SPLIT or an UNPACK.
pub fn prepare_cut(call: &Call<'_, '_>) -> Result<Cut> {
    let unpacks = call.info.code == Code::Unpack;
    let operand = usize::from(!unpacks);
    let x = call.input(operand)?;
    let number = if unpacks {
        i64::from(call.option(1, 0)?)
    } else {
        let (axis, count) = call.numbers::<1>(0)?;
        call.ensure(count == 1, "its axis is not one number")?;
        axis[0]
    };
    let axis = call.some(x.shape.axis(number), "its axis is not there")?;
    call.ensure(
        call.option(0, 0)? as usize == call.outputs.len(),
        "it has another number of outputs than it says",
    )?;
    let pieces = (0..call.outputs.len()).map(|position| call.output(position));
    let whole = make_up(call, pieces, x, axis, unpacks)?;
    call.ensure(whole, "its results do not make up its operand")?;
    Ok(Cut { rows: x.shape.dims()[..axis].iter().product(), operand })
}

/// Cuts an operand.
pub fn run_cut(cut: &Cut, model: &Model<'_>, node: &Node, arena: &mut [u8]) -> Result<()> {
    let mut start = 0;
    for position in 0..node.outputs.len() {
        let input = model.operand(node, cut.operand);
        let (out, [x]) = model.views(arena, model.result(node, position)?, [input])?;
        let x = x.bytes()?;
        if cut.rows == 0 || out.is_empty() {
            continue;
        }
        let (piece, whole) = (out.len() / cut.rows, x.len() / cut.rows);
        for (to, row) in out.chunks_exact_mut(piece).zip(x.chunks_exact(whole)) {
            to.copy_from_slice(&row[start..start + piece]);
        }
        start += piece;
    }
    Ok(())
}
