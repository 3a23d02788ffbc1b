//! Fine-tuning from saved weights: all of them into the same model, or the body of them under a new head.
//!
//! Run with `cargo run --release -p plimsoll --example fine_tune`.

use plimsoll::formats::safetensors::Reader;
use plimsoll::prelude::*;

fn network(classes: usize) -> impl Model {
    model(move |net, x| {
        let y = net.scope("body", |net| net.dense("dense", &x[0], 32, true)?.relu())?;
        net.dense("head", &y, classes, true)
    })
}

/// Points of a square and the class that a function gives them.
fn points(count: usize, class: impl Fn(f32, f32) -> i64) -> plimsoll::Result<Dataset> {
    let x: Vec<f32> = (0..2 * count).map(|i| ((i * 7919) % 997) as f32 / 498.5 - 1.0).collect();
    let y: Vec<i64> = x.chunks(2).map(|p| class(p[0], p[1])).collect();
    Ok(Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?.batch(32))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join(format!("plimsoll-fine-tune-{}.safetensors", std::process::id()));

    // ANCHOR: save
    // Much data: is a point in the circle?
    let much = points(512, |a, b| i64::from(a * a + b * b < 0.5))?;
    let mut first = Trainer::new(network(2), softmax_cross_entropy, Adam::new(1e-2));
    first.fit(&much, Epochs(30))?;
    first.save(&file)?;
    // ANCHOR_END: save

    // ANCHOR: load
    // Little data of a slightly larger circle: begin with what was learnt, with a smaller learning rate.
    let little = points(64, |a, b| i64::from(a * a + b * b < 0.6))?;
    let mut tuned = Trainer::new(network(2), softmax_cross_entropy, Adam::new(1e-3));
    tuned.load(&file, &little)?;
    assert_eq!(tuned.evaluate(&much)?.loss, first.evaluate(&much)?.loss); // the same weights
    let tuned = tuned.fit(&little, Epochs(5))?;
    // ANCHOR_END: load
    let scratch = Trainer::new(network(2), softmax_cross_entropy, Adam::new(1e-3)).fit(&little, Epochs(5))?;
    println!("after 5 epochs: loss {:.3} fine-tuned, {:.3} from scratch", tuned[4].loss, scratch[4].loss);
    assert!(tuned[4].loss < scratch[4].loss);

    // ANCHOR: head
    // Another task, four classes: the body's weights are read from the file, the head starts anew.
    let quarters = points(64, |a, b| i64::from(a > 0.0) + 2 * i64::from(b > 0.0))?;
    let mut other = Trainer::new(network(4), softmax_cross_entropy, Adam::new(1e-2));
    other.compile(&quarters)?;
    let mut saved = Reader::open(&file)?;
    let body: Vec<_> = saved.tensors().iter().filter(|t| t.name.starts_with("body/")).cloned().collect();
    for tensor in &body {
        let mut bytes = vec![0; tensor.bytes];
        saved.read_into(&tensor.name, &mut bytes)?;
        if let Some(training) = other.training_mut() {
            training.restore(&tensor.name, &bytes)?;
        }
    }
    // ANCHOR_END: head
    let weights = |trainer: &Trainer| trainer.parameters().next().map(|(_, w)| w.to_bytes()).transpose();
    assert!(body.len() == 2 && weights(&first)? == weights(&other)?);
    let history = other.fit(&quarters, Epochs(30))?;
    println!("a new head: loss {:.3} after one epoch, {:.3} after 30", history[0].loss, history[29].loss);
    assert!(history[29].loss < history[0].loss / 2.0);
    std::fs::remove_file(&file).ok();
    Ok(())
}
