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

/// A gray JPEG of one level, whatever its size, with EXIF data that says how the camera was held.
///
/// All blocks are the same: no difference to the one before, and nothing but the mean. With codes of one bit for either,
/// a block is two zero bits.
pub fn jpeg(width: u16, height: u16, orientation: u8) -> Vec<u8> {
    let [[w1, w0], [h1, h0]] = [width, height].map(u16::to_be_bytes);
    let mut bytes = vec![0xff, 0xd8];
    bytes.extend(exif(orientation));
    bytes.extend([0xff, 0xdb, 0, 67, 0]);
    bytes.extend([1; 64]);
    bytes.extend([0xff, 0xc0, 0, 11, 8, h1, h0, w1, w0, 1, 1, 0x11, 0]);
    for class in [0x00, 0x10] {
        bytes.extend([0xff, 0xc4, 0, 20, class, 1]);
        bytes.extend([0; 16]);
    }
    bytes.extend([0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0]);
    let blocks = usize::from(width).div_ceil(8) * usize::from(height).div_ceil(8);
    bytes.extend(vec![0; (2 * blocks).div_ceil(8)]);
    bytes.extend([0xff, 0xd9]);
    bytes
}

/// The segment of a JPEG that says how the camera was held.
pub fn exif(orientation: u8) -> Vec<u8> {
    let mut bytes = vec![0xff, 0xe1, 0, 34];
    bytes.extend(b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0");
    bytes.extend([orientation, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// A picture in the simplest of formats, of 24 bits a pixel.
pub fn bmp(width: u32, height: u32, pixels: impl Fn(u32, u32) -> [u8; 3]) -> Vec<u8> {
    let mut bytes = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    bytes.extend(width.to_le_bytes());
    bytes.extend(height.to_le_bytes());
    bytes.extend([1, 0, 24, 0]);
    bytes.extend([0; 24]);
    for y in (0..height).rev() {
        let start = bytes.len();
        for x in 0..width {
            let [red, green, blue] = pixels(x, y);
            bytes.extend([blue, green, red]);
        }
        bytes.resize(start + (3 * width as usize).next_multiple_of(4), 0);
    }
    bytes
}

/// A PNG of one byte a pixel: gray, or numbers of a palette.
pub fn png(width: u32, height: u32, is_palette: bool, pixels: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_color(png::ColorType::Grayscale);
    if is_palette {
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_palette((0..=255).flat_map(|i| [i, 255 - i, 7]).collect::<Vec<u8>>());
    }
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    bytes
}
