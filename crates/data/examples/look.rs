//! Says what is at a path, and how fast it is read.
//!
//! `cargo run --release -p plimsoll-data --example look -- /usr/share/datasets/fashion-mnist [64MiB [224]]`;
//! the last number is the side to which images are resized.

use std::time::Instant;

use plimsoll_data::{Dataset, Images, OnError, Open};
use plimsoll_device::{Bytes, process};

fn main() -> std::process::ExitCode {
    match look() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn look() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("a path, please")?;
    let memory: Bytes = arguments.next().as_deref().unwrap_or("64MiB").parse()?;
    let side: Option<usize> = arguments.next().map(|side| side.parse()).transpose()?;
    let open = Open { images: side.map(|side| Images::new(side, side)), ..Open::default() };
    let dataset = Dataset::open_with(&path, &open)?.memory(memory).on_error(OnError::Skip);
    for field in dataset.spec()? {
        println!("{}: {} {:?}", field.name, field.dtype, field.shape);
    }
    let dataset = dataset.shuffle(10_000, 42).batch(128);
    println!("{} at most, of {memory}", dataset.declared_bytes()?);
    let (began, cpu) = (Instant::now(), process::cpu_time().unwrap_or_default());
    let mut batches = dataset.batches()?;
    let mut samples = 0;
    for batch in batches.by_ref() {
        samples += batch?.samples();
    }
    let (time, cpu) = (began.elapsed(), process::cpu_time().unwrap_or_default() - cpu);
    println!("{samples} samples in {time:.2?}, {cpu:.2?} of processor time; {} skipped", batches.skipped());
    for stage in batches.stages() {
        println!(
            "{:>8}: {:>8} samples, busy {:.2?}, waiting {:.2?}",
            stage.name, stage.elements, stage.busy, stage.waiting
        );
    }
    println!("{} resident at most", process::peak_resident().unwrap_or(Bytes::ZERO));
    Ok(())
}
