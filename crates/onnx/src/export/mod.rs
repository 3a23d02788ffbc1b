//! Turns a model of ours, however it was built, into an ONNX file.
//!
//! The model is traced as it predicts, for two sizes of batches: lengths that differ are the batch's, and stay open in the file. Every op
//! becomes one or several of ONNX's. What was made is not trusted: it is read back and refused if it computes something else, before
//! anything is written.

mod batch_norm;
mod elements;
mod emit;
mod ops;
mod recurrent;

use std::path::Path;

use plimsoll_graph::Type;
use plimsoll_nn::blocks::read_back::{self, Alike};
use plimsoll_nn::{Model, Net, Param, Predicting};
use plimsoll_run::Tensor;
use prost::Message;

use crate::bind::Lengths;
use crate::error::{Error, Result};
use crate::file::OnnxFile;
use crate::limits::Limits;
use crate::model::OnnxModel;
use crate::write;
use emit::Emitter;

/// The version of the standard ops that is written.
const OPSET: i64 = 21;
/// The version of the format that goes with it.
const IR_VERSION: i64 = 10;
/// Samples of the batches by which a model is traced, and of that by which what was made is checked.
const BATCHES: [usize; 2] = [3, 5];
const CHECKED: usize = 2;

/// Writes a model with values of its parameters as an ONNX file (opset 21), for inputs of these names and types; their first axis is the
/// batch, which stays open. Values come in the order of [`Net::discover`]. Whole or not at all.
///
/// ```
/// use plimsoll_nn::{Net, zoo};
/// use plimsoll_onnx::{OnnxModel, write_model};
/// let model = zoo::find("cnn").ok_or("there is a cnn")?.sized(|size| size.image = 16);
/// let params = Net::discover(&[model.input(1)], &model)?;
/// let values = params.iter().map(|p| p.init.draw(&p.name, &p.ty, 1)).collect::<Result<Vec<_>, _>>()?;
/// # let path = std::env::temp_dir().join(format!("plimsoll-onnx-export-{}.onnx", std::process::id()));
/// write_model(&path, "cnn", &model, &[("image".into(), model.input(1))], &params, &values)?;
/// assert_eq!(OnnxModel::open(&path)?.inputs(7)?[0].shape[0], 7);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A part of the model has no counterpart among ONNX's ops: it is named, with the reason.
pub fn write_model(
    path: impl AsRef<Path>,
    name: &str,
    model: &(impl Model + ?Sized),
    inputs: &[(String, Type)],
    params: &[Param],
    values: &[Tensor],
) -> Result<()> {
    let batched =
        |n: usize| -> Vec<Type> { inputs.iter().map(|(_, ty)| Predicting::of_batch(ty, n)).collect() };
    let [few, many] = BATCHES.map(|n| Predicting::new(model, &batched(n), params));
    let (few, many) = (few?, many?);
    let mut emitter = Emitter::new(&few, &many.graph, BATCHES)?;
    for ((input, ty), &id) in inputs.iter().zip(&few.inputs) {
        emitter.input(input, ty, id);
    }
    for (name, value, id) in few.stored(params, values) {
        emitter.stored(&name, value, id)?;
    }
    let written = emitter.finish(name, OPSET, IR_VERSION)?;
    let bytes = written.encode_to_vec();
    check(bytes, name, model, inputs, &batched(CHECKED), params, values)?;
    write::whole(path.as_ref(), &written)
}

/// Reads back what was made and compares what it computes.
fn check(
    bytes: Vec<u8>,
    name: &str,
    model: &(impl Model + ?Sized),
    inputs: &[(String, Type)],
    types: &[Type],
    params: &[Param],
    values: &[Tensor],
) -> Result<()> {
    let lengths = Lengths::default();
    let back =
        OnnxModel::unbound(OnnxFile::from_bytes(bytes, name, &Limits::default())?, &lengths)?.bound(types)?;
    debug_assert_eq!(back.n_inputs(), inputs.len());
    let given = read_back::drawn(types)?;
    let ours = Predicting::forward(model, &given, params, values)?;
    let mut net = Net::bound(back.params(), &back.values()?, false).predicting();
    let theirs = back.forward(&mut net, &given)?;
    match read_back::difference(&ours, &theirs, Alike::Types)? {
        Some(why) => Err(Error::export(name, why)),
        None => Ok(()),
    }
}
