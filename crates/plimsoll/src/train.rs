//! Training: the [`Trainer`], checkpoints, callbacks and logs.

#[doc(inline)]
pub use plimsoll_train::{
    Callback, Checkpoint, Checkpoints, CsvLog, EarlyStopping, Ended, EpochEvent, Epochs, Error, Eta,
    Evaluation, Fault, History, JsonLines, Left, Notice, NoticeLog, Prediction, Progress, ProgressBar,
    ReduceOnPlateau, Result, RunPlan, StepEvent, StepLog, StopFlag, TensorBoardLog, Terms, Trainer, Verdict,
};
