//! The `plimsoll` command, as a function from its words to its exit code: of the program itself, and of the Python package.

/// Prints a line. What could not be printed is remembered and makes the command fail in the end.
macro_rules! say {
    ($($text:tt)*) => { plimsoll::internals::train::output::line(format_args!($($text)*)) };
}

mod batch_auto;
mod bench;
mod check;
mod compare;
mod config;
mod convert;
mod data;
mod decoder_setup;
mod device_args;
mod devices;
mod digits;
mod doctor;
mod encoder_setup;
mod ending;
mod explain;
mod export;
mod folder;
mod form;
mod from_file;
mod generate;
mod inspect;
mod interrupt;
mod keras_file;
mod layers;
mod levers;
mod lora_args;
mod lr;
mod merge;
mod model_setup;
mod models;
mod named_file;
mod names;
mod onnx_file;
mod ops;
mod out;
mod pack;
mod paper;
mod parity;
mod placement_log;
mod plan;
mod plan_text;
mod plan_trace;
mod plot;
mod predict;
mod predictions;
mod profile;
mod random;
mod ranks;
mod records;
mod reference;
mod report;
mod request;
mod resume;
mod runs;
mod scaled_record;
mod session;
mod setup;
pub mod shared;
mod sizes;
mod source;
mod stage_plans;
mod strategies;
mod task;
mod tflite_file;
mod time_log;
mod torch_file;
mod train;
mod trained;
mod tui;
mod tune;
mod tune_run;
mod tuned_model;
mod ways_out;
mod words;

use std::ffi::OsString;

use clap::{Parser, Subcommand};
use plimsoll::internals::device::process;

/// A deep-learning training engine to which you name the memory.
#[derive(Parser)]
#[command(
    name = "plimsoll",
    version,
    about,
    after_help = "Exit codes: 0 done, 1 failed, 2 the command line is wrong, 130 and 143 ended by Ctrl-C or SIGTERM."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Trains a model inside a memory limit; without arguments, the built-in demo.
    Train(Box<train::Args>),
    /// Tunes a language model of a Hugging Face folder inside a memory limit: adapters, or all of its weights.
    Tune(Box<tune::Args>),
    /// Writes a language model and what its adapters add to it as one Hugging Face folder.
    Merge(merge::Args),
    /// Lets a language model go on from a prompt.
    Generate(Box<generate::Args>),
    /// Evaluates a trained model on data.
    Evaluate(predict::EvaluateArgs),
    /// Writes what a trained model makes of data.
    Predict(predict::PredictArgs),
    /// Writes a trained model as a Keras file.
    Convert(convert::Args),
    /// Writes the model of a run, a file or the zoo as an ONNX or TensorFlow Lite file.
    Export(export::Args),
    /// Measures the training steps of a model.
    Bench(Box<bench::Args>),
    /// Reads data without a model: how fast it feeds training, and what the pipeline takes.
    Data(data::Args),
    /// Plans a training step within a memory limit: what it will take, before it starts.
    Plan(Box<plan::Args>),
    /// Tries learning rates from small to large and suggests one; nothing is trained.
    Lr(Box<lr::Args>),
    /// Holds a precision of a model against another: losses, activations by layer, gradients, and where they part.
    Parity(Box<parity::Args>),
    /// Lists the runs of a folder side by side: settings, metrics, peak memory, how each ended.
    Runs(runs::Args),
    /// Explains an out-of-memory report of TensorFlow, PyTorch or JAX.
    Explain(explain::Args),
    /// Shows where the memory of a run or a plan goes: one page that opens in any browser.
    Report(report::Args),
    /// Lists the layers of a model with shapes, parameters and bytes.
    Inspect(Box<inspect::Args>),
    /// Packs buffers with lifespans into the least memory.
    Pack(pack::Args),
    /// Lists the models with their sizes.
    Models(models::Args),
    /// Lists all ops.
    Ops(ops::Args),
    /// Lists the devices of this machine: memory and who holds it, link, driver, libraries found.
    Devices(devices::Args),
    /// Checks the machine, its limits and its libraries, trains a tiny model on every device, and says what is wrong.
    Doctor(doctor::Args),
    /// Prints completions for a shell.
    Completions(words::CompletionsArgs),
    /// Prints the manual page, or writes one for each command into a folder.
    Man(words::ManArgs),
    /// Prints the reference of all commands as Markdown.
    #[command(hide = true)]
    Reference,
}

/// Why a command did not do what it was asked.
pub(crate) struct Failure(pub(crate) String);

impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(format!("{error}{}", source::remedy(&error)))
    }
}

/// How a command ends that did not do what it was asked.
pub(crate) enum Stop {
    /// The words of the command mean nothing together: nothing was looked at and nothing was done.
    Usage(String),
    /// It was understood and failed.
    Failed(String),
    /// Another rank failed, and says so itself.
    Heard,
    /// Somebody ended it by a signal, and it ended in order.
    Interrupted { signal: u8, why: String },
}

impl Stop {
    pub(crate) fn usage(Failure(why): Failure) -> Stop {
        Stop::Usage(why)
    }
}

impl<E: Into<Failure>> From<E> for Stop {
    fn from(error: E) -> Stop {
        let Failure(why) = error.into();
        Stop::Failed(why)
    }
}

/// Does what these words ask for, the first of which is the command's own name, and returns the exit code.
///
/// ```
/// assert_eq!(plimsoll_cli::command(["plimsoll", "no-such-command"]), 2);
/// ```
pub fn command(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        // Help, a version, or what is wrong with the words.
        Err(words) => {
            let printed = words.print().is_ok();
            return match words.exit_code() {
                0 => u8::from(!printed),
                _ => 2,
            };
        }
    };
    interrupt::outlive_file_limits();
    process::return_large_blocks();
    let result = match cli.command {
        Command::Train(args) => train::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Merge(args) => merge::run(&args).map_err(Stop::from),
        Command::Generate(args) => generate::run(&args),
        Command::Evaluate(args) => predict::evaluate(&args),
        Command::Predict(args) => predict::predict(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Convert(args) => convert::run(&args).map_err(Stop::from),
        Command::Export(args) => export::run(&args).map_err(Stop::from),
        Command::Bench(args) => bench::run(&args),
        Command::Data(args) => data::run(&args),
        Command::Lr(args) => lr::run(&args),
        Command::Parity(args) => parity::run(&args),
        Command::Runs(args) => runs::run(&args).map_err(Stop::from),
        Command::Explain(args) => explain::run(&args).map_err(Stop::from),
        Command::Report(args) => report::run(&args).map_err(Stop::from),
        Command::Inspect(args) => inspect::run(&args),
        Command::Pack(args) => pack::run(&args).map_err(Stop::from),
        Command::Models(args) => {
            models::run(&args);
            Ok(())
        }
        Command::Ops(args) => {
            ops::run(&args);
            Ok(())
        }
        Command::Devices(args) => devices::run(&args).map_err(Stop::from),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => {
            words::completions(&args);
            Ok(())
        }
        Command::Man(args) => words::man(&args).map_err(Stop::from),
        Command::Reference => {
            reference::run();
            Ok(())
        }
    };
    let (why, code) = match (result, plimsoll::internals::train::output::lost()) {
        (Ok(()), None) => return 0,
        (Ok(()), Some(why)) => {
            (format!("what there was to say could not be written to standard output: {why}"), 1)
        }
        (Err(Stop::Heard), _) => return 1,
        (Err(Stop::Failed(why)), _) => (why, 1),
        (Err(Stop::Interrupted { signal, why }), _) => (why, 128 + signal),
        (Err(Stop::Usage(why)), _) => (format!("{why}\n(plimsoll help says what there is)"), 2),
    };
    // In one piece: standard error has no buffer, and other ranks may be writing to it.
    let line = format!("plimsoll: {why}\n");
    eprint!("{line}");
    code
}
