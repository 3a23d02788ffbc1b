//! An optimizer's step over state of one byte a number.

use std::ptr::null_mut;

use plimsoll_device::backend::Call;
use plimsoll_graph::DType;
use plimsoll_graph::eight_bit::BLOCK;
use plimsoll_graph::ops::EightBitUpdate;

use super::{Kernel, update};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Grid, THREADS};

const TEXT: &str =
    concat!(include_str!("eight_bit_values.cu"), include_str!("update.cu"), include_str!("eight_bit.cu"));
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
        let mut args = update::moved(&self.0, call);
        let first = self.0.first_state();
        for at in first..first + 4 {
            args = args.at(call.inputs.get(at).map_or(null_mut(), |x| x.ptr));
        }
        for at in 1..5 {
            args = args.at(call.outputs.get(at).map_or(null_mut(), |y| y.ptr));
        }
        let code = update::code("eight_bit", TEXT, &self.0, DType::F32);
        let grid = Grid { blocks: [n.div_ceil(BLOCK).min(MOST) as u32, 1, 1], threads: THREADS, shared: 0 };
        // SAFETY: the caller's promise; the arguments are in the order of the source's struct.
        unsafe { cuda.launch(&code, "eight_bit_update", grid, &args) }
    }
}
