//! `plimsoll completions` and `plimsoll man`: the command line, as shells and `man` want to know it.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{Cli, Failure};

/// Arguments of `plimsoll completions`.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Prints a script for the shell: `plimsoll completions bash > ~/.local/share/bash-completion/completions/plimsoll`.
pub fn completions(args: &CompletionsArgs) {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "plimsoll", &mut script);
    say!("{}", String::from_utf8_lossy(&script).trim_end());
}

/// Arguments of `plimsoll man`.
#[derive(clap::Args)]
pub struct ManArgs {
    /// Writes plimsoll.1 and a page for each command into this folder, instead of printing the first.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Prints or writes manual pages.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    match &args.out {
        Some(folder) => {
            let failed = |e: std::io::Error| Failure(format!("{}: {e}", folder.display()));
            std::fs::create_dir_all(folder).map_err(failed)?;
            clap_mangen::generate_to(Cli::command(), folder).map_err(failed)?;
            say!("the manual pages are in {}", folder.display());
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            say!("{}", String::from_utf8_lossy(&page).trim_end());
        }
    }
    Ok(())
}
