//! Models, layers, losses, metrics, optimizers and schedules.
//!
//! A model is a [`Sequential`] list of layers or any function over a [`Net`], whose methods are the layers. [`Training`] is one
//! compiled training step without a loop around it; most programs use [`Trainer`](crate::train::Trainer).

#[doc(inline)]
pub use plimsoll_nn::{
    Activation, Adafactor, Adagrad, Adam, Adamax, Auc, Averaged, Bf16State, Clip, Conv, Conv1d, Conv2d,
    Conv3d, Count, Curve, Decay, DecayKind, Description, EightBit, Factor, Ftrl, Init, Kept, LayerCall,
    LayerKind, Lion, Loss, Measure, Metric, Model, MultiHead, NAdam, Narrowed, Net, OfRanks, Optimizer,
    Outcome, Outputs, OwnMetric, OwnState, Parallel, Param, Pass, Patterns, Pipeline, Plateau, Precisions,
    Pruned, QuantizeAware, RAdam, Recipe, Recurrent, RmsProp, Schedule, ScheduleShape, Sequential, Sgd, Slot,
    StageFigures, Stages, Start, Summation, Tally, TrainOnly, Training, UpdateAt, Updated, View, WholeSource,
    binary_cross_entropy, class_weighted_cross_entropy, clip_by_global_norm, clip_by_value, dice, huber,
    joint_loss, mae, model, mse, optimizer, padded_cross_entropy, sample_weighted, smooth_cross_entropy,
    softmax_cross_entropy, zoo,
};
