//! An optimizer's step over state in bf16, and over parameters in bf16: a block of 256 numbers is widened, moved, and rounded by draws of a counter
//! before the next.
//!
//! Blocks begin where those of the draws do: a shard that begins inside of one has fewer numbers in its first.

use half::bf16;
use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::DType;
use plimsoll_graph::eight_bit::BLOCK;
use plimsoll_graph::ops::{Bf16Update, dither, rounded, value_dither};
use plimsoll_graph::philox::Source;

use super::Kernel;
use super::random::{Grid, WIDTH, words};
use super::update::Moved;
use crate::Cpu;
use crate::gemm::Shared;
use crate::simd::{Float32, multiversion};

/// Blocks of a task.
const TASK: usize = 64;
/// Numbers that are drawn for together.
const DRAWN: usize = 4 * WIDTH;
// A block is whole numbers of those.
const _: () = assert!(BLOCK.is_multiple_of(DRAWN));

/// A state, or a parameter, read and written.
#[derive(Clone, Copy)]
struct State {
    old: Shared<bf16>,
    new: Shared<bf16>,
}

/// A parameter in bf16, with its gradient.
struct Narrow {
    value: State,
    grad: Shared<bf16>,
}

multiversion! {
    /// The words of the elements of a block, in order.
    fn drawn<L>(source: &Source, grid: &Grid, block: usize, out: &mut [u32; BLOCK]) {
        for (at, out) in out.as_chunks_mut::<DRAWN>().0.iter_mut().enumerate() {
            let words = words(source, grid, block * (BLOCK / 4) + at * WIDTH);
            for lane in 0..WIDTH {
                for word in 0..4 {
                    out[4 * lane + word] = words[word][lane];
                }
            }
        }
    }

    /// Numbers from bf16.
    fn widened<L>(old: *const bf16, out: &mut [f32]) {
        for (i, out) in out.iter_mut().enumerate() {
            // SAFETY: the caller gives as many numbers.
            *out = unsafe { *old.add(i) }.widen();
        }
    }

    /// Numbers of a state to bf16, each by its word.
    fn narrowed<L>(numbers: &[f32], words: &[u32], state: usize, new: *mut bf16) {
        for (i, (&x, &word)) in numbers.iter().zip(words).enumerate() {
            // SAFETY: the caller gives room for as many.
            unsafe { *new.add(i) = bf16::from_bits(rounded(x, dither(word, state))) };
        }
    }

    /// Numbers of a parameter to bf16, each by its word.
    fn narrowed_values<L>(numbers: &[f32], words: &[u32], new: *mut bf16) {
        for (i, (&x, &word)) in numbers.iter().zip(words).enumerate() {
            // SAFETY: the caller gives room for as many.
            unsafe { *new.add(i) = bf16::from_bits(rounded(x, value_dither(word))) };
        }
    }
}

impl Kernel for Bf16Update {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise; a key is two numbers.
        let (moved, key) = unsafe { (Moved::of(&self.update, call), call.inputs[self.key()].slice::<i64>()) };
        let source = self.source([key[0], key[1]]);
        let state = |at: usize| State {
            old: Shared(call.inputs[self.key() + 1 + at].ptr.cast()),
            new: Shared(call.outputs[1 + at].ptr.cast()),
        };
        let narrow = (call.inputs[0].ty.dtype == DType::BF16).then(|| Narrow {
            value: State { old: Shared(call.inputs[0].ptr.cast()), new: Shared(call.outputs[0].ptr.cast()) },
            grad: Shared(call.inputs[1].ptr.cast()),
        });
        let m = state(0);
        let v = (self.update.rule.states() > 1).then(|| state(1));
        let (first, end) = (self.first, self.first + moved.n);
        let grid = Grid::of_one(end);
        let blocks = first / BLOCK..end.div_ceil(BLOCK);
        cpu.pool().run(blocks.len().div_ceil(TASK), |task| {
            let (mut means, mut squares, mut words) = ([0.0; BLOCK], [0.0; BLOCK], [0; BLOCK]);
            let (mut values, mut grads) = ([0.0; BLOCK], [0.0; BLOCK]);
            let begin = blocks.start + task * TASK;
            for block in begin..blocks.end.min(begin + TASK) {
                let from = first.max(block * BLOCK);
                let (start, n) = (from - first, end.min((block + 1) * BLOCK) - from);
                let isa = cpu.isa();
                widened(isa, m.old.get().wrapping_add(start), &mut means[..n]);
                if let Some(v) = &v {
                    widened(isa, v.old.get().wrapping_add(start), &mut squares[..n]);
                }
                drawn(isa, &source, &grid, block, &mut words);
                let words = &words[from % BLOCK..from % BLOCK + n];
                match &narrow {
                    None => moved.step(isa, start, n, &mut means, &mut squares),
                    Some(Narrow { value, grad }) => {
                        widened(isa, value.old.get().wrapping_add(start), &mut values[..n]);
                        widened(isa, grad.get().wrapping_add(start), &mut grads[..n]);
                        moved.step_here(isa, n, &mut values, &grads, &mut means, &mut squares);
                        narrowed_values(isa, &values[..n], words, value.new.get().wrapping_add(start));
                    }
                }
                narrowed(isa, &means[..n], words, 0, m.new.get().wrapping_add(start));
                if let Some(v) = &v {
                    narrowed(isa, &squares[..n], words, 1, v.new.get().wrapping_add(start));
                }
            }
        });
        Ok(())
    }
}
