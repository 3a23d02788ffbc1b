//! Keras files: a `.keras` or `.h5` file as a model to train, and a trained model back as a Keras file.
//!
//! `docs/keras.md` says what agrees with Keras, what differs and what is refused.

#[doc(inline)]
pub use plimsoll_keras::{
    Amounts, Compiled, CompiledInfo, Error, Inspection, KerasLoss, KerasModel, KerasOptimizer, LayerInfo,
    ModelInfo, OutputLoss, Result, Rule, TracedLoss, VariableInfo, inspect, known_classes, write_model,
};
