//! Operators that move elements and compute nothing: one strided copy does most of them.

use super::{Call, Kind};
use crate::bytes::chunks;
use crate::error::{Error, Result};
use crate::model::{Model, Node};
use crate::schema::{Code, Type};
use crate::tensor::{MAX_RANK, Shape, strides};

type Six<T> = [T; MAX_RANK];

/// Walks all elements of six dimensions, the last fastest, and says where each lies under other strides.
pub struct Places<const K: usize> {
    dims: Six<usize>,
    strides: [Six<isize>; K],
    index: Six<usize>,
    at: [isize; K],
}

impl<const K: usize> Places<K> {
    /// Begins at the first element.
    pub fn new(dims: &Six<usize>, strides: [&Six<isize>; K]) -> Self {
        Self { dims: *dims, strides: strides.map(|strides| *strides), index: [0; MAX_RANK], at: [0; K] }
    }

    /// Where the element lies; then goes on to the next.
    #[inline]
    pub fn next(&mut self) -> [usize; K] {
        let now = self.at.map(|at| at as usize);
        for axis in (0..MAX_RANK).rev() {
            self.index[axis] += 1;
            let wraps = self.index[axis] >= self.dims[axis];
            for k in 0..K {
                let stride = self.strides[k][axis];
                self.at[k] += if wraps { -stride * (self.dims[axis] as isize - 1) } else { stride };
            }
            if !wraps {
                break;
            }
            self.index[axis] = 0;
        }
        now
    }
}

/// A copy of elements from one arrangement to another.
#[derive(Debug)]
pub struct Move {
    dims: Six<usize>,
    from: (isize, Six<isize>),
    to: (isize, Six<isize>),
    width: usize,
    /// What is written everywhere before.
    fill: Option<[u8; 8]>,
}

impl Move {
    /// Whether no element is read or written outside of so many.
    fn fits(&self, read: usize, written: usize) -> bool {
        let inside = |(base, strides): &(isize, Six<isize>), count: usize| {
            let (mut low, mut high) = (*base as i128, *base as i128);
            for (dim, stride) in self.dims.iter().zip(strides) {
                let reach = (*dim as i128 - 1) * *stride as i128;
                low += reach.min(0);
                high += reach.max(0);
            }
            low >= 0 && high < count as i128
        };
        self.dims.contains(&0) || inside(&self.from, read) && inside(&self.to, written)
    }
}

/// Checks an operator that gives its operand another shape.
pub fn prepare_same(call: &Call<'_, '_>) -> Result<Kind> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    call.same_type(x, out)?;
    call.same_quantization(x, out)?;
    call.ensure(
        x.shape.count() == out.shape.count(),
        "its result has another number of elements than its operand",
    )?;
    if call.info.code != Code::Reshape {
        return Ok(Kind::Same);
    }
    let Some(shape) = call.optional(1) else { return Ok(Kind::Same) };
    call.ensure(shape.kind == Type::I32, "the new shape is not int32")?;
    match shape.numbers() {
        Some(numbers) => {
            call.ensure(shape_is(numbers, &out.shape), "its result has another shape than it asks for")?;
            Ok(Kind::Same)
        }
        None => Ok(Kind::SameIfShapeIs),
    }
}

fn shape_is(numbers: impl ExactSizeIterator<Item = i64>, shape: &Shape) -> bool {
    numbers.len() == shape.dims().len()
        && numbers.zip(shape.dims()).all(|(number, dim)| number == -1 || number == *dim as i64)
}

/// Compares a shape that was computed with that of the result.
pub fn check_shape(model: &Model<'_>, node: &Node, arena: &[u8]) -> Result<()> {
    let shape = model.operand(node, 1).ok_or(Error::Bug("a shape is missing"))?;
    let numbers = chunks::<4>(model.bytes(shape, arena)?);
    let numbers = numbers.iter().map(|number| i64::from(i32::from_le_bytes(*number)));
    if shape_is(numbers, &model.tensors[model.result(node, 0)?].shape) {
        return Ok(());
    }
    let why = "the shape that the model computed is not the one that its file says; shapes cannot change";
    Err(Error::Value { op: node.info.name, index: node.index, why })
}

/// Checks an operator that moves elements of one operand.
pub fn prepare(call: &Call<'_, '_>) -> Result<Move> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    call.same_type(x, out)?;
    call.same_quantization(x, out)?;
    let from = strides(&x.shape.padded());
    let rank = x.shape.dims().len();
    let front = MAX_RANK - rank;
    let mut moved = Move {
        dims: out.shape.padded(),
        from: (0, [0; MAX_RANK]),
        to: (0, strides(&out.shape.padded())),
        width: x.kind.bytes(),
        fill: None,
    };
    match call.info.code {
        Code::Transpose => {
            let (order, count) = call.numbers::<MAX_RANK>(1)?;
            call.ensure(
                count == rank && out.shape.dims().len() == rank,
                "its order has another length than its shape",
            )?;
            let mut seen = [false; MAX_RANK];
            for axis in 0..rank {
                let old =
                    call.some(x.shape.axis(order[axis]), "its order names an axis that is not there")?;
                call.ensure(!seen[old], "its order names an axis twice")?;
                seen[old] = true;
                call.ensure(x.shape.dims()[old] == out.shape.dims()[axis], "its result has another shape")?;
                moved.from.1[front + axis] = from[front + old];
            }
        }
        Code::Slice => {
            let (begin, begins) = call.numbers::<MAX_RANK>(1)?;
            let (size, sizes) = call.numbers::<MAX_RANK>(2)?;
            call.ensure(
                begins == rank && sizes == rank && out.shape.dims().len() == rank,
                "its lists are of the wrong length",
            )?;
            for axis in 0..rank {
                let (length, dim) = (x.shape.dims()[axis] as i64, out.shape.dims()[axis] as i64);
                call.ensure((0..=length).contains(&begin[axis]), "it begins outside its operand")?;
                let size = if size[axis] == -1 { length - begin[axis] } else { size[axis] };
                call.ensure(size == dim && size <= length - begin[axis], "its result has another shape")?;
                moved.from.0 += begin[axis] as isize * from[front + axis];
                moved.from.1[front + axis] = from[front + axis];
            }
        }
        Code::StridedSlice => strided_slice(call, &mut moved)?,
        _ => {
            let [batch, height, width, channels] = call.some(
                x.shape.four().filter(|_| out.shape.four().is_some()),
                "its tensors do not have four dimensions",
            )?;
            let block = call.option(0, 0)?;
            call.ensure((1..=65_535).contains(&block), "its block is not a positive number")?;
            let b = block as usize;
            let row = (width * channels) as isize;
            let (c, sb) = (channels as isize, b as isize);
            let expected;
            if call.info.code == Code::SpaceToDepth {
                call.ensure(height % b == 0 && width % b == 0, "its block does not divide its operand")?;
                expected = Shape::new([batch, height / b, width / b, b * b * channels]);
                moved.dims = [batch, height / b, width / b, b, b, channels];
                moved.from.1 = [height as isize * row, sb * row, sb * c, row, c, 1];
            } else {
                call.ensure(channels % (b * b) == 0, "its block does not divide its channels")?;
                let deep = channels / (b * b);
                expected = Shape::new([batch, height * b, width * b, deep]);
                moved.dims = [batch, height, b, width, b, deep];
                moved.from.1 = [height as isize * row, row, sb * deep as isize, c, deep as isize, 1];
            }
            call.ensure(expected == Some(out.shape), "its result has another shape")?;
            moved.to.1 = strides(&moved.dims);
        }
    }
    call.ensure(moved.fits(x.shape.count(), out.shape.count()), "it reads outside its operand")?;
    Ok(moved)
}

fn strided_slice(call: &Call<'_, '_>, moved: &mut Move) -> Result<()> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    let ((begin, begins), (end, ends), (step, steps)) =
        (call.numbers::<MAX_RANK>(1)?, call.numbers::<MAX_RANK>(2)?, call.numbers::<MAX_RANK>(3)?);
    let rank = x.shape.dims().len();
    call.ensure(begins <= rank && ends == begins && steps == begins, "its lists are of the wrong length")?;
    let masks = [call.option(0, 0)?, call.option(1, 0)?, call.option(4, 0)?];
    call.ensure(
        call.option(2, 0)? == 0 && call.option(3, 0)? == 0,
        "an ellipsis or a new axis is not supported",
    )?;
    call.ensure(call.option_byte(5)? == 0, "ends that count from the beginnings are not supported")?;
    let has = |mask: usize, axis: usize| masks[mask] >> axis & 1 == 1;
    let from = strides(&x.shape.padded());
    let front = MAX_RANK - rank;
    let mut expected = Shape::default();
    let mut dims = [1; MAX_RANK];
    for axis in 0..rank {
        let length = x.shape.dims()[axis] as i64;
        let stride = from[front + axis];
        let (first, count, step) = if axis >= begins {
            (0, length, 1)
        } else {
            let step = step[axis];
            call.ensure(step != 0 && step.abs() <= i64::from(i32::MAX), "a step is zero")?;
            let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
            let place = |at: i64| (if at < 0 { at.saturating_add(length) } else { at }).clamp(low, high);
            let shrinks = has(2, axis);
            let first = if has(0, axis) && !shrinks {
                if step > 0 { 0 } else { length - 1 }
            } else {
                place(begin[axis])
            };
            if shrinks {
                call.ensure((0..length).contains(&first), "it picks outside its operand")?;
                (first, 1, 1)
            } else {
                let last = if has(1, axis) { if step > 0 { length } else { -1 } } else { place(end[axis]) };
                let span = if step > 0 { last - first } else { first - last };
                (first, if span <= 0 { 0 } else { (span - 1) / step.abs() + 1 }, step)
            }
        };
        moved.from.0 += first as isize * stride;
        moved.from.1[front + axis] = stride * step as isize;
        dims[front + axis] = count as usize;
        if !(axis < begins && has(2, axis)) {
            expected = call.some(
                Shape::new(expected.dims().iter().copied().chain([count as usize])),
                "its result has too many dimensions",
            )?;
        }
    }
    call.ensure(expected == out.shape, "its result has another shape than it asks for")?;
    (moved.dims, moved.to) = (dims, (0, strides(&dims)));
    Ok(())
}

/// Checks a PAD.
pub fn prepare_pad(call: &Call<'_, '_>) -> Result<Move> {
    let (x, out) = (call.input(0)?, call.output(0)?);
    call.same_type(x, out)?;
    call.same_quantization(x, out)?;
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

/// Moves elements.
pub fn run(moved: &Move, out: &mut [u8], x: &[u8]) -> Result<()> {
    let width = moved.width;
    if let Some(fill) = &moved.fill {
        out.chunks_exact_mut(width).for_each(|element| element.copy_from_slice(&fill[..width]));
    }
    if moved.dims.contains(&0) {
        return Ok(());
    }
    // Elements that lie side by side in both are copied as one.
    let (mut dims, mut run) = (moved.dims, width);
    if moved.from.1[MAX_RANK - 1] == 1 && moved.to.1[MAX_RANK - 1] == 1 || dims[MAX_RANK - 1] == 1 {
        run *= dims[MAX_RANK - 1];
        dims[MAX_RANK - 1] = 1;
    }
    let mut places = Places::new(&dims, [&moved.from.1, &moved.to.1]);
    for _ in 0..dims.iter().product() {
        let [from, to] = places.next();
        let from = from.wrapping_add_signed(moved.from.0) * width;
        let to = to.wrapping_add_signed(moved.to.0) * width;
        out[to..to + run].copy_from_slice(&x[from..from + run]);
    }
    Ok(())
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
    let (x, out) = (call.input(0)?, call.output(0)?);
    call.same_type(x, out)?;
    call.same_quantization(x, out)?;
    let before = paddings(call)?;
    let mode = call.option_byte(0)?;
    call.ensure(mode <= 1, "its mode is neither reflect nor symmetric")?;
    let (from, to) = (x.shape.padded(), out.shape.padded());
    for axis in 0..MAX_RANK {
        let most = from[axis] - 1 + usize::from(mode);
        let after = to[axis] - from[axis] - before[axis];
        call.ensure(before[axis] <= most && after <= most, "a padding is longer than what it mirrors")?;
    }
    Ok(Mirror { from, to, before, symmetric: usize::from(mode), width: x.kind.bytes() })
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
    let mut length = 0usize;
    for position in 0..call.inputs.len() {
        let x = call.input(position)?;
        call.same_type(x, out)?;
        call.same_quantization(x, out)?;
        length = length.saturating_add(piece_length(call, x.shape, out.shape, axis, packs)?);
    }
    call.ensure(length == out.shape.dims()[axis], "its operands do not make up its result")?;
    Ok(Join { rows: out.shape.dims()[..axis].iter().product() })
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
    let mut length = 0usize;
    for position in 0..call.outputs.len() {
        let out = call.output(position)?;
        call.same_type(x, out)?;
        call.same_quantization(x, out)?;
        length = length.saturating_add(piece_length(call, out.shape, x.shape, axis, unpacks)?);
    }
    call.ensure(length == x.shape.dims()[axis], "its results do not make up its operand")?;
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
