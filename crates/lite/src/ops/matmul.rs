//! BATCH_MATMUL: matrices times matrices that are both computed.

use super::conv::dot;
use super::layer::Work;
use super::moves::Places;
use super::products::{Products, Sum};
use super::{Call, fast};
use crate::bytes::{b, chunks, chunks_mut, f, s};
use crate::error::Result;
use crate::quant::{Rounding, Scale};
use crate::schema::Type;
use crate::tensor::{MAX_RANK, strides};

/// A BATCH_MATMUL: the strides of both operands along the result's dimensions, and along what is summed.
#[derive(Debug)]
pub struct Matmul {
    dims: [usize; MAX_RANK],
    strides: [[isize; MAX_RANK]; 2],
    deep: usize,
    steps: [usize; 2],
    bytes: Option<BytePairs>,
}

/// Bytes by bytes: the zero points of operands and result, and by what a sum is multiplied.
#[derive(Debug)]
pub struct BytePairs {
    pub zeros: [i32; 3],
    pub scale: Scale,
    /// Where sums are made bytes of in floats: XNNPACK takes matrices whose zero is the byte zero, and rounds halves to even; all others LiteRT
    /// computes in its own kernels, which round halves away from zero.
    pub floats: Option<(f32, Rounding)>,
}

/// One matrix times another: where they begin, and how many numbers lie between what is next to each other.
pub struct Pair<'r> {
    pub rows: usize,
    pub columns: usize,
    pub deep: usize,
    pub x: &'r [u8],
    /// Between rows of the first, and between what is summed of it.
    pub row_x: usize,
    pub step_x: usize,
    pub y: &'r [u8],
    /// Between what is summed of the second, and between its columns.
    pub step_y: usize,
    pub across: usize,
    pub bytes: Option<&'r BytePairs>,
}

/// Floats by floats.
struct FloatPairs;

const ROW: usize = MAX_RANK - 2;
const COLUMN: usize = MAX_RANK - 1;

/// How many columns of a result are summed at once.
const COLUMNS: usize = 64;

/// Checks a BATCH_MATMUL.
pub fn prepare(call: &Call<'_, '_>) -> Result<Matmul> {
    let (x, y, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
    call.same_type(x, out)?;
    call.same_type(y, out)?;
    let ranks = [x, y, out].map(|tensor| tensor.shape.dims().len());
    call.ensure(ranks.iter().all(|rank| *rank >= 2), "its operands are no matrices")?;
    let (dims_x, dims_y, dims) = (x.shape.padded(), y.shape.padded(), out.shape.padded());
    let (of_x, of_y) = (strides(&dims_x), strides(&dims_y));
    let turned = [call.option_byte(0)? != 0, call.option_byte(1)? != 0];
    let (row_x, deep_x) = if turned[0] { (COLUMN, ROW) } else { (ROW, COLUMN) };
    let (deep_y, column_y) = if turned[1] { (COLUMN, ROW) } else { (ROW, COLUMN) };
    let deep = dims_x[deep_x];
    let fits = dims_y[deep_y] == deep && dims_x[row_x] == dims[ROW] && dims_y[column_y] == dims[COLUMN];
    call.ensure(fits, "its matrices do not fit together")?;
    let mut all = [[0; MAX_RANK]; 2];
    (all[0][ROW], all[1][COLUMN]) = (of_x[row_x], of_y[column_y]);
    for axis in 0..ROW {
        for (which, (from, strides)) in [(dims_x, of_x), (dims_y, of_y)].into_iter().enumerate() {
            call.ensure(from[axis] == dims[axis] || from[axis] == 1, "its batches do not fit together")?;
            all[which][axis] = if from[axis] == 1 { 0 } else { strides[axis] };
        }
    }
    let bytes = match x.kind {
        Type::F32 => None,
        Type::I8 => {
            let (a, c, to) = (call.affine(x)?, call.affine(y)?, call.affine(out)?);
            let real = f64::from(a.scale) * f64::from(c.scale) / f64::from(to.scale);
            let scale = call.some(Scale::new(real), "its scales are too far apart")?;
            let floats =
                (c.zero == 0).then(|| (a.scale * c.scale / to.scale, Rounding::new(-128, 127, to.zero)));
            Some(BytePairs { zeros: [a.zero, c.zero, to.zero], scale, floats })
        }
        _ => return call.refuse("its type is neither float32 nor int8"),
    };
    let steps = [of_x[deep_x] as usize, of_y[deep_y] as usize];
    Ok(Matmul { dims, strides: all, deep, steps, bytes })
}

/// Computes a BATCH_MATMUL, matrix by matrix.
pub fn run(matmul: &Matmul, out: &mut [u8], x: &[u8], y: &[u8]) -> Result<()> {
    let width = if matmul.bytes.is_some() { 1 } else { 4 };
    let [rows, columns] = [matmul.dims[ROW], matmul.dims[COLUMN]];
    let mut matrices = matmul.dims;
    (matrices[ROW], matrices[COLUMN]) = (1, 1);
    let mut places = Places::new(&matrices, [&matmul.strides[0], &matmul.strides[1]]);
    for out in out.chunks_exact_mut((rows * columns * width).max(1)) {
        let [at_x, at_y] = places.next();
        let pair = Pair {
            rows,
            columns,
            deep: matmul.deep,
            x: &x[at_x * width..],
            row_x: matmul.strides[0][ROW] as usize,
            step_x: matmul.steps[0],
            y: &y[at_y * width..],
            step_y: matmul.steps[1],
            across: matmul.strides[1][COLUMN] as usize,
            bytes: matmul.bytes.as_ref(),
        };
        if !fast::run_pair(&pair, out) {
            fast::widest(Plain { pair: &pair, out });
        }
    }
    Ok(())
}

/// A matrix times another, by loops that the compiler turns into vector instructions by itself.
struct Plain<'r> {
    pair: &'r Pair<'r>,
    out: &'r mut [u8],
}

impl Work for Plain<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { pair, out } = self;
        match pair.bytes {
            None => {
                pair.multiply(&FloatPairs, chunks::<4>(pair.x), chunks::<4>(pair.y), chunks_mut::<4>(out))
            }
            Some(bytes) => pair.multiply(bytes, pair.x, pair.y, out),
        }
    }
}

impl Pair<'_> {
    #[inline(always)]
    fn multiply<P: Products>(&self, products: &P, x: &[P::X], y: &[P::Weight], out: &mut [P::X]) {
        let Self { columns, deep, row_x, step_x, step_y, across, .. } = *self;
        for (row, out) in out.chunks_exact_mut(columns.max(1)).enumerate().take(self.rows) {
            let x = &x[row * row_x..];
            if step_x == 1 && step_y == 1 {
                for (column, out) in out.iter_mut().enumerate() {
                    *out = products.finish(products.dot(&x[..deep], &y[column * across..][..deep]), column);
                }
                continue;
            }
            for (block, out) in out.chunks_mut(COLUMNS).enumerate() {
                let mut sums = [P::Sum::default(); COLUMNS];
                for k in 0..deep {
                    let (x, y) = (x[k * step_x], &y[block * COLUMNS * across + k * step_y..]);
                    let sums = sums[..out.len()].iter_mut();
                    if across == 1 {
                        // Neighbours, so that vectors are multiplied.
                        sums.zip(y).for_each(|(sum, y)| *sum = sum.plus(products.product(x, *y)));
                    } else {
                        let y = y.iter().step_by(across.max(1));
                        sums.zip(y).for_each(|(sum, y)| *sum = sum.plus(products.product(x, *y)));
                    }
                }
                for (column, (out, sum)) in out.iter_mut().zip(sums).enumerate() {
                    *out = products.finish(sum, column);
                }
            }
        }
    }
}

impl Products for FloatPairs {
    type X = [u8; 4];
    type Weight = [u8; 4];
    type Sum = f32;

    #[inline(always)]
    fn product(&self, x: [u8; 4], y: [u8; 4]) -> f32 {
        f(x) * f(y)
    }

    #[inline(always)]
    fn dot(&self, x: &[[u8; 4]], y: &[[u8; 4]]) -> f32 {
        dot(x, y, f)
    }

    #[inline(always)]
    fn finish(&self, sum: f32, _: usize) -> [u8; 4] {
        sum.to_le_bytes()
    }
}

impl Products for BytePairs {
    type X = u8;
    type Weight = u8;
    type Sum = i32;

    #[inline(always)]
    fn product(&self, x: u8, y: u8) -> i32 {
        (s(x) - self.zeros[0]) * (s(y) - self.zeros[1])
    }

    #[inline(always)]
    fn dot(&self, x: &[u8], y: &[u8]) -> i32 {
        // Bytes less zero points are within 16 bits, of which processors multiply and add pairs.
        let less = |byte: u8, zero: i32| i32::from(i16::from(byte as i8) - zero as i16);
        let products = x.iter().zip(y).map(|(x, y)| less(*x, self.zeros[0]) * less(*y, self.zeros[1]));
        products.fold(0, i32::wrapping_add)
    }

    #[inline(always)]
    fn finish(&self, sum: i32, _: usize) -> u8 {
        if let Some((scale, rounding)) = self.floats {
            return rounding.byte(sum as f32 * scale);
        }
        b(self.scale.apply(sum).saturating_add(self.zeros[2]).clamp(-128, 127))
    }
}
