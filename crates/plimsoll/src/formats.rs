//! Files of others, read with limits and written whole or not at all: for data sources and tools of your own.

#[doc(inline)]
pub use plimsoll_formats::{
    Element, FileError, Result, Stored, csv, durable, idx, image, npy, npz, safetensors, tensorboard,
    tfrecord,
};
