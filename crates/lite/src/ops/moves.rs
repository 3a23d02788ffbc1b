//! Operators that move elements and compute nothing: one strided copy does most of them.

use super::{Call, Kind};
use crate::bytes::chunks;
use crate::error::{Error, Result};
use crate::model::{Model, Node};
use crate::schema::{Code, Type};
use crate::tensor::{MAX_RANK, Shape, strides};

/// One of each of six dimensions.
pub type Six<T> = [T; MAX_RANK];

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
    pub dims: Six<usize>,
    pub from: (isize, Six<isize>),
    pub to: (isize, Six<isize>),
    pub width: usize,
    /// What is written everywhere before.
    pub fill: Option<[u8; 8]>,
}

impl Move {
    /// Whether no element is read or written outside of so many.
    pub fn fits(&self, read: usize, written: usize) -> bool {
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
    let (x, out) = call.moved()?;
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
    let (x, out) = call.moved()?;
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

/// Moves elements.
pub fn run(moved: &Move, out: &mut [u8], x: &[u8]) -> Result<()> {
    let width = moved.width;
    match &moved.fill {
        Some(fill) if fill[..width].iter().all(|byte| *byte == fill[0]) => out.fill(fill[0]),
        Some(fill) => out.chunks_exact_mut(width).for_each(|to| to.copy_from_slice(&fill[..width])),
        None => {}
    }
    if moved.dims.contains(&0) {
        return Ok(());
    }
    // Elements that lie side by side in both are copied as one.
    let (mut dims, mut run) = (moved.dims, width);
    for axis in (0..MAX_RANK).rev() {
        let neighbours = [moved.from.1[axis], moved.to.1[axis]] == [(run / width) as isize; 2];
        if !neighbours && dims[axis] != 1 {
            break;
        }
        run *= core::mem::replace(&mut dims[axis], 1);
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
