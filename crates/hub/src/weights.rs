//! Turns a folder's safetensors files, one or many, into tensors by name, each read when it is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use plimsoll_formats::Element;
use plimsoll_formats::safetensors::{Reader, Tensor};
use plimsoll_graph::{DType, Type};
use serde_json::Value;

use crate::config::read_json;
use crate::error::{Error, Result};

/// Bytes of an index at most: that of a model of a thousand layers has half a megabyte.
const LARGEST_INDEX: u64 = 64 << 20;
/// Bytes that are read and converted at a time: enough that starting costs nothing, and little beside a tensor.
const PIECE: usize = 8 << 20;

/// The tensors of a folder. None is in memory.
#[derive(Debug)]
pub struct Weights {
    files: Vec<(PathBuf, Reader<File>)>,
    /// The file of each tensor.
    places: BTreeMap<String, usize>,
    /// What a piece is read and converted into: memory that was used before need not be had from the system again.
    piece: [Vec<u8>; 2],
}

impl Weights {
    /// Opens `model.safetensors`, or all files that `model.safetensors.index.json` names, and reads their headers.
    pub fn open(folder: &Path) -> Result<Weights> {
        let (one, index) = (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
        if one.is_file() {
            return Weights::of(vec![one]);
        }
        if !index.is_file() {
            let other = ["pytorch_model.bin", "pytorch_model.bin.index.json"]
                .iter()
                .find(|f| folder.join(f).is_file());
            let why = match other {
                Some(file) => format!(
                    "it has {file} and no model.safetensors; pickles are not read: save it as safetensors"
                ),
                None => "it has neither model.safetensors nor model.safetensors.index.json".into(),
            };
            return Err(Error::file(folder, why));
        }
        let listed = listed(&index)?;
        let names: BTreeSet<&String> = listed.values().collect();
        let weights = Weights::of(names.into_iter().map(|name| folder.join(name)).collect())?;
        for (tensor, file) in &listed {
            let at = weights.places.get(tensor).map(|&i| &weights.files[i].0);
            if at.is_none_or(|at| *at != folder.join(file)) {
                let why = format!("it says that {file} holds the tensor {tensor:?}, which it does not");
                return Err(Error::file(&index, why));
            }
        }
        Ok(weights)
    }

    /// Opens these files and reads their headers.
    pub fn of(paths: Vec<PathBuf>) -> Result<Weights> {
        let (mut files, mut places) = (Vec::new(), BTreeMap::<String, usize>::new());
        for path in paths {
            let reader = Reader::open(&path).map_err(Error::tensors(&path))?;
            for tensor in reader.tensors() {
                if places.insert(tensor.name.clone(), files.len()).is_some() {
                    let why = format!("the tensor {:?} is in another file of the folder too", tensor.name);
                    return Err(Error::file(&path, why));
                }
            }
            files.push((path, reader));
        }
        Ok(Weights { files, places, piece: [Vec::new(), Vec::new()] })
    }

    /// The names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// What a tensor is, and the file it is in.
    pub fn find(&self, name: &str) -> Option<(&Path, &Tensor)> {
        let (path, reader) = &self.files[*self.places.get(name)?];
        Some((path, reader.tensor(name).ok()?))
    }

    /// The widest type of float that a tensor has: f32 among 16-bit weights is kept exactly.
    pub fn widest(&self) -> Option<DType> {
        let all = self.names().filter_map(|name| self.find(name)?.1.element.dtype());
        all.filter(|dtype| dtype.is_float()).max_by_key(|dtype| dtype.bytes())
    }

    /// Bytes of all tensors together, as they are stored.
    pub fn bytes(&self) -> u64 {
        self.files.iter().flat_map(|(_, reader)| reader.tensors()).map(|tensor| tensor.bytes as u64).sum()
    }

    /// Where a tensor's bytes are: the number of its file, and the place in it.
    pub(crate) fn place(&self, name: &str) -> (usize, u64) {
        let at = self.places.get(name).copied();
        let offset = at.and_then(|at| self.files[at].1.tensor(name).ok()).map_or(0, |tensor| tensor.offset);
        (at.unwrap_or(usize::MAX), offset)
    }

    /// Whether a tensor is there, has this shape, and holds floats.
    ///
    /// # Errors
    /// Not so: it names file and tensor.
    pub fn check(&self, name: &str, ty: &Type) -> Result<()> {
        let Some((path, tensor)) = self.find(name) else {
            let path = self.files.first().map_or(PathBuf::from("."), |(path, _)| path.clone());
            let folder = path.parent().map_or(path.clone(), Path::to_path_buf);
            return Err(Error::file(&folder, format!("no file of weights holds the tensor {name:?}")));
        };
        let wrong = |why: String| Err(Error::file(path, format!("tensor {name:?}: {why}")));
        if tensor.shape[..] != ty.shape[..] {
            return wrong(format!(
                "its shape is {:?}, and the config says {:?}",
                tensor.shape,
                &ty.shape[..]
            ));
        }
        match converter(tensor.element, ty.dtype) {
            Some(_) => Ok(()),
            None => wrong(format!("it holds {}, which cannot become {}", tensor.element.name(), ty.dtype)),
        }
    }

    /// Copies a tensor out as numbers of the given type, whose shape must be its own. Wider floats than the type's are rounded,
    /// narrower ones are exact.
    ///
    /// # Errors
    /// There is none of that name, it has another shape or other numbers, or the file is damaged: each names file and tensor.
    pub fn read(&mut self, name: &str, ty: &Type) -> Result<Vec<u8>> {
        let mut all = Vec::with_capacity(ty.bytes());
        self.read_in_pieces(name, ty, |_, bytes| {
            all.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(all)
    }

    /// Gives back what pieces are read into.
    pub(crate) fn release(&mut self) {
        self.piece = [Vec::new(), Vec::new()];
    }

    /// As [`Weights::read`], a piece at a time: where it begins, and its bytes. No more than a piece is in memory.
    pub fn read_in_pieces(
        &mut self,
        name: &str,
        ty: &Type,
        mut give: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.check(name, ty)?;
        let (at, _) = self.place(name);
        let [piece, converted] = &mut self.piece;
        let (path, reader) = &mut self.files[at];
        let tensor = reader.tensor(name).map_err(Error::tensors(path))?;
        let (bytes, element) = (tensor.bytes, tensor.element);
        let Some(convert) = converter(element, ty.dtype) else { return Ok(()) };
        piece.resize(PIECE.min(bytes).max(piece.len()), 0);
        let (mut done, mut given) = (0, 0);
        while done < bytes {
            let n = PIECE.min(bytes - done);
            reader
                .read_part(name, done, &mut piece[..n])
                .map_err(|source| Error::file(path, format!("tensor {name:?}: {source}")))?;
            done += n;
            if element == Element::from(ty.dtype) {
                give(given, &piece[..n])?;
                given += n;
                continue;
            }
            converted.clear();
            convert(&piece[..n], converted);
            give(given, converted)?;
            given += converted.len();
        }
        Ok(())
    }
}

/// The files of an index by tensor. A file's name is a name and no way out of the folder.
fn listed(index: &Path) -> Result<BTreeMap<String, String>> {
    let wrong = |why: &str| Error::file(index, why);
    let value = read_json(index, LARGEST_INDEX)?;
    let Some(Value::Object(map)) = value.get("weight_map") else {
        return Err(wrong("it has no weight_map, which names a file for each tensor"));
    };
    let mut all = BTreeMap::new();
    for (tensor, file) in map {
        let file =
            file.as_str().ok_or_else(|| wrong(&format!("weight_map: {tensor:?} has no file's name")))?;
        if file.contains(['/', '\\']) || !file.ends_with(".safetensors") {
            return Err(wrong(&format!("weight_map: {file:?} is no safetensors file of the folder")));
        }
        all.insert(tensor.clone(), file.to_string());
    }
    match all.is_empty() {
        true => Err(wrong("its weight_map names no tensor")),
        false => Ok(all),
    }
}

type Convert = fn(&[u8], &mut Vec<u8>);

/// How stored floats become floats of a type; pieces are whole elements, since a piece is a power of two.
fn converter(from: Element, to: DType) -> Option<Convert> {
    fn each<const N: usize, const M: usize>(bytes: &[u8], out: &mut Vec<u8>, f: impl Fn([u8; N]) -> [u8; M]) {
        let (whole, _) = bytes.as_chunks::<N>();
        out.extend(whole.iter().flat_map(|x| f(*x)));
    }
    Some(match (from, to) {
        (Element::F32, DType::F32)
        | (Element::BF16, DType::BF16)
        | (Element::F16, DType::F16)
        | (Element::F64, DType::F64) => |bytes, out| out.extend_from_slice(bytes),
        (Element::BF16, DType::F32) => {
            |b, out| each(b, out, |x| bf16::from_le_bytes(x).to_f32().to_le_bytes())
        }
        (Element::F16, DType::F32) => |b, out| each(b, out, |x| f16::from_le_bytes(x).to_f32().to_le_bytes()),
        (Element::F64, DType::F32) => |b, out| each(b, out, |x| (f64::from_le_bytes(x) as f32).to_le_bytes()),
        (Element::F32, DType::BF16) => {
            |b, out| each(b, out, |x| bf16::from_f32(f32::from_le_bytes(x)).to_le_bytes())
        }
        (Element::F16, DType::BF16) => {
            |b, out| each(b, out, |x| bf16::from_f32(f16::from_le_bytes(x).to_f32()).to_le_bytes())
        }
        (Element::F32, DType::F16) => {
            |b, out| each(b, out, |x| f16::from_f32(f32::from_le_bytes(x)).to_le_bytes())
        }
        (Element::BF16, DType::F16) => {
            |b, out| each(b, out, |x| f16::from_f32(bf16::from_le_bytes(x).to_f32()).to_le_bytes())
        }
        (Element::F32, DType::F64) => {
            |b, out| each(b, out, |x| f64::from(f32::from_le_bytes(x)).to_le_bytes())
        }
        (Element::BF16, DType::F64) => {
            |b, out| each(b, out, |x| bf16::from_le_bytes(x).to_f64().to_le_bytes())
        }
        (Element::F16, DType::F64) => |b, out| each(b, out, |x| f16::from_le_bytes(x).to_f64().to_le_bytes()),
        _ => return None,
    })
}
