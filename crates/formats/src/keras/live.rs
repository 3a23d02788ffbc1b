//! Turns a model that is in the memory of a running Keras into what its file would be: a configuration, and variables by path.

use super::{Error, KerasFile, Kind, Reason, Variable, check_numbers, config, names};
use std::io;
use std::sync::Arc;

/// Where the values of variables come from that are in no file.
pub trait Values: Send + Sync {
    /// Writes the elements of the variable at `path`, in C order and little endian, over all of `buffer`.
    fn read_into(&self, path: &str, buffer: &mut [u8]) -> io::Result<()>;
}

impl KerasFile {
    /// A model that was never written: `config` is the text that would be its `config.json`, `variables` are at the paths that they
    /// would have in its weights, `version` is that of Keras. Values are read when they are asked for, each time anew. `name` stands
    /// for it in errors.
    ///
    /// ```
    /// use plimsoll_formats::Element;
    /// use plimsoll_formats::keras::{KerasFile, Values, Variable};
    /// use std::sync::Arc;
    /// struct Ones;
    /// impl Values for Ones {
    ///     fn read_into(&self, _: &str, buffer: &mut [u8]) -> std::io::Result<()> {
    ///         buffer.chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&1f32.to_le_bytes()));
    ///         Ok(())
    ///     }
    /// }
    /// let config = r#"{"class_name": "Sequential", "config": {"name": "m", "layers": [
    ///     {"class_name": "Dense", "config": {"name": "d", "units": 3}}]}}"#;
    /// let kernel = Variable::new("layers/dense/vars/0", Element::F32, &[2, 3]).unwrap();
    /// let file = KerasFile::live("m", config, "3.15.0", vec![kernel], Arc::new(Ones))?;
    /// let mut bytes = [0; 24];
    /// file.read_into("layers/dense/vars/0", &mut bytes)?;
    /// assert_eq!(bytes[..4], 1f32.to_le_bytes());
    /// # Ok::<(), plimsoll_formats::keras::Error>(())
    /// ```
    ///
    /// # Errors
    /// The configuration is none of Keras's, or a variable is missing between two others.
    pub fn live(
        name: &str,
        config: &str,
        version: &str,
        mut variables: Vec<Variable>,
        values: Arc<dyn Values>,
    ) -> Result<KerasFile, Error> {
        let read = || -> Result<KerasFile, Reason> {
            let (mut root, compile_config) = config::model(config, false)?;
            variables.sort_by(|a, b| names::natural(&a.path, &b.path));
            check_numbers(&variables)?;
            config::assign_paths(&mut root, String::new(), "layers");
            let metadata = serde_json::json!({ "keras_version": version, "date_saved": "" });
            Ok(KerasFile {
                file: name.to_string(),
                config: config.to_string(),
                metadata: metadata.to_string(),
                version: version.to_string(),
                root: Some(root),
                compile_config,
                ..KerasFile::of_variables(Kind::Archive, variables, Held::Elsewhere(values))
            })
        };
        read().map_err(|reason| reason.of(name))
    }
}

/// Where a file's variables have their values.
pub(super) enum Held {
    /// In the file, each at its offset.
    File(super::bytes::Bytes),
    /// In somebody's memory.
    Elsewhere(Arc<dyn Values>),
}

impl Held {
    pub(super) fn read(&self, variable: &Variable, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Held::File(bytes) => bytes.read_exact_at(variable.offset, buffer),
            Held::Elsewhere(values) => values.read_into(&variable.path, buffer),
        }
    }
}
