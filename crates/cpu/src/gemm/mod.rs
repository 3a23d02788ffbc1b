//! Turns two matrices into their product, on all threads of a pool and in memory that the caller gives.
//!
//! The product is cut into blocks by its size alone (`plan`); a block packs the panels of B it needs and one tile
//! of A after the other into its thread's part of the scratch (`pack`), and calls a micro-kernel that keeps a
//! tile of C in registers. Every block is independent of all others, so there is one fork and one join a product.
//! Where the output is small and k is long, k is cut as well, and the partial sums are added in a fixed order.
//!
//! 16-bit operands are widened while they are packed; all sums are in f32.
//!
//! What is not here: graphs, tensors, gradients. Everything is slices and sizes.

mod block;
mod dest;
mod epilogue;
#[cfg(target_arch = "x86_64")]
mod finish;
#[cfg(target_arch = "x86_64")]
mod kernel_avx2;
#[cfg(target_arch = "x86_64")]
mod kernel_avx512;
mod kernel_portable;
mod pack;
mod plan;
mod product;
mod scalar;
mod tile;
mod transpose;
mod wide;

pub use epilogue::{Activation, Epilogue, RowHook};
pub use scalar::{Kind, Scalar};
pub use transpose::transpose;
pub use wide::gemm_f64;

pub(crate) use block::tile_size;
pub(crate) use dest::{Dest, RowMap};
pub(crate) use pack::{Left, Lines, Plain, Right, Segments, TileAt, Transposed, transpose_panels};
pub(crate) use plan::Plan;
pub(crate) use product::{Shared, aligned, run_products, scratch_bytes};
pub(crate) use tile::{ROW_STRIDE, Simd, zero};

use crate::isa::Isa;
use crate::pool::Pool;

/// The size of a product: C is m by n, the sums have k terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of C and of op(A).
    pub m: usize,
    /// Columns of C and of op(B).
    pub n: usize,
    /// Columns of op(A), rows of op(B).
    pub k: usize,
}

/// An operand in memory, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a, T> {
    /// The numbers.
    pub data: &'a [T],
    /// Elements from one stored row to the next.
    pub ld: usize,
    /// Whether memory holds the transpose of what the product uses.
    pub transposed: bool,
}

impl<'a, T> Operand<'a, T> {
    /// Stored as the product uses it.
    pub fn plain(data: &'a [T], ld: usize) -> Operand<'a, T> {
        Operand { data, ld, transposed: false }
    }

    /// Stored as the transpose.
    pub fn transposed(data: &'a [T], ld: usize) -> Operand<'a, T> {
        Operand { data, ld, transposed: true }
    }
}

/// Several products of the same size at fixed distances in memory. A distance of 0 shares an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    /// Number of products.
    pub count: usize,
    /// Elements from one A to the next.
    pub a_stride: usize,
    /// Elements from one B to the next.
    pub b_stride: usize,
    /// Elements from one C to the next; outputs must not overlap.
    pub c_stride: usize,
}

impl Batch {
    /// A single product.
    pub const ONE: Batch = Batch { count: 1, a_stride: 0, b_stride: 0, c_stride: 0 };
}

/// What is multiplied: `C = op(A) op(B)`, once or for every product of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a, T> {
    /// The sizes.
    pub shape: Shape,
    /// How many, and where.
    pub batch: Batch,
    /// A.
    pub a: Operand<'a, T>,
    /// B.
    pub b: Operand<'a, T>,
}

impl<'a, T> Product<'a, T> {
    /// A single product.
    pub fn one(shape: Shape, a: Operand<'a, T>, b: Operand<'a, T>) -> Product<'a, T> {
        Product { shape, batch: Batch::ONE, a, b }
    }
}

/// Bytes of scratch that [`gemm`] needs for `count` products on a pool of `threads` threads.
pub fn gemm_scratch_bytes<O: Scalar>(isa: Isa, shape: Shape, count: usize, threads: usize) -> usize {
    let (rows, panel) = tile_size(isa);
    let plan = Plan::new(shape.m, shape.n, shape.k, count, rows, panel);
    scratch_bytes(&plan, count, panel, O::KIND, threads)
}

/// `C = op(A) op(B)` with the epilogue. `T` is how the operands are stored, `O` how the output is. The hook sees row
/// `batch * m + row`.
///
/// ```
/// use plimsoll_cpu::gemm::{Epilogue, Operand, Product, Shape, gemm, gemm_scratch_bytes};
/// use plimsoll_cpu::{isa::Isa, pool::Pool};
///
/// let (pool, isa) = (Pool::new(1), Isa::detect());
/// let shape = Shape { m: 1, n: 2, k: 3 };
/// let mut scratch = vec![0; gemm_scratch_bytes::<f32>(isa, shape, 1, pool.threads())];
/// let (a, b) = ([1.0, 2.0, 3.0], [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
/// let product = Product::one(shape, Operand::plain(&a, 3), Operand::plain(&b, 2));
/// let mut c = [0f32; 2];
/// gemm(&pool, isa, product, &mut c, 2, &Epilogue::NONE, &mut scratch);
/// assert_eq!(c, [4.0, 5.0]);
/// ```
///
/// # Panics
/// When an operand, the output, the bias or the scratch is shorter than the shape and the batch say, when outputs
/// overlap, or when the processor lacks the instruction set.
pub fn gemm<T: Scalar, O: Scalar>(
    pool: &Pool,
    isa: Isa,
    product: Product<'_, T>,
    c: &mut [O],
    ldc: usize,
    epilogue: &Epilogue<'_>,
    scratch: &mut [u8],
) {
    let Product { shape, batch, a, b } = product;
    check(shape, batch, &a, &b, c.len(), ldc, epilogue.bias.map(<[f32]>::len));
    assert!(isa.is_available(), "this processor does not have {isa}");
    let (rows, panel) = tile_size(isa);
    let plan = Plan::new(shape.m, shape.n, shape.k, batch.count, rows, panel);
    let c = Shared(c.as_mut_ptr());
    let dest = |index: usize| {
        let out = c.get().wrapping_add(index * batch.c_stride).cast::<u8>();
        let whole = Dest::new(out, O::KIND, RowMap::Linear { ld: ldc }, ldc.max(1), epilogue);
        Dest { first_row: index * shape.m, ..whole }
    };
    let (a_at, b_at) = (
        |i: usize| a.data.as_ptr().wrapping_add(i * batch.a_stride),
        |i: usize| b.data.as_ptr().wrapping_add(i * batch.b_stride),
    );
    let (a_ld, b_ld) = (a.ld, b.ld);
    macro_rules! run {
        ($left:ident, $right:ident) => {
            // SAFETY: `check` saw that the operands and the output have the size of the shape and the batch.
            unsafe {
                run_products(
                    pool,
                    isa,
                    &plan,
                    batch.count,
                    panel,
                    O::KIND,
                    |i| ($left { data: a_at(i), ld: a_ld }, $right { data: b_at(i), ld: b_ld }, dest(i)),
                    scratch,
                )
            }
        };
    }
    match (a.transposed, b.transposed) {
        (false, false) => run!(Plain, Plain),
        (false, true) => run!(Plain, Transposed),
        (true, false) => run!(Transposed, Plain),
        (true, true) => run!(Transposed, Transposed),
    }
}

/// Elements that a stored matrix of `rows` by `cols` spans.
fn span(rows: usize, cols: usize, ld: usize) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * ld + cols }
}

/// Panics when a slice is too short: what follows trusts raw pointers.
fn check<T>(
    shape: Shape,
    batch: Batch,
    a: &Operand<'_, T>,
    b: &Operand<'_, T>,
    c_len: usize,
    ldc: usize,
    bias_len: Option<usize>,
) {
    let Shape { m, n, k } = shape;
    if batch.count == 0 || m == 0 || n == 0 {
        return;
    }
    let (a_rows, a_cols) = if a.transposed { (k, m) } else { (m, k) };
    let (b_rows, b_cols) = if b.transposed { (n, k) } else { (k, n) };
    let last = batch.count - 1;
    let (a_span, b_span, c_span) = (span(a_rows, a_cols, a.ld), span(b_rows, b_cols, b.ld), span(m, n, ldc));
    assert!(a.ld >= a_cols && b.ld >= b_cols && ldc >= n, "a leading dimension is smaller than a row");
    assert!(k == 0 || a.data.len() >= last * batch.a_stride + a_span, "A is shorter than its shape");
    assert!(k == 0 || b.data.len() >= last * batch.b_stride + b_span, "B is shorter than its shape");
    assert!(c_len >= last * batch.c_stride + c_span, "C is shorter than its shape");
    assert!(batch.count == 1 || batch.c_stride >= c_span, "the outputs of the batch overlap");
    assert!(bias_len.is_none_or(|len| len >= n), "the bias is shorter than a row");
}

#[cfg(test)]
mod tests;
