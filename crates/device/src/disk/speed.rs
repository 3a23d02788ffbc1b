//! Measures how fast a disk is: read and written at once, as a step does both.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::file::DiskFile;
use super::{Disk, system};
use crate::backend::{Fault, Link};

/// Bytes of a file that is timed, and of memory from which it is written: little, since it is a process's own.
const TIMED: u64 = 32 << 20;
const AT_ONCE: usize = 1 << 19;

impl Disk {
    /// Times copies each way, past what the system keeps of files in memory: what is kept there makes steps faster than this says. Takes
    /// 64 MiB of the disk for as long, or what of it may be taken, and a MiB of memory.
    ///
    /// # Errors
    /// What the disk says; or nothing more of it may be taken.
    pub fn time(self: &Arc<Disk>) -> Result<Link, Fault> {
        let left = self.limit().saturating_sub(self.taken()).get() / 2;
        let bytes = TIMED.min(left).max(1);
        let (read, written) = (DiskFile::new(self, bytes as usize)?, DiskFile::new(self, bytes as usize)?);
        let fault = |why| self.fault("timed", &why);
        write(&read, bytes).map_err(fault)?;
        let speed = |of: &dyn Fn() -> io::Result<()>| {
            let start = Instant::now();
            of().map(|()| bytes as f64 / start.elapsed().as_secs_f64().max(1e-9))
        };
        let (up, down) = std::thread::scope(|threads| {
            let up =
                threads.spawn(|| speed(&|| pieces(bytes, |at, piece| system::read(read.file(), at, piece))));
            let down = speed(&|| write(&written, bytes));
            (up.join(), down)
        });
        let up = up.map_err(|_| Fault::new("disk", "the thread that times reading has ended"))?;
        Ok(Link { up: up.map_err(fault)?, down: down.map_err(fault)? })
    }
}

/// Writes all of a file, to the disk itself.
fn write(file: &DiskFile, bytes: u64) -> io::Result<()> {
    pieces(bytes, |at, piece| system::write(file.file(), at, piece))?;
    system::forget(file.file())
}

fn pieces(bytes: u64, mut each: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<()> {
    // No zeros, which some disks keep as nothing.
    let mut memory: Vec<u8> = (0..AT_ONCE.min(bytes as usize)).map(|i| (i * 31 + i / 7) as u8).collect();
    let mut at = 0;
    while at < bytes {
        let n = (bytes - at).min(memory.len() as u64);
        each(at, &mut memory[..n as usize])?;
        at += n;
    }
    Ok(())
}
