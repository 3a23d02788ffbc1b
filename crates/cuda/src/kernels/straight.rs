//! Turns a product of 16-bit matrices whose rows are of any length into products that the library has fast kernels for.
//!
//! The library reads 16 bytes at a time. It takes kernels that were seen to run at a fifth of the speed where the rows of a matrix do not
//! begin at multiples of that, or do not end there: with a vocabulary of 50,257 words, say. So most of the product is one of 50,256 words,
//! of copies whose rows begin where they should, and the last word has a product of its own. A copy costs one pass over a matrix; it is
//! made a slice of the product at a time, so that it takes little of what the matrix takes.

use plimsoll_graph::DType;
use plimsoll_graph::ops::Unary;

use super::layout::sized;
use super::{Matrix, Product, padded};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Grid};

/// What the library reads at a time, in bytes.
const AT_ONCE: usize = 16;
/// Slices of a product at most.
const SLICES: usize = 16;
/// A slice has a multiple of so many rows or columns.
const GRAIN: usize = 256;
/// Smaller products gain less than the copies cost.
const WORTH: usize = 1 << 30;
/// Elements of a row that a block copies.
const PER_BLOCK: usize = 2048;

/// How a product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Straight {
    /// Rows, columns and depth of what is computed fast; the rest has products of its own.
    most: [usize; 3],
    /// Its columns are cut apart into slices, instead of its rows.
    by_columns: bool,
    /// Rows or columns of a slice.
    step: usize,
    copies: Copies,
}

/// Which matrices have rows that begin anywhere, and so are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Copies {
    a: bool,
    b: bool,
    c: bool,
}

impl Straight {
    /// How a product is best cut; nothing where it is fast as it is, or is too small to gain.
    pub(super) fn of(p: &Product) -> Option<Straight> {
        let is_worth = p.m * p.n * p.k >= WORTH && p.m.min(p.n).min(p.k) >= GRAIN;
        if !is_worth || p.batch != 1 || p.accumulate {
            return None;
        }
        Straight::cut(p, GRAIN)
    }

    fn cut(p: &Product, grain: usize) -> Option<Straight> {
        let is_narrow = |x: &Matrix| matches!(x.dtype, DType::BF16 | DType::F16);
        let lies_plainly = |x: &Matrix| x.row.min(x.column) == 1;
        if ![p.a, p.b].iter().all(|x| is_narrow(x) && lies_plainly(x)) || p.c.column != 1 {
            return None;
        }
        let together = AT_ONCE / p.a.dtype.bytes();
        let whole = |size: usize, counts: bool| if counts { size / together * together } else { size };
        let (a_turned, b_turned) = (p.a.column != 1, p.b.column != 1);
        // What counts is how long rows are as they lie in memory.
        let most = [whole(p.m, a_turned), whole(p.n, true), whole(p.k, !a_turned || b_turned)];
        let copies = Copies { a: begins_anywhere(&p.a), b: begins_anywhere(&p.b), c: begins_anywhere(&p.c) };
        if most == [p.m, p.n, p.k] && !(copies.a || copies.b || copies.c) {
            return None;
        }
        // The larger of the matrices that are copied is never copied whole.
        let by_columns = copies.b && (!copies.a || p.n > p.m);
        let step = most[usize::from(by_columns)].div_ceil(SLICES).next_multiple_of(grain);
        Some(Straight { most, by_columns, step, copies })
    }

    /// Where slices begin, and how much each has.
    fn slices(self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.most[usize::from(self.by_columns)];
        (0..all).step_by(self.step).map(move |start| (start, self.step.min(all - start)))
    }

    /// A slice of what is computed fast, of the matrices as they are.
    fn slice(self, p: &Product, (start, count): (usize, usize)) -> Product {
        let [m, n, k] = self.most;
        // Of activations the library knows one; others come when everything is there.
        let all = Product { m, n, k, act: p.act.filter(|act| *act == Unary::Relu), ..*p };
        if self.by_columns { columns(&all, start, count) } else { rows(&all, start, count) }
    }

    /// What is computed of the matrices as they are: columns and rows that are left over.
    fn rest(self, p: &Product) -> impl Iterator<Item = Product> {
        let [m, n, _] = self.most;
        let all = Product { act: p.act.filter(|act| *act == Unary::Relu), ..*p };
        let right = (n < p.n).then(|| columns(&all, n, p.n - n));
        let below = (m < p.m).then(|| rows(&Product { n, ..all }, m, p.m - m));
        right.into_iter().chain(below)
    }

    /// What is left over of the depth of a slice: it comes first, and the slice is added to it.
    fn deep(self, p: &Product, part: &Product) -> Option<Product> {
        let k = self.most[2];
        let (a, b) = (part.a.beyond(k * part.a.column), part.b.beyond(k * part.b.row));
        (k < p.k).then_some(Product { k: p.k - k, a, b, bias: None, act: None, ..*part })
    }

    /// A slice with copies in the scratch where there are any, and what they take of it.
    fn copied(self, part: &Product, scratch: *mut u8) -> (Product, usize) {
        let mut used = 0;
        let mut place = |x: Matrix, is_copied: bool, (rows, columns): (usize, usize)| {
            if !is_copied {
                return x;
            }
            let (height, width) = stored(&x, rows, columns);
            let pitch = width.next_multiple_of(AT_ONCE);
            let at = scratch.wrapping_add(used);
            used += padded(height * pitch * x.dtype.bytes());
            if x.column == 1 { Matrix { at, row: pitch, ..x } } else { Matrix { at, column: pitch, ..x } }
        };
        // What is not cut comes first: it stays where it is from slice to slice, of which the last may be smaller.
        let (left, right) = ((part.m, part.k), (part.k, part.n));
        let (a, b) = if self.by_columns {
            let a = place(part.a, self.copies.a, left);
            (a, place(part.b, self.copies.b, right))
        } else {
            let b = place(part.b, self.copies.b, right);
            (place(part.a, self.copies.a, left), b)
        };
        let c = place(part.c, self.copies.c, (part.m, part.n));
        (Product { a, b, c, ..*part }, used)
    }

    /// The bytes of scratch that it needs: copies of the largest slice, then what the hungriest product needs.
    pub(super) fn scratch(self, cuda: &Cuda, p: &Product) -> usize {
        let any = 4096 as *mut u8;
        let of = |slice| {
            let part = self.slice(p, slice);
            let (copied, used) = self.copied(&part, any);
            let deep = self.deep(p, &Product { c: copied.c, ..part });
            let added = Product { accumulate: deep.is_some(), ..copied };
            let products = deep.iter().chain([&added]).map(|product| product.direct_scratch(cuda));
            used + products.max().unwrap_or(0)
        };
        let rest = self.rest(p).map(|product| product.direct_scratch(cuda));
        self.slices().map(of).chain(rest).max().unwrap_or(0)
    }

    /// Puts all of it on the stream.
    ///
    /// # Safety
    /// As for [`Product::run`].
    pub(super) unsafe fn run(
        self,
        cuda: &Cuda,
        p: &Product,
        scratch: *mut u8,
        bytes: usize,
    ) -> Result<(), Error> {
        for slice in self.slices() {
            let part = self.slice(p, slice);
            let (copied, used) = self.copied(&part, scratch);
            let (free, left) = (scratch.wrapping_add(used), bytes.saturating_sub(used));
            // What is not cut is the same in every slice, and stays where the first one put it.
            let is_first = slice.0 == 0;
            let deep = self.deep(p, &Product { c: copied.c, ..part });
            // SAFETY: the caller's promise: what copies take is part of the declared scratch.
            unsafe {
                if self.copies.a && (is_first || !self.by_columns) {
                    copy(cuda, stored(&part.a, part.m, part.k), part.a, copied.a)?;
                }
                if self.copies.b && (is_first || self.by_columns) {
                    copy(cuda, stored(&part.b, part.k, part.n), part.b, copied.b)?;
                }
                if let Some(deep) = &deep {
                    deep.run_direct(cuda, free, left)?;
                }
                Product { accumulate: deep.is_some(), ..copied }.run_direct(cuda, free, left)?;
                if self.copies.c {
                    copy(cuda, (part.m, part.n), copied.c, part.c)?;
                }
            }
        }
        for product in self.rest(p) {
            // SAFETY: the caller's promise.
            unsafe { product.run_direct(cuda, scratch, bytes)? };
        }
        // SAFETY: the caller's promise; a product with an activation is dense.
        unsafe { p.activate(cuda, p.act.filter(|act| *act != Unary::Relu)) }
    }
}

/// Some rows of a product.
fn rows(p: &Product, start: usize, m: usize) -> Product {
    Product { m, a: p.a.beyond(start * p.a.row), c: p.c.beyond(start * p.c.row), ..*p }
}

/// Some columns of a product.
fn columns(p: &Product, start: usize, n: usize) -> Product {
    let bias = p.bias.map(|bias| bias.wrapping_add(start * p.c.dtype.bytes()));
    Product { n, b: p.b.beyond(start * p.b.column), c: p.c.beyond(start), bias, ..*p }
}

/// Rows and columns as they lie in memory.
fn stored(x: &Matrix, rows: usize, columns: usize) -> (usize, usize) {
    if x.column == 1 { (rows, columns) } else { (columns, rows) }
}

/// From one row to the next, as they lie in memory.
fn pitch(x: &Matrix) -> usize {
    if x.column == 1 { x.row } else { x.column }
}

/// Whether rows begin where the library cannot read fast.
fn begins_anywhere(x: &Matrix) -> bool {
    !(pitch(x) * x.dtype.bytes()).is_multiple_of(AT_ONCE)
}

/// Copies rows to where others lie.
///
/// # Safety
/// Both must be live memory of the device, of so many rows.
unsafe fn copy(cuda: &Cuda, (rows, width): (usize, usize), from: Matrix, to: Matrix) -> Result<(), Error> {
    let mut code = sized(from.dtype.bytes());
    code.head += "#define ROWS\n";
    let blocks = width.div_ceil(PER_BLOCK);
    let args = Args::new().ints([width, blocks, pitch(&from), pitch(&to)], 4, 0).at(from.at).at(to.at);
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code, "rows", Grid::tiles(rows * blocks, 1, 1, 256), &args) }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn matrix(values: &mut [u16], columns: usize) -> Matrix {
        Matrix::dense(values.as_mut_ptr().cast(), DType::BF16, columns)
    }

    /// Small whole numbers, whose products and sums bf16 has exactly as long as they are few.
    fn numbers(count: usize, seed: usize) -> Vec<u16> {
        (0..count).map(|i| bf16::from_f32(((i * 7 + seed) % 5) as f32 - 2.0).to_bits()).collect()
    }

    #[test]
    fn slices_of_copies_and_the_rest_give_the_same_bits_as_the_product_they_are_of() {
        let Some(cuda) = plimsoll_testing::group("emulator", Cuda::emulated()) else { return };
        let (m, n, k) = (45, 37, 29);
        let (mut a, mut b) = (numbers(m * k, 1), numbers(k * n, 3));
        let mut bias = numbers(n, 2);
        for (turned_a, turned_b, act) in [
            (false, false, None),
            (true, false, Some(Unary::Relu)),
            (false, true, Some(Unary::Tanh)),
            (true, true, None),
        ] {
            let of = |values: &mut [u16], rows: usize, columns: usize, turned: bool| match turned {
                true => matrix(values, rows).turned(),
                false => matrix(values, columns),
            };
            let [mut whole, mut found] = [vec![0u16; m * n], vec![0u16; m * n]];
            let product = |c: &mut [u16], a: &mut [u16], b: &mut [u16], bias: &mut [u16]| Product {
                bias: Some(bias.as_mut_ptr().cast()),
                act,
                ..Product::new(m, n, k, of(a, m, k, turned_a), of(b, k, n, turned_b), matrix(c, n))
            };
            // Of activations the library knows one; others come after the product is rounded, whole or in slices.
            let known = act.filter(|act| *act == Unary::Relu);
            let direct = Product { act: known, ..product(&mut whole, &mut a, &mut b, &mut bias) };
            let cut = product(&mut found, &mut a, &mut b, &mut bias);
            // SAFETY: all lives in the host's memory, which is the emulator's, and is as long as is said.
            unsafe {
                direct.run_direct(&cuda, std::ptr::null_mut(), 0).unwrap();
                direct.activate(&cuda, act.filter(|_| known.is_none())).unwrap();
            }
            let both = Straight::cut(&cut, 8).unwrap();
            assert_eq!(both.copies, Copies { a: true, b: true, c: true });
            for straight in [both, Straight { by_columns: !both.by_columns, ..both }] {
                found.fill(0);
                let bytes = straight.scratch(&cuda, &cut);
                let mut scratch = vec![[0u64; 32]; bytes.div_ceil(256) + 1];
                // SAFETY: as above.
                unsafe { straight.run(&cuda, &cut, scratch.as_mut_ptr().cast(), bytes) }.unwrap();
                assert_eq!(found, whole, "{turned_a} {turned_b} {act:?} {straight:?}");
            }
        }
    }

    #[test]
    fn only_large_products_of_narrow_numbers_with_odd_rows_are_cut() {
        let at = 4096 as *mut u8;
        let head = |dtype: DType, tokens: usize, words: usize| {
            let (x, w) = (Matrix::dense(at, dtype, 768), Matrix::dense(at, dtype, 768));
            Product::new(tokens, words, 768, x, w.turned(), Matrix::dense(at, dtype, words))
        };
        let forward = Straight::of(&head(DType::BF16, 16384, 50257)).unwrap();
        let only_result = Copies { a: false, b: false, c: true };
        let most = [16384, 50256, 768];
        assert_eq!(forward, Straight { most, by_columns: false, step: 1024, copies: only_result });
        for fast in [
            head(DType::BF16, 16384, 50304),
            head(DType::F32, 16384, 50257),
            head(DType::BF16, 64, 50257),
            Product { accumulate: true, ..head(DType::BF16, 16384, 50257) },
        ] {
            assert_eq!(Straight::of(&fast), None, "{fast:?}");
        }
        // The gradient of the words: rows of the result are words, and the slopes lie turned.
        let slopes = Matrix::dense(at, DType::BF16, 50257).turned();
        let x = Matrix::dense(at, DType::BF16, 768);
        let gradient = Product::new(50257, 768, 16384, slopes, x, x);
        let cut = Straight::of(&gradient).unwrap();
        assert_eq!((cut.by_columns, cut.step, cut.copies.a, cut.copies.c), (false, 3328, true, false));
        assert_eq!(cut.most, [50256, 768, 16384]);
    }
}
