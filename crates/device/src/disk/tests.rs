use std::path::PathBuf;

use super::*;
use crate::backend::{HostArena, HostBlock};

/// A folder of a test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("plimsoll-disk-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn files(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn a_block_is_zeros_and_what_is_written_is_read_at_its_address_and_through_the_disk() {
    let folder = Folder::new("block");
    let disk = Disk::new(&folder.0, Bytes::mib(1)).unwrap();
    let block = disk.block(10_000).unwrap();
    assert_eq!((disk.taken(), folder.files()), (Bytes(10_000), 0));
    let mut back = vec![9u8; 10_000];
    assert!(disk.read(block.ptr(), &mut back).unwrap());
    assert!(back.iter().all(|&byte| byte == 0));
    assert!(disk.write(block.ptr().wrapping_add(5_000), &[7; 100]).unwrap());
    // SAFETY: the block has as many bytes, and nobody writes them now.
    let seen = unsafe { std::slice::from_raw_parts(block.ptr(), 10_000) };
    assert!(
        seen.iter().enumerate().all(|(i, &byte)| byte == if (5_000..5_100).contains(&i) { 7 } else { 0 })
    );
    // Past its end, and memory that is none of it.
    assert!(!disk.read(block.ptr().wrapping_add(9_999), &mut back[..2]).unwrap());
    let own = [0u8; 4];
    assert!(!disk.read(own.as_ptr(), &mut back[..4]).unwrap());
    drop(block);
    assert_eq!(disk.taken(), Bytes::ZERO);
}

#[test]
fn copies_go_both_ways_beside_each_other_and_are_waited_for_once() {
    let folder = Folder::new("copies");
    let disk = Disk::new(&folder.0, Bytes::mib(8)).unwrap();
    let mut arena = DiskArena::new(&disk).unwrap();
    arena.fit(1 << 16, 4).unwrap();
    let block = disk.block(1 << 20).unwrap();
    let (ones, twos) = (vec![1u8; 1 << 20], vec![2u8; 1 << 16]);
    let (mut first, mut second) = (vec![0u8; 1 << 20], vec![0u8; 1 << 16]);
    // SAFETY: all memory lives until the copies were waited for, and nobody touches it before.
    unsafe {
        arena.store(ones.as_ptr(), block.ptr(), 1 << 20, 0).unwrap();
        arena.offload(twos.as_ptr(), 0, 1 << 16, 1).unwrap();
        arena.wait(1).unwrap();
        arena.wait(0).unwrap();
        arena.fetch(block.ptr(), first.as_mut_ptr(), 1 << 20, 2).unwrap();
        arena.prefetch(0, second.as_mut_ptr(), 1 << 16, 3).unwrap();
    }
    arena.wait(3).unwrap();
    arena.wait(2).unwrap();
    assert!(first == ones && second == twos);
    assert!(arena.wait(2).unwrap_err().why.contains("not started"));
    // SAFETY: refused before anything is touched.
    let refused = |at: usize, slot: usize| unsafe { arena.offload(twos.as_ptr(), at, 1 << 16, slot) };
    assert!(refused(1, 0).unwrap_err().why.contains("not within the 65536"));
    assert!(refused(0, 4).unwrap_err().why.contains("not free"));
    arena.settle().unwrap();
}

#[test]
fn more_than_may_be_taken_is_refused_and_what_is_given_back_can_be_taken_again() {
    let folder = Folder::new("limit");
    let disk = Disk::new(&folder.0, Bytes::kib(64)).unwrap();
    let first = disk.block(48 << 10).unwrap();
    let why = disk.block(17 << 10).unwrap_err().why;
    assert!(why.contains("48 KiB of 64 KiB are taken") && why.contains("--disk"), "{why}");
    drop(first);
    disk.block(64 << 10).unwrap();
}

#[test]
fn folders_that_are_none_too_full_or_not_to_be_written_to_are_refused_by_name() {
    let folder = Folder::new("refused");
    let why = |folder: &Path, bytes| Disk::new(folder, bytes).unwrap_err().to_string();
    assert!(why(&folder.0.join("none"), Bytes(1)).contains("there is no such folder"));
    assert!(why(&folder.0, Bytes::ZERO).contains("nothing is asked"));
    assert!(why(&folder.0, Bytes(1 << 60)).contains("its disk has"));
    let refused = why(Path::new("/proc/self"), Bytes(1));
    assert!(refused.contains("no file can be made there"), "{refused}");
}

#[test]
fn a_disk_that_is_imagined_keeps_nothing() {
    let disk = Disk::imagined(Bytes::mib(4)).unwrap();
    assert_eq!(disk.limit(), Bytes::mib(4));
    let why = disk.block(512).unwrap_err().why;
    assert!(why.contains("could not be given") && why.contains("only planned for"), "{why}");
    assert_eq!(disk.taken(), Bytes::ZERO);
}

#[test]
fn a_disk_is_timed_both_ways_and_nothing_of_it_stays() {
    let folder = Folder::new("timed");
    let disk = Disk::new(&folder.0, Bytes::mib(4)).unwrap();
    let link = disk.time().unwrap();
    assert!(link.up > 0.0 && link.down > 0.0);
    assert_eq!((disk.taken(), folder.files()), (Bytes::ZERO, 0));
}
