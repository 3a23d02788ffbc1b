//! Turns a NumPy archive into its arrays: name, header, and where the numbers lie in the file.
//!
//! `np.savez` stores arrays uncompressed, so their rows can be read in place by offset and the archive is never
//! loaded. `np.savez_compressed` deflates them; those can only be read from front to back.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crate::npy::Header;
use crate::{FileError, Result};

/// An archive with more members than this is refused.
const MEMBER_LIMIT: usize = 4096;

/// One array of an archive.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name, without `.npy`.
    pub name: String,
    /// The number of the archive's entry that holds it.
    pub entry: usize,
    /// What its header says.
    pub header: Header,
    /// Where its numbers begin in the file, if they are stored uncompressed.
    pub offset: Option<u64>,
    /// Bytes of the member, its header included.
    pub size: u64,
    /// The checksum of those.
    pub crc: u32,
}

fn zip_error(file: &Path, error: zip::result::ZipError) -> FileError {
    match error {
        zip::result::ZipError::Io(error) => FileError::io(file, error),
        error => FileError::damaged(file, format!("the archive is not readable: {error}")),
    }
}

/// Lists the arrays of an archive; members that are no arrays are passed over.
pub fn members(path: &Path) -> Result<Vec<Member>> {
    let file = File::open(path).map_err(|error| FileError::io(path, error))?;
    let length = file.metadata().map_err(|error| FileError::io(path, error))?.len();
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(|error| zip_error(path, error))?;
    if archive.len() > MEMBER_LIMIT {
        return Err(FileError::damaged(path, format!("{} members are not credible", archive.len())));
    }
    let mut members = Vec::new();
    for entry in 0..archive.len() {
        let mut member = archive.by_index(entry).map_err(|error| zip_error(path, error))?;
        let name = member.name().map_err(|error| zip_error(path, error))?;
        let Some(name) = name.strip_suffix(".npy").map(str::to_owned) else { continue };
        let stored = member.compression() == zip::CompressionMethod::Stored;
        let (start, size, crc) = (member.data_start(), member.size(), member.crc32());
        let inside = format!("array '{name}'");
        let header = Header::read(&mut member, path).map_err(|error| in_member(error, &inside))?;
        let need = header.start + header.bytes;
        if need > size {
            let what = format!("{inside} ends too early: its header promises {need} bytes, there are {size}");
            return Err(FileError::damaged(path, what));
        }
        let offset = match (stored, start) {
            (true, Some(start)) => {
                if start.checked_add(size).is_none_or(|end| end > length) {
                    return Err(FileError::damaged(
                        path,
                        format!("{inside} reaches over the end of the file"),
                    ));
                }
                Some(start + header.start)
            }
            _ => None,
        };
        members.push(Member { name, entry, header, offset, size, crc });
    }
    Ok(members)
}

fn in_member(error: FileError, inside: &str) -> FileError {
    match error {
        FileError::Damaged { file, record, what } => {
            FileError::Damaged { file, record, what: format!("{inside}: {what}") }
        }
        FileError::Unsupported { file, record, what } => {
            FileError::Unsupported { file, record, what: format!("{inside}: {what}") }
        }
        io @ FileError::Io { .. } => io,
    }
}

impl Member {
    /// Reads an array that is stored uncompressed once, from front to back, and compares its checksum: rows that are read
    /// by offset afterwards cannot be checked one by one.
    pub fn verify(&self, path: &Path) -> Result<()> {
        let Some(offset) = self.offset else { return Ok(()) };
        let io = |error| FileError::io(path, error);
        let mut file = File::open(path).map_err(io)?;
        file.seek(SeekFrom::Start(offset - self.header.start)).map_err(io)?;
        let mut reader = BufReader::with_capacity(64 << 10, file.take(self.size));
        let mut crc = flate2::Crc::new();
        loop {
            let block = std::io::BufRead::fill_buf(&mut reader).map_err(io)?;
            if block.is_empty() {
                break;
            }
            crc.update(block);
            let used = block.len();
            std::io::BufRead::consume(&mut reader, used);
        }
        if u64::from(crc.amount()) != self.size & 0xffff_ffff {
            return Err(FileError::damaged(path, format!("array '{}' ends too early", self.name)));
        }
        match crc.sum() == self.crc {
            true => Ok(()),
            false => Err(FileError::damaged(path, differs(&self.name))),
        }
    }
}

fn differs(name: &str) -> String {
    format!("array '{name}' is damaged: its checksum differs")
}

/// The numbers of a deflated array, from front to back. The checksum of the archive is compared at its end.
pub struct Inflate {
    reader: flate2::bufread::DeflateDecoder<BufReader<std::io::Take<File>>>,
    crc: flate2::Crc,
    name: String,
    /// Bytes that are still to come, and the checksum that all of them must have.
    left: u64,
    expected: u32,
}

impl Inflate {
    /// Opens the array of an archive at its first number.
    pub fn open(path: &Path, member: &Member) -> Result<Inflate> {
        let io = |error| FileError::io(path, error);
        let mut file = File::open(path).map_err(io)?;
        let (start, size, method) = {
            let mut archive =
                zip::ZipArchive::new(BufReader::new(&file)).map_err(|error| zip_error(path, error))?;
            let entry = archive.by_index(member.entry).map_err(|error| zip_error(path, error))?;
            (entry.data_start(), entry.compressed_size(), entry.compression())
        };
        let (Some(start), zip::CompressionMethod::Deflated) = (start, method) else {
            let what = format!("array '{}' is compressed in a way that is not read", member.name);
            return Err(FileError::unsupported(path, what));
        };
        file.seek(SeekFrom::Start(start)).map_err(io)?;
        let packed = BufReader::with_capacity(32 << 10, file.take(size));
        let mut inflate = Inflate {
            reader: flate2::bufread::DeflateDecoder::new(packed),
            crc: flate2::Crc::new(),
            name: member.name.clone(),
            left: member.size,
            expected: member.crc,
        };
        let mut header = (&mut inflate).take(member.header.start);
        std::io::copy(&mut header, &mut std::io::sink()).map_err(io)?;
        Ok(inflate)
    }
}

impl Read for Inflate {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        use std::io::{Error, ErrorKind};
        // A member that goes on behind its size has another checksum, so it need not be read.
        let room = usize::try_from(self.left).map_or(out.len(), |left| left.min(out.len()));
        if room == 0 {
            return Ok(0);
        }
        let early = || Error::new(ErrorKind::UnexpectedEof, format!("array '{}' ends too early", self.name));
        let read = match self.reader.read(&mut out[..room]) {
            Ok(0) => return Err(early()),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(early()),
            Err(error) => {
                let what = format!("array '{}' is damaged: {error}", self.name);
                return Err(Error::new(ErrorKind::InvalidData, what));
            }
            Ok(read) => read,
        };
        self.crc.update(&out[..read]);
        self.left -= read as u64;
        if self.left == 0 && self.crc.sum() != self.expected {
            return Err(Error::new(ErrorKind::InvalidData, differs(&self.name)));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Element, npy};
    use std::io::Write;
    use std::path::PathBuf;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("plimsoll-npz-{}-{name}.npz", std::process::id()))
    }

    fn archive(path: &Path, method: zip::CompressionMethod) {
        let mut zip = zip::ZipWriter::new(File::create(path).unwrap());
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        for (name, values) in [("x", [1f32, 2.0, 3.0, 4.0]), ("y", [5f32, 6.0, 7.0, 8.0])] {
            zip.start_file(format!("{name}.npy"), options).unwrap();
            let mut bytes = Vec::new();
            npy::write_header(&mut bytes, Element::F32, &[2, 2]).unwrap();
            bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            zip.write_all(&bytes).unwrap();
        }
        zip.finish().unwrap();
    }

    #[test]
    fn stored_arrays_are_found_by_offset_and_deflated_ones_are_inflated() {
        let path = scratch("both");
        archive(&path, zip::CompressionMethod::Stored);
        let found = members(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let at = found[1].offset.unwrap() as usize;
        assert_eq!((found[1].name.as_str(), &bytes[at..at + 4]), ("y", &5f32.to_le_bytes()[..]));

        archive(&path, zip::CompressionMethod::Deflated);
        let found = members(&path).unwrap();
        assert_eq!(found[1].offset, None);
        let mut values = Vec::new();
        Inflate::open(&path, &found[1]).unwrap().read_to_end(&mut values).unwrap();
        assert_eq!(values, [5f32, 6.0, 7.0, 8.0].map(f32::to_le_bytes).concat());
        std::fs::remove_file(path).unwrap();
    }

    /// The archive as it is stored and as it is compressed.
    fn both_methods(path: &Path) -> [Vec<u8>; 2] {
        [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated].map(|method| {
            archive(path, method);
            std::fs::read(path).unwrap()
        })
    }

    #[test]
    fn a_number_that_changed_is_found_by_the_checksum_and_named() {
        let path = scratch("checksum");
        for sound in both_methods(&path) {
            let (mut seen, mut wrong) = (0, 0);
            for at in 0..sound.len() {
                let mut mutated = sound.clone();
                mutated[at] ^= 0x04;
                std::fs::write(&path, &mutated).unwrap();
                for member in members(&path).unwrap_or_default() {
                    let mut values = Vec::new();
                    let result = match member.offset {
                        Some(offset) => member.verify(&path).map(|()| {
                            let bytes = &mutated[offset as usize..][..16];
                            values.extend_from_slice(bytes);
                        }),
                        None => Inflate::open(&path, &member).and_then(|mut inflate| {
                            let read = inflate.read_to_end(&mut values);
                            read.map(drop).map_err(|error| FileError::io(&path, error))
                        }),
                    };
                    let first = 1.0 + 4.0 * member.entry as f32;
                    let expected: Vec<u8> = (0..4).flat_map(|i| (first + i as f32).to_le_bytes()).collect();
                    match result {
                        Ok(()) if member.header.bytes == 16 => {
                            // Whatever is read is what was written.
                            assert_eq!(values, expected, "byte {at}");
                            seen += 1;
                        }
                        Ok(()) => {}
                        Err(error) => {
                            assert!(error.to_string().contains("checksum.npz"), "{error}");
                            wrong += usize::from(error.to_string().contains("its checksum differs"));
                        }
                    }
                }
            }
            assert!(seen > 100 && wrong >= 8, "{seen} sound, {wrong} wrong");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn no_truncation_and_no_mutation_panics() {
        let path = scratch("mutated");
        for bytes in both_methods(&path) {
            for cut in (0..bytes.len()).step_by(7) {
                std::fs::write(&path, &bytes[..cut]).unwrap();
                let error = members(&path).unwrap_err().to_string();
                assert!(error.contains("mutated"), "{error}");
            }
            for at in 0..bytes.len() {
                let mut mutated = bytes.clone();
                mutated[at] ^= 0xff;
                std::fs::write(&path, &mutated).unwrap();
                for member in members(&path).unwrap_or_default() {
                    if let (None, Ok(mut inflate)) = (member.offset, Inflate::open(&path, &member)) {
                        let _ = std::io::copy(&mut inflate, &mut std::io::sink());
                    }
                }
            }
        }
        std::fs::remove_file(path).unwrap();
    }
}
