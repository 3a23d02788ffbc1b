//! Runs a [`LiteModel`] over the engine's tensors, op by op, to check, calibrate and report.
//!
//! Quantized tensors are held as the numbers that they stand for, rounded to those they can stand for: what comes out is what a runtime of
//! whole numbers gives, but for how it rounds inside of an op.

mod ops;

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::Tensor;

use crate::error::{Error, Result};
use crate::lite_model::{ElementType, LiteModel, LiteOp, LiteTensor};
use crate::values::{nearest, reals};

/// What a model gives for inputs.
///
/// # Errors
/// Inputs that do not fit, or an op in a form that is not known here.
pub fn run(model: &LiteModel, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    run_watched(model, inputs, &mut |_, _| Ok(()))
}

/// What a model gives for inputs; every tensor that is given or computed is shown with its place in [`LiteModel::tensors`].
///
/// # Errors
/// As of [`run`], or what the watcher says.
pub fn run_watched(
    model: &LiteModel,
    inputs: &[Tensor],
    watch: &mut dyn FnMut(usize, &Tensor) -> Result<()>,
) -> Result<Vec<Tensor>> {
    if inputs.len() != model.inputs.len() {
        let why = format!("it takes {} inputs, and {} were given", model.inputs.len(), inputs.len());
        return Err(Error::damaged("the model", why));
    }
    let mut values: Vec<Option<Tensor>> = vec![None; model.tensors.len()];
    for ((name, at), given) in model.inputs.iter().zip(inputs) {
        let tensor = &model.tensors[*at];
        if given.shape()[..] != tensor.shape[..] {
            let why = format!("it is {}, where {:?} belongs", given.ty(), tensor.shape);
            return Err(Error::damaged(format!("input {name}"), why));
        }
        let given = rounded(tensor, given.clone())?;
        watch(*at, &given)?;
        values[*at] = Some(given);
    }
    let mut left = model.uses();
    for (index, op) in model.ops.iter().enumerate() {
        let wrong = |why: String| Error::Unsupported { index, op: op.code.name().into(), why };
        for at in op.inputs.iter().flatten() {
            if values[*at].is_none() {
                let tensor = &model.tensors[*at];
                values[*at] =
                    Some(stored(tensor)?.ok_or_else(|| wrong("which reads what is not there".into()))?);
            }
        }
        let made = one(model, op, &values).map_err(|error| match error {
            Error::Run(why) => wrong(format!("which does not fit: {why}")),
            Error::Export(part) => wrong(part.why),
            other => other,
        })?;
        if made.len() != op.outputs.len() {
            return Err(wrong(format!("which gives {} tensors, not {}", made.len(), op.outputs.len())));
        }
        for (&at, made) in op.outputs.iter().zip(made) {
            let tensor = &model.tensors[at];
            if made.shape()[..] != tensor.shape[..] {
                let (found, said) = (made.shape(), &tensor.shape);
                return Err(wrong(format!("which gives {found} where the file says {said:?}")));
            }
            let made = rounded(tensor, made)?;
            watch(at, &made)?;
            values[at] = Some(made);
        }
        for &at in op.inputs.iter().flatten() {
            left[at] -= 1;
            if left[at] == 0 {
                values[at] = None;
            }
        }
    }
    let missing = || Error::damaged("the model", "an output of it is not there");
    model.outputs.iter().map(|(_, at)| values[*at].clone().ok_or_else(missing)).collect()
}

/// A stored tensor as the numbers that it stands for.
fn stored(tensor: &LiteTensor) -> Result<Option<Tensor>> {
    let Some(data) = &tensor.data else { return Ok(None) };
    let is_number = tensor.ty == ElementType::F16 || tensor.quantization.is_some();
    if let Some(numbers) = reals(tensor).filter(|_| is_number) {
        return Ok(Some(Tensor::from_slice(&numbers, &tensor.shape[..])?));
    }
    let mut held = Tensor::zeros(Type::new(tensor.ty.dtype(), &tensor.shape[..]))?;
    held.set_bytes(data)?;
    Ok(Some(held))
}

/// Numbers as a quantized tensor can hold them.
fn rounded(tensor: &LiteTensor, x: Tensor) -> Result<Tensor> {
    let quantization = tensor.quantization.as_ref().and_then(|q| q.one());
    let (Some((scale, zero)), ElementType::I8, DType::F32) = (quantization, tensor.ty, x.dtype()) else {
        return Ok(x);
    };
    let hold = |x: &f32| (i64::from(nearest(*x, scale, zero)) - zero) as f32 * scale;
    let held: Vec<f32> = x.to_vec::<f32>()?.iter().map(hold).collect();
    Ok(Tensor::from_slice(&held, x.shape())?)
}

fn one(model: &LiteModel, op: &LiteOp, values: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
    ops::Call { model, op, values }.run()
}
