//! Turns a Hugging Face folder into a language model to tune and to use, and what was tuned back into such folders.
//!
//! In the order in which they are read: `config` says what a folder's model is, `weights` has its tensors, `folder` is both together, `decoder` is the model
//! itself with what of it is trained (`tuning`), `encoder` the one of models that read in both directions, `loss` is what is made smaller.
//! `tokenizer` and `chat` make tokens of texts, `texts`, `rows` and `labelled` samples of a file of them. `adapter` and `save` write what was trained; `generate` uses it.

mod adapter;
mod base;
mod chat;
mod config;
mod decoder;
mod encoder;
mod error;
mod fields;
mod folder;
mod generate;
mod labelled;
mod lines;
mod loss;
mod magnitudes;
mod rope;
mod row_files;
mod rows;
mod save;
mod texts;
mod tokenizer;
mod tuning;
mod weights;

pub use adapter::{Adapter, base_of_adapter, save_adapter};
pub use chat::{Message, Rendered, Template};
pub use config::{
    Activation, Biases, Caps, Config, Dropout, EncoderConfig, EncoderFamily, EncoderInput, Family, Layer,
    SpecialTokens, Task, end_tokens,
};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use error::{Error, Result};
pub use folder::{Described, Folder, Unmatched};
pub use generate::{Generator, Sampling};
pub use labelled::{LABELLED_FIELDS, LabelledRows};
pub use loss::TokenLoss;
pub use rope::{Rope, Scaling};
pub use rows::{FIELDS, Packed, Rows};
pub use save::{merge, save_encoder, save_model};
pub use texts::{Sample, Texts};
pub use tokenizer::{Encoded, Tokenizer};
pub use tuning::{Lora, Targets, Tuning, fits};
pub use weights::Weights;
