//! Turns a Keras model file into plain data — a tree of layers, a list of calls, named variables — and back.
//!
//! Three kinds of file are read: `.keras` archives (Keras 3, and the last versions of Keras 2), legacy `.h5` files, and
//! `.weights.h5` files, which hold no configuration. Variables stay on disk until they are asked for. All three are
//! written again with new values, the optimizer's state included, for `keras.models.load_model` to open.
//!
//! A model that is in the memory of a running Keras is read the same way ([`KerasFile::live`]). That is in `live`, and how files are written
//! in `write`, since neither is needed to read one.
//!
//! What is not here: the meaning of layers. A layer unknown to the importer, or one that carries Python code, is data
//! with a class name and a place.
//!
//! ```
//! use plimsoll_formats::keras::KerasFile;
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/keras/cnn.keras");
//! let file = KerasFile::open(path)?;
//! let model = file.model().expect("this file has a configuration, of a Sequential model");
//! for layer in &model.layers {
//!     for variable in file.variables_of(layer) {
//!         let mut bytes = vec![0; variable.bytes];
//!         file.read_into(&variable.path, &mut bytes)?;
//!     }
//! }
//! assert_eq!(file.variable("layers/dense/vars/0")?.shape, [3, 4]);
//! # Ok::<(), plimsoll_formats::keras::Error>(())
//! ```

mod archive;
mod bytes;
mod calls;
mod config;
mod error;
mod first_failure;
mod hdf5;
mod hdf5_links;
mod hdf5_types;
mod hdf5_write;
mod json;
mod legacy;
mod live;
mod names;
mod write;

pub use calls::{Argument, Call, Port, TensorRef};
pub use config::{Layer, Model, Policy};
pub use error::{Error, Reason};
pub use live::Values;
pub use write::{Contents, write_keras, write_keras_checked, write_weights};

use crate::Element;
use bytes::{Bytes, ReadSeek};
use hdf5::Hdf5;
use hdf5_write::Attributes;
use live::Held;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::path::Path;

const OLD_LAYERS: &str = "_layer_checkpoint_dependencies";

/// How much a file may make the reader take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of each JSON text. Parsed, it can take some twenty times as much.
    pub json: u64,
    /// Members of the archive.
    pub members: u64,
    /// How many times larger a member may get by inflating it. Keras has the same bound.
    pub expansion: u64,
    /// Bytes of compressed weights once inflated, since these are held in memory.
    pub inflated: u64,
    /// Groups and variables among the weights.
    pub objects: u64,
    /// How deep groups may be nested.
    pub depth: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            json: 16 << 20,
            members: 10_000,
            expansion: 100,
            inflated: 1 << 30,
            objects: 200_000,
            depth: 32,
        }
    }
}

/// A variable in a file: a weight, a statistic, or a piece of the optimizer's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its place: `layers/dense/vars/0`, `optimizer/vars/3`, `model_weights/dense/dense/kernel`.
    pub path: String,
    /// The type of its elements.
    pub element: Element,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How many bytes it has.
    pub bytes: usize,
    /// Where they are in the weights.
    offset: u64,
}

impl Variable {
    /// A variable to be written; `None` if its bytes cannot be counted.
    pub fn new(path: &str, element: Element, shape: &[usize]) -> Option<Variable> {
        let bytes = element.bytes_of(shape)?;
        Some(Variable { path: path.to_string(), element, shape: shape.to_vec(), bytes, offset: 0 })
    }
}

/// Which of the three kinds a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A `.keras` archive.
    Archive,
    /// A legacy `.h5` file: configuration and weights in one HDF5 file.
    Legacy,
    /// A `.weights.h5` file: weights without a configuration.
    Weights,
}

/// A Keras file, whose configuration and list of variables have been read and checked.
pub struct KerasFile {
    file: String,
    kind: Kind,
    config: String,
    metadata: String,
    version: String,
    root: Option<Layer>,
    compile_config: Value,
    variables: Vec<Variable>,
    by_path: HashMap<String, usize>,
    /// Legacy files store the order of each group's variables.
    ordered: BTreeMap<String, Vec<usize>>,
    /// Legacy files store texts on their groups: the configuration, the names of layers and weights.
    groups: BTreeMap<String, Attributes>,
    held: Held,
}

impl KerasFile {
    /// Opens a file of any of the three kinds, with the default limits.
    pub fn open(path: impl AsRef<Path>) -> Result<KerasFile, Error> {
        KerasFile::open_within(path, &Limits::default())
    }

    /// Opens a file of any of the three kinds.
    pub fn open_within(path: impl AsRef<Path>, limits: &Limits) -> Result<KerasFile, Error> {
        let name = path.as_ref().display().to_string();
        let file = File::open(path.as_ref()).map_err(|e| Reason::from(e).of(&name))?;
        KerasFile::read(Box::new(file), &name, limits).map_err(|reason| reason.of(&name))
    }

    /// Opens a file that is in memory; `name` stands for it in errors.
    pub fn from_bytes(bytes: Vec<u8>, name: &str, limits: &Limits) -> Result<KerasFile, Error> {
        KerasFile::read(Box::new(std::io::Cursor::new(bytes)), name, limits).map_err(|reason| reason.of(name))
    }

    fn read(file: Box<dyn ReadSeek>, name: &str, limits: &Limits) -> Result<KerasFile, Reason> {
        let bytes = Bytes::new(file)?;
        let mut magic = [0; 8];
        let n = bytes.len().min(8) as usize;
        bytes.read_exact_at(0, &mut magic[..n])?;
        let mut keras = if magic.starts_with(b"PK\x03\x04") {
            KerasFile::read_archive(&bytes, limits)?
        } else if magic == *b"\x89HDF\r\n\x1a\n" {
            legacy::read(bytes, limits)?
        } else {
            // The index of weights in several files is a JSON object.
            let is_index = magic.starts_with(b"{") && name.ends_with(".weights.json");
            return Err(if is_index { Reason::Sharded } else { Reason::Format });
        };
        keras.file = name.to_string();
        Ok(keras)
    }

    fn read_archive(bytes: &Bytes, limits: &Limits) -> Result<KerasFile, Reason> {
        let archive = archive::open(bytes, limits)?;
        let metadata: Value = match archive.metadata.as_str() {
            "" => Value::Null,
            text => json::parse(text).map_err(|e| Reason::member(archive::METADATA, e))?,
        };
        let version = metadata.get("keras_version").and_then(Value::as_str).unwrap_or_default().to_string();
        let (mut root, compile_config) = config::model(&archive.config, version.starts_with("2."))?;
        let variables = Hdf5::open(archive.weights.clone())?.variables(limits)?;
        check_numbers(&variables)?;
        // The first archives, of Keras 2.12 and 2.13, call the list of layers by another name.
        let is_old = variables.iter().any(|variable| variable.path.starts_with(OLD_LAYERS));
        config::assign_paths(&mut root, String::new(), if is_old { OLD_LAYERS } else { "layers" });
        Ok(KerasFile {
            config: archive.config,
            metadata: archive.metadata,
            version,
            root: Some(root),
            compile_config,
            ..KerasFile::of_variables(Kind::Archive, variables, Held::File(archive.weights))
        })
    }

    fn of_variables(kind: Kind, variables: Vec<Variable>, held: Held) -> KerasFile {
        let by_path = variables.iter().enumerate().map(|(i, variable)| (variable.path.clone(), i)).collect();
        KerasFile {
            file: String::new(),
            kind,
            config: String::new(),
            metadata: String::new(),
            version: String::new(),
            root: None,
            compile_config: Value::Null,
            variables,
            by_path,
            ordered: BTreeMap::new(),
            groups: BTreeMap::new(),
            held,
        }
    }

    /// Which kind of file it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The configuration as stored, to be written again; empty for a `.weights.h5` file.
    pub fn config_json(&self) -> &str {
        &self.config
    }

    /// The metadata as stored; empty for HDF5 files.
    pub fn metadata_json(&self) -> &str {
        &self.metadata
    }

    /// The version of Keras that wrote the file, if it says so.
    pub fn keras_version(&self) -> &str {
        &self.version
    }

    /// The model as a layer: its class, name and settings. `None` for a `.weights.h5` file.
    pub fn root(&self) -> Option<&Layer> {
        self.root.as_ref()
    }

    /// The inside of the model; `None` if the file has none, or if its class is a user's own, which is Python code.
    pub fn model(&self) -> Option<&Model> {
        self.root.as_ref()?.model.as_deref()
    }

    /// What the model was compiled with: `optimizer`, `loss`, `metrics`. Null if it was not. In a legacy file the
    /// key of the optimizer is `optimizer_config`.
    pub fn compile_config(&self) -> &Value {
        &self.compile_config
    }

    /// All variables, in the order of their paths, numbers as numbers.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// The variables of a layer and of all that is inside it, in the order of their paths; in a legacy file in the order of
    /// the layer's weights. In a legacy file the variables of a layer inside another are those of the outermost
    /// one whose stored name holds this layer's name.
    pub fn variables_of(&self, layer: &Layer) -> Vec<&Variable> {
        match self.kind {
            Kind::Legacy => legacy::variables_of(self, layer),
            _ if layer.path.is_empty() => Vec::new(),
            _ => self.below(&layer.path),
        }
    }

    /// The variables of the optimizer, in its order.
    pub fn optimizer_variables(&self) -> Vec<&Variable> {
        match self.kind {
            Kind::Legacy => legacy::ordered(self, legacy::OPTIMIZER),
            _ => self.below("optimizer"),
        }
    }

    fn below(&self, path: &str) -> Vec<&Variable> {
        let inside = |v: &&Variable| v.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        self.variables.iter().filter(inside).collect()
    }

    /// The variable at `path`.
    pub fn variable(&self, path: &str) -> Result<&Variable, Error> {
        let missing = || Reason::weights(path, "there is no such variable").of(&self.file);
        self.by_path.get(path).map(|i| &self.variables[*i]).ok_or_else(missing)
    }

    /// Copies the variable at `path` into `buffer`, which must have exactly its size.
    pub fn read_into(&self, path: &str, buffer: &mut [u8]) -> Result<(), Error> {
        let variable = self.variable(path)?;
        if variable.bytes != buffer.len() {
            let (expected, found) = (variable.bytes, buffer.len());
            return Err(Reason::Size { path: path.to_string(), expected, found }.of(&self.file));
        }
        self.held.read(variable, buffer).map_err(|e| Reason::from(e).of(&self.file))?;
        if variable.element == Element::Bool && buffer.iter().any(|byte| *byte > 1) {
            return Err(Reason::weights(path, "a truth value is neither 0 nor 1").of(&self.file));
        }
        Ok(())
    }
}

/// Refuses a group of variables numbered with a gap: a variable was lost.
fn check_numbers(variables: &[Variable]) -> Result<(), Reason> {
    let mut expected: HashMap<&str, u64> = HashMap::new();
    // Numbers come in order, since paths are sorted so.
    for variable in variables {
        let Some((group, name)) = variable.path.rsplit_once('/') else { continue };
        let Ok(number) = name.parse::<u64>() else { continue };
        let next = expected.entry(group).or_default();
        if number != *next {
            return Err(Reason::weights(
                group,
                format!("variable {next} is missing, though there is a {number}"),
            ));
        }
        *next += 1;
    }
    Ok(())
}

impl fmt::Debug for KerasFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KerasFile")
            .field("file", &self.file)
            .field("kind", &self.kind)
            .field("version", &self.version)
            .field("variables", &self.variables.len())
            .finish_non_exhaustive()
    }
}
