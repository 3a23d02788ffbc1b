//! Models as TensorFlow Lite files.
//!
//! A model is traced as it predicts ([`plimsoll_nn::Predicting`]) and becomes a [`LiteModel`]: TensorFlow Lite's tensors and ops as plain
//! data. Norms and activations are folded into the ops before them, weights are made smaller or the whole is quantized
//! ([`Quantize`]), and the result is written as a FlatBuffer. What was written is read back by a reader that shares nothing with the
//! writer, run over the engine's tensors, and compared with the model before the file counts as written.
//!
//! What is not here: a runtime. [`run`] is made of the engine's ops, for checks, calibration and reports; `plimsoll-lite` is asked how large an
//! arena it runs a file in.

mod error;

mod ops;

mod lite_model;
mod options;

mod read;
mod table;
mod write;

mod values;

mod run;

mod quantize;
mod report;
mod shrink;

mod export;

pub use error::{Error, Result};
pub use export::{Goal, Written, model_bytes, write_model};
pub use lite_model::{ElementType, LiteModel, LiteOp, LiteTensor, Quantization};
pub use ops::OpCode;
pub use options::{Fused, Options, Padding};
pub use quantize::{Calibration, Quantize, Range};
pub use read::read;
pub use report::TensorError;
pub use run::{run, run_watched};
