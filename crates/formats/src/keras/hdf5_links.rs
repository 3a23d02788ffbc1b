//! Finds what leads out of its place in an HDF5 file: the first soft or external link, with its path and target.
//!
//! The HDF5 library passes such links over, so that a variable behind one is merely missing. A refusal should name it instead.
//! This walks the groups once more and reads nothing but links. What it does not understand it leaves to the library, which
//! refuses what is damaged: groups with so many links that they are stored as a B-tree are not looked into.

use super::Limits;
use super::bytes::Bytes;

/// A link that is not followed.
pub(super) struct Link {
    /// Where it is.
    pub path: String,
    /// What it is, in words.
    pub what: String,
}

const HEADER: u16 = 0x0010;
const SYMBOL_TABLE: u16 = 0x0011;
const LINK: u16 = 0x0006;
/// Names and targets that are longer are cut.
const MOST_TEXT: usize = 1 << 10;
/// Messages of an object that are longer are no links.
const MOST_MESSAGE: usize = 1 << 16;

/// The first soft or external link below the root.
pub(super) fn find(bytes: &Bytes, limits: &Limits) -> Option<Link> {
    let mut walk = Walk { bytes, left: limits.objects.saturating_mul(4), found: None };
    let head = walk.read(0, 16)?;
    let (version, sizes) =
        (*head.get(8)?, if head[8] < 2 { (head[13], head[14]) } else { (head[9], head[10]) });
    let root = match (version, sizes) {
        (0, (8, 8)) => 64,
        (1, (8, 8)) => 68,
        (2 | 3, (8, 8)) => 36,
        _ => return None,
    };
    let root = walk.number(root)?;
    walk.object(root, "", limits.depth);
    walk.found
}

struct Walk<'a> {
    bytes: &'a Bytes,
    /// How many more parts of the file may be read: a damaged file may lead round in circles.
    left: u64,
    found: Option<Link>,
}

/// A message of an object: its kind and its bytes.
type Message = (u16, Vec<u8>);

impl Walk<'_> {
    fn read(&mut self, at: u64, length: usize) -> Option<Vec<u8>> {
        self.left = self.left.checked_sub(1)?;
        let end = at.checked_add(length as u64)?;
        if end > self.bytes.len() {
            return None;
        }
        let mut part = vec![0; length];
        self.bytes.read_exact_at(at, &mut part).ok()?;
        Some(part)
    }

    fn number(&mut self, at: u64) -> Option<u64> {
        number(&self.read(at, 8)?, 0, 8)
    }

    /// Text up to its zero.
    fn text(&mut self, at: u64) -> Option<String> {
        let length = self.bytes.len().checked_sub(at)?.min(MOST_TEXT as u64);
        let part = self.read(at, length as usize)?;
        Some(String::from_utf8_lossy(part.split(|byte| *byte == 0).next()?).into_owned())
    }

    fn object(&mut self, at: u64, path: &str, depth: u64) -> Option<()> {
        for (kind, message) in self.messages(at)? {
            match kind {
                SYMBOL_TABLE => {
                    let (tree, heap) = (number(&message, 0, 8)?, number(&message, 8, 8)?);
                    // The heap's header says where its text is.
                    let texts = self.number(heap.checked_add(24)?)?;
                    self.tree(tree, texts, path, depth, MOST_LEVELS);
                }
                LINK => {
                    self.link(&message, path, depth);
                }
                _ => {}
            }
            if self.found.is_some() {
                return None;
            }
        }
        Some(())
    }

    /// The messages of an object that may be about links.
    fn messages(&mut self, at: u64) -> Option<Vec<Message>> {
        let head = self.read(at, 16)?;
        let new = head.starts_with(b"OHDR");
        let (start, length, ordered) = match new {
            false if head[0] == 1 => (16, number(&head, 8, 4)?, false),
            false => return None,
            true => {
                let flags = head[5];
                let times = if flags & 0x20 != 0 { 16 } else { 0 } + if flags & 0x10 != 0 { 4 } else { 0 };
                let width = 1usize << (flags & 3);
                let place = at.checked_add(6 + times)?;
                (6 + times + width as u64, number(&self.read(place, width)?, 0, width)?, flags & 4 != 0)
            }
        };
        let mut blocks = vec![(at.checked_add(start)?, length)];
        let mut messages = Vec::new();
        while let Some((at, length)) = blocks.pop() {
            let block = self.read(at, usize::try_from(length).ok().filter(|n| *n <= MOST_MESSAGE * 16)?)?;
            let mut rest = &block[..];
            let head = match (new, ordered) {
                (false, _) => 8,
                (true, false) => 4,
                (true, true) => 6,
            };
            while rest.len() >= head {
                let (kind, size) = match new {
                    false => (number(rest, 0, 2)? as u16, number(rest, 2, 2)? as usize),
                    true => (u16::from(rest[0]), number(rest, 1, 2)? as usize),
                };
                let Some(message) = rest.get(head..head + size) else { break };
                match kind {
                    HEADER => {
                        let (at, length) = (number(message, 0, 8)?, number(message, 8, 8)?);
                        // In the new form a block has a signature before and a checksum after it.
                        blocks.push(if new {
                            (at.checked_add(4)?, length.checked_sub(8)?)
                        } else {
                            (at, length)
                        });
                    }
                    SYMBOL_TABLE | LINK => messages.push((kind, message.to_vec())),
                    _ => {}
                }
                rest = &rest[head + size..];
            }
        }
        Some(messages)
    }

    /// A group of the old form: a tree of tables, whose names are in a heap.
    fn tree(&mut self, at: u64, texts: u64, path: &str, depth: u64, levels: u64) -> Option<()> {
        let levels = levels.checked_sub(1)?;
        let head = self.read(at, 24)?;
        if head.starts_with(b"SNOD") {
            return self.table(at, texts, path, depth);
        }
        if !head.starts_with(b"TREE") {
            return None;
        }
        for i in 0..number(&head, 6, 2)? {
            let child = self.number(at.checked_add(32 + 16 * i)?)?;
            self.tree(child, texts, path, depth, levels);
            if self.found.is_some() {
                return None;
            }
        }
        Some(())
    }

    fn table(&mut self, at: u64, texts: u64, path: &str, depth: u64) -> Option<()> {
        let n = number(&self.read(at, 8)?, 6, 2)?;
        for i in 0..n {
            let entry = self.read(at.checked_add(8 + 40 * i)?, 40)?;
            let name = self.text(texts.checked_add(number(&entry, 0, 8)?)?)?;
            let path = super::hdf5::join(path, &name);
            if number(&entry, 16, 4)? == 2 {
                let target = self.text(texts.checked_add(number(&entry, 24, 4)?)?)?;
                self.found = Some(Link { path, what: format!("a soft link to {target:?}") });
                return None;
            }
            let child = number(&entry, 8, 8)?;
            self.object(child, &path, depth.checked_sub(1)?);
            if self.found.is_some() {
                return None;
            }
        }
        Some(())
    }

    fn link(&mut self, message: &[u8], path: &str, depth: u64) -> Option<()> {
        let flags = *message.get(1)?;
        let mut at = 2;
        let kind = if flags & 8 != 0 { *message.get(at)? } else { 0 };
        at += usize::from(flags & 8 != 0) + if flags & 4 != 0 { 8 } else { 0 } + usize::from(flags & 16 != 0);
        let width = 1usize << (flags & 3);
        let length = usize::try_from(number(message, at, width)?).ok()?;
        at += width;
        let name = String::from_utf8_lossy(message.get(at..at.checked_add(length)?)?).into_owned();
        at += length;
        let path = super::hdf5::join(path, &name);
        let value = |start: usize| {
            let length = number(message, at, 2)? as usize;
            message.get(at + 2 + start..at + 2 + length)
        };
        let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(MOST_TEXT)]).into_owned();
        let what = match kind {
            0 => {
                let child = number(message, at, 8)?;
                return self.object(child, &path, depth.checked_sub(1)?);
            }
            1 => format!("a soft link to {:?}", shown(value(0)?)),
            64 => {
                let mut parts = value(1)?.split(|byte| *byte == 0);
                let (file, target) = (shown(parts.next()?), shown(parts.next()?));
                format!("an external link to {target:?} in the file {file:?}")
            }
            other => format!("a link of kind {other}"),
        };
        self.found = Some(Link { path, what });
        None
    }
}

/// Levels of a tree of tables at most.
const MOST_LEVELS: u64 = 16;

/// A little-endian number of some bytes.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(width)?)?;
    Some(part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
