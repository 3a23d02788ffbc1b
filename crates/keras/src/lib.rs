//! Turns a Keras file into a model that can be trained, and a trained model back into the same Keras file.
//!
//! [`KerasModel`] is the model, `layers/` what its layers compute.
//!
//! What is not here: the files themselves (`plimsoll-formats`), layers of our own (`plimsoll-nn`).

mod error;

mod layer;
mod layers;
mod named;
mod settings;

mod bind;
mod block;
mod input;
mod model;

mod compile;
mod constraint;
mod ctc;
mod loss;
mod metric_own;
mod metrics;
mod model_loss;
mod optimizer;
mod optimizer_config;
mod optimizer_more;
mod other_loss;
mod schedule;
mod slots;
mod state;
mod traced_loss;
mod written_state;

mod export;
mod inspect;

pub use compile::Compiled;
pub use error::{Error, Result};
pub use export::write_model;
pub use inspect::{Amounts, CompiledInfo, Inspection, LayerInfo, ModelInfo, VariableInfo, inspect};
pub use layers::known_classes;
pub use loss::OutputLoss;
pub use model::KerasModel;
pub use model_loss::KerasLoss;
pub use optimizer::{KerasOptimizer, Rule};
pub use optimizer_more::Muon;
pub use other_loss::OtherLoss;
pub use traced_loss::TracedLoss;
