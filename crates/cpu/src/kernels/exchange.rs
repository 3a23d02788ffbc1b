//! Exchanges of the only rank, which has what all ranks have. Those of several are their communicator's, which a device is handed.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::Exchange;

use super::Kernel;
use crate::Cpu;

impl Kernel for Exchange {
    unsafe fn run(&self, _: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        if self.of.ranks != 1 {
            return Err(unconnected(call));
        }
        let (x, y) = (&call.inputs[0], &call.outputs[0]);
        // SAFETY: the caller's promise: both are live and of as many elements, apart or the same.
        unsafe { y.ptr.copy_from(x.ptr, x.ty.bytes()) };
        Ok(())
    }
}

fn unconnected(call: &Call<'_>) -> Fault {
    let why = "this device is connected to no other ranks; run it on Device::with_ranks";
    Fault::new(call.op.name(), why)
}
