//! Turns a list of variables into the head of an HDF5 file and the places where their bytes follow.
//!
//! Written by hand, because the library takes every tensor as a vector of its own before it writes the first byte, and
//! saving a model must not need its size again in memory. Only what Keras needs is here: groups whose links lie in their
//! header, datasets in one piece, and text attributes. The order in the file:
//!
//! ```text
//! superblock | object headers, parents first | heaps with the texts of attributes | the variables' bytes
//! ```
//!
//! The structures are those of the HDF5 File Format Specification, version 3, which HDF5 1.8 and later read.

use super::hdf5_types::{self, Text, Texts};
use super::{Reason, Variable};
use std::collections::BTreeMap;

/// No address.
const NOWHERE: u64 = u64::MAX;
const SUPERBLOCK: u64 = 48;

/// What to write: the head, then the bytes of each variable at its place.
pub(super) struct Plan {
    /// Everything before the first variable.
    pub head: Vec<u8>,
    /// The variables in the order of their bytes: index and place. Gaps between them are zeros.
    pub places: Vec<(usize, u64)>,
}

/// The attributes of a group.
pub(super) type Attributes = BTreeMap<String, Text>;

/// A group or a variable.
enum Node {
    Group { children: BTreeMap<String, usize>, attributes: Attributes },
    Variable(usize),
}

/// Plans a file of `variables`, with the attributes of its `groups`. A group without variables must be named there to be in
/// the file.
pub(super) fn plan(variables: &[Variable], groups: &BTreeMap<String, Attributes>) -> Result<Plan, Reason> {
    let nodes = tree(variables, groups)?;
    // The length of a header does not depend on the addresses in it, so a first pass with none gives all addresses.
    let mut texts = Texts::new(0);
    let mut addresses = vec![0; nodes.len()];
    let unknown = vec![0; nodes.len()];
    let mut at = SUPERBLOCK;
    for (node, address) in nodes.iter().zip(&mut addresses) {
        *address = at;
        at += header(node, variables, &unknown, 0, &mut texts)?.len() as u64;
    }
    let heaps = at.next_multiple_of(8);
    // A reader compares the end that the superblock names with the file's own, so the last variable is not padded.
    let mut end = heaps + texts.size();
    let mut places = Vec::with_capacity(variables.len());
    for (i, variable) in variables.iter().enumerate() {
        let place = end.checked_next_multiple_of(8);
        let after = place.and_then(|place| place.checked_add(variable.bytes as u64));
        let (Some(place), Some(after)) = (place, after) else {
            return Err(Reason::weights(&variable.path, "the file would be larger than can be counted"));
        };
        places.push((i, place));
        end = after;
    }

    let mut head = superblock(end, SUPERBLOCK);
    let mut texts = Texts::new(heaps);
    for node in &nodes {
        let place = match node {
            Node::Variable(i) if variables[*i].bytes > 0 => places[*i].1,
            _ => NOWHERE,
        };
        head.extend(header(node, variables, &addresses, place, &mut texts)?);
    }
    head.resize(heaps as usize, 0);
    head.extend(texts.into_bytes());
    Ok(Plan { head, places })
}

/// The groups and variables that the paths name; the root comes first.
fn tree(variables: &[Variable], groups: &BTreeMap<String, Attributes>) -> Result<Vec<Node>, Reason> {
    let mut nodes = vec![Node::Group { children: BTreeMap::new(), attributes: Attributes::new() }];
    for (path, attributes) in groups {
        let at = if path.is_empty() { 0 } else { descend(&mut nodes, path, path)? };
        if let Node::Group { attributes: found, .. } = &mut nodes[at] {
            found.clone_from(attributes);
        }
    }
    for (i, variable) in variables.iter().enumerate() {
        let path = variable.path.as_str();
        let (group, name) = path.rsplit_once('/').unwrap_or(("", path));
        let at = if group.is_empty() && name == path { 0 } else { descend(&mut nodes, group, path)? };
        let next = nodes.len();
        match &mut nodes[at] {
            Node::Group { children, .. } if !children.contains_key(name) => {
                children.insert(checked(name, path)?, next)
            }
            _ => return Err(Reason::weights(path, "another variable or group is in its place")),
        };
        nodes.push(Node::Variable(i));
    }
    Ok(nodes)
}

/// Walks down to the group at `path`, which is made if it is not there, on behalf of `whole`.
fn descend(nodes: &mut Vec<Node>, path: &str, whole: &str) -> Result<usize, Reason> {
    let mut at = 0;
    for piece in path.split('/') {
        let next = nodes.len();
        let Node::Group { children, .. } = &mut nodes[at] else {
            return Err(Reason::weights(whole, "a variable lies on the way to it"));
        };
        at = match children.get(piece) {
            Some(child) => *child,
            None => {
                children.insert(checked(piece, whole)?, next);
                nodes.push(Node::Group { children: BTreeMap::new(), attributes: Attributes::new() });
                next
            }
        };
    }
    match nodes[at] {
        Node::Group { .. } => Ok(at),
        Node::Variable(_) => Err(Reason::weights(whole, "a variable lies on the way to it")),
    }
}

fn checked(name: &str, whole: &str) -> Result<String, Reason> {
    if name.is_empty() || name == "." || name.len() > 1000 || name.contains('\0') {
        return Err(Reason::weights(whole, "its path has a piece that cannot be a name"));
    }
    Ok(name.to_string())
}

fn superblock(end: u64, root: u64) -> Vec<u8> {
    let mut block = b"\x89HDF\r\n\x1a\n".to_vec();
    // Version 2, addresses and lengths of 8 bytes, no flags.
    block.extend([2, 8, 8, 0]);
    for address in [0, NOWHERE, end, root] {
        block.extend(address.to_le_bytes());
    }
    let sum = lookup3(&block);
    block.extend(sum.to_le_bytes());
    block
}

/// The object header of a node: its messages, each with a type and a length, framed and summed.
fn header(
    node: &Node,
    variables: &[Variable],
    addresses: &[u64],
    place: u64,
    texts: &mut Texts,
) -> Result<Vec<u8>, Reason> {
    let mut messages = Vec::new();
    let mut longest = 0;
    let mut message = |kind: u8, body: &[u8]| {
        longest = longest.max(body.len());
        messages.push(kind);
        messages.extend((body.len() as u16).to_le_bytes());
        messages.push(0);
        messages.extend(body);
    };
    match node {
        Node::Group { children, attributes } => {
            // Link info: no heap and no index, so the links are in this header. Group info: nothing special.
            let nowhere = NOWHERE.to_le_bytes();
            message(0x02, &[&[0, 0][..], &nowhere, &nowhere].concat());
            message(0x0a, &[0, 0]);
            for (name, child) in children {
                // A hard link with a name in UTF-8, whose length takes two bytes.
                let length = (name.len() as u16).to_le_bytes();
                let link = [&[1, 0x11, 1][..], &length, name.as_bytes(), &addresses[*child].to_le_bytes()];
                message(0x06, &link.concat());
            }
            for (name, text) in attributes {
                message(0x0c, &hdf5_types::text_attribute(name, text, texts));
            }
        }
        Node::Variable(i) => {
            let variable = &variables[*i];
            if variable.shape.len() > 32 {
                return Err(Reason::weights(&variable.path, "HDF5 allows 32 dimensions"));
            }
            message(0x01, &hdf5_types::dataspace(&variable.shape));
            message(0x03, &hdf5_types::datatype(variable.element));
            // Fill value: the library's own, never written since all bytes are given.
            message(0x05, &[3, 0x0a]);
            let size = (variable.bytes as u64).to_le_bytes();
            message(0x08, &[&[3, 1][..], &place.to_le_bytes(), &size].concat());
            if variable.element == crate::Element::BF16 {
                message(0x0c, &hdf5_types::text_attribute("dtype", &Text::One("bfloat16".into()), texts));
            }
        }
    }
    if longest > usize::from(u16::MAX) {
        return Err(Reason::weights(
            "",
            format!("an attribute of {longest} bytes is longer than HDF5 allows"),
        ));
    }
    // Version 2; the length of the messages takes four bytes.
    let mut header = b"OHDR\x02\x02".to_vec();
    header.extend((messages.len() as u32).to_le_bytes());
    header.extend(messages);
    let sum = lookup3(&header);
    header.extend(sum.to_le_bytes());
    Ok(header)
}

/// Bob Jenkins' lookup3, the checksum of HDF5's metadata.
fn lookup3(bytes: &[u8]) -> u32 {
    let start = 0xdead_beefu32.wrapping_add(bytes.len() as u32);
    let (mut a, mut b, mut c) = (start, start, start);
    let word = |block: &[u8], i: usize| {
        (0..4).fold(0, |word, j| word | u32::from(block.get(4 * i + j).copied().unwrap_or(0)) << (8 * j))
    };
    let mut rest = bytes;
    while rest.len() > 12 {
        let (block, tail) = rest.split_at(12);
        rest = tail;
        a = a.wrapping_add(word(block, 0));
        b = b.wrapping_add(word(block, 1));
        c = c.wrapping_add(word(block, 2));
        for (x, y, z, turn) in
            [(0, 2, 1, 4), (1, 0, 2, 6), (2, 1, 0, 8), (0, 2, 1, 16), (1, 0, 2, 19), (2, 1, 0, 4)]
        {
            let mut words = [a, b, c];
            words[x] = words[x].wrapping_sub(words[y]) ^ words[y].rotate_left(turn);
            words[y] = words[y].wrapping_add(words[z]);
            [a, b, c] = words;
        }
    }
    if rest.is_empty() {
        return c;
    }
    a = a.wrapping_add(word(rest, 0));
    b = b.wrapping_add(word(rest, 1));
    c = c.wrapping_add(word(rest, 2));
    for (x, y, turn) in [(2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24)] {
        let mut words = [a, b, c];
        words[x] = (words[x] ^ words[y]).wrapping_sub(words[y].rotate_left(turn));
        [a, b, c] = words;
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_its_author() {
        // The values printed by the driver of lookup3.c.
        assert_eq!(lookup3(b""), 0xdead_beef);
        assert_eq!(lookup3(b"Four score and seven years ago"), 0x1777_0551);
    }

    #[test]
    fn paths_that_collide_or_are_no_names_are_refused() {
        let variable = |path: &str| Variable::new(path, crate::Element::F32, &[1]).expect("a small variable");
        for paths in [["a", "a"], ["a", "a/b"], ["a/b", "a"], ["a//b", "c"], ["a/./b", "c"], ["", "c"]] {
            assert!(plan(&paths.map(variable), &BTreeMap::new()).is_err(), "{paths:?}");
        }
    }
}
