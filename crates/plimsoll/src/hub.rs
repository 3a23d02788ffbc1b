//! Language models of Hugging Face folders: read, tuned by adapters or whole, used, and written back.
//!
//! [`Folder`] is where to begin; `docs/guide` has a page on what is known.

#[doc(inline)]
pub use plimsoll_hub::{
    Adapter, Config, Decoder, Error, Family, Folder, Generator, Lora, Message, Packed, Result, Rows, Sample,
    Sampling, Targets, Template, Texts, TokenLoss, Tokenizer, Tuning, Weights, merge, save_adapter,
    save_model,
};
