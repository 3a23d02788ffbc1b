//! The host's kernels for a device with memory of its own: operands come to the host, are computed with there, and go back. For ops that
//! the device has no kernel for, and for those that somebody wants on the host.

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_device::Bytes;
use plimsoll_device::backend::{ALIGNMENT, Backend, Call, Fault, Operand, Recording, Speed, Unsupported};
use plimsoll_graph::{Op, Type};
use smallvec::SmallVec;

/// Kernels of the host over memory of a device.
#[derive(Debug)]
pub(crate) struct HostOps {
    device: Arc<dyn Backend>,
    host: Arc<dyn Backend>,
    name: String,
    /// Where operands and scratch are on the host, one call at a time.
    staging: Mutex<Vec<Line>>,
}

/// As many bytes as operands are aligned to.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "only its place is used")] [u8; ALIGNMENT]);

/// Bytes of the host that a call takes, its scratch included.
fn staged(inputs: &[&Type], outputs: &[&Type], scratch: usize) -> usize {
    let operands: usize = inputs.iter().chain(outputs).map(|ty| padded(ty.bytes())).sum();
    operands + padded(scratch)
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

impl HostOps {
    /// The kernels of `host` for a device.
    pub(super) fn new(device: Arc<dyn Backend>, host: Arc<dyn Backend>) -> HostOps {
        let name = host.name().to_string();
        HostOps { device, host, name, staging: Mutex::default() }
    }

    /// Bytes of the host's memory that it holds.
    pub(crate) fn held(&self) -> Bytes {
        let staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        Bytes::from(staging.capacity() * ALIGNMENT)
    }

    /// Bytes of the host's memory that a call takes.
    pub(crate) fn needs(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<Bytes, Unsupported> {
        Ok(staged(inputs, outputs, self.host.scratch(op, inputs, outputs)?).into())
    }

    /// Makes room for a call. Between calls of a program that was prepared nothing is taken.
    fn fit(staging: &mut Vec<Line>, bytes: usize) {
        let lines = bytes.div_ceil(ALIGNMENT);
        if staging.len() < lines {
            staging.reserve_exact(lines - staging.len());
            staging.resize(lines, Line([0; ALIGNMENT]));
        }
    }
}

/// The same operands at other places.
fn moved<'t>(operands: &[Operand<'t>], places: &[*mut u8]) -> SmallVec<[Operand<'t>; 8]> {
    operands.iter().zip(places).map(|(x, &ptr)| Operand { ty: x.ty, ptr }).collect()
}

impl Backend for HostOps {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> String {
        format!("{} for {}", self.host.signature(), self.device.signature())
    }

    fn times_prefix(&self) -> &'static str {
        "on the host "
    }

    fn speed(&self) -> Speed {
        self.host.speed()
    }

    /// The host's kernel, and its operands there and back.
    fn predict(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> f64 {
        let bytes: usize = inputs.iter().chain(outputs).map(|ty| ty.bytes()).sum();
        let link = self.device.rough_link().map_or(f64::INFINITY, |link| link.slower());
        self.host.predict(op, inputs, outputs) + bytes as f64 / link
    }

    /// None of the device's memory: what the host's kernel needs is the host's.
    fn scratch(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Unsupported> {
        self.host.scratch(op, inputs, outputs).map(|_| 0)
    }

    fn prepare(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<(), Fault> {
        let refused = |why: Unsupported| Fault::new(op.name(), why.to_string());
        let bytes = self.needs(op, inputs, outputs).map_err(refused)?;
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        HostOps::fit(&mut staging, bytes.get() as usize);
        self.host.prepare(op, inputs, outputs)
    }

    unsafe fn run(&self, call: &Call<'_>) -> Result<(), Fault> {
        let types =
            |operands: &[Operand<'_>]| -> usize { operands.iter().map(|x| padded(x.ty.bytes())).sum() };
        let inputs: SmallVec<[&Type; 8]> = call.inputs.iter().map(|x| x.ty).collect();
        let outputs: SmallVec<[&Type; 8]> = call.outputs.iter().map(|x| x.ty).collect();
        let refused = |why: Unsupported| Fault::new(call.op.name(), why.to_string());
        let scratch_bytes = self.host.scratch(call.op, &inputs, &outputs).map_err(refused)?;
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        HostOps::fit(&mut staging, types(call.inputs) + types(call.outputs) + padded(scratch_bytes));
        let base = staging.as_mut_ptr().cast::<u8>();
        let mut end = 0;
        let mut staged = |x: &Operand<'_>| {
            // SAFETY: the buffer was made as large as all operands one after the other, then scratch.
            let ptr = unsafe { base.add(end) };
            end += padded(x.ty.bytes());
            ptr
        };
        let here: SmallVec<[*mut u8; 8]> = call.inputs.iter().map(&mut staged).collect();
        let made: SmallVec<[*mut u8; 8]> = call.outputs.iter().map(&mut staged).collect();
        for (x, &ptr) in call.inputs.iter().zip(&here) {
            // SAFETY: as above; the memory is the host's and initialised, and the caller's promise of the device's.
            unsafe {
                let to = std::slice::from_raw_parts_mut(ptr, x.ty.bytes());
                self.device.download(x.ptr, to)?;
            }
        }
        let reads = moved(call.inputs, &here);
        let writes = moved(call.outputs, &made);
        // SAFETY: scratch lies behind all operands.
        let scratch = unsafe { base.add(end) };
        let on_host = Call { op: call.op, inputs: &reads, outputs: &writes, scratch, scratch_bytes };
        // SAFETY: operands and scratch are disjoint, of the sizes that types and the kernel say, and the host's.
        unsafe { self.host.run(&on_host) }?;
        for (x, &ptr) in call.outputs.iter().zip(&made) {
            // SAFETY: the kernel has written as many bytes there, and the caller's promise of the device's.
            unsafe {
                let from = std::slice::from_raw_parts(ptr, x.ty.bytes());
                self.device.upload(x.ptr, from)?;
            }
        }
        Ok(())
    }

    fn is_host(&self) -> bool {
        false
    }

    unsafe fn zero(&self, at: *mut u8, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.device.zero(at, bytes) }
    }

    unsafe fn upload(&self, to: *mut u8, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.device.upload(to, from) }
    }

    unsafe fn download(&self, from: *const u8, to: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.device.download(from, to) }
    }

    fn synchronize(&self) -> Result<(), Fault> {
        self.device.synchronize()
    }

    /// What waits for the device cannot be recorded.
    fn record(
        &self,
        _body: &mut dyn FnMut() -> Result<(), Fault>,
    ) -> Result<Option<Box<dyn Recording>>, Fault> {
        Ok(None)
    }
}
