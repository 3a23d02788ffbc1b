//! What can be seen to be wrong with a call before anything is sent.

use crate::call::{Call, Kind};
use crate::communicator::Buffers;
use crate::element::can_reduce;
use crate::error::{CommError, Result};
use crate::schedule::Schedule;

pub(crate) fn check(call: &Call, schedule: &Schedule, buffers: &Buffers) -> Result<()> {
    let invalid = |why: String| Err(CommError::Invalid { call: call.to_string(), why });
    let (rank, ranks) = (schedule.rank(), schedule.ranks());
    if let Kind::Broadcast { root: other } | Kind::Send { to: other } | Kind::Receive { from: other } =
        call.kind
        && other >= ranks
    {
        return invalid(format!("there is no rank {other} among {ranks}"));
    }
    if call.kind.peer() == Some(rank) {
        return invalid("a rank does not send to itself".into());
    }
    if call.kind.reduce().is_some() && !can_reduce(call.dtype) {
        return invalid(format!("{} is not reduced; convert to u8", call.dtype));
    }
    if call.len.checked_mul(call.dtype.bytes()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return invalid("no memory has as many bytes".into());
    }
    let needed = schedule.scratch_bytes();
    if buffers.scratch_bytes < needed {
        return invalid(format!("needs {needed} bytes of scratch and was given {}", buffers.scratch_bytes));
    }
    let size = call.dtype.bytes();
    let own = schedule.own().len() * size;
    let (input, output) = match call.kind {
        Kind::AllReduce(_) => (call.bytes(), call.bytes()),
        Kind::ReduceScatter(_) => (call.bytes(), own),
        Kind::AllGather => (own, call.bytes()),
        Kind::Send { .. } => (call.bytes(), 0),
        Kind::Broadcast { .. } | Kind::Receive { .. } => (0, call.bytes()),
        Kind::Barrier => (0, 0),
    };
    let places = [
        ("input", buffers.input.addr(), input, size),
        ("output", buffers.output.addr(), output, size),
        ("scratch", buffers.scratch.addr(), needed, 8),
    ];
    for (name, at, bytes, align) in places {
        if bytes > 0 && (at == 0 || !at.is_multiple_of(align)) {
            return invalid(format!("{name} at {at:#x} is not aligned to {align}"));
        }
    }
    for (i, (a, at, bytes, _)) in places.iter().enumerate() {
        for (b, other, others, _) in &places[..i] {
            let is_apart = at + bytes <= *other || other + others <= *at;
            if *bytes > 0 && *others > 0 && !is_apart && !is_in_place(call, schedule, buffers, (a, b)) {
                return invalid(format!("{b} and {a} overlap"));
            }
        }
    }
    Ok(())
}

/// Input and output at the same place, or one the other's shard.
fn is_in_place(call: &Call, schedule: &Schedule, buffers: &Buffers, names: (&str, &str)) -> bool {
    let (input, output) = (buffers.input.addr(), buffers.output.addr());
    let start = schedule.own().start * call.dtype.bytes();
    let is_same = match call.kind {
        Kind::ReduceScatter(_) => output == input + start,
        Kind::AllGather => input == output + start,
        _ => input == output,
    };
    names == ("output", "input") && is_same
}
