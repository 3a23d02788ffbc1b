//! Turns named tensors into a safetensors file as a stream: the header first, then each tensor's bytes as they come.

use super::Error;
use crate::Element;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// A tensor to be written: what it is, before its bytes are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub element: Element,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// A tensor to be written, with its bytes: little endian, row-major.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub element: Element,
    /// Its shape.
    pub shape: &'a [usize],
    /// Its elements.
    pub bytes: &'a [u8],
}

/// Writes borrowed tensors as one safetensors file.
pub fn write(
    out: &mut impl Write,
    tensors: &[TensorView],
    metadata: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let by_name: BTreeMap<&str, &[u8]> = tensors.iter().map(|tensor| (tensor.name, tensor.bytes)).collect();
    let spec = |tensor: &TensorView| Spec {
        name: tensor.name.to_string(),
        element: tensor.element,
        shape: tensor.shape.to_vec(),
    };
    for tensor in tensors {
        let expected = tensor.element.bytes_of(tensor.shape).unwrap_or(usize::MAX);
        if expected != tensor.bytes.len() {
            let name = tensor.name.to_string();
            return Err(Error::Written { name, expected, found: tensor.bytes.len() });
        }
    }
    let mut writer = Writer::new(out, tensors.iter().map(spec).collect(), metadata)?;
    while let Some(next) = writer.next_tensor() {
        let bytes = by_name[next.name.as_str()];
        writer.write(bytes)?;
    }
    writer.finish().map(drop)
}

/// A safetensors file being written: announces all tensors, then takes their bytes one tensor after another.
///
/// For tensors whose bytes are not all at hand at once, because they come from a device through a staging buffer:
///
/// ```
/// use plimsoll_formats::Element;
/// use plimsoll_formats::safetensors::{Spec, Writer};
/// let specs = vec![
///     Spec { name: "small".into(), element: Element::U8, shape: vec![3] },
///     Spec { name: "wide".into(), element: Element::F64, shape: vec![1] },
/// ];
/// let mut writer = Writer::new(Vec::new(), specs, &Default::default())?;
/// while let Some(tensor) = writer.next_tensor() {
///     match tensor.name.as_str() {
///         "small" => writer.write(&[1, 2, 3])?,
///         _ => writer.write(&1.5f64.to_le_bytes())?,
///     }
/// }
/// let file = writer.finish()?;
/// assert!(file.ends_with(&[1, 2, 3]));
/// # Ok::<(), plimsoll_formats::safetensors::Error>(())
/// ```
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// The tensors in the order of their bytes, with their sizes.
    specs: Vec<(Spec, usize)>,
    /// The tensor that is being written, and how many of its bytes are.
    at: usize,
    done: usize,
}

impl<W: Write> Writer<W> {
    /// Writes the header of a file of these tensors.
    pub fn new(mut out: W, specs: Vec<Spec>, metadata: &BTreeMap<String, String>) -> Result<Self, Error> {
        let mut sized = Vec::with_capacity(specs.len());
        let mut names = BTreeSet::new();
        for spec in specs {
            let wrong = |reason: &str| Error::Tensor { name: spec.name.clone(), reason: reason.to_string() };
            let Some(bytes) = spec.element.bytes_of(&spec.shape) else {
                return Err(wrong("its shape has more bytes than can be counted"));
            };
            if spec.name == "__metadata__" {
                return Err(wrong("the name is taken by the format"));
            }
            if !names.insert(spec.name.clone()) {
                return Err(wrong("the name is given twice"));
            }
            sized.push((spec, bytes));
        }
        // Wide elements first: then every tensor is aligned to its element, which readers that map the file rely on.
        sized.sort_by_key(|(spec, _)| std::cmp::Reverse(spec.element.bytes()));
        let header = header(&sized, metadata)?;
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        Ok(Writer { out, specs: sized, at: 0, done: 0 })
    }

    /// The tensor that the next bytes belong to; `None` when the file is complete. Tensors without elements are
    /// never asked for.
    pub fn next_tensor(&mut self) -> Option<&Spec> {
        while self.specs.get(self.at).is_some_and(|(_, bytes)| self.done == *bytes) {
            self.at += 1;
            self.done = 0;
        }
        self.specs.get(self.at).map(|(spec, _)| spec)
    }

    /// Writes all or some of the bytes of [`next_tensor`](Writer::next_tensor).
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.next_tensor();
        let Some((spec, size)) = self.specs.get(self.at) else {
            let name = self.specs.last().map(|(spec, _)| spec.name.clone()).unwrap_or_default();
            return Err(Error::Written { name, expected: 0, found: bytes.len() });
        };
        if bytes.len() > size - self.done {
            let found = self.done.saturating_add(bytes.len());
            return Err(Error::Written { name: spec.name.clone(), expected: *size, found });
        }
        self.out.write_all(bytes)?;
        self.done += bytes.len();
        Ok(())
    }

    /// Checks that every tensor was written whole, and gives the stream back, flushed.
    pub fn finish(mut self) -> Result<W, Error> {
        if let Some(spec) = self.next_tensor() {
            let name = spec.name.clone();
            return Err(Error::Written { name, expected: self.specs[self.at].1, found: self.done });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

fn header(specs: &[(Spec, usize)], metadata: &BTreeMap<String, String>) -> Result<Vec<u8>, Error> {
    let json_error = |e: serde_json::Error| Error::Header(e.to_string());
    let mut json = vec![b'{'];
    if !metadata.is_empty() {
        json.extend(b"\"__metadata__\":");
        serde_json::to_writer(&mut json, metadata).map_err(json_error)?;
    }
    let mut begin = 0u64;
    for (spec, bytes) in specs {
        if json.len() > 1 {
            json.push(b',');
        }
        serde_json::to_writer(&mut json, &spec.name).map_err(json_error)?;
        let end = begin.checked_add(*bytes as u64).ok_or_else(|| Error::Tensor {
            name: spec.name.clone(),
            reason: "the tensors have more bytes than can be counted".to_string(),
        })?;
        let entry = serde_json::json!({
            "dtype": spec.element.safetensors_name(),
            "shape": spec.shape,
            "data_offsets": [begin, end],
        });
        json.push(b':');
        serde_json::to_writer(&mut json, &entry).map_err(json_error)?;
        begin = end;
    }
    json.push(b'}');
    // Padding by spaces is the format's own way to align the first tensor.
    while json.len() % 8 != 0 {
        json.push(b' ');
    }
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::super::{Limits, Reader};
    use super::*;
    use std::io::Cursor;

    #[test]
    fn every_element_type_comes_back_with_its_shape_and_bytes_and_is_aligned() {
        let data: Vec<Vec<u8>> =
            Element::ALL.iter().map(|e| (0..3 * e.bytes() as u8).map(|b| b % 2).collect()).collect();
        let tensors: Vec<TensorView> = Element::ALL
            .iter()
            .rev()
            .map(|e| TensorView {
                name: e.name(),
                element: *e,
                shape: &[3, 1],
                bytes: &data[Element::ALL.iter().position(|x| x == e).unwrap_or(0)],
            })
            .collect();
        let mut file = Vec::new();
        write(&mut file, &tensors, &BTreeMap::new()).expect("writing to memory");
        let mut reader = Reader::new(Cursor::new(file), Limits::default()).expect("what was written");
        assert_eq!(reader.tensors().len(), Element::ALL.len());
        for (tensor, view) in
            reader.tensors().to_vec().iter().map(|t| {
                (t, tensors.iter().find(|view| view.name == t.name).expect("a tensor that was written"))
            })
        {
            assert_eq!((tensor.element, tensor.shape.as_slice()), (view.element, view.shape));
            assert_eq!(tensor.offset % tensor.element.bytes() as u64, 0);
            let mut back = vec![9; tensor.bytes];
            reader.read_into(&tensor.name, &mut back).expect("a tensor that was written");
            assert_eq!(back, view.bytes);
        }
    }

    #[test]
    fn a_tensor_may_come_in_pieces_but_neither_short_nor_long() {
        let spec = |name: &str, n| Spec { name: name.into(), element: Element::U8, shape: vec![n] };
        let specs = vec![spec("a", 4), spec("none", 0), spec("b", 1)];
        let none = BTreeMap::new();
        let mut writer = Writer::new(Vec::new(), specs.clone(), &none).expect("good specs");
        writer.write(&[1, 2]).expect("half of a");
        assert_eq!(writer.next_tensor().map(|s| s.name.as_str()), Some("a"));
        assert!(matches!(writer.write(&[3, 4, 5]), Err(Error::Written { expected: 4, found: 5, .. })));
        writer.write(&[3, 4]).expect("the rest of a");
        assert_eq!(writer.next_tensor().map(|s| s.name.as_str()), Some("b"));
        assert!(matches!(writer.finish(), Err(Error::Written { expected: 1, found: 0, .. })));

        let mut writer = Writer::new(Vec::new(), specs, &none).expect("good specs");
        writer.write(&[1, 2, 3, 4]).expect("a");
        writer.write(&[5]).expect("b");
        assert!(writer.next_tensor().is_none());
        assert!(writer.write(&[6]).is_err());
        assert!(writer.finish().expect("a complete file").ends_with(&[1, 2, 3, 4, 5]));
    }

    #[test]
    fn names_twice_and_reserved_names_are_refused() {
        let spec = |name: &str| Spec { name: name.into(), element: Element::U8, shape: vec![] };
        for names in [["a", "a"], ["a", "__metadata__"]] {
            let specs = names.map(spec).to_vec();
            assert!(Writer::new(Vec::new(), specs, &BTreeMap::new()).is_err());
        }
    }

    #[test]
    fn a_tensor_whose_bytes_do_not_fit_its_shape_is_refused_before_anything_is_written() {
        let tensor = TensorView { name: "w", element: Element::F32, shape: &[2], bytes: &[0; 7] };
        let mut file = Vec::new();
        assert!(write(&mut file, &[tensor], &BTreeMap::new()).is_err());
        assert!(file.is_empty());
    }
}
