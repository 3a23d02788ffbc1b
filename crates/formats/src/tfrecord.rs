//! Turns a TFRecord file into the places of its records, and records into `tf.train.Example`s.
//!
//! A record is a length, the length's checksum, the bytes, and their checksum. The lengths are followed once to find
//! all records; after that each can be read by offset. A damaged length ends what can be found, a damaged record
//! only itself.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

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
            if at == 0 && head[..2] == [0x1f, 0x8b] {
                return Err(FileError::unsupported(path, "the file is gzipped; unpack it with gunzip first"));
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

/// A feature of an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Feature<'a> {
    /// Strings of bytes: the bodies of a protocol buffer.
    Bytes(Message<'a>),
    /// Floats.
    Floats(Message<'a>),
    /// Whole numbers.
    Ints(Message<'a>),
}

impl<'a> Feature<'a> {
    /// Its strings of bytes.
    pub fn bytes(self) -> impl Iterator<Item = &'a [u8]> {
        let body = if let Feature::Bytes(message) = self { message } else { Message(&[]) };
        body.filter_map(|(number, value)| match value {
            Value::Bytes(bytes) if number == 1 => Some(bytes),
            _ => None,
        })
    }

    /// Its floats, packed or not.
    pub fn floats(self) -> impl Iterator<Item = f32> + use<'a> {
        let body = if let Feature::Floats(message) = self { message } else { Message(&[]) };
        body.flat_map(|(number, value)| {
            let (packed, single) = match value {
                Value::Bytes(bytes) if number == 1 => (bytes, None),
                Value::Four(bits) if number == 1 => (&[][..], Some(f32::from_bits(bits))),
                _ => (&[][..], None),
            };
            let four = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            packed.chunks_exact(4).map(four).chain(single)
        })
    }

    /// Its whole numbers, packed or not.
    pub fn ints(self) -> impl Iterator<Item = i64> + use<'a> {
        let body = if let Feature::Ints(message) = self { message } else { Message(&[]) };
        body.flat_map(|(number, value)| {
            let (mut packed, single) = match value {
                Value::Bytes(bytes) if number == 1 => (bytes, None),
                Value::Varint(bits) if number == 1 => (&[][..], Some(bits as i64)),
                _ => (&[][..], None),
            };
            std::iter::from_fn(move || varint(&mut packed).map(|bits| bits as i64)).chain(single)
        })
    }
}

/// The features of a serialized `tf.train.Example`, in the order in which they are stored.
///
/// What is not readable ends the list: a checksum has already told whether the bytes are those that were written.
pub fn features(example: &[u8]) -> impl Iterator<Item = (&str, Feature<'_>)> {
    let inside = |wanted: u64| {
        move |(number, value)| match value {
            Value::Bytes(bytes) if number == wanted => Some(Message(bytes)),
            _ => None,
        }
    };
    let entries =
        Message(example).filter_map(inside(1)).flat_map(move |features| features.filter_map(inside(1)));
    entries.filter_map(|entry| {
        let (mut name, mut feature) = ("", None);
        for (number, value) in entry {
            match (number, value) {
                (1, Value::Bytes(bytes)) => name = std::str::from_utf8(bytes).ok()?,
                (2, Value::Bytes(bytes)) => {
                    feature = Message(bytes).find_map(|(number, value)| match (number, value) {
                        (1, Value::Bytes(list)) => Some(Feature::Bytes(Message(list))),
                        (2, Value::Bytes(list)) => Some(Feature::Floats(Message(list))),
                        (3, Value::Bytes(list)) => Some(Feature::Ints(Message(list))),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        Some((name, feature?))
    })
}

/// A value of a protocol buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A number of variable length.
    Varint(u64),
    /// Eight bytes.
    Eight(u64),
    /// A string, a message or packed numbers.
    Bytes(&'a [u8]),
    /// Four bytes.
    Four(u32),
}

/// The fields of a protocol buffer, one after the other; what cannot be read ends them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message<'a>(pub &'a [u8]);

impl<'a> Iterator for Message<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<(u64, Value<'a>)> {
        let key = varint(&mut self.0)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut self.0)?),
            1 => Value::Eight(u64::from_le_bytes(*self.0.split_off(..8)?.first_chunk()?)),
            2 => {
                let length = usize::try_from(varint(&mut self.0)?).ok()?;
                Value::Bytes(self.0.split_off(..length)?)
            }
            5 => Value::Four(u32::from_le_bytes(*self.0.split_off(..4)?.first_chunk()?)),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Builds a serialized `tf.train.Example`.
///
/// ```
/// use plimsoll_formats::tfrecord::{ExampleWriter, features};
///
/// let bytes = ExampleWriter::default().ints("label", &[7]).floats("x", &[0.5, 1.0]).finish();
/// let (name, label) = features(&bytes).next().unwrap();
/// assert_eq!((name, label.ints().collect::<Vec<_>>()), ("label", vec![7]));
/// ```
#[derive(Default)]
pub struct ExampleWriter(Vec<u8>);

impl ExampleWriter {
    /// Adds strings of bytes.
    #[must_use]
    pub fn bytes(self, name: &str, strings: &[&[u8]]) -> ExampleWriter {
        let list = strings.iter().flat_map(|string| delimited(1, string)).collect::<Vec<_>>();
        self.feature(name, 1, &list)
    }

    /// Adds floats.
    #[must_use]
    pub fn floats(self, name: &str, floats: &[f32]) -> ExampleWriter {
        let packed: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.feature(name, 2, &delimited(1, &packed))
    }

    /// Adds whole numbers.
    #[must_use]
    pub fn ints(self, name: &str, ints: &[i64]) -> ExampleWriter {
        let mut packed = Vec::new();
        ints.iter().for_each(|&x| push_varint(&mut packed, x as u64));
        self.feature(name, 3, &delimited(1, &packed))
    }

    fn feature(mut self, name: &str, kind: u64, list: &[u8]) -> ExampleWriter {
        let entry = [delimited(1, name.as_bytes()), delimited(2, &delimited(kind, list))].concat();
        self.0.extend(delimited(1, &entry));
        self
    }

    /// The example.
    pub fn finish(self) -> Vec<u8> {
        delimited(1, &self.0)
    }
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn delimited(field: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 6);
    push_varint(&mut out, field << 3 | 2);
    push_varint(&mut out, bytes.len() as u64);
    out.extend_from_slice(bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("plimsoll-tfrecord-{}-{name}", std::process::id()))
    }

    fn example(n: i64) -> Vec<u8> {
        ExampleWriter::default()
            .ints("label", &[n, -1])
            .floats("x", &[n as f32, 0.5])
            .bytes("raw", &[b"ab", b""])
            .finish()
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
    fn no_mutation_of_an_example_panics() {
        let bytes = example(300);
        for at in 0..bytes.len() {
            for byte in [0, 1, 0x0a, 0x7f, 0x80, 0xff] {
                let mut mutated = bytes.clone();
                mutated[at] = byte;
                for (_, feature) in features(&mutated) {
                    let _ = feature.bytes().count() + feature.floats().count() + feature.ints().count();
                }
            }
            let _ = features(&bytes[..at]).count();
        }
    }
}
