//! Turns a safetensors file into its list of tensors, then copies them out one by one.

use super::header::RawHeader;
use super::{Error, Tensor};
use crate::Element;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// How much a file may make the reader take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the header, which is read whole. The format's own bound is 100 MB.
    pub header: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { header: 100_000_000 }
    }
}

/// A safetensors file whose header has been read and checked; its tensors stay on disk until they are asked for.
#[derive(Debug)]
pub struct Reader<R> {
    file: R,
    /// Where the tensors' bytes begin.
    start: u64,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    metadata: BTreeMap<String, String>,
}

impl Reader<File> {
    /// Opens a file with the default limits.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let file = File::open(path).map_err(Error::from);
        file.and_then(|file| Reader::new(file, Limits::default()))
            .map_err(|source| Error::File { file: path.display().to_string(), source: Box::new(source) })
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads and checks the header of `file`, which must hold a safetensors file and nothing else.
    pub fn new(mut file: R, limits: Limits) -> Result<Self, Error> {
        let size = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        if size < 8 {
            return Err(Error::Truncated { expected: 8, found: size });
        }
        let mut length = [0; 8];
        file.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > size - 8 {
            return Err(Error::Truncated { expected: length.saturating_add(8), found: size });
        }
        if length > limits.header {
            return Err(Error::HeaderTooLarge { bytes: length, limit: limits.header });
        }
        // The length has just been compared with the file's own size, so this allocates no more than there is.
        let mut json = vec![0; length as usize];
        file.read_exact(&mut json)?;
        let start = 8 + length;
        let (tensors, metadata) = RawHeader::parse(&json)?.check(size - start)?;
        let by_name = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(Reader { file, start, tensors, by_name, metadata })
    }

    /// The tensors, in the order of their bytes: reading them in this order reads the file once, forwards.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The string metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        self.by_name.get(name).map(|i| &self.tensors[*i]).ok_or_else(|| Error::Missing(name.to_string()))
    }

    /// Copies the tensor called `name` into `buffer`, which must have exactly its size.
    pub fn read_into(&mut self, name: &str, buffer: &mut [u8]) -> Result<(), Error> {
        let bytes = self.tensor(name)?.bytes;
        if bytes != buffer.len() {
            return Err(Error::Buffer { name: name.to_string(), expected: bytes, found: buffer.len() });
        }
        self.read_part(name, 0, buffer)
    }

    /// Copies `buffer.len()` bytes of the tensor called `name`, from its byte `from` on: for tensors that go through a
    /// staging buffer smaller than they are.
    pub fn read_part(&mut self, name: &str, from: usize, buffer: &mut [u8]) -> Result<(), Error> {
        let tensor = self.tensor(name)?;
        let (offset, bytes, element) = (tensor.offset, tensor.bytes, tensor.element);
        if from.checked_add(buffer.len()).is_none_or(|end| end > bytes) {
            return Err(Error::Buffer { name: name.to_string(), expected: bytes, found: buffer.len() });
        }
        // The header was checked against the file's size, so this sum is a place in the file.
        self.file.seek(SeekFrom::Start(self.start + offset + from as u64))?;
        self.file.read_exact(buffer)?;
        if element == Element::Bool && buffer.iter().any(|byte| *byte > 1) {
            let reason = "a truth value is neither 0 nor 1".to_string();
            return Err(Error::Tensor { name: name.to_string(), reason });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{TensorView, write};
    use super::*;
    use std::io::Cursor;

    fn open(bytes: &[u8]) -> Result<Reader<Cursor<&[u8]>>, Error> {
        Reader::new(Cursor::new(bytes), Limits { header: 10_000 })
    }

    fn with_header(json: &str, data: usize) -> Vec<u8> {
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend(json.as_bytes());
        file.extend(std::iter::repeat_n(1, data));
        file
    }

    fn refusal(json: &str, data: usize) -> String {
        open(&with_header(json, data)).expect_err("a refusal").to_string()
    }

    #[test]
    fn a_header_longer_than_the_file_or_the_limit_is_refused_before_anything_is_allocated() {
        let mut file = u64::MAX.to_le_bytes().to_vec();
        assert!(matches!(open(&file), Err(Error::Truncated { found: 8, .. })));
        file.splice(..8, 10_001u64.to_le_bytes());
        file.resize(8 + 10_001, b' ');
        assert!(matches!(open(&file), Err(Error::HeaderTooLarge { bytes: 10_001, limit: 10_000 })));
    }

    #[test]
    fn gaps_overlaps_wrong_sizes_and_doubles_are_refused_by_name() {
        let good = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        assert!(open(&with_header(good, 8)).is_ok());
        let text = refusal(&good.replace("[0,8]", "[4,12]"), 12);
        assert_eq!(text, "tensor \"a\": it starts at byte 4 but the one before it ends at 0");
        assert!(refusal(&good.replace("[2]", "[3]"), 8).contains("needs 12 bytes but its range is 0..8"));
        assert!(refusal(&good.replace("F32", "F8_E4M3"), 8).contains("F8_E4M3"));
        assert!(refusal(&good.replace("[2]", "[18446744073709551615,2]"), 8).contains("can be counted"));
        assert!(refusal(&good.replace("[0,8]", "[8,0]"), 8).contains("its range is 8..0"));
        assert!(refusal(good, 7).contains("announces 8"));
        assert!(refusal(good, 9).contains("1 bytes follow"));
        let twice = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
        assert!(refusal(twice, 2).contains("twice"));
        assert!(refusal(&"[".repeat(9000), 0).contains("not that of"));
    }

    #[test]
    fn an_error_of_opening_names_the_file() {
        let text = Reader::open("no/such.safetensors").map(drop).expect_err("a refusal").to_string();
        assert!(text.starts_with("no/such.safetensors: the file could not be read"), "{text}");
    }

    #[test]
    fn a_buffer_of_another_size_and_an_unknown_name_are_refused() {
        let file = with_header(r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#, 4);
        let mut reader = open(&file).expect("a valid file");
        assert!(matches!(
            reader.read_into("a", &mut [0; 3]),
            Err(Error::Buffer { expected: 4, found: 3, .. })
        ));
        assert!(matches!(reader.read_part("a", 2, &mut [0; 3]), Err(Error::Buffer { .. })));
        assert!(matches!(reader.read_part("a", usize::MAX, &mut [0; 3]), Err(Error::Buffer { .. })));
        assert!(matches!(reader.read_into("b", &mut []), Err(Error::Missing(name)) if name == "b"));
    }

    #[test]
    fn no_truncation_and_no_mutation_panics_or_reads_past_the_tensors() {
        let bytes: Vec<u8> = (0..48).collect();
        let mut file = Vec::new();
        let tensors = [
            TensorView { name: "w", element: Element::F32, shape: &[3, 4], bytes: &bytes },
            TensorView { name: "flags", element: Element::Bool, shape: &[2], bytes: &[0, 1] },
            TensorView { name: "empty", element: Element::I64, shape: &[0, 7], bytes: &[] },
        ];
        write(&mut file, &tensors, &BTreeMap::from([("k".into(), "v".into())])).expect("writing to memory");
        for length in 0..file.len() {
            assert!(open(&file[..length]).is_err(), "truncated to {length}");
        }
        let mut opened = 0;
        for i in 0..file.len() {
            for value in [0, 1, b'0', b'9', b'"', b'}', 0x7f, 0xff] {
                let mut mutated = file.clone();
                mutated[i] = value;
                let Ok(mut reader) = open(&mutated) else { continue };
                opened += 1;
                for tensor in reader.tensors().to_vec() {
                    assert!(tensor.bytes <= file.len());
                    // A truth value may have been broken; that is an error like any other.
                    let _ = reader.read_into(&tensor.name, &mut vec![0; tensor.bytes]);
                }
            }
        }
        assert!(opened > file.len(), "mutated tensor bytes and names still open");
    }
}
