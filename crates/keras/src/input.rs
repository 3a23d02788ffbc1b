//! Turns what a configuration says of a model's inputs into types.

use plimsoll_formats::Element;
use plimsoll_formats::keras::Layer;
use plimsoll_graph::{DType, Type};
use serde_json::Value;

use crate::error::{Error, Result};

/// What a model takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputSpec {
    pub dtype: DType,
    /// Without the batch; an axis of unknown length is `None`.
    pub shape: Vec<Option<usize>>,
}

impl InputSpec {
    pub(crate) fn of(ty: &Type) -> InputSpec {
        InputSpec { dtype: ty.dtype, shape: ty.shape.iter().skip(1).map(|n| Some(*n)).collect() }
    }

    fn read(shape: &Value, dtype: &Value, place: &str) -> Result<InputSpec> {
        let wrong = |why: &str| Error::config(place, why);
        let Some(list) = shape.as_array().filter(|list| (1..=8).contains(&list.len())) else {
            return Err(wrong("its input's shape is not a list"));
        };
        let length = |n: &Value| match n {
            Value::Null => Ok(None),
            n => match n.as_u64() {
                Some(n) if (1..=1 << 24).contains(&n) => Ok(Some(n as usize)),
                _ => Err(wrong("its input's shape is not a list of lengths")),
            },
        };
        let shape: Vec<Option<usize>> = list[1..].iter().map(length).collect::<Result<_>>()?;
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(d.unwrap_or(64)));
        if elements.is_none_or(|n| n > 1 << 32) {
            return Err(wrong("a sample of its input is too large"));
        }
        let name = dtype.as_str().or_else(|| dtype.get("config")?.get("name")?.as_str()).unwrap_or("float32");
        let dtype = match name {
            "int32" | "int16" | "int8" => DType::I32,
            "int64" | "uint32" => DType::I64,
            "uint8" => DType::U8,
            "bool" => DType::Bool,
            "float32" | "float16" | "bfloat16" | "mixed_float16" | "mixed_bfloat16" => DType::F32,
            "float64" => DType::F64,
            _ => return Err(wrong("its input has an element type that is not taken")),
        };
        Ok(InputSpec { dtype, shape })
    }
}

/// What a model takes, from its input layers; a Sequential model may say so in its first layer or in how it was built.
pub(crate) fn input_specs(root: &Layer) -> Result<Vec<InputSpec>> {
    let Some(model) = &root.model else { return Ok(Vec::new()) };
    let shape_of = |layer: &Layer| {
        let config = &layer.config;
        config.get("batch_shape").or(config.get("batch_input_shape")).cloned().filter(|v| !v.is_null())
    };
    let dtype_of = |layer: &Layer| layer.config.get("dtype").cloned().unwrap_or(Value::Null);
    let mut specs = Vec::new();
    for port in &model.inputs {
        let layer = &model.layers[port.tensor.layer];
        let shape = shape_of(layer).unwrap_or(Value::Null);
        specs.push(InputSpec::read(&shape, &dtype_of(layer), &layer.name)?);
    }
    if !specs.is_empty() {
        return Ok(specs);
    }
    let first = model.layers.first();
    let built = root.config.get("build_input_shape").cloned().filter(|v| !v.is_null());
    let shape = first.and_then(shape_of).or(built);
    let Some(shape) = shape else {
        return Err(Error::config(
            &root.name,
            "the file does not say what the model takes; open it for a type",
        ));
    };
    // Rows of a table are asked for by number.
    let policy = first.and_then(|layer| layer.policy.as_ref());
    let dtype = match first.is_some_and(|layer| layer.class_name == "Embedding") {
        true => Value::from("int64"),
        false if policy.is_some_and(|p| p.compute == Some(Element::F64)) => Value::from("float64"),
        false => Value::from("float32"),
    };
    Ok(vec![InputSpec::read(&shape, &dtype, &root.name)?])
}
