//! The `plimsoll` command.

mod bench;
mod digits;
mod ops;
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
    /// Lists all ops.
    Ops(ops::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Train(args) => train::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Ops(args) => ops::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plimsoll: {error}");
            ExitCode::FAILURE
        }
    }
}
