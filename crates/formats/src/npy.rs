//! Turns the header of a NumPy array file into element type, shape and the place where the numbers begin.
//!
//! Only the header is read here: the numbers stay in the file, so that an array larger than memory can be read
//! row by row.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::{Element, FileError, Result, Stored};

/// A header longer than this is no header: NumPy's own are below a few hundred bytes.
const HEADER_LIMIT: usize = 64 << 10;

/// What the header of an array says, in a NumPy or in an IDX file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type of its numbers.
    pub element: Stored,
    /// Its extents, outermost first.
    pub shape: Vec<usize>,
    /// Where its numbers begin, counted from the start of the header.
    pub start: u64,
    /// Bytes of all its numbers.
    pub bytes: u64,
}

impl Header {
    /// Reads the header from the front of `input`; `file` is the name for errors.
    ///
    /// ```
    /// use plimsoll_formats::npy;
    ///
    /// let mut bytes = Vec::new();
    /// npy::write_header(&mut bytes, plimsoll_formats::Element::F32, &[2, 3])?;
    /// let header = npy::Header::read(&mut bytes.as_slice(), "x.npy".as_ref())?;
    /// assert_eq!((header.shape, header.bytes), (vec![2, 3], 24));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(input: &mut impl Read, file: &Path) -> Result<Header> {
        let mut front = [0; 8];
        input.read_exact(&mut front).map_err(|error| FileError::io(file, error))?;
        if &front[..6] != b"\x93NUMPY" {
            return Err(FileError::damaged(
                file,
                "this is no NumPy array: the file does not begin with \\x93NUMPY",
            ));
        }
        let mut size = [0; 4];
        let size_bytes = match front[6] {
            1 => 2,
            2 | 3 => 4,
            version => {
                let what = format!("version {version} of the NumPy format is not known; 1 to 3 are");
                return Err(FileError::unsupported(file, what));
            }
        };
        input.read_exact(&mut size[..size_bytes]).map_err(|error| FileError::io(file, error))?;
        let size = u32::from_le_bytes(size) as usize;
        if size > HEADER_LIMIT {
            return Err(FileError::damaged(file, format!("a header of {size} bytes is not credible")));
        }
        let mut text = vec![0; size];
        input.read_exact(&mut text).map_err(|error| FileError::io(file, error))?;
        let text = String::from_utf8_lossy(&text);
        let (element, shape) = parse(&text, file)?;
        let elements = shape.iter().try_fold(1u64, |n, &extent| n.checked_mul(extent as u64));
        let bytes = elements.and_then(|n| n.checked_mul(element.element.bytes() as u64));
        let Some(bytes) = bytes.filter(|&bytes| bytes < 1 << 60) else {
            return Err(FileError::damaged(file, format!("the shape {shape:?} is not credible")));
        };
        Ok(Header { element, shape, start: (8 + size_bytes + size) as u64, bytes })
    }

    /// Reads the header of a file, and checks that the file is long enough for its numbers.
    pub fn of_file(path: &Path) -> Result<(File, Header)> {
        let mut file = File::open(path).map_err(|error| FileError::io(path, error))?;
        let have = file.metadata().map_err(|error| FileError::io(path, error))?.len();
        let header = Header::read(&mut file, path)?;
        let need = header.start + header.bytes;
        if have < need {
            let what = format!("the file ends too early: its header promises {need} bytes, there are {have}");
            return Err(FileError::damaged(path, what));
        }
        Ok((file, header))
    }

    /// Rows, and bytes of one row; an array without extents is one row.
    pub fn rows(&self) -> (u64, usize) {
        let row: usize = self.shape.iter().skip(1).product::<usize>() * self.element.element.bytes();
        (self.shape.first().map_or(1, |&rows| rows as u64), row)
    }
}

/// The three entries of the header, which is a Python dictionary: `{'descr': '<f4', 'fortran_order': False,
/// 'shape': (2, 3), }`.
fn parse(text: &str, file: &Path) -> Result<(Stored, Vec<usize>)> {
    let entry = |name: &str| {
        let missing = || FileError::damaged(file, format!("the header has no readable entry '{name}'"));
        let at = [format!("'{name}'"), format!("\"{name}\"")];
        let rest = at.iter().find_map(|key| text.split_once(key.as_str())).ok_or_else(missing)?.1;
        rest.trim_start().strip_prefix(':').map(str::trim_start).ok_or_else(missing)
    };
    let descr = entry("descr")?;
    let quoted = descr.strip_prefix(['\'', '"']).and_then(|rest| rest.split(['\'', '"']).next());
    let Some(descr) = quoted else {
        return Err(FileError::unsupported(
            file,
            "arrays of records are not read; save each field by itself",
        ));
    };
    let (order, code) = descr.split_at(descr.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0));
    let kind = match code {
        "b1" => Element::Bool,
        "u1" => Element::U8,
        "i1" => Element::I8,
        "u2" => Element::U16,
        "i2" => Element::I16,
        "u4" => Element::U32,
        "i4" => Element::I32,
        "u8" => Element::U64,
        "i8" => Element::I64,
        "f2" => Element::F16,
        "f4" => Element::F32,
        "f8" => Element::F64,
        _ => {
            let what = format!("elements of type '{descr}' are not read; save the array as f4, u1 or i8");
            return Err(FileError::unsupported(file, what));
        }
    };
    let element = Stored { element: kind, big_endian: order == ">" };
    let rows_first = entry("fortran_order")?.starts_with("False");
    let shape = entry("shape")?;
    let shape = shape.strip_prefix('(').and_then(|rest| rest.split_once(')')).map(|(inside, _)| inside);
    let extents = shape.map(|inside| {
        let parts = inside.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| part.parse().ok()).collect::<Option<Vec<usize>>>()
    });
    let Some(Some(shape)) = extents.filter(|shape| shape.as_ref().is_some_and(|shape| shape.len() <= 32))
    else {
        return Err(FileError::damaged(file, "the shape in the header is not readable"));
    };
    if !rows_first && shape.iter().filter(|&&extent| extent > 1).count() > 1 {
        let what = "the array is stored column by column; save numpy.ascontiguousarray(x) instead";
        return Err(FileError::unsupported(file, what));
    }
    Ok((element, shape))
}

/// Writes a header of version 1 for little-endian numbers; the numbers themselves follow it.
pub fn write_header(out: &mut impl std::io::Write, element: Element, shape: &[usize]) -> std::io::Result<()> {
    let code = match element {
        Element::Bool => "|b1",
        Element::U8 => "|u1",
        Element::I8 => "|i1",
        Element::U16 => "<u2",
        Element::I16 => "<i2",
        Element::U32 => "<u4",
        Element::I32 => "<i4",
        Element::U64 => "<u8",
        Element::I64 => "<i8",
        Element::F16 => "<f2",
        Element::F32 => "<f4",
        Element::F64 => "<f8",
        Element::BF16 => return Err(std::io::Error::other("npy files have no bf16; convert to f32 first")),
    };
    let extents: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
    let mut text =
        format!("{{'descr': '{code}', 'fortran_order': False, 'shape': ({}), }}", extents.trim_end());
    // NumPy aligns the numbers to 64 bytes, the closing line break included.
    let padding = (10 + text.len() + 1).next_multiple_of(64) - (10 + text.len() + 1);
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    let size = u16::try_from(text.len()).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    out.write_all(&size.to_le_bytes())?;
    out.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Header> {
        Header::read(&mut { bytes }, Path::new("x.npy"))
    }

    fn with_text(text: &str) -> Vec<u8> {
        [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
    }

    #[test]
    fn a_written_header_reads_back() {
        for (kind, shape) in
            [(Element::U8, vec![60000, 28, 28]), (Element::F64, vec![]), (Element::I64, vec![5])]
        {
            let mut bytes = Vec::new();
            write_header(&mut bytes, kind, &shape).unwrap();
            assert_eq!(bytes.len() % 64, 0);
            let header = read(&bytes).unwrap();
            assert_eq!((header.element, &header.shape), (kind.into(), &shape));
            assert_eq!(header.start, bytes.len() as u64);
        }
    }

    #[test]
    fn what_numpy_writes_is_read() {
        let header =
            read(&with_text("{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }   \n")).unwrap();
        assert_eq!(header.element, Stored { element: Element::F32, big_endian: true });
        assert_eq!((header.shape, header.bytes), (vec![3], 12));
        let column = read(&with_text("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 1), }")).unwrap();
        assert_eq!(column.shape, [3, 1]);
    }

    #[test]
    fn absurd_and_foreign_headers_are_refused() {
        let message = |text: &str| read(&with_text(text)).unwrap_err().to_string();
        let absurd = "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 99999999999), }";
        assert!(message(absurd).contains("not credible"), "{}", message(absurd));
        let fortran = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 2), }";
        assert!(message(fortran).contains("ascontiguousarray"));
        let record = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 2), }";
        assert!(message(record).contains("records"));
        assert!(message("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }").contains("<c8"));
        assert!(message("{}").contains("'descr'"));
        assert!(read(b"PK\x03\x04 and more").unwrap_err().to_string().contains("no NumPy array"));
    }

    #[test]
    fn no_truncation_and_no_mutation_panics() {
        let mut bytes = Vec::new();
        write_header(&mut bytes, Element::F32, &[7, 3]).unwrap();
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut]).is_err(), "{cut}");
        }
        for at in 0..bytes.len() {
            for value in [0, 1, b'(', b')', b'9', b'\'', 0x7f, 0xff] {
                let mut mutated = bytes.clone();
                mutated[at] = value;
                let _ = read(&mutated);
            }
        }
    }
}
