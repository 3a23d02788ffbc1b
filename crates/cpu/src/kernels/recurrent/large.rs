//! The large products of a recurrence, over all steps at once.

use super::super::lanes::Wide;
use crate::Cpu;
use crate::gemm::{Epilogue, Operand, Product, Shape, gemm, gemm_f64, gemm_scratch_bytes};

/// A matrix in memory.
#[derive(Clone, Copy)]
pub(super) struct Matrix<E> {
    pub data: *const E,
    /// Numbers from one stored row to the next.
    pub ld: usize,
    /// Whether the product uses its transpose.
    pub transposed: bool,
}

impl<E> Matrix<E> {
    pub(super) fn plain(data: *const E, ld: usize) -> Matrix<E> {
        Matrix { data, ld, transposed: false }
    }

    pub(super) fn transposed(data: *const E, ld: usize) -> Matrix<E> {
        Matrix { data, ld, transposed: true }
    }

    /// As the product's operand of `rows` by `cols`.
    unsafe fn operand<'a>(&self, rows: usize, cols: usize) -> Operand<'a, E> {
        let (rows, cols) = if self.transposed { (cols, rows) } else { (rows, cols) };
        let n = if rows * cols == 0 { 0 } else { (rows - 1) * self.ld + cols };
        let data = if n == 0 {
            &[][..]
        } else {
            // SAFETY: the caller has a matrix of that size.
            unsafe { std::slice::from_raw_parts(self.data, n) }
        };
        // An empty matrix has no distance between rows; one that passes the check is as good as any.
        Operand { data, ld: self.ld.max(cols), transposed: self.transposed }
    }
}

/// A type of which large products are computed.
pub(super) trait Large: Wide {
    /// Bytes of scratch for a product.
    fn scratch(cpu: &Cpu, shape: Shape) -> usize;

    /// The product of two operands, rows of C `ldc` apart.
    fn compute(
        cpu: &Cpu,
        product: Product<'_, Self>,
        c: (&mut [Self], usize),
        bias: Option<&[Self]>,
        scratch: &mut [u8],
    );

    /// C (rows of `shape.n`) = A B + bias.
    ///
    /// # Safety
    /// Operands have the shape, C does not overlap them, and the scratch has the declared bytes.
    unsafe fn multiply(
        cpu: &Cpu,
        shape: Shape,
        a: Matrix<Self>,
        b: Matrix<Self>,
        c: *mut Self,
        ldc: usize,
        bias: Option<*const Self>,
        scratch: *mut u8,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let (a, b) = (a.operand(shape.m, shape.k), b.operand(shape.k, shape.n));
            let len = if shape.m * shape.n == 0 { 0 } else { (shape.m - 1) * ldc + shape.n };
            let c = if len == 0 { <&mut [Self]>::default() } else { std::slice::from_raw_parts_mut(c, len) };
            let bias = bias.map(|bias| std::slice::from_raw_parts(bias, shape.n));
            let scratch = std::slice::from_raw_parts_mut(scratch, Self::scratch(cpu, shape));
            Self::compute(cpu, Product::one(shape, a, b), (c, ldc), bias, scratch);
        }
    }
}

impl Large for f32 {
    fn scratch(cpu: &Cpu, shape: Shape) -> usize {
        gemm_scratch_bytes::<f32>(cpu.isa(), shape, 1, cpu.threads())
    }

    fn compute(
        cpu: &Cpu,
        product: Product<'_, f32>,
        (c, ldc): (&mut [f32], usize),
        bias: Option<&[f32]>,
        scratch: &mut [u8],
    ) {
        let epilogue = Epilogue { bias, ..Epilogue::NONE };
        gemm(cpu.pool(), cpu.isa(), product, c, ldc, &epilogue, scratch);
    }
}

impl Large for f64 {
    fn scratch(_: &Cpu, _: Shape) -> usize {
        0
    }

    fn compute(
        cpu: &Cpu,
        product: Product<'_, f64>,
        (c, ldc): (&mut [f64], usize),
        bias: Option<&[f64]>,
        _: &mut [u8],
    ) {
        gemm_f64(cpu.pool(), product, c, ldc, false, bias);
    }
}
