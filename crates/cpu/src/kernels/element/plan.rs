//! Decides, once a call, where a chain's operands are read, where its results wait and how long its tiles are.

use plimsoll_device::backend::{Call, Fault, Operand};
use plimsoll_graph::ops::{Arg, ElementOp, Step};
use plimsoll_graph::{DType, Shape};
use smallvec::SmallVec;

use super::layout::Layout;
use crate::isa::Isa;

/// Elements a step reads before it writes them: whole vectors of every instruction set.
pub(super) const BLOCK: usize = 32;
/// Elements of a tile at most.
const TILE: usize = 512;
/// The same where no register is used, so that only the cost of starting a loop counts.
const LONG_TILE: usize = 8 * TILE;
/// Bytes of stack that hold the registers of a task; the first-level cache holds about as much.
pub(super) const ARENA: usize = 48 * 1024;

/// A straight-line program over the elements of a shape.
#[derive(Clone, Copy)]
pub(super) struct Program<'a> {
    pub shape: &'a Shape,
    pub steps: &'a [Step],
    pub outputs: &'a [u16],
}

/// Where a step reads: `step` is 1 along a tile and 0 for a block that holds one value throughout.
#[derive(Clone, Copy)]
pub(super) struct Source<T> {
    pub at: *const T,
    pub step: usize,
}

/// What one step computes, as a lane type sees it.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub op: ElementOp,
    /// The element type of its operands.
    pub from: DType,
    /// The element type its result is rounded to.
    pub to: DType,
    /// Whether rounding may be left to the store.
    pub is_stored_only: bool,
}

/// The type that registers are made of, and how it is loaded, computed with and stored.
///
/// # Safety
/// The functions take pointers that are valid for `n` elements (a `Source` of step 0: for one block).
pub(super) trait Lane: Copy + 'static {
    /// The element type whose memory can be used as registers.
    const DIRECT: Option<DType>;
    /// A number, as an operand of a type.
    fn constant(value: f64, dtype: DType) -> Self;
    /// Widens `n` elements of memory.
    unsafe fn load(isa: Isa, dtype: DType, from: *const u8, to: *mut Self, n: usize);
    /// Computes one step.
    unsafe fn compute(isa: Isa, work: &Work, n: usize, to: *mut Self, args: [Source<Self>; 3]);
    /// Rounds `n` elements to memory.
    unsafe fn store(isa: Isa, dtype: DType, from: *const Self, to: *mut u8, n: usize);
}

/// How an input reaches the steps.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Reading {
    /// Where it lies.
    Direct,
    /// Widened into a register for every tile.
    Register(usize),
    /// Widened into a register once a task, being the same in every tile.
    Constant(usize),
    /// As a block of one value, for every tile.
    Block(usize),
}

/// Where a step's result goes.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Register(usize),
    Output(usize),
}

/// The plan of a call: made once, read by every task.
pub(super) struct Plan<'a> {
    pub program: Program<'a>,
    pub inputs: &'a [Operand<'a>],
    pub outputs: &'a [Operand<'a>],
    pub layout: Layout,
    pub readings: SmallVec<[Reading; 16]>,
    pub places: SmallVec<[Place; 64]>,
    pub work: SmallVec<[Work; 64]>,
    pub n_blocks: usize,
}

/// The element type of a step's operands: that of the first that is not a number, else that of its result.
pub(super) fn operand_type(program: Program<'_>, inputs: &[Operand<'_>], step: &Step) -> DType {
    let of = |arg: &Arg| match *arg {
        Arg::Input(i) => Some(inputs[usize::from(i)].ty.dtype),
        Arg::Step(s) => Some(program.steps[usize::from(s)].dtype),
        Arg::Const(_) => None,
    };
    match step.op {
        // The first operand of a choice is a truth value.
        ElementOp::Select => step.dtype,
        _ => step.args.iter().find_map(of).unwrap_or(step.dtype),
    }
}

/// Whether two operands share memory.
fn overlap(a: &Operand<'_>, b: &Operand<'_>) -> bool {
    let (a_at, b_at) = (a.ptr as usize, b.ptr as usize);
    a_at < b_at + b.ty.bytes() && b_at < a_at + a.ty.bytes()
}

impl<'a> Plan<'a> {
    /// Decides where results go and how long tiles are.
    pub(super) fn new<T: Lane>(program: Program<'a>, call: &Call<'a>) -> Result<(Plan<'a>, usize), Fault> {
        let (steps, inputs, outputs) = (program.steps, call.inputs, call.outputs);
        let layout = Layout::new(program.shape, inputs);
        let mut last_read: SmallVec<[usize; 64]> = (0..steps.len()).collect();
        let mut input_read: SmallVec<[usize; 16]> = SmallVec::from_elem(0, inputs.len());
        let mut n_blocks = inputs.len();
        for (s, step) in steps.iter().enumerate() {
            for arg in &step.args {
                match *arg {
                    Arg::Input(i) => input_read[usize::from(i)] = s,
                    Arg::Step(other) => last_read[usize::from(other)] = s,
                    Arg::Const(_) => n_blocks += 1,
                }
            }
        }
        let work = steps.iter().enumerate().map(|(s, step)| Work {
            op: step.op,
            from: operand_type(program, inputs, step),
            to: step.dtype,
            is_stored_only: last_read[s] == s,
        });
        let work = work.collect();
        // Registers: every input may need one; then one a step, given back after its last reader.
        let mut n_registers = inputs.len();
        let mut free: SmallVec<[usize; 16]> = SmallVec::new();
        let mut places: SmallVec<[Place; 64]> = SmallVec::new();
        for (s, step) in steps.iter().enumerate() {
            let output = program.outputs.iter().position(|&o| usize::from(o) == s);
            let straight = output.filter(|&o| {
                let others = || program.outputs.iter().filter(|&&o| usize::from(o) == s).count() == 1;
                let ended = |(i, x): (usize, &Operand<'_>)| {
                    input_read[i] <= s || !overlap(x, &outputs[o]) || T::DIRECT != Some(x.ty.dtype)
                };
                T::DIRECT == Some(step.dtype) && others() && inputs.iter().enumerate().all(ended)
            });
            for arg in &step.args {
                if let Arg::Step(other) = *arg {
                    let other = usize::from(other);
                    let leaves = program.outputs.iter().any(|&o| usize::from(o) == other);
                    if let (Place::Register(r), false) = (places[other], leaves)
                        && last_read[other] == s
                        && !free.contains(&r)
                    {
                        free.push(r);
                    }
                }
            }
            places.push(match straight {
                Some(o) => Place::Output(o),
                None => Place::Register(free.pop().unwrap_or_else(|| {
                    n_registers += 1;
                    n_registers - 1
                })),
            });
        }
        let is_straight = layout.is_plain()
            && places.iter().all(|p| matches!(p, Place::Output(_)))
            && inputs.iter().all(|x| T::DIRECT == Some(x.ty.dtype));
        let room = (ARENA / size_of::<T>()).saturating_sub(n_blocks * BLOCK);
        let longest = (room / n_registers.max(1)).min(TILE) / BLOCK * BLOCK;
        if longest == 0 {
            let why = format!("its chain holds {n_registers} values at once, more than fit; split it");
            return Err(Fault::new(call.op.name(), why));
        }
        let longest = if is_straight { LONG_TILE } else { longest };
        let readings = inputs
            .iter()
            .enumerate()
            .map(|(i, x)| match T::DIRECT == Some(x.ty.dtype) && layout.is_flat(i) {
                true => Reading::Direct,
                false => Reading::Register(i),
            })
            .collect();
        Ok((Plan { program, inputs, outputs, layout, readings, places, work, n_blocks }, longest))
    }

    /// Decides how inputs are read, once it is known whether tiles are parts of rows or several rows.
    pub(super) fn choose_readings<T: Lane>(&mut self, gathers: bool) {
        for i in 0..self.inputs.len() {
            let inner = self.layout.strides(i)[0];
            let is_lane = T::DIRECT == Some(self.inputs[i].ty.dtype);
            self.readings[i] = match self.readings[i] {
                Reading::Direct => Reading::Direct,
                _ if gathers && self.layout.is_one_row(i) => Reading::Constant(i),
                _ if !gathers && inner == 0 => Reading::Block(i),
                // A part of a row can be read where it lies.
                _ if !gathers && is_lane => Reading::Direct,
                other => other,
            };
        }
    }
}

/// Whether a type does not fit into f32 registers.
pub(super) fn is_wide(dtype: DType) -> bool {
    !matches!(dtype, DType::F32 | DType::BF16 | DType::F16 | DType::U8 | DType::Bool)
}

/// Whether all of a call's values fit into f32 registers.
pub(super) fn is_narrow(program: Program<'_>, call: &Call<'_>) -> bool {
    !call.inputs.iter().any(|x| is_wide(x.ty.dtype)) && !program.steps.iter().any(|s| is_wide(s.dtype))
}
