//! A log of any length is read in a few megabytes, as the system counts them.

use std::io::Read;

use plimsoll_explain::{Verdict, explain};

/// An endless dump: a refusal, then chunks and regions without end, now and then a line of a megabyte.
struct Endless {
    left: u64,
    line: Vec<u8>,
    at: usize,
    count: u64,
}

impl Endless {
    fn new(bytes: u64) -> Endless {
        let first = "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00TiB (rounded to 1099511627776)requested by op MatMul\n";
        Endless { left: bytes, line: first.into(), at: 0, count: 0 }
    }
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.line.len() {
            self.count += 1;
            let i = self.count;
            self.line = match i {
                _ if i.is_multiple_of(20_000) => vec![b'x'; 1 << 20],
                _ if i.is_multiple_of(1000) => format!("Next region of size {i}\n").into(),
                _ if i.is_multiple_of(3) => {
                    format!("Free  at {:x} of size {} next 1\n", i << 12, 256 * (i % 7919)).into()
                }
                _ => format!(
                    "InUse at {:x} of size {} by op layer{i}/Conv action_count 1 step {i} next 1\n",
                    i << 12,
                    256 * i
                )
                .into(),
            };
            self.at = 0;
        }
        let count = (self.line.len() - self.at)
            .min(buffer.len())
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        buffer[..count].copy_from_slice(&self.line[self.at..self.at + count]);
        self.at += count;
        self.left -= count as u64;
        Ok(count)
    }
}

/// The most memory the process ever had, where the system tells.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[test]
fn two_hundred_mebibytes_of_log_take_a_few_of_memory() {
    let before = peak();
    let told = explain(Endless::new(200 << 20), "endless").unwrap();
    assert_eq!(told.verdict, Verdict::Growth, "{told}");
    assert!(told.pool.as_ref().unwrap().counts.chunks > 1_000_000);
    if let (Some(before), Some(after)) = (before, peak()) {
        let grown = after - before;
        assert!(grown < 24 << 20, "{grown} bytes");
    }
}
