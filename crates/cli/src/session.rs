//! What is asked of one call of `plimsoll train` and is no part of the run: where it goes, what it says, whether it resumes.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll::train::Fault;
use serde::Deserialize;

use crate::{Failure, profile};

/// What is asked of one call.
#[derive(clap::Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Session {
    /// The folder of the run. [default: the next free one under `runs/`]
    #[arg(long, help_heading = "Run")]
    pub out: Option<PathBuf>,
    /// Go on with the run in `--out` from its newest checkpoint, with the same bits as if it had never stopped.
    #[arg(long, help_heading = "Run")]
    pub resume: bool,
    /// Rehearse a fault: `alloc:N` lets the N-th allocation fail, `nan:N` spoils the N-th batch, `device:N` loses the device at it.
    #[arg(long, help_heading = "Run")]
    fault: Option<String>,
    /// Measure so many steps, after a few to warm up: the time of every kernel and copy, waiting, bytes to and from the card. A table in
    /// the end, `profile.json` and `profile.trace.json` (ui.perfetto.dev opens it) in the run's folder, a section of the report.
    #[arg(long, value_name = "STEPS", help_heading = "Run")]
    pub profile: Option<usize>,
    /// Start so many ranks on this machine that train together, this process being the first: each with its own memory limit and its share of
    /// every batch. Or let mpirun, torchrun or srun start them, and leave this out. [default: 1]
    #[arg(long, value_name = "N", help_heading = "Ranks")]
    pub ranks: Option<usize>,
    /// Seconds after which a rank that does not answer ends the others, with its number. [default: 300]
    #[arg(long, value_name = "SECONDS", help_heading = "Ranks")]
    rank_timeout: Option<f64>,
    /// A live view of the run: memory limit, memory by kind, loss, pipeline. On a terminal that cannot show it, the progress bar.
    #[arg(long, help_heading = "Output")]
    pub tui: bool,
    /// JSON lines instead of text: a first event with the run's folder, a last one with the model's path.
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Say nothing but errors.
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

impl Session {
    /// The keys under which a file of settings may say the same.
    pub const KEYS: [&str; 9] =
        ["out", "resume", "fault", "profile", "ranks", "rank-timeout", "tui", "json", "quiet"];

    /// What is said here over what a file says.
    pub fn over(self, file: Session) -> Session {
        Session {
            out: self.out.or(file.out),
            resume: self.resume || file.resume,
            fault: self.fault.or(file.fault),
            profile: self.profile.or(file.profile),
            ranks: self.ranks.or(file.ranks),
            rank_timeout: self.rank_timeout.or(file.rank_timeout),
            tui: self.tui || file.tui,
            json: self.json || file.json,
            quiet: self.quiet || file.quiet,
        }
    }

    /// Whether it goes together.
    pub fn check(&self) -> Result<(), Failure> {
        for (a, b, both) in [
            ("--tui", "--json", self.tui && self.json),
            ("--tui", "--quiet", self.tui && self.quiet),
            ("--json", "--quiet", self.json && self.quiet),
        ] {
            if both {
                return Err(Failure(format!("{a} and {b} exclude each other; leave one of them out")));
            }
        }
        profile::check(self.profile)?;
        if self.ranks == Some(0) {
            return Err(Failure("--ranks 0 means nothing; 1 is the least".into()));
        }
        self.rank_timeout()?;
        if self.resume && self.out.is_none() {
            return Err(Failure("--resume goes on with the run in a folder; name it with --out".into()));
        }
        Ok(())
    }

    /// How long a rank may leave others waiting, where that is said.
    pub fn rank_timeout(&self) -> Result<Option<Duration>, Failure> {
        let Some(seconds) = self.rank_timeout else { return Ok(None) };
        match Duration::try_from_secs_f64(seconds) {
            Ok(timeout) if timeout >= Duration::from_millis(100) => Ok(Some(timeout)),
            _ => Err(Failure(format!("--rank-timeout {seconds} means nothing; it is at least 0.1 seconds"))),
        }
    }

    /// The fault to rehearse.
    pub fn fault(&self) -> Result<Option<Fault>, Failure> {
        let parse = |text: &str| text.parse::<Fault>().map_err(|e| Failure(format!("--fault {text}: {e}")));
        self.fault.as_deref().map(parse).transpose()
    }

    /// Whether people read what is said.
    pub fn is_text(&self) -> bool {
        !self.json && !self.quiet
    }
}
