//! Turns what is known of a card and of PyTorch's pool on it, from a message or a snapshot, into a verdict.

use crate::bytes::{Figure, Size, percent};
use crate::explanation::{Explanation, Verdict};

/// What a process holds of a card beside PyTorch's pool, usually: CUDA's context, kernels, library handles.
pub(crate) const CONTEXT: u64 = 3 << 29;

/// What is known of a card and its pool, from a message or a snapshot.
pub(crate) struct Figures {
    pub asked: Figure,
    pub total: Figure,
    pub free: Figure,
    pub allocated: Figure,
    pub idle: Figure,
    pub allowed: Figure,
    pub own: Figure,
    pub others: Figure,
    pub largest_idle: Figure,
}

/// Finds the verdict of a card's figures.
pub(crate) fn judge(to: &mut Explanation, figures: &Figures) {
    let idle = figures.idle.unwrap_or(0);
    to.figures.free_bytes = figures.free.map(|free| free.saturating_add(idle));
    let (Some(asked), Some(free)) = (figures.asked, figures.free) else {
        to.because.push("the message does not say what was free".to_string());
        to.advise(
            "record more before the next try: torch.cuda.memory._record_memory_history(), and on the error \
             torch.cuda.memory._dump_snapshot(\"oom.pickle\"), which this command reads",
            None,
        );
        return;
    };
    let allocated = figures.allocated.unwrap_or(0);
    let reserved = allocated.saturating_add(idle);
    let of = match figures.total {
        Some(total) => format!("of the card's {}, {} are free", Size(total), Size(free)),
        None => format!("{} of the card are free", Size(free)),
    };
    let room = figures.allowed.map(|allowed| allowed.saturating_sub(reserved));
    to.figures.would_have_fitted_bytes =
        Some(free.min(room.unwrap_or(u64::MAX)).max(figures.largest_idle.unwrap_or(0)));
    let others = others(figures, reserved, free);
    if let (Some(allowed), Some(room)) = (figures.allowed, room)
        && asked <= free
        && asked > room
    {
        to.verdict = Verdict::Limit;
        to.because.push(format!(
            "{of}, enough for {}; but this process may take only {} in all and has taken {}",
            Size(asked),
            Size(allowed),
            Size(reserved)
        ));
        to.advise(
            "raise the share that torch.cuda.set_per_process_memory_fraction allows",
            figures.total.map(|total| total.saturating_sub(allowed)),
        );
    } else if asked <= free {
        // Free by the card's count and yet refused.
        to.figures.would_have_fitted_bytes = None;
        to.because.push(format!(
            "{of}, which is more than the {} asked for, and yet the driver refused; a figure read after the fact, a system that pages \
             the card's memory, or holes in the driver's own memory can be behind it",
            Size(asked)
        ));
        to.cannot_tell.push("why the driver refused what it counts as free".to_string());
    } else if idle >= asked {
        fragmented(to, asked, idle, allocated, &of, figures.largest_idle);
    } else if let Some(others) = others
        && others.certain
        && free.saturating_add(others.bytes) >= asked
    {
        to.verdict = Verdict::OtherProcess;
        to.because.push(format!(
            "{of}; others hold {}, without which {} would have fitted",
            Size(others.bytes),
            Size(asked)
        ));
        to.advise(
            "end the other processes on this card (nvidia-smi lists them), or use another card",
            Some(others.bytes),
        );
    } else if free.saturating_add(idle) >= asked {
        fragmented(to, asked, idle, allocated, &of, figures.largest_idle);
    } else {
        to.verdict = Verdict::Capacity;
        to.because.push(format!(
            "{of} and {} lie unused in PyTorch's pool: {} too little for {} even in one piece; {} are allocated",
            Size(idle),
            Size(asked - free - idle),
            Size(asked),
            Size(allocated)
        ));
        if figures.total.is_some_and(|total| asked > total) {
            to.because.push("this one request is larger than the whole card".to_string());
        }
    }
    if let Some(others) = others.filter(|others| others.certain && to.verdict != Verdict::OtherProcess) {
        to.because.push(format!("others hold {} of the card", Size(others.bytes)));
        to.advise("end the other processes on this card (nvidia-smi lists them)", Some(others.bytes));
    }
    if let Some(others) = others.filter(|others| !others.certain && others.bytes > CONTEXT) {
        to.because.push(format!("{} of the card are neither free nor in PyTorch's pool", Size(others.bytes)));
        to.cannot_tell.push(format!(
            "who holds those {}: other processes, or this one's CUDA context and libraries (usually under {})",
            Size(others.bytes),
            Size(CONTEXT)
        ));
        to.advise(
            "see with nvidia-smi whether other processes hold memory of this card",
            Some(others.bytes.saturating_sub(CONTEXT)),
        );
    }
}

fn fragmented(to: &mut Explanation, asked: u64, idle: u64, allocated: u64, of: &str, largest: Option<u64>) {
    to.verdict = Verdict::Fragmentation;
    let piece = largest.map_or(String::new(), |largest| format!(", the largest piece {}", Size(largest)));
    to.because.push(format!(
        "{of}; PyTorch's pool holds {} that are not allocated ({} % of the pool{piece}), together enough for {}, but not in one piece",
        Size(idle),
        percent(idle, idle.saturating_add(allocated)),
        Size(asked)
    ));
    to.advise(
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets the pool grow in place, so that unused pieces of segments can serve",
        Some(idle.saturating_sub(largest.unwrap_or(0))),
    );
    to.advise(
        "give batches one shape, or cap what is split: PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128",
        None,
    );
}

#[derive(Clone, Copy)]
struct Others {
    bytes: u64,
    /// Whether they are surely of other processes.
    certain: bool,
}

/// What of the card is neither free nor this process's.
fn others(figures: &Figures, reserved: u64, free: u64) -> Option<Others> {
    let total = figures.total?;
    if let Some(own) = figures.own {
        let left = total.saturating_sub(free).saturating_sub(own);
        // The driver keeps a little of every card for itself.
        let bytes = figures.others.unwrap_or(0).max(left);
        return (bytes > total / 20).then_some(Others { bytes, certain: true });
    }
    // Without the pool's own figures the rest is anybody's.
    figures.allocated?;
    let bytes = total.saturating_sub(free).saturating_sub(reserved);
    // More than any context takes, and a good part of the card: surely somebody else's.
    Some(Others { bytes, certain: bytes > (2 * CONTEXT).max(total / 4) })
}

/// Advice against growth.
pub(crate) fn keep_nothing(to: &mut Explanation, bytes: Option<u64>) {
    to.advise(
        "keep nothing of a step: add loss.item() instead of loss, detach() what goes into lists, evaluate under torch.no_grad(), and \
         let go of outputs before the next step",
        bytes,
    );
}

/// Advice where the batch is too large.
pub(crate) fn shrink(to: &mut Explanation) {
    if !matches!(to.verdict, Verdict::Capacity | Verdict::Growth | Verdict::Limit) {
        return;
    }
    let need = to.shortfall();
    if to.verdict == Verdict::Capacity && to.figures.in_use_bytes.is_some() {
        to.advise(
            format!(
                "a smaller batch with gradient accumulation: {} less in activations are needed; the refused request itself halves with \
                 the batch if it is an activation",
                Size(need)
            ),
            to.request.asked_bytes.map(|asked| asked / 2),
        );
        to.advise(
            "recompute activations in the backward pass: torch.utils.checkpoint around the model's blocks",
            None,
        );
        to.advise("16-bit activations: torch.autocast (halves most activations, not the parameters)", None);
    }
}
