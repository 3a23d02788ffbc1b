//! Layers that make numbers of classes, and rows of zeros and ones of them.

use plimsoll_graph::{DType, GatherOps, TensorOps, Type};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::Table;
use crate::error::{Result, refuse};
use crate::layer::Made;
use crate::settings::Settings;

pub(crate) const TABLE: Table =
    &[("CategoryEncoding", encoding), ("Discretization", discretization), ("IntegerLookup", lookup)];

/// The longest list of bounds or words.
const MOST_ENTRIES: usize = 1 << 16;

/// What is made of numbers of classes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Int,
    OneHot,
    MultiHot,
    Count,
}

fn mode(s: &Settings<'_>, default: &'static str) -> Result<Mode> {
    Ok(match s.text_or("output_mode", default)? {
        "int" => Mode::Int,
        "one_hot" => Mode::OneHot,
        "multi_hot" => Mode::MultiHot,
        "count" => Mode::Count,
        _ => return Err(s.wrong("output_mode", "int, one_hot, multi_hot and count are known")),
    })
}

/// Numbers of classes as the mode has them, among `classes`.
fn encoded(x: &Tensor, mode: Mode, classes: usize, dtype: DType) -> RunResult<Tensor> {
    let rows = |x: &Tensor| x.one_hot(classes, DType::F32);
    let rank = x.shape().rank();
    let y = match mode {
        Mode::Int => return Ok(x.clone()),
        // A last axis of length 1 becomes that of the classes.
        Mode::OneHot if rank > 1 && x.shape().last() == Some(&1) => {
            let shape: Vec<usize> = x.shape()[..rank - 1].to_vec();
            rows(&x.reshape(&shape[..])?)?
        }
        Mode::OneHot => rows(x)?,
        Mode::MultiHot | Mode::Count if rank < 2 => {
            return Err(refuse(format!("counts classes in {}, which has no axis of them", x.ty())));
        }
        Mode::MultiHot => rows(x)?.max(&[rank - 1], false)?,
        Mode::Count => rows(x)?.sum(&[rank - 1], false)?,
    };
    y.cast(dtype)
}

fn encoding(s: &Settings<'_>) -> Result<Made> {
    let (classes, mode) = (s.units("num_tokens")?, mode(s, "multi_hot")?);
    if s.flag("sparse", false)? {
        return Err(s.wrong("sparse", "only dense rows are made"));
    }
    Ok(Made::unary(move |cx, x| encoded(&x.cast(DType::I64)?, mode, classes, cx.dtype())))
}

fn discretization(s: &Settings<'_>) -> Result<Made> {
    let Value::Array(_) = s.get("bin_boundaries") else {
        return Err(s.wrong("bin_boundaries", "it has none; adapt the layer before it is saved"));
    };
    let bounds = s.numbers("bin_boundaries", MOST_ENTRIES)?;
    if s.flag("sparse", false)? {
        return Err(s.wrong("sparse", "only dense rows are made"));
    }
    let mode = mode(s, "int")?;
    // They belong to how bounds are found.
    let _ = (s.get("num_bins"), s.get("epsilon"));
    Ok(Made::unary(move |cx, x| {
        let mut shape = x.shape().to_vec();
        shape.push(1);
        let x = x.cast(DType::F32)?.reshape(&shape[..])?;
        let rounded: Vec<f64> = bounds.iter().map(|bound| f64::from(*bound as f32)).collect();
        let limits = Tensor::from_slice(&rounded, [rounded.len()])?.cast(DType::F32)?;
        let last = shape.len() - 1;
        let found = x.greater_equal(&limits)?.cast(DType::F32)?.sum(&[last], false)?.cast(DType::I64)?;
        encoded(&found, mode, bounds.len() + 1, cx.dtype())
    }))
}

fn lookup(s: &Settings<'_>) -> Result<Made> {
    let words = match s.get("vocabulary") {
        Value::Array(_) => s.numbers("vocabulary", MOST_ENTRIES)?,
        _ => return Err(s.wrong("vocabulary", "it should be a list; adapt the layer before it is saved")),
    };
    let outside = match s.get("num_oov_indices") {
        Value::Null => 1,
        n => n
            .as_u64()
            .filter(|n| *n <= 1 << 16)
            .ok_or_else(|| s.wrong("num_oov_indices", "it should be a number"))?,
    } as usize;
    if outside != 1 {
        return Err(s.wrong("num_oov_indices", "only one number for all that is not known is taken"));
    }
    for key in ["invert", "sparse", "pad_to_max_tokens"] {
        if s.flag(key, false)? {
            return Err(s.wrong(key, "this is not supported"));
        }
    }
    for key in ["mask_token", "idf_weights", "salt"] {
        if !s.is_null(key) {
            return Err(s.wrong(key, "this is not supported"));
        }
    }
    // Names of what is known already, and what only matters where several numbers stand for what is not known.
    for key in ["max_tokens", "oov_token", "vocabulary_dtype", "vocabulary_size", "oov_method"] {
        s.get(key);
    }
    let mode = mode(s, "int")?;
    Ok(Made::unary(move |cx, x| {
        let mut shape = x.shape().to_vec();
        shape.push(1);
        let last = shape.len() - 1;
        let x = x.cast(DType::I64)?.reshape(&shape[..])?;
        let known = Tensor::from_slice(&words, [words.len()])?.cast(DType::I64)?;
        let hits = x.equal(&known)?.cast(DType::F32)?;
        // What is not known is 0, the first word 1.
        let numbers = hits.iota_like(Type::new(DType::F32, [words.len()]), 0)?.add_scalar(1.0)?;
        let found = hits.mul(&numbers)?.sum(&[last], false)?.cast(DType::I64)?;
        encoded(&found, mode, words.len() + 1, cx.dtype())
    }))
}
