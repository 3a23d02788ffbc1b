//! The `plimsoll` command.

/// Prints a line. Where nobody reads any more, it is lost and the command goes on: a run must not end because a pager did.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        writeln!(std::io::stdout(), $($text)*).ok();
    }};
}

mod bench;
mod case;
mod chosen;
mod compare;
mod config;
mod convert;
mod digits;
mod explain;
mod folder;
mod inspect;
mod keras_file;
mod machine;
mod ops;
mod out;
mod outlook;
mod pack;
mod plan;
mod plot;
mod predict;
mod records;
mod report;
mod source;
mod train;
mod tui;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A deep-learning training engine to which you name the memory.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Trains a model inside a line; without arguments, the built-in demo.
    Train(Box<train::Args>),
    /// Evaluates a trained model on data.
    Evaluate(predict::EvaluateArgs),
    /// Writes what a trained model makes of data.
    Predict(predict::PredictArgs),
    /// Writes a trained model as a Keras file.
    Convert(convert::Args),
    /// Measures training steps of a reference case.
    Bench(bench::Args),
    /// Plans a training step under a byte budget: what it will take, before it starts.
    Plan(plan::Args),
    /// Explains an out-of-memory report of TensorFlow, PyTorch or JAX.
    Explain(explain::Args),
    /// Shows where the memory of a run or a plan goes: one page that opens in any browser.
    Report(report::Args),
    /// Describes a Keras file.
    Inspect(inspect::Args),
    /// Packs buffers with lifespans into the least memory.
    Pack(pack::Args),
    /// Lists all ops.
    Ops(ops::Args),
}

/// Why a command did not do what it was asked, in one sentence.
pub(crate) struct Failure(pub(crate) String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.to_string())
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Train(args) => train::run(&args),
        Command::Evaluate(args) => predict::evaluate(&args),
        Command::Predict(args) => predict::predict(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Ops(args) => {
            ops::run(&args);
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(why)) => {
            eprintln!("plimsoll: {why}");
            ExitCode::FAILURE
        }
    }
}
