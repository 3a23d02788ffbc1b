//! Turns the JSON header of a safetensors file into a checked list of tensors.

use super::Error;
use crate::Element;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One tensor of a file: what it is and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub element: Element,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The offset of its first byte, from the end of the header.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: usize,
}

/// The header as written, before anything in it is believed.
pub(super) struct RawHeader {
    metadata: BTreeMap<String, String>,
    entries: Vec<(String, RawEntry)>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Header;
        impl<'de> Visitor<'de> for Header {
            type Value = RawHeader;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader { metadata: BTreeMap::new(), entries: Vec::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        header.metadata = map.next_value()?;
                    } else {
                        header.entries.push((name, map.next_value()?));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Header)
    }
}

impl RawHeader {
    pub(super) fn parse(json: &[u8]) -> Result<RawHeader, Error> {
        // Only spaces may pad the header: serde_json refuses anything else that follows the object.
        serde_json::from_slice(json).map_err(|e| Error::Header(e.to_string()))
    }

    /// Checks every entry against the `data` bytes that follow the header, and puts the tensors in file order.
    pub(super) fn check(self, data: u64) -> Result<(Vec<Tensor>, BTreeMap<String, String>), Error> {
        let mut tensors = Vec::new();
        let mut names = BTreeSet::new();
        for (name, raw) in self.entries {
            let tensor = raw.check(&name)?;
            if !names.insert(name) {
                return Err(Error::Header(format!("it names tensor {:?} twice", tensor.name)));
            }
            tensors.push(tensor);
        }
        // The format allows neither gaps nor overlaps, so that no byte of a file is unaccounted for.
        tensors.sort_by_key(|tensor| (tensor.offset, tensor.bytes));
        let mut end = 0u64;
        for tensor in &tensors {
            if tensor.offset != end {
                return Err(Error::Tensor {
                    name: tensor.name.clone(),
                    reason: format!(
                        "it starts at byte {} but the one before it ends at {end}",
                        tensor.offset
                    ),
                });
            }
            end = end.saturating_add(tensor.bytes as u64);
        }
        if end > data {
            return Err(Error::Truncated { expected: end, found: data });
        }
        if end < data {
            return Err(Error::Trailing(data - end));
        }
        Ok((tensors, self.metadata))
    }
}

impl RawEntry {
    fn check(self, name: &str) -> Result<Tensor, Error> {
        let wrong = |reason: String| Error::Tensor { name: name.to_string(), reason };
        let element = Element::from_safetensors_name(&self.dtype)
            .ok_or_else(|| wrong(format!("its dtype {:?} is not one we read", self.dtype)))?;
        let shape = self.shape.iter().map(|dim| usize::try_from(*dim).ok()).collect::<Option<Vec<_>>>();
        let bytes = shape.as_ref().and_then(|shape| element.bytes_of(shape));
        let (Some(shape), Some(bytes)) = (shape, bytes) else {
            return Err(wrong(format!("its shape {:?} has more bytes than can be counted", self.shape)));
        };
        let [begin, end] = self.data_offsets;
        if end.checked_sub(begin) != Some(bytes as u64) {
            return Err(wrong(format!(
                "its shape {shape:?} of {element} needs {bytes} bytes but its range is {begin}..{end}"
            )));
        }
        Ok(Tensor { name: name.to_string(), element, shape, offset: begin, bytes })
    }
}
