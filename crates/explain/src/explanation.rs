//! What is said in the end: the figures, the verdict, the reasons and the ways out, for people and as JSON.

use serde::Serialize;

use crate::bytes::Size;
use crate::pool::Pool;

/// Whose message it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// TensorFlow's BFC allocator or its `ResourceExhaustedError`.
    TensorFlow,
    /// PyTorch's caching allocator.
    PyTorch,
    /// JAX, or XLA by itself.
    Jax,
}

impl Source {
    /// The name as its makers write it.
    pub fn name(self) -> &'static str {
        match self {
            Source::TensorFlow => "TensorFlow",
            Source::PyTorch => "PyTorch",
            Source::Jax => "JAX/XLA",
        }
    }
}

/// What there was to go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Kind {
    /// An error message alone.
    #[serde(rename = "oom message")]
    Message,
    /// A list of the pool's chunks and statistics.
    #[serde(rename = "allocator dump")]
    Dump,
    /// The allocator's state as data.
    #[serde(rename = "snapshot")]
    Snapshot,
}

/// Why memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It does not fit, however it is placed.
    Capacity,
    /// There were enough free bytes, but not in one piece.
    Fragmentation,
    /// A setting stands below what the device has.
    Limit,
    /// Somebody else holds the device's memory.
    OtherProcess,
    /// It fitted before, and what is held grows.
    Growth,
    /// The report does not hold the answer.
    Unknown,
}

impl Verdict {
    /// In a few words.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Capacity => "capacity: it does not fit, however it is placed",
            Verdict::Fragmentation => "fragmentation: enough is free, but not in one piece",
            Verdict::Limit => "a limit: a setting stands below what the device has",
            Verdict::OtherProcess => "another process: the device's memory is held elsewhere",
            Verdict::Growth => "growth: it fitted before, and what is held keeps growing",
            Verdict::Unknown => "I cannot tell",
        }
    }
}

/// One thing to change.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// What to do.
    pub what: String,
    /// The bytes it would save or make usable, where that can be computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saves_bytes: Option<u64>,
}

/// Free chunks of about one size.
#[derive(Clone, Debug, Serialize)]
pub struct FreeClass {
    /// The least size of these chunks; the next class begins at twice that.
    pub at_least_bytes: u64,
    /// How many.
    pub chunks: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// Chunks in use of one size and owner.
#[derive(Clone, Debug, Serialize)]
pub struct Held {
    /// The size of each.
    pub chunk_bytes: u64,
    /// How many.
    pub chunks: u64,
    /// Their bytes together.
    pub bytes: u64,
    /// The op or source line that made them, where it is recorded.
    pub by: Option<String>,
}

/// One contiguous piece of the pool.
#[derive(Clone, Debug, Serialize)]
pub struct RegionSummary {
    /// Where it begins.
    pub address: String,
    /// Bytes in use.
    pub in_use_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// How many chunks it holds.
    pub chunks: u64,
}

/// One stretch of the pool's addresses.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Column {
    /// Bytes in use.
    pub in_use_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
}

/// How many pieces a pool is in.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PoolCounts {
    /// How many chunks there are.
    pub chunks: u64,
    /// How many of them are in use.
    pub chunks_in_use: u64,
    /// How many regions (or segments) there are.
    pub regions_total: u64,
}

/// A pool, aggregated.
#[derive(Clone, Debug, Serialize)]
pub struct PoolSummary {
    /// How many pieces it is in.
    #[serde(flatten)]
    pub counts: PoolCounts,
    /// The largest regions, in the order of their addresses; at most 32.
    pub regions: Vec<RegionSummary>,
    /// The pool by address in at most 96 equal stretches; regions follow one another without the gaps between them.
    pub columns: Vec<Column>,
    /// Free chunks by size.
    pub free_sizes: Vec<FreeClass>,
    /// What is in use by size and owner, heaviest first; at most 12.
    pub held: Vec<Held>,
}

/// How many columns the picture of a pool has.
const COLUMNS: usize = 96;

impl PoolSummary {
    pub(crate) fn of(pool: &Pool) -> Option<PoolSummary> {
        if pool.chunks == 0 {
            return None;
        }
        let mut largest: Vec<usize> = (0..pool.regions.len()).collect();
        let bytes = |i: &usize| pool.regions.get(*i).map_or(0, |r| r.used.saturating_add(r.free));
        largest.sort_by_key(|i| (std::cmp::Reverse(bytes(i)), *i));
        largest.truncate(32);
        largest.sort_unstable();
        let regions = largest.iter().filter_map(|&i| pool.regions.get(i)).map(|region| RegionSummary {
            address: format!("{:#x}", region.address),
            in_use_bytes: region.used,
            free_bytes: region.free,
            chunks: region.chunks,
        });
        let columns = pool.columns(COLUMNS).into_iter();
        let free = pool.free_classes.iter();
        let held = pool.heaviest(12).into_iter();
        Some(PoolSummary {
            counts: PoolCounts {
                chunks: pool.chunks,
                chunks_in_use: pool.used_chunks,
                regions_total: pool.regions.len() as u64,
            },
            regions: regions.collect(),
            columns: columns.map(|(used, free)| Column { in_use_bytes: used, free_bytes: free }).collect(),
            free_sizes: free
                .map(|(class, &(chunks, bytes))| FreeClass { at_least_bytes: 1 << class, chunks, bytes })
                .collect(),
            held: held
                .map(|(size, by, holder)| Held {
                    chunk_bytes: size,
                    chunks: holder.count,
                    bytes: holder.bytes,
                    by: by.map(str::to_string),
                })
                .collect(),
        })
    }
}

/// The request that ran out of memory, as far as the report names it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Request {
    /// What was asked for.
    pub asked_bytes: Option<u64>,
    /// Who asked: an op or a source line.
    pub op: Option<String>,
    /// The shape and type of what was asked for.
    pub tensor: Option<String>,
    /// On which device, or in which pool.
    pub device: Option<String>,
}

/// How full the pool was, as far as the report says or it can be computed.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Figures {
    /// The most the pool (or, without a pool's limit, the device) has.
    pub limit_bytes: Option<u64>,
    /// What was in use.
    pub in_use_bytes: Option<u64>,
    /// What was free: in the pool, and of the limit not yet taken from the device.
    pub free_bytes: Option<u64>,
    /// The largest free piece of the pool.
    pub largest_free_bytes: Option<u64>,
    /// The largest request that would have been served.
    pub would_have_fitted_bytes: Option<u64>,
}

/// An out-of-memory report, explained.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Whose message it was.
    pub source: Source,
    /// What there was to go by.
    pub kind: Kind,
    /// The request that failed.
    #[serde(flatten)]
    pub request: Request,
    /// How full the pool was.
    #[serde(flatten)]
    pub figures: Figures,
    /// Why it ran out.
    pub verdict: Verdict,
    /// The reasons, each a sentence with its figures.
    pub because: Vec<String>,
    /// What to change, most effective first.
    pub advice: Vec<Advice>,
    /// What the report does not tell.
    pub cannot_tell: Vec<String>,
    /// The pool, where chunks are known.
    pub pool: Option<PoolSummary>,
}

impl Explanation {
    /// What was asked for, the limit, what was in use, what was free, the largest free piece, and what would have fitted.
    pub(crate) fn table(&self) -> [Option<u64>; 6] {
        let Figures { limit_bytes, in_use_bytes, free_bytes, largest_free_bytes, would_have_fitted_bytes } =
            self.figures;
        [
            self.request.asked_bytes,
            limit_bytes,
            in_use_bytes,
            free_bytes,
            largest_free_bytes,
            would_have_fitted_bytes,
        ]
    }

    pub(crate) fn new(source: Source, kind: Kind) -> Explanation {
        Explanation {
            source,
            kind,
            request: Request::default(),
            figures: Figures::default(),
            verdict: Verdict::Unknown,
            because: Vec::new(),
            advice: Vec::new(),
            cannot_tell: Vec::new(),
            pool: None,
        }
    }

    pub(crate) fn advise(&mut self, what: impl Into<String>, saves_bytes: Option<u64>) {
        self.advice.push(Advice { what: what.into(), saves_bytes });
    }

    /// By how much the request was over what would have been served.
    pub(crate) fn shortfall(&self) -> u64 {
        self.request
            .asked_bytes
            .unwrap_or(0)
            .saturating_sub(self.figures.would_have_fitted_bytes.unwrap_or(0))
    }

    /// Puts the most effective advice first: what suffices by itself in the order it was given (cheapest first), then by
    /// bytes, then what cannot be computed. Also names the plain facts that the report does not hold.
    pub(crate) fn finish(self) -> Explanation {
        let figures = [
            (self.request.asked_bytes.is_none(), "how much was asked for"),
            (self.figures.in_use_bytes.is_none(), "how much was in use"),
            (self.figures.free_bytes.is_none(), "how much was free"),
            (self.figures.largest_free_bytes.is_none(), "how large the largest free piece was"),
        ];
        self.finished(figures)
    }

    /// The same for a report of something that held no memory yet.
    pub(crate) fn finish_without_figures(self) -> Explanation {
        self.finished([(false, ""); 4])
    }

    fn finished(mut self, [asked, in_use, free, largest]: [(bool, &str); 4]) -> Explanation {
        let need = self.shortfall().max(1);
        self.advice.sort_by_key(|advice| match advice.saves_bytes {
            Some(bytes) if bytes >= need => (0, 0),
            Some(bytes) => (1, u64::MAX - bytes),
            None => (2, 0),
        });
        let (op, holders) =
            ((self.request.op.is_none(), "which op asked"), (self.pool.is_none(), "who held the memory"));
        let missing = [asked, op, in_use, free, largest, holders];
        let missing =
            missing.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| what.to_string());
        self.cannot_tell.splice(0..0, missing);
        self
    }

    /// One sentence: who asked for how much, where.
    pub fn asked(&self) -> String {
        let who = self
            .request
            .op
            .as_deref()
            .map_or("something that the report does not name".to_string(), |op| format!("`{op}`"));
        let what = match (self.request.asked_bytes, &self.request.tensor) {
            (Some(bytes), Some(tensor)) => format!("{} for {tensor}", Size(bytes)),
            (Some(bytes), None) => Size(bytes).to_string(),
            (None, Some(tensor)) => format!("memory for {tensor}"),
            (None, None) => "memory".to_string(),
        };
        let place = self.request.device.as_deref().map_or(String::new(), |device| format!(" on {device}"));
        format!("{who} asked for {what}{place}")
    }
}
