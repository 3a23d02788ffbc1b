//! ONNX files: an `.onnx` file as a model to train, and a trained model back in the same file.
//!
//! `docs/onnx.md` lists the ops, and says what is refused.

#[doc(inline)]
pub use plimsoll_onnx::{
    Error, Inspection, Lengths, Limits, OnnxFile, OnnxModel, Result, WeightInfo, inspect, op_names,
    write_model,
};
