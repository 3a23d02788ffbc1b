//! Layers that make numbers of classes, and rows of zeros and ones of them.

use plimsoll_graph::{DType, GatherOps, TensorOps, Type};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::Table;
use super::hashing::{self, How};
use crate::error::{Result, refuse};
use crate::layer::Made;
use crate::settings::Settings;

pub(crate) const TABLE: Table =
    &[("CategoryEncoding", encoding), ("Discretization", discretization), ("IntegerLookup", lookup)];

/// The longest list of bounds or words.
const MOST_ENTRIES: usize = 1 << 16;

/// What is made of numbers of classes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Int,
    OneHot,
    MultiHot,
    Count,
}

pub(super) fn mode(s: &Settings<'_>, default: &'static str) -> Result<Mode> {
    Ok(match s.text_or("output_mode", default)? {
        "int" => Mode::Int,
        "one_hot" => Mode::OneHot,
        "multi_hot" => Mode::MultiHot,
        "count" => Mode::Count,
        _ => return Err(s.wrong("output_mode", "int, one_hot, multi_hot and count are known")),
    })
}

/// Numbers of classes as the mode has them, among `classes`.
pub(super) fn encoded(x: &Tensor, mode: Mode, classes: usize, dtype: DType) -> RunResult<Tensor> {
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

/// Whole numbers of this size and more are not told apart by a configuration.
const MOST_WORD: f64 = (1u64 << 53) as f64;

fn lookup(s: &Settings<'_>) -> Result<Made> {
    let mut words = match s.get("vocabulary") {
        Value::Array(_) => s.numbers("vocabulary", MOST_ENTRIES)?,
        _ => {
            return Err(s.wrong(
                "vocabulary",
                "it should be a list; a file of an adapted layer has it elsewhere, so make the layer with vocabulary=layer.get_vocabulary()",
            ));
        }
    };
    if words.iter().any(|word| word.abs() >= MOST_WORD || word.fract() != 0.0) {
        return Err(s.wrong("vocabulary", "only whole numbers below 2⁵³ are taken"));
    }
    let outside = match s.get("num_oov_indices") {
        Value::Null => 1,
        n => n
            .as_u64()
            .filter(|n| *n <= 1 << 16)
            .ok_or_else(|| s.wrong("num_oov_indices", "it should be a number"))?,
    } as usize;
    if outside == 0 {
        let why = "a number that is not known would have to end the step; give it at least 1";
        return Err(s.wrong("num_oov_indices", why));
    }
    for key in ["invert", "sparse", "pad_to_max_tokens"] {
        if s.flag(key, false)? {
            return Err(s.wrong(key, "this is not supported"));
        }
    }
    if !s.is_null("idf_weights") {
        return Err(s.wrong("idf_weights", "this is not supported"));
    }
    let mode = mode(s, "int")?;
    let hidden = if s.is_null("mask_token") { None } else { Some(s.number("mask_token")?) };
    if hidden.is_some() && mode != Mode::Int {
        return Err(s.wrong("mask_token", "with rows of zeros and ones this is not supported"));
    }
    let how = match s.text_or("oov_method", "floormod")? {
        "floormod" => How::Remainder,
        "farmhash" => How::salted(s)?,
        _ => return Err(s.wrong("oov_method", "floormod and farmhash are known")),
    };
    if how == How::Remainder && !s.is_null("salt") {
        return Err(s.wrong("salt", "it belongs to the farmhash alone"));
    }
    // Names of what is known already.
    for key in ["max_tokens", "vocabulary_dtype", "vocabulary_size"] {
        s.get(key);
    }
    // What is hidden comes first, then what is not known, then the words.
    let first = usize::from(hidden.is_some());
    let special: Vec<f64> =
        hidden.into_iter().chain(std::iter::repeat_n(s.number_or("oov_token", -1.0)?, outside)).collect();
    // Keras knows them again where a vocabulary begins with them.
    if words.starts_with(&special) {
        words.drain(..special.len());
    }
    Ok(Made::unary(move |cx, x| {
        let mut shape = x.shape().to_vec();
        shape.push(1);
        let last = shape.len() - 1;
        let x = x.cast(DType::I64)?;
        let known = Tensor::from_slice(&words, [words.len()])?.cast(DType::I64)?;
        let hits = x.reshape(&shape[..])?.equal(&known)?.cast(DType::F32)?;
        // The first word is 1, so that 0 is what is not known.
        let numbers = hits.iota_like(Type::new(DType::F32, [words.len()]), 0)?.add_scalar(1.0)?;
        let found = hits.mul(&numbers)?.sum(&[last], false)?.cast(DType::I64)?;
        let constant = |value: f64| found.full_like(found.ty().clone(), value);
        let others = match outside {
            1 => constant(first as f64)?,
            n => hashing::bucket(&[&x], how, n)?.add_scalar(first as f64)?,
        };
        let is_known = found.not_equal(&constant(0.0)?)?;
        let mut found = is_known.select(&found.add_scalar((first + outside) as f64 - 1.0)?, &others)?;
        if let Some(value) = hidden {
            let is_hidden = x.equal(&x.full_like(Type::new(DType::I64, []), value)?)?;
            found = is_hidden.select(&found.full_like(found.ty().clone(), 0.0)?, &found)?;
        }
        encoded(&found, mode, words.len() + outside, cx.dtype())
    }))
}
