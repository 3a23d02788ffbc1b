//! Turns a model of ours, however it was built, into a Keras file: a Functional model of Keras's own layers and functions.
//!
//! A model is described by itself ([`Description`]): its layers become Keras's layers, and the ops between them layers or
//! functions of `keras.ops`. What was written is not trusted: the file is read back, and refused if it computes something else.

mod config;
mod emit;
mod layers;
mod ops;
mod source;

use std::io::{Error as IoError, Write};
use std::path::Path;

use plimsoll_formats::Element;
use plimsoll_formats::keras::{Contents, Variable, write_keras_checked};
use plimsoll_graph::{DType, Shape, Type};
use plimsoll_nn::blocks::read_back::{self, Alike};
use plimsoll_nn::{Description, Model, Net, Param};
use plimsoll_run::Tensor;
use serde_json::json;

use crate::KerasModel;
use crate::bind;
use crate::error::{Error, Result};
use emit::Emitter;
use source::Values;

/// The version of Keras for whose reader files are meant.
const KERAS_VERSION: &str = "3.0.0";
/// Samples of the batch by which a model is described, and of that by which it is checked: two, so that what depends on one is
/// found.
const BATCHES: [usize; 2] = [3, 2];

/// Writes a model with values of its parameters as a `.keras` file, for inputs of these types; their first axis is the batch.
/// Values come in the order of [`Net::discover`]. Whole or not at all.
///
/// ```
/// use plimsoll_keras::{KerasModel, write_model};
/// use plimsoll_nn::{Net, zoo};
/// let model = zoo::find("resnet18").ok_or("there is a resnet18")?;
/// let model = model.sized(|size| (size.width, size.image) = (2, 16));
/// let params = Net::discover(&[model.input(1)], &model)?;
/// let values = params.iter().map(|p| p.init.draw(&p.name, &p.ty, 1)).collect::<Result<Vec<_>, _>>()?;
/// # let path = std::env::temp_dir().join(format!("plimsoll-keras-export-{}.keras", std::process::id()));
/// write_model(&path, "resnet18", &model, &[model.input(1)], &params, &values)?;
/// assert_eq!(KerasModel::open(&path)?.params().len(), params.len());
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A part of the model has no counterpart among Keras's layers and functions: it is named, with the reason.
pub fn write_model(
    path: impl AsRef<Path>,
    name: &str,
    model: &(impl Model + ?Sized),
    inputs: &[Type],
    params: &[Param],
    values: &[Tensor],
) -> Result<()> {
    let batched = |n: usize| -> Vec<Type> { inputs.iter().map(|ty| of_batch(ty, n)).collect() };
    let description = Description::new(&batched(BATCHES[0]), model)?;
    let values = Values::new(params, values)?;
    let written = Emitter::emit(&description, BATCHES[0], values.dtype())?;
    let order = config::order(&written);
    let config = config::model(name, &written, &order, values.dtype()).to_string();
    let metadata = json!({"keras_version": KERAS_VERSION}).to_string();
    let element = Element::from(values.dtype());
    let weights = config::weights(&written, &order);
    values.check_used(weights.iter().map(|(_, weight)| &weight.source))?;
    let variables: Vec<Variable> =
        weights.iter().filter_map(|(path, weight)| Variable::new(path, element, &weight.shape)).collect();
    let labels = Default::default();
    let whole = Contents { config: &config, metadata: &metadata, variables: &variables, labels: &labels };
    let fill = |variable: &Variable, out: &mut dyn Write| {
        let weight = weights.iter().find(|(path, _)| *path == variable.path).map(|(_, weight)| weight);
        let weight = weight.ok_or_else(|| IoError::other("an unknown variable"))?;
        let data = values.get(&weight.source).map_err(IoError::other)?;
        let bytes = bind::to_bytes(variable.element, &data).unwrap_or_default();
        if bytes.len() != variable.bytes {
            let (path, found) = (&variable.path, data.len());
            return Err(IoError::other(format!(
                "{path} has the shape {:?}, not {found} elements",
                variable.shape
            )));
        }
        out.write_all(&bytes)
    };
    write_keras_checked(path.as_ref(), &whole, fill, |written| {
        check(written, name, model, &batched(BATCHES[1]), &values)
    })
}

fn of_batch(ty: &Type, n: usize) -> Type {
    ty.with_shape(std::iter::once(n).chain(ty.shape.iter().skip(1).copied()).collect::<Shape>())
}

/// Reads the file back and compares what it computes.
fn check(
    path: &Path,
    name: &str,
    model: &(impl Model + ?Sized),
    inputs: &[Type],
    values: &Values<'_>,
) -> Result<()> {
    let keras = KerasModel::open(path)?;
    let inputs = read_back::drawn(inputs)?;
    let (params, tensors) = values.all();
    let precision =
        if values.dtype() == DType::F64 { plimsoll_nn::Precision::F64 } else { Default::default() };
    let ours = model.forward(&mut Net::bound(params, tensors, false).precision(precision), &inputs)?;
    let theirs = keras.forward(&mut Net::bound(keras.params(), &keras.values()?, false), &inputs)?;
    match read_back::difference(&ours, &theirs, Alike::Shapes)? {
        Some(why) => Err(Error::export(name, why)),
        None => Ok(()),
    }
}
