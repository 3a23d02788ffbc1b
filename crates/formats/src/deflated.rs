//! Turns bytes into how many they are once compressed, as a zip archive or an app's package holds them.

use std::io::{self, Write};

/// Counts what is written to it.
struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How many bytes these are when deflated.
///
/// ```
/// assert!(plimsoll_formats::deflated_bytes(&[0; 10_000]) < 100);
/// ```
pub fn deflated_bytes(bytes: &[u8]) -> u64 {
    let mut encoder = flate2::write::DeflateEncoder::new(Count(0), flate2::Compression::best());
    // Counting does not fail.
    let counted = encoder.write_all(bytes).and_then(|()| encoder.finish());
    counted.map_or(bytes.len() as u64, |count| count.0)
}
