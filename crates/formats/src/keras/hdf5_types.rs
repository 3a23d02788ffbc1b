//! Turns shapes, element types and texts into the messages that HDF5 has for them.

use crate::Element;

/// The value of a text attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Text {
    /// One text.
    One(String),
    /// A list of them.
    Many(Vec<String>),
}

/// The shape of a dataset or attribute.
pub(super) fn dataspace(shape: &[usize]) -> Vec<u8> {
    // Version 2, rank, no flags, scalar or not.
    let mut space = vec![2, shape.len() as u8, 0, u8::from(!shape.is_empty())];
    shape.iter().for_each(|dim| space.extend((*dim as u64).to_le_bytes()));
    space
}

/// The type of a dataset's elements, as h5py writes it.
pub(super) fn datatype(element: Element) -> Vec<u8> {
    // Sign bit; exponent's place and size; mantissa's size; exponent's bias.
    let float = |sign: u8, place: u8, exponent: u8, bias: u32| {
        let mut float = vec![0x11, 0x20, sign, 0];
        float.extend((element.bytes() as u32).to_le_bytes());
        float.extend([0, 0, sign + 1, 0, place, exponent, 0, place]);
        float.extend(bias.to_le_bytes());
        float
    };
    match element {
        Element::F64 => float(63, 52, 11, 1023),
        Element::F32 => float(31, 23, 8, 127),
        Element::F16 => float(15, 10, 5, 15),
        // HDF5 has no such type: two opaque bytes, explained by an attribute.
        Element::BF16 => vec![0x15, 0, 0, 0, 2, 0, 0, 0],
        Element::I64 | Element::I32 | Element::I16 | Element::I8 => integer(element.bytes(), true),
        Element::U64 | Element::U32 | Element::U16 | Element::U8 => integer(element.bytes(), false),
        Element::Bool => {
            // An enumeration of two bytes with these names.
            let mut truth = vec![0x38, 2, 0, 0, 1, 0, 0, 0];
            truth.extend(integer(1, true));
            truth.extend(b"FALSE\0TRUE\0\x00\x01");
            truth
        }
    }
}

fn integer(bytes: usize, signed: bool) -> Vec<u8> {
    let mut integer = vec![0x10, if signed { 8 } else { 0 }, 0, 0];
    integer.extend((bytes as u32).to_le_bytes());
    integer.extend([0, 0, 8 * bytes as u8, 0]);
    integer
}

/// An attribute that holds texts in UTF-8, of variable length as h5py has it: Keras compares such a text with a string,
/// which fails for one of fixed length.
pub(super) fn text_attribute(name: &str, text: &Text, texts: &mut Texts) -> Vec<u8> {
    let mut kind = vec![0x19, 1, 1, 0, 16, 0, 0, 0];
    kind.extend(integer(1, false));
    let (space, list) = match text {
        Text::One(text) => (dataspace(&[]), std::slice::from_ref(text)),
        Text::Many(list) => (dataspace(&[list.len()]), list.as_slice()),
    };
    let mut attribute = vec![3, 0];
    for length in [name.len() + 1, kind.len(), space.len()] {
        attribute.extend((length as u16).to_le_bytes());
    }
    attribute.push(0);
    attribute.extend(name.as_bytes());
    attribute.push(0);
    attribute.extend(kind);
    attribute.extend(space);
    for text in list {
        let (heap, index) = texts.add(text);
        attribute.extend((text.len() as u32).to_le_bytes());
        attribute.extend(heap.to_le_bytes());
        attribute.extend(index.to_le_bytes());
    }
    attribute
}

/// The heaps that hold the texts of attributes.
pub(super) struct Texts {
    /// Where the first heap will be.
    start: u64,
    full: Vec<u8>,
    open: Vec<u8>,
    n_open: u32,
}

/// The smallest heap that HDF5 accepts.
const HEAP: usize = 4096;

impl Texts {
    pub(super) fn new(start: u64) -> Texts {
        Texts { start, full: Vec::new(), open: Vec::new(), n_open: 0 }
    }

    /// Adds a text; returns its heap's address and its number in it.
    fn add(&mut self, text: &str) -> (u64, u32) {
        // Numbers have 16 bits; a thousand texts to a heap is far from that.
        if self.n_open == 1000 {
            self.close();
        }
        self.n_open += 1;
        self.open.extend((self.n_open as u16).to_le_bytes());
        self.open.extend([0; 6]);
        self.open.extend((text.len() as u64).to_le_bytes());
        self.open.extend(text.as_bytes());
        self.open.resize(self.open.len().next_multiple_of(8), 0);
        (self.start.saturating_add(self.full.len() as u64), self.n_open)
    }

    fn close(&mut self) {
        if self.n_open == 0 {
            return;
        }
        let used = 16 + self.open.len();
        let size = used.max(HEAP);
        self.full.extend(b"GCOL\x01\0\0\0");
        self.full.extend((size as u64).to_le_bytes());
        self.full.append(&mut self.open);
        // What is free is described by an entry with number 0, if there is room for one.
        let free = size - used;
        if free >= 16 {
            self.full.extend([0; 8]);
            self.full.extend((free as u64).to_le_bytes());
            self.full.resize(self.full.len() + free - 16, 0);
        } else {
            self.full.resize(self.full.len() + free, 0);
        }
        self.n_open = 0;
    }

    /// Bytes of all heaps so far.
    pub(super) fn size(&mut self) -> u64 {
        self.close();
        self.full.len() as u64
    }

    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.close();
        self.full
    }
}
