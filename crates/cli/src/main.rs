//! The program `plimsoll`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // What threads of a planner or a pipeline have freed is not to count as the program's.
    plimsoll::internals::device::process::share_one_heap();
    ExitCode::from(plimsoll_cli::command(std::env::args_os()))
}
