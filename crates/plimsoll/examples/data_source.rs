//! A data source of your own: records of a file format that nobody else reads, by number and from several threads.
//!
//! Run with `cargo run --release -p plimsoll --example data_source`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use plimsoll::data::source::{Scratch, Source};
use plimsoll::data::{Error, FieldSpec, Result, SampleMut};
use plimsoll::prelude::*;

// ANCHOR: source
/// A file of records: four numbers as little-endian `f32`, then a byte that is their class.
struct Records {
    path: PathBuf,
    len: u64,
    spec: [FieldSpec; 2],
}

const RECORD: u64 = 17;

impl Records {
    fn open(path: &Path) -> Result<Records> {
        let bytes = std::fs::metadata(path).map_err(|error| Error::refused(error.to_string()))?.len();
        let spec = [FieldSpec::new("x", DType::F32, [4]), FieldSpec::new("y", DType::I64, [])];
        Ok(Records { path: path.into(), len: bytes / RECORD, spec })
    }
}

impl Source for Records {
    fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn len(&self) -> u64 {
        self.len
    }

    /// Called from several threads. `scratch` is the thread's own and is kept, so that reading allocates nothing for long.
    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        scratch.bytes.resize(RECORD as usize, 0);
        let refused = |error: std::io::Error| Error::refused(format!("record {index}: {error}"));
        let mut file = File::open(&self.path).map_err(refused)?;
        file.seek(SeekFrom::Start(index * RECORD)).map_err(refused)?;
        file.read_exact(&mut scratch.bytes).map_err(refused)?;
        let numbers = out.get_mut::<f32>(0)?;
        for (number, bytes) in numbers.iter_mut().zip(scratch.bytes.chunks_exact(4)) {
            *number = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        out.set(1, &[i64::from(scratch.bytes[16])])
    }

    /// What counts towards the pipeline's bound on bytes.
    fn scratch_bytes(&self) -> u64 {
        RECORD
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}
// ANCHOR_END: source

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("plimsoll-records-{}.bin", std::process::id()));
    let mut bytes = Vec::new();
    for i in 0..200u32 {
        let x = [0, 1, 2, 3].map(|k| ((i * 37 + k * 11) % 101) as f32 / 50.0 - 1.0);
        x.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        bytes.push(u8::from(x[0] + x[1] > x[2] + x[3]));
    }
    std::fs::write(&path, &bytes)?;

    // ANCHOR: use
    let data = Dataset::source(Records::open(&path)?).shuffle(200, 42).batch(20);
    // ANCHOR_END: use
    // The batches do not depend on the number of threads.
    let labels = |threads: usize| -> Result<Vec<i64>> {
        let mut labels = Vec::new();
        for batch in data.clone().workers(threads).batches()? {
            let batch = batch?;
            labels.extend(batch.field(1).map(|y| y.get::<i64>()).transpose()?.unwrap_or_default());
        }
        Ok(labels)
    };
    assert_eq!(labels(1)?, labels(3)?);

    let model = Sequential::new([4]).dense(16).relu().dense(2);
    let history = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2)).fit(&data, Epochs(30))?;
    println!("200 records: loss {:.3} after one epoch, {:.3} after 30", history[0].loss, history[29].loss);
    assert!(history[29].loss < history[0].loss / 2.0);
    std::fs::remove_file(&path).ok();
    Ok(())
}
