//! `plimsoll parity`: a model in one precision held against another: losses, activations layer by layer, gradients, and where they part.

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll::internals::graph::counted;
use plimsoll::prelude::*;
use plimsoll::train::{Apart, Parity, PassValues, StepEvent};
use serde_json::{Value, json};

use crate::config::Config;
use crate::request::Looked;
use crate::setup::Setup;
use crate::{Failure, Stop, device_args, model_setup};

/// Arguments of `plimsoll parity`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = model_setup::help())]
pub struct Args {
    #[command(flatten)]
    looked: Looked,
    /// The precision that --precision is held against, in the same words. Everything is kept to be compared, so --memory is not taken.
    #[arg(long, default_value = "f32", help_heading = "Parity")]
    against: String,
    /// How large a relative difference of a layer may be before it counts as the place where they part. [default: 0.02 for
    /// mixed-bf16, 0.004 for mixed-f16, 0.00001 for others]
    #[arg(long, help_heading = "Parity")]
    tolerance: Option<f64>,
    /// Training steps whose losses are compared; 0 for none.
    #[arg(long, default_value_t = 20, help_heading = "Parity")]
    steps: u64,
    /// One JSON line instead of text.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// So many gradients are shown as lines, the furthest apart first.
const MOST_GRADIENTS: usize = 8;

/// Compares and prints.
pub fn run(args: &Args) -> Result<(), Stop> {
    let mut config = args.looked.settings()?;
    let Some(named) = config.precision.clone() else {
        let why = "parity holds one precision against another; name the first with --precision mixed-bf16";
        return Err(Stop::Usage(why.into()));
    };
    if named == args.against {
        return Err(Stop::Usage(format!("--precision and --against both name {named}; name two precisions")));
    }
    if args.looked.flags().memory.is_some() || config.samples().is_none() {
        let why = "parity keeps every activation to compare it; leave --memory and --batch auto out, and name a small --batch";
        return Err(Stop::Usage(why.into()));
    }
    // A run that was under a limit can be looked at too.
    if let Some(limit) = config.memory.take() {
        eprintln!(
            "plimsoll: the memory limit {limit} of {} is not taken: everything is kept to be compared",
            args.looked.model
        );
    }
    let other = Config { precision: Some(args.against.clone()), ..config.clone() };
    other.precision().map_err(|Failure(why)| Stop::Usage(format!("--against: {why}")))?;
    let tolerance = match args.tolerance {
        Some(tolerance) if !(tolerance.is_finite() && tolerance >= 0.0) => {
            return Err(Stop::Usage(format!(
                "--tolerance {tolerance} means nothing; it is a number of at least 0"
            )));
        }
        Some(tolerance) => tolerance,
        None => usual_tolerance(config.precision()?.0),
    };
    let device = device_args::device(&config)?;
    let one = device.scope(|| Seen::at(&config, &device, args.steps))?;
    let two = device.scope(|| Seen::at(&other, &device, args.steps))?;
    let parity = one.pass.against(&two.pass, tolerance);
    match args.json {
        true => say!("{}", json_of(args, &named, tolerance, &parity, &one, &two)),
        false => text(args, &named, tolerance, &parity, &one, &two).iter().for_each(|line| say!("{line}")),
    }
    Ok(())
}

/// What rounding explains, a few layers deep.
fn usual_tolerance(precision: Option<Precision>) -> f64 {
    match precision {
        Some(Precision::Bf16 | Precision::MixedBf16) => 0.02,
        Some(Precision::MixedF16) => 0.004,
        _ => 1e-5,
    }
}

/// A model in one precision, looked at.
struct Seen {
    pass: PassValues,
    losses: Vec<f64>,
}

impl Seen {
    fn at(config: &Config, device: &Device, steps: u64) -> Result<Seen, Failure> {
        let mut setup = Setup::new(config, device)?;
        if setup.model_setup.keras.is_some() {
            // Weights of a file are the file's.
            setup.compile()?;
        }
        let pass = setup.trainer.pass(&setup.train)?;
        let losses = Losses::default();
        if steps > 0 {
            let Setup { trainer, unbatched, batch, .. } = setup;
            let few = unbatched.train.take(steps.saturating_mul(batch as u64)).batch(batch);
            trainer.callback(losses.clone()).fit(&few, Epochs(1))?;
        }
        Ok(Seen { pass, losses: losses.take() })
    }
}

/// The losses of steps.
#[derive(Clone, Default)]
struct Losses(Arc<Mutex<Vec<f64>>>);

impl Losses {
    fn take(&self) -> Vec<f64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Callback for Losses {
    fn on_step(&mut self, step: &StepEvent) -> plimsoll::train::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(step.loss);
        Ok(())
    }
}

fn json_of(args: &Args, named: &str, tolerance: f64, parity: &Parity, one: &Seen, two: &Seen) -> Value {
    let row = |apart: &Apart| {
        let Apart { name, relative, largest, size } = apart;
        json!({ "name": name, "relative": relative, "largest": largest, "size": size })
    };
    json!({
        "model": args.looked.model, "precision": named, "against": args.against, "tolerance": tolerance,
        "loss": parity.losses.0, "loss_against": parity.losses.1,
        "layers": parity.layers.iter().map(row).collect::<Vec<_>>(),
        "gradients": parity.gradients.iter().map(row).collect::<Vec<_>>(),
        "parts_at": parity.parts_at, "worst_gradient": parity.worst_gradient,
        "step_losses": one.losses, "step_losses_against": two.losses,
    })
}

fn text(args: &Args, named: &str, tolerance: f64, parity: &Parity, one: &Seen, two: &Seen) -> Vec<String> {
    let (loss, wide) = parity.losses;
    let against = &args.against;
    let mut lines = vec![format!(
        "{} in {named} against {against}: loss {loss:.6} and {wide:.6} on the first batch",
        args.looked.model
    )];
    let row = |apart: &Apart| {
        format!(
            "  {:<40} {:>9.2e}  {:>9.2e}  {:>9.2e}",
            apart.name, apart.relative, apart.largest, apart.size
        )
    };
    let heading = |what: &str| format!("  {what:<40} {:>9}  {:>9}  {:>9}", "relative", "largest", "size");
    lines.push(heading("layer, in order"));
    lines.extend(parity.layers.iter().map(row));
    let mut worst: Vec<&Apart> = parity.gradients.iter().collect();
    worst.sort_by(|a, b| b.relative.total_cmp(&a.relative));
    lines.push(heading("gradient, the furthest apart first"));
    lines.extend(worst.iter().take(MOST_GRADIENTS).map(|apart| row(apart)));
    let pairs: Vec<(f64, f64)> = one.losses.iter().copied().zip(two.losses.iter().copied()).collect();
    if let (Some(first), Some(last)) = (pairs.first(), pairs.last()) {
        let far = pairs.iter().map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        lines.push(format!(
            "over {} of training the loss goes from {:.4} to {:.4}, and in {against} from {:.4} to {:.4}; at most {far:.2e} apart",
            counted(pairs.len(), "step"), first.0, last.0, first.1, last.1
        ));
    }
    lines.push(match &parity.parts_at {
        Some(layer) => format!(
            "they part at {layer}: the first layer with a relative difference of more than {tolerance}"
        ),
        None => format!("they do not part: no layer has a relative difference of more than {tolerance}"),
    });
    lines
}
