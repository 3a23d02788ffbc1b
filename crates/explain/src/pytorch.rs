//! Turns PyTorch's out-of-memory messages, in the wordings of its versions, into an explanation.
//!
//! The wordings: before 1.4 `(GPU 0; … total capacity; … already allocated; … free; … cached)`, where *cached* is what the
//! allocator holds beyond what is allocated; then `… reserved in total by PyTorch`, later with `… allowed`; since 2.1 sentences
//! (`GPU 0 has a total capacity of … of which … is free. Process 12 has …`), first misspelt *capacty*. Metal and host memory
//! have their own.

use crate::advice::{rise, risen};
use crate::bytes::{Figure, Size, after, before, between, parse, rest_after, short, word};
use crate::card::{Figures, judge, keep_nothing, shrink};
use crate::explanation::{Explanation, Kind, Source, Verdict};
use crate::progress::Progress;

/// The most lines and bytes over which a message may be wrapped.
const WRAPPED_LINES: u32 = 8;
const WRAPPED_BYTES: usize = 8192;
/// The most messages and processes that are remembered.
const MANY: usize = 4096;

/// One message's figures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub asked: Figure,
    pub device: Option<String>,
    pub total: Figure,
    pub free: Figure,
    pub allocated: Figure,
    /// Held by the pool but not allocated.
    pub idle: Figure,
    pub allowed: Figure,
    pub private: Figure,
    /// What this process holds in all.
    pub own: Figure,
    /// What other processes hold, by their numbers.
    pub others: Vec<(String, u64)>,
    /// Of Metal: what is allocated outside PyTorch's pool.
    pub beside: Figure,
    pub host: bool,
    pub metal: bool,
}

/// What a log says in this form.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub message: Option<Message>,
    /// What was allocated at each message before the last.
    pub earlier: Vec<u64>,
    /// The innermost frame of the user's own code in the last traceback.
    frame: Option<String>,
    pub op: Option<String>,
    pending: Option<(String, u32)>,
    pub last_line: u64,
}

impl Log {
    /// Takes a line; true where it was understood.
    pub fn line(&mut self, number: u64, line: &str) -> bool {
        if let Some(frame) = line.trim_start().strip_prefix("File \"") {
            self.frame(frame);
        }
        let starts = line.contains("ried to allocate ")
            && (line.contains("memory") || line.contains("total capac"))
            || line.contains("CUDA error: out of memory")
            || line.contains("cuda runtime error (2) : out of memory");
        if starts {
            self.flush();
            self.last_line = number;
            self.pending = Some((line.get(..WRAPPED_BYTES).unwrap_or(line).to_string(), WRAPPED_LINES));
        } else if let Some((text, left)) = &mut self.pending {
            if line.trim().is_empty() || *left == 0 || text.len() + line.len() > 2 * WRAPPED_BYTES {
                self.flush();
            } else {
                text.push(' ');
                text.push_str(line.trim());
                *left -= 1;
            }
        }
        if self.pending.as_ref().is_some_and(|(text, _)| is_whole(text)) {
            self.flush();
        }
        starts
    }

    /// Reads what is still being gathered.
    pub fn flush(&mut self) {
        let Some((text, _)) = self.pending.take() else { return };
        if let Some(allocated) = self.message.as_ref().and_then(|message| message.allocated)
            && self.earlier.len() < MANY
        {
            self.earlier.push(allocated);
        }
        self.message = Some(read(&text));
        self.op = self.frame.take();
    }

    fn frame(&mut self, text: &str) {
        let Some((path, rest)) = text.split_once('"') else { return };
        let library = ["site-packages", "dist-packages", "/torch/", "/lib/python"]
            .iter()
            .any(|part| path.contains(part));
        if library && self.frame.is_some() {
            return;
        }
        let file = path.rsplit(['/', '\\']).next().unwrap_or(path);
        let row = after(rest, "line ").unwrap_or(0);
        let name = rest_after(rest, " in ").map(word).unwrap_or("");
        self.frame = Some(short(&format!("{file}:{row} {name}")).trim_end().to_string());
    }
}

fn is_whole(text: &str) -> bool {
    text.contains("reserved by PyTorch but unallocated")
        || text.contains("reserved in total by PyTorch")
        || text.contains(" cached)")
        || text.contains("MPS backend") && text.contains("max allowed")
        || text.contains("you tried to allocate")
        || text.contains("CUDA error: out of memory")
}

/// Reads one message.
fn read(text: &str) -> Message {
    let mut found = Message { asked: after(text, "ried to allocate "), ..Message::default() };
    if text.contains("you tried to allocate") {
        found.host = true;
        found.device = Some("the host".to_string());
        return found;
    }
    if text.contains("MPS backend") {
        found.metal = true;
        found.device = Some("MPS".to_string());
        found.allocated = after(text, "MPS allocated: ");
        found.beside = after(text, "other allocations: ");
        found.allowed = after(text, "max allowed: ");
        return found;
    }
    found.device = rest_after(text, "GPU ").map(|rest| {
        let number: String = rest.chars().take_while(char::is_ascii_digit).take(4).collect();
        format!("GPU {number}").trim_end().to_string()
    });
    let sentences = after(text, "total capacity of ").or_else(|| after(text, "total capacty of "));
    found.total = sentences.or_else(|| before(text, " total capacity"));
    found.allowed = before(text, " allowed");
    if sentences.is_some() {
        found.free = after(text, "of which ");
        found.allocated = after(text, "Of the allocated memory ");
        found.idle = before(text, " is reserved by PyTorch but unallocated");
        found.private = before(text, " allocated in private pools");
        found.own = after(text, "this process has ");
        processes(text, &mut found);
    } else {
        found.free = before(text, " free");
        found.allocated = before(text, " already allocated");
        let reserved = before(text, " reserved in total");
        found.idle = match (reserved, found.allocated) {
            (Some(reserved), Some(allocated)) => Some(reserved.saturating_sub(allocated)),
            _ => before(text, " cached"),
        };
    }
    found
}

/// The other processes. Inside a container the process does not know its own number and is listed like any other; it is
/// the one that holds at least what PyTorch's pool holds, and closest to it.
fn processes(text: &str, found: &mut Message) {
    let mut rest = text;
    while let Some(next) = rest_after(rest, "Process ") {
        rest = next;
        let number: String = next.chars().take_while(char::is_ascii_digit).take(10).collect();
        if let Some(bytes) = between(next, " has ", " memory in use").and_then(parse)
            && !number.is_empty()
            && found.others.len() < MANY
        {
            found.others.push((number, bytes));
        }
    }
    let pool = found.allocated.unwrap_or(0).saturating_add(found.idle.unwrap_or(0));
    if found.own.is_none() {
        let own = found
            .others
            .iter()
            .enumerate()
            .filter(|(_, (_, bytes))| *bytes >= pool)
            .min_by_key(|(_, (_, bytes))| *bytes);
        if let Some(at) = own.map(|(at, _)| at) {
            found.own = Some(found.others.remove(at).1);
        }
    }
}

/// Explains the last message of a log.
pub(crate) fn explain(log: &Log, progress: &Progress) -> Explanation {
    let empty = Message::default();
    let message = log.message.as_ref().unwrap_or(&empty);
    let mut to = Explanation::new(Source::PyTorch, Kind::Message);
    to.request.asked_bytes = message.asked;
    to.request.op = log.op.clone();
    to.request.device = message.device.clone();
    to.figures.limit_bytes = message.allowed.or(message.total);
    to.figures.in_use_bytes = message.allocated;
    let figures = Figures {
        asked: message.asked,
        total: message.total,
        free: message.free,
        allocated: message.allocated,
        idle: message.idle,
        allowed: message.allowed,
        own: message.own,
        others: (!message.others.is_empty() || message.own.is_some())
            .then(|| message.others.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes))),
        largest_idle: None,
    };
    if message.host {
        to.because
            .push("the system refused host memory; the message does not say how much there is".to_string());
        to.advise(
            "smaller batches, fewer data-loader workers, data read from files instead of held whole",
            None,
        );
    } else if message.metal {
        metal(&mut to, message);
    } else {
        judge(&mut to, &figures);
    }
    if let Some(private) = message.private {
        to.because
            .push(format!("{} of it belong to private pools, such as those of CUDA graphs", Size(private)));
    }
    for (number, bytes) in message.others.iter().take(4) {
        to.because.push(format!("process {number} holds {}", Size(*bytes)));
    }
    let series: Vec<u64> = log.earlier.iter().copied().chain(message.allocated).collect();
    if let Some((first, last)) = rise(&series) {
        to.because.push(risen("allocated", series.len(), first, last));
        if to.verdict == Verdict::Capacity {
            to.verdict = Verdict::Growth;
            keep_nothing(&mut to, Some(last - first));
        }
    } else if progress.had_worked() {
        to.cannot_tell.push(format!(
            "whether something grew: the run had come to {}, so a step had fitted; a later batch may have been larger, or something is \
             kept. A snapshot (torch.cuda.memory._record_memory_history(), _dump_snapshot(\"oom.pickle\")) would show it",
            progress.words()
        ));
    }
    shrink(&mut to);
    to.finish()
}

fn metal(to: &mut Explanation, message: &Message) {
    let (Some(asked), Some(allocated), Some(allowed)) = (message.asked, message.allocated, message.allowed)
    else {
        return;
    };
    let beside = message.beside.unwrap_or(0);
    let taken = allocated.saturating_add(beside);
    let free = allowed.saturating_sub(taken);
    to.figures.free_bytes = Some(free);
    to.figures.would_have_fitted_bytes = Some(free);
    to.verdict = Verdict::Limit;
    to.because.push(format!(
        "PyTorch's pool holds {} and other allocations {}, of {} allowed: {} too little for {}",
        Size(allocated),
        Size(beside),
        Size(allowed),
        Size(asked.saturating_sub(free)),
        Size(asked)
    ));
    to.advise(
        "raise the limit with PYTORCH_MPS_HIGH_WATERMARK_RATIO (0.0 takes it away; the system may then swap)",
        Some(asked.saturating_sub(free)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Explanation {
        let mut log = Log::default();
        for (i, line) in text.lines().enumerate() {
            log.line(i as u64, line);
        }
        log.flush();
        explain(&log, &Progress::default())
    }

    #[test]
    fn a_container_lists_its_own_process_like_any_other() {
        let told = of(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 204.00 MiB. GPU 0 has a total capacity of 47.53 GiB of \
                       which 94.88 MiB is free. Process 1381433 has 47.43 GiB memory in use. Of the allocated memory 47.03 GiB is allocated \
                       by PyTorch, and 83.38 MiB is reserved by PyTorch but unallocated.",
        );
        assert_eq!(told.verdict, Verdict::Capacity, "{told:?}");
    }

    #[test]
    fn what_is_free_and_yet_refused_is_not_explained_away() {
        let told = of(
            "CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; \
                       9.28 GiB free; 4.68 MiB cached)",
        );
        assert_eq!((told.verdict, told.figures.would_have_fitted_bytes), (Verdict::Unknown, None));
        assert!(!told.cannot_tell.is_empty());
    }

    #[test]
    fn a_message_that_says_nothing_gets_no_verdict() {
        let told = of("RuntimeError: CUDA error: out of memory");
        assert_eq!((told.verdict, told.request.asked_bytes), (Verdict::Unknown, None));
        assert!(told.cannot_tell.iter().any(|what| what.contains("how much was asked")));
    }
}
