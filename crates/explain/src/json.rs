//! Turns JSON into the same plain values as a pickle, within the same budget.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::rc::Rc;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::value::{Full, Id, Node, Values};

/// Why JSON was not read.
#[derive(Debug)]
pub(crate) enum Problem {
    Full,
    Damaged { line: u64, column: u64, why: String },
    Io(std::io::Error),
}

/// The most bytes between two values: the parser holds a text whole before it hands it over.
const GAP: u64 = 8 << 20;

/// Reads a document and returns the number of its value.
pub(crate) fn read(source: impl Read, values: &mut Values) -> Result<Id, Problem> {
    let gap = Rc::new(Cell::new(0));
    let full = Cell::new(false);
    let source = Gauge { source, gap: Rc::clone(&gap) };
    let mut parser = serde_json::Deserializer::from_reader(std::io::BufReader::new(source));
    let mut table = Table { values, keys: HashMap::new(), gap, full: &full };
    let result = Seed(&mut table).deserialize(&mut parser);
    result.map_err(|error| {
        if full.get() || error.is_io() && error.to_string().contains(TOO_LONG) {
            Problem::Full
        } else if error.is_io() {
            Problem::Io(error.into())
        } else {
            let (line, column) = (error.line() as u64, error.column() as u64);
            Problem::Damaged { line, column, why: error.to_string() }
        }
    })
}

const TOO_LONG: &str = "a text of more than 8 MiB";

/// Counts bytes since the last value.
struct Gauge<R> {
    source: R,
    gap: Rc<Cell<u64>>,
}

impl<R: Read> Read for Gauge<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.gap.set(self.gap.get() + count as u64);
        if self.gap.get() > GAP { Err(std::io::Error::other(TOO_LONG)) } else { Ok(count) }
    }
}

struct Table<'a> {
    values: &'a mut Values,
    /// Keys come again and again; each is kept once.
    keys: HashMap<Box<str>, Id>,
    gap: Rc<Cell<u64>>,
    full: &'a Cell<bool>,
}

impl Table<'_> {
    fn check<T, E: serde::de::Error>(&self, result: Result<T, Full>) -> Result<T, E> {
        self.gap.set(0);
        result.map_err(|Full| {
            self.full.set(true);
            E::custom("full")
        })
    }

    fn add<E: serde::de::Error>(&mut self, node: Node) -> Result<Id, E> {
        let added = self.values.add(node);
        self.check(added)
    }

    fn key<E: serde::de::Error>(&mut self, key: String) -> Result<Id, E> {
        if let Some(id) = self.keys.get(key.as_str()) {
            return Ok(*id);
        }
        let spent = self.values.spend(key.len() + 64);
        self.check(spent)?;
        let id = self.add(Node::Text(key.as_str().into()))?;
        self.keys.insert(key.into(), id);
        Ok(id)
    }
}

struct Seed<'t, 'a>(&'t mut Table<'a>);

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Id;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Id, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Id;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Id, E> {
        self.0.add(Node::None)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Id, E> {
        self.0.add(Node::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Id, E> {
        self.0.add(Node::Int(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Id, E> {
        self.0.add(i64::try_from(value).map_or(Node::Opaque, Node::Int))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Id, E> {
        self.0.add(Node::Float(value))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Id, E> {
        self.0.add(Node::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Id, A::Error> {
        let list = self.0.add(Node::List(Vec::new()))?;
        while let Some(item) = items.next_element_seed(Seed(&mut *self.0))? {
            let done = self.0.values.append(list, item);
            self.0.check::<_, A::Error>(done)?;
        }
        Ok(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Id, A::Error> {
        let dict = self.0.add(Node::Dict(Vec::new()))?;
        while let Some(key) = entries.next_key::<String>()? {
            let key = self.0.key(key)?;
            let value = entries.next_value_seed(Seed(&mut *self.0))?;
            let done = self.0.values.insert(dict, key, value);
            if !self.0.check::<_, A::Error>(done)? {
                return Err(A::Error::custom("no dictionary"));
            }
        }
        Ok(dict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_becomes_the_same_values() {
        let mut values = Values::new(1 << 20);
        let root = read(&br#"{"a": [1, 2.5, null, true, "x"], "b": {"a": -1}}"#[..], &mut values).unwrap();
        let list = values.list_of(root, "a");
        assert_eq!(list.len(), 5);
        assert_eq!(values.text(list[4]), Some("x"));
        assert!(matches!(values.node(list[1]), Node::Float(2.5)));
        let inner = values.get(root, "b").unwrap();
        assert!(matches!(values.node(values.get(inner, "a").unwrap()), Node::Int(-1)));
    }

    #[test]
    fn depth_length_and_damage_are_errors() {
        let deep = "[".repeat(100_000);
        assert!(matches!(read(deep.as_bytes(), &mut Values::new(1 << 20)), Err(Problem::Damaged { .. })));
        assert!(matches!(read(&b"{\"a\": "[..], &mut Values::new(1 << 20)), Err(Problem::Damaged { .. })));
        let wide = format!("[{}]", "1,".repeat(100_000));
        assert!(matches!(read(wide.as_bytes(), &mut Values::new(1 << 20)), Err(Problem::Full)));
        let endless = b"\"".chain(std::io::repeat(b'x').take(64 << 20));
        assert!(matches!(read(endless, &mut Values::new(1 << 30)), Err(Problem::Full)));
    }
}
