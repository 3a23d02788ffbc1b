//! Turns JAX's and XLA's RESOURCE_EXHAUSTED reports into an explanation.
//!
//! There are three kinds: a compiled program that does not fit a TPU's memory (known when it is compiled), a runtime
//! allocation that failed with a few words on what is free, and a program on a card whose buffers are listed by size.

use crate::advice::for_batch;
use crate::bfc::element_bytes;
use crate::bytes::{Figure, Size, after, between, parse, percent, rest_after, short, word};
use crate::explanation::{Explanation, Held, Kind, PoolCounts, PoolSummary, Source, Verdict};
use crate::lines::noted;
use crate::progress::Progress;

/// The most buffers that are kept of a list.
const BUFFERS: usize = 64;

/// A buffer of a program, from the list of the largest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffer {
    pub bytes: u64,
    pub op: Option<String>,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub padding: u64,
}

/// What a log says in these forms.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub error: bool,
    pub memory: Option<String>,
    pub asked: Figure,
    /// What the program needs and what the device has.
    pub used: Figure,
    pub capacity: Figure,
    /// What was free at a runtime allocation.
    pub free: Figure,
    pub parameters: Figure,
    pub outputs: Figure,
    pub temporaries: Figure,
    pub total: Figure,
    pub fragmentation: Figure,
    /// Bytes of outputs that share nothing with arguments.
    pub unshared: Figure,
    pub buffers: Vec<Buffer>,
    pub last_line: u64,
}

impl Log {
    /// Takes a line; true where it was understood.
    pub fn line(&mut self, number: u64, line: &str) -> bool {
        let known = self.read(line);
        noted(known, number, &mut self.last_line)
    }

    fn read(&mut self, line: &str) -> Option<()> {
        let mut known = None;
        let exhausted = line.contains("RESOURCE_EXHAUSTED") || line.contains("Resource exhausted");
        // The same code is used for quotas of other kinds.
        let of_memory = ["memory", "Hbm", "lloca"].iter().any(|word| line.contains(word));
        let tensor = line.contains("OOM when allocating tensor");
        if exhausted && of_memory && !tensor || line.contains("Ran out of memory in memory space") {
            self.error = true;
            self.buffers.clear();
            known = Some(());
        }
        if !self.error {
            return None;
        }
        if let Some(asked) = after(line, "ut of memory while trying to allocate ")
            .or_else(|| after(line, "Out of memory allocating "))
        {
            self.asked = Some(asked);
            known = Some(());
        }
        if let Some(rest) = rest_after(line, "Attempting to ")
            && let Some(asked) = after(rest, "allocate ").or_else(|| after(rest, "reserve "))
        {
            self.asked = Some(asked);
            self.free = after(rest, "There are ");
            known = Some(());
        }
        if let Some(rest) = rest_after(line, "Ran out of memory in memory space ") {
            self.memory = Some(short(word(rest).trim_end_matches('.')));
            if let Some(used) = after(rest, "Used ") {
                self.used = Some(used);
                self.capacity = between(rest, "Used ", " Exceeded").and_then(|text| after(text, " of "));
            }
            known = Some(());
        }
        if let Some(used) = after(line, "TensorCore Hbm usage: ") {
            self.used = Some(used.saturating_add(after(line, "SparseCore Hbm usage ").unwrap_or(0)));
            self.capacity = after(line, "exceeding available bytes: ");
            known = Some(());
        }
        if let Some(asked) = after(line, "Allocation (size=") {
            self.asked = Some(asked);
            self.capacity = after(line, "would exceed memory (size=");
            known = Some(());
        }
        known.or_else(|| self.detail(line.trim()))
    }

    fn detail(&mut self, line: &str) -> Option<()> {
        let fields = [
            ("parameter allocation:", 0),
            ("maybe_live_out allocation:", 1),
            ("preallocated temp allocation:", 2),
            ("total allocation:", 3),
            ("total fragmentation:", 4),
            ("arguments ", 0),
            ("HLO temp ", 2),
        ];
        for (name, field) in fields {
            if let Some(bytes) = line.strip_prefix(name).and_then(parse) {
                let fields = [
                    &mut self.parameters,
                    &mut self.outputs,
                    &mut self.temporaries,
                    &mut self.total,
                    &mut self.fragmentation,
                ];
                *fields.into_iter().nth(field)? = Some(bytes);
                return Some(());
            }
        }
        if let Some(rest) = line.strip_prefix("Output size ") {
            self.unshared = Some(parse(rest)?.saturating_sub(after(rest, "shares ").unwrap_or(0)));
            return Some(());
        }
        // `Size: 6.00MiB` on a card, `17. Size: 64.00M` on a TPU.
        let numbered = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ' ');
        if let Some(bytes) = numbered.strip_prefix("Size: ").and_then(parse) {
            if self.buffers.len() < BUFFERS {
                self.buffers.push(Buffer { bytes, ..Buffer::default() });
            }
            return Some(());
        }
        let buffer = self.buffers.last_mut()?;
        if let Some(rest) = line.strip_prefix("Operator: ") {
            let op = between(rest, "op_name=\"", "\"").unwrap_or(rest);
            let place = between(rest, "source_file=\"", "\"").and_then(|path| path.rsplit('/').next());
            let row = after(rest, "source_line=");
            buffer.op = Some(match (place, row) {
                (Some(file), Some(row)) => short(&format!("{file}:{row} {op}")),
                _ => short(op),
            });
        } else if let Some(shape) =
            line.strip_prefix("Shape: ").or_else(|| line.strip_prefix("Entry Parameter Subshape: "))
        {
            buffer.dtype = shape.chars().take_while(char::is_ascii_alphanumeric).take(16).collect();
            let dims = between(shape, "[", "]").unwrap_or("");
            buffer.shape = dims.split(',').map_while(|dim| dim.trim().parse().ok()).take(16).collect();
            if buffer.op.is_none() && line.starts_with("Entry") {
                buffer.op = Some("a parameter of the program".to_string());
            }
        } else if let Some(bytes) = line.strip_prefix("Extra memory due to padding: ").and_then(parse) {
            buffer.padding = bytes;
        } else {
            return None;
        }
        Some(())
    }
}

/// Explains a report without an allocator's dump.
pub(crate) fn explain(log: &Log, progress: &Progress) -> Explanation {
    let mut to = Explanation::new(Source::Jax, Kind::Message);
    to.request.asked_bytes = log.asked.or(log.used);
    to.figures.limit_bytes = log.capacity;
    to.request.device = log.memory.clone();
    let room = log.capacity.zip(log.used);
    if let Some((capacity, used)) = room {
        to.verdict = Verdict::Capacity;
        to.figures.would_have_fitted_bytes = Some(capacity);
        to.request.op = Some("the compiled program".to_string());
        to.because.push(format!(
            "the program needs {} where the device has {}: it must shrink by {} ({} %) before it can be compiled",
            Size(used),
            Size(capacity),
            Size(used.saturating_sub(capacity)),
            percent(used.saturating_sub(capacity), used)
        ));
    } else if let (Some(asked), Some(free)) = (log.asked, log.free) {
        to.figures.free_bytes = Some(free);
        if asked > free {
            to.verdict = Verdict::Capacity;
            to.because.push(format!(
                "{} were free: {} too little for {} even in one piece",
                Size(free),
                Size(asked - free),
                Size(asked)
            ));
        } else {
            to.verdict = Verdict::Fragmentation;
            to.because.push(format!(
                "{} were free, enough for {}, but not in one piece",
                Size(free),
                Size(asked)
            ));
            to.advise(
                "free long-lived arrays before compiling or loading large ones, and donate arguments (donate_argnums) so that \
                 results take their place",
                Some(free),
            );
        }
    } else if let (Some(asked), Some(capacity)) = (log.asked, log.capacity) {
        to.verdict = if asked > capacity { Verdict::Capacity } else { Verdict::Unknown };
        to.because.push(format!("one allocation of {} on a device with {}", Size(asked), Size(capacity)));
    } else if log.asked.is_some() {
        to.because.push(
            "the report says what was asked for but neither the pool's limit nor what was in use; a dump of the allocator \
             (standard error with TF_CPP_MIN_LOG_LEVEL=0) would"
                .to_string(),
        );
    }
    add_program(&mut to, log);
    if to.verdict == Verdict::Unknown {
        to.advise("if other programs use the card, end them; a pool of 0.75 of it is taken at the start (XLA_PYTHON_CLIENT_MEM_FRACTION)", None);
    }
    if log.buffers.is_empty() {
        to.advise(
            "smaller batches; jax.checkpoint around blocks; donated arguments (donate_argnums); `del` of arrays that are no \
             longer needed before the next step",
            None,
        );
    }
    if progress.had_worked() {
        to.cannot_tell
            .push(format!("what changed: the run had come to {}, so a step had fitted", progress.words()));
    }
    // A program that does not compile has held nothing yet; questions for figures have no answer to miss.
    match log.used {
        Some(_) => to.finish_without_figures(),
        None => to.finish(),
    }
}

/// What the list of a program's buffers tells, and what follows from it; also for reports with a dump.
pub(crate) fn add_program(to: &mut Explanation, log: &Log) {
    if let Some(total) = log.total {
        let part = |name: &str, bytes: Option<u64>| {
            bytes.map_or(String::new(), |bytes| format!(", {name} {}", Size(bytes)))
        };
        to.because.push(format!(
            "the program takes {} in all{}{}{}",
            Size(total),
            part("parameters", log.parameters),
            part("results", log.outputs),
            part("temporaries", log.temporaries)
        ));
    }
    if let (Some(asked), Some(temporaries)) = (to.request.asked_bytes, log.temporaries)
        && asked.abs_diff(temporaries) <= asked / 50
        && asked > 0
    {
        to.because.push(format!(
            "the request is the program's whole block of temporaries, {} in one piece",
            Size(asked)
        ));
    }
    let largest: Vec<String> = log.buffers.iter().take(3).map(in_words).collect();
    if !largest.is_empty() {
        to.because.push(format!("the largest buffers: {}", largest.join("; ")));
    }
    if to.pool.is_none() && !log.buffers.is_empty() {
        let held = log.buffers.iter().take(12).map(|buffer| Held {
            chunk_bytes: buffer.bytes,
            chunks: 1,
            bytes: buffer.bytes,
            by: Some(owner(buffer)),
        });
        to.pool = Some(PoolSummary {
            counts: PoolCounts {
                chunks: log.buffers.len() as u64,
                chunks_in_use: log.buffers.len() as u64,
                regions_total: 0,
            },
            regions: Vec::new(),
            columns: Vec::new(),
            free_sizes: Vec::new(),
            held: held.collect(),
        });
    }
    if let Some(first) =
        log.buffers.iter().find(|buffer| buffer.op.as_deref() != Some("a parameter of the program"))
    {
        for_batch(to, &first.shape, first.bytes);
    }
    let wide: u64 =
        log.buffers.iter().filter(|b| b.dtype == "f32").fold(0, |sum, b| sum.saturating_add(b.bytes));
    if wide >= 1 << 20 && element_bytes("f32").is_some() {
        to.advise(
            format!(
                "compute in bfloat16: the listed f32 buffers take {} together and would take half",
                Size(wide)
            ),
            Some(wide / 2),
        );
    }
    let padding = log.buffers.iter().fold(0u64, |sum, b| sum.saturating_add(b.padding));
    if padding > 0 {
        to.advise(
            "choose sizes that the device's tiles divide (the last axis by 128, the one before by 8): listed buffers are padded",
            Some(padding),
        );
    }
    let donated = log.unshared.or(log.outputs).filter(|bytes| *bytes > 0);
    if let Some(bytes) = donated {
        to.advise(
            "donate the old state (jax.jit with donate_argnums), so that new parameters and optimizer state take its place",
            Some(bytes.min(log.parameters.unwrap_or(bytes))),
        );
    }
    if let Some(temporaries) = log.temporaries.filter(|bytes| *bytes > 0) {
        to.advise(
            format!(
                "recompute activations in the backward pass (jax.checkpoint around blocks): temporaries are {}, and all saved \
                 activations are in it; how much goes depends on the model",
                Size(temporaries)
            ),
            None,
        );
    }
}

fn in_words(buffer: &Buffer) -> String {
    format!("{} {}", Size(buffer.bytes), owner(buffer)).trim_end().to_string()
}

/// The shape and the op of a buffer, as far as they are known.
fn owner(buffer: &Buffer) -> String {
    let shape = (!buffer.dtype.is_empty()).then(|| crate::advice::tensor(&buffer.shape, &buffer.dtype));
    let op = buffer.op.as_deref().map(|op| format!("by {op}"));
    shape.into_iter().chain(op).collect::<Vec<_>>().join(" ")
}
