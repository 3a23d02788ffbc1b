//! TensorFlow Lite files: a model as a `.tflite` file, in f32, with f16 weights or quantized to int8.

#[doc(inline)]
pub use plimsoll_tflite::{
    Calibration, Error, Goal, LiteModel, OpCode, Quantize, Range, Result, TensorError, Written, model_bytes,
    read, run, run_watched, write_model,
};
