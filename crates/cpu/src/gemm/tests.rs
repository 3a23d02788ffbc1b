//! Products of odd sizes against plain loops, on every instruction set, for 1, 2 and 3 threads.

use super::*;
use half::{bf16, f16};

/// Small whole numbers, so that sums are exact in any order and in every storage type.
fn numbers<T: Scalar>(len: usize, seed: usize) -> Vec<T> {
    (0..len).map(|i| T::from_f32(((i * 7919 + seed * 104_729) % 17) as f32 - 8.0)).collect()
}

fn at<T: Scalar>(x: &Operand<'_, T>, base: usize, i: usize, j: usize) -> f32 {
    x.data[base + if x.transposed { j * x.ld + i } else { i * x.ld + j }].to_f32()
}

fn naive<T: Scalar>(product: Product<'_, T>, c: &mut [f32], ldc: usize, epilogue: &Epilogue<'_>) {
    let Product { shape, batch, a, b } = product;
    for index in 0..batch.count {
        for i in 0..shape.m {
            for j in 0..shape.n {
                let mut sum = 0.0;
                for p in 0..shape.k {
                    sum += at(&a, index * batch.a_stride, i, p) * at(&b, index * batch.b_stride, p, j);
                }
                let out = &mut c[index * batch.c_stride + i * ldc + j];
                sum +=
                    if epilogue.accumulate { *out } else { 0.0 } + epilogue.bias.map_or(0.0, |bias| bias[j]);
                if epilogue.activation == Activation::Relu {
                    sum = sum.max(0.0);
                }
                *out = sum;
                if let Some(hook) = epilogue.hook {
                    hook.apply(index * shape.m + i, j, std::slice::from_mut(out));
                }
            }
        }
    }
}

fn check_all<T: Scalar, O: Scalar>(shape: Shape, batch_count: usize, with_pads: bool) {
    let Shape { m, n, k } = shape;
    let pad = if with_pads { 3 } else { 0 };
    let bias: Vec<f32> = numbers(n, 5);
    let hook = |row: usize, col: usize, values: &mut [f32]| {
        values.iter_mut().enumerate().for_each(|(j, x)| *x += (row * 3 + col + j) as f32 % 5.0);
    };
    let epilogues = [
        Epilogue::NONE,
        Epilogue::ACCUMULATE,
        Epilogue { bias: Some(&bias), activation: Activation::Relu, ..Epilogue::NONE },
        Epilogue { bias: Some(&bias), accumulate: true, hook: Some(&hook), ..Epilogue::NONE },
    ];
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        let (a_rows, a_cols) = if ta { (k, m) } else { (m, k) };
        let (b_rows, b_cols) = if tb { (n, k) } else { (k, n) };
        let (lda, ldb, ldc) = (a_cols + pad, b_cols + pad, n + pad);
        let batch =
            Batch { count: batch_count, a_stride: a_rows * lda, b_stride: b_rows * ldb, c_stride: m * ldc };
        let a_data: Vec<T> = numbers(batch_count * a_rows * lda, 1);
        let b_data: Vec<T> = numbers(batch_count * b_rows * ldb, 2);
        let a = Operand { data: &a_data, ld: lda, transposed: ta };
        let b = Operand { data: &b_data, ld: ldb, transposed: tb };
        let start: Vec<O> = numbers(batch_count * m * ldc, 3);
        for epilogue in &epilogues {
            let mut expected: Vec<f32> = start.iter().map(|x| x.to_f32()).collect();
            let product = Product { shape, batch, a, b };
            naive(product, &mut expected, ldc, epilogue);
            let expected: Vec<f32> = expected.iter().map(|&x| O::from_f32(x).to_f32()).collect();
            for isa in Isa::available() {
                for threads in 1..=3 {
                    let pool = Pool::new(threads);
                    let mut c = start.clone();
                    let bytes = gemm_scratch_bytes::<O>(isa, shape, batch_count, threads);
                    let mut scratch = vec![0xff; bytes];
                    gemm(&pool, isa, product, &mut c, ldc, epilogue, &mut scratch);
                    let got: Vec<f32> = c.iter().map(|x| x.to_f32()).collect();
                    assert_eq!(got, expected, "{isa} {threads} threads {shape:?} ta={ta} tb={tb}");
                }
            }
        }
    }
}

const ODD_SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (1, 33, 7),
    (3, 16, 0),
    (5, 10, 9),
    (13, 31, 17),
    (14, 32, 16),
    (15, 65, 33),
    (16, 48, 257),
    (29, 7, 40),
    (70, 50, 300),
    (100, 64, 30),
    (9, 130, 520),
];

#[test]
fn products_of_odd_sizes_are_exact_in_f32() {
    for (i, (m, n, k)) in ODD_SHAPES.into_iter().enumerate() {
        check_all::<f32, f32>(Shape { m, n, k }, 1, i % 2 == 1);
    }
}

#[test]
fn blocks_that_share_a_packed_b_are_exact() {
    let shape = Shape { m: 400, n: 75, k: 300 };
    for isa in Isa::available() {
        let (rows, panel) = tile_size(isa);
        assert!(Plan::new(shape.m, shape.n, shape.k, 1, rows, panel).shares_b(1), "{isa}");
    }
    check_all::<f32, f32>(shape, 1, true);
    check_all::<bf16, bf16>(Shape { m: 300, n: 50, k: 260 }, 1, false);
}

#[test]
fn batches_are_products_one_by_one() {
    check_all::<f32, f32>(Shape { m: 9, n: 20, k: 31 }, 3, true);
    check_all::<bf16, f32>(Shape { m: 17, n: 5, k: 3 }, 4, false);
}

#[test]
fn sixteen_bit_operands_are_summed_in_single_precision() {
    for (m, n, k) in [(1, 17, 5), (15, 33, 20), (31, 70, 260)] {
        check_all::<bf16, f32>(Shape { m, n, k }, 1, true);
        check_all::<f16, f32>(Shape { m, n, k }, 1, true);
        check_all::<bf16, bf16>(Shape { m, n, k }, 1, true);
        check_all::<f16, f16>(Shape { m, n, k }, 1, true);
    }
}

#[test]
fn a_split_k_gives_the_same_bits_for_any_number_of_threads() {
    let shape = Shape { m: 40, n: 36, k: 256 * 40 + 3 };
    let a: Vec<f32> = (0..shape.m * shape.k).map(|i| ((i * 31 % 1009) as f32).sin()).collect();
    let b: Vec<f32> = (0..shape.n * shape.k).map(|i| ((i * 17 % 997) as f32).cos()).collect();
    let bias = vec![0.5; shape.n];
    let epilogue = Epilogue { bias: Some(&bias), activation: Activation::Relu, ..Epilogue::NONE };
    for isa in Isa::available() {
        let (rows, panel) = tile_size(isa);
        assert!(Plan::new(shape.m, shape.n, shape.k, 1, rows, panel).k_parts > 1);
        let run = |threads| {
            let pool = Pool::new(threads);
            let mut c = vec![0f32; shape.m * shape.n];
            let mut scratch = vec![0; gemm_scratch_bytes::<f32>(isa, shape, 1, threads)];
            let (a, b) = (Operand::transposed(&a, shape.m), Operand::plain(&b, shape.n));
            gemm(&pool, isa, Product::one(shape, a, b), &mut c, shape.n, &epilogue, &mut scratch);
            c
        };
        let one = run(1);
        assert_eq!(one, run(2));
        assert_eq!(one, run(3));
        let mut exact = vec![0f64; shape.m * shape.n];
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let (a, b) = (wide(&a), wide(&b));
        let (a, b) = (Operand::transposed(&a, shape.m), Operand::plain(&b, shape.n));
        let product = Product::one(shape, a, b);
        gemm_f64(&Pool::new(2), product, &mut exact, shape.n, false, Some(&vec![0.5; shape.n]));
        for (got, exact) in one.iter().zip(&exact) {
            assert!((f64::from(*got) - exact.max(0.0)).abs() < 2e-2, "{got} {exact}");
        }
    }
}

#[test]
fn double_precision_products_are_exact() {
    let (shape, pool) = (Shape { m: 19, n: 6, k: 11 }, Pool::new(2));
    let batch = Batch { count: 2, a_stride: 19 * 11, b_stride: 6 * 11, c_stride: 19 * 6 };
    let a: Vec<f32> = numbers(2 * 19 * 11, 1);
    let b: Vec<f32> = numbers(2 * 6 * 11, 2);
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        let (lda, ldb) = (if ta { 19 } else { 11 }, if tb { 11 } else { 6 });
        let mut expected: Vec<f32> = numbers(2 * 19 * 6, 3);
        let mut c = wide(&expected);
        let (fa, fb) = (
            Operand { data: &a[..], ld: lda, transposed: ta },
            Operand { data: &b[..], ld: ldb, transposed: tb },
        );
        naive(Product { shape, batch, a: fa, b: fb }, &mut expected, 6, &Epilogue::ACCUMULATE);
        let (wa, wb) = (wide(&a), wide(&b));
        let (wa, wb) =
            (Operand { data: &wa, ld: lda, transposed: ta }, Operand { data: &wb, ld: ldb, transposed: tb });
        gemm_f64(&pool, Product { shape, batch, a: wa, b: wb }, &mut c, 6, true, None);
        assert_eq!(c, wide(&expected));
    }
}

#[test]
fn scratch_does_not_grow_with_the_operands() {
    let bytes = |n| gemm_scratch_bytes::<f32>(Isa::Portable, Shape { m: n, n, k: n }, 1, 2);
    assert!(bytes(4096) < 2 << 20, "{}", bytes(4096));
    assert_eq!(bytes(4096), bytes(8192));
}
