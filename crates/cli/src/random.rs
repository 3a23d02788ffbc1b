//! Turns a model into random data of its own sizes: what it is planned and measured on where there is no other data.

use plimsoll::data::{Draw, FieldSpec, Random};
use plimsoll::keras::KerasModel;
use plimsoll::prelude::*;
use plimsoll::torch::TorchModel;

use crate::Failure;
use crate::batch_auto;
use crate::config::{BatchSize, Config, USUAL_BATCH};
use crate::keras_file;
use crate::model_setup::{self, Purpose};
use crate::onnx_file;
use crate::request::is_onnx;
use crate::{sizes, tflite_file, torch_file};

/// Steps of an epoch: enough to see how fast they are.
const STEPS: u64 = 100;

/// Random data, and the classes of its labels where they are known.
pub fn open(
    config: &Config,
    file: Option<&KerasModel>,
    purpose: Purpose,
) -> Result<(Dataset, Option<usize>), Failure> {
    let (fields, classes) = match file {
        Some(file) => (of_file(config, file, purpose)?, None),
        None if config.model.as_deref().is_some_and(is_onnx) => (of_onnx(config, purpose)?, None),
        None => match torch_file::opened(config)? {
            Some(model) => (of_torch(config, &model, purpose)?, None),
            None => match tflite_file::random_fields(config, purpose)? {
                Some(fields) => (fields, None),
                None => of_zoo(config)?,
            },
        },
    };
    let batch = match config.batch {
        // A size that is yet to be found may be any.
        Some(BatchSize::Auto) => batch_auto::MOST,
        said => said.and_then(BatchSize::samples).unwrap_or(USUAL_BATCH),
    } as u64;
    Ok((random(fields, STEPS * batch, config.seed), classes))
}

/// One batch of random numbers of the form that data has, with labels of so many classes.
pub fn batch_like(
    spec: Vec<FieldSpec>,
    known_classes: Option<usize>,
    file: Option<&KerasModel>,
    batch: usize,
    seed: Option<u64>,
) -> Dataset {
    let inputs = file.map_or(1, KerasModel::n_inputs);
    let field = |(i, spec): (usize, FieldSpec)| {
        let classes = match file {
            // Labels that are classes have an axis less than the output that they are of.
            Some(file) => {
                let outputs = file.outputs().iter().filter(|ty| ty.shape.rank() == spec.shape.len() + 2);
                outputs.filter_map(|ty| ty.shape.last().copied()).min()
            }
            None => known_classes,
        };
        let draw = match (spec.dtype.is_float(), i < inputs) {
            (true, true) => Draw::Centered,
            (true, false) => Draw::Unit,
            (false, true) if file.is_some() => Draw::One,
            (false, _) => classes.map_or(Draw::One, Draw::Below),
        };
        (spec, draw)
    };
    random(spec.into_iter().enumerate().map(field).collect(), batch as u64, seed).batch(batch)
}

fn random(fields: Vec<(FieldSpec, Draw)>, count: u64, seed: Option<u64>) -> Dataset {
    let (spec, draws) = fields.into_iter().unzip();
    Dataset::random(Random { spec, draws, count, seed: seed.unwrap_or(42) })
}

pub type Fields = Vec<(FieldSpec, Draw)>;

/// One array of samples, of the type of a batch of one.
fn field(name: &str, ty: &Type) -> FieldSpec {
    FieldSpec::new(name, ty.dtype, &ty.shape[1..])
}

/// What a model of the zoo takes, at the sizes of its table or those that are asked for.
fn of_zoo(config: &Config) -> Result<(Fields, Option<usize>), Failure> {
    let name = config.model.as_deref().unwrap_or("demo");
    let entry = model_setup::find(name)?;
    sizes::check_data(config, name, entry.as_ref())?;
    let (input, labels, classes) = match entry {
        // Images and classes as of the digits that it is made for.
        None => {
            let side = config.image.unwrap_or(8);
            let (images, labels) = (Type::new(DType::F32, [1, side, side, 1]), Type::new(DType::I64, [1]));
            (images, labels, config.classes.unwrap_or(10))
        }
        Some(entry) => {
            let entry = entry.sized(|size| {
                size.classes = config.classes.unwrap_or(size.classes);
                size.image = config.image.unwrap_or(size.image);
                size.sequence = config.sequence.unwrap_or(size.sequence);
            });
            (entry.input(1), entry.labels(1), entry.size.classes)
        }
    };
    let x = match input.dtype.is_float() {
        true => (field("x", &input), Draw::Centered),
        false => (field("x", &input), Draw::Below(classes)),
    };
    // Every loss but cross-entropy compares numbers.
    let y = match config.loss.as_deref() {
        None | Some("cross-entropy") => (field("y", &labels), Draw::Below(classes)),
        Some(_) => (field("y", &labels.with_dtype(DType::F32)), Draw::Unit),
    };
    Ok((vec![x, y], Some(classes)))
}

/// What the model of an ONNX file takes, and labels for its first output.
fn of_onnx(config: &Config, purpose: Purpose) -> Result<Fields, Failure> {
    let open = |e| Failure(format!("{e}; or name data with --data"));
    let unbound = onnx_file::unbound(config)?.ok_or_else(|| Failure("no ONNX file is named".into()))?;
    let batch = unbound.fixed_batch().unwrap_or(1);
    let inputs = unbound.inputs(batch).map_err(open)?;
    let model = unbound.bound(&inputs)?;
    let mut fields: Fields = Vec::new();
    for (name, ty) in model.input_names().iter().zip(&inputs) {
        let ty = if ty.dtype.is_float() { ty.with_dtype(DType::F32) } else { ty.with_dtype(DType::I64) };
        fields.push((field(name, &ty), if ty.dtype.is_float() { Draw::Centered } else { Draw::One }));
    }
    if let (Some(ty), false) = (model.outputs().first(), purpose == Purpose::Predict) {
        let name = &model.output_names()[0];
        fields.push(match (config.loss.as_deref(), ty.shape.split_last()) {
            (None | Some("cross-entropy"), Some((&classes, outer))) if !outer.is_empty() => {
                (field(name, &Type::new(DType::I64, outer)), Draw::Below(classes))
            }
            _ => (field(name, &ty.with_dtype(DType::F32)), Draw::Unit),
        });
    }
    Ok(fields)
}

/// What an exported PyTorch program takes, and labels for its first output where its loss is named.
fn of_torch(config: &Config, model: &TorchModel, purpose: Purpose) -> Result<Fields, Failure> {
    let mut fields: Fields = Vec::new();
    for (input, ty) in model.program().inputs().iter().zip(model.input_types(torch_file::batch(model))?) {
        if ty.shape.rank() == 0 {
            let name = &input.name;
            return Err(Failure(format!("{name} is one number for a whole batch, and data has samples")));
        }
        let ty = if ty.dtype.is_float() { ty.with_dtype(DType::F32) } else { ty.with_dtype(DType::I64) };
        fields.push((field(&input.name, &ty), if ty.dtype.is_float() { Draw::Centered } else { Draw::One }));
    }
    if let (Some(output), false) = (torch_file::learned(config, model), purpose == Purpose::Predict) {
        fields.push(match (config.loss.as_deref(), output.shape.split_last()) {
            (None | Some("cross-entropy"), Some((&classes, outer))) if !outer.is_empty() => {
                (field(&output.name, &Type::new(DType::I64, outer)), Draw::Below(classes))
            }
            _ => (field(&output.name, &Type::new(DType::F32, output.shape.clone())), Draw::Unit),
        });
    }
    Ok(fields)
}

/// What the model of a Keras file takes.
fn of_file(config: &Config, file: &KerasModel, purpose: Purpose) -> Result<Fields, Failure> {
    let open = |e| Failure(format!("{e}; random data cannot be made for it, so name some with --data"));
    let mut fields: Fields = Vec::new();
    for (name, ty) in file.input_names().iter().zip(file.inputs(1).map_err(open)?) {
        fields.push((field(name, &ty), if ty.dtype.is_float() { Draw::Centered } else { Draw::One }));
    }
    for (output, is_classes) in keras_file::labels(config, file, purpose)? {
        let (name, ty) = (&file.output_names()[output], &file.outputs()[output]);
        fields.push(match ty.shape.split_last() {
            Some((&classes, outer)) if is_classes => {
                let shape = if outer.is_empty() { &[1] } else { outer };
                (field(name, &Type::new(DType::I64, shape)), Draw::Below(classes))
            }
            _ => (field(name, &ty.with_dtype(DType::F32)), Draw::Unit),
        });
    }
    Ok(fields)
}
