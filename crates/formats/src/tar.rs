//! Turns a tar archive into the names and places of its files, so that each can be read where it lies.
//!
//! Headers are followed once, from block to block; ustar, GNU (long names) and pax (long names, sizes) are read. Nothing is
//! unpacked: names are names, never paths that are written to.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::{FileError, Result};

/// Everything in an archive begins at a multiple of this.
const BLOCK: u64 = 512;
/// A name or a list of attributes that is longer is no such thing.
const EXTRA_MOST: u64 = 64 << 10;

/// A file inside an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name, with the folders it is in.
    pub name: String,
    /// Where its bytes begin in the archive.
    pub start: u64,
    /// How many bytes it has.
    pub len: u64,
}

/// What a header says.
struct Header {
    name: String,
    len: u64,
    kind: u8,
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A number in octal digits, or in binary where the first bit is set.
fn number(field: &[u8]) -> Option<u64> {
    if let Some((&first, rest)) = field.split_first()
        && first & 0x80 != 0
    {
        let start = u64::from(first & 0x7f);
        return rest.iter().try_fold(start, |sum, &byte| sum.checked_mul(256)?.checked_add(u64::from(byte)));
    }
    let text = text(field);
    match text.trim() {
        "" => Some(0),
        digits => u64::from_str_radix(digits, 8).ok(),
    }
}

impl Header {
    /// Reads a block; nothing where it is no header.
    fn read(block: &[u8; BLOCK as usize]) -> Option<Header> {
        let said = number(&block[148..156])?;
        let spaces = 8 * u64::from(b' ');
        let others = block[..148].iter().chain(&block[156..]);
        if said != spaces + others.map(|&byte| u64::from(byte)).sum::<u64>() {
            return None;
        }
        let (name, before) = (text(&block[..100]), text(&block[345..500]));
        let is_ustar = block[257..263] == *b"ustar\0";
        let name = if is_ustar && !before.is_empty() { format!("{before}/{name}") } else { name };
        Some(Header { name, len: number(&block[124..136])?, kind: block[156] })
    }
}

/// The attribute `key` of a pax header, whose lines are `length key=value`.
fn attribute(list: &[u8], key: &str) -> Option<String> {
    let mut rest = list;
    let mut found = None;
    while let Some(space) = rest.iter().position(|&byte| byte == b' ') {
        let length: usize = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
        let line = rest.get(space + 1..length.checked_sub(1)?)?;
        if let Some(value) = line.strip_prefix(key.as_bytes()).and_then(|line| line.strip_prefix(b"=")) {
            found = Some(String::from_utf8_lossy(value).into_owned());
        }
        rest = rest.get(length..)?;
    }
    found
}

/// Calls `see` with every plain file of an archive, in order. Folders and links are passed over.
///
/// # Errors
/// The archive is damaged or ends too early, or `see` says so.
pub fn scan(path: &Path, mut see: impl FnMut(Member) -> Result<()>) -> Result<()> {
    let io = |error| FileError::io(path, error);
    let file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut reader = BufReader::with_capacity(64 << 10, file);
    let damaged =
        |at: u64, what: &str| FileError::damaged(path, format!("{what} at byte {at} of the archive"));
    let (mut at, mut long_name, mut long_len) = (0u64, None, None);
    let mut is_first = true;
    loop {
        let mut block = [0; BLOCK as usize];
        if size - at < BLOCK {
            // An archive ends with empty blocks; one without any was cut off, or is none at all.
            return Err(damaged(at, "it is no tar archive, or ends too early"));
        }
        reader.read_exact(&mut block).map_err(io)?;
        if block == [0; BLOCK as usize] {
            // Empty blocks alone are an archive of nothing, or a file that something went wrong with: of no use either way.
            return match is_first {
                true => {
                    Err(damaged(at, "it is an archive without files, or no tar archive: there is no header"))
                }
                false => Ok(()),
            };
        }
        is_first = false;
        let header = Header::read(&block).ok_or_else(|| damaged(at, "there is no sound tar header"))?;
        at += BLOCK;
        let len = match header.kind {
            b'x' | b'g' | b'L' | b'K' => header.len,
            _ => long_len.take().unwrap_or(header.len),
        };
        if len > size - at {
            return Err(damaged(at, "the archive ends too early: a file of it reaches beyond its end"));
        }
        let padded = len.next_multiple_of(BLOCK).min(size - at);
        match header.kind {
            b'x' | b'L' => {
                if len > EXTRA_MOST {
                    return Err(damaged(at, "a name is longer than any can be"));
                }
                let mut extra = vec![0; len as usize];
                reader.read_exact(&mut extra).map_err(io)?;
                reader.seek_relative((padded - len) as i64).map_err(io)?;
                if header.kind == b'L' {
                    long_name = Some(text(&extra));
                } else {
                    long_name = attribute(&extra, "path").or(long_name);
                    long_len = match attribute(&extra, "size") {
                        Some(size) => Some(size.parse().map_err(|_| damaged(at, "a size is no number"))?),
                        None => long_len,
                    };
                }
                at += padded;
                continue;
            }
            b'0' | 0 | b'7' => {
                let name = long_name.take().unwrap_or(header.name);
                see(Member { name, start: at, len })?;
            }
            // What is said of all files, names of links, folders, links and devices.
            b'g' | b'K' => {}
            _ => long_name = None,
        }
        reader.seek_relative(padded as i64).map_err(io)?;
        at += padded;
    }
}

/// Writes a file of an archive: for tests and examples. [`finish`] ends the archive.
pub fn append(archive: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    let mut block = [0; BLOCK as usize];
    let name = &name.as_bytes()[..name.len().min(100)];
    block[..name.len()].copy_from_slice(name);
    block[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
    block[148..156].fill(b' ');
    block[156] = b'0';
    block[257..263].copy_from_slice(b"ustar\0");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
    archive.extend(block);
    archive.extend(bytes);
    archive.resize(archive.len().next_multiple_of(BLOCK as usize), 0);
}

/// Ends an archive that [`append`] began.
pub fn finish(archive: &mut Vec<u8>) {
    archive.resize(archive.len() + 2 * BLOCK as usize, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(bytes: &[u8], name: &str) -> Result<Vec<Member>> {
        let path = std::env::temp_dir().join(format!("plimsoll-tar-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let mut all = Vec::new();
        let result = scan(&path, |member| {
            all.push(member);
            Ok(())
        });
        std::fs::remove_file(path).unwrap();
        result.map(|()| all)
    }

    #[test]
    fn files_are_found_where_they_lie() {
        let mut archive = Vec::new();
        append(&mut archive, "a/0.jpg", b"picture");
        append(&mut archive, "a/0.cls", b"3");
        append(&mut archive, "empty", b"");
        finish(&mut archive);
        let all = members(&archive, "plain").unwrap();
        assert_eq!(all.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["a/0.jpg", "a/0.cls", "empty"]);
        let Member { start, len, .. } = all[0];
        assert_eq!(&archive[start as usize..][..len as usize], b"picture");
        assert_eq!(all[2].len, 0);
    }

    #[test]
    fn long_names_of_both_kinds_are_read() {
        let long = "folder/".repeat(30) + "0.jpg";
        let mut gnu = Vec::new();
        append(&mut gnu, "././@LongLink", long.as_bytes());
        gnu[156] = b'L';
        let fix = |archive: &mut Vec<u8>| {
            archive[148..156].fill(b' ');
            let sum: u32 = archive[..512].iter().map(|&byte| u32::from(byte)).sum();
            archive[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
        };
        fix(&mut gnu);
        append(&mut gnu, "short", b"1");
        finish(&mut gnu);
        assert_eq!(members(&gnu, "gnu").unwrap()[0].name, long);
        let line = format!("path={long}\n");
        let length = line.len() + 4;
        let mut pax = Vec::new();
        append(&mut pax, "PaxHeaders/0", format!("{length} {line}").as_bytes());
        pax[156] = b'x';
        fix(&mut pax);
        append(&mut pax, "short", b"1");
        append(&mut pax, "next", b"1");
        finish(&mut pax);
        let names: Vec<_> = members(&pax, "pax").unwrap().into_iter().map(|member| member.name).collect();
        assert_eq!(names, [long, "next".into()]);
    }

    #[test]
    fn no_truncation_and_no_mutation_panics_or_goes_unseen() {
        let mut archive = Vec::new();
        append(&mut archive, "0.jpg", &[7; 700]);
        append(&mut archive, "0.cls", b"3");
        finish(&mut archive);
        for cut in (0..archive.len() - 1024).step_by(37) {
            assert!(members(&archive[..cut], "cut").is_err(), "{cut}");
        }
        for at in 0..512 {
            for byte in [0, 0x7f, 0xff] {
                let mut mutated = archive.clone();
                mutated[at] = byte;
                if let Ok(found) = members(&mutated, "mutated") {
                    assert!(mutated == archive || found.len() == 2, "{at}");
                }
            }
        }
    }
}
