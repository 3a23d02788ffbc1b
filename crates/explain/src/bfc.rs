//! Turns the lines of a BFC allocator's dump, and of the errors around it, into figures.
//!
//! TensorFlow and JAX on a card share this allocator. The form has changed: chunks in use were `Chunk at 0x…` and are
//! `InUse at …`; statistics were raw bytes and are `4.00MiB`. A line is recognised by its words, wherever they stand in it, since
//! loggers put times, files and pods before them. Figures that can be added up from chunks are preferred to printed ones,
//! which are rounded, and wrong for the largest free block in TensorFlow 2.21.

use crate::bytes::{Figure, after, before, between, parse, rest_after, short, word};
use crate::lines::noted;
use crate::pool::{Chunk, Pool};

/// The most refusals that are remembered one by one.
const EVENTS: usize = 4096;

/// One refusal, with what its dump says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dump {
    pub allocator: Option<String>,
    pub asked: Figure,
    pub op: Option<String>,
    pub limit: Figure,
    pub in_use: Figure,
    /// What the pool has taken from the device.
    pub size: Figure,
    /// What it might still take.
    pub available: Figure,
    pub pool: Pool,
    /// The sum of what clients asked for, by bins.
    pub requested: Figure,
    /// The sum of chunks and of those in use, by bins: for dumps without a list of chunks.
    pub bins: Option<(u64, u64)>,
}

impl Dump {
    fn is_empty(&self) -> bool {
        self.pool.chunks == 0 && self.bins.is_none() && self.limit.is_none()
    }

    /// Bytes in use: added up where chunks are listed.
    pub fn used(&self) -> Option<u64> {
        let added = (self.pool.chunks > 0).then_some(self.pool.used);
        added.or(self.bins.map(|bins| bins.1)).or(self.in_use)
    }

    /// What the pool has taken.
    pub fn taken(&self) -> Option<u64> {
        let added = (self.pool.chunks > 0).then(|| self.pool.bytes());
        added.or(self.bins.map(|bins| bins.0)).or(self.size)
    }
}

/// What was refused, as the error says.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub shape: Vec<u64>,
    pub dtype: String,
    pub device: Option<String>,
}

/// All that a log says in this form.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub dump: Option<Dump>,
    /// The last tensor that was refused.
    pub refused: Option<Refused>,
    /// The op or node that the error names.
    pub op: Option<String>,
    /// Allocator and bytes in use of every dump before the last.
    pub earlier: Vec<(Option<String>, u64)>,
    pub count: u64,
    /// Warnings that the allocator itself calls no failure.
    pub soft: u64,
    /// The device's memory, and what of it was free at the start.
    pub device_total: Figure,
    pub device_free: Figure,
    /// What the driver said was free, and in all, when its own pool refused.
    pub driver: Option<(u64, u64)>,
    /// The driver refused this much to the pool.
    pub driver_refused: Figure,
    /// The number of the line that was last understood.
    pub last_line: u64,
    /// Whether an error of this form was seen.
    pub error: bool,
}

impl Log {
    /// Whether there is something to explain.
    pub fn found(&self) -> bool {
        self.count > 0 || self.refused.is_some() || self.dump.is_some() || self.soft > 0
    }

    /// Takes a line; true where it was understood.
    pub fn line(&mut self, number: u64, line: &str) -> bool {
        let known = self.read(line);
        noted(known, number, &mut self.last_line)
    }

    fn read(&mut self, line: &str) -> Option<()> {
        if line.contains(" of size ") {
            return self.chunk(line);
        }
        if let Some(rest) = rest_after(line, "cuMemAllocAsync failed to allocate ") {
            self.begin();
            self.count += 1;
            let pool = line.split("cuMemAllocAsync").next().and_then(|head| head.split_whitespace().last());
            let dump = self.dump.get_or_insert_default();
            dump.asked = parse(rest);
            dump.allocator = pool.map(short);
            return Some(());
        }
        if let Some(figures) = rest_after(line, "Free memory/Total memory: ") {
            let (free, total) = figures.split_once('/')?;
            self.driver = Some((parse(free)?, parse(total)?));
            return Some(());
        }
        if let Some(rest) = rest_after(line, "an out of memory trying to allocate ") {
            if line.contains("is not a failure") {
                self.soft += 1;
                return Some(());
            }
            self.begin();
            self.count += 1;
            let dump = self.dump.get_or_insert_default();
            dump.allocator = between(line, "Allocator (", ")").map(short);
            dump.asked = after(rest, "(rounded to ").or_else(|| parse(rest));
            dump.op = rest_after(rest, "requested by op ").map(word).filter(|op| !op.is_empty()).map(short);
            return Some(());
        }
        if let Some(rest) = rest_after(line, "OOM when allocating tensor with shape") {
            self.error = true;
            self.refuse(rest);
            let node = between(line, "{{node ", "}}").or_else(|| between(line, "[Op:", "]"));
            if let Some(node) = node {
                self.op = Some(short(node.trim()));
            }
            return Some(());
        }
        if self.error && self.op.is_none() && (line.contains("[[{{node ") || line.contains("[[node ")) {
            let node = between(line, "{{node ", "}}").or_else(|| rest_after(line, "[[node ").map(word));
            self.op = node.map(short);
            return Some(());
        }
        if line.contains("Bin (") && line.contains("Total Chunks:") {
            return self.bin(line);
        }
        if line.contains("BFCAllocator dump for ") {
            if self.dump.as_ref().is_some_and(|dump| !dump.is_empty()) {
                self.begin();
                self.count += 1;
            }
            let dump = self.dump.get_or_insert_default();
            dump.allocator = rest_after(line, "BFCAllocator dump for ").map(word).map(short);
            return Some(());
        }
        if let Some(rest) = rest_after(line, "memory_limit_: ") {
            let dump = self.dump.as_mut()?;
            dump.limit = parse(rest);
            dump.size = after(line, "Total size in pool: ")
                .or_else(|| after(line, "total_region_allocated_bytes_: "));
            dump.available = after(line, "available size: ").or_else(|| after(line, "available bytes: "));
            return Some(());
        }
        if let Some(total) = after(line, "totalMemory: ") {
            self.device_total = Some(total);
            self.device_free = after(line, "freeMemory: ");
            return Some(());
        }
        if line.contains("CUDA_ERROR_OUT_OF_MEMORY") && line.contains("failed to allocate ") {
            let exact = between(line, "(", " bytes)").and_then(parse);
            self.driver_refused = exact.or_else(|| after(line, "failed to allocate "));
            return Some(());
        }
        self.statistic(line)
    }

    /// Ends a dump, keeping what a later look at growth needs.
    fn begin(&mut self) {
        let Some(last) = self.dump.take() else { return };
        if let Some(used) = last.used()
            && self.earlier.len() < EVENTS
        {
            self.earlier.push((last.allocator, used));
        }
    }

    fn chunk(&mut self, line: &str) -> Option<()> {
        if line.contains("Next region of size ") {
            self.dump.get_or_insert_default().pool.region();
            return Some(());
        }
        let (used, rest) = if let Some(rest) = rest_after(line, "InUse at ") {
            (true, rest)
        } else if let Some(rest) = rest_after(line, "Free  at ").or_else(|| rest_after(line, "Free at ")) {
            (false, rest)
        } else {
            (true, rest_after(line, "Chunk at ")?)
        };
        let address = word(rest).trim_start_matches("0x");
        let chunk = Chunk {
            address: u64::from_str_radix(address, 16).ok()?,
            size: word(rest_after(rest, " of size ")?).parse().ok()?,
            used,
            owner: between(rest, " by op ", " action_count").filter(|op| *op != "UNKNOWN"),
            step: rest_after(rest, " step ").and_then(|text| word(text).parse().ok()),
        };
        self.dump.get_or_insert_default().pool.add(&chunk);
        Some(())
    }

    fn bin(&mut self, line: &str) -> Option<()> {
        let dump = self.dump.get_or_insert_default();
        let bins = dump.bins.get_or_insert_default();
        let total = before(line, " allocated for chunks")?;
        let requested = before(line, " client-requested in use in bin");
        // Old dumps do not have the second figure; what clients asked for is the closest they have.
        let used = between(line, "allocated for chunks.", "in use in bin").and_then(parse).or(requested)?;
        bins.0 = bins.0.saturating_add(total);
        bins.1 = bins.1.saturating_add(used);
        dump.requested = Some(dump.requested.unwrap_or(0).saturating_add(requested.unwrap_or(0)));
        Some(())
    }

    fn refuse(&mut self, rest: &str) {
        let dims = between(rest, "[", "]").unwrap_or("");
        let shape = dims.split(',').map_while(|dim| dim.trim().parse().ok()).take(16).collect();
        let dtype = rest_after(rest, "and type ").map(word).unwrap_or("").to_string();
        let device = rest_after(rest, " on ").map(word).map(short);
        self.refused = Some(Refused { shape, dtype: short(&dtype), device });
    }

    fn statistic(&mut self, line: &str) -> Option<()> {
        // The first figure may share its line with the heading.
        let line = rest_after(line, "Stats: ").filter(|rest| !rest.is_empty()).unwrap_or(line);
        let (name, value) = line.split_once(':')?;
        let name = name.trim();
        if !matches!(name, "Limit" | "InUse") {
            return None;
        }
        let dump = self.dump.as_mut()?;
        let value = parse(value)?;
        if name == "Limit" {
            dump.limit = Some(dump.limit.filter(|_| value == 0).unwrap_or(value));
        } else {
            dump.in_use = Some(value);
        }
        Some(())
    }
}

/// Bytes of one element of a TensorFlow or XLA type.
pub(crate) fn element_bytes(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "float" | "float32" | "f32" | "int32" | "uint32" | "s32" | "u32" | "qint32" => 4,
        "double" | "float64" | "f64" | "int64" | "uint64" | "s64" | "u64" | "complex64" | "c64" => 8,
        "half" | "float16" | "f16" | "bfloat16" | "bf16" | "int16" | "uint16" | "s16" | "u16" => 2,
        "bool" | "pred" | "int8" | "uint8" | "s8" | "u8" | "qint8" | "quint8" => 1,
        "complex128" | "c128" => 16,
        _ => return None,
    })
}

/// Bytes of a tensor, where its type is known.
pub(crate) fn tensor_bytes(shape: &[u64], dtype: &str) -> Option<u64> {
    shape.iter().try_fold(element_bytes(dtype)?, |product, dim| product.checked_mul(*dim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Log {
        let mut log = Log::default();
        for (i, line) in lines.iter().enumerate() {
            log.line(i as u64 + 1, line);
        }
        log
    }

    #[test]
    fn both_ages_of_chunk_lines_are_read() {
        let old = "2018-09-27 22:58:41.992044: I tensorflow/core/common_runtime/bfc_allocator.cc:645] ";
        let log = read(&[
            &format!("{old}Chunk at 0x7f94a947ca00 of size 81920"),
            &format!("{old}Free  at 0x7f94a9490a00 of size 139264"),
            "I0000 00:00:1.5 1 bfc_allocator.cc:1105] InUse at 7fa6bc7fd040 of size 4194304 next 10",
            "InUse at 7f0 of size 512 by op while/AddN action_count 7 step 12 next 3",
        ]);
        let pool = &log.dump.as_ref().unwrap().pool;
        assert_eq!((pool.used, pool.free, pool.chunks), (81920 + 4194304 + 512, 139264, 4));
        let holder = &pool.holders[&(512, Some("while/AddN".to_string()))];
        assert_eq!((holder.count, holder.steps.as_slice()), (1, &[12][..]));
    }

    #[test]
    fn statistics_are_read_in_bytes_and_in_words() {
        let log = read(&[
            "BFCAllocator dump for GPU_0_bfc",
            "Stats: ",
            "Limit:                 11332668621",
            "InUse:   2.00GiB",
        ]);
        let dump = log.dump.unwrap();
        assert_eq!((dump.limit, dump.used()), (Some(11332668621), Some(2 << 30)));
    }

    #[test]
    fn bins_stand_in_where_chunks_are_not_listed() {
        let log = read(&[
            "Bin (256): \tTotal Chunks: 51, Chunks in use: 50 12.0KiB allocated for chunks. 8.0KiB client-requested in use in bin.",
            "Bin (512): \tTotal Chunks: 2, Chunks in use: 1. 1.0KiB allocated for chunks. 512B in use in bin. 8B client-requested in use in bin.",
        ]);
        let dump = log.dump.unwrap();
        assert_eq!((dump.taken(), dump.used()), (Some(13 << 10), Some((8 << 10) + 512)));
    }

    #[test]
    fn a_warning_that_is_no_failure_is_not_taken_for_one() {
        let log = read(&[
            "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.59GiB with freed_by_count=0. The caller indicates that this is not a failure, but may mean",
        ]);
        assert_eq!((log.count, log.soft, log.dump.is_none()), (0, 1, true));
    }

    #[test]
    fn a_shape_that_overflows_has_no_size() {
        assert_eq!(tensor_bytes(&[64, 112, 112, 64], "float"), Some(205_520_896));
        assert_eq!(tensor_bytes(&[u64::MAX, 2], "float"), None);
        assert_eq!(tensor_bytes(&[2], "resource"), None);
    }
}
