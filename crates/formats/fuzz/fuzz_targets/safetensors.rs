//! Any bytes, taken for a safetensors file: every tensor is read and lies inside the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_formats::safetensors::{Limits, Reader};
use std::io::Cursor;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = Reader::new(Cursor::new(bytes), Limits::default()) else { return };
    for tensor in reader.tensors().to_vec() {
        assert!(tensor.bytes <= bytes.len());
        let _ = reader.read_into(&tensor.name, &mut vec![0; tensor.bytes]);
    }
});
