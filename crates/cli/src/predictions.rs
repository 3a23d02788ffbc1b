//! Turns what a model gives into files that people read: an array, or a table with the name of each sample, its class and the
//! probabilities of all classes.
//!
//! Rows are written as they come and a file is put in its place when all are there, so that a prediction that fails leaves no
//! half of one behind.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use plimsoll::data::Dataset;
use plimsoll::formats::{Element, durable, npy};
use plimsoll::prelude::*;
use serde_json::{Map, Value, json};

use crate::Failure;

/// How predictions are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Npy,
    Csv,
    Json,
    JsonLines,
    /// To standard output, for people.
    Text,
}

/// What the rows of an output mean.
pub struct Meaning {
    /// Whether a row of outputs is scores of classes, to be made probabilities.
    pub is_classes: bool,
    /// Whether those scores are still to go through a softmax.
    pub is_logits: bool,
    pub class_names: Vec<String>,
    /// It knows the names of its samples.
    pub data: Dataset,
}

/// A file of predictions in the making.
pub struct Writer {
    format: Format,
    is_argmax: bool,
    meaning: Meaning,
    out: Option<Unfinished>,
    seen: u64,
    shape: Vec<usize>,
    element: Element,
}

/// Rows beside the file that they will become.
struct Unfinished {
    path: PathBuf,
    rows: PathBuf,
    file: BufWriter<File>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        std::fs::remove_file(&self.rows).ok();
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let shown = path.display().to_string();
    move |error| Failure(format!("{shown}: {error}"))
}

impl Writer {
    /// Begins a file, its format by its ending; without one, text.
    pub fn new(out: Option<&Path>, is_argmax: bool, meaning: Meaning) -> Result<Writer, Failure> {
        let format = match out.map(|path| path.extension().and_then(|end| end.to_str()).unwrap_or_default()) {
            None => Format::Text,
            Some("npy") => Format::Npy,
            Some("csv") => Format::Csv,
            Some("json") => Format::Json,
            Some("jsonl") => Format::JsonLines,
            Some(other) => {
                let why = format!("predictions are not written as '{other}'");
                return Err(Failure(format!("{why}; the name of --out ends in .npy, .csv, .json or .jsonl")));
            }
        };
        if is_argmax && format != Format::Npy {
            return Err(Failure("--argmax is for .npy files; the others have the class anyway".into()));
        }
        let out = match out {
            None => None,
            Some(path) => {
                let mut rows = path.as_os_str().to_owned();
                rows.push(format!(".{}.rows", std::process::id()));
                let rows = PathBuf::from(rows);
                let file = BufWriter::new(File::create(&rows).map_err(failed(path))?);
                Some(Unfinished { path: path.into(), rows, file })
            }
        };
        Ok(Writer {
            format,
            is_argmax,
            meaning,
            out,
            seen: 0,
            shape: Vec::new(),
            element: if is_argmax { Element::I64 } else { Element::F32 },
        })
    }

    /// Adds the rows of a batch. A file that cannot be written is the inner error.
    pub fn add(&mut self, output: &Tensor, numbers: &[u64]) -> plimsoll::train::Result<Result<(), Failure>> {
        let samples = output.shape().first().copied().unwrap_or(0);
        if self.format == Format::Npy {
            let output = if self.is_argmax { &output.argmax(-1)? } else { output };
            self.shape = output.shape()[1..].to_vec();
            self.element = Element::from(output.dtype());
            self.seen += samples as u64;
            return Ok(self.write(&output.as_bytes()?));
        }
        self.shape = output.shape()[1..].to_vec();
        let values = match output.dtype() {
            DType::F64 => output.to_vec::<f64>()?,
            _ => output.cast(DType::F32)?.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        };
        let each = (values.len() / samples.max(1)).max(1);
        for (i, row) in values.chunks_exact(each).enumerate() {
            let number = numbers.get(i).copied().unwrap_or(self.seen);
            if let Err(why) = self.row(number, row) {
                return Ok(Err(why));
            }
        }
        Ok(Ok(()))
    }

    /// Writes what one sample came to.
    fn row(&mut self, number: u64, values: &[f64]) -> Result<(), Failure> {
        let name = self.meaning.data.sample_name(number).unwrap_or_else(|| number.to_string());
        let first = self.seen == 0;
        self.seen += 1;
        let is_classes = self.meaning.is_classes && self.shape.len() == 1 && values.len() > 1;
        let values = match is_classes && self.meaning.is_logits {
            true => softmax(values),
            false => values.to_vec(),
        };
        let class = values.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i);
        let shown = |i: usize| self.meaning.class_names.get(i).cloned().unwrap_or_else(|| i.to_string());
        match self.format {
            Format::Text => {
                let what = match is_classes {
                    true => format!("{:<16} {:>6.2} %", shown(class), 100.0 * values[class]),
                    false => values.iter().take(8).map(|v| format!("{v:.4} ")).collect(),
                };
                say!("{name:<24} {what}");
                Ok(())
            }
            Format::Csv => {
                let mut text = String::new();
                if first {
                    text += if is_classes { "name,class,probability" } else { "name" };
                    for i in 0..values.len() {
                        text += &format!(",{}", if is_classes { field(&shown(i)) } else { format!("y{i}") });
                    }
                    text.push('\n');
                }
                text += &field(&name);
                if is_classes {
                    text += &format!(",{},{:.6}", field(&shown(class)), values[class]);
                }
                for value in &values {
                    text += &if is_classes { format!(",{value:.6}") } else { format!(",{value}") };
                }
                text.push('\n');
                self.write(text.as_bytes())
            }
            Format::Json | Format::JsonLines => {
                let mut row = Map::from_iter([("name".to_string(), Value::from(name))]);
                if is_classes {
                    row.insert("class".into(), shown(class).into());
                    row.insert("probability".into(), json!(values[class]));
                    let all = values.iter().enumerate().map(|(i, value)| (shown(i), json!(value)));
                    row.insert("probabilities".into(), Value::Object(all.collect()));
                } else {
                    row.insert("values".into(), json!(values));
                }
                let before = match (self.format, first) {
                    (Format::Json, true) => "[\n",
                    (Format::Json, false) => ",\n",
                    _ => "",
                };
                let after = if self.format == Format::Json { "" } else { "\n" };
                self.write(format!("{before}{}{after}", Value::Object(row)).as_bytes())
            }
            Format::Npy => Ok(()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let Some(out) = &mut self.out else { return Ok(()) };
        out.file.write_all(bytes).map_err(failed(&out.path))
    }

    /// Puts the file in its place; returns the shape of all predictions.
    pub fn finish(mut self) -> Result<Vec<usize>, Failure> {
        let shape: Vec<usize> =
            std::iter::once(self.seen as usize).chain(self.shape.iter().copied()).collect();
        if self.format == Format::Json {
            self.write(b"\n]\n")?;
        }
        let Some(mut out) = self.out.take() else { return Ok(shape) };
        out.file.flush().map_err(failed(&out.path))?;
        let (format, element) = (self.format, self.element);
        // How many rows there are is known at the end, and stands at the beginning of an array's file.
        let whole = durable::write_file(&out.path, |file| -> std::io::Result<()> {
            if format == Format::Npy {
                npy::write_header(file, element, &shape)?;
            }
            std::io::copy(&mut BufReader::new(File::open(&out.rows)?), file)?;
            Ok(())
        });
        whole.map_err(failed(&out.path))?;
        Ok(shape)
    }
}

/// Scores as probabilities.
fn softmax(scores: &[f64]) -> Vec<f64> {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// A field of a CSV table, in quotes where it must be.
fn field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}
