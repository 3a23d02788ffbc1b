//! Timing shared by the speed examples: best wall time of many rounds, and processor time.

use std::time::{Duration, Instant};

/// Nanoseconds of processor time that all threads of this process have used, where the system tells.
fn cpu_ns() -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

/// Billions of operations a second: by the wall clock, and by processor time (one core's worth).
pub struct Rate {
    /// By the fastest round's wall clock.
    pub wall: f64,
    /// By the processor time of all rounds together, because the system counts it in coarse ticks.
    pub cpu: f64,
}

/// Runs `body` again and again for a while; `flops` is what one run does.
pub fn rate(flops: f64, mut body: impl FnMut()) -> Rate {
    body();
    let first = Instant::now();
    body();
    let once = first.elapsed().as_secs_f64().max(1e-7);
    let inner = ((0.004 / once) as usize).max(1);
    let mut wall = f64::INFINITY;
    let (cpu_0, start) = (cpu_ns(), Instant::now());
    let mut rounds = 0;
    while rounds < 8 || (start.elapsed() < Duration::from_millis(250) && rounds < 200) {
        let t0 = Instant::now();
        (0..inner).for_each(|_| body());
        wall = wall.min(t0.elapsed().as_secs_f64() / inner as f64);
        rounds += 1;
    }
    let cpu = (cpu_ns() - cpu_0) as f64 * 1e-9 / (rounds * inner) as f64;
    Rate { wall: flops / wall * 1e-9, cpu: flops / cpu * 1e-9 }
}

/// Fused multiply-adds in registers alone: what one core can do at most, in GFLOP/s.
pub fn peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if plimsoll_cpu::isa::Isa::detect() == plimsoll_cpu::isa::Isa::Avx512 {
        // SAFETY: the processor has AVX-512.
        let rate = rate(20_000.0 * 24.0 * 32.0, || unsafe { registers_only() });
        return rate.wall.max(rate.cpu);
    }
    f64::NAN
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn registers_only() {
    use std::arch::x86_64::*;
    let mut acc = std::hint::black_box([_mm512_setzero_ps(); 24]);
    let x = std::hint::black_box(_mm512_set1_ps(0.5));
    for _ in 0..20_000 {
        for a in &mut acc {
            *a = _mm512_fmadd_ps(x, *a, x);
        }
    }
    std::hint::black_box(acc);
}

/// Numbers between -1 and 1.
pub fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}
