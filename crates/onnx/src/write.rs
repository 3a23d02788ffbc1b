//! Turns messages into a file that is there whole or not at all.

use std::io::Write;
use std::path::Path;

use plimsoll_formats::durable;
use prost::Message;

use crate::error::{Error, Result};
use crate::messages::ModelProto;

/// What a file of protobuf may hold.
const MOST: usize = (1 << 31) - 1;

/// Writes a model.
pub(crate) fn whole(path: &Path, model: &ModelProto) -> Result<()> {
    let file = path.display().to_string();
    let bytes = model.encoded_len();
    if bytes > MOST {
        let why = format!("it would have {bytes} bytes, and a file of this format ends at {MOST}");
        return Err(Error::damaged(&file, why));
    }
    let encoded = model.encode_to_vec();
    durable::write_file(path, |out| out.write_all(&encoded)).map_err(|why| Error::Io { file, why })
}
