//! Turns bytes into a framed record: length, checksum of the length, bytes, checksum of the bytes.

use std::io::{self, Write};

/// The checksum of the format: a CRC-32C, rotated and shifted so that sums of data that holds sums stay well spread.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

pub(super) fn write(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = (bytes.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked_crc32c(&length).to_le_bytes())?;
    out.write_all(bytes)?;
    out.write_all(&masked_crc32c(bytes).to_le_bytes())
}
