//! The product in f64: plain loops, for checks and small models, where exactness counts more than speed.

use super::{Product, Shape};
use crate::gemm::product::Shared;
use crate::pool::Pool;

/// Rows that one task handles.
const ROWS: usize = 8;

/// `C = op(A) op(B)` in f64 for every batch, or `C += …` with `accumulate`, then `+ bias`. Needs no scratch.
///
/// # Panics
/// When an operand is shorter than its shape says.
pub fn gemm_f64(
    pool: &Pool,
    product: Product<'_, f64>,
    c: &mut [f64],
    ldc: usize,
    accumulate: bool,
    bias: Option<&[f64]>,
) {
    let Product { shape, batch, a, b } = product;
    let Shape { m, n, k } = shape;
    super::check(shape, batch, &a, &b, c.len(), ldc, bias.map(<[f64]>::len));
    if n == 0 {
        return;
    }
    let chunks = m.div_ceil(ROWS);
    let c = Shared(c.as_mut_ptr());
    pool.run(batch.count * chunks, |task| {
        let (index, chunk) = (task / chunks, task % chunks);
        let (a_data, b_data) = (&a.data[index * batch.a_stride..], &b.data[index * batch.b_stride..]);
        for i in chunk * ROWS..((chunk + 1) * ROWS).min(m) {
            // SAFETY: `check` saw that C has the row, and every task has its own rows.
            let row = unsafe {
                std::slice::from_raw_parts_mut(c.get().wrapping_add(index * batch.c_stride + i * ldc), n)
            };
            if !accumulate {
                row.fill(0.0);
            }
            for p in 0..k {
                let x = a_data[if a.transposed { p * a.ld + i } else { i * a.ld + p }];
                if b.transposed {
                    row.iter_mut().enumerate().for_each(|(j, sum)| *sum += x * b_data[j * b.ld + p]);
                } else {
                    row.iter_mut().zip(&b_data[p * b.ld..p * b.ld + n]).for_each(|(sum, y)| *sum += x * y);
                }
            }
            if let Some(bias) = bias {
                row.iter_mut().zip(bias).for_each(|(sum, y)| *sum += y);
            }
        }
    });
}
