//! `plimsoll plan`: what a training step would take and cost within a memory limit, for a model or a traced step.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll::hub::EncoderConfig;
use plimsoll::internals::device::stopwatch::during;
use plimsoll::internals::run::{Error, Profile, on_all_cores, only_plans};
use plimsoll::prelude::*;
use plimsoll::ranks::{Machine, Peers};
use plimsoll::train::BatchSizes;

use crate::compare::{self, AtLimit};
use crate::config::{BatchSize, Config};
use crate::decoder_setup::{self, DecoderSetup};
use crate::encoder_setup::{EncoderArgs, EncoderSetup};
use crate::lora_args::LoraArgs;
use crate::paper::Paper;
use crate::plan_text::About;
use crate::plan_trace::{self, Asked};
use crate::setup::Setup;
use crate::strategies::Compared;
use crate::time_log::TimeLog;
use crate::{
    Failure, Stop, batch_auto, check, device_args, model_setup, placement_log, plan_text, ranks, records,
    request, strategies,
};

/// Arguments of `plimsoll plan`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = model_setup::help())]
pub struct Args {
    /// What would be trained, as of `plimsoll train`: a model by name, a `.keras`, `.h5`, `.onnx` or `.pt2` file, a file of settings (`run.toml`), or the folder
    /// of a run, which means its settings. All flags of `train` are taken, and mean the same. A model that is asked about without `--data` is planned at the sizes of its
    /// table (`plimsoll models`) where `train` has no data for it either.
    #[arg(
        value_name = "CONFIG.toml | MODEL | RUN",
        required_unless_present = "trace",
        conflicts_with = "trace"
    )]
    model: Option<String>,
    #[command(flatten)]
    config: Config,
    #[command(flatten)]
    lora: LoraArgs,
    #[command(flatten)]
    encoder: EncoderArgs,
    /// Instead of a model, a traced step: one JSON line a storage and an op, in executed order. Takes --memory, --ratio, --seconds and --out.
    #[arg(long, help_heading = "Plan")]
    trace: Option<PathBuf>,
    /// The memory limit of a traced step as a part of what it takes without one.
    #[arg(long, requires = "trace", conflicts_with = "memory", help_heading = "Plan")]
    ratio: Option<f64>,
    /// How long to try, for a traced step.
    #[arg(long, requires = "trace", help_heading = "Plan")]
    seconds: Option<f64>,
    /// Also writes the plan with its step, instruction by instruction, as a JSON document: what `plimsoll report` draws. Of a traced
    /// step, what to run in which order, at which offsets, and what is free after it.
    #[arg(long, help_heading = "Plan")]
    out: Option<PathBuf>,
    /// Memory limits to put side by side: `4GiB,8GiB,16GiB`. One that is refused is an answer too: the command succeeds.
    #[arg(long, value_delimiter = ',', num_args = 1.., conflicts_with_all = ["trace", "memory", "out"], help_heading = "Plan")]
    compare: Vec<Bytes>,
    /// Also say where every op runs, and why there.
    #[arg(long, conflicts_with_all = ["trace", "compare"], help_heading = "Plan")]
    log_placement: bool,
    /// Also say what the time until the answer was spent on: opening the device, compiling and timing kernels, tracing, planning. With --json it is
    /// always said (`spent_ms`).
    #[arg(long, conflicts_with_all = ["trace", "compare"], help_heading = "Plan")]
    log_time: bool,
    /// Plan the step of one of so many ranks, the first, which has as many samples as any, and put the ways to share a training side by side
    /// (`--parallel`). On this machine, exchanges go over a link as it is measured between two threads; with the record of a card (`--device h200`), over
    /// those of its record.
    #[arg(long, value_name = "N", conflicts_with = "trace", help_heading = "Plan")]
    ranks: Option<usize>,
    /// On how many machines the ranks of a record lie. [default: as few as hold them]
    #[arg(long, value_name = "M", requires = "ranks", help_heading = "Plan")]
    nodes: Option<usize>,
    /// Do not look for the plans at other limits.
    #[arg(long, help_heading = "Plan")]
    no_frontier: bool,
    /// One JSON line instead of text.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// So many limits are tried for the frontier, for so long: a plan is asked for in passing.
const FRONTIER_LIMITS: usize = 17;
const FRONTIER_TIME: Duration = Duration::from_secs(3);
/// For so long kernels are timed that nobody has timed before: who asks in passing does not wait for all of a large model's.
const TIMING_TIME: Duration = Duration::from_millis(100);

/// Plans and prints.
pub fn run(args: &Args) -> Result<(), Stop> {
    if let Some(file) = &args.trace {
        let limit = args.config.written_memory_limit()?;
        let asked = Asked { limit, ratio: args.ratio, seconds: args.seconds };
        return Ok(plan_trace::run(file, &asked, args.out.as_deref(), args.json)?);
    }
    if args.ratio.is_some() || args.seconds.is_some() {
        return Err(Stop::Usage("--ratio and --seconds are for a traced step; name one with --trace".into()));
    }
    if let Some(folder) = args.model.as_deref().filter(|name| decoder_setup::is_folder(name)) {
        return decoder(args, Path::new(folder));
    }
    if args.lora.is_asked() || args.encoder.is_asked() {
        let flag = if args.lora.is_asked() { "--lora is" } else { "--task and --labels are" };
        return Err(Stop::Usage(format!("{flag} for a model of a Hugging Face folder; name one")));
    }
    only_plans();
    let start = Instant::now();
    let config = request::without_training(args.model.as_deref(), &args.config)?;
    let (device, profile) = during("device opened", || device_args::plannable(&config))?;
    device.time_for(TIMING_TIME);
    let (device, imagined) = ranks::imagined(device, &config, args.ranks, args.nodes)?;
    let (config, sizes) = match during("batches compared", || batch_auto::look(&config, &device))? {
        // Not even one sample fits: that is what there is to say, and it is said of one sample.
        Some(Err(plimsoll::train::Error::Run(Error::Infeasible { .. }))) => {
            (Config { batch: Some(BatchSize::Samples(1)), ..config }, None)
        }
        looked => {
            let sizes = looked.transpose()?;
            (batch_auto::with_fastest(&config, sizes.as_ref()), sizes)
        }
    };
    // Nothing runs here, so there is no limit to keep to while it is planned.
    Ok(on_all_cores(|| {
        device.scope(|| {
            if let Some(imagined) = imagined.filter(|_| !args.json) {
                say!("{}", ranks::text(&imagined, config.samples().unwrap_or(1)));
            }
            let compared = match &imagined {
                Some(imagined) if args.compare.is_empty() => {
                    Some(Compared::new(&config, &device, &strategies::of_setup, imagined)?)
                }
                _ => None,
            };
            if let Some(compared) = compared.as_ref().filter(|_| !args.json) {
                say!("{}", compared.text());
            }
            let config = compared.as_ref().map_or(config.clone(), |compared| compared.chosen(&config));
            let setup = during("model and data opened", || Setup::new(&config, &device))?;
            model(args, start, &config, setup, profile.as_deref(), sizes.as_ref(), compared.as_ref())
        })
    })?)
}

/// A model of a folder, as its config describes it.
enum FolderSetup {
    Decoder(DecoderSetup),
    Encoder(EncoderSetup),
}

/// Plans a step of tuning a folder's model, from its config alone.
fn decoder(args: &Args, folder: &Path) -> Result<(), Stop> {
    only_plans();
    let start = Instant::now();
    let mut config = args.config.clone();
    config.model = None;
    if args.out.is_some() || args.log_placement {
        return Err(Stop::Usage("--out and --log-placement are not for a folder; leave them out".into()));
    }
    check::check(&config).map_err(Stop::usage)?;
    let (device, _) = during("device opened", || device_args::plannable(&config))?;
    device.time_for(TIMING_TIME);
    let (device, imagined) = ranks::imagined(device, &config, args.ranks, args.nodes)?;
    if imagined.is_some() && !args.compare.is_empty() {
        return Err(Stop::Usage("--compare is of one rank's limits for a folder; leave --ranks out".into()));
    }
    let setup = match EncoderConfig::is_in(folder) {
        true => {
            let encoder = args.encoder.described(folder, &args.lora).map_err(Stop::usage)?;
            FolderSetup::Encoder(EncoderSetup::new(&config, encoder).map_err(Stop::usage)?)
        }
        false => {
            let described = decoder_setup::described(folder, args.lora.tuning().map_err(Stop::usage)?)?;
            let described = args.lora.based(described).map_err(Stop::usage)?;
            FolderSetup::Decoder(DecoderSetup::new(&config, described).map_err(Stop::usage)?)
        }
    };
    let name = decoder_setup::short_name(folder);
    let (about, batch, sequence) = match &setup {
        FolderSetup::Encoder(setup) if setup.is_image() => {
            (format!("{} tuned, pictures", setup.tuned), setup.batch, setup.sequence)
        }
        FolderSetup::Encoder(EncoderSetup { tuned, sequence, batch, .. })
        | FolderSetup::Decoder(DecoderSetup { tuned, sequence, batch, .. }) => {
            (format!("{tuned} tuned, rows of {sequence} tokens"), *batch, *sequence)
        }
    };
    let about = About { model: &name, data: &about, batch };
    Ok(on_all_cores(|| {
        device.scope(|| {
            let made = |config: &Config, device: &Device| {
                Ok(match &setup {
                    FolderSetup::Decoder(setup) => {
                        (setup.trainer(config, device, 1)?, setup.to_plan_with(config))
                    }
                    FolderSetup::Encoder(setup) => {
                        (setup.trainer(config, device, 1)?, setup.to_plan_with(config))
                    }
                })
            };
            let compared = imagined
                .as_ref()
                .map(|imagined| Compared::new(&config, &device, &made, imagined))
                .transpose()?;
            if let (Some(imagined), Some(compared), false) = (&imagined, &compared, args.json) {
                say!("{}\n{}", ranks::text(imagined, batch), compared.text());
            }
            let config = compared.as_ref().map_or(config.clone(), |compared| compared.chosen(&config));
            // What a card computes, with exchanges beside that.
            let own = imagined.as_ref().map_or(batch, |imagined| imagined.rank().shard(batch).len());
            let tokens = (own * sequence) as f64;
            let (mut trainer, data) = made(&config, &device)?;
            if !args.compare.is_empty() {
                return side_by_side(args, &about, &mut trainer, &data);
            }
            let limit = trainer.request().limit;
            // How much longer a step takes by what a plan computes again.
            let mut longer = None;
            let (mut line, mut text) = match during("planned", || trainer.plan(&data)) {
                Ok(plan) => {
                    let info = plan.figures.clone();
                    longer = Some(info.predicted_seconds / info.unlimited_seconds.max(f64::MIN_POSITIVE));
                    drop(plan);
                    let frontier = match args.no_frontier || limit.is_some() {
                        true => None,
                        false => Some(trainer.frontier(&data, FRONTIER_LIMITS, Some(FRONTIER_TIME))?),
                    };
                    (
                        about.plan_json(limit, &info, frontier.as_ref()),
                        about.plan_text(&info, frontier.as_ref()),
                    )
                }
                Err(plimsoll::train::Error::Run(
                    error @ (Error::Infeasible { .. } | Error::HostInfeasible(_)),
                )) => (about.refusal_json(&error), error.to_string()),
                Err(error) => return Err(error.into()),
            };
            if let (Some(compared), Some(ranks)) = (&compared, args.ranks) {
                (line["rank"], line["ranks"]) = (0.into(), ranks.into());
                (line["parallel"], line["strategies"]) = (compared.name().into(), compared.json());
                if let Some(seconds) = compared.beside_seconds() {
                    line["tokens_s"] = (tokens / seconds).into();
                    text += &format!(
                        "\n{:.0} tokens/s a rank with {}, where exchanges go on beside computation",
                        tokens / seconds,
                        compared.name()
                    );
                }
            }
            let machine = config.device.as_deref().and_then(Machine::known);
            if let (Some(machine), Some(imagined), FolderSetup::Decoder(setup)) =
                (&machine, &imagined, &setup)
            {
                let paper = Paper::new(&setup.decoder.config, machine, imagined, own, sequence);
                line["paper"] = paper.json(longer);
                text += &format!("\n{}", paper.text(longer));
            }
            let spent = TimeLog::since(start);
            line["spent_ms"] = spent.json();
            if args.log_time {
                text = format!("{}\n{}", text.trim_end(), spent.text());
            }
            match args.json {
                true => say!("{line}"),
                false => say!("{}", text.trim_end()),
            }
            Ok(())
        })
    })?)
}

/// Plans a model's training step and says what it would take; nothing is run, and no memory is taken for it.
fn model(
    args: &Args,
    begun: Instant,
    config: &Config,
    mut setup: Setup,
    profile: Option<&Profile>,
    sizes: Option<&BatchSizes>,
    compared: Option<&Compared>,
) -> Result<(), Failure> {
    let start = Instant::now();
    let asked = match args.compare.is_empty() {
        true => during("planned", || setup.trainer.plan_or_ways(&setup.train, setup.ways())),
        false => {
            let about = About { model: &setup.model_setup.name, data: &setup.form.data, batch: setup.batch };
            return side_by_side(args, &about, &mut setup.trainer, &setup.train);
        }
    };
    let Setup { model_setup, trainer, train, form, batch, .. } = setup;
    let name = &model_setup.name;
    let about = About { model: name, data: &form.data, batch };
    // A refusal needs no kernel timed and says what would do: it is not kept waiting for a plot of everything else.
    let limit = trainer.request().limit;
    let (mut line, mut text) = match asked {
        Ok(plan) => {
            let step = args.out.as_ref().map(|_| plan.timeline()).transpose()?;
            let (info, remarks) = (plan.figures.clone(), plan.remarks());
            let placed = args.log_placement.then(|| plan.placements()).transpose()?;
            // Constants that its trace made are counted by whoever plans next.
            drop(plan);
            // Nobody waits for a plot of everything else to read what was asked for.
            let is_said = !args.json && !args.no_frontier && sizes.is_none();
            if is_said {
                say!("{}", about.plan_text(&info, None).trim_end());
            }
            let frontier = match args.no_frontier {
                true => None,
                false => Some(during("plans at other limits", || {
                    trainer.frontier(&train, FRONTIER_LIMITS, Some(FRONTIER_TIME))
                })?),
            };
            if let (Some(out), Some(step)) = (&args.out, &step) {
                let mut plan = records::of_plan(name, batch, &info, step);
                if let Some(compared) = compared {
                    plan.parallel = Some(compared.name().into());
                    plan.strategies = serde_json::from_value(compared.json())?;
                }
                records::write_compared(out, &plan, step, frontier.as_ref(), None)?;
            }
            let mut line = about.plan_json(limit, &info, frontier.as_ref());
            let mut text = match &frontier {
                Some(frontier) if is_said => plan_text::frontier(frontier, Some(&info)),
                frontier => about.plan_text(&info, frontier.as_ref()),
            };
            remarks.iter().for_each(|remark| text += &format!("note: {remark}\n"));
            if !remarks.is_empty() {
                line["remark"] = remarks.join("; ").into();
            }
            if let Some(placed) = &placed {
                text += &placement_log::text(placed);
                line["placement"] = placement_log::json(placed);
            }
            (line, text)
        }
        // To somebody who asked for a file a refusal is an error, since there is none.
        Err(error) if args.out.is_some() => return Err(error.into()),
        Err(plimsoll::train::Error::Run(error @ (Error::Infeasible { .. } | Error::HostInfeasible(_)))) => {
            let mut line = about.refusal_json(&error);
            line["plan_seconds"] = start.elapsed().as_secs_f64().into();
            (line, error.to_string() + "\n")
        }
        Err(error) => return Err(error.into()),
    };
    if let Some((all, estimated)) = profile.map(Profile::estimated) {
        (line["kernels"], line["estimated_kernels"]) = (all.into(), estimated.into());
        if estimated > 0 {
            text += &format!(
                "{estimated} of {all} kernels are not in the record of {}: their times and scratch are scaled from like ones\n",
                config.device.as_deref().unwrap_or_default()
            );
        }
    }
    if let Some((all, recorded)) = Device::current()?.kernels_by_record() {
        (line["kernels"], line["recorded_kernels"]) = (all.into(), recorded.into());
        text += &format!(
            "{recorded} of {all} kernels have not been timed on this card: their times are those of a record of such a card, or scaled from like ones there; plimsoll bench times them\n"
        );
    }
    if let Some(sizes) = sizes {
        line["batch_auto"] = batch_auto::json(sizes);
        text = batch_auto::text(sizes).join("\n") + "\n\nthe plan of the fastest:\n" + &text;
    }
    if let Some(ranks) = args.ranks {
        (line["rank"], line["ranks"]) = (0.into(), ranks.into());
    }
    if let Some(compared) = compared {
        (line["parallel"], line["strategies"]) = (compared.name().into(), compared.json());
    }
    let spent = TimeLog::since(begun);
    line["spent_ms"] = spent.json();
    if args.log_time {
        text += &spent.text();
    }
    match args.json {
        true => say!("{line}"),
        // All may have been said by now.
        false if text.trim_end().is_empty() => {}
        false => say!("{}", text.trim_end()),
    }
    Ok(())
}

/// Memory limits side by side.
fn side_by_side(
    args: &Args,
    about: &About<'_>,
    trainer: &mut Trainer,
    train: &Dataset,
) -> Result<(), Failure> {
    let mut limits = Vec::new();
    for &limit in &args.compare {
        trainer.set_memory_limit(Some(limit))?;
        limits.push(match trainer.plan(train) {
            Ok(plan) => AtLimit::Fits(limit, Box::new(plan.figures)),
            // The planner's own refusal is a page for each limit; the least says it here.
            Err(plimsoll::train::Error::Run(Error::Infeasible { least, .. })) => {
                AtLimit::Refused(limit, least)
            }
            Err(error) => return Err(error.into()),
        });
    }
    let (name, batch) = (about.name(), about.batch);
    match args.json {
        true => {
            say!(
                "{}",
                serde_json::json!({ "model": name, "batch": batch, "compare": compare::json(&limits) })
            )
        }
        false => say!("{name} at batch {batch}\n{}", compare::table(&limits).trim_end()),
    }
    Ok(())
}
