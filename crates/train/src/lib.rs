//! Turns a model, data and a memory limit into a trained model: [`Trainer`], with checkpoints, callbacks and logs.
//!
//! Read in this order: [`Trainer`] (what is asked), `session.rs` (one run of `fit`), [`Checkpoint`] (what outlives the
//! process), [`Callback`] (who is told what).
//!
//! What is not here: layers and optimizers (`plimsoll-nn`), files of data (`plimsoll-data`), file formats.

mod error;
mod fault;

mod average;
mod best;
mod callback;
mod early_stopping;
mod eta;
mod history;
mod live;
mod logs;
pub mod output;
mod progress;
mod pruning;
mod stop;
mod watched;

mod checkpoint;
mod gathered_state;
mod parity;
mod parts_file;
mod pieces;
mod predict;
mod program;
mod rank_log;
mod ranks;
mod rate_finder;
mod session;
mod staging;
mod terms;
mod trainer;

pub use best::{BestCheckpoint, BestEpoch};
pub use callback::{
    Callback, EpochEvent, EpochMemory, EpochTime, Evaluating, Notice, ReduceOnPlateau, RunPlan, StepEvent,
    Verdict,
};
pub use checkpoint::{Checkpoint, Checkpoints, Norms, Progress};
pub use early_stopping::EarlyStopping;
pub use error::{Error, Result};
pub use eta::{Eta, Left};
pub use fault::Fault;
pub use gathered_state::GatheredState;
pub use history::{NoticeLog, StepLog};
pub use live::LiveModel;
pub use logs::{CsvLog, TensorBoardLog};
pub use parity::{Apart, Parity, PassValues};
pub use predict::{Evaluation, Prediction};
pub use progress::{JsonLines, ProgressBar};
pub use pruning::{PrunedShare, Pruning, Sparsity};
pub use rank_log::RankLog;
pub use rate_finder::{RateCurve, RatePoint, RateSweep};
pub use session::History;
pub use stop::{Ended, StopFlag};
pub use terms::{DataTerms, Terms};
pub use trainer::{BatchSizes, Epochs, MeasuredTraining, SizedPlan, Trainer, Way};
