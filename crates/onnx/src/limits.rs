//! Turns the bytes of a file into a count of what they would become, before anything is made of them.
//!
//! A message of two bytes becomes a structure of hundreds. So the fields are counted by walking over the bytes, which takes no memory,
//! and a file that holds more than the limit is refused before it is decoded.

use crate::error::{Error, Result};

/// How much a file may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the file itself; what lies in files beside it does not count.
    pub file_bytes: u64,
    /// Fields of its graphs: nodes, names, attributes, tensors.
    pub fields: u64,
    /// How deep graphs are nested in nodes.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        // Protobuf itself ends at 2 GiB. The largest exported transformers have some hundred thousand fields.
        Limits { file_bytes: 2 << 30, fields: 2_000_000, depth: 16 }
    }
}

/// A message of the schema, as far as others are inside of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    SparseTensor,
    Function,
    Training,
    ValueInfo,
    /// Holds nothing but small fields, or messages that do.
    Other,
    /// Text, or bytes that stay where they are.
    Leaf,
}

/// What the field of a message holds.
fn inside(message: Message, field: u32) -> Message {
    use Message::*;
    match (message, field) {
        (Model, 7) => Graph,
        (Model, 20) => Training,
        (Model, 25) => Function,
        (Model, 8 | 14 | 26) => Other,
        (Training, 1 | 2) => Graph,
        (Training, _) => Other,
        (Function, 7) => Node,
        (Function, 11) => Attribute,
        (Function, 9 | 12 | 14) => ValueInfo,
        (Graph, 1) => Node,
        (Graph, 5) => Tensor,
        (Graph, 15) => SparseTensor,
        (Graph, 11..=13) => ValueInfo,
        (Graph, 14 | 16) => Other,
        (Node, 5) => Attribute,
        (Node, 9 | 10) => Other,
        (Attribute, 5 | 10) => Tensor,
        (Attribute, 6 | 11) => Graph,
        (Attribute, 22 | 23) => SparseTensor,
        (Attribute, 14 | 15) => Other,
        (SparseTensor, 1 | 2) => Tensor,
        (Tensor, 13 | 16) => Other,
        (ValueInfo, 2 | 4) => Other,
        _ => Leaf,
    }
}

/// Counts the fields of a model's bytes, within limits.
pub(crate) fn check(bytes: &[u8], file: &str, limits: &Limits) -> Result<()> {
    let mut count = 0;
    walk(bytes, Message::Model, 0, file, limits, &mut count)
}

fn walk(
    mut bytes: &[u8],
    message: Message,
    depth: usize,
    file: &str,
    limits: &Limits,
    count: &mut u64,
) -> Result<()> {
    let broken =
        || Error::damaged(file, "it is not an ONNX file, or it is damaged: a field ends beyond its message");
    while !bytes.is_empty() {
        *count += 1;
        if *count > limits.fields {
            let (found, limit) = (*count, limits.fields);
            return Err(Error::Limit { file: file.into(), what: "the number of its fields", found, limit });
        }
        let key = varint(&mut bytes).ok_or_else(broken)?;
        let field = u32::try_from(key >> 3).map_err(|_| broken())?;
        let n = match key & 7 {
            0 => {
                varint(&mut bytes).ok_or_else(broken)?;
                continue;
            }
            1 => 8,
            5 => 4,
            2 => usize::try_from(varint(&mut bytes).ok_or_else(broken)?).map_err(|_| broken())?,
            _ => return Err(broken()),
        };
        let (part, rest) = bytes.split_at_checked(n).ok_or_else(broken)?;
        bytes = rest;
        if key & 7 != 2 {
            continue;
        }
        match inside(message, field) {
            Message::Leaf => {}
            // What is small inside is as deep as the schema is; counting its bytes is enough.
            Message::Other => *count += part.len() as u64 / 4,
            inner => {
                let depth = depth + usize::from(inner == Message::Graph);
                if depth > limits.depth {
                    let (found, limit) = (depth as u64, limits.depth as u64);
                    return Err(Error::Limit {
                        file: file.into(),
                        what: "the nesting of its graphs",
                        found,
                        limit,
                    });
                }
                walk(part, inner, depth, file, limits, count)?;
            }
        }
    }
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
