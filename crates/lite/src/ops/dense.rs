//! FULLY_CONNECTED and BATCH_MATMUL: rows times rows.

use super::conv::{Numbers, dot, numbers};
use super::layer::{Layer, Weights, Window};
use super::moves::Places;
use super::products::{Kernel, Operands, Products};
use super::{Call, Store, fast};
use crate::bytes::{b, chunks, chunks_mut, f, s};
use crate::error::Result;
use crate::quant::Scale;
use crate::schema::Type;
use crate::tensor::{MAX_RANK, strides};

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
    fn run<P: Products>(&self, products: &P, x: &[P::X], weights: &[P::Weight], out: &mut [P::Out]) {
        for (x, out) in x.chunks_exact(self.deep).zip(out.chunks_exact_mut(self.channels)) {
            for (channel, out) in out.iter_mut().enumerate() {
                let row = &weights[channel * self.deep..(channel + 1) * self.deep];
                *out = products.finish(products.dot(x, row), channel);
            }
        }
    }
}

/// A BATCH_MATMUL: the strides of both operands along the result's dimensions, and along what is summed.
#[derive(Debug)]
pub struct Matmul {
    dims: [usize; MAX_RANK],
    strides: [[isize; MAX_RANK]; 2],
    deep: usize,
    steps: [usize; 2],
    bytes: Option<MatmulBytes>,
}

#[derive(Debug)]
struct MatmulBytes {
    zeros: [i32; 3],
    scale: Scale,
}

/// Checks a BATCH_MATMUL.
pub fn prepare_matmul(call: &Call<'_, '_>) -> Result<Matmul> {
    let (x, y, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
    call.same_type(x, out)?;
    call.same_type(y, out)?;
    let ranks = [x, y, out].map(|tensor| tensor.shape.dims().len());
    call.ensure(ranks.iter().all(|rank| *rank >= 2), "its operands are no matrices")?;
    const ROW: usize = MAX_RANK - 2;
    const COLUMN: usize = MAX_RANK - 1;
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
            Some(MatmulBytes { zeros: [a.zero, c.zero, to.zero], scale })
        }
        _ => return call.refuse("its type is neither float32 nor int8"),
    };
    let steps = [of_x[deep_x] as usize, of_y[deep_y] as usize];
    Ok(Matmul { dims, strides: all, deep, steps, bytes })
}

/// Computes a BATCH_MATMUL.
pub fn run_matmul(matmul: &Matmul, out: &mut [u8], x: &[u8], y: &[u8]) -> Result<()> {
    let mut places = Places::new(&matmul.dims, [&matmul.strides[0], &matmul.strides[1]]);
    let [step_x, step_y] = matmul.steps;
    match &matmul.bytes {
        None => {
            let (x, y) = (chunks::<4>(x), chunks::<4>(y));
            for out in chunks_mut::<4>(out) {
                let [at_x, at_y] = places.next();
                let sum = if step_x == 1 && step_y == 1 {
                    dot(&x[at_x..at_x + matmul.deep], &y[at_y..at_y + matmul.deep], f)
                } else {
                    (0..matmul.deep).map(|k| f(x[at_x + k * step_x]) * f(y[at_y + k * step_y])).sum()
                };
                *out = sum.to_le_bytes();
            }
        }
        Some(MatmulBytes { zeros, scale }) => {
            for out in out {
                let [at_x, at_y] = places.next();
                let sum = (0..matmul.deep).fold(0i32, |sum, k| {
                    let (x, y) = (s(x[at_x + k * step_x]) - zeros[0], s(y[at_y + k * step_y]) - zeros[1]);
                    sum.wrapping_add(x * y)
                });
                *out = b(scale.apply(sum).saturating_add(zeros[2]).clamp(-128, 127));
            }
        }
    }
    Ok(())
}
