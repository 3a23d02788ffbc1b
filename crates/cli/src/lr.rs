//! `plimsoll lr`: which learning rate? Rates are tried from small to large, a step each; nothing is trained.

use plimsoll::train::{RateCurve, RatePoint, RateSweep};
use serde_json::json;

use crate::request::Looked;
use crate::setup::Setup;
use crate::{Failure, Stop, batch_auto, device_args, model_setup};

/// Arguments of `plimsoll lr`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = model_setup::help())]
pub struct Args {
    #[command(flatten)]
    looked: Looked,
    /// The first learning rate.
    #[arg(long, default_value_t = 1e-6, help_heading = "Learning rates")]
    lowest: f64,
    /// The last learning rate.
    #[arg(long, default_value_t = 1.0, help_heading = "Learning rates")]
    highest: f64,
    /// How many rates are tried, each on a batch of its own.
    #[arg(long, default_value_t = 100, help_heading = "Learning rates")]
    steps: usize,
    /// One JSON line instead of text.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// So many rates are shown as lines.
const LINES: usize = 20;
const BAR: f64 = 40.0;

/// Tries rates and prints what the loss made of them.
pub fn run(args: &Args) -> Result<(), Stop> {
    let sweep = RateSweep { from: args.lowest, to: args.highest, steps: args.steps };
    let config = args.looked.settings()?;
    let device = device_args::device(&config)?;
    let (config, _) = batch_auto::settled(&config, &device)?;
    let (curve, about) = device.scope(|| {
        let mut setup = Setup::new(&config, &device)?;
        let about = format!("{} on {}, batch {}", setup.model_setup.name, setup.form.data, setup.batch);
        setup.trainer = setup.trainer.reading_back();
        setup.compile()?;
        Ok::<_, Failure>((setup.trainer.find_rate(&setup.train, sweep)?, about))
    })?;
    let RateCurve { points, suggestion, diverged_at } = &curve;
    if args.json {
        let point =
            |point: &RatePoint| json!({ "rate": point.rate, "loss": point.loss, "smooth": point.smooth });
        let points: Vec<_> = points.iter().map(point).collect();
        say!(
            "{}",
            json!({ "model": args.looked.model, "suggestion": suggestion, "diverged_at": diverged_at, "points": points })
        );
        return Ok(());
    }
    say!("{about}: learning rates from {} to {}", args.lowest, args.highest);
    lines(points).iter().for_each(|line| say!("{line}"));
    if let Some(rate) = diverged_at {
        say!("at {rate:.1e} the loss ran away");
    }
    match suggestion {
        Some(rate) => say!("the loss fell fastest at about {rate:.1e}: try --lr {rate:.1e}"),
        None => say!("the loss never fell; try other rates with --lowest and --highest, or look at the data"),
    }
    Ok(())
}

/// The curve as bars of the smoothed loss.
fn lines(points: &[RatePoint]) -> Vec<String> {
    let finite = points.iter().map(|point| point.smooth).filter(|loss| loss.is_finite());
    let (least, most) =
        finite.fold((f64::MAX, f64::MIN), |(low, high), loss| (low.min(loss), high.max(loss)));
    let every = points.len().div_ceil(LINES).max(1);
    let line = |point: &RatePoint| {
        let part = (point.smooth - least) / (most - least).max(f64::MIN_POSITIVE);
        let bar = if part.is_finite() {
            "█".repeat((part * BAR).round() as usize + 1)
        } else {
            "not finite".into()
        };
        format!("  {:>8.1e}  {:>10.4}  {bar}", point.rate, point.smooth)
    };
    points.iter().step_by(every).map(line).collect()
}
