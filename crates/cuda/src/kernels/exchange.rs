//! Exchanges of the only rank, which has what all ranks have. Those of several are their communicator's, which a device is handed.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::Type;
use plimsoll_graph::ops::Exchange;

use super::Kernel;
use crate::Cuda;
use crate::error::Error;

impl Kernel for Exchange {
    fn scratch(&self, _: &Cuda, _: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        match self.of.ranks {
            1 => Ok(0),
            _ => {
                let why = "this device is connected to no other ranks; run it on Device::with_ranks";
                Err(Fault::new(plimsoll_graph::Rule::name(self), why).into())
            }
        }
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (&call.inputs[0], &call.outputs[0]);
        if x.ptr == y.ptr {
            return Ok(());
        }
        // SAFETY: the caller's promise: both are live, of as many elements, and apart.
        unsafe { cuda.copy(y.ptr, x.ptr, x.ty.bytes()) }
    }
}
