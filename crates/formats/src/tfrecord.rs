//! Turns a TFRecord file into the places of its records, and a place into a record.
//!
//! A record is a length, the length's checksum, the bytes, and their checksum. The lengths are followed once to find
//! all records; after that each can be read by offset. A damaged length ends what can be found, a damaged record
//! only itself.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use crate::{FileError, Result};

/// The checksum as TFRecord stores it: CRC-32C, rotated and shifted, so that a checksum of data that contains checksums is
/// no special case.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// The places of all records of a file.
#[derive(Debug, Default)]
pub struct Index {
    /// Where the bytes of each record begin, and where those of one more would.
    pub starts: Vec<u64>,
    /// The length of the longest.
    pub longest: usize,
    /// What keeps the records after the last from being found, if anything.
    pub damage: Option<String>,
}

impl Index {
    /// How many sound records there are.
    pub fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Follows the lengths through a file. Only a file that cannot be read at all is an error here; damage is noted
    /// in the index, behind the records before it.
    pub fn of_file(path: &Path) -> Result<Index> {
        let io = |error| FileError::io(path, error);
        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut reader = BufReader::with_capacity(64 << 10, file);
        let mut index = Index { starts: vec![12], ..Index::default() };
        let mut at = 0u64;
        while at < size {
            let mut head = [0; 12];
            if size - at < 12 {
                index.damage = Some("the file ends in the middle of a length".into());
                break;
            }
            reader.read_exact(&mut head).map_err(io)?;
            if at == 0 && head[..2] == GZIP {
                let what = "the file is gzipped, so that its records can only be read from front to back";
                return Err(FileError::unsupported(path, what));
            }
            let mut length = [0; 8];
            length.copy_from_slice(&head[..8]);
            let mut crc = [0; 4];
            crc.copy_from_slice(&head[8..]);
            let length = u64::from_le_bytes(length);
            if masked_crc(&head[..8]) != u32::from_le_bytes(crc) {
                index.damage = Some("the length of the record is damaged: its checksum differs".into());
                break;
            }
            let end = at.checked_add(16).and_then(|at| at.checked_add(length));
            let Some(end) = end.filter(|&end| end <= size) else {
                index.damage = Some(format!("the file ends too early: the record has {length} bytes"));
                break;
            };
            index.longest = index.longest.max(length as usize);
            reader.seek_relative((length + 4) as i64).map_err(io)?;
            at = end;
            index.starts.push(at + 12);
        }
        Ok(index)
    }

    /// Reads record `record` into `bytes` and checks it.
    pub fn read(&self, file: &File, path: &Path, record: u64, bytes: &mut Vec<u8>) -> Result<()> {
        let place = usize::try_from(record)
            .ok()
            .and_then(|at| Some((*self.starts.get(at)?, *self.starts.get(at + 1)?)));
        let Some((start, next)) = place else {
            let what = self.damage.clone().unwrap_or_else(|| "there is no such record".into());
            return Err(FileError::damaged_at(path, record, what));
        };
        bytes.resize((next - start - 12) as usize, 0);
        read_at(file, bytes, start).map_err(|error| FileError::io(path, error).at(record))?;
        let (data, crc) = bytes.split_at(bytes.len() - 4);
        if masked_crc(data).to_le_bytes() != crc {
            return Err(FileError::damaged_at(path, record, "the record is damaged: its checksum differs"));
        }
        bytes.truncate(bytes.len() - 4);
        Ok(())
    }
}

/// How a gzipped file begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// A record of a gzipped file that is longer is damage: its length cannot be compared with that of the file.
const GZIPPED_MOST: u64 = 256 << 20;

/// Whether a file is gzipped.
pub fn is_gzipped(path: &Path) -> Result<bool> {
    let mut file = File::open(path).map_err(|error| FileError::io(path, error))?;
    let mut front = [0; 2];
    Ok(file.read_exact(&mut front).is_ok() && front == GZIP)
}

/// The records of a gzipped file, from front to back.
pub struct GzipReader {
    reader: flate2::bufread::MultiGzDecoder<BufReader<File>>,
    path: PathBuf,
    record: u64,
}

impl GzipReader {
    /// Starts at the first record.
    pub fn open(path: &Path) -> Result<GzipReader> {
        let file = File::open(path).map_err(|error| FileError::io(path, error))?;
        let reader = flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(64 << 10, file));
        Ok(GzipReader { reader, path: path.to_owned(), record: 0 })
    }

    /// Reads the next record into `bytes` and checks it; answers `false` at the end.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<bool> {
        let (path, record) = (self.path.clone(), self.record);
        let io = |error| FileError::io(&path, error).at(record);
        let damaged = |what: &str| FileError::damaged_at(&path, record, what);
        let mut head = Vec::with_capacity(12);
        self.reader.by_ref().take(12).read_to_end(&mut head).map_err(io)?;
        if head.is_empty() {
            return Ok(false);
        }
        let (Some(length), Some(crc)) = (head.first_chunk::<8>(), head.get(8..12)) else {
            return Err(damaged("the file ends in the middle of a length"));
        };
        if masked_crc(length).to_le_bytes() != crc {
            return Err(damaged("the length of the record is damaged: its checksum differs"));
        }
        let length = u64::from_le_bytes(*length);
        if length > GZIPPED_MOST {
            return Err(damaged("the record is longer than 256 MiB"));
        }
        bytes.clear();
        // Room is made as bytes come, not as a length promises.
        self.reader.by_ref().take(length + 4).read_to_end(bytes).map_err(io)?;
        if bytes.len() as u64 != length + 4 {
            return Err(damaged("the file ends too early"));
        }
        let crc = bytes.split_off(length as usize);
        if masked_crc(bytes).to_le_bytes() != crc[..] {
            return Err(damaged("the record is damaged: its checksum differs"));
        }
        self.record += 1;
        Ok(true)
    }
}

#[cfg(unix)]
fn read_at(file: &File, out: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, at)
}

#[cfg(not(unix))]
fn read_at(mut file: &File, out: &mut [u8], at: u64) -> std::io::Result<()> {
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(at))?;
    file.read_exact(out)
}

/// Writes one record.
pub fn write(out: &mut impl Write, record: &[u8]) -> std::io::Result<()> {
    let length = (record.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked_crc(&length).to_le_bytes())?;
    out.write_all(record)?;
    out.write_all(&masked_crc(record).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::features;
    use crate::example::tests::example;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("plimsoll-tfrecord-{}-{name}", std::process::id()))
    }

    fn file(path: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        (0..3).for_each(|n| write(&mut bytes, &example(n)).unwrap());
        std::fs::write(path, &bytes).unwrap();
        bytes
    }

    #[test]
    fn records_are_found_and_examples_read() {
        let path = scratch("sound");
        file(&path);
        let (index, open) = (Index::of_file(&path).unwrap(), File::open(&path).unwrap());
        assert_eq!((index.len(), index.longest, index.damage.is_none()), (3, example(0).len(), true));
        let mut bytes = Vec::new();
        index.read(&open, &path, 2, &mut bytes).unwrap();
        let found: Vec<_> = features(&bytes).collect();
        assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["label", "x", "raw"]);
        assert_eq!(found[0].1.ints().collect::<Vec<_>>(), [2, -1]);
        assert_eq!(found[1].1.floats().collect::<Vec<_>>(), [2.0, 0.5]);
        assert_eq!(found[2].1.bytes().collect::<Vec<_>>(), [&b"ab"[..], b""]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_tensorflow_wrote_is_read() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/examples.tfrecord"));
        let (index, open) = (Index::of_file(path).unwrap(), File::open(path).unwrap());
        assert_eq!(index.len(), 5);
        let mut bytes = Vec::new();
        index.read(&open, path, 3, &mut bytes).unwrap();
        for (name, feature) in features(&bytes) {
            match name {
                "label" => assert_eq!(feature.ints().collect::<Vec<_>>(), [3]),
                "weights" => assert_eq!(feature.floats().collect::<Vec<_>>(), [3.5, -3.0]),
                name => assert!(name == "image" && crate::image::is_image(feature.bytes().next().unwrap())),
            }
        }
        assert_eq!(features(&bytes).count(), 3);
    }

    #[test]
    fn damage_is_named_with_file_and_record() {
        let path = scratch("damaged");
        let bytes = file(&path);
        let one = bytes.len() / 3;
        let mut record = Vec::new();
        let read = |record: u64, out: &mut Vec<u8>| {
            let (index, open) = (Index::of_file(&path).unwrap(), File::open(&path).unwrap());
            index.read(&open, &path, record, out).map_err(|error| error.to_string())
        };
        let mut flipped = bytes.clone();
        flipped[one + 20] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        assert!(read(1, &mut record).unwrap_err().contains("damaged, record 1: the record is damaged"));
        assert!(read(2, &mut record).is_ok());
        let mut length = bytes.clone();
        length[one] ^= 1;
        std::fs::write(&path, &length).unwrap();
        assert!(read(0, &mut record).is_ok());
        assert!(read(1, &mut record).unwrap_err().contains("damaged, record 1: the length of the record"));
        std::fs::write(&path, &bytes[..2 * one + 30]).unwrap();
        assert!(read(2, &mut record).unwrap_err().contains("damaged, record 2: the file ends too early"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn gzipped_records_come_in_turn_and_damage_is_seen() {
        let path = scratch("gzipped");
        let plain = file(&path);
        assert!(!is_gzipped(&path).unwrap());
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&plain).unwrap();
        let packed = packed.finish().unwrap();
        std::fs::write(&path, &packed).unwrap();
        assert!(is_gzipped(&path).unwrap());
        let all = || -> Result<Vec<Vec<u8>>> {
            let (mut reader, mut bytes, mut all) = (GzipReader::open(&path)?, Vec::new(), Vec::new());
            while reader.next(&mut bytes)? {
                all.push(bytes.clone());
            }
            Ok(all)
        };
        assert_eq!(all().unwrap(), (0..3).map(example).collect::<Vec<_>>());
        for cut in 2..packed.len() {
            std::fs::write(&path, &packed[..cut]).unwrap();
            assert!(all().is_err(), "{cut}");
        }
        for at in 10..packed.len() {
            let mut mutated = packed.clone();
            mutated[at] ^= 0x11;
            std::fs::write(&path, &mutated).unwrap();
            assert!(all().is_err(), "{at}");
        }
        std::fs::remove_file(path).unwrap();
    }
}
