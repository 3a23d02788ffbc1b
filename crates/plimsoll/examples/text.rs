//! Text: a recurrent network that learns to continue a text, character by character, and then writes some.
//!
//! Run with `cargo run --release -p plimsoll --example text`.

use plimsoll::data::Tokens;
use plimsoll::nn::Recurrent;
use plimsoll::prelude::*;

const WINDOW: usize = 24;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("plimsoll-text-{}.txt", std::process::id()));
    let text = "the ship is loaded to the line and no deeper. ".repeat(80);
    std::fs::write(&path, &text)?;
    let mut alphabet: Vec<char> = text.chars().collect();
    alphabet.sort_unstable();
    alphabet.dedup();

    // ANCHOR: text
    // Windows of 24 characters, each with the characters that follow.
    let data = Dataset::text(&path, Tokens::Characters, WINDOW)?.shuffle(1000, 1).batch(16);
    let model = Sequential::tokens(WINDOW)
        .embedding(alphabet.len(), 16)
        .lstm(Recurrent::all(48))
        .dense(alphabet.len());
    let mut trainer =
        Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2)).metrics([Metric::Perplexity]);
    let history = trainer.fit(&data, Epochs(12))?;
    // ANCHOR_END: text
    let perplexity = |i: usize| history[i].metric("perplexity").unwrap_or(f64::INFINITY);
    println!("perplexity {:.1} after one epoch, {:.2} after 12", perplexity(0), perplexity(11));
    assert!(perplexity(11) < 1.5 && perplexity(11) < perplexity(0) / 2.0);

    // ANCHOR: write
    // To write, the last window is shown to the model and its most likely next character is taken.
    let mut window: Vec<i64> =
        text.chars().take(WINDOW).map(|c| alphabet.binary_search(&c).unwrap_or(0) as i64).collect();
    let mut written = String::new();
    for _ in 0..30 {
        let next = Dataset::columns([Column::memory("x", window.clone(), [WINDOW])?])?.batch(1);
        let mut best = 0;
        trainer.predict(&next, |batch| {
            let scores = batch.outputs[0].narrow(1, WINDOW - 1, WINDOW)?;
            best = scores.argmax(-1)?.to_vec::<i64>()?[0];
            Ok(())
        })?;
        written.push(alphabet[best as usize]);
        window.rotate_left(1);
        window[WINDOW - 1] = best;
    }
    // ANCHOR_END: write
    let shown: String = text.chars().take(WINDOW).collect();
    println!("shown '{shown}', it writes '{written}'");
    std::fs::remove_file(&path).ok();
    let right = written.chars().zip(text.chars().skip(WINDOW)).filter(|(a, b)| a == b).count();
    assert!(right > 20, "{right} of 30 are right");
    Ok(())
}
