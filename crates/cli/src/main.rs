//! The `plimsoll` command.

mod bench;
mod case;
mod digits;
mod machine;
mod ops;
mod pack;
mod plan;
mod train;

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
    /// Trains the built-in demo: handwritten digits, embedded in the program.
    Train(train::Args),
    /// Measures training steps of a reference case.
    Bench(bench::Args),
    /// Plans a training step under a byte budget: what it will take, before it starts.
    Plan(plan::Args),
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
        Command::Train(args) => train::run(&args).map_err(Failure::from),
        Command::Bench(args) => bench::run(&args).map_err(Failure::from),
        Command::Plan(args) => plan::run(&args),
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
