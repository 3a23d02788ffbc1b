//! Why something could not be explained, in one sentence.

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading failed.
    #[error("{name}: {source}")]
    Io {
        /// What was read.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// There was nothing to read.
    #[error("{name} is empty; give it the log of the run that failed, standard error included")]
    Empty {
        /// What was read.
        name: String,
    },
    /// Nothing of what can be explained was found.
    #[error(
        "nothing in {name} looks like an out-of-memory report ({lines} {} read); it reads TensorFlow logs and errors, PyTorch \
         messages and memory snapshots (pickle or JSON), and JAX/XLA RESOURCE_EXHAUSTED reports",
        if *lines == 1 { "line" } else { "lines" }
    )]
    Nothing {
        /// What was read.
        name: String,
        /// How many lines it had.
        lines: u64,
    },
    /// The pickle would run code.
    #[error(
        "{name} is not a plain snapshot: byte {at} ({op}) of this pickle would {what} when Python loads it; nothing was run, and \
         a snapshot of torch.cuda.memory._dump_snapshot needs no such thing"
    )]
    Code {
        /// What was read.
        name: String,
        /// Where.
        at: u64,
        /// The instruction's name.
        op: &'static str,
        /// What it would do.
        what: String,
    },
    /// The file breaks off or contradicts its own format.
    #[error("{name} is damaged at byte {at}: {why}")]
    Damaged {
        /// What was read.
        name: String,
        /// Where.
        at: u64,
        /// How.
        why: String,
    },
    /// The snapshot holds more than may be kept in memory.
    #[error(
        "{name} holds more than {limit} of values; record less history \
         (torch.cuda.memory._record_memory_history(max_entries=100000)) and take it again"
    )]
    TooLarge {
        /// What was read.
        name: String,
        /// The most that is kept.
        limit: String,
    },
    /// It is a pickle or JSON, but no snapshot.
    #[error(
        "{name} is {form} but no memory snapshot of PyTorch: {why}; expected what torch.cuda.memory._snapshot() returns"
    )]
    NoSnapshot {
        /// What was read.
        name: String,
        /// `a pickle` or `JSON`.
        form: &'static str,
        /// What is missing.
        why: String,
    },
}
