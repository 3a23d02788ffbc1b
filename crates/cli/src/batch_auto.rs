//! Turns `--batch auto` into a number: the batch size that the planner finds fastest within the memory limit, and what else would fit.

use plimsoll::internals::device::process;
use plimsoll::internals::graph::counted;
use plimsoll::prelude::*;
use plimsoll::train::{self, BatchSizes, SizedPlan};
use serde_json::{Value, json};

use crate::Failure;
use crate::config::{BatchSize, Config};
use crate::plot::duration;
use crate::setup::Setup;

/// No batch is larger: beyond it a step takes longer and trains no better.
pub const MOST: usize = 1 << 16;

/// Whether `auto` can be meant with these settings.
pub fn check(config: &Config) -> Result<(), Failure> {
    if config.batch != Some(BatchSize::Auto) {
        return Ok(());
    }
    if config.memory.is_none() {
        let why = "--batch auto fills a memory limit, and there is none; name one with --memory (max is all that is free)";
        return Err(Failure(why.into()));
    }
    if config.micro_batch.is_some() {
        let why =
            "--batch auto chooses micro-batches too; leave --micro-batch out, or name a number with --batch";
        return Err(Failure(why.into()));
    }
    Ok(())
}

/// What the memory limit holds, where the size is to be looked for; the planner's refusal where not even one sample fits.
pub fn look(config: &Config, device: &Device) -> Result<Option<train::Result<BatchSizes>>, Failure> {
    if config.batch != Some(BatchSize::Auto) {
        return Ok(None);
    }
    let sizes = device.scope(|| {
        let Setup { mut trainer, unbatched, .. } = Setup::new(config, device)?;
        Ok::<_, Failure>(trainer.batch_sizes(&unbatched.train, unbatched.validation.as_ref(), MOST))
    })?;
    // What looking took is not there any more when the step that was chosen is planned.
    process::release_unused_heap();
    Ok(Some(sizes))
}

/// The settings with the size that is fastest, and what was found, where it was looked for.
pub fn settled(config: &Config, device: &Device) -> Result<(Config, Option<BatchSizes>), Failure> {
    let sizes = look(config, device)?.transpose()?;
    Ok((with_fastest(config, sizes.as_ref()), sizes))
}

/// The settings with the size that was found to be the fastest.
pub fn with_fastest(config: &Config, sizes: Option<&BatchSizes>) -> Config {
    let batch = sizes.map(|sizes| BatchSize::Samples(sizes.fastest.batch)).or(config.batch);
    Config { batch, ..config.clone() }
}

/// The three batch sizes in JSON.
pub fn json(sizes: &BatchSizes) -> Value {
    let one = |plan: &SizedPlan| {
        let SizedPlan { batch, figures } = plan;
        json!({
            "batch": batch, "planned_bytes": figures.planned.get(), "floor_bytes": figures.floor.get(),
            "predicted_ms": figures.predicted_seconds * 1e3, "samples_s": plan.samples_s(),
            "micro_batches": figures.micro_batches, "recomputed_ops": figures.recomputed_ops,
            "exactness": figures.exactness, "offloaded_copies": figures.offloaded_copies,
        })
    };
    json!({
        "whole": sizes.whole.as_ref().map(one), "split": one(&sizes.split), "fastest": one(&sizes.fastest),
        "looked_at": sizes.looked_at, "most": MOST,
    })
}

/// The three batch sizes in lines.
pub fn text(sizes: &BatchSizes) -> Vec<String> {
    let row = |what: &str, plan: &SizedPlan| {
        let SizedPlan { batch, figures } = plan;
        format!(
            "  {what:<14}{batch:>7}  {:>9}  {:>9} a step  {:>10.1} samples/s  {}, {} recomputed",
            figures.planned.to_string(),
            duration(figures.predicted_seconds),
            plan.samples_s(),
            counted(figures.micro_batches, "micro-batch"),
            counted(figures.recomputed_ops, "op"),
        )
    };
    let mut lines = vec!["batch sizes that the memory limit holds".to_string()];
    lines.push(match &sizes.whole {
        Some(plan) => row("largest whole", plan),
        None => "  largest whole  none: not even one sample fits without being split".into(),
    });
    lines.push(row("largest split", &sizes.split));
    lines.push(row("fastest", &sizes.fastest));
    lines
}
