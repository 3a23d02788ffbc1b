//! Packs the buffers of a file and prints one line of JSON.
//!
//! `cargo run --release -p plimsoll-plan --example pack -- FILE.csv [--capacity N] [--seconds S]`

use plimsoll_plan::{csv, pack};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: pack FILE.csv [--capacity BYTES] [--seconds S]";
    let (mut file, mut options) = (None, pack::Options::default());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--capacity" => options.capacity = Some(arguments.next().ok_or(usage)?.parse()?),
            "--seconds" => {
                let seconds = arguments.next().ok_or(usage)?.parse()?;
                options = pack::Options { capacity: options.capacity, ..pack::Options::within(seconds) };
            }
            _ if file.is_none() => file = Some(argument),
            _ => return Err(usage.into()),
        }
    }
    let file = file.ok_or(usage)?;
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let table = csv::read(&text).map_err(|error| format!("{file}: {error}"))?;
    let packing = pack::pack(&table.buffers, &options)?;
    println!(
        "{{\"buffers\":{},\"height\":{},\"lower_bound\":{},\"gap\":{:.8},\"seconds\":{:.4},\"fits\":{}}}",
        table.buffers.len(),
        packing.height,
        packing.lower_bound,
        packing.gap(),
        packing.seconds,
        options.capacity.is_none_or(|capacity| packing.fits(capacity)),
    );
    Ok(())
}
