//! Turns an HDF5 file into a list of variables with their places, and its text attributes into strings.
//!
//! This is the only file that knows the HDF5 library. What Keras writes is a small part of HDF5: groups, and datasets that
//! lie in one piece. Everything else (chunks, filters, other files, virtual datasets) is refused by name, so that no
//! dataset can expand or lead elsewhere. Soft and external links are refused by name, too.

use super::bytes::Bytes;
use super::hdf5_types::Text;
use super::hdf5_write::Attributes;
use super::{Limits, Reason, Variable};
use crate::Element;
use hdf5_pure::{AttrValue, Dataset, Datatype, DatatypeByteOrder, File, FloatingPointLayout, Group, Layout};

pub(super) struct Hdf5 {
    file: File,
    bytes: Bytes,
}

/// A group and its place in the tree, on the way down.
struct Walk<'a> {
    bytes: &'a Bytes,
    limits: &'a Limits,
    objects: u64,
    variables: Vec<Variable>,
}

impl Hdf5 {
    pub(super) fn open(bytes: Bytes) -> Result<Hdf5, Reason> {
        let file = File::from_source(bytes.clone()).map_err(|e| Reason::weights("/", e))?;
        Ok(Hdf5 { file, bytes })
    }

    /// All variables, in the order of their paths, numbers as numbers.
    pub(super) fn variables(&self, limits: &Limits) -> Result<Vec<Variable>, Reason> {
        if let Some(link) = super::hdf5_links::find(&self.bytes, limits) {
            let why =
                format!("it is {}, which is not followed; store the values here in its place", link.what);
            return Err(Reason::weights(&link.path, why));
        }
        let mut walk = Walk { bytes: &self.bytes, limits, objects: 0, variables: Vec::new() };
        walk.group(&self.file.root(), "", 0)?;
        let mut variables = walk.variables;
        variables.sort_by(|a, b| super::names::natural(&a.path, &b.path));
        Ok(variables)
    }

    /// The attributes of a group that are text or lists of text; `None` if there is no such group.
    pub(super) fn texts(&self, path: &str) -> Result<Option<Attributes>, Reason> {
        let group = if path.is_empty() {
            self.file.root()
        } else {
            match self.file.group(path) {
                Ok(group) => group,
                Err(_) => return Ok(None),
            }
        };
        let attrs = group.attrs().map_err(|e| Reason::weights(path, e))?;
        Ok(Some(attrs.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()))
    }
}

fn text(value: AttrValue) -> Option<Text> {
    use AttrValue::*;
    Some(match value {
        String(text)
        | AsciiString(text)
        | VarLenString(text)
        | VarLenAsciiString(text)
        | StringSized { value: text, .. }
        | AsciiStringSized { value: text, .. } => Text::One(text),
        // An empty list of names is stored as an empty list of numbers.
        F64Array(list) if list.is_empty() => Text::Many(Vec::new()),
        value => Text::Many(value.as_strings()?.to_vec()),
    })
}

impl Walk<'_> {
    fn group(&mut self, group: &Group, path: &str, depth: u64) -> Result<(), Reason> {
        // A group may hold a link to one above it: the depth ends such a loop, the count ends a web of them.
        if depth > self.limits.depth {
            return Err(Reason::limit(&format!("the depth of group {path:?}"), depth, self.limits.depth));
        }
        let failed = |e: hdf5_pure::Error| Reason::weights(path, e);
        for (name, dataset) in group.iter_datasets().map_err(failed)? {
            self.count()?;
            let path = join(path, &name);
            let variable = self.dataset(&dataset, path)?;
            self.variables.push(variable);
        }
        for (name, child) in group.iter_groups().map_err(failed)? {
            self.count()?;
            self.group(&child, &join(path, &name), depth + 1)?;
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), Reason> {
        self.objects += 1;
        if self.objects > self.limits.objects {
            return Err(Reason::limit(
                "the number of groups and variables",
                self.objects,
                self.limits.objects,
            ));
        }
        Ok(())
    }

    fn dataset(&self, dataset: &Dataset, path: String) -> Result<Variable, Reason> {
        let refuse = |reason: String| Reason::weights(&path, reason);
        let failed = |e: hdf5_pure::Error| Reason::weights(&path, e);
        let element = element(dataset).map_err(failed)?.map_err(refuse)?;
        let dims = dataset.shape().map_err(failed)?;
        let shape: Option<Vec<usize>> = dims.iter().map(|dim| usize::try_from(*dim).ok()).collect();
        let (shape, bytes) = shape
            .and_then(|shape| element.bytes_of(&shape).map(|bytes| (shape, bytes)))
            .ok_or_else(|| refuse(format!("its shape {dims:?} has more bytes than can be counted")))?;
        let offset = match dataset.layout().map_err(failed)? {
            _ if bytes == 0 => 0,
            Layout::Contiguous { address: Some(address), size } if size == bytes as u64 => address,
            Layout::Contiguous { address: Some(_), size } => {
                return Err(refuse(format!(
                    "its shape {shape:?} of {element} needs {bytes} bytes but it has {size}"
                )));
            }
            Layout::Contiguous { address: None, .. } => {
                return Err(refuse("its values are not in this file".to_string()));
            }
            Layout::Virtual => return Err(refuse("it is a view of another file".to_string())),
            _ => return Err(refuse("it is stored in chunks, which Keras does not do".to_string())),
        };
        if offset.checked_add(bytes as u64).is_none_or(|end| end > self.bytes.len()) {
            return Err(refuse(format!("its {bytes} bytes at {offset} end after the file")));
        }
        Ok(Variable { path, element, shape, bytes, offset })
    }
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}/{name}") }
}

const HALF: FloatingPointLayout = FloatingPointLayout {
    bit_offset: 0,
    bit_precision: 16,
    exponent_location: 10,
    exponent_size: 5,
    mantissa_location: 0,
    mantissa_size: 10,
    exponent_bias: 15,
};

/// The element type of a dataset; the inner error says which type we do not read.
fn element(dataset: &Dataset) -> Result<Result<Element, String>, hdf5_pure::Error> {
    use DatatypeByteOrder::LittleEndian;
    let datatype = dataset.datatype()?;
    let whole = |layout: &hdf5_pure::FixedPointLayout, size: u32| {
        layout.bit_offset == 0 && u64::from(layout.bit_precision) == 8 * u64::from(size)
    };
    let element = match &datatype {
        Datatype::FloatingPoint { size, byte_order: LittleEndian, layout } => match (size, layout) {
            (8, &FloatingPointLayout::IEEE754_BINARY64) => Some(Element::F64),
            (4, &FloatingPointLayout::IEEE754_BINARY32) => Some(Element::F32),
            (2, &HALF) => Some(Element::F16),
            _ => None,
        },
        Datatype::FixedPoint { size, byte_order, layout }
            if whole(layout, *size) && (*size == 1 || *byte_order == LittleEndian) =>
        {
            match (size, layout.signed) {
                (8, true) => Some(Element::I64),
                (4, true) => Some(Element::I32),
                (2, true) => Some(Element::I16),
                (1, true) => Some(Element::I8),
                (8, false) => Some(Element::U64),
                (4, false) => Some(Element::U32),
                (2, false) => Some(Element::U16),
                (1, false) => Some(Element::U8),
                _ => None,
            }
        }
        // h5py's truth value: one byte whose two values have these names.
        Datatype::Enumeration { size: 1, members, .. }
            if members.len() == 2
                && members.iter().any(|m| m.name == "FALSE" && m.value == [0])
                && members.iter().any(|m| m.name == "TRUE" && m.value == [1]) =>
        {
            Some(Element::Bool)
        }
        // HDF5 has no bfloat16; Keras stores two opaque bytes and says in an attribute what they are.
        Datatype::Opaque { size: 2, .. } => {
            let attrs = dataset.attrs()?;
            (attrs.get("dtype").and_then(AttrValue::as_str) == Some("bfloat16")).then_some(Element::BF16)
        }
        _ => None,
    };
    Ok(element.ok_or_else(|| format!("its element type {datatype} is not one we read")))
}
