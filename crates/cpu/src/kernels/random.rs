//! Random values: sixteen counters at once through the generator, whatever the sample they belong to.
//!
//! All blocks of all samples are numbered in one row, and sixteen neighbours are computed side by side, so that short
//! samples vectorise as well as long ones. The last block of a sample may be cut short; dropping its spare words
//! leaves the values of sixteen blocks next to each other in memory.

use std::f32::consts::TAU;

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Element, Fault};
use plimsoll_graph::philox::{MULTIPLIERS, ROUNDS, Source, WEYL, normal_pair, unit};
use plimsoll_graph::{DType, Type, ops};

use super::Kernel;
use super::lanes::by_dtype;
use crate::Cpu;
use crate::gemm::Shared;
use crate::math;
use crate::simd::{Float32, Level, multiversion};

/// Counters that go through the generator together.
pub(super) const WIDTH: usize = 16;
/// Values of that many blocks.
const VALUES: usize = 4 * WIDTH;
/// Blocks of one task.
const TASK_BLOCKS: usize = 4096;

/// How a value's elements fall into samples and blocks.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    /// Elements of a sample.
    sample: usize,
    /// Blocks of a sample.
    blocks: usize,
    /// Blocks of all samples.
    total: usize,
}

impl Grid {
    fn new(ty: &Type) -> Grid {
        let samples = ty.shape.first().copied().unwrap_or(1);
        let sample: usize = ty.shape.get(1..).map_or(1, |rest| rest.iter().product());
        let blocks = sample.div_ceil(4);
        Grid { sample, blocks, total: samples * blocks }
    }

    /// The elements of one sample.
    pub(super) fn of_one(sample: usize) -> Grid {
        let blocks = sample.div_ceil(4);
        Grid { sample, blocks, total: blocks }
    }

    fn tasks(&self) -> usize {
        self.total.div_ceil(TASK_BLOCKS)
    }

    /// The blocks of a task.
    fn range(&self, task: usize) -> std::ops::Range<usize> {
        task * TASK_BLOCKS..((task + 1) * TASK_BLOCKS).min(self.total)
    }

    /// The first element of a block.
    #[inline(always)]
    fn element(&self, block: usize) -> usize {
        block / self.blocks * self.sample + block % self.blocks * 4
    }

    /// Elements of a block that exist.
    #[inline(always)]
    fn used(&self, block: usize) -> usize {
        (self.sample - block % self.blocks * 4).min(4)
    }
}

/// The words of sixteen blocks, word by word. Blocks past the end are computed and left unused.
#[inline(always)]
pub(super) fn words(source: &Source, grid: &Grid, first: usize) -> [[u32; WIDTH]; 4] {
    let (mut sample, mut block) = (first / grid.blocks, first % grid.blocks);
    let (mut counter, mut key) = source.sample(sample);
    let mut c = [[0u64; WIDTH], [0; WIDTH], [0; WIDTH], [0; WIDTH]];
    let mut k = [[0u64; WIDTH]; 2];
    for lane in 0..WIDTH {
        c[0][lane] = block as u64;
        (1..4).for_each(|word| c[word][lane] = u64::from(counter[word]));
        (0..2).for_each(|word| k[word][lane] = u64::from(key[word]));
        block += 1;
        if block == grid.blocks {
            (sample, block) = (sample + 1, 0);
            (counter, key) = source.sample(sample);
        }
    }
    // Words are kept in the lower halves of 64 bits, where the products want them; the upper halves hold anything.
    const LOW: u64 = u32::MAX as u64;
    for round in 0..ROUNDS {
        let weyl = WEYL.map(|w| u64::from(w) * round as u64);
        for lane in 0..WIDTH {
            let p0 = (c[0][lane] & LOW) * u64::from(MULTIPLIERS[0]);
            let p1 = (c[2][lane] & LOW) * u64::from(MULTIPLIERS[1]);
            c[0][lane] = p1 >> 32 ^ c[1][lane] ^ k[0][lane].wrapping_add(weyl[0]);
            c[1][lane] = p1;
            c[2][lane] = p0 >> 32 ^ c[3][lane] ^ k[1][lane].wrapping_add(weyl[1]);
            c[3][lane] = p0;
        }
    }
    let mut words = [[0u32; WIDTH]; 4];
    for word in 0..4 {
        for lane in 0..WIDTH {
            words[word][lane] = c[word][lane] as u32;
        }
    }
    words
}

/// Puts sixteen blocks' values into memory order without the spare ones, and says how many remain.
#[inline(always)]
fn compact(
    values: &[[f32; WIDTH]; 4],
    grid: &Grid,
    first: usize,
    end: usize,
    out: &mut [f32; VALUES],
) -> usize {
    for lane in 0..WIDTH {
        for word in 0..4 {
            out[4 * lane + word] = values[word][lane];
        }
    }
    let n = (end - first).min(WIDTH);
    if grid.sample.is_multiple_of(4) {
        return 4 * n;
    }
    let mut to = 0;
    for lane in 0..n {
        for word in 0..grid.used(first + lane) {
            out[to] = out[4 * lane + word];
            to += 1;
        }
    }
    to
}

/// The upper 24 bits of a word as a number in [0, 1).
#[inline(always)]
fn unit32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

/// Cosine and sine of a number of turns in [0, 1), by the nearest quarter turn; the reduction is exact.
#[inline(always)]
fn turn<L: Level>(turns: f32) -> (f32, f32) {
    let quarter = (turns * 4.0 + 0.5) as i32;
    let r = (turns - quarter as f32 * 0.25) * TAU;
    let s = r * r;
    let sin = L::fma(r * s, L::fma(s, L::fma(s, -1.951_529_6e-4, 8.332_161e-3), -1.666_665_5e-1), r);
    let cos = L::fma(
        s * s,
        L::fma(s, L::fma(s, 2.443_315_7e-5, -1.388_731_6e-3), 4.166_664_6e-2),
        L::fma(s, -0.5, 1.0),
    );
    let odd = quarter & 1 == 1;
    let (c, s) = (if odd { sin } else { cos }, if odd { cos } else { sin });
    let sign = |x: f32, negative: bool| if negative { -x } else { x };
    (sign(c, (quarter + 1) & 2 == 2), sign(s, quarter & 2 == 2))
}

/// Sixteen blocks' words as standard normal values, two of two.
#[inline(always)]
fn normals<L: Level>(words: &[[u32; WIDTH]; 4]) -> [[f32; WIDTH]; 4] {
    let mut values = [[0f32; WIDTH]; 4];
    for pair in [0, 2] {
        for lane in 0..WIDTH {
            let radius = (-2.0 * math::log::<L>(1.0 - unit32(words[pair][lane]))).sqrt();
            let (cos, sin) = turn::<L>(unit32(words[pair + 1][lane]));
            values[pair][lane] = radius * cos;
            values[pair + 1][lane] = radius * sin;
        }
    }
    values
}

/// Writes sixteen blocks' values to where they belong.
///
/// # Safety
/// `out` has the grid's elements, and nobody else writes those of these blocks, which lie next to each other.
#[inline(always)]
unsafe fn put<T: Float32>(values: &[[f32; WIDTH]; 4], grid: &Grid, first: usize, end: usize, out: Shared<T>) {
    let mut buffer = [0f32; VALUES];
    let n = compact(values, grid, first, end, &mut buffer);
    // SAFETY: the caller's promise.
    let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(grid.element(first)), n) };
    out.iter_mut().zip(&buffer).for_each(|(y, &x)| *y = T::narrow(x));
}

multiversion! {
    /// Draws the task's share of uniform values.
    fn uniform_task<L; T: Float32>(source: &Source, grid: &Grid, task: usize, low: f32, width: f32, out: Shared<T>) {
        let range = grid.range(task);
        for first in range.clone().step_by(WIDTH) {
            let words = words(source, grid, first);
            let mut values = [[0f32; WIDTH]; 4];
            for word in 0..4 {
                for lane in 0..WIDTH {
                    values[word][lane] = L::fma(unit32(words[word][lane]), width, low);
                }
            }
            // SAFETY: no other task has these blocks.
            unsafe { put(&values, grid, first, range.end, out) };
        }
    }

    /// Draws the task's share of normal values.
    fn normal_task<L; T: Float32>(source: &Source, grid: &Grid, task: usize, mean: f32, std: f32, out: Shared<T>) {
        let range = grid.range(task);
        for first in range.clone().step_by(WIDTH) {
            let mut values = normals::<L>(&words(source, grid, first));
            values.iter_mut().flatten().for_each(|x| *x = L::fma(*x, std, mean));
            // SAFETY: as for uniform values.
            unsafe { put(&values, grid, first, range.end, out) };
        }
    }

    /// Draws the task's share of normal values around zero, those beyond the bound again from the next source.
    fn truncated_task<L; T: Float32>(sources: &[Source], grid: &Grid, task: usize, std: f32, bound: f32, out: Shared<T>) {
        let range = grid.range(task);
        for first in range.clone().step_by(WIDTH) {
            let mut values = [[0f32; WIDTH]; 4];
            for (draw, source) in sources.iter().enumerate() {
                let again = draw > 0;
                if again && values.iter().flatten().all(|x| x.abs() <= bound) {
                    break;
                }
                let fresh = normals::<L>(&words(source, grid, first));
                for (x, fresh) in values.iter_mut().flatten().zip(fresh.iter().flatten()) {
                    if !again || x.abs() > bound {
                        *x = L::fma(*fresh, std, 0.0);
                    }
                }
            }
            values.iter_mut().flatten().for_each(|x| *x = x.clamp(-bound, bound));
            // SAFETY: as for uniform values.
            unsafe { put(&values, grid, first, range.end, out) };
        }
    }

    /// Drops the task's share of elements; the output may be the input.
    fn dropout_task<L; T: Float32>(
        source: &Source,
        grid: &Grid,
        task: usize,
        threshold: u32,
        scale: f32,
        x: Shared<T>,
        y: Shared<T>,
    ) {
        let range = grid.range(task);
        let mut buffer = [0f32; VALUES];
        for first in range.clone().step_by(WIDTH) {
            let words = words(source, grid, first);
            let mut values = [[0f32; WIDTH]; 4];
            for word in 0..4 {
                for lane in 0..WIDTH {
                    values[word][lane] = if words[word][lane] >> 8 >= threshold { scale } else { 0.0 };
                }
            }
            let n = compact(&values, grid, first, range.end, &mut buffer);
            let place = grid.element(first);
            for (i, &factor) in buffer.iter().enumerate().take(n) {
                // SAFETY: as for uniform values; an element is read before it is written, by one task alone.
                unsafe {
                    let value = x.get().add(place + i).read().widen() * factor;
                    y.get().add(place + i).write(T::narrow(if factor == 0.0 { 0.0 } else { value }));
                }
            }
        }
    }
}

/// The same in f64, block by block: for checks, where exactness counts more than speed.
fn f64_task(source: &Source, grid: &Grid, task: usize, mut store: impl FnMut(usize, [u32; 4], usize)) {
    for block in grid.range(task) {
        let words = source.block(block / grid.blocks, (block % grid.blocks) as u32);
        let place = grid.element(block);
        (0..grid.used(block)).for_each(|i| store(place + i, words, i));
    }
}

/// The key tensor's source.
///
/// # Safety
/// The call's operand is a live key.
unsafe fn source(call: &Call<'_>, input: usize, stream: u32) -> Source {
    // SAFETY: the op's shape rule says that a key is three i64.
    let key = unsafe { call.inputs[input].slice::<i64>() };
    Source::new([key[0], key[1], key[2]], stream)
}

/// Picks the element type of the call's output; the caller has seen that it is a float.
macro_rules! for_float {
    ($dtype:expr, $wide:expr, $t:ident => $narrow:expr) => {
        match $dtype {
            DType::F64 => $wide,
            narrow => by_dtype!(narrow, $t in BF16 = bf16, F16 = f16, F32 = f32 => $narrow, _other => ()),
        }
    };
}

/// A pointer of the call, to share among tasks.
fn typed<T: Element>(pointer: Shared<u8>) -> Shared<T> {
    Shared(pointer.get().cast())
}

impl Kernel for ops::Uniform {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        let source = unsafe { source(call, 0, self.stream) };
        let (grid, low, width) = (Grid::new(&self.ty), self.low.0, self.high.0 - self.low.0);
        let out = Shared(call.outputs[0].ptr);
        cpu.pool().run(grid.tasks(), |task| {
            for_float!(
                self.ty.dtype,
                f64_task(&source, &grid, task, |at, words, i| {
                    // SAFETY: every element belongs to one task.
                    unsafe { typed::<f64>(out).get().add(at).write(low + width * unit(words[i])) }
                }),
                T => uniform_task(cpu.isa(), &source, &grid, task, low as f32, width as f32, typed::<T>(out))
            );
        });
        Ok(())
    }
}

impl Kernel for ops::Normal {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        let source = unsafe { source(call, 0, self.stream) };
        let (grid, mean, std) = (Grid::new(&self.ty), self.mean.0, self.std.0);
        let out = Shared(call.outputs[0].ptr);
        cpu.pool().run(grid.tasks(), |task| {
            for_float!(
                self.ty.dtype,
                f64_task(&source, &grid, task, |at, words, i| {
                    let pair = normal_pair([words[i / 2 * 2], words[i / 2 * 2 + 1]]);
                    // SAFETY: every element belongs to one task.
                    unsafe { typed::<f64>(out).get().add(at).write(mean + std * pair[i % 2]) }
                }),
                T => normal_task(cpu.isa(), &source, &grid, task, mean as f32, std as f32, typed::<T>(out))
            );
        });
        Ok(())
    }
}

impl Kernel for ops::TruncatedNormal {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        let sources = self.streams.map(|stream| unsafe { source(call, 0, stream) });
        let (grid, std, bound) = (Grid::new(&self.ty), self.std.0, 2.0 * self.std.0);
        let out = Shared(call.outputs[0].ptr);
        cpu.pool().run(grid.tasks(), |task| {
            for_float!(
                self.ty.dtype,
                f64_task(&sources[0], &grid, task, |at, words, i| {
                    let block = |source: &Source| {
                        let (sample, inside) = (at / grid.sample, at % grid.sample / 4);
                        source.block(sample, inside as u32)
                    };
                    let value = |words: [u32; 4]| std * normal_pair([words[i / 2 * 2], words[i / 2 * 2 + 1]])[i % 2];
                    let mut x = value(words);
                    for source in &sources[1..] {
                        if x.abs() <= bound {
                            break;
                        }
                        x = value(block(source));
                    }
                    // SAFETY: every element belongs to one task.
                    unsafe { typed::<f64>(out).get().add(at).write(x.clamp(-bound, bound)) }
                }),
                T => {
                    let (std, bound) = (std as f32, bound as f32);
                    truncated_task(cpu.isa(), &sources, &grid, task, std, bound, typed::<T>(out))
                }
            );
        });
        Ok(())
    }
}

impl Kernel for ops::Dropout {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        let source = unsafe { source(call, 1, self.stream) };
        let (grid, threshold, scale) = (Grid::new(call.outputs[0].ty), self.threshold(), self.scale());
        let (x, dtype) = (Shared(call.inputs[0].ptr), call.outputs[0].ty.dtype);
        let out = Shared(call.outputs[0].ptr);
        cpu.pool().run(grid.tasks(), |task| {
            for_float!(
                dtype,
                f64_task(&source, &grid, task, |at, words, i| {
                    // SAFETY: every element belongs to one task and is read before it is written.
                    unsafe {
                        let value = typed::<f64>(x).get().add(at).read() * scale;
                        let y = if words[i] >> 8 >= threshold { value } else { 0.0 };
                        typed::<f64>(out).get().add(at).write(y);
                    }
                }),
                T => {
                    let (x, y) = (typed::<T>(x), typed::<T>(out));
                    dropout_task(cpu.isa(), &source, &grid, task, threshold, scale as f32, x, y)
                }
            );
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    fn draw(first: i64, samples: usize, sample: usize) -> Vec<f32> {
        let (source, grid) =
            (Source::new([42, 7, first], 3), Grid::new(&Type::new(DType::F32, [samples, sample])));
        let mut out = vec![f32::NAN; 3 * samples * sample];
        let (n, base) = (samples * sample, out.as_mut_ptr());
        for task in 0..grid.tasks() {
            let at = |i: usize| Shared(base.wrapping_add(i * n));
            uniform_task(Isa::detect(), &source, &grid, task, -1.0, 2.0, at(0));
            normal_task(Isa::detect(), &source, &grid, task, 0.0, 1.0, at(1));
            dropout_task(Isa::detect(), &source, &grid, task, 1 << 23, 2.0, at(0), at(2));
        }
        // Sample by sample, so that pieces can be put one after the other.
        (0..samples)
            .flat_map(|s| (0..3).flat_map(move |op| (0..sample).map(move |e| (op, s * sample + e))))
            .map(|(op, i)| out[op * n + i])
            .collect()
    }

    #[test]
    fn a_batch_of_ten_draws_the_bits_of_its_pieces_of_four_four_and_two() {
        for sample in [1, 2, 7, 64, 101] {
            let pieces = [draw(0, 4, sample), draw(4, 4, sample), draw(8, 2, sample)].concat();
            assert_eq!(draw(0, 10, sample), pieces, "samples of {sample}");
        }
    }

    #[test]
    fn sixteen_lanes_hold_the_words_of_sixteen_blocks() {
        let source = Source::new([-5, 1 << 35, (1 << 32) - 2], 9);
        for sample in [1, 6, 40, 200] {
            let grid = Grid::new(&Type::new(DType::F32, [30, sample]));
            for first in [0, 16] {
                let words = words(&source, &grid, first);
                for lane in 0..WIDTH {
                    let block = first + lane;
                    let want = source.block(block / grid.blocks, (block % grid.blocks) as u32);
                    assert_eq!(
                        [0, 1, 2, 3].map(|w| words[w][lane]),
                        want,
                        "block {block} of samples of {sample}"
                    );
                }
            }
        }
    }
}
