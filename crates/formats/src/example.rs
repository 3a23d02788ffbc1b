//! Turns a serialized `tf.train.Example` into its features, and back.
//!
//! An example is a map from names to lists of strings, floats or whole numbers, as a protocol buffer. It is read where it
//! lies: features are views into its bytes.

/// A feature of an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Feature<'a> {
    /// Strings of bytes: the bodies of a protocol buffer.
    Bytes(Message<'a>),
    /// Floats.
    Floats(Message<'a>),
    /// Whole numbers.
    Ints(Message<'a>),
}

impl<'a> Feature<'a> {
    /// Its strings of bytes.
    pub fn bytes(self) -> impl Iterator<Item = &'a [u8]> {
        let body = if let Feature::Bytes(message) = self { message } else { Message(&[]) };
        body.filter_map(|(number, value)| match value {
            Value::Bytes(bytes) if number == 1 => Some(bytes),
            _ => None,
        })
    }

    /// Its floats, packed or not.
    pub fn floats(self) -> impl Iterator<Item = f32> + use<'a> {
        let body = if let Feature::Floats(message) = self { message } else { Message(&[]) };
        body.flat_map(|(number, value)| {
            let (packed, single) = match value {
                Value::Bytes(bytes) if number == 1 => (bytes, None),
                Value::Four(bits) if number == 1 => (&[][..], Some(f32::from_bits(bits))),
                _ => (&[][..], None),
            };
            let four = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            packed.chunks_exact(4).map(four).chain(single)
        })
    }

    /// Its whole numbers, packed or not.
    pub fn ints(self) -> impl Iterator<Item = i64> + use<'a> {
        let body = if let Feature::Ints(message) = self { message } else { Message(&[]) };
        body.flat_map(|(number, value)| {
            let (mut packed, single) = match value {
                Value::Bytes(bytes) if number == 1 => (bytes, None),
                Value::Varint(bits) if number == 1 => (&[][..], Some(bits as i64)),
                _ => (&[][..], None),
            };
            std::iter::from_fn(move || varint(&mut packed).map(|bits| bits as i64)).chain(single)
        })
    }
}

/// The features of a serialized `tf.train.Example`, in the order in which they are stored.
///
/// What is not readable ends the list: a checksum has already told whether the bytes are those that were written.
pub fn features(example: &[u8]) -> impl Iterator<Item = (&str, Feature<'_>)> {
    let inside = |wanted: u64| {
        move |(number, value)| match value {
            Value::Bytes(bytes) if number == wanted => Some(Message(bytes)),
            _ => None,
        }
    };
    let entries =
        Message(example).filter_map(inside(1)).flat_map(move |features| features.filter_map(inside(1)));
    entries.filter_map(|entry| {
        let (mut name, mut feature) = ("", None);
        for (number, value) in entry {
            match (number, value) {
                (1, Value::Bytes(bytes)) => name = std::str::from_utf8(bytes).ok()?,
                (2, Value::Bytes(bytes)) => {
                    feature = Message(bytes).find_map(|(number, value)| match (number, value) {
                        (1, Value::Bytes(list)) => Some(Feature::Bytes(Message(list))),
                        (2, Value::Bytes(list)) => Some(Feature::Floats(Message(list))),
                        (3, Value::Bytes(list)) => Some(Feature::Ints(Message(list))),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        Some((name, feature?))
    })
}

/// A value of a protocol buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A number of variable length.
    Varint(u64),
    /// Eight bytes.
    Eight(u64),
    /// A string, a message or packed numbers.
    Bytes(&'a [u8]),
    /// Four bytes.
    Four(u32),
}

/// The fields of a protocol buffer, one after the other; what cannot be read ends them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message<'a>(pub &'a [u8]);

impl<'a> Iterator for Message<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<(u64, Value<'a>)> {
        let key = varint(&mut self.0)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut self.0)?),
            1 => Value::Eight(u64::from_le_bytes(*self.0.split_off(..8)?.first_chunk()?)),
            2 => {
                let length = usize::try_from(varint(&mut self.0)?).ok()?;
                Value::Bytes(self.0.split_off(..length)?)
            }
            5 => Value::Four(u32::from_le_bytes(*self.0.split_off(..4)?.first_chunk()?)),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Builds a serialized `tf.train.Example`.
///
/// ```
/// use plimsoll_formats::example::{ExampleWriter, features};
///
/// let bytes = ExampleWriter::default().ints("label", &[7]).floats("x", &[0.5, 1.0]).finish();
/// let (name, label) = features(&bytes).next().unwrap();
/// assert_eq!((name, label.ints().collect::<Vec<_>>()), ("label", vec![7]));
/// ```
#[derive(Default)]
pub struct ExampleWriter(Vec<u8>);

impl ExampleWriter {
    /// Adds strings of bytes.
    #[must_use]
    pub fn bytes(self, name: &str, strings: &[&[u8]]) -> ExampleWriter {
        let list = strings.iter().flat_map(|string| delimited(1, string)).collect::<Vec<_>>();
        self.feature(name, 1, &list)
    }

    /// Adds floats.
    #[must_use]
    pub fn floats(self, name: &str, floats: &[f32]) -> ExampleWriter {
        let packed: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.feature(name, 2, &delimited(1, &packed))
    }

    /// Adds whole numbers.
    #[must_use]
    pub fn ints(self, name: &str, ints: &[i64]) -> ExampleWriter {
        let mut packed = Vec::new();
        ints.iter().for_each(|&x| push_varint(&mut packed, x as u64));
        self.feature(name, 3, &delimited(1, &packed))
    }

    fn feature(mut self, name: &str, kind: u64, list: &[u8]) -> ExampleWriter {
        let entry = [delimited(1, name.as_bytes()), delimited(2, &delimited(kind, list))].concat();
        self.0.extend(delimited(1, &entry));
        self
    }

    /// The example.
    pub fn finish(self) -> Vec<u8> {
        delimited(1, &self.0)
    }
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn delimited(field: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 6);
    push_varint(&mut out, field << 3 | 2);
    push_varint(&mut out, bytes.len() as u64);
    out.extend_from_slice(bytes);
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example(n: i64) -> Vec<u8> {
        ExampleWriter::default()
            .ints("label", &[n, -1])
            .floats("x", &[n as f32, 0.5])
            .bytes("raw", &[b"ab", b""])
            .finish()
    }

    #[test]
    fn no_mutation_of_an_example_panics() {
        let bytes = example(300);
        for at in 0..bytes.len() {
            for byte in [0, 1, 0x0a, 0x7f, 0x80, 0xff] {
                let mut mutated = bytes.clone();
                mutated[at] = byte;
                for (_, feature) in features(&mutated) {
                    let _ = feature.bytes().count() + feature.floats().count() + feature.ints().count();
                }
            }
            let _ = features(&bytes[..at]).count();
        }
    }
}
