//! Turns the bytes of an `.onnx` file into plain data: a graph of named nodes, checked, with its tensors left where they lie.
//!
//! Nothing is run. Large tensors stay in the file, or in the files beside it, until they are asked for; a file beside it must lie in the
//! model's folder or below.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use plimsoll_graph::{DType, Type};
use prost::Message;
use prost::bytes::Bytes;

use crate::constant::{Constant, dtype_of, type_of};
use crate::error::{Error, Result};
use crate::functions;
use crate::limits::{self, Limits};
use crate::messages::tensor_proto::DataLocation;
use crate::messages::tensor_shape_proto::dimension::Value as Dim;
use crate::messages::type_proto::Value as TypeValue;
use crate::messages::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};

/// The opsets of the standard ops that are read: what changed between them is known here.
pub(crate) const OPSETS: std::ops::RangeInclusive<i64> = 7..=28;

/// Tensors of fewer bytes are kept in memory.
const SMALL: usize = 4096;

/// An `.onnx` file: its graph, and where its tensors are.
#[derive(Clone, Debug)]
pub struct OnnxFile {
    /// What it is called in errors: its path.
    pub name: String,
    /// The version of the standard ops that it is written in.
    pub opset: i64,
    /// The version of the format.
    pub ir_version: i64,
    /// What wrote it.
    pub producer: String,
    /// Its graph.
    pub graph: Graph,
    /// Files that hold tensors of it, relative to its folder.
    pub beside: Vec<PathBuf>,
    source: Option<Source>,
}

/// The file that large tensors are read from, as it was when the graph was.
#[derive(Clone, Debug)]
struct Source {
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
}

/// A graph of nodes, each of which reads what earlier ones make.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// What it is given, without initializers.
    pub inputs: Vec<Port>,
    /// What it gives.
    pub outputs: Vec<Port>,
    /// Values that are stored, by name.
    pub initializers: Vec<(String, Stored)>,
    /// What is computed, in this order.
    pub nodes: Vec<Node>,
}

/// An input or output of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The element type, where it is said.
    pub dtype: Option<DType>,
    /// The lengths of its axes, where they are said.
    pub axes: Option<Vec<Axis>>,
}

/// What is said of an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Its length.
    Fixed(usize),
    /// A name, which stands for the same length wherever it comes up.
    Named(String),
    /// Nothing.
    Open,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name; where it has none, that of what it makes.
    pub name: String,
    /// Its op.
    pub op: String,
    /// Where the op is defined: empty for the standard ones.
    pub domain: String,
    /// What it reads, by name; empty for what is left out.
    pub inputs: Vec<String>,
    /// What it makes, by name; empty for what nobody wants.
    pub outputs: Vec<String>,
    /// Its settings.
    pub(crate) attributes: Vec<AttributeProto>,
    /// The graphs among its settings.
    pub graphs: Vec<(String, Graph)>,
}

/// A tensor of a file.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Element type and shape.
    pub ty: Type,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Memory(Constant),
    /// In the file itself, from an offset on.
    Inside(u64),
    /// In another file, from an offset on.
    Beside(PathBuf, u64),
}

impl OnnxFile {
    /// Reads a file within the usual limits.
    ///
    /// # Errors
    /// The file is damaged, larger than the limits, or holds what is not read here.
    pub fn open(path: impl AsRef<Path>) -> Result<OnnxFile> {
        OnnxFile::open_within(path.as_ref(), &Limits::default())
    }

    /// Reads a file within limits.
    pub fn open_within(path: &Path, limits: &Limits) -> Result<OnnxFile> {
        let name = path.display().to_string();
        let failed = |why| Error::Io { file: name.clone(), why };
        let mut file = File::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(Error::damaged(&name, "it is not a file"));
        }
        if about.len() > limits.file_bytes {
            let (found, limit) = (about.len(), limits.file_bytes);
            return Err(Error::Limit { file: name, what: "its size in bytes", found, limit });
        }
        let mut bytes = Vec::with_capacity(about.len() as usize);
        file.by_ref().take(limits.file_bytes).read_to_end(&mut bytes).map_err(failed)?;
        let source = Source { path: path.to_path_buf(), bytes: about.len(), modified: about.modified().ok() };
        OnnxFile::of(bytes.into(), &name, Some(source), limits)
    }

    /// A file that is in memory; `name` stands for it in errors. Tensors that lie in other files are refused.
    pub fn from_bytes(bytes: Vec<u8>, name: &str, limits: &Limits) -> Result<OnnxFile> {
        OnnxFile::of(bytes.into(), name, None, limits)
    }

    fn of(bytes: Bytes, name: &str, source: Option<Source>, limits: &Limits) -> Result<OnnxFile> {
        if bytes.len() as u64 > limits.file_bytes {
            let (found, limit) = (bytes.len() as u64, limits.file_bytes);
            return Err(Error::Limit { file: name.into(), what: "its size in bytes", found, limit });
        }
        if bytes.starts_with(b"\x1f\x8b") || bytes.starts_with(b"PK\x03\x04") {
            return Err(Error::damaged(name, "it is compressed; unpack it first"));
        }
        limits::check(&bytes, name, limits)?;
        let wrong = |why: &str| Error::damaged(name, why);
        let model = ModelProto::decode(bytes.clone()).map_err(|why| {
            Error::damaged(name, format!("it is not an ONNX file, or it is damaged: {why}"))
        })?;
        let ir_version = model.ir_version.unwrap_or(0);
        if ir_version < 3 {
            return Err(wrong(
                "it does not say which version of the format it is written in, or one before 3",
            ));
        }
        if !model.training_info.is_empty() {
            return Err(wrong("it holds graphs of a training, which are not read; export the model itself"));
        }
        let opset = opset(&model, name)?;
        let producer = [&model.producer_name, &model.producer_version]
            .into_iter()
            .flatten()
            .filter(|text| !text.is_empty())
            .cloned()
            .collect::<Vec<_>>()
            .join(" ");
        let mut graph = model.graph.ok_or_else(|| wrong("it holds no graph"))?;
        functions::inline(&mut graph, &model.functions, opset, name, limits)?;
        functions::separate(&mut graph);
        let reader = Reader { bytes: &bytes, name, source: source.as_ref(), beside: RefCell::default() };
        let graph = reader.graph(graph, &HashSet::new())?;
        let beside = reader.beside.into_inner();
        Ok(OnnxFile { name: name.into(), opset, ir_version, producer, graph, beside, source })
    }

    /// The file once more as messages, with all of its tensors inside: to be written again with others in their place.
    pub(crate) fn messages(&self) -> Result<ModelProto> {
        let source = self.source.as_ref();
        let source =
            source.ok_or_else(|| Error::damaged(&self.name, "it has no path to be read from again"))?;
        let bytes = std::fs::read(&source.path).map_err(|why| Error::Io { file: self.name.clone(), why })?;
        if bytes.len() as u64 != source.bytes {
            return Err(Error::damaged(&self.name, "it has changed since it was opened; start again"));
        }
        let wrong = |why: String| Error::damaged(&self.name, why);
        let mut model = ModelProto::decode(Bytes::from(bytes)).map_err(|why| wrong(why.to_string()))?;
        let graph = model.graph.as_mut().ok_or_else(|| wrong("it holds no graph".into()))?;
        functions::separate(graph);
        for tensor in &mut graph.initializer {
            if tensor.data_location == Some(DataLocation::External as i32) {
                let name = tensor.name.clone().unwrap_or_default();
                let found = self.graph.initializers.iter().find(|(own, _)| *own == name);
                let (_, stored) = found.ok_or_else(|| wrong(format!("there is no tensor {name}")))?;
                tensor.raw_data = Some(self.read(stored)?.to_le().into());
                tensor.data_location = None;
                tensor.external_data.clear();
            }
        }
        Ok(model)
    }

    /// The elements of a stored tensor.
    ///
    /// # Errors
    /// It cannot be read, or its file is not what it was.
    pub fn read(&self, stored: &Stored) -> Result<Constant> {
        let (path, offset) = match &stored.place {
            Place::Memory(constant) => return Ok(constant.clone()),
            Place::Inside(offset) => {
                let source = self.source.as_ref().ok_or_else(|| {
                    Error::damaged(&self.name, "its tensors cannot be read: it has no path")
                })?;
                let now = std::fs::metadata(&source.path)
                    .map_err(|why| Error::Io { file: self.name.clone(), why })?;
                if now.len() != source.bytes || now.modified().ok() != source.modified {
                    return Err(Error::damaged(
                        &self.name,
                        "it has changed since it was opened; start again",
                    ));
                }
                (&source.path, *offset)
            }
            Place::Beside(path, offset) => (path, *offset),
        };
        let failed = |why| Error::Io { file: path.display().to_string(), why };
        let mut file = File::open(path).map_err(failed)?;
        file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        let mut bytes = vec![0; stored.ty.bytes()];
        file.read_exact(&mut bytes).map_err(failed)?;
        Constant::from_le(stored.ty.clone(), bytes.into()).map_err(|why| Error::damaged(&self.name, why))
    }
}

/// The version of the standard ops.
fn opset(model: &ModelProto, name: &str) -> Result<i64> {
    let own = model.opset_import.iter().filter(|set| is_standard(set.domain.as_deref().unwrap_or("")));
    let versions: Vec<i64> = own.map(|set| set.version.unwrap_or(1)).collect();
    match versions[..] {
        [version] if OPSETS.contains(&version) => Ok(version),
        [version] => {
            let (first, last) = (OPSETS.start(), OPSETS.end());
            let why = format!(
                "it is written in opset {version}, and {first} to {last} are read; convert it with onnx.version_converter"
            );
            Err(Error::damaged(name, why))
        }
        [] => Err(Error::damaged(name, "it does not say which opset it is written in")),
        _ => Err(Error::damaged(name, "it names two versions of the standard opset")),
    }
}

/// Whether a domain is that of the standard ops, which has two names.
pub(crate) fn is_standard(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

struct Reader<'a> {
    bytes: &'a Bytes,
    name: &'a str,
    source: Option<&'a Source>,
    beside: RefCell<Vec<PathBuf>>,
}

impl Reader<'_> {
    fn graph(&self, graph: GraphProto, outer: &HashSet<String>) -> Result<Graph> {
        let wrong = |why: String| Error::damaged(self.name, why);
        if !graph.sparse_initializer.is_empty() {
            return Err(wrong("it holds sparse initializers, which are not read".into()));
        }
        let mut known: HashSet<String> = HashSet::new();
        let mut initializers = Vec::new();
        for tensor in graph.initializer {
            let own = tensor.name.clone().unwrap_or_default();
            if own.is_empty() || !known.insert(own.clone()) {
                return Err(wrong(format!("initializer {own:?} has no name, or one that another has")));
            }
            let stored = self.stored(tensor).map_err(|why| wrong(format!("initializer {own}: {why}")))?;
            initializers.push((own, stored));
        }
        let mut inputs = Vec::new();
        for info in &graph.input {
            let port = port(info).map_err(|why| wrong(format!("an input of its graph: {why}")))?;
            // Before version 4 initializers had to be listed as inputs too.
            if initializers.iter().any(|(name, _)| *name == port.name) {
                continue;
            }
            if !known.insert(port.name.clone()) {
                return Err(wrong(format!("two inputs are called {}", port.name)));
            }
            inputs.push(port);
        }
        let mut nodes = Vec::with_capacity(graph.node.len());
        for node in graph.node {
            nodes.push(self.node(node, &mut known, outer)?);
        }
        let mut outputs = Vec::new();
        for info in &graph.output {
            let port = port(info).map_err(|why| wrong(format!("an output of its graph: {why}")))?;
            if !known.contains(&port.name) && !outer.contains(&port.name) {
                return Err(wrong(format!("output {} is made by no node", port.name)));
            }
            outputs.push(port);
        }
        Ok(Graph { inputs, outputs, initializers, nodes })
    }

    fn node(&self, node: NodeProto, known: &mut HashSet<String>, outer: &HashSet<String>) -> Result<Node> {
        let made = node.output.iter().find(|name| !name.is_empty()).cloned().unwrap_or_default();
        let name = node.name.clone().filter(|name| !name.is_empty()).unwrap_or(made);
        let op = node.op_type.clone().unwrap_or_default();
        let wrong = |why: String| Error::damaged(self.name, format!("node {name} ({op}): {why}"));
        if op.is_empty() {
            return Err(wrong("it names no op".into()));
        }
        for input in node.input.iter().filter(|input| !input.is_empty()) {
            if !known.contains(input) && !outer.contains(input) {
                let why = format!(
                    "it reads {input}, which nothing before it makes: the graph has a cycle or a gap"
                );
                return Err(wrong(why));
            }
        }
        let mut attributes = Vec::new();
        let mut graphs = Vec::new();
        let mut names = HashSet::new();
        for mut attribute in node.attribute {
            let own = attribute.name.clone().unwrap_or_default();
            if own.is_empty() || !names.insert(own.clone()) {
                return Err(wrong(format!("attribute {own:?} has no name, or stands twice")));
            }
            if attribute.ref_attr_name.as_deref().is_some_and(|name| !name.is_empty()) {
                return Err(wrong(format!("attribute {own} refers to a function's, and this is none")));
            }
            if let Some(graph) = attribute.g.take() {
                let seen: HashSet<String> = known.union(outer).cloned().collect();
                graphs.push((own, self.graph(graph, &seen)?));
                continue;
            }
            if !attribute.graphs.is_empty() {
                return Err(wrong(format!("attribute {own} is a list of graphs, which is not read")));
            }
            if let Some(tensor) = &mut attribute.t {
                // A slice would keep the whole file in memory.
                tensor.raw_data = tensor.raw_data.as_ref().map(|raw| Bytes::copy_from_slice(raw));
            }
            attribute.s = attribute.s.as_ref().map(|text| Bytes::copy_from_slice(text));
            attribute.strings = attribute.strings.iter().map(|text| Bytes::copy_from_slice(text)).collect();
            attributes.push(attribute);
        }
        for output in node.output.iter().filter(|output| !output.is_empty()) {
            if !known.insert(output.clone()) {
                return Err(wrong(format!("it makes {output}, which is there already")));
            }
        }
        let domain = node.domain.filter(|domain| !is_standard(domain)).unwrap_or_default();
        Ok(Node { name, op, domain, inputs: node.input, outputs: node.output, attributes, graphs })
    }

    fn stored(&self, tensor: TensorProto) -> Result<Stored, String> {
        let ty = type_of(&tensor)?;
        if tensor.data_location == Some(DataLocation::External as i32) {
            return self.external(ty, &tensor);
        }
        let Some(raw) = &tensor.raw_data else {
            return Ok(Stored { ty, place: Place::Memory(Constant::read(&tensor)?) });
        };
        if raw.len() != ty.bytes() {
            return Err(format!("it is {ty}, but {} bytes are stored", raw.len()));
        }
        // Where the bytes are a slice of the file, they can be read from there again.
        let offset = (raw.as_ptr() as usize).checked_sub(self.bytes.as_ptr() as usize);
        let is_slice = offset.is_some_and(|offset| offset + raw.len() <= self.bytes.len());
        match (offset, self.source) {
            (Some(offset), Some(_)) if is_slice && raw.len() >= SMALL && tensor.segment.is_none() => {
                Ok(Stored { ty, place: Place::Inside(offset as u64) })
            }
            _ => {
                let own = TensorProto { raw_data: Some(Bytes::copy_from_slice(raw)), ..tensor };
                Ok(Stored { ty, place: Place::Memory(Constant::read(&own)?) })
            }
        }
    }

    /// A tensor in a file beside the model's: below its folder, and as long as it says.
    fn external(&self, ty: Type, tensor: &TensorProto) -> Result<Stored, String> {
        let entry = |key: &str| {
            let found = tensor.external_data.iter().find(|entry| entry.key.as_deref() == Some(key));
            found.and_then(|entry| entry.value.clone())
        };
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => {
                text.parse::<u64>().map(Some).map_err(|_| format!("its {key} {text:?} is no number"))
            }
        };
        let location = entry("location").ok_or("it lies in another file, but does not say in which")?;
        let Some(source) = self.source else {
            return Err(format!("it lies in {location:?}, and a model in memory has no folder"));
        };
        let relative = Path::new(&location);
        let is_below =
            relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if location.is_empty() || !is_below {
            return Err(format!("it lies in {location:?}, which is not below the model's folder"));
        }
        let folder = match source.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let path = folder.join(relative);
        let real = |path: &Path| path.canonicalize().map_err(|why| format!("{}: {why}", path.display()));
        // A link could lead out of the folder.
        let (whole, home) = (real(&path)?, real(folder)?);
        if !whole.starts_with(&home) {
            return Err(format!("it lies in {location:?}, which leads out of the model's folder"));
        }
        let bytes = std::fs::metadata(&whole).map_err(|why| format!("{}: {why}", path.display()))?.len();
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        let wanted = ty.bytes() as u64;
        if length.is_some_and(|length| length != wanted) {
            return Err(format!("it is {ty}, but {} bytes are stored", length.unwrap_or(0)));
        }
        if offset.checked_add(wanted).is_none_or(|end| end > bytes) {
            return Err(format!("it ends beyond {location:?}, which has {bytes} bytes"));
        }
        let mut beside = self.beside.borrow_mut();
        if !beside.iter().any(|known| known == relative) {
            beside.push(relative.to_path_buf());
        }
        Ok(Stored { ty, place: Place::Beside(whole, offset) })
    }
}

fn port(info: &ValueInfoProto) -> Result<Port, String> {
    let name = info.name.clone().unwrap_or_default();
    if name.is_empty() {
        return Err("it has no name".into());
    }
    let Some(TypeValue::TensorType(tensor)) = info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) else {
        return match info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
            None => Ok(Port { name, dtype: None, axes: None }),
            Some(_) => Err(format!("{name} is a sequence, a map or an optional value, not a tensor")),
        };
    };
    let dtype = match tensor.elem_type.unwrap_or(0) {
        0 => None,
        number => Some(dtype_of(number).map_err(|kind| format!("{name} has {kind} elements"))?),
    };
    let axes = match &tensor.shape {
        None => None,
        Some(shape) if shape.dim.len() > 32 => return Err(format!("{name} has {} axes", shape.dim.len())),
        Some(shape) => {
            let axis = |dim: &Option<Dim>| match dim {
                Some(Dim::DimValue(n)) => match usize::try_from(*n) {
                    Ok(n) if n <= 1 << 40 => Ok(Axis::Fixed(n)),
                    // Some tools write -1 for what is not known.
                    _ if *n < 0 => Ok(Axis::Open),
                    _ => Err(format!("{name} has an axis of length {n}")),
                },
                Some(Dim::DimParam(symbol)) if !symbol.is_empty() => Ok(Axis::Named(symbol.clone())),
                _ => Ok(Axis::Open),
            };
            Some(shape.dim.iter().map(|dim| axis(&dim.value)).collect::<Result<Vec<Axis>, String>>()?)
        }
    };
    Ok(Port { name, dtype, axes })
}
