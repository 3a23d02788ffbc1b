//! Input pipelines: files or your own source in, batches out, inside a bound on bytes.
//!
//! [`Dataset`] is where to begin. A source of your own implements [`source::Source`] (samples by number) or
//! [`source::StreamSource`] (from front to back).

#[doc(inline)]
pub use plimsoll_data::{
    AUTO, Amount, At, Augment, Batch, BatchMut, Batches, Change, Column, Columns, Dataset, Draw, Emit, Error,
    Field, FieldSpec, Images, Memory, Number, OnError, Open, Position, Random, Result, Sample, SampleMut,
    Scale, Shapes, Split, StageCount, Tokens, Watch,
};

/// Where samples come from: what a source of your own implements.
pub mod source {
    #[doc(inline)]
    pub use plimsoll_data::source::{Scratch, Source, Stream, StreamSource};
}
