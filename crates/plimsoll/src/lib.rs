//! Plimsoll trains neural networks inside a memory limit that you name.
//!
//! You say how much memory the process may take. Before anything runs you learn whether that is enough, how long a step will
//! take and, if it is too little, what the least is. While it trains it stays inside the limit: there is no out-of-memory error
//! after some epochs.
//!
//! ```
//! use plimsoll::prelude::*;
//!
//! // Which of two numbers is the larger one? 200 pairs, each with its answer.
//! let pairs: Vec<f32> = (0..400).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
//! let answers: Vec<i64> = pairs.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
//! let data = Dataset::columns([Column::memory("x", pairs, [2])?, Column::memory("y", answers, [])?])?
//!     .shuffle(200, 1)
//!     .batch(20);
//!
//! let model = Sequential::new([2]).dense(16).relu().dense(2);
//! let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2))
//!     .device(Device::cpu()?)
//!     .memory_limit("200MiB")?; // for the whole process, as the system counts it
//!
//! let plan = trainer.plan(&data)?.figures; // a question: nothing is run
//! assert!(plan.floor <= plan.planned && plan.planned <= "200MiB".parse()?);
//!
//! let history = trainer.fit(&data, Epochs(20))?;
//! assert!(history[19].loss < history[0].loss / 2.0);
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! A loop of your own is eager ops and a [`Tape`](tensor::Tape) that gives gradients:
//!
//! ```
//! use plimsoll::prelude::*;
//!
//! // A line through four points.
//! let x = Tensor::from_slice(&[0.0f32, 1.0, 2.0, 3.0], [4])?;
//! let y = Tensor::from_slice(&[1.0f32, 3.1, 4.9, 7.0], [4])?;
//! let mut w = Tensor::from_slice(&[0.0f32, 0.0], [2])?;
//! for _ in 0..500 {
//!     let tape = Tape::new();
//!     tape.watch(&w)?;
//!     let parts = w.split(0, &[1, 1])?;
//!     let loss = mse(&x.mul(&parts[0])?.add(&parts[1])?, &y)?;
//!     let slope = tape.gradient(&loss, &[&w])?.remove(0);
//!     w = w.sub(&slope.mul_scalar(0.05)?)?;
//! }
//! let w = w.to_vec::<f32>()?;
//! assert!((w[0] - 1.98).abs() < 0.01 && (w[1] - 1.03).abs() < 0.01);
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! Start with [`prelude`]; everything else is in the module of its topic. The guide (`docs/guide` in the repository) goes from a
//! first run to layers, loops, data sources and ops of your own; the programs under `examples/` are small and run as they stand.

pub mod data;
pub mod device;
pub mod formats;
pub mod hub;
pub mod keras;
pub mod lite;
pub mod nn;
pub mod onnx;
pub mod plan;
pub mod prelude;
pub mod ranks;
pub mod step;
pub mod tensor;
pub mod tflite;
pub mod torch;
pub mod train;

#[doc(inline)]
pub use plimsoll_run::profile;
#[doc(inline)]
pub use plimsoll_train::{Error, Result};

/// The stages behind this crate, whole, for the `plimsoll` command. They change without notice.
#[doc(hidden)]
pub mod internals {
    pub use plimsoll_comm as comm;
    pub use plimsoll_data as data;
    pub use plimsoll_device as device;
    pub use plimsoll_formats as formats;
    pub use plimsoll_graph as graph;
    pub use plimsoll_hub as hub;
    pub use plimsoll_keras as keras;
    pub use plimsoll_nn as nn;
    pub use plimsoll_onnx as onnx;
    pub use plimsoll_plan as plan;
    pub use plimsoll_run as run;
    pub use plimsoll_tflite as tflite;
    pub use plimsoll_torch as torch;
    pub use plimsoll_train as train;
}
