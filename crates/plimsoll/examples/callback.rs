//! A callback of your own: it follows the loss, keeps something in checkpoints, and ends the run when it is good enough.
//!
//! Run with `cargo run --release -p plimsoll --example callback`.

use std::sync::mpsc::{Sender, channel};

use plimsoll::prelude::*;
use plimsoll::train::{EarlyStopping, Ended, EpochEvent, Result, RunPlan, StepEvent, Verdict};

// ANCHOR: callback
/// Ends a run once its loss is low enough, and hands every step's loss to whoever listens.
struct GoodEnough {
    below: f64,
    losses: Sender<f64>,
}

impl Callback for GoodEnough {
    fn on_start(&mut self, plan: &RunPlan<'_>) -> Result<()> {
        println!("{} parameters, batches of {}", plan.parameters, plan.batch);
        Ok(())
    }

    /// After every step, so it must be quick: hand things to another thread rather than write files here.
    fn on_step(&mut self, step: &StepEvent) -> Result<()> {
        self.losses.send(step.loss).ok();
        Ok(())
    }

    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        if epoch.loss < self.below {
            return Ok(Verdict::Stop(format!("a loss of {:.3} is good enough", epoch.loss)));
        }
        Ok(Verdict::GoOn)
    }
}
// ANCHOR_END: callback

fn main() -> Result<()> {
    let x: Vec<f32> = (0..400).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
    let y: Vec<i64> = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
    let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?
        .shuffle(200, 1)
        .batch(20);

    // ANCHOR: use
    let (losses, heard) = channel();
    let model = Sequential::new([2]).dense(16).relu().dense(2);
    let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2))
        .callback(GoodEnough { below: 0.2, losses })
        .callback(EarlyStopping::new("loss", 20));
    let history = trainer.fit(&data, Epochs(500))?;
    // ANCHOR_END: use

    let steps = heard.try_iter().count();
    println!("{} epochs, {steps} steps; ended: {:?}", history.len(), trainer.ended());
    assert!(history.len() < 500 && steps == 10 * history.len());
    assert!(matches!(trainer.ended(), Some(Ended::EarlyStop { why }) if why.contains("good enough")));
    Ok(())
}
