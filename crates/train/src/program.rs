//! Turns the file that this code was loaded from into a short text that tells it from other builds: ranks must not differ in it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;

use plimsoll_formats::durable::Checksummed;

/// The file's length and checksum; `unknown` where it cannot be read. It is read once, which takes no memory to speak of.
pub(crate) fn digest() -> String {
    static KNOWN: OnceLock<String> = OnceLock::new();
    let read = || {
        let mut file = File::open(own_file()?).ok()?;
        let mut sum = Checksummed::new(std::io::sink());
        std::io::copy(&mut file, &mut sum).ok()?;
        let sum = sum.sum("program");
        Some(format!("{} bytes, {:08x}", sum.bytes, sum.crc32c))
    };
    KNOWN.get_or_init(|| read().unwrap_or_else(|| "unknown".into())).clone()
}

/// The command, or the library that it is part of: a module of Python's, say.
fn own_file() -> Option<PathBuf> {
    let here = digest as fn() -> String as usize;
    // "start-end rwxp offset device inode   path"
    let of_line = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let (end, rest) = rest.split_once(' ')?;
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let is_here = (number(start)?..number(end)?).contains(&here);
        is_here.then(|| rest.find('/').map(|at| PathBuf::from(&rest[at..])))?
    };
    let maps = std::fs::read_to_string("/proc/self/maps").ok();
    let mapped = maps.and_then(|maps| maps.lines().find_map(of_line)).filter(|path| path.is_file());
    mapped.or_else(|| std::env::current_exe().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_known_by_its_file() {
        assert_eq!(own_file().unwrap().canonicalize().unwrap(), std::env::current_exe().unwrap());
        let bytes = own_file().unwrap().metadata().unwrap().len();
        assert!(digest().starts_with(&format!("{bytes} bytes, ")), "{}", digest());
    }
}
