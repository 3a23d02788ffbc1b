//! Turns what a BFC allocator said into an explanation: TensorFlow's, and JAX's on a card.

use crate::advice::{for_batch, for_type, repeated, rise, risen, tensor};
use crate::bfc::{Dump, Log, tensor_bytes};
use crate::bytes::{Size, percent};
use crate::card::CONTEXT;
use crate::explanation::{Explanation, Kind, PoolSummary, Source, Verdict};
use crate::progress::Progress;
use crate::xla;

/// The allocator's rounding; what fits is a multiple of it.
const GRAIN: u64 = 256;

/// Explains the last refusal of a log.
pub(crate) fn explain(
    log: &Log,
    progress: &Progress,
    source: Source,
    program: Option<&xla::Log>,
) -> Explanation {
    let empty = Dump::default();
    let dump = log.dump.as_ref().unwrap_or(&empty);
    let kind = if dump.taken().is_some() { Kind::Dump } else { Kind::Message };
    let mut to = Explanation::new(source, kind);
    describe(&mut to, log, dump);
    match (to.request.asked_bytes, dump.used()) {
        (Some(asked), Some(used)) => judge(&mut to, log, dump, progress, asked, used),
        (Some(asked), _) if log.driver.is_some() => by_driver(&mut to, log, dump, asked),
        _ if log.soft > 0 && log.count == 0 && log.refused.is_none() => to.because.push(format!(
            "the log holds {} warnings that the allocator itself calls no failure: an op had to use a slower algorithm with less scratch",
            log.soft
        )),
        _ => to.because.push(
            "the error alone says what was asked for; the allocator's dump, printed to standard error before it, says the rest"
                .to_string(),
        ),
    }
    advise(&mut to, log, dump, progress);
    if let Some(program) = program {
        xla::add_program(&mut to, program);
    }
    if dump.pool.chunks > 0 && dump.pool.holders.keys().all(|(_, owner)| owner.is_none()) {
        to.cannot_tell
            .push("which layers own the chunks: this build of the allocator records no names".to_string());
    }
    to.finish()
}

/// The figures as they stand in the log.
fn describe(to: &mut Explanation, log: &Log, dump: &Dump) {
    let device = log.refused.as_ref().and_then(|refused| refused.device.as_deref());
    // `/job:localhost/replica:0/task:0/device:GPU:0` on one machine is `GPU:0`.
    let device =
        device.map(|name| name.strip_prefix("/job:localhost/replica:0/task:0/device:").unwrap_or(name));
    to.request.device = device.map(str::to_string).or_else(|| dump.allocator.clone());
    to.request.op = dump.op.clone().or_else(|| log.op.clone());
    to.request.asked_bytes = dump.asked;
    if let Some(refused) = &log.refused {
        let bytes = tensor_bytes(&refused.shape, &refused.dtype);
        to.request.asked_bytes = to.request.asked_bytes.or(bytes);
        // A scratch buffer may be refused first and another tensor be named by a later error.
        if bytes
            .is_none_or(|bytes| to.request.asked_bytes.is_some_and(|asked| asked.abs_diff(bytes) < 4 * GRAIN))
        {
            to.request.tensor = Some(tensor(&refused.shape, &refused.dtype));
        }
    }
    to.figures.limit_bytes = dump.limit;
    to.figures.in_use_bytes = dump.used();
    to.pool = PoolSummary::of(&dump.pool);
    if dump.pool.chunks > 0 {
        to.figures.largest_free_bytes = Some(dump.pool.largest_free);
    }
    if let (Some(taken), Some(used)) = (dump.taken(), dump.used()) {
        to.figures.free_bytes = Some(taken.saturating_sub(used).saturating_add(room(dump)));
    }
}

/// What the pool might still take from the device.
fn room(dump: &Dump) -> u64 {
    match (dump.limit, dump.taken()) {
        (Some(limit), Some(taken)) => dump.available.unwrap_or(u64::MAX).min(limit.saturating_sub(taken)),
        _ => 0,
    }
}

fn judge(to: &mut Explanation, log: &Log, dump: &Dump, progress: &Progress, asked: u64, used: u64) {
    let room = room(dump);
    let free = to.figures.free_bytes.unwrap_or(0);
    let largest = to.figures.largest_free_bytes.unwrap_or(0);
    let limit = dump.limit.or(dump.taken()).unwrap_or(0);
    let of = format!("{} of {} are in use and {} are free", Size(used), Size(limit), Size(free));
    // Where the device had refused what the limit allowed, only the pool itself counts.
    let refused = room >= asked;
    if dump.pool.chunks > 0 {
        to.figures.would_have_fitted_bytes =
            Some(if refused { largest } else { largest.max(room) } / GRAIN * GRAIN);
    }
    if refused {
        to.verdict = Verdict::OtherProcess;
        to.because.push(format!(
            "{of}; the limit left room for {} more, but the device did not give it: other processes (or this one, outside the pool) \
             hold the memory that the limit counts on",
            Size(room)
        ));
    } else if asked <= free && dump.pool.chunks > 0 {
        to.verdict = Verdict::Fragmentation;
        to.because.push(format!(
            "{of} ({} %), but the largest free piece is {}: {} free chunks lie between chunks in use{}",
            percent(free, limit),
            Size(largest),
            dump.pool.chunks - dump.pool.used_chunks,
            if room > 0 {
                format!(", and {} are not yet taken from the device", Size(room))
            } else {
                String::new()
            }
        ));
    } else if asked <= free {
        to.verdict = Verdict::Unknown;
        to.because.push(format!(
            "{of}, which is enough; whether it lies in one piece, a dump without chunks does not say"
        ));
    } else {
        to.verdict = Verdict::Capacity;
        to.because.push(format!(
            "{of}{}: {} too little for {} even if all of it were in one piece",
            if room > 0 {
                format!(" ({} of them not yet taken from the device)", Size(room))
            } else {
                String::new()
            },
            Size(asked - free),
            Size(asked)
        ));
        if asked > limit {
            to.because.push("this one request is larger than the whole pool".to_string());
        }
        outside(to, log, asked, free, limit);
    }
    grows(to, log, dump, progress, used);
    let waste = dump.requested.map_or(0, |requested| used.saturating_sub(requested));
    if requested_is_known(dump) && percent(waste, used) >= 10 {
        to.because.push(format!(
            "{} of what is in use ({} %) were not asked for: a free chunk less than twice the request is given whole",
            Size(waste),
            percent(waste, used)
        ));
    }
}

/// A refusal of the driver's own pool (cuda_malloc_async), which has no holes and lists no chunks.
fn by_driver(to: &mut Explanation, log: &Log, dump: &Dump, asked: u64) {
    let Some((free, total)) = log.driver else { return };
    to.figures.free_bytes = Some(free);
    to.figures.largest_free_bytes = Some(free);
    to.figures.would_have_fitted_bytes = Some(free);
    let used = dump.in_use.unwrap_or(0);
    let others = total.saturating_sub(free).saturating_sub(used);
    let of =
        format!("of the card's {}, {} are free and {} are in use here", Size(total), Size(free), Size(used));
    if dump.in_use.is_some() && others > CONTEXT && free.saturating_add(others - CONTEXT) >= asked {
        to.verdict = Verdict::OtherProcess;
        to.because.push(format!("{of}; {} are held elsewhere", Size(others)));
    } else if asked > free {
        to.verdict = Verdict::Capacity;
        to.because.push(format!("{of}: {} too little for {}", Size(asked - free), Size(asked)));
    } else {
        to.because
            .push(format!("{of}, enough for {}; why the driver refused, the log does not say", Size(asked)));
    }
}

fn requested_is_known(dump: &Dump) -> bool {
    dump.requested.is_some_and(|requested| requested > 0)
}

/// A limit below the device's memory, or a device that was not empty at the start.
fn outside(to: &mut Explanation, log: &Log, asked: u64, free: u64, limit: u64) {
    let Some(total) = log.device_total else { return };
    let missing = asked - free;
    if let Some(at_start) = log.device_free
        && total.saturating_sub(at_start) >= missing.max(total / 10)
    {
        to.verdict = Verdict::OtherProcess;
        let others = total - at_start;
        to.because.push(format!(
            "of the device's {}, {} were taken before this process began",
            Size(total),
            Size(others)
        ));
        to.advise(
            format!("end what else runs on the device: it held {} at the start", Size(others)),
            Some(others),
        );
    } else if percent(limit, total) < 80 && total - limit >= missing {
        to.verdict = Verdict::Limit;
        to.because.push(format!(
            "the pool's limit of {} is {} % of the device's {}",
            Size(limit),
            percent(limit, total),
            Size(total)
        ));
        to.advise(
            "raise the limit: memory_limit of LogicalDeviceConfiguration, or per_process_gpu_memory_fraction",
            Some(total - limit),
        );
    }
}

/// Whether what is held rises: from dump to dump, over steps in the dump, or since steps that had worked.
fn grows(to: &mut Explanation, log: &Log, dump: &Dump, progress: &Progress, used: u64) {
    let same = log.earlier.iter().filter(|(allocator, _)| *allocator == dump.allocator);
    let series: Vec<u64> = same.map(|(_, used)| *used).chain([used]).collect();
    let alike = repeated(&dump.pool);
    let stepped = dump.pool.heaviest(8).into_iter().find(|(_, _, holder)| holder.steps.len() >= 4);
    let mut grown = None;
    if let Some((first, last)) = rise(&series) {
        to.because.push(risen("in use", series.len(), first, last));
        grown = Some((last - first).max(alike.as_ref().map_or(0, |(_, bytes)| *bytes)));
    } else if let Some((size, owner, holder)) = stepped {
        to.because.push(format!(
            "{} chunks of {} each{} were made in {} different steps and are still in use: {}",
            holder.count,
            Size(size),
            owner.map_or(String::new(), |owner| format!(" by {owner}")),
            holder.steps.len(),
            Size(holder.bytes)
        ));
        grown = Some(holder.bytes);
    } else if progress.had_worked() {
        let before = progress.words();
        match &alike {
            Some((_, bytes)) => {
                to.because.push(format!("the run had come to {before}: what a step needs had fitted, so something was kept since"));
                grown = Some(*bytes);
            }
            None => to.cannot_tell.push(format!(
                "whether something grew: the run had come to {before}, so a step had fitted; a later batch may have been larger"
            )),
        }
    } else if alike.is_some() && to.verdict == Verdict::Capacity {
        to.cannot_tell
            .push("whether something grows: one dump without the run's steps does not show it".to_string());
    }
    if let Some((text, _)) = alike {
        to.because.push(text);
    }
    if let Some(bytes) = grown
        && to.verdict == Verdict::Capacity
    {
        to.verdict = Verdict::Growth;
        to.advise(
            "keep nothing of a step: append numbers (float(loss), result.numpy()) to lists instead of tensors, drop tapes and \
             predictions at the end of each step, build models, optimizers and tf.functions once outside the loop",
            Some(bytes),
        );
    }
}

fn advise(to: &mut Explanation, log: &Log, dump: &Dump, progress: &Progress) {
    let jax = to.source == Source::Jax;
    let on_cpu = dump.allocator.as_deref().is_some_and(|name| name.contains("cpu"));
    let reclaimed =
        to.figures.free_bytes.unwrap_or(0).saturating_sub(to.figures.largest_free_bytes.unwrap_or(0));
    match to.verdict {
        Verdict::Fragmentation => {
            to.advise(
                format!(
                    "use an allocator that maps pages, so that holes do not matter: TF_GPU_ALLOCATOR=cuda_malloc_async{}; it makes {} \
                     usable that are free but not in one piece",
                    if on_cpu { " (on a card)" } else { "" },
                    Size(reclaimed)
                ),
                Some(reclaimed),
            );
            to.advise(
                "allocate what lives long (weights, optimizer state) before what lives short, and give batches one shape (pad them)",
                None,
            );
        }
        Verdict::OtherProcess => {
            to.advise(
                "see with nvidia-smi who holds the card and end it, or let each process have a share: set_memory_growth, or a \
                 memory_limit for each (JAX: XLA_PYTHON_CLIENT_MEM_FRACTION)",
                log.driver_refused.or(Some(to.shortfall())),
            );
        }
        Verdict::Capacity | Verdict::Growth if on_cpu => {
            let need = to.shortfall();
            let only = if to.verdict == Verdict::Growth { ", which only puts it off" } else { "" };
            to.advise(
                format!(
                    "raise this pool's limit, a setting (TF_CPU_BFC_MEM_LIMIT_IN_MB), by {} or more{only}",
                    Size(need)
                ),
                Some(need),
            );
        }
        Verdict::Capacity if jax => {
            to.advise(
                "let the pool have more of the card: XLA_PYTHON_CLIENT_MEM_FRACTION=0.92 (the default takes 0.75 of it)",
                dump.limit.map(|limit| (limit as f64 * (0.92 / 0.75 - 1.0)) as u64),
            );
        }
        _ => {}
    }
    if let Some(refused) = &log.refused
        && !matches!(to.verdict, Verdict::Fragmentation | Verdict::Growth)
        && to.request.tensor.is_some()
        && let Some(bytes) = tensor_bytes(&refused.shape, &refused.dtype)
    {
        for_batch(to, &refused.shape, bytes);
        for_type(to, &refused.dtype, bytes);
    }
    if matches!(to.verdict, Verdict::Capacity | Verdict::Unknown) && log.soft == 0 {
        to.advise(
            if jax {
                "recompute activations in the backward pass: jax.checkpoint around the model's blocks"
            } else {
                "recompute activations in the backward pass: tf.recompute_grad, or keras.remat, around the model's blocks"
            },
            None,
        );
    }
    if to.kind == Kind::Message && log.soft == 0 {
        to.advise("keep standard error of the run with TF_CPP_MIN_LOG_LEVEL=0: the dump in it shows the pool and gives a verdict", None);
    }
    let keras = progress.keras
        || to.request.op.as_deref().is_some_and(|op| op.contains("sequential") || op.contains("functional"));
    if keras
        && matches!(to.verdict, Verdict::Capacity | Verdict::Limit)
        && let Some(limit) = dump.limit
    {
        to.advise(
            format!(
                "ask before the next run: `plimsoll plan MODEL.keras --batch N --memory {limit}` says whether a training step of that \
                 Keras model, its whole process counted, can be kept inside {}, by recomputation and micro-batches too",
                Size(limit)
            ),
            None,
        );
    }
}
