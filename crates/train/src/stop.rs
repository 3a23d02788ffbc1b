//! How a run is asked to end from outside, and how it ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a run to end: from another thread, or from what handles a signal. Clones are the same flag.
///
/// It is looked at between steps, during validation, and while the input pipeline is waited for. The step at hand is
/// finished, a checkpoint is written where there is a place for one, and [`Trainer::fit`](crate::Trainer::fit) returns with
/// [`Ended::Stopped`]. It stays set until [`StopFlag::clear`].
///
/// ```
/// use plimsoll_train::StopFlag;
/// let flag = StopFlag::new();
/// let elsewhere = flag.clone();
/// std::thread::spawn(move || elsewhere.stop()).join().unwrap();
/// assert!(flag.is_set());
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// A flag that is not set.
    pub fn new() -> StopFlag {
        StopFlag::default()
    }

    /// Asks to stop.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Takes that back, so that a run can go on.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself, for those who set it from a signal: `signal_hook::flag::register(SIGINT, stop.flag())`.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

impl From<Arc<AtomicBool>> for StopFlag {
    fn from(flag: Arc<AtomicBool>) -> StopFlag {
        StopFlag(flag)
    }
}

/// How a run of [`Trainer::fit`](crate::Trainer::fit) ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All epochs are done.
    Complete,
    /// Somebody asked for it, through a [`StopFlag`] or a callback.
    Stopped {
        /// Where to go on from, if there was a place for checkpoints.
        checkpoint: Option<PathBuf>,
    },
    /// A callback saw no use in more epochs.
    EarlyStop {
        /// Why not.
        why: String,
    },
    /// It failed; `fit` gave the error.
    Failed {
        /// What it said.
        why: String,
    },
}

impl Ended {
    /// It in a word, as it stands in JSON: complete, stopped, early-stop or failed.
    pub fn name(&self) -> &'static str {
        match self {
            Ended::Complete => "complete",
            Ended::Stopped { .. } => "stopped",
            Ended::EarlyStop { .. } => "early-stop",
            Ended::Failed { .. } => "failed",
        }
    }

    /// The last line of a run's JSON, with the path of the model where one was written.
    pub fn to_json(&self, model: Option<&Path>) -> serde_json::Value {
        let mut line = serde_json::json!({ "event": "end", "ended": self.name() });
        match self {
            Ended::Complete => {}
            Ended::Stopped { checkpoint } => line["checkpoint"] = checkpoint.as_deref().map(shown).into(),
            Ended::EarlyStop { why } | Ended::Failed { why } => line["why"] = why.as_str().into(),
        }
        if let Some(model) = model {
            line["model"] = shown(model).into();
        }
        line
    }
}

/// A path as JSON can hold it: what is not UTF-8 in it is replaced.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}
