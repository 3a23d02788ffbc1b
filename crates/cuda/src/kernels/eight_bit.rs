//! An optimizer's step over state of one byte a number.

use plimsoll_device::backend::Call;
use plimsoll_graph::DType;
use plimsoll_graph::eight_bit::BLOCK;
use plimsoll_graph::ops::{EightBitRule, EightBitUpdate};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid, THREADS};

const TEXT: &str = concat!(include_str!("eight_bit_values.cu"), include_str!("eight_bit.cu"));
/// Blocks of threads at most: each makes its tables first, and has several blocks of numbers.
const MOST: usize = 2048;
// A thread has a number of a block.
const _: () = assert!(THREADS as usize == BLOCK);

impl Kernel for EightBitUpdate {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let n = call.inputs[0].ty.elements();
        if n == 0 {
            return Ok(());
        }
        let rule = match self.rule {
            EightBitRule::Adam { .. } => 0,
            EightBitRule::Momentum { is_nesterov, .. } => 1 + usize::from(is_nesterov),
            EightBitRule::Lion { .. } => 3,
        };
        let first = self.first_state();
        let read = |at: usize| call.inputs.get(at).map_or(std::ptr::null_mut(), |x| x.ptr);
        let written = |at: usize| call.outputs.get(at).map_or(std::ptr::null_mut(), |y| y.ptr);
        let mut args = Args::new().int(n).at(read(0)).at(read(1)).at(read(2)).at(read(3)).at(read(first - 1));
        for state in first..first + 4 {
            args = args.at(read(state));
        }
        for output in 0..5 {
            args = args.at(written(output));
        }
        // The scalars are on the card; the numbers of the rule are here.
        let step = self.step(&[0.0; 3]);
        for constant in step.constants {
            args = args.float(f64::from(constant));
        }
        let args = args.float(f64::from(step.l2)).int(usize::from(self.shrinks));
        let code = Code { contract: false, ..Code::of("eight_bit", TEXT, DType::F32).with("RULE", rule) };
        let grid = Grid { blocks: [n.div_ceil(BLOCK).min(MOST) as u32, 1, 1], threads: THREADS, shared: 0 };
        // SAFETY: the caller's promise; the arguments are in the order of the source's struct.
        unsafe { cuda.launch(&code, "eight_bit_update", grid, &args) }
    }
}
