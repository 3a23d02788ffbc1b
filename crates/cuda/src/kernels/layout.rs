//! Ops that make or move elements without computing.

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::ops::{
    Broadcast, Concat, Full, Iota, OwnGradient, Pad, Reshape, Slice, Split, StopGradient, Transpose,
};
use plimsoll_graph::{DType, Type};
use smallvec::SmallVec;

use super::Kernel;
use super::element::too_many_axes;
use super::strided::{MAX_RANK, Strided, broadcast_strides, dense_strides};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("layout.cu");
const IOTA: &str = include_str!("iota.cu");

pub(super) type Strides = SmallVec<[usize; 8]>;

/// The source for elements of a size.
fn code(dtype: DType) -> Code<'static> {
    sized(dtype.bytes())
}

/// The source for elements of so many bytes.
pub(super) fn sized(bytes: usize) -> Code<'static> {
    let mut code = Code::of("layout", TEXT, DType::U8);
    code.head = match bytes {
        16 => "typedef Pack<u64, 2> T;\n",
        8 => "typedef u64 T;\n",
        4 => "typedef u32 T;\n",
        2 => "typedef u16 T;\n",
        _ => "typedef u8 T;\n",
    }
    .into();
    code
}

/// The bits of a value in an element type.
pub(super) fn bits(value: f64, dtype: DType) -> u64 {
    match dtype {
        DType::F64 => value.to_bits(),
        DType::F32 => u64::from((value as f32).to_bits()),
        DType::BF16 => u64::from(round_bits((value as f32).to_bits())),
        DType::F16 => u64::from(half_bits(value as f32)),
        DType::I64 => value as i64 as u64,
        DType::I32 => u64::from(value as i32 as u32),
        DType::I16 => u64::from(value as i16 as u16),
        DType::I8 => u64::from(value as i8 as u8),
        DType::U32 => u64::from(value as u32),
        DType::U16 => u64::from(value as u16),
        DType::U8 => u64::from(value as u8),
        DType::Bool => u64::from(value != 0.0),
    }
}

/// The upper half of an f32's bits, rounded to nearest even.
fn round_bits(bits: u32) -> u16 {
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// An f32 as IEEE half precision, rounded to nearest even.
fn half_bits(value: f32) -> u16 {
    let (bits, sign) = (value.to_bits(), (value.to_bits() >> 16 & 0x8000) as u16);
    let size = bits & 0x7fff_ffff;
    match size {
        0x7f80_0001.. => sign | 0x7e00,
        0x477f_f000.. => sign | 0x7c00,
        0x3880_0000.. => sign | ((size.wrapping_add(0xc800_0fff).wrapping_add(size >> 13 & 1)) >> 13) as u16,
        _ => sign | (f32::from_bits(size) * 16_777_216.0).round_ties_even() as u16,
    }
}

/// Fills memory with a value of an element type.
///
/// # Safety
/// The memory must be the device's, of `n` elements.
pub(super) unsafe fn fill(cuda: &Cuda, dtype: DType, n: usize, at: *mut u8, value: f64) -> Result<(), Error> {
    if n == 0 {
        return Ok(());
    }
    let args = Args::new().int(n).at(at).int(bits(value, dtype) as usize);
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code(dtype), "fill", Grid::each(n), &args) }
}

/// Turns a dense matrix of rows and columns.
///
/// # Safety
/// Both must be live memory of the device, of as many elements.
pub(super) unsafe fn turn(
    cuda: &Cuda,
    dtype: DType,
    [rows, columns]: [usize; 2],
    from: *mut u8,
    to: *mut u8,
) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    unsafe { turn_batch(cuda, dtype, [1, rows, columns], from, to) }
}

unsafe fn turn_batch(
    cuda: &Cuda,
    dtype: DType,
    [batch, rows, columns]: [usize; 3],
    from: *mut u8,
    to: *mut u8,
) -> Result<(), Error> {
    let args = Args::new().int(rows).int(columns).int(0).at(from).at(to);
    let tiles = rows.div_ceil(32) * columns.div_ceil(32);
    let grid = Grid::tiles(tiles, batch, 1, 256);
    let mut code = code(dtype);
    code.head += "#define TURNED 1\n";
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code, "turn", grid, &args) }
}

/// Moves elements: for every index of `lengths`, from one place to another.
///
/// # Safety
/// All places must be within live memory of the device.
pub(super) unsafe fn move_elements(
    cuda: &Cuda,
    dtype: DType,
    lengths: &[usize],
    from: (*mut u8, &Strides),
    to: (*mut u8, &Strides),
) -> Result<(), Error> {
    let n: usize = lengths.iter().product();
    if n == 0 {
        return Ok(());
    }
    let joined = Strided::new(lengths, &[from.1.clone(), to.1.clone()]);
    if joined.is_dense(0) && joined.is_dense(1) {
        // SAFETY: the caller's promise.
        return unsafe { cuda.copy(to.0, from.0, n * dtype.bytes()) };
    }
    if let Some((batch, rows, columns)) = turned(&joined) {
        // SAFETY: the caller's promise.
        return unsafe { turn_batch(cuda, dtype, [batch, rows, columns], from.0, to.0) };
    }
    if joined.rank() > MAX_RANK {
        return Err(too_many_axes(&lengths.into()));
    }
    let (joined, bytes) = in_larger_pieces(joined, dtype.bytes(), from.0, to.0);
    let n: usize = joined.lengths.iter().product();
    let args = Args::new()
        .int(n)
        .at(from.0)
        .at(to.0)
        .int(joined.rank())
        .ints(joined.lengths.iter().copied(), MAX_RANK, 1)
        .ints(joined.strides[0].iter().copied(), MAX_RANK, 0)
        .ints(joined.strides[1].iter().copied(), MAX_RANK, 0);
    let mut code = sized(bytes);
    code.head += if n < 1 << 31 { "typedef u32 Index;\n" } else { "typedef i64 Index;\n" };
    code.head += &format!("#define RANK {}\n", joined.rank());
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code, "move", Grid::each(n), &args) }
}

/// The same move by pieces of up to sixteen bytes, where rows, strides and addresses are whole numbers of them.
fn in_larger_pieces(mut joined: Strided, bytes: usize, from: *mut u8, to: *mut u8) -> (Strided, usize) {
    let last = joined.rank() - 1;
    if joined.strides.iter().any(|s| s[last] != 1) {
        return (joined, bytes);
    }
    let fits = |&piece: &usize| {
        let even = |elements: usize| (elements * bytes).is_multiple_of(piece);
        even(joined.lengths[last])
            && joined.strides.iter().all(|s| s[..last].iter().all(|&step| even(step)))
            && [from, to].iter().all(|&at| (at as usize).is_multiple_of(piece))
    };
    let Some(piece) = [16, 8, 4, 2].into_iter().filter(|&p| p > bytes).find(fits) else {
        return (joined, bytes);
    };
    joined.lengths[last] = joined.lengths[last] * bytes / piece;
    joined
        .strides
        .iter_mut()
        .for_each(|s| s[..last].iter_mut().for_each(|step| *step = *step * bytes / piece));
    (joined, piece)
}

/// The batch, rows and columns of dense matrices that are only turned, if that is what the move does.
fn turned(joined: &Strided) -> Option<(usize, usize, usize)> {
    let (lengths, from, to) = (&joined.lengths, &joined.strides[0], &joined.strides[1]);
    let (batch, rest) = match lengths.len() {
        2 => (1, 0),
        3 => (lengths[0], 1),
        _ => return None,
    };
    let (a, b) = (lengths[rest], lengths[rest + 1]);
    let is_batch = rest == 0 || (from[0] == a * b && to[0] == a * b);
    // The result is dense, so index (i, j) goes to i · b + j; it comes from j · a + i.
    let is_turned = to[rest] == b && to[rest + 1] == 1 && from[rest] == 1 && from[rest + 1] == a;
    (is_batch && is_turned && batch < 65536 && a.min(b) >= 8).then_some((batch, b, a))
}

/// An address a number of elements further.
fn beyond(x: &Operand<'_>, elements: usize) -> *mut u8 {
    x.ptr.wrapping_add(elements * x.ty.dtype.bytes())
}

impl Kernel for Full {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let y = call.outputs[0];
        // SAFETY: the caller's promise.
        unsafe { fill(cuda, y.ty.dtype, y.ty.elements(), y.ptr, self.value.0) }
    }
}

impl Kernel for Iota {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let y = call.outputs[0];
        let n = y.ty.elements();
        if n == 0 {
            return Ok(());
        }
        let inner: usize = y.ty.shape[self.axis + 1..].iter().product();
        let args = Args::new().int(n).at(y.ptr).int(y.ty.shape[self.axis]).int(inner);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&Code::of("iota", IOTA, y.ty.dtype), "iota", Grid::each(n), &args) }
    }
}

impl Kernel for Broadcast {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (call.inputs[0], call.outputs[0]);
        let from = broadcast_strides(&x.ty.shape, &y.ty.shape);
        let to = dense_strides(&y.ty.shape);
        // SAFETY: the caller's promise.
        unsafe { move_elements(cuda, x.ty.dtype, &y.ty.shape, (x.ptr, &from), (y.ptr, &to)) }
    }
}

macro_rules! views {
    ($( $op:ident, )+) => { $(
        impl Kernel for $op {
            unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
                let (x, y) = (call.inputs[0], call.outputs[0]);
                if x.ptr == y.ptr {
                    return Ok(());
                }
                // SAFETY: the caller's promise.
                unsafe { cuda.copy(y.ptr, x.ptr, x.ty.bytes()) }
            }
        }
    )+ };
}
views! { Reshape, StopGradient, OwnGradient, }

impl Kernel for Transpose {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (call.inputs[0], call.outputs[0]);
        let own = x.ty.shape.strides();
        let from: Strides = self.0.iter().map(|&axis| own[axis]).collect();
        let to = dense_strides(&y.ty.shape);
        // SAFETY: the caller's promise.
        unsafe { move_elements(cuda, x.ty.dtype, &y.ty.shape, (x.ptr, &from), (y.ptr, &to)) }
    }
}

impl Kernel for Slice {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (call.inputs[0], call.outputs[0]);
        let own = x.ty.shape.strides();
        let start = self.0.iter().zip(&own).map(|(r, s)| r.start * s).sum();
        let from: Strides = self.0.iter().zip(&own).map(|(r, s)| r.step * s).collect();
        let to = dense_strides(&y.ty.shape);
        let first = beyond(&x, start);
        // SAFETY: the caller's promise; the ranges lie within x.
        unsafe { move_elements(cuda, x.ty.dtype, &y.ty.shape, (first, &from), (y.ptr, &to)) }
    }
}

impl Kernel for Pad {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (call.inputs[0], call.outputs[0]);
        let own = y.ty.shape.strides();
        let start = self.axes.iter().zip(&own).map(|(p, s)| p.low * s).sum();
        let to: Strides = self.axes.iter().zip(&own).map(|(p, s)| (p.inner + 1) * s).collect();
        let from = dense_strides(&x.ty.shape);
        // SAFETY: the caller's promise; what is padded lies within y.
        unsafe {
            fill(cuda, y.ty.dtype, y.ty.elements(), y.ptr, self.value.0)?;
            move_elements(cuda, x.ty.dtype, &x.ty.shape, (x.ptr, &from), (beyond(&y, start), &to))
        }
    }
}

/// Elements and the strides in which they lie.
type Lying<'a> = (*mut u8, &'a Strides);

/// Moves elements between pieces and their places one after the other along an axis of a whole. `ends` says from which of the two to
/// which.
///
/// # Safety
/// As for [`Kernel::run`]; the pieces lie within the whole.
unsafe fn each_piece(
    cuda: &Cuda,
    whole: &Operand<'_>,
    pieces: &[Operand<'_>],
    axis: usize,
    ends: impl for<'a> Fn(Lying<'a>, Lying<'a>) -> (Lying<'a>, Lying<'a>),
) -> Result<(), Error> {
    let (strides, mut start) = (dense_strides(&whole.ty.shape), 0);
    for piece in pieces {
        let own = dense_strides(&piece.ty.shape);
        let (from, to) = ends((beyond(whole, start * strides[axis]), &strides), (piece.ptr, &own));
        // SAFETY: the caller's promise.
        unsafe { move_elements(cuda, whole.ty.dtype, &piece.ty.shape, from, to) }?;
        start += piece.ty.shape[axis];
    }
    Ok(())
}

impl Kernel for Concat {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { each_piece(cuda, &call.outputs[0], call.inputs, self.axis, |place, piece| (piece, place)) }
    }
}

impl Kernel for Split {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { each_piece(cuda, &call.inputs[0], call.outputs, self.axis, |place, piece| (place, piece)) }
    }
}

/// The elements that a type's outermost axes before `axis` and after it make.
pub(super) fn around(ty: &Type, axis: usize) -> (usize, usize) {
    (ty.shape[..axis].iter().product(), ty.shape[axis + 1..].iter().product())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_bits_of_their_type() {
        for value in [0.0, 1.0, -2.5, 0.1, 65504.0, 65520.0, 1e-7, 6e-5, f64::INFINITY, 3.0e38] {
            assert_eq!(
                bits(value, DType::F16),
                u64::from(half::f16::from_f32(value as f32).to_bits()),
                "{value}"
            );
            assert_eq!(
                bits(value, DType::BF16),
                u64::from(half::bf16::from_f32(value as f32).to_bits()),
                "{value}"
            );
        }
        assert_eq!(bits(-1.0, DType::I64), u64::MAX);
        assert_eq!(bits(7.0, DType::Bool), 1);
    }

    #[test]
    fn a_matrix_that_is_only_turned_is_seen() {
        let strides = [SmallVec::from_slice(&[1, 16]), SmallVec::from_slice(&[32, 1])];
        assert_eq!(turned(&Strided::new(&[16, 32], &strides)), Some((1, 32, 16)));
        let strides = [SmallVec::from_slice(&[1, 17]), SmallVec::from_slice(&[32, 1])];
        assert_eq!(turned(&Strided::new(&[16, 32], &strides)), None);
    }
}
