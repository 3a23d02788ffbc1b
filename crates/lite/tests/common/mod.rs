//! The fixtures: models, inputs and LiteRT's results, made by `make.py`.

use std::path::{Path, PathBuf};

/// A model with inputs and results. Not every test reads all of it.
#[allow(dead_code)]
pub struct Fixture {
    pub name: String,
    pub model: Vec<u8>,
    pub inputs: Vec<Vec<u8>>,
    pub outputs: Vec<Vec<u8>>,
}

/// All fixtures, by name.
pub fn fixtures() -> Vec<Fixture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the fixtures are there")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|end| end == "tflite"))
        .collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Fixture {
    let io = std::fs::read(path.with_extension("io")).expect("a model has inputs and results");
    let number = |at: usize| u32::from_le_bytes(io[4 * at..4 * at + 4].try_into().unwrap()) as usize;
    let (inputs, outputs) = (number(0), number(1));
    let mut at = 4 * (2 + inputs + outputs);
    let mut parts = Vec::new();
    for part in 0..inputs + outputs {
        parts.push(io[at..at + number(2 + part)].to_vec());
        at += number(2 + part);
    }
    assert_eq!(at, io.len(), "{}", path.display());
    let outputs = parts.split_off(inputs);
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    Fixture { name, model: std::fs::read(path).expect("a model can be read"), inputs: parts, outputs }
}
