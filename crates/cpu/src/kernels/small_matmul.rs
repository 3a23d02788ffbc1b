//! Turns two blocks that lie in the cache into their product: the inner step of attention and of recurrent layers.
//!
//! Nothing is packed, cut or shared out here; the caller has done that for its own loops. A tile of C is held in
//! registers, elements of A are broadcast, rows of B are loaded whole. C and B are read and written in whole
//! vectors of sixteen, so their rows must have room for the last one.

use crate::isa::Isa;

/// Columns that are computed together.
pub(crate) const LANES: usize = 16;

/// `C = A B`, or `C += A B`.
#[derive(Clone, Copy)]
pub(crate) struct Product<E> {
    /// Rows of C.
    pub m: usize,
    /// Columns of C; computed up to the next multiple of [`LANES`].
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// A: element (i, p) at `i * lda + p`, or, where `a_by_column`, at `p * lda + i`.
    pub a: *const E,
    pub lda: usize,
    pub a_by_column: bool,
    /// B: element (p, j) at `p * ldb + j`.
    pub b: *const E,
    pub ldb: usize,
    /// C: element (i, j) at `i * ldc + j`.
    pub c: *mut E,
    pub ldc: usize,
    /// Whether the sums are added to what C holds.
    pub accumulate: bool,
}

/// Sixteen numbers side by side.
pub(crate) trait Lanes: Copy {
    /// Their type.
    type Elem: Copy;
    /// Rows of the register tile.
    const ROWS: usize;
    /// Whether the register tile has two vectors a row or one.
    const PAIRS: bool;
    fn zero() -> Self;
    /// # Safety
    /// Sixteen readable numbers.
    unsafe fn load(from: *const Self::Elem) -> Self;
    /// # Safety
    /// Sixteen writable numbers.
    unsafe fn store(self, to: *mut Self::Elem);
    /// self + other
    fn add(self, other: Self) -> Self;
    /// self + a · b
    fn fma(self, a: Self::Elem, b: Self) -> Self;
}

macro_rules! array_lanes {
    ($e:ty) => {
        impl Lanes for [$e; LANES] {
            type Elem = $e;
            const ROWS: usize = 4;
            const PAIRS: bool = false;
            #[inline(always)]
            fn zero() -> Self {
                [0.0; LANES]
            }
            #[inline(always)]
            unsafe fn load(from: *const $e) -> Self {
                // SAFETY: the caller's promise.
                unsafe { from.cast::<Self>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $e) {
                // SAFETY: the caller's promise.
                unsafe { to.cast::<Self>().write_unaligned(self) }
            }
            #[inline(always)]
            fn add(mut self, other: Self) -> Self {
                (0..LANES).for_each(|l| self[l] += other[l]);
                self
            }
            #[inline(always)]
            fn fma(mut self, a: $e, b: Self) -> Self {
                (0..LANES).for_each(|l| self[l] += a * b[l]);
                self
            }
        }
    };
}

array_lanes!(f32);
array_lanes!(f64);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, Lanes};
    use std::arch::x86_64::*;

    /// One AVX-512 register.
    #[derive(Clone, Copy)]
    pub(super) struct Wide(__m512);
    /// Two AVX registers.
    #[derive(Clone, Copy)]
    pub(super) struct Twin([__m256; 2]);

    // SAFETY: (of the functions below) they are inlined into functions compiled for the instruction set, which are
    // called only where the processor has it; memory is the caller's promise.
    impl Lanes for Wide {
        type Elem = f32;
        const ROWS: usize = 8;
        const PAIRS: bool = true;
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: see above.
            Wide(unsafe { _mm512_setzero_ps() })
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            Wide(unsafe { _mm512_loadu_ps(from) })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Wide(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn fma(self, a: f32, b: Self) -> Self {
            // SAFETY: see above.
            Wide(unsafe { _mm512_fmadd_ps(_mm512_set1_ps(a), b.0, self.0) })
        }
    }

    // SAFETY: as for `Wide`.
    impl Lanes for Twin {
        type Elem = f32;
        const ROWS: usize = 6;
        const PAIRS: bool = false;
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: see above.
            Twin(unsafe { [_mm256_setzero_ps(); 2] })
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            Twin(unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(LANES / 2))] })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe {
                _mm256_storeu_ps(to, self.0[0]);
                _mm256_storeu_ps(to.add(LANES / 2), self.0[1]);
            }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Twin(unsafe { [_mm256_add_ps(self.0[0], other.0[0]), _mm256_add_ps(self.0[1], other.0[1])] })
        }
        #[inline(always)]
        fn fma(self, a: f32, b: Self) -> Self {
            // SAFETY: see above.
            unsafe {
                let a = _mm256_set1_ps(a);
                Twin([_mm256_fmadd_ps(a, b.0[0], self.0[0]), _mm256_fmadd_ps(a, b.0[1], self.0[1])])
            }
        }
    }
}

/// R rows by V vectors of C, from row `i` and column `j` on.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const V: usize, const BY_COLUMN: bool>(
    p: &Product<L::Elem>,
    i: usize,
    j: usize,
) {
    let mut sums = [[L::zero(); V]; R];
    // SAFETY: the caller gives operands of the product's size, with rows of B and C padded to whole vectors.
    unsafe {
        let (mut a, mut b) = (p.a.add(if BY_COLUMN { i } else { i * p.lda }), p.b.add(j));
        for _ in 0..p.k {
            let mut row = [L::zero(); V];
            for v in 0..V {
                row[v] = L::load(b.add(LANES * v));
            }
            for r in 0..R {
                let x = *a.add(if BY_COLUMN { r } else { r * p.lda });
                for v in 0..V {
                    sums[r][v] = sums[r][v].fma(x, row[v]);
                }
            }
            a = a.add(if BY_COLUMN { p.lda } else { 1 });
            b = b.add(p.ldb);
        }
        for r in 0..R {
            for v in 0..V {
                let c = p.c.add((i + r) * p.ldc + j + LANES * v);
                let sum = if p.accumulate { sums[r][v].add(L::load(c)) } else { sums[r][v] };
                sum.store(c);
            }
        }
    }
}

#[inline(always)]
unsafe fn rows<L: Lanes, const V: usize, const BY_COLUMN: bool>(p: &Product<L::Elem>, j: usize) {
    let mut i = 0;
    // SAFETY: the caller's promise, for every row of C once.
    unsafe {
        while i < p.m {
            let left = (p.m - i).min(L::ROWS);
            match left {
                8 => tile::<L, 8, V, BY_COLUMN>(p, i, j),
                7 => tile::<L, 7, V, BY_COLUMN>(p, i, j),
                6 => tile::<L, 6, V, BY_COLUMN>(p, i, j),
                5 => tile::<L, 5, V, BY_COLUMN>(p, i, j),
                4 => tile::<L, 4, V, BY_COLUMN>(p, i, j),
                3 => tile::<L, 3, V, BY_COLUMN>(p, i, j),
                2 => tile::<L, 2, V, BY_COLUMN>(p, i, j),
                _ => tile::<L, 1, V, BY_COLUMN>(p, i, j),
            }
            i += left;
        }
    }
}

#[inline(always)]
unsafe fn product<L: Lanes>(p: &Product<L::Elem>) {
    let mut j = 0;
    // SAFETY: the caller's promise, for every column of C once.
    unsafe {
        while j < p.n {
            let pair = L::PAIRS && p.n - j > LANES;
            match (pair, p.a_by_column) {
                (true, false) => rows::<L, 2, false>(p, j),
                (true, true) => rows::<L, 2, true>(p, j),
                (false, false) => rows::<L, 1, false>(p, j),
                (false, true) => rows::<L, 1, true>(p, j),
            }
            j += if pair { 2 * LANES } else { LANES };
        }
    }
}

/// A type of which small products are computed.
pub(crate) trait SmallMatmul: Copy {
    /// Computes a product.
    ///
    /// # Safety
    /// The processor has the instruction set; A has the product's size, B and C too with rows padded to a multiple of
    /// [`LANES`]; C overlaps neither.
    unsafe fn product(isa: Isa, p: &Product<Self>);
}

impl SmallMatmul for f32 {
    unsafe fn product(isa: Isa, p: &Product<f32>) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn avx512(p: &Product<f32>) {
            // SAFETY: the caller's promise.
            unsafe { product::<x86::Wide>(p) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2(p: &Product<f32>) {
            // SAFETY: the caller's promise.
            unsafe { product::<x86::Twin>(p) }
        }
        // SAFETY: the caller's promise.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => avx512(p),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2Fma => avx2(p),
                _ => product::<[f32; LANES]>(p),
            }
        }
    }
}

impl SmallMatmul for f64 {
    unsafe fn product(_: Isa, p: &Product<f64>) {
        // SAFETY: the caller's promise.
        unsafe { product::<[f64; LANES]>(p) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<E: SmallMatmul + Default + PartialEq + std::fmt::Debug + From<i8> + Into<f64>>(isa: Isa) {
        for (m, n, k) in
            [(1usize, 1usize, 1usize), (8, 32, 5), (13, 48, 7), (64, 40, 3), (5, 17, 0), (6, 100, 9)]
        {
            for (a_by_column, accumulate) in [(false, false), (true, true), (false, true), (true, false)] {
                let number = |i: usize| E::from((i * 7 % 11) as i8 - 5);
                let (lda, ld) = (if a_by_column { m } else { k } + 1, n.next_multiple_of(LANES));
                let a: Vec<E> = (0..(m + 1) * (k + 1) * 2).map(number).collect();
                let b: Vec<E> = (0..ld * k.max(1)).map(|i| number(i + 3)).collect();
                let mut c = vec![E::from(2); ld * m];
                let p = Product {
                    m,
                    n,
                    k,
                    a: a.as_ptr(),
                    lda,
                    a_by_column,
                    b: b.as_ptr(),
                    ldb: ld,
                    c: c.as_mut_ptr(),
                    ldc: ld,
                    accumulate,
                };
                // SAFETY: the vectors have the sizes of the product, rows padded.
                unsafe { E::product(isa, &p) };
                for i in 0..m {
                    for j in 0..n {
                        let at = |q: usize| if a_by_column { a[q * lda + i] } else { a[i * lda + q] };
                        let sum: f64 = (0..k).map(|q| at(q).into() * b[q * ld + j].into()).sum();
                        let want = sum + if accumulate { 2.0 } else { 0.0 };
                        assert_eq!(c[i * ld + j].into(), want, "{isa} {m} {n} {k} at {i} {j}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_shape_and_layout_gives_the_plain_sums() {
        for isa in Isa::available() {
            check::<f32>(isa);
            check::<f64>(isa);
        }
    }
}
