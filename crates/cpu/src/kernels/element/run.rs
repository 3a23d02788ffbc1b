//! Runs a chain of elementwise steps tile by tile: every step is one tight loop over a tile that stays in the
//! first-level cache, and memory is passed once however long the chain is.
//!
//! ```text
//! input 0 (f32, dense) ──────────► read where it lies ┐
//! input 1 (bf16, a row, …) ─ load ─► register tile ───┼─► step ─► register tile ─► step ─► … ─► output
//! constant, scalar ─────────────────► one block ──────┘            (reused when its last reader is done)
//! ```
//!
//! A step reads a block of its operands before it writes that block of its result, so a result may take the place of
//! an operand that ends there. A result goes straight to its output when no later step reads an input that shares
//! that output's memory; else it waits in a register until the tile's steps are done.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::Arg;

use super::layout::Tile;
use super::plan::{ARENA, BLOCK, Lane, Place, Plan, Program, Reading, Source, operand_type};
use crate::Cpu;
use crate::isa::Isa;

/// The registers of a task. Aligned, because a vector across two cache lines costs two loads.
#[repr(align(64))]
struct Arena([std::mem::MaybeUninit<u8>; ARENA]);

/// Computes a program's outputs.
///
/// # Safety
/// As for [`plimsoll_device::backend::Backend::run`].
pub(super) unsafe fn execute<T: Lane>(cpu: &Cpu, program: Program<'_>, call: &Call<'_>) -> Result<(), Fault> {
    if program.shape.elements() == 0 {
        return Ok(());
    }
    let (mut plan, longest) = Plan::new::<T>(program, call)?;
    let tiles = plan.layout.tiles(longest);
    plan.choose_readings::<T>(tiles.gathers);
    let shared = SharedPlan(&plan);
    let isa = cpu.isa();
    cpu.pool().run(tiles.n_tasks(), |task| {
        // SAFETY: tasks write disjoint tiles; the rest is the caller's promise.
        unsafe { shared.get().run_task::<T>(isa, tiles.of_task(task), longest) };
    });
    Ok(())
}

/// The plan's pointers may be shared: tasks write disjoint elements.
struct SharedPlan<'a>(&'a Plan<'a>);

// SAFETY: see above; everything else in a plan is plain data.
unsafe impl Sync for SharedPlan<'_> {}
// SAFETY: as above.
unsafe impl Send for SharedPlan<'_> {}

impl<'a> SharedPlan<'a> {
    fn get(&self) -> &'a Plan<'a> {
        self.0
    }
}

/// Where a task computes: a register a value, each as long as the longest tile, and blocks that repeat one number.
#[derive(Clone, Copy)]
struct Room<T> {
    registers: *mut T,
    blocks: *mut T,
    longest: usize,
}

impl<T> Room<T> {
    fn register(self, i: usize) -> *mut T {
        self.registers.wrapping_add(i * self.longest)
    }

    fn block(self, i: usize) -> *mut T {
        self.blocks.wrapping_add(i * BLOCK)
    }
}

impl Plan<'_> {
    /// Runs the tiles of one task.
    ///
    /// # Safety
    /// Operands as promised by the caller of [`execute`]; nobody else writes these tiles.
    unsafe fn run_task<T: Lane>(&self, isa: Isa, tiles: impl Iterator<Item = Tile>, longest: usize) {
        let mut arena = Arena([const { std::mem::MaybeUninit::uninit() }; ARENA]);
        let registers = arena.0.as_mut_ptr().cast::<T>();
        // Blocks lie at the end, where long tiles without registers leave them alone.
        let blocks = registers.wrapping_add(ARENA / size_of::<T>() - self.n_blocks * BLOCK);
        let mut n_constants = self.inputs.len();
        for step in self.program.steps {
            for arg in &step.args {
                if let Arg::Const(value) = arg {
                    let block = blocks.wrapping_add(n_constants * BLOCK);
                    let dtype = operand_type(self.program, self.inputs, step);
                    // SAFETY: the arena has room for all blocks.
                    unsafe { fill(block, T::constant(value.0, dtype), BLOCK) };
                    n_constants += 1;
                }
            }
        }
        debug_assert_eq!(n_constants, self.n_blocks);
        let room = Room { registers, blocks, longest };
        let mut is_first = true;
        for tile in tiles {
            // SAFETY: registers and blocks lie in the arena, tiles inside the operands.
            unsafe {
                self.load_inputs(isa, tile, room, is_first);
                self.run_steps(isa, tile, room);
                self.store_outputs(isa, tile, room);
            }
            is_first = false;
        }
    }

    unsafe fn load_inputs<T: Lane>(&self, isa: Isa, tile: Tile, room: Room<T>, is_first: bool) {
        for (i, reading) in self.readings.iter().enumerate() {
            let (dtype, base) = (self.inputs[i].ty.dtype, self.inputs[i].ptr);
            let at = |element: usize| base.wrapping_add(element * dtype.bytes()).cast_const();
            let register = room.register(i);
            match *reading {
                Reading::Direct => {}
                Reading::Constant(_) if !is_first => {}
                Reading::Block(_) => {
                    let block = room.block(i);
                    let offset = self.layout.row_offset(i, tile.row);
                    if is_first || !self.layout.is_one_row(i) {
                        // SAFETY: the element exists, and the block has room.
                        unsafe {
                            T::load(isa, dtype, at(offset), block, 1);
                            fill(block, *block, BLOCK);
                        }
                    }
                }
                Reading::Register(_) | Reading::Constant(_) => {
                    let (inner, n) = (self.layout.inner(), tile.n);
                    let stride = self.layout.strides(i)[0];
                    if self.layout.is_flat(i) {
                        // SAFETY: the tile lies inside the operand.
                        unsafe { T::load(isa, dtype, at(tile.start), register, n) };
                        continue;
                    }
                    let (mut done, mut row, mut col) = (0, tile.row, tile.col);
                    while done < n {
                        let run = (inner - col).min(n - done);
                        let from = at(self.layout.row_offset(i, row) + col * stride);
                        let to = register.wrapping_add(done);
                        // SAFETY: the run lies inside the operand and the register.
                        unsafe {
                            if stride == 0 {
                                T::load(isa, dtype, from, to, 1);
                                fill(to, *to, run);
                            } else {
                                T::load(isa, dtype, from, to, run);
                            }
                        }
                        (done, row, col) = (done + run, row + 1, 0);
                    }
                }
            }
        }
    }

    unsafe fn run_steps<T: Lane>(&self, isa: Isa, tile: Tile, room: Room<T>) {
        let place = |place: Place| match place {
            Place::Register(r) => room.register(r),
            Place::Output(o) => self.outputs[o].ptr.cast::<T>().wrapping_add(tile.start),
        };
        let mut n_constants = self.inputs.len();
        for ((step, work), &to) in self.program.steps.iter().zip(&self.work).zip(&self.places) {
            let mut args = [Source { at: room.blocks.cast_const(), step: 0 }; 3];
            for (source, arg) in args.iter_mut().zip(&step.args) {
                *source = match *arg {
                    Arg::Step(s) => Source { at: place(self.places[usize::from(s)]), step: 1 },
                    Arg::Const(_) => {
                        n_constants += 1;
                        Source { at: room.block(n_constants - 1), step: 0 }
                    }
                    Arg::Input(i) => {
                        let i = usize::from(i);
                        match self.readings[i] {
                            Reading::Block(b) => Source { at: room.block(b), step: 0 },
                            Reading::Register(r) | Reading::Constant(r) => {
                                Source { at: room.register(r), step: 1 }
                            }
                            Reading::Direct => {
                                let element = match self.layout.is_flat(i) {
                                    true => tile.start,
                                    false => self.layout.row_offset(i, tile.row) + tile.col,
                                };
                                Source { at: self.inputs[i].ptr.cast::<T>().wrapping_add(element), step: 1 }
                            }
                        }
                    }
                };
            }
            // SAFETY: every source and the place hold the tile's elements.
            unsafe { T::compute(isa, work, tile.n, place(to), args) };
        }
    }

    unsafe fn store_outputs<T: Lane>(&self, isa: Isa, tile: Tile, room: Room<T>) {
        for (o, (output, &step)) in self.outputs.iter().zip(self.program.outputs).enumerate() {
            let dtype = output.ty.dtype;
            let to = output.ptr.wrapping_add(tile.start * dtype.bytes());
            match self.places[usize::from(step)] {
                Place::Output(straight) => debug_assert_eq!(o, straight),
                // SAFETY: the register holds the tile, and the output has room for it.
                Place::Register(r) => unsafe {
                    T::store(isa, dtype, room.register(r), to, tile.n);
                },
            }
        }
    }
}

/// Sets `n` lanes.
unsafe fn fill<T: Copy>(to: *mut T, value: T, n: usize) {
    for i in 0..n {
        // SAFETY: the caller says that `n` lanes may be written.
        unsafe { *to.add(i) = value };
    }
}
