//! Turns layers into models and models into training steps.
//!
//! A model is a function over a [`Net`], which hands it its parameters by name; layers are the net's methods.
//! [`Training`] traces it once with its loss, gradient and optimizer into one step.
//!
//! What is not here: files, devices, memory plans.

mod error;

mod init;
mod precision;

mod layers;
mod model;
mod net;
mod quantize_aware;
mod sequential;
mod train_only;

mod confusion;
mod description;
mod narrow;
mod predicting;

mod loss;
mod measure;
mod metric;
mod optim;
mod pass;
mod plateau;
mod scale;
mod schedule;
mod weighting;

mod parts;
mod synced;
mod training;

pub mod blocks;
pub mod zoo;

pub use confusion::{Auc, Curve, Summation};
pub use description::{Description, LayerCall, LayerKind};
pub use init::{Init, Start};
pub use layers::{Activation, Conv, Conv1d, Conv2d, Conv3d, MultiHead, Recurrent};
pub use loss::{
    Loss, binary_cross_entropy, dice, huber, joint_loss, mae, mse, padded_cross_entropy,
    smooth_cross_entropy, softmax_cross_entropy,
};
pub use measure::{Count, Measure, OwnMetric, View, Weighing};
pub use metric::{Metric, Tally};
pub use model::{Model, Outputs, model};
pub use narrow::Narrowed;
pub use net::{Net, Param};
pub use optim::{
    Adafactor, Adagrad, Adam, Adamax, Averaged, Bf16State, Decay, DecayKind, EightBit, Ftrl, Kept, Lion,
    NAdam, Optimizer, Pruned, RAdam, RmsProp, Sgd, Slot, UpdateAt, Updated, clip_by_global_norm,
    clip_by_value, optimizer,
};
pub use parts::{Cut, Parts, Pieces};
pub use pass::Pass;
pub use plateau::Plateau;
pub use precision::{Precision, Precisions};
pub use predicting::Predicting;
pub use quantize_aware::QuantizeAware;
pub use schedule::{Factor, Schedule, Shape as ScheduleShape};
pub use sequential::Sequential;
pub use train_only::{Patterns, TrainOnly};
pub use training::{
    Clip, OfRanks, Outcome, OwnState, Parallel, Pipeline, Recipe, StageFigures, Stages, Training, WholeSource,
};
pub use weighting::{class_weighted_cross_entropy, sample_weighted};
