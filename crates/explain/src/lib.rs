//! Turns other systems' out-of-memory messages into plain explanations.
//!
//! TensorFlow, PyTorch and JAX say a good deal when memory runs out, in a form that few can read. This crate reads it and says what
//! was asked for and by whom, what was in use and free, whether it was capacity, fragmentation, a limit, another process or
//! growth, with the figures that show it, what would have fitted and what to change. Where a report does not hold the answer, it
//! says so.
//!
//! Files are foreign: they are read as a stream within fixed bounds, a gigabyte of log in a few megabytes of memory, and a
//! pickle is data, never a program. Nothing here knows of the engine.
//!
//! ```
//! let message = "CUDA out of memory. Tried to allocate 192.00 MiB (GPU 0; 4.00 GiB total capacity; 3.08 GiB already \
//!                allocated; 0 bytes free; 3.47 GiB reserved in total by PyTorch)";
//! let told = plimsoll_explain::explain(message.as_bytes(), "message")?;
//! assert_eq!(told.verdict, plimsoll_explain::Verdict::Fragmentation);
//! println!("{told}");
//! # Ok::<(), plimsoll_explain::Error>(())
//! ```

mod advice;
mod bfc;
mod bytes;
mod card;
mod error;
mod explanation;
mod html;
mod json;
mod lines;
mod pickle;
mod pool;
mod progress;
mod pytorch;
mod snapshot;
mod tape;
mod tensorflow;
mod text;
mod value;
mod xla;

pub use error::Error;
pub use explanation::{
    Advice, Column, Explanation, Figures, FreeClass, Held, Kind, PoolCounts, PoolSummary, RegionSummary,
    Request, Source, Verdict,
};

use std::io::{BufReader, Cursor, Read};

use bytes::Size;
use value::Values;

/// The most memory that a snapshot's values may take.
const SNAPSHOT: usize = 768 << 20;
/// How much of a file is looked at to see what it is.
const HEAD: usize = 4096;

/// Explains a log, a message or a snapshot. The name is for error texts, and `.pickle`, `.pkl` and `.json` say what it is.
pub fn explain(mut source: impl Read, name: &str) -> Result<Explanation, Error> {
    let io = |source| Error::Io { name: name.to_string(), source };
    let mut head = Vec::new();
    source.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(io)?;
    if head.iter().all(u8::is_ascii_whitespace) && head.len() < HEAD {
        return Err(Error::Empty { name: name.to_string() });
    }
    let form = form_of(&head, name);
    let whole = BufReader::with_capacity(1 << 16, Cursor::new(head).chain(source));
    match form {
        Form::Pickle => from_pickle(whole, name),
        Form::Json => from_json(whole, name),
        Form::Log => from_log(whole, name),
    }
}

enum Form {
    Log,
    Pickle,
    Json,
}

fn form_of(head: &[u8], name: &str) -> Form {
    let name = name.to_ascii_lowercase();
    let binary = matches!(head, [0x80, 2..=5, ..]);
    let textual = [&b"(dp"[..], b"(lp", b"}q", b"]q"].iter().any(|start| head.starts_with(start));
    if binary || textual || [".pickle", ".pkl"].iter().any(|end| name.ends_with(end)) {
        return Form::Pickle;
    }
    let text = String::from_utf8_lossy(head);
    let keys = ["\"segments\"", "\"device_traces\"", "\"blocks\"", "\"total_size\""];
    // A line of a structured log is JSON as well; a snapshot shows its keys soon.
    if text.trim_start().starts_with(['{', '['])
        && (keys.iter().any(|key| text.contains(key)) || name.ends_with(".json"))
    {
        return Form::Json;
    }
    Form::Log
}

fn from_pickle(source: impl std::io::BufRead, name: &str) -> Result<Explanation, Error> {
    let name = name.to_string();
    let mut values = Values::new(SNAPSHOT);
    let root = pickle::read(source, &mut values).map_err(|problem| match problem {
        tape::Problem::Io(source) => Error::Io { name: name.clone(), source },
        tape::Problem::Code { at, op, what } => Error::Code { name: name.clone(), at, op, what },
        tape::Problem::Damaged { at, why } => Error::Damaged { name: name.clone(), at, why },
        tape::Problem::Full => {
            Error::TooLarge { name: name.clone(), limit: Size(SNAPSHOT as u64).to_string() }
        }
    })?;
    snapshot::explain(&values, root).map_err(|why| Error::NoSnapshot { name, form: "a pickle", why })
}

fn from_json(source: impl Read, name: &str) -> Result<Explanation, Error> {
    let name = name.to_string();
    let mut values = Values::new(SNAPSHOT);
    let root = json::read(source, &mut values).map_err(|problem| match problem {
        json::Problem::Io(source) => Error::Io { name: name.clone(), source },
        json::Problem::Full => {
            Error::TooLarge { name: name.clone(), limit: Size(SNAPSHOT as u64).to_string() }
        }
        json::Problem::Damaged { line, column, why } => {
            Error::Damaged { name: name.clone(), at: column, why: format!("line {line}: {why}") }
        }
    })?;
    snapshot::explain(&values, root).map_err(|why| Error::NoSnapshot { name, form: "JSON", why })
}

/// Reads a log line by line; the system that spoke last is the one to explain.
fn from_log(source: impl std::io::BufRead, name: &str) -> Result<Explanation, Error> {
    let mut lines = lines::Lines::new(source);
    let mut bfc = bfc::Log::default();
    let mut torch = pytorch::Log::default();
    let mut xla = xla::Log::default();
    let mut progress = progress::Progress::default();
    // How far the run had come at the last refusal: a loop that catches it goes on.
    let mut reached = progress::Progress::default();
    let (mut names_jax, mut names_tensorflow) = (false, false);
    let read = lines.each(|number, line| {
        // Structured logs put a whole message into one line, with its line ends spelt out.
        for line in line.split("\\n") {
            let known = bfc.line(number, line);
            let known = xla.line(number, line) || known;
            let known = known || torch.line(number, line);
            if !known {
                progress.line(line);
            } else if ["ried to allocate", "trying to allocate", "OOM when", "EXHAUSTED"]
                .iter()
                .any(|word| line.contains(word))
            {
                reached = progress;
            }
            names_tensorflow = names_tensorflow || line.contains("tensorflow");
            let words = ["jaxlib", "XlaRuntimeError", "JaxRuntimeError"];
            names_jax = names_jax || words.iter().any(|word| line.contains(word));
        }
    });
    read.map_err(|source| Error::Io { name: name.to_string(), source })?;
    torch.flush();
    let progress = progress::Progress { keras: progress.keras, ..reached };
    let has_xla = xla.asked.is_some() || xla.used.is_some();
    if torch.message.is_some() && torch.last_line > bfc.last_line && torch.last_line > xla.last_line
        || torch.message.is_some() && !bfc.found() && !has_xla
    {
        return Ok(pytorch::explain(&torch, &progress));
    }
    if bfc.found() {
        // TensorFlow's own compiled functions speak as XLA does.
        let is_jax = names_jax || has_xla && !names_tensorflow;
        let source = if is_jax { Source::Jax } else { Source::TensorFlow };
        return Ok(tensorflow::explain(&bfc, &progress, source, has_xla.then_some(&xla)));
    }
    if has_xla || xla.error {
        return Ok(xla::explain(&xla, &progress));
    }
    Err(Error::Nothing { name: name.to_string(), lines: lines.count })
}
