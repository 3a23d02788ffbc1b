//! What the system is asked of files: without names, with all their bytes, at addresses.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::Bytes;

#[cfg(target_os = "linux")]
pub(super) use linux::{IS_HERE, forget, is_in_memory, map, read, take, unmap, write};
#[cfg(not(target_os = "linux"))]
pub(super) use nowhere::{IS_HERE, forget, is_in_memory, map, read, take, unmap, write};

/// A new file of a folder that nobody else can open.
pub(super) fn unnamed(folder: &Path) -> io::Result<File> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".plimsoll-{}-{n}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// What the disk of a folder has left for this user; none where the system does not say.
pub(super) fn free(folder: &Path) -> Option<Bytes> {
    let about = rustix::fs::statvfs(folder).ok()?;
    Some(Bytes(about.f_bavail.saturating_mul(about.f_frsize)))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::{c_int, c_void};
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, statfs};
    use rustix::io::Errno;

    pub(in super::super) const IS_HERE: bool = true;

    unsafe extern "C" {
        fn mmap(
            at: *mut c_void,
            length: usize,
            prot: c_int,
            flags: c_int,
            file: c_int,
            offset: i64,
        ) -> *mut c_void;
        fn munmap(at: *mut c_void, length: usize) -> c_int;
    }

    const PROT_READ_WRITE: c_int = 3;
    const MAP_SHARED: c_int = 1;
    /// What a folder in memory says that it is.
    const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];

    /// Takes all bytes of a file from its disk, which a file with holes would only take as they are written.
    pub(in super::super) fn take(file: &File, bytes: u64) -> io::Result<()> {
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(()),
            // Where the folder's system cannot, zeros do it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeros = vec![0; 1 << 16];
                let mut at = 0;
                while at < bytes {
                    let n = (bytes - at).min(zeros.len() as u64);
                    file.write_all_at(&zeros[..n as usize], at)?;
                    at += n;
                }
                Ok(())
            }
            Err(why) => Err(why.into()),
        }
    }

    /// The bytes of a file at an address. Pages come when they are touched.
    pub(in super::super) fn map(file: &File, bytes: usize) -> io::Result<*mut u8> {
        // SAFETY: no place is asked for, so nothing that is mapped is replaced; the file has as many bytes and keeps them.
        let at =
            unsafe { mmap(std::ptr::null_mut(), bytes, PROT_READ_WRITE, MAP_SHARED, file.as_raw_fd(), 0) };
        if at.addr() == usize::MAX { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
    }

    pub(in super::super) fn unmap(at: *mut u8, bytes: usize) {
        // SAFETY: the range was mapped by `map`, and nobody uses it any more. Where the system refuses, it stays mapped.
        unsafe { munmap(at.cast(), bytes) };
    }

    pub(in super::super) fn read(file: &File, at: u64, into: &mut [u8]) -> io::Result<()> {
        file.read_exact_at(into, at)
    }

    pub(in super::super) fn write(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    /// Writes all of a file to the disk and lets go of what the system keeps of it in memory.
    pub(in super::super) fn forget(file: &File) -> io::Result<()> {
        file.sync_data()?;
        fadvise(file, 0, None, Advice::DontNeed).map_err(io::Error::from)
    }

    pub(in super::super) fn is_in_memory(folder: &Path) -> bool {
        statfs(folder).is_ok_and(|about| IN_MEMORY.contains(&about.f_type))
    }
}

#[cfg(not(target_os = "linux"))]
mod nowhere {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    pub(in super::super) const IS_HERE: bool = false;

    pub(in super::super) fn take(_: &File, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in super::super) fn map(_: &File, _: usize) -> io::Result<*mut u8> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in super::super) fn unmap(_: *mut u8, _: usize) {}

    pub(in super::super) fn read(_: &File, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in super::super) fn write(_: &File, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in super::super) fn forget(_: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in super::super) fn is_in_memory(_: &Path) -> bool {
        false
    }
}
