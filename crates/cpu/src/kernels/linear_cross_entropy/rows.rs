//! What is done with the logits of a linear layer with cross-entropy: products of stored types into wide ones, sums of exponentials, gradients.

use half::{bf16, f16};

use crate::Cpu;
use crate::gemm::{Epilogue, Product, Shape, gemm, gemm_f64, gemm_scratch_bytes};
use crate::kernels::gather::Indices;
use crate::kernels::lanes::{LANES, Stored, Wide, groups, larger, load, max, store, sum};
use crate::simd::multiversion;

/// Products of a stored type: into its wide type, or into itself.
pub(in crate::kernels) trait Multiply: Stored {
    fn scratch(cpu: &Cpu, shape: Shape) -> usize;
    /// c = a b, or c + a b, in the wide type.
    fn wide(
        cpu: &Cpu,
        p: Product<'_, Self>,
        c: &mut [Self::Wide],
        ldc: usize,
        adds: bool,
        scratch: &mut [u8],
    );
    /// c = a b.
    fn own(cpu: &Cpu, p: Product<'_, Self>, c: &mut [Self], ldc: usize, scratch: &mut [u8]);
}

macro_rules! multiply {
    ($($t:ty),+) => { $(
        impl Multiply for $t {
            fn scratch(cpu: &Cpu, shape: Shape) -> usize {
                let threads = cpu.threads();
                let wide = gemm_scratch_bytes::<f32>(cpu.isa(), shape, 1, threads);
                wide.max(gemm_scratch_bytes::<$t>(cpu.isa(), shape, 1, threads))
            }

            fn wide(cpu: &Cpu, p: Product<'_, $t>, c: &mut [f32], ldc: usize, adds: bool, scratch: &mut [u8]) {
                let epilogue = if adds { &Epilogue::ACCUMULATE } else { &Epilogue::NONE };
                gemm(cpu.pool(), cpu.isa(), p, c, ldc, epilogue, scratch);
            }

            fn own(cpu: &Cpu, p: Product<'_, $t>, c: &mut [$t], ldc: usize, scratch: &mut [u8]) {
                gemm(cpu.pool(), cpu.isa(), p, c, ldc, &Epilogue::NONE, scratch);
            }
        }
    )+ };
}
multiply!(f32, bf16, f16);

impl Multiply for f64 {
    fn scratch(_: &Cpu, _: Shape) -> usize {
        0
    }

    fn wide(cpu: &Cpu, p: Product<'_, f64>, c: &mut [f64], ldc: usize, adds: bool, _: &mut [u8]) {
        gemm_f64(cpu.pool(), p, c, ldc, adds, None);
    }

    fn own(cpu: &Cpu, p: Product<'_, f64>, c: &mut [f64], ldc: usize, _: &mut [u8]) {
        gemm_f64(cpu.pool(), p, c, ldc, false, None);
    }
}

multiversion! {
    /// Caps the logits of each row of `n`, and lets its largest and its sum of exponentials go on over them.
    pub(in crate::kernels) fn add_piece<L; W: Wide>(x: *mut W, top: *mut W, total: *mut W, rows: usize, n: usize, cap: Option<W>, is_first: bool) {
        for r in 0..rows {
            // SAFETY: the caller gives `rows` rows of `n` logits, and as many tops and totals.
            unsafe {
                let x = x.add(r * n);
                if let Some(cap) = cap {
                    groups!(LANES, n, |i, len| {
                        let mut v = load::<W, LANES>(x.add(i), len, W::ZERO);
                        for v in &mut v {
                            *v = (*v / cap).tanh::<L>() * cap;
                        }
                        store(x.add(i), len, v);
                    });
                }
                let mut tops = [W::LOWEST; LANES];
                groups!(LANES, n, |i, len| {
                    let v = load::<W, LANES>(x.add(i), len, W::LOWEST);
                    for l in 0..LANES {
                        tops[l] = larger(v[l], tops[l]);
                    }
                });
                let own = max(tops);
                let (before, so_far) = match is_first {
                    true => (own, W::ZERO),
                    false => (top.add(r).read(), total.add(r).read()),
                };
                let most = larger(own, before);
                let mut sums = [W::ZERO; LANES];
                groups!(LANES, n, |i, len| {
                    let v = load::<W, LANES>(x.add(i), len, W::LOWEST);
                    for l in 0..LANES {
                        sums[l] += (v[l] - most).exp::<L>();
                    }
                });
                top.add(r).write(most);
                total.add(r).write(so_far * (before - most).exp::<L>() + sum(sums));
            }
        }
    }

    /// The gradient of each row of `n` logits that begin with class `start`, over the logits themselves or into another type.
    pub(in crate::kernels) fn differentiate<L; T: Stored>(
        x: *mut T::Wide, labels: Indices, first: usize, start: usize, lse: *const T::Wide, dloss: *const T::Wide, out: *mut T,
        rows: usize, n: usize, cap: Option<T::Wide>,
    ) {
        for r in 0..rows {
            // SAFETY: the caller gives `rows` rows of `n` logits and of `n` gradients, labels from `first` on, log-sums and gradients.
            unsafe {
                let (x, out) = (x.add(r * n), out.add(r * n));
                let (lse, dloss, label) = (lse.add(r).read(), dloss.add(r).read(), labels.at(first + r));
                let at_label = (label >= start && label < start + n).then(|| {
                    let mut v = x.add(label - start).read();
                    let mut slope = dloss;
                    if let Some(cap) = cap {
                        let t = (v / cap).tanh::<L>();
                        v = t * cap;
                        slope *= T::Wide::ONE - t * t;
                    }
                    ((v - lse).exp::<L>() - T::Wide::ONE) * slope
                });
                groups!(LANES, n, |i, len| {
                    let mut v = load::<T::Wide, LANES>(x.add(i), len, T::Wide::ZERO);
                    match cap {
                        None => {
                            for v in &mut v {
                                *v = (*v - lse).exp::<L>() * dloss;
                            }
                        }
                        Some(cap) => {
                            for v in &mut v {
                                let t = (*v / cap).tanh::<L>();
                                *v = (t * cap - lse).exp::<L>() * dloss * (T::Wide::ONE - t * t);
                            }
                        }
                    }
                    store(out.add(i), len, v);
                });
                if let Some(g) = at_label {
                    out.add(label - start).write(T::narrow(g));
                }
            }
        }
    }
}
