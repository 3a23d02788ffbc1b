//! The form of the data that a model is for: shapes, classes and their names. A run keeps it, so that its model can be used
//! without the data that it was trained on.

use std::path::Path;

use plimsoll::data::FieldSpec;
use plimsoll::prelude::*;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::config::Config;
use crate::source::Source;

/// The version of the file; others are refused.
const VERSION: u32 = 1;

/// So many samples are looked at where the number of classes is said.
const LOOKED_AT: u64 = 1024;

/// What samples look like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    version: u32,
    /// What the data is called.
    pub data: String,
    /// All arrays of a sample, labels last.
    pub fields: Vec<Array>,
    /// Classes of the labels, where those are classes.
    pub classes: Option<usize>,
    /// The names of the classes, where they have names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
}

/// One array of a sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Array {
    pub name: String,
    dtype: String,
    pub shape: Vec<usize>,
}

impl Form {
    /// The form of data. With `counted`, classes are counted where that has not been done and labels can be classes.
    pub fn of(source: &Source, classes: Option<usize>, counted: bool) -> Result<Form, Failure> {
        let spec = source.train.spec()?;
        let classes = match (classes, source.classes) {
            (Some(classes), _) => {
                if counted {
                    check_labels(&source.train, classes, &source.name)?;
                }
                Some(classes)
            }
            (None, None) if counted && spec.len() > 1 => source.train.count_classes(spec.len() - 1)?,
            (None, known) => known,
        };
        let array = |field: &FieldSpec| Array {
            name: field.name.clone(),
            dtype: field.dtype.name().into(),
            shape: field.shape.clone(),
        };
        Ok(Form {
            version: VERSION,
            data: source.name.clone(),
            fields: spec.iter().map(array).collect(),
            classes,
            class_names: source.class_names.clone(),
        })
    }

    /// Whether the labels of other data are classes of these. Folders of classes have been compared by their names.
    pub fn check_labels(&self, data: &Dataset, name: &str) -> Result<(), Failure> {
        match self.classes.filter(|_| self.class_names.is_empty()) {
            Some(classes) => check_labels(data, classes, name),
            None => Ok(()),
        }
    }

    /// Reads what a run kept.
    pub fn read(path: &Path) -> Result<Form, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| Failure(format!("{shown}: {e}")))?;
        let form: Form = serde_json::from_str(&text).map_err(|e| Failure(format!("{shown}: {e}")))?;
        if form.version != VERSION {
            let version = form.version;
            return Err(Failure(format!(
                "{shown} is of version {version}, and this program knows {VERSION}"
            )));
        }
        for field in &form.fields {
            field.spec().map_err(|Failure(why)| Failure(format!("{shown}: {why}")))?;
        }
        Ok(form)
    }

    /// Whether samples of other data look the same, as far as they have the same arrays: labels may be missing.
    pub fn check(&self, spec: &[FieldSpec], data: &str) -> Result<(), Failure> {
        for (own, other) in self.spec()?.iter().zip(spec) {
            if own.dtype != other.dtype || own.shape != other.shape {
                return Err(Failure(format!(
                    "{} of {data} is {} of shape {:?}, but the model is for {} of shape {:?}, as of {}",
                    other.name, other.dtype, other.shape, own.dtype, own.shape, self.data
                )));
            }
        }
        Ok(())
    }

    /// Whether what is asked of the data was done to it.
    pub fn check_flags(&self, config: &Config) -> Result<(), Failure> {
        let (shape, data) = (self.input()?.shape, &self.data);
        if let Some(side) = config.image
            && shape.get(..2) != Some(&[side, side])
        {
            return Err(Failure(format!(
                "--image {side} is for a folder of images, which are resized; samples of {data} are of shape {shape:?}"
            )));
        }
        if let Some(tokens) = config.sequence
            && shape != [tokens]
        {
            return Err(Failure(format!(
                "--sequence {tokens} is for a text, which is cut; samples of {data} are of shape {shape:?}"
            )));
        }
        Ok(())
    }

    /// The arrays as a pipeline describes them.
    pub fn spec(&self) -> Result<Vec<FieldSpec>, Failure> {
        self.fields.iter().map(Array::spec).collect()
    }

    /// The type of the first input, for one sample.
    pub fn input(&self) -> Result<FieldSpec, Failure> {
        let none = || Failure(format!("a sample of {} has no arrays", self.data));
        self.fields.first().ok_or_else(none)?.spec()
    }

    /// The label, where there is one.
    pub fn label(&self) -> Result<Option<FieldSpec>, Failure> {
        self.fields.get(1..).and_then(<[Array]>::last).map(Array::spec).transpose()
    }
}

impl Array {
    fn spec(&self) -> Result<FieldSpec, Failure> {
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == self.dtype);
        let dtype = dtype.ok_or_else(|| Failure(format!("{} is no type of elements", self.dtype)))?;
        Ok(FieldSpec::new(&self.name, dtype, self.shape.clone()))
    }
}

/// Looks at the first labels. All of them are looked at as they come; a number that is plainly wrong is said before the run begins.
fn check_labels(data: &Dataset, classes: usize, name: &str) -> Result<(), Failure> {
    let last = data.spec()?.len().saturating_sub(1);
    let most = if last == 0 { None } else { data.clone().take(LOOKED_AT).count_classes(last)? };
    match most.filter(|&most| most > classes) {
        None => Ok(()),
        Some(most) => Err(Failure(format!(
            "{name} has a label {}, which is no class of {classes}; classes count from 0, so say --classes {most} or more",
            most - 1
        ))),
    }
}
