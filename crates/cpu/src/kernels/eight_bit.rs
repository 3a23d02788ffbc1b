//! An optimizer's step over state of one byte a number: a block of 256 is read, moved and written before the next.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::eight_bit::{BLOCK, Codes, divided, scale};
use plimsoll_graph::ops::EightBitUpdate;

use super::Kernel;
use super::update::Moved;
use crate::Cpu;
use crate::gemm::Shared;

/// Blocks of a task.
const TASK: usize = 64;

/// The bits of 2⁻²⁴, below which no bound lies but zero, without the lowest 15: a cell of numbers that agree in the others has one bound at
/// most.
const FIRST: u32 = 0x3380_0000 >> 15;
const CELLS: usize = (0x3f80_0000 >> 15) as usize - FIRST as usize + 1;

/// Codes found by the highest bits of a magnitude and one comparison, instead of eight.
struct Finder {
    /// By cell: bounds below it.
    below: [u8; CELLS],
    /// The bounds that are not negative, and one that nothing is above.
    bounds: [f32; 257],
    /// The code that is 0.
    zero: u8,
}

impl Finder {
    const fn new(codes: Codes) -> Finder {
        let (all, zero) = (codes.bounds(), codes.zero());
        let mut finder = Finder { below: [0; CELLS], bounds: [f32::INFINITY; 257], zero };
        let positive = all.len() - zero as usize;
        let mut at = 0;
        while at < positive {
            finder.bounds[at] = all[zero as usize + at];
            at += 1;
        }
        // The first cell also has everything below it.
        let (mut cell, mut below) = (1, 0);
        while cell < CELLS {
            let edge = f32::from_bits((FIRST + cell as u32) << 15);
            while finder.bounds[below as usize] < edge {
                below += 1;
            }
            finder.below[cell] = below;
            cell += 1;
        }
        finder
    }

    #[inline(always)]
    fn find(&self, x: f32) -> u8 {
        let magnitude = x.abs();
        let cell = (magnitude.to_bits() >> 15).clamp(FIRST, FIRST + CELLS as u32 - 1) - FIRST;
        let below = self.below[cell as usize];
        let bound = self.bounds[usize::from(below)];
        if x >= 0.0 {
            self.zero + below + u8::from(bound < magnitude)
        } else {
            // From the other side a bound itself counts; there is one value less below zero than above. No number is none above zero.
            let above = below + u8::from(bound <= magnitude);
            self.zero - above.min(self.zero)
        }
    }
}

static SIGNED: Finder = Finder::new(Codes::Signed);
static UNSIGNED: Finder = Finder::new(Codes::Unsigned);

/// Codes and scales of one state, read and written.
#[derive(Clone, Copy)]
struct State {
    codes: Codes,
    old: Shared<u8>,
    old_scales: Shared<u8>,
    new: Shared<u8>,
    new_scales: Shared<u8>,
}

impl State {
    fn of(call: &Call<'_>, codes: Codes, input: usize, output: usize) -> State {
        let (ins, outs) = (call.inputs, call.outputs);
        State {
            codes,
            old: Shared(ins[input].ptr),
            old_scales: Shared(ins[input + 1].ptr),
            new: Shared(outs[output].ptr),
            new_scales: Shared(outs[output + 1].ptr),
        }
    }

    /// The numbers of a block.
    #[inline(always)]
    fn read(&self, block: usize, out: &mut [f32]) {
        let values = self.codes.values();
        // SAFETY: the call's codes and scales are as many as its types say.
        unsafe {
            let scale = *self.old_scales.get().cast::<f32>().add(block);
            let codes = self.old.get().add(block * BLOCK);
            for (i, out) in out.iter_mut().enumerate() {
                *out = values[usize::from(*codes.add(i))] * scale;
            }
        }
    }

    #[inline(always)]
    fn write(&self, block: usize, numbers: &[f32], finder: &Finder) {
        let scale = scale(numbers);
        // SAFETY: as above; a block has one writer.
        unsafe {
            *self.new_scales.get().cast::<f32>().add(block) = scale;
            let codes = self.new.get().add(block * BLOCK);
            for (i, &x) in numbers.iter().enumerate() {
                *codes.add(i) = finder.find(divided(x, scale));
            }
        }
    }
}

impl Kernel for EightBitUpdate {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        let moved = unsafe { Moved::of(&self.0, call) };
        let (n, first, maps) = (moved.n, self.0.first_state(), self.codes());
        let state = |at: usize| State::of(call, maps[at], first + 2 * at, 1 + 2 * at);
        let (m, v) = (state(0), (maps.len() > 1).then(|| state(1)));
        let blocks = n.div_ceil(BLOCK);
        cpu.pool().run(blocks.div_ceil(TASK), |task| {
            let (mut means, mut squares) = ([0.0; BLOCK], [0.0; BLOCK]);
            for block in task * TASK..blocks.min((task + 1) * TASK) {
                let (start, n) = (block * BLOCK, BLOCK.min(n - block * BLOCK));
                m.read(block, &mut means[..n]);
                if let Some(v) = &v {
                    v.read(block, &mut squares[..n]);
                }
                moved.step(cpu.isa(), start, n, &mut means, &mut squares);
                m.write(block, &means[..n], &SIGNED);
                if let Some(v) = &v {
                    v.write(block, &squares[..n], &UNSIGNED);
                }
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_found_as_by_its_definition() {
        for (codes, finder) in [(Codes::Signed, &SIGNED), (Codes::Unsigned, &UNSIGNED)] {
            let near =
                |x: &f32| [-1i32, 0, 1].map(|ulps| f32::from_bits((x.to_bits() as i32 + ulps).max(0) as u32));
            let bounds = codes.bounds().iter().filter(|x| **x != 0.0).flat_map(near);
            let values = codes.values().iter().filter(|x| x.abs() < 1.0 && **x != 0.0).flat_map(near);
            let edges = (0..CELLS as u32).map(|cell| f32::from_bits((FIRST + cell) << 15));
            let spread = (0..200_000u32).map(|i| f32::from_bits(i * 5323 % 0x3f80_0001));
            let others = [0.0, -0.0, 1.0, f32::MIN_POSITIVE, 1e-44, f32::NAN];
            for x in bounds.chain(values).chain(edges).chain(spread).chain(others) {
                let signs: &[f32] = if codes == Codes::Signed { &[1.0, -1.0] } else { &[1.0] };
                for sign in signs {
                    let x = x * sign;
                    assert_eq!(finder.find(x), codes.encode(x), "{x:e} in {codes:?}");
                }
            }
        }
    }
}
