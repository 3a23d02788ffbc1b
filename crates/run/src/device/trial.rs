//! Runs a kernel over operands of plain values, again and again, and turns that into the time it takes.

use std::time::{Duration, Instant};

use plimsoll_device::backend::{ALIGNMENT, Backend, Call, Fault, Operand};
use plimsoll_device::{Bytes, process};
use plimsoll_graph::{DType, Graph, Node, Op, Site, Type, ValueId};
use smallvec::SmallVec;

use super::Device;
use super::buffer::Buffer;
use super::timing::{Measured, Sample, measure};
use crate::error::Result;

/// A kernel whose operands take more than this is not timed.
const MOST_BYTES: Bytes = Bytes::mib(512);
/// Calls that a device is given at once.
const TOGETHER: usize = 8;

/// A kernel that takes more is not timed: a device of its own is timed with whatever fits; of the host's memory others live too.
pub(super) fn most(device: &Device) -> Bytes {
    if device.backend().is_host() { MOST_BYTES } else { Bytes(u64::MAX) }
}

/// Bytes that timing a kernel takes: operands and scratch, each padded.
pub(super) fn needs(graph: &Graph, node: &Node, device: &Device) -> Result<usize> {
    let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
    let scratch = kernels(graph, node, device)?.scratch(&node.op, &inputs, &outputs)?;
    let operands: usize = inputs.iter().chain(&outputs).map(|ty| padded(ty.bytes())).sum();
    Ok((operands + padded(scratch)).max(ALIGNMENT))
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

pub(super) fn types<'g>(graph: &'g Graph, ids: &[ValueId]) -> SmallVec<[&'g Type; 4]> {
    ids.iter().map(|&v| graph.ty(v)).collect()
}

/// The kernels that a node runs with.
pub(super) fn kernels<'d>(graph: &Graph, node: &Node, device: &'d Device) -> Result<&'d dyn Backend> {
    device.kernels(&node.op, device.is_on_host(graph, node)?)
}

/// The time of a kernel over operands of plain values, or `None` if they do not fit or the kernel refuses them. One that turns out to take
/// longer than there is time `left` is run once.
pub(super) fn time(
    graph: &Graph,
    node: &Node,
    device: &Device,
    room: Option<Bytes>,
    left: Duration,
) -> Result<Option<Measured>> {
    let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
    let backend = kernels(graph, node, device)?;
    let scratch_bytes = backend.scratch(&node.op, &inputs, &outputs)?;
    let all = || inputs.iter().chain(&outputs);
    let bytes = needs(graph, node, device)?;
    let most = most(device);
    if Bytes::from(bytes) > room.unwrap_or(most).min(most) {
        return Ok(None);
    }
    let buffer = Buffer::new(device, bytes, "calibration", Site::here())?;
    let mut at = buffer.ptr();
    let mut operands: SmallVec<[Operand<'_>; 16]> = SmallVec::new();
    for ty in all() {
        operands.push(Operand { ty, ptr: at });
        // SAFETY: the buffer was made as large as all operands one after the other, then scratch.
        let filled = unsafe {
            match device.backend().is_host() {
                true => {
                    fill(ty, at);
                    Ok(())
                }
                false => fill_there(device.backend(), ty, at),
            }
        };
        if filled.is_err() {
            return Ok(None);
        }
        // SAFETY: as above.
        at = unsafe { at.add(padded(ty.bytes())) };
    }
    let (reads, writes) = operands.split_at(inputs.len());
    let call = Call { op: &node.op, inputs: reads, outputs: writes, scratch: at, scratch_bytes };
    if !device.backend().is_host() {
        return Ok(time_recorded(backend, &call, left));
    }
    let run = || {
        let (start, processor) = (Instant::now(), process::thread_cpu_time());
        // SAFETY: operands and scratch are disjoint, of the declared sizes, and live until the buffer is dropped.
        unsafe { device.backend().run(&call) }.ok()?;
        let wall = start.elapsed().as_secs_f64();
        let had = process::thread_cpu_time().zip(processor).map(|(end, start)| (end - start).as_secs_f64());
        Some(Sample { wall, processor: had })
    };
    // The first run touches the memory and is not counted, unless there is no time for another.
    let Some(first) = run() else { return Ok(None) };
    let left = left.as_secs_f64() - first.wall;
    Ok(if first.wall > left { once(first) } else { measure(left, run) })
}

/// What a single run says, which is not much.
fn once(first: Sample) -> Option<Measured> {
    Some(Measured { seconds: first.wall, is_noisy: true })
}

/// The same on a device that does not wait for its kernels: several calls at once, recorded where the device can, since that is
/// how a step will run them and what the host does for a single call is not what is to be timed.
fn time_recorded(backend: &dyn Backend, call: &Call<'_>, left: Duration) -> Option<Measured> {
    let several = |backend: &dyn Backend| -> std::result::Result<(), Fault> {
        // SAFETY: operands and scratch are disjoint, of the declared sizes, and live as long as the call.
        (0..TOGETHER).try_for_each(|_| unsafe { backend.run(call) })
    };
    // The first run loads code, and touches the memory.
    // SAFETY: as above.
    unsafe { backend.run(call) }.ok()?;
    backend.synchronize().ok()?;
    let recording = backend.record(&mut || several(backend)).ok()?;
    let run = || {
        let start = Instant::now();
        match &recording {
            // SAFETY: the memory is live as it was.
            Some(recording) => unsafe { recording.replay() }.ok()?,
            None => several(backend).ok()?,
        }
        backend.synchronize().ok()?;
        // The host only waits, so its processor time says nothing.
        Some(Sample { wall: start.elapsed().as_secs_f64(), processor: None })
    };
    let first = run()?;
    let left = left.as_secs_f64() - first.wall;
    let together = if first.wall > left { once(first) } else { measure(left, run) }?;
    Some(Measured { seconds: together.seconds / TOGETHER as f64, ..together })
}

/// As [`fill`], by kernels of the device.
///
/// # Safety
/// As for [`fill`].
unsafe fn fill_there(backend: &dyn Backend, ty: &Type, at: *mut u8) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe {
        if !ty.dtype.is_float() {
            return backend.zero(at, ty.bytes());
        }
        let op = Op::from(plimsoll_graph::ops::Full { ty: ty.clone(), value: 0.5.into() });
        let outputs = [Operand { ty, ptr: at }];
        backend.run(&Call {
            op: &op,
            inputs: &[],
            outputs: &outputs,
            scratch: std::ptr::null_mut(),
            scratch_bytes: 0,
        })
    }
}

/// Writes plain values: halves where they are real, zeros where they count or index.
///
/// # Safety
/// `at` is aligned memory of `ty`'s bytes that nobody else uses.
unsafe fn fill(ty: &Type, at: *mut u8) {
    let n = ty.elements();
    // SAFETY: the caller's promise; all element types take any bits.
    unsafe {
        match ty.dtype {
            DType::F32 => std::slice::from_raw_parts_mut(at.cast::<f32>(), n).fill(0.5),
            DType::F64 => std::slice::from_raw_parts_mut(at.cast::<f64>(), n).fill(0.5),
            DType::BF16 => std::slice::from_raw_parts_mut(at.cast(), n).fill(half::bf16::from_f32(0.5)),
            DType::F16 => std::slice::from_raw_parts_mut(at.cast(), n).fill(half::f16::from_f32(0.5)),
            _ => at.write_bytes(0, ty.bytes()),
        }
    }
}
