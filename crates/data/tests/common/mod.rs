//! Files and folders that tests make, and that are gone with them.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::io::Write;
use std::path::{Path, PathBuf};

use plimsoll_formats::{Element, example, npy, tfrecord};

/// A file that lies in the repository.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/fixtures").join(name)
}

/// A folder that is gone with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("plimsoll-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An IDX file.
pub fn idx(kind: u8, shape: &[u32], numbers: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, kind, shape.len() as u8];
    shape.iter().for_each(|extent| bytes.extend(extent.to_be_bytes()));
    [bytes, numbers.to_vec()].concat()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// A NumPy file.
pub fn npy(element: Element, shape: &[usize], numbers: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    npy::write_header(&mut bytes, element, shape).unwrap();
    [bytes, numbers.to_vec()].concat()
}

/// A NumPy archive, as `np.savez` or `np.savez_compressed` writes it.
pub fn npz(arrays: &[(&str, Vec<u8>)], compressed: bool) -> Vec<u8> {
    let method = match compressed {
        true => zip::CompressionMethod::Deflated,
        false => zip::CompressionMethod::Stored,
    };
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in arrays {
        zip.start_file(format!("{name}.npy"), options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A TFRecord file of examples with a float `x` and a whole number `label` each.
pub fn records(n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 0..n {
        let record =
            example::ExampleWriter::default().floats("x", &[i as f32]).ints("label", &[i as i64]).finish();
        tfrecord::write(&mut bytes, &record).unwrap();
    }
    bytes
}
