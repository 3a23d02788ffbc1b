//! Turns the header of an IDX file, plain or gzipped, into element type, shape and a reader of its numbers.
//!
//! The format of the MNIST family: two zero bytes, a type, a rank, the extents and then the numbers, all with
//! the most significant byte first.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::npy::Header;
use crate::{Element, FileError, Result, Stored};

/// Reads the header from the front of `input`; `file` is the name for errors.
///
/// ```
/// let bytes = [0, 0, 8, 1, 0, 0, 0, 2, 7, 9];
/// let header = plimsoll_formats::idx::read_header(&mut &bytes[..], "labels".as_ref())?;
/// assert_eq!((header.shape, header.start), (vec![2], 8));
/// # Ok::<(), plimsoll_formats::FileError>(())
/// ```
pub fn read_header(input: &mut impl Read, file: &Path) -> Result<Header> {
    let io = |error| FileError::io(file, error);
    let mut magic = [0; 4];
    input.read_exact(&mut magic).map_err(io)?;
    let [0, 0, code, rank @ 1..=8] = magic else {
        let what = format!("this is no IDX file: it begins with {magic:02x?} instead of 00 00 and a type");
        return Err(FileError::damaged(file, what));
    };
    let kind = match code {
        0x08 => Element::U8,
        0x09 => Element::I8,
        0x0B => Element::I16,
        0x0C => Element::I32,
        0x0D => Element::F32,
        0x0E => Element::F64,
        _ => {
            let what = format!("this is no IDX file: {code:#04x} is no type of elements");
            return Err(FileError::damaged(file, what));
        }
    };
    let mut shape = Vec::with_capacity(rank.into());
    for _ in 0..rank {
        let mut extent = [0; 4];
        input.read_exact(&mut extent).map_err(io)?;
        shape.push(u32::from_be_bytes(extent) as usize);
    }
    let elements = shape.iter().try_fold(1u64, |n, &extent| n.checked_mul(extent as u64));
    let bytes = elements.and_then(|n| n.checked_mul(kind.bytes() as u64));
    let Some(bytes) = bytes.filter(|&bytes| bytes < 1 << 50) else {
        return Err(FileError::damaged(file, format!("the shape {shape:?} is not credible")));
    };
    let element = Stored { element: kind, big_endian: true };
    Ok(Header { element, shape, start: 4 + 4 * u64::from(rank), bytes })
}

/// An open IDX file.
pub enum Idx {
    /// A plain one, of which rows can be read in any order.
    Plain(File, Header),
    /// A gzipped one, which can be read from front to back.
    Gzip(Box<MultiGzDecoder<BufReader<File>>>, Header),
}

impl Idx {
    /// Opens a file, which is gzipped if its first two bytes say so, at its first number.
    pub fn open(path: &Path) -> Result<Idx> {
        let io = |error| FileError::io(path, error);
        let mut file = File::open(path).map_err(io)?;
        let have = file.metadata().map_err(io)?.len();
        let mut front = [0; 2];
        file.read_exact(&mut front).map_err(io)?;
        std::io::Seek::rewind(&mut file).map_err(io)?;
        if front == [0x1f, 0x8b] {
            let packed = BufReader::with_capacity(32 << 10, file);
            let mut reader = Box::new(MultiGzDecoder::new(packed));
            let header = read_header(&mut reader, path)?;
            return Ok(Idx::Gzip(reader, header));
        }
        let header = read_header(&mut file, path)?;
        let need = header.start + header.bytes;
        if have < need {
            let what = format!("the file ends too early: its header promises {need} bytes, there are {have}");
            return Err(FileError::damaged(path, what));
        }
        Ok(Idx::Plain(file, header))
    }

    /// What its header says.
    pub fn header(&self) -> &Header {
        match self {
            Idx::Plain(_, header) | Idx::Gzip(_, header) => header,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn images() -> Vec<u8> {
        [&[0, 0, 8, 3][..], &[0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1], &[1, 2, 3, 4]].concat()
    }

    #[test]
    fn plain_and_gzipped_files_say_the_same() {
        let path = std::env::temp_dir().join(format!("plimsoll-idx-{}", std::process::id()));
        std::fs::write(&path, images()).unwrap();
        let plain = Idx::open(&path).unwrap();
        assert!(matches!(plain, Idx::Plain(..)));
        assert_eq!((&plain.header().shape[..], plain.header().rows()), (&[2, 2, 1][..], (2, 2)));

        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&images()).unwrap();
        let packed = gzip.finish().unwrap();
        std::fs::write(&path, &packed).unwrap();
        let Idx::Gzip(mut reader, header) = Idx::open(&path).unwrap() else { panic!("taken for plain") };
        assert_eq!(header, *plain.header());
        let mut numbers = Vec::new();
        reader.read_to_end(&mut numbers).unwrap();
        assert_eq!(numbers, [1, 2, 3, 4]);

        for at in 0..packed.len() {
            let mut mutated = packed.clone();
            mutated[at] ^= 0xff;
            std::fs::write(&path, &mutated).unwrap();
            if let Ok(Idx::Gzip(mut reader, _)) = Idx::open(&path) {
                let _ = std::io::copy(&mut reader, &mut std::io::sink());
            }
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn damaged_headers_are_refused_with_the_name_of_the_file() {
        let read = |bytes: &[u8]| read_header(&mut { bytes }, Path::new("some-images"));
        let message = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert!(message(b"\x89PNG").starts_with("some-images: this is no IDX file"));
        assert!(message(&[0, 0, 7, 1, 0, 0, 0, 1]).contains("0x07"));
        let absurd = [&[0, 0, 14, 3][..], &[0xff; 12]].concat();
        assert!(message(&absurd).contains("not credible"));
        for cut in 0..16 {
            assert!(message(&images()[..cut]).contains("too early"), "{cut}");
        }
    }
}
