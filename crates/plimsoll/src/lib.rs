//! Plimsoll: a deep-learning training engine to which you name the memory, and which trains inside it.
//!
//! This crate is what a user imports; the stages behind it are crates of their own, and `ARCHITECTURE.md` maps them.
//!
//! ```
//! use plimsoll::prelude::*;
//!
//! // A line through noisy points, by hand: eager ops and a tape.
//! let x = Tensor::from_slice(&[0.0f32, 1.0, 2.0, 3.0], [4])?;
//! let y = Tensor::from_slice(&[1.0f32, 3.1, 4.9, 7.0], [4])?;
//! let mut w = Tensor::from_slice(&[0.0f32, 0.0], [2])?;
//! for _ in 0..500 {
//!     let tape = Tape::new();
//!     tape.watch(&w)?;
//!     let parts = w.split(0, &[1, 1])?;
//!     let loss = x.mul(&parts[0])?.add(&parts[1])?.mse(&y)?;
//!     let slope = tape.gradient(&loss, &[&w])?.remove(0);
//!     w = w.sub(&slope.mul_scalar(0.05)?)?;
//! }
//! let w = w.to_vec::<f32>()?;
//! assert!((w[0] - 1.98).abs() < 0.01 && (w[1] - 1.03).abs() < 0.01);
//! # Ok::<(), plimsoll::Error>(())
//! ```

pub use plimsoll_data as data;
pub use plimsoll_device as device;
pub use plimsoll_formats as formats;
pub use plimsoll_graph as graph;
pub use plimsoll_keras as keras;
pub use plimsoll_nn as nn;
pub use plimsoll_plan as plan;
pub use plimsoll_run as run;
pub use plimsoll_train as train;

pub use plimsoll_train::{Error, Result};

/// What most programs need.
pub mod prelude {
    pub use plimsoll_data::{AUTO, Column, Dataset, FieldSpec, OnError, Split};
    pub use plimsoll_device::Bytes;
    pub use plimsoll_graph::{
        AttentionOps, ConvGeometry, ConvOps, DType, GatherOps, LossOps, NormOps, Padding, PoolOps, RandomOps,
        RecurrentOps, ResizeOps, Shape, SoftmaxOps, TensorOps, Type,
    };
    pub use plimsoll_nn::{
        Activation, Adafactor, Adagrad, Adam, Conv1d, Conv2d, Decay, Init, Lion, Loss, Metric, Model,
        MultiHead, Net, Optimizer, Outputs, Plateau, Precision, Recipe, Recurrent, RmsProp, Schedule,
        Sequential, Sgd, Start, Tally, Training, binary_cross_entropy, dice, huber, joint_loss, mae, model,
        mse, smooth_cross_entropy, softmax_cross_entropy, zoo,
    };
    pub use plimsoll_run::{
        Device, Exactness, Frontier, FrontierPoint, Function, MemoryInfo, MemoryRequest, Peak, PlanFigures,
        Sketch, Step, StepPlan, StepPlanner, StepResult, Tape, Tensor, function,
    };
    pub use plimsoll_train::{
        Callback, Checkpoints, CsvLog, EarlyStopping, Epochs, ProgressBar, ReduceOnPlateau, TensorBoardLog,
        Trainer,
    };
}
