//! Prints the speed of the matrix product beside that of the `gemm` crate.
//!
//! `cargo run --release -p plimsoll-cpu --features compare --example gemm_speed [filter]`

mod speed;

use plimsoll_cpu::gemm::{Epilogue, Operand, Product, Shape, gemm, gemm_scratch_bytes};
use plimsoll_cpu::{isa::Isa, pool::Pool};
use speed::{noise, peak, rate};

/// Name, m, n, k, A transposed, B transposed.
const CASES: [(&str, usize, usize, usize, bool, bool); 18] = [
    ("square 512", 512, 512, 512, false, false),
    ("square 1024", 1024, 1024, 1024, false, false),
    ("square 1024 nt", 1024, 1024, 1024, false, true),
    ("square 1024 tn", 1024, 1024, 1024, true, false),
    ("square 2048", 2048, 2048, 2048, false, false),
    ("conv-like", 3136, 64, 576, false, false),
    ("mlp forward", 128, 1024, 784, false, false),
    ("mlp forward nt", 128, 1024, 784, false, true),
    ("mlp data grad", 128, 1024, 1024, false, true),
    ("mlp weight grad", 784, 1024, 128, true, false),
    ("mlp last", 128, 10, 1024, false, false),
    ("mlp last weight", 1024, 10, 128, true, false),
    ("gpt qkv", 1024, 768, 256, false, false),
    ("gpt down", 1024, 256, 1024, false, false),
    ("gpt down wgrad", 1024, 256, 1024, true, false),
    ("lstm step", 16, 1024, 256, false, false),
    ("lstm step back", 16, 256, 1024, false, true),
    ("k-dominant", 576, 64, 65536, true, false),
];

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let isa = Isa::detect();
    println!("{isa}, registers alone: {:.1} GFLOP/s a core", peak());
    println!(
        "{:<18} {:>6} {:>5} {:>6} | wall 1t  2t | a cpu second 1t  2t | gemm crate 1t 2t",
        "case", "m", "n", "k"
    );
    for (name, m, n, k, ta, tb) in CASES.into_iter().filter(|case| case.0.contains(&filter)) {
        let (a, b, mut c) = (noise(m * k), noise(k * n), vec![0f32; m * n]);
        let (lda, ldb) = (if ta { m } else { k }, if tb { k } else { n });
        let flops = 2.0 * (m * n * k) as f64;
        let shape = Shape { m, n, k };
        let ours: Vec<_> = [1, 2]
            .map(|threads| {
                let pool = Pool::new(threads);
                let mut scratch = vec![0; gemm_scratch_bytes::<f32>(isa, shape, 1, threads)];
                let a = Operand { data: &a, ld: lda, transposed: ta };
                let b = Operand { data: &b, ld: ldb, transposed: tb };
                let product = Product::one(shape, a, b);
                rate(flops, || gemm(&pool, isa, product, &mut c, n, &Epilogue::NONE, &mut scratch))
            })
            .into();
        let theirs: Vec<_> = [gemm_crate::Parallelism::None, gemm_crate::Parallelism::Rayon(2)]
            .map(|parallel| rate(flops, || crate_gemm(&a, &b, &mut c, (m, n, k), (ta, tb), parallel)))
            .into();
        println!(
            "{name:<18} {m:>6} {n:>5} {k:>6} | {:>6.1} {:>6.1} | {:>6.1} {:>6.1} | {:>6.1} {:>6.1}",
            ours[0].wall, ours[1].wall, ours[0].cpu, ours[1].cpu, theirs[0].wall, theirs[1].wall
        );
    }
}

use ::gemm as gemm_crate;

fn crate_gemm(
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    (m, n, k): (usize, usize, usize),
    (ta, tb): (bool, bool),
    parallel: gemm_crate::Parallelism,
) {
    let (a_row, a_col) = if ta { (1, m as isize) } else { (k as isize, 1) };
    let (b_row, b_col) = if tb { (1, k as isize) } else { (n as isize, 1) };
    // SAFETY: the strides describe the three matrices that the slices hold.
    unsafe {
        gemm_crate::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.as_ptr(),
            a_col,
            a_row,
            b.as_ptr(),
            b_col,
            b_row,
            0.0,
            1.0,
            false,
            false,
            false,
            parallel,
        );
    }
}
