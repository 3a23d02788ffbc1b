//! Turns a configuration and variables into a `.keras` archive or a `.weights.h5` file that Keras opens.
//!
//! The variables' bytes are asked for one variable at a time and go straight to the file.

use super::archive::{CONFIG, METADATA, WEIGHTS};
use super::first_failure::FirstFailure;
use super::hdf5_types::Text;
use super::hdf5_write::Attributes;
use super::{Error, KerasFile, Kind, Layer, Reason, Variable, hdf5_write};
use crate::durable;
use std::collections::BTreeMap;
use std::io::{self, Seek, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// What a `.keras` archive is made of, but for the variables' bytes.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// The configuration of the model, as JSON.
    pub config: &'a str,
    /// The metadata, as JSON; names the version of Keras for whose reader the archive is meant.
    pub metadata: &'a str,
    /// The variables: those of the layers under the layers' paths, the optimizer's under `optimizer/vars/0`, ….
    pub variables: &'a [Variable],
    /// The names of layers by path, stored as a help for people; Keras reads the weights without them.
    pub labels: &'a BTreeMap<String, String>,
}

impl KerasFile {
    /// The names of the layers by path, for [`Contents::labels`].
    pub fn labels(&self) -> BTreeMap<String, String> {
        let all = self.root.as_ref().map(Layer::all).unwrap_or_default();
        all.into_iter().map(|layer| (layer.path.clone(), layer.name.clone())).collect()
    }

    /// Writes a file of the same kind, model and variables with other values: `fill` writes the bytes of each variable it is
    /// asked for. To change the variables (another optimizer), use [`write_keras`].
    pub fn save(
        &self,
        path: &Path,
        mut fill: impl FnMut(&Variable, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Error> {
        let labels = self.labels();
        let (config, metadata, variables) =
            (self.config.as_str(), self.metadata.as_str(), &self.variables[..]);
        match self.kind {
            Kind::Archive => {
                write_keras(path, &Contents { config, metadata, variables, labels: &labels }, fill)
            }
            Kind::Weights => write_weights(path, variables, &labels, fill),
            Kind::Legacy => durable::write_file(path, |out| weights(out, variables, &self.groups, &mut fill))
                .map_err(|e: Reason| e.of(&path.display().to_string())),
        }
    }
}

/// Writes a `.keras` archive, whole or not at all. `fill` writes the bytes of each variable it is asked for: exactly as many
/// as the variable has, little endian.
///
/// ```
/// use plimsoll_formats::keras::KerasFile;
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/keras/cnn.keras");
/// # let copy = std::env::temp_dir().join(format!("plimsoll-doc-{}.keras", std::process::id()));
/// let file = KerasFile::open(path)?;
/// // The same model with all variables zero.
/// file.save(&copy, |variable, out| out.write_all(&vec![0; variable.bytes]))?;
/// assert_eq!(KerasFile::open(&copy)?.variables().len(), file.variables().len());
/// # std::fs::remove_file(&copy).expect("removing the copy");
/// # Ok::<(), plimsoll_formats::keras::Error>(())
/// ```
pub fn write_keras(
    path: &Path,
    contents: &Contents,
    mut fill: impl FnMut(&Variable, &mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    durable::write_file(path, |out| archive(out, contents, &mut fill))
        .map_err(|e| e.of(&path.display().to_string()))
}

/// The same for an archive that is read back by `check`, still under a temporary name, before it counts as written.
pub fn write_keras_checked<E: From<Error>>(
    path: &Path,
    contents: &Contents,
    mut fill: impl FnMut(&Variable, &mut dyn Write) -> io::Result<()>,
    check: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let mut refused = None;
    let checked = |written: &Path| {
        check(written).map_err(|why| {
            refused = Some(why);
            Reason::Io(io::Error::other("it is not what was written"))
        })
    };
    let done = durable::write_checked(path, |out| archive(out, contents, &mut fill), checked);
    match refused {
        Some(why) => Err(why),
        None => done.map_err(|why| why.of(&path.display().to_string()).into()),
    }
}

/// Writes a `.weights.h5` file, whole or not at all; see [`write_keras`].
pub fn write_weights(
    path: &Path,
    variables: &[Variable],
    labels: &BTreeMap<String, String>,
    mut fill: impl FnMut(&Variable, &mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    durable::write_file(path, |out| weights(out, variables, &groups(labels), &mut fill))
        .map_err(|e: Reason| e.of(&path.display().to_string()))
}

type Fill<'a> = &'a mut dyn FnMut(&Variable, &mut dyn Write) -> io::Result<()>;

fn archive(out: &mut (impl Write + Seek), contents: &Contents, fill: Fill) -> Result<(), Reason> {
    // An archive that is dropped is ended, and a failure of that is printed, though the first one has been told.
    let mut zip = ZipWriter::new(FirstFailure::new(out));
    // Stored, so that readers can map the weights; with room for sizes over 4 GiB where they may be needed.
    let large = contents.variables.iter().fold(0u64, |sum, v| sum.saturating_add(v.bytes as u64)) > 1 << 31;
    let options =
        SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(large);
    for (name, text) in [(METADATA, contents.metadata), (CONFIG, contents.config)] {
        zip.start_file(name, options).map_err(|e| Reason::member(name, e))?;
        zip.write_all(text.as_bytes())?;
    }
    zip.start_file(WEIGHTS, options).map_err(|e| Reason::member(WEIGHTS, e))?;
    weights(&mut zip, contents.variables, &groups(contents.labels), fill)?;
    zip.finish().map_err(|e| Reason::member(WEIGHTS, e))?;
    Ok(())
}

/// Keras puts a layer's name on the group of its own variables.
fn groups(labels: &BTreeMap<String, String>) -> BTreeMap<String, Attributes> {
    let label = |(path, name): (&String, &String)| {
        let group = if path.is_empty() { "vars".to_string() } else { format!("{path}/vars") };
        (group, Attributes::from([("name".to_string(), Text::One(name.clone()))]))
    };
    labels.iter().map(label).collect()
}

fn weights(
    out: &mut impl Write,
    variables: &[Variable],
    groups: &BTreeMap<String, Attributes>,
    fill: Fill,
) -> Result<(), Reason> {
    let plan = hdf5_write::plan(variables, groups)?;
    out.write_all(&plan.head)?;
    let mut at = plan.head.len() as u64;
    for (i, place) in plan.places {
        let variable = &variables[i];
        // Places are multiples of 8, so less than that is to be skipped.
        out.write_all(&[0; 8][..(place - at) as usize])?;
        let mut exact = Exact { out, left: variable.bytes, written: 0 };
        fill(variable, &mut exact)?;
        if exact.left > 0 {
            let (expected, found) = (variable.bytes, exact.written);
            return Err(Reason::Size { path: variable.path.clone(), expected, found });
        }
        at = place + variable.bytes as u64;
    }
    Ok(())
}

/// A stream that takes so many bytes and no more.
struct Exact<'a, W: Write> {
    out: &'a mut W,
    left: usize,
    written: usize,
}

impl<W: Write> Write for Exact<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            let size = self.written + self.left;
            return Err(io::Error::other(format!("more bytes than the {size} of the variable were given")));
        }
        let n = self.out.write(bytes)?;
        self.left -= n;
        self.written += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;
    use std::io::Cursor;

    #[test]
    fn a_disk_that_is_full_at_any_byte_is_an_error_and_no_more() {
        let variables: Vec<Variable> =
            Variable::new("layers/dense/vars/0", Element::F32, &[2]).into_iter().collect();
        let labels = BTreeMap::new();
        let contents = Contents { config: "{}", metadata: "{}", variables: &variables, labels: &labels };
        let mut fill = |variable: &Variable, out: &mut dyn Write| out.write_all(&vec![1; variable.bytes]);
        let mut whole = Cursor::new(Vec::new());
        archive(&mut whole, &contents, &mut fill).unwrap();
        let size = whole.into_inner().len();
        let mut disk = vec![0; size];
        for room in 0..size {
            let full = archive(&mut Cursor::new(&mut disk[..room]), &contents, &mut fill);
            assert!(full.is_err(), "{room} of {size} bytes");
        }
        archive(&mut Cursor::new(&mut disk[..]), &contents, &mut fill).unwrap();
    }
}
