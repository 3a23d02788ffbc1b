//! Language models of Hugging Face folders: read, tuned by adapters or whole, used, and written back.
//!
//! [`Folder`] is where to begin; `docs/guide` has a page on what is known.

#[doc(inline)]
pub use plimsoll_hub::{
    Adapter, Config, Decoder, Encoder, EncoderConfig, EncoderFamily, EncoderInput, Error, Family, Folder,
    Generator, LABELLED_FIELDS, LabelledRows, Lora, Message, Packed, Result, Rows, Sample, Sampling, Targets,
    Task, Template, Texts, TokenLoss, Tokenizer, Tuning, Unmatched, Weights, base_of_adapter, merge,
    save_adapter, save_encoder, save_model,
};
