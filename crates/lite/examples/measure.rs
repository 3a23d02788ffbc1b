//! Runs a `.tflite` model on given bytes and prints what it takes: `measure MODEL INPUT OUTPUT RUNS [packed]`. The input's bytes are those of all
//! inputs one after the other, and so are the output's.

use std::time::Instant;

use plimsoll_lite::{Model, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, model, input, output, runs, rest @ ..] = args.as_slice() else {
        return Err("usage: measure MODEL INPUT OUTPUT RUNS [packed]".into());
    };
    let (file, input, runs) = (std::fs::read(model)?, std::fs::read(input)?, runs.parse::<usize>()?);
    let pack_weights = rest.first().is_some_and(|word| word == "packed");
    let model = Model::load_with(&file, Options { pack_weights })?;
    let mut arena = vec![0; model.arena_bytes()];
    let mut best = f64::INFINITY;
    for _ in 0..runs.max(1) {
        let mut at = 0;
        for index in 0..model.inputs() {
            let bytes = model.input(index, &mut arena)?;
            let end = at + bytes.len();
            bytes.copy_from_slice(input.get(at..end).ok_or("the input is too short")?);
            at = end;
        }
        let start = Instant::now();
        model.run(&mut arena)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    let mut results = Vec::new();
    for index in 0..model.outputs() {
        results.extend_from_slice(model.output(index, &arena)?);
    }
    std::fs::write(output, results)?;
    println!(
        "{{\"arena\": {}, \"live\": {}, \"tables\": {}, \"packed\": {}, \"operators\": {}, \"milliseconds\": {:.4}}}",
        model.arena_bytes(),
        model.live_bytes(),
        model.table_bytes(),
        model.packed_bytes(),
        model.operators(),
        best * 1e3
    );
    Ok(())
}
