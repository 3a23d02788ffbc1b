//! Turns what the operating system says of this process into figures: memory, processors, processor time.
//!
//! The contract is kept in the system's own figures, not in ours, so this is where a run is judged. Everything
//! is read from Linux's `/proc` and control groups; elsewhere the answer is 'unknown'.

use std::fs;
use std::io::{Read, Seek};
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Bytes;

/// The most that was ever resident at once (`VmHWM`): the figure that a memory budget is held to.
///
/// ```
/// use plimsoll_device::process;
///
/// if let (Some(peak), Some(now)) = (process::peak_resident(), process::resident()) {
///     println!("{now} resident, {peak} at most");
/// }
/// ```
pub fn peak_resident() -> Option<Bytes> {
    status("VmHWM")
}

/// What is resident now (`VmRSS`).
pub fn resident() -> Option<Bytes> {
    status("VmRSS")
}

/// What the program around the engine held before the engine began, which no memory limit counts.
static HELD_BEFORE: AtomicU64 = AtomicU64::new(0);

/// Says that so much of the process is no part of the engine: an interpreter with its libraries and a user's arrays, say. From here on a
/// memory limit counts what is resident beyond it.
///
/// ```
/// use plimsoll_device::{Bytes, process};
///
/// process::set_held_before(Bytes::kib(4));
/// assert_eq!(process::held_before(), Bytes::kib(4));
/// # process::set_held_before(Bytes::ZERO);
/// ```
pub fn set_held_before(bytes: Bytes) {
    HELD_BEFORE.store(bytes.get(), Ordering::Relaxed);
}

/// What [`set_held_before`] said; nothing without it.
pub fn held_before() -> Bytes {
    Bytes(HELD_BEFORE.load(Ordering::Relaxed))
}

/// What is resident now beyond [`held_before`]: what a memory limit counts.
pub fn own_resident() -> Option<Bytes> {
    resident().map(|all| all.saturating_sub(held_before()))
}

/// How many of these bytes of this process's memory lie in pages that are resident now; `None` where the system does not tell, or
/// the range is not the process's own. A page that is shared with other bytes counts as far as it is in the range.
///
/// ```
/// use plimsoll_device::{Bytes, process};
///
/// let touched = vec![1u8; 100_000];
/// assert!(process::resident_in(touched.as_ptr(), touched.len()).is_none_or(|there| there == Bytes(100_000)));
/// ```
pub fn resident_in(start: *const u8, bytes: usize) -> Option<Bytes> {
    pages::resident_in(start.addr(), bytes)
}

/// The address space in use (`VmSize`), resident or not.
pub fn virtual_size() -> Option<Bytes> {
    status("VmSize")
}

/// The number of processors that this process may use: affinity and control-group quota respected; at least 1.
pub fn allowed_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// The memory that the machine has.
pub fn physical_memory() -> Option<Bytes> {
    field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")
}

/// The least memory limit of the control groups that this process is in, if any has one.
pub fn cgroup_memory_limit() -> Option<Bytes> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroup_limit_under(Path::new("/sys/fs/cgroup"), &groups)
}

/// What this process can have at most: the machine's memory or the control group's limit, whichever is less.
pub fn memory_limit() -> Option<Bytes> {
    [physical_memory(), cgroup_memory_limit()].into_iter().flatten().min()
}

/// What this process could still take beside what it has: what the machine has available, or what its control group leaves,
/// whichever is less.
pub fn available_memory() -> Option<Bytes> {
    let machine = field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable");
    let group = cgroup_memory_limit().map(|limit| limit.saturating_sub(resident().unwrap_or(Bytes::ZERO)));
    [machine, group].into_iter().flatten().min()
}

/// The processor's name, as it calls itself.
pub fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?;
    Some(line.1.trim().to_string())
}

/// The processors that the machine has, whether this process may use them or not; at least 1.
pub fn machine_cpus() -> usize {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().filter(|line| line.starts_with("processor")).count().max(allowed_cpus())
}

/// Gives heap pages that nobody uses any more back to the system. The C library keeps them otherwise, and they would
/// count against a memory budget until the process ends.
pub fn release_unused_heap() {
    heap::trim();
}

/// From here on the C library takes every large block (a MiB and more) from the system and gives it back when it is freed. By itself it
/// keeps what was freed, up to tens of megabytes once there was a block as large, and that counts against a memory budget. For programs that
/// are the engine's own: it is a setting of the whole process.
pub fn return_large_blocks() {
    heap::return_large();
}

/// Lets the system forget which pages of this program's code are mapped. Those that still run are mapped again when they do; those that ran
/// once, such as a planner's, no longer count against a memory budget.
pub fn release_unused_code() {
    code::forget();
}

/// The processor time that all threads of this process, ended ones included, have taken so far.
pub fn cpu_time() -> Option<Duration> {
    clock::process_cpu_time()
}

/// The processor time that the calling thread has taken so far.
pub fn thread_cpu_time() -> Option<Duration> {
    clock::thread_cpu_time()
}

/// Reads what the process takes again and again without allocating anything, for logs of every step.
///
/// ```
/// use plimsoll_device::process::Meter;
///
/// if let Some(mut meter) = Meter::open() {
///     let (now, most) = meter.read().unwrap();
///     assert!(now <= most);
/// }
/// ```
#[derive(Debug)]
pub struct Meter {
    file: fs::File,
    buffer: Box<[u8; 4096]>,
}

impl Meter {
    /// A meter of this process; none where the system does not say.
    pub fn open() -> Option<Meter> {
        Some(Meter { file: fs::File::open("/proc/self/status").ok()?, buffer: Box::new([0; 4096]) })
    }

    /// What is resident now, and the most that ever was.
    pub fn read(&mut self) -> Option<(Bytes, Bytes)> {
        self.file.rewind().ok()?;
        let n = self.file.read(&mut self.buffer[..]).ok()?;
        let text = std::str::from_utf8(&self.buffer[..n]).ok()?;
        Some((field(text, "VmRSS")?, field(text, "VmHWM")?))
    }
}

fn status(name: &str) -> Option<Bytes> {
    field(&fs::read_to_string("/proc/self/status").ok()?, name)
}

/// A field like `VmRSS:     1234 kB`, in which the kernel's kB are 1024 bytes.
fn field(text: &str, name: &str) -> Option<Bytes> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let (number, unit) = value.trim().split_once(' ')?;
    (unit == "kB").then_some(Bytes::kib(number.parse().ok()?))
}

/// The least limit of the groups and all groups above them.
///
/// `groups` is the text of `/proc/self/cgroup`: `0::/path` for version 2, `4:memory:/path` for version 1. In a
/// container the path may be that of the host and not exist here; then the container's own root is what counts.
fn cgroup_limit_under(root: &Path, groups: &str) -> Option<Bytes> {
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or("/"));
        let (mounts, file): (&[&str], _) = if controllers.is_empty() {
            (&["", "unified"], "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (&["memory"], "memory.limit_in_bytes")
        } else {
            (&[], "")
        };
        let path = Path::new(path.trim_start_matches('/'));
        mounts.iter().flat_map(move |mount| {
            path.ancestors().filter_map(move |group| read_limit(&root.join(mount).join(group).join(file)))
        })
    });
    limits.min()
}

fn read_limit(file: &Path) -> Option<Bytes> {
    // Version 2 writes `max` where there is no limit, version 1 the largest multiple of a page.
    const NO_LIMIT: u64 = 1 << 62;
    let limit: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (limit < NO_LIMIT).then_some(Bytes(limit))
}

/// The C library's clock, which counts nanoseconds where `/proc/self/stat` counts hundredths of a second. The
/// standard library links it in any case.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod clock {
    use std::ffi::{c_int, c_long};
    use std::time::Duration;

    #[repr(C)]
    struct Timespec {
        seconds: i64,
        nanoseconds: c_long,
    }

    unsafe extern "C" {
        fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    }

    const CLOCK_PROCESS_CPUTIME_ID: c_int = 2;
    const CLOCK_THREAD_CPUTIME_ID: c_int = 3;

    pub fn process_cpu_time() -> Option<Duration> {
        read(CLOCK_PROCESS_CPUTIME_ID)
    }

    pub fn thread_cpu_time() -> Option<Duration> {
        read(CLOCK_THREAD_CPUTIME_ID)
    }

    fn read(clock: c_int) -> Option<Duration> {
        let mut time = Timespec { seconds: 0, nanoseconds: 0 };
        // SAFETY: The pointer is to a value laid out as `struct timespec` of 64-bit Linux, alive for the call.
        let rc = unsafe { clock_gettime(clock, &raw mut time) };
        let (seconds, nanoseconds) = (time.seconds.try_into().ok()?, time.nanoseconds.try_into().ok()?);
        (rc == 0).then_some(Duration::new(seconds, nanoseconds))
    }
}

#[cfg(target_os = "linux")]
mod pages {
    use std::ffi::{c_int, c_long, c_uchar, c_void};

    use crate::Bytes;

    unsafe extern "C" {
        fn mincore(start: *mut c_void, length: usize, resident: *mut c_uchar) -> c_int;
        fn sysconf(name: c_int) -> c_long;
    }

    const SC_PAGESIZE: c_int = 30;
    /// Pages that are asked for at once.
    const AT_ONCE: usize = 4096;

    pub fn resident_in(start: usize, bytes: usize) -> Option<Bytes> {
        // SAFETY: the function takes no pointers.
        let page =
            usize::try_from(unsafe { sysconf(SC_PAGESIZE) }).ok().filter(|page| page.is_power_of_two())?;
        let end = start.checked_add(bytes)?;
        let (mut at, mut found) = (start / page * page, 0);
        let mut resident = [0; AT_ONCE];
        while at < end {
            let pages = (end - at).div_ceil(page).min(AT_ONCE);
            let address = std::ptr::without_provenance_mut(at);
            // SAFETY: the system looks the addresses up and refuses those that are not mapped; it writes a byte for each of at
            // most as many pages as the array is long. No memory behind the address is read or written.
            if unsafe { mincore(address, pages * page, resident.as_mut_ptr()) } != 0 {
                return None;
            }
            for (i, _) in resident[..pages].iter().enumerate().filter(|(_, byte)| **byte & 1 == 1) {
                let from = at + i * page;
                found += (from + page).min(end) - from.max(start);
            }
            at += pages * page;
        }
        Some(Bytes::from(found))
    }
}

#[cfg(not(target_os = "linux"))]
mod pages {
    pub fn resident_in(_: usize, _: usize) -> Option<crate::Bytes> {
        None
    }
}

#[cfg(target_os = "linux")]
mod code {
    use std::ffi::{c_int, c_void};
    use std::fs;
    use std::ops::Range;

    unsafe extern "C" {
        fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    const MADV_DONTNEED: c_int = 4;

    pub fn forget() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let here = (forget as fn()) as usize;
        let Some(code) = maps.lines().filter_map(executable).find(|code| code.contains(&here)) else {
            return;
        };
        let start = std::ptr::without_provenance_mut(code.start);
        // SAFETY: the range is one mapping that can be run and read and not be written, of a file: what is in memory of it is in the file too, and is
        // read from there when it is next run.
        unsafe { madvise(start, code.len(), MADV_DONTNEED) };
    }

    /// The addresses of a mapping of a file that can be run and has never been writable, of a line of `/proc/self/maps`.
    pub(super) fn executable(line: &str) -> Option<Range<usize>> {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next()?, words.next()?);
        let file = words.nth(3)?;
        let (start, end) = range.split_once('-')?;
        let at = |text| usize::from_str_radix(text, 16).ok();
        (rights == "r-xp" && file.starts_with('/')).then_some(at(start)?..at(end)?)
    }
}

#[cfg(not(target_os = "linux"))]
mod code {
    pub fn forget() {}
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod heap {
    use std::ffi::c_int;

    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> c_int;
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }

    const M_MMAP_THRESHOLD: c_int = -3;

    pub fn return_large() {
        // SAFETY: the function takes no pointers; a bound that is set holds for blocks that are allocated later.
        unsafe { mallopt(M_MMAP_THRESHOLD, 1 << 20) };
    }

    pub fn trim() {
        // SAFETY: the function takes no pointers and may be called at any time from any thread.
        unsafe { malloc_trim(0) };
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod heap {
    pub fn trim() {}
    pub fn return_large() {}
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
mod clock {
    pub fn process_cpu_time() -> Option<std::time::Duration> {
        None
    }

    pub fn thread_cpu_time() -> Option<std::time::Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    #[cfg(target_os = "linux")]
    fn code_that_is_given_back_no_longer_counts_and_runs_all_the_same() {
        let mapped = || field(&fs::read_to_string("/proc/self/status").unwrap(), "RssFile").unwrap();
        let before = mapped();
        release_unused_code();
        let after = mapped();
        assert!(after < before, "{after} of {before}");
        assert_eq!(code::executable("5500-5a00 r-xp 00001000 08:01 77 /bin/x y"), Some(0x5500..0x5a00));
        for other in [
            "5500-5a00 r--p 0 08:01 77 /bin/x",
            "5500-5a00 rwxp 0 00:00 0 /bin/x",
            "5500-5a00 r-xp 0 00:00 0 [vdso]",
            "5500-5a00 r-xp 0 00:00 0",
        ] {
            assert_eq!(code::executable(other), None, "{other}");
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn large_blocks_that_were_freed_do_not_count() {
        return_large_blocks();
        // By itself the C library takes the second from its heap, since it has freed a larger one, and keeps it, since the third lies behind it.
        drop(vec![1u8; 20 << 20]);
        let (second, third) = (vec![1u8; 10 << 20], vec![1u8; 10 << 20]);
        let (start, bytes) = (second.as_ptr(), second.len());
        assert_eq!(resident_in(start, bytes), Some(Bytes::mib(10)));
        drop(second);
        assert!(resident_in(start, bytes).is_none_or(|left| left < Bytes::mib(1)));
        drop(third);
    }

    #[test]
    fn a_field_is_read_in_the_kernels_kilobytes() {
        let text = "Name:\tx\nVmHWMX:\t1 kB\nVmHWM:\t    1234 kB\nThreads:\t3\n";
        assert_eq!(field(text, "VmHWM"), Some(Bytes(1234 * 1024)));
        assert_eq!(field(text, "VmRSS"), None);
        assert_eq!(field(text, "Threads"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn touched_pages_become_resident_and_raise_the_peak() {
        let size = 64 << 20;
        let pages = vec![1u8; size];
        assert!(pages.iter().step_by(4096).all(|&byte| byte == 1));
        let (now, peak, all) = (resident().unwrap(), peak_resident().unwrap(), virtual_size().unwrap());
        // What other tests of this process hold comes and goes; these pages are there.
        assert!(now >= Bytes(size as u64), "{now}");
        assert!(peak >= Bytes(size as u64) && all >= Bytes(size as u64));
        assert!(physical_memory().unwrap() > Bytes(size as u64));
        assert!(memory_limit().unwrap() <= physical_memory().unwrap());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_pages_that_were_touched_are_resident_and_a_part_of_one_counts_as_a_part() {
        let layout = std::alloc::Layout::from_size_align(64 << 20, 4096).unwrap();
        // SAFETY: the layout has a size; the first MiB is written before anything is read.
        let start = unsafe { std::alloc::alloc(layout) };
        assert!(!start.is_null());
        // SAFETY: so many bytes were given.
        unsafe { start.write_bytes(1, 1 << 20) };
        assert_eq!(resident_in(start, 1 << 20), Some(Bytes::mib(1)));
        assert_eq!(resident_in(start.wrapping_add(100), 5000), Some(Bytes(5000)));
        // Large pages may have come along with the small ones, but not all of it.
        let all = resident_in(start, 64 << 20).unwrap();
        assert!(all >= Bytes::mib(1) && all < Bytes::mib(16), "{all}");
        assert_eq!(resident_in(start, 0), Some(Bytes::ZERO));
        assert_eq!(resident_in(std::ptr::without_provenance(4096), 4096), None);
        // SAFETY: given by the same layout, once.
        unsafe { std::alloc::dealloc(start, layout) };
    }

    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[test]
    fn processor_time_passes_while_there_is_work() {
        let (before, start) = (cpu_time().unwrap(), Instant::now());
        let mut sum = 0u64;
        while cpu_time().unwrap() < before + Duration::from_millis(5) {
            sum = std::hint::black_box(sum.wrapping_mul(31) + 7);
            assert!(start.elapsed() < Duration::from_secs(30), "no processor time passes");
        }
        assert!(allowed_cpus() >= 1);
        let (mine, all) = (thread_cpu_time().unwrap(), cpu_time().unwrap());
        assert!(Duration::ZERO < mine && mine <= all, "{mine:?} of {all:?}");
    }

    #[test]
    fn the_least_limit_up_the_tree_of_groups_counts() {
        let root = std::env::temp_dir().join(format!("plimsoll-cgroup-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/memory.max", "5000\n");
        write("a/b/memory.max", "max\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/x/memory.limit_in_bytes", "7000\n");
        let limit = |groups: &str| cgroup_limit_under(&root, groups);
        assert_eq!(limit("0::/a/b\n"), Some(Bytes(5000)));
        assert_eq!(limit("0::/elsewhere\n"), None);
        assert_eq!(limit("3:cpu,memory:/x/of/the/host\n2:pids:/\n0::/\n"), Some(Bytes(7000)));
        assert_eq!(limit("4:memory:/\n"), None);
        assert_eq!(limit("4:memory:/x\n0::/a\n"), Some(Bytes(5000)));
        assert_eq!(limit("nonsense"), None);
        fs::remove_dir_all(root).unwrap();
    }
}
