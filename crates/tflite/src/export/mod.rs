//! Turns a model of ours, however it was built, into a `.tflite` file.
//!
//! The model is traced as it predicts, for one size of batches. Every op becomes one or several of TensorFlow Lite's; what is known
//! beforehand is computed. What was made is not trusted: it is read back and refused if it computes something else, before
//! anything is written.

mod emit;
mod fold;
mod ops;
mod sequence;
mod spatial;

use std::io::Write;
use std::path::Path;

use plimsoll_formats::{FileError, durable};
use plimsoll_graph::Type;
use plimsoll_nn::blocks::read_back::{self, Alike};
use plimsoll_nn::{Model, Param, Predicting};
use plimsoll_run::Tensor;

use crate::error::{Error, Result};
use crate::quantize::{Quantize, quantize};
use crate::read::read;
use crate::report::{TensorError, tensor_errors};
use crate::run::run;
use crate::shrink::{self, Shrunk};
use crate::write::write;
use emit::Emitter;

pub(crate) use spatial::same;

/// How far outputs of a file in floating point may be from the model's.
const TOLERANCE: f64 = 1e-4;
/// How far they may be with weights of 16 bits.
const HALF_TOLERANCE: f64 = 2e-2;

/// What was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// Bytes of the file.
    pub bytes: usize,
    /// Ops in it.
    pub ops: usize,
    /// Bytes of the arena that it runs in, or why `plimsoll-lite` does not run it.
    pub arena: Result<usize, String>,
    /// How many layers run in parts of their channels to stay within a limit.
    pub in_parts: usize,
    /// How far its outputs are from the model's, as a share of the largest (or of 1): on random inputs, or on the first of the calibration.
    pub distance: f64,
    /// Ops that stay in floating point though the rest is quantized, by name and how often.
    pub floats: Vec<(String, usize)>,
    /// How far what is computed in int8 is from what the model computes on samples of the calibration, tensor by tensor, worst first; empty
    /// where nothing is computed in int8.
    pub errors: Vec<TensorError>,
}

/// What a file is to be.
#[derive(Clone, Default)]
pub struct Goal {
    /// How its numbers are written.
    pub quantize: Quantize,
    /// The most bytes that the arena may have in which `plimsoll-lite` runs it. Where it would take more, wide layers are cut into parts that run one
    /// after the other; where that does not do, nothing is written and the least is said.
    pub arena: Option<usize>,
}

/// Writes a model with values of its parameters as a `.tflite` file, for inputs of these names and types, batch and all. Values come in the
/// order of [`plimsoll_nn::Net::discover`]. Whole or not at all.
///
/// ```
/// use plimsoll_nn::{Net, zoo};
/// use plimsoll_tflite::{Goal, read, write_model};
/// let model = zoo::find("cnn").ok_or("there is a cnn")?.sized(|size| size.image = 16);
/// let params = Net::discover(&[model.input(1)], &model)?;
/// let values = params.iter().map(|p| p.init.draw(&p.name, &p.ty, 1)).collect::<Result<Vec<_>, _>>()?;
/// # let path = std::env::temp_dir().join(format!("plimsoll-tflite-export-{}.tflite", std::process::id()));
/// write_model(&path, "cnn", &model, &[("image".into(), model.input(1))], &params, &values, &Goal::default())?;
/// assert_eq!(read(&std::fs::read(&path)?)?.inputs[0].0, "image");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A part of the model has no counterpart among TensorFlow Lite's ops: it is named, with the reason. Or the limit of memory is less than can be.
pub fn write_model(
    path: impl AsRef<Path>,
    name: &str,
    model: &(impl Model + ?Sized),
    inputs: &[(String, Type)],
    params: &[Param],
    values: &[Tensor],
    goal: &Goal,
) -> Result<Written> {
    let (bytes, written) = model_bytes(name, model, inputs, params, values, goal)?;
    let file = path.as_ref();
    durable::write_file(file, |out| out.write_all(&bytes)).map_err(|why| FileError::io(file, why))?;
    Ok(written)
}

/// What [`write_model`] would write, read back and compared, and what is to say of it.
///
/// ```
/// use plimsoll_nn::{Model, Net, zoo};
/// use plimsoll_tflite::{Goal, model_bytes};
///
/// let model = zoo::find("mlp").ok_or("there is an mlp")?.sized(|size| size.image = 8);
/// let params = Net::discover(&[model.input(1)], &model)?;
/// let values = params.iter().map(|p| p.init.draw(&p.name, &p.ty, 1)).collect::<Result<Vec<_>, _>>()?;
/// let inputs = [("image".into(), model.input(1))];
/// let (bytes, written) = model_bytes("mlp", &model, &inputs, &params, &values, &Goal::default())?;
/// assert_eq!((bytes.len(), &bytes[4..8]), (written.bytes, &b"TFL3"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`write_model`] but for writing the file.
pub fn model_bytes(
    name: &str,
    model: &(impl Model + ?Sized),
    inputs: &[(String, Type)],
    params: &[Param],
    values: &[Tensor],
    goal: &Goal,
) -> Result<(Vec<u8>, Written)> {
    let how = &goal.quantize;
    let types: Vec<Type> = inputs.iter().map(|(_, ty)| ty.clone()).collect();
    let traced = Predicting::new(model, &types, params)?;
    let mut emitter = Emitter::new(&traced.graph, name);
    for ((input, _), &id) in inputs.iter().zip(&traced.inputs) {
        emitter.input(input, id)?;
    }
    for (name, value, id) in traced.stored(params, values) {
        emitter.stored(&name, value, id)?;
    }
    let made = fold::fold(emitter.finish()?).compact();
    let quantized = quantize(&made, how)?;
    let shrunk = match goal.arena {
        Some(limit) => shrink::within(quantized.model, limit)?,
        None => Shrunk { model: quantized.model, in_parts: 0 },
    };
    let bytes = write(&shrunk.model)?;
    let arena = shrink::arena_bytes(&bytes);
    // What the reader sees is what counts.
    let back = read(&bytes)?;
    let probe = match how {
        // Ranges that were found on data say nothing of other inputs.
        Quantize::Int8(calibration) if !calibration.samples.is_empty() => calibration.samples[0].clone(),
        _ => read_back::drawn(&types)?,
    };
    let ours = Predicting::forward(model, &probe, params, values)?;
    let theirs = run(&back, &probe)?;
    let refused = |why: String| Err(Error::export(name, why));
    let distance = match read_back::distance(&ours, &theirs, Alike::Types)? {
        Ok(far) => far,
        Err(why) => return refused(why),
    };
    let allowed = match how {
        Quantize::No => TOLERANCE,
        Quantize::HalfWeights => HALF_TOLERANCE,
        // Numbers of eight bits are as far as the model lets them be: it is said, not judged.
        _ => f64::INFINITY,
    };
    if distance.is_nan() || distance > allowed {
        return refused(format!("what was made computes something else: outputs differ by {distance}"));
    }
    let errors = match how {
        Quantize::Int8(calibration) => tensor_errors(&made, &back, &calibration.samples)?,
        _ => Vec::new(),
    };
    let (ops, in_parts, floats) = (back.ops.len(), shrunk.in_parts, quantized.floats);
    let written = Written { bytes: bytes.len(), ops, arena, in_parts, distance, floats, errors };
    Ok((bytes, written))
}
