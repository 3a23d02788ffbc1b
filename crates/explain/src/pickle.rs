//! Turns a Python pickle into plain values, and never runs anything.
//!
//! A pickle is a program for a stack machine. Most of its instructions build data; a few import and call functions, which is
//! how opening a pickle can run anybody's code. Those few are not implemented here: they are an error that names them. Of the
//! rest all of protocols 0 to 5 are, within a byte budget, without recursion.

use std::collections::HashMap;
use std::io::BufRead;

use crate::bytes::short;
use crate::tape::{Problem, Tape, unquote};
use crate::value::{Id, Node, Values};

/// Reads a pickle and returns the number of its value.
pub(crate) fn read(source: impl BufRead, values: &mut Values) -> Result<Id, Problem> {
    let mut machine = Machine {
        tape: Tape { source, at: 0 },
        values,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    machine.run()
}

struct Machine<'a, R> {
    tape: Tape<R>,
    values: &'a mut Values,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl<R: BufRead> Machine<'_, R> {
    fn run(&mut self) -> Result<Id, Problem> {
        loop {
            let op = self.tape.byte()?;
            match op {
                b'.' => return self.pop(),
                // Frames, protocol versions: how the bytes are grouped, not what they mean.
                0x80 => drop(self.tape.byte()?),
                0x95 => drop(self.tape.fixed::<8>()?),
                b'(' => {
                    self.values.spend(16)?;
                    self.marks.push(self.stack.len());
                }
                b'0' => {
                    if self.marks.last() == Some(&self.stack.len()) {
                        self.marks.pop();
                    } else {
                        self.pop()?;
                    }
                }
                b'1' => drop(self.since_mark()?),
                b'2' => {
                    let top = self.top()?;
                    self.push(top)?;
                }
                b'N' => self.make(Node::None)?,
                0x88 => self.make(Node::Bool(true))?,
                0x89 => self.make(Node::Bool(false))?,
                b'J' => {
                    let bytes = self.tape.fixed::<4>()?;
                    self.make(Node::Int(i64::from(i32::from_le_bytes(bytes))))?;
                }
                b'K' => {
                    let value = self.tape.byte()?;
                    self.make(Node::Int(i64::from(value)))?;
                }
                b'M' => {
                    let bytes = self.tape.fixed::<2>()?;
                    self.make(Node::Int(i64::from(u16::from_le_bytes(bytes))))?;
                }
                b'I' | b'L' => self.text_integer()?,
                0x8a => {
                    let count = u64::from(self.tape.byte()?);
                    self.long(count)?;
                }
                0x8b => {
                    let count = self.tape.length4()?;
                    self.long(count)?;
                }
                b'F' => {
                    let line = self.tape.line()?;
                    let value =
                        line.trim().parse().map_err(|_| self.tape.damaged("a number that is none"))?;
                    self.make(Node::Float(value))?;
                }
                b'G' => {
                    let bytes = self.tape.fixed::<8>()?;
                    self.make(Node::Float(f64::from_be_bytes(bytes)))?;
                }
                b'S' | b'V' => {
                    let line = self.tape.line()?;
                    self.make(Node::Text(unquote(&line).into()))?;
                }
                b'U' | 0x8c => {
                    let count = u64::from(self.tape.byte()?);
                    self.text(count)?;
                }
                b'T' | b'X' => {
                    let count = self.tape.length4()?;
                    self.text(count)?;
                }
                0x8d => {
                    let count = u64::from_le_bytes(self.tape.fixed::<8>()?);
                    self.text(count)?;
                }
                b'C' => {
                    let count = u64::from(self.tape.byte()?);
                    self.opaque(count)?;
                }
                b'B' => {
                    let count = self.tape.length4()?;
                    self.opaque(count)?;
                }
                0x8e | 0x96 => {
                    let count = u64::from_le_bytes(self.tape.fixed::<8>()?);
                    self.opaque(count)?;
                }
                b']' | b')' | 0x8f => self.make(Node::List(Vec::new()))?,
                b'}' => self.make(Node::Dict(Vec::new()))?,
                b'l' | b't' | 0x91 => {
                    let items = self.since_mark()?;
                    self.make(Node::List(items))?;
                }
                0x85..=0x87 => {
                    let from = self.floor_checked(usize::from(op - 0x84))?;
                    let items = self.stack.split_off(from);
                    self.make(Node::List(items))?;
                }
                b'd' => {
                    let items = self.since_mark()?;
                    let pairs = self.pairs(&items)?;
                    self.make(Node::Dict(pairs))?;
                }
                b'a' => {
                    let item = self.pop()?;
                    let list = self.top()?;
                    self.append(list, item)?;
                }
                b'e' | 0x90 => {
                    let items = self.since_mark()?;
                    let list = self.top()?;
                    for item in items {
                        self.append(list, item)?;
                    }
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    let dict = self.top()?;
                    self.insert(dict, key, value)?;
                }
                b'u' => {
                    let items = self.since_mark()?;
                    let pairs = self.pairs(&items)?;
                    let dict = self.top()?;
                    for (key, value) in pairs {
                        self.insert(dict, key, value)?;
                    }
                }
                b'p' | b'q' | b'r' | 0x94 => {
                    let key = match op {
                        b'p' => self.tape.line_number()?,
                        b'q' => u64::from(self.tape.byte()?),
                        b'r' => self.tape.length4()?,
                        _ => self.memo.len() as u64,
                    };
                    let top = self.top()?;
                    self.values.spend(64)?;
                    self.memo.insert(key, top);
                }
                b'g' | b'h' | b'j' => {
                    let key = match op {
                        b'g' => self.tape.line_number()?,
                        b'h' => u64::from(self.tape.byte()?),
                        _ => self.tape.length4()?,
                    };
                    let id = self
                        .memo
                        .get(&key)
                        .copied()
                        .ok_or_else(|| self.tape.damaged("it recalls what it never stored"))?;
                    self.push(id)?;
                }
                _ => return Err(self.refuse(op)),
            }
        }
    }

    /// The error for an instruction that builds no data.
    fn refuse(&mut self, op: u8) -> Problem {
        let at = self.tape.at.saturating_sub(1);
        let (name, what) = match op {
            b'c' => {
                let module = self.tape.line().unwrap_or_default();
                let name = self.tape.line().unwrap_or_default();
                ("GLOBAL", format!("import {}.{}", short(&module), short(&name)))
            }
            b'i' => {
                let module = self.tape.line().unwrap_or_default();
                let name = self.tape.line().unwrap_or_default();
                ("INST", format!("import and call {}.{}", short(&module), short(&name)))
            }
            0x93 => {
                let mut names: Vec<String> = self
                    .stack
                    .iter()
                    .rev()
                    .take(2)
                    .map(|id| short(self.values.text(*id).unwrap_or("?")))
                    .collect();
                names.reverse();
                ("STACK_GLOBAL", format!("import {}", names.join(".")))
            }
            b'R' => ("REDUCE", "call a function".to_string()),
            b'b' => ("BUILD", "set an object's state".to_string()),
            b'o' => ("OBJ", "make an object of a class".to_string()),
            0x81 => ("NEWOBJ", "make an object of a class".to_string()),
            0x92 => ("NEWOBJ_EX", "make an object of a class".to_string()),
            0x82 => ("EXT1", "import from the extension registry".to_string()),
            0x83 => ("EXT2", "import from the extension registry".to_string()),
            0x84 => ("EXT4", "import from the extension registry".to_string()),
            b'P' => ("PERSID", "ask the loading program for an object".to_string()),
            b'Q' => ("BINPERSID", "ask the loading program for an object".to_string()),
            0x97 => ("NEXT_BUFFER", "ask the loading program for a buffer".to_string()),
            0x98 => ("READONLY_BUFFER", "ask the loading program for a buffer".to_string()),
            _ => return Problem::Damaged { at, why: format!("{op:#04x} is no instruction of a pickle") },
        };
        Problem::Code { at, op: name, what }
    }

    // --- The stack ---

    fn push(&mut self, id: Id) -> Result<(), Problem> {
        if !self.values.has_room(16 * self.stack.len() as u64) {
            return Err(Problem::Full);
        }
        self.stack.push(id);
        Ok(())
    }

    fn make(&mut self, node: Node) -> Result<(), Problem> {
        let id = self.values.add(node)?;
        self.push(id)
    }

    /// Where the last so many entries begin, none of them below a mark.
    fn floor_checked(&self, count: usize) -> Result<usize, Problem> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(count) {
            Some(from) if from >= floor => Ok(from),
            _ => Err(self.tape.damaged("it takes more from its stack than it put there")),
        }
    }

    fn pop(&mut self) -> Result<Id, Problem> {
        self.floor_checked(1)?;
        self.stack.pop().ok_or_else(|| self.tape.damaged("its stack is empty"))
    }

    fn top(&self) -> Result<Id, Problem> {
        let from = self.floor_checked(1)?;
        self.stack.get(from).copied().ok_or_else(|| self.tape.damaged("its stack is empty"))
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, Problem> {
        let from = self.marks.pop().ok_or_else(|| self.tape.damaged("it returns to a mark it never set"))?;
        Ok(self.stack.split_off(from.min(self.stack.len())))
    }

    fn pairs(&self, items: &[Id]) -> Result<Vec<(Id, Id)>, Problem> {
        let pair = |pair: &[Id]| match pair {
            [key, value] => Ok((*key, *value)),
            _ => Err(self.tape.damaged("a key without a value")),
        };
        items.chunks(2).map(pair).collect()
    }

    fn append(&mut self, list: Id, item: Id) -> Result<(), Problem> {
        if self.values.append(list, item)? {
            Ok(())
        } else {
            Err(self.tape.damaged("it appends to what is no list"))
        }
    }

    fn insert(&mut self, dict: Id, key: Id, value: Id) -> Result<(), Problem> {
        let done = self.values.insert(dict, key, value)?;
        if done { Ok(()) } else { Err(self.tape.damaged("it sets an entry of what is no dictionary")) }
    }

    // --- Values ---

    fn text_integer(&mut self) -> Result<(), Problem> {
        let line = self.tape.line()?;
        let text = line.trim().trim_end_matches('L');
        let node = match text {
            "00" => Node::Bool(false),
            "01" => Node::Bool(true),
            _ => match text.parse() {
                Ok(value) => Node::Int(value),
                Err(_)
                    if text.trim_start_matches('-').bytes().all(|b| b.is_ascii_digit())
                        && !text.is_empty() =>
                {
                    Node::Opaque
                }
                Err(_) => return Err(self.tape.damaged("a number that is none")),
            },
        };
        self.make(node)
    }

    fn long(&mut self, count: u64) -> Result<(), Problem> {
        if count > 8 {
            self.tape.skip(count)?;
            return self.make(Node::Opaque);
        }
        let mut value = 0u64;
        let mut last = 0;
        for i in 0..count {
            last = self.tape.byte()?;
            value |= u64::from(last) << (8 * i);
        }
        // Two's complement of `count` bytes.
        if count < 8 && last & 0x80 != 0 {
            value |= u64::MAX << (8 * count);
        }
        self.make(Node::Int(value as i64))
    }

    fn text(&mut self, count: u64) -> Result<(), Problem> {
        if !self.values.has_room(count) {
            return Err(Problem::Full);
        }
        let mut bytes = Vec::new();
        self.tape.each_part(count, |part| bytes.extend_from_slice(part))?;
        self.make(Node::Text(String::from_utf8_lossy(&bytes).into()))
    }

    fn opaque(&mut self, count: u64) -> Result<(), Problem> {
        self.tape.skip(count)?;
        self.make(Node::Opaque)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(bytes: &[u8]) -> Result<(Values, Id), Problem> {
        let mut values = Values::new(1 << 20);
        let id = read(bytes, &mut values)?;
        Ok((values, id))
    }

    fn fixture(name: &str) -> Vec<u8> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        std::fs::read(path).unwrap()
    }

    #[test]
    fn all_protocols_give_the_same_values() {
        for protocol in 0..6 {
            let (values, root) = load(&fixture(&format!("values.p{protocol}.pickle"))).unwrap();
            let entry = |key: &str| values.node(values.get(root, key).unwrap());
            assert!(matches!(entry("none"), Node::None), "{protocol}");
            assert!(
                matches!(entry("yes"), Node::Bool(true)) && matches!(entry("no"), Node::Bool(false)),
                "{protocol}"
            );
            assert!(
                matches!(entry("small"), Node::Int(7)) && matches!(entry("minus"), Node::Int(-7)),
                "{protocol}"
            );
            assert!(matches!(entry("wide"), Node::Int(wide) if *wide == 1 << 40), "{protocol}");
            assert!(
                matches!(entry("huge"), Node::Opaque) && matches!(entry("minus_huge"), Node::Opaque),
                "{protocol}"
            );
            assert!(matches!(entry("half"), Node::Float(0.5)), "{protocol}");
            assert_eq!(values.text_of(root, "text"), Some("straße"), "{protocol}");
            assert_eq!(values.text_of(root, "long").map(str::len), Some(300), "{protocol}");
            assert_eq!(values.list_of(root, "tuple").len(), 4, "{protocol}");
            assert_eq!(values.get(root, "again"), values.get(root, "list"), "shared, {protocol}");
            let inner = values.list_of(root, "list")[1];
            assert_eq!(values.integer(values.list(inner).unwrap()[0]), Some(2), "{protocol}");
            if protocol >= 4 {
                assert_eq!(values.list_of(root, "set").len() + values.list_of(root, "frozen").len(), 2);
                assert!(matches!(entry("bytes"), Node::Opaque));
            }
        }
    }

    #[test]
    fn every_instruction_that_runs_code_is_named_and_not_followed() {
        let cases: [(&[u8], &str); 13] = [
            (b"cos\nsystem\n(S'true'\ntR.", "GLOBAL"),
            (b"(S'true'\nios\nsystem\n.", "INST"),
            (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL"),
            (b"\x80\x02N)R.", "REDUCE"),
            (b"\x80\x02}}b.", "BUILD"),
            (b"(No.", "OBJ"),
            (b"\x80\x02N)\x81.", "NEWOBJ"),
            (b"\x80\x04N)}\x92.", "NEWOBJ_EX"),
            (b"\x80\x02\x82\x01.", "EXT1"),
            (b"\x80\x02\x83\x01\x00.", "EXT2"),
            (b"\x80\x02\x84\x01\x00\x00\x00.", "EXT4"),
            (b"P1\n.", "PERSID"),
            (b"\x80\x05\x97.", "NEXT_BUFFER"),
        ];
        for (bytes, name) in cases {
            match load(bytes) {
                Err(Problem::Code { op, .. }) => assert_eq!(op, name),
                other => panic!("{name}: {other:?}"),
            }
        }
        match load(cases[2].0) {
            Err(Problem::Code { what, .. }) => assert_eq!(what, "import os.system"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_length_that_is_not_there_takes_no_memory() {
        // A text of 2^62 bytes, one of a megabyte of which nothing follows, bytes of 2^62.
        let huge = [&b"\x80\x04\x8d"[..], &(1u64 << 62).to_le_bytes()].concat();
        assert!(matches!(load(&huge), Err(Problem::Full)));
        assert!(matches!(load(b"\x80\x04X\x00\x00\x08\x00ab"), Err(Problem::Damaged { .. })));
        let bytes = [&b"\x80\x04\x8e"[..], &(1u64 << 62).to_le_bytes()].concat();
        assert!(matches!(load(&bytes), Err(Problem::Damaged { .. })));
    }

    #[test]
    fn a_pickle_that_doubles_itself_is_full_before_memory_is() {
        // A million empty lists, then a stack of a million references.
        let mut lists = b"\x80\x02".to_vec();
        lists.extend(std::iter::repeat_n(b']', 1 << 20));
        assert!(matches!(load(&lists), Err(Problem::Full)));
        let mut references = b"\x80\x02]q\x00".to_vec();
        references.extend(std::iter::repeat_n(*b"h\x00", 1 << 20).flatten());
        assert!(matches!(load(&references), Err(Problem::Full)));
        let mut marks = b"\x80\x02".to_vec();
        marks.extend(std::iter::repeat_n(b'(', 1 << 20));
        assert!(matches!(load(&marks), Err(Problem::Full)));
    }

    #[test]
    fn a_stack_that_is_empty_or_marked_is_an_error() {
        for bytes in [
            &b"."[..],
            b"0.",
            b"\x80\x02(.",
            b"t.",
            b"]a.",
            b"\x80\x02\x85.",
            b"(K\x01d.",
            b"h\x00.",
            b"",
            b"NNs.",
        ] {
            assert!(matches!(load(bytes), Err(Problem::Damaged { .. })), "{bytes:?}");
        }
    }

    #[test]
    fn a_list_inside_itself_is_read() {
        let (values, root) = load(b"\x80\x02]q\x00h\x00a.").unwrap();
        assert_eq!(values.list(root), Some(&[root][..]));
    }
}
