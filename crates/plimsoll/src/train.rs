//! Training: the [`Trainer`], checkpoints, callbacks and logs.

#[doc(inline)]
pub use plimsoll_train::{
    BatchSizes, Callback, Checkpoint, Checkpoints, CsvLog, EarlyStopping, Ended, EpochEvent, Epochs, Error,
    Eta, Evaluation, Fault, History, JsonLines, Left, Notice, NoticeLog, Prediction, Progress, ProgressBar,
    ReduceOnPlateau, Result, RunPlan, SizedPlan, StepEvent, StepLog, StopFlag, TensorBoardLog, Terms,
    Trainer, Verdict,
};
