//! Training: the [`Trainer`], checkpoints, callbacks and logs.

#[doc(inline)]
pub use plimsoll_train::{
    Apart, BatchSizes, BestCheckpoint, BestEpoch, Callback, Checkpoint, Checkpoints, CsvLog, DataTerms,
    EarlyStopping, Ended, EpochEvent, EpochMemory, EpochTime, Epochs, Error, Eta, Evaluating, Evaluation,
    Fault, History, JsonLines, Left, LiveModel, MeasuredTraining, Norms, Notice, NoticeLog, Parity,
    PassValues, Prediction, Progress, ProgressBar, PrunedShare, Pruning, RankLog, RateCurve, RatePoint,
    RateSweep, ReduceOnPlateau, Result, RunPlan, SizedPlan, Sparsity, StepEvent, StepLog, StopFlag,
    TensorBoardLog, Terms, Trainer, Verdict, Way,
};
