//! Any bytes, taken for a Keras file: all of it is read, nothing panics, nothing grows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_formats::keras::{KerasFile, Layer, Limits};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { objects: 2000, inflated: 1 << 20, ..Limits::default() };
    let Ok(file) = KerasFile::from_bytes(bytes.to_vec(), "fuzz", &limits) else { return };
    for variable in file.variables() {
        assert!(variable.bytes <= 1 << 20);
        let _ = file.read_into(&variable.path, &mut vec![0; variable.bytes]);
    }
    for layer in file.root().map(Layer::all).unwrap_or_default() {
        file.variables_of(layer);
        layer.carries_code();
    }
    file.optimizer_variables();
});
