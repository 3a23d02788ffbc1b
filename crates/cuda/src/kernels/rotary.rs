//! Rotary positions: a thread turns pairs of one head, eight where they lie together.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::{Rotary, RotaryDims};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("rotary.cu");

impl Kernel for Rotary {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let [x, sin, cos] = [0, 1, 2].map(|i| call.inputs[i]);
        let wrong = |why| Error::Library { library: "the CUDA backend", call: "rotary", why };
        let RotaryDims { positions, period, heads, features, pairs } =
            RotaryDims::new(x.ty, sin.ty, cos.ty).map_err(wrong)?;
        let y = call.outputs[0].ptr;
        // As many as 16 bytes hold, where no group of them is cut.
        let whole = 16 / x.ty.dtype.bytes();
        let at_once = if pairs.is_multiple_of(whole) && features.is_multiple_of(whole) { whole } else { 1 };
        let turned = positions * heads * (pairs / at_once);
        let rest = positions * heads * (features - 2 * pairs);
        let args = Args::new()
            .at(x.ptr)
            .at(sin.ptr)
            .at(cos.ptr)
            .at(y)
            .int(turned)
            .ints([pairs, features, heads, period, rest], 5, 1)
            .int(usize::from(self.back));
        let code = Code::of("rotary", TEXT, x.ty.dtype).with("VEC", at_once);
        // SAFETY: the caller's promise; a pair is read and written by one thread.
        unsafe {
            if turned > 0 {
                cuda.launch(&code, "turn", Grid::each(turned), &args)?;
            }
            if rest > 0 && y != x.ptr {
                cuda.launch(&code, "rest", Grid::each(rest), &args)?;
            }
        }
        Ok(())
    }
}
