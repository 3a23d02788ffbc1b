//! What code of the user's own reads, draws and adds once it was followed into the operations that it calls: weights and constants as tensors, random
//! numbers, parts of the loss, and what is computed only while a model trains or only otherwise.
//!
//! `python/plimsoll/_traced_layers.py` writes them; Keras has no such layers.

use plimsoll_formats::keras::Layer;
use plimsoll_graph::{DType, RandomOps, Shape, TensorOps, Type};
use plimsoll_nn::Init;
use plimsoll_run::Result as RunResult;

use super::{Maker, Table, statistic, trained};
use crate::error::{Result, refuse};
use crate::layer::{Cx, Made, Masks};
use crate::settings::Settings;

const TABLE: Table = &[
    ("PlimsollWeight", weight),
    ("PlimsollConstant", constant),
    ("PlimsollRandom", random),
    ("PlimsollSeed", seed),
    (EITHER, |_| Ok(Made::plain(|x| Ok(x.clone())).masks(Masks::Pass))),
    (ADDED, added),
];
const EITHER: &str = "PlimsollEither";
const ADDED: &str = "PlimsollAdded";
/// The name of the number that layers which draw while nothing is trained keep.
const SEED: &str = "seed";

/// Whether a layer is one of these, by its class and the module that it is from.
pub(super) fn is_one(layer: &Layer) -> bool {
    maker(&layer.class_name).is_some() && layer.module.as_deref() == Some("plimsoll")
}

fn maker(class: &str) -> Option<Maker> {
    TABLE.iter().find(|(name, _)| *name == class).map(|(_, make)| *make)
}

/// Whether a layer of this class gives its first argument while something is trained, and its second otherwise.
pub(crate) fn is_either(class: &str) -> bool {
    class == EITHER
}

/// Whether a layer of this class adds to the loss.
pub(crate) fn adds_loss(class: &str) -> bool {
    class == ADDED
}

pub(super) fn make(s: &Settings<'_>) -> Result<Made> {
    maker(s.class).ok_or_else(|| s.unsupported("which is not known here"))?(s)
}

fn constant(_: &Settings<'_>) -> Result<Made> {
    Ok(Made::with(Vec::new(), |_, args| {
        let value = args.tensor(1, "value")?;
        Ok(vec![value.ok_or_else(|| refuse("has a constant without a value"))?.clone()])
    })
    .kwargs(&["value"]))
}

fn shape(s: &Settings<'_>) -> Result<Shape> {
    let size = |n: i64| usize::try_from(n).map_err(|_| s.wrong("shape", "it has a size below 0"));
    s.integers("shape")?.into_iter().map(size).collect()
}

fn weight(s: &Settings<'_>) -> Result<Made> {
    let shape = shape(s)?;
    let is_kept = s.flag("kept", false)?;
    let weight = match is_kept {
        true => statistic("value"),
        false => trained(s, "value", "value_regularizer")?,
    };
    // What it is called on only says where in the model it stands.
    Ok(Made::with(vec![weight], move |cx, _| {
        let zeros = Init::Constant(0.0);
        let value = match is_kept {
            true => cx.state("value", shape.clone(), zeros)?,
            false => cx.master("value", shape.clone(), zeros)?,
        };
        Ok(vec![value.cast(cx.dtype())?])
    }))
}

/// Random numbers, as many for every sample of what it is called on.
fn random(s: &Settings<'_>) -> Result<Made> {
    let shape = shape(s)?;
    let is_normal = match s.text("kind")? {
        "normal" => true,
        "uniform" => false,
        _ => return Err(s.wrong("kind", "normal and uniform are known")),
    };
    Ok(Made::weighted(vec![statistic(SEED)], move |cx, x| {
        let samples = x.shape().first().copied().ok_or_else(|| refuse("draws for no samples"))?;
        let whole: Shape = std::iter::once(samples).chain(shape.iter().copied()).collect();
        reseed(cx)?;
        let (key, stream) = cx.net.draw("draw")?;
        // Half precision would repeat itself.
        let ty = Type::new(if cx.dtype() == DType::F64 { DType::F64 } else { DType::F32 }, whole);
        let drawn = match is_normal {
            true => key.random_normal(ty, stream, 0.0, 1.0)?,
            false => key.random_uniform(ty, stream, 0.0, 1.0)?,
        };
        drawn.cast(cx.dtype())
    }))
}

/// The tensor as it is, in front of a layer that draws though nothing is trained.
fn seed(_: &Settings<'_>) -> Result<Made> {
    Ok(Made::weighted(vec![statistic(SEED)], |cx, x| {
        reseed(cx)?;
        Ok(x.clone())
    })
    .masks(Masks::Pass))
}

/// A training has a seed of its own; elsewhere the layer keeps one, which is another one for the next batch.
fn reseed(cx: &mut Cx<'_>) -> RunResult<()> {
    let seed = cx.state(SEED, [], Init::Constant(0.0))?;
    if cx.is_training() {
        return Ok(());
    }
    cx.carry(SEED, seed.add_scalar(1.0)?)?;
    cx.net.reseed(&seed)
}

/// The first tensor as it is; the sums of the others are added to the loss.
fn added(_: &Settings<'_>) -> Result<Made> {
    Ok(Made::with(Vec::new(), |cx, args| {
        let all = args.all();
        let Some((x, losses)) = all.split_first() else { return Err(refuse("adds to the loss of nothing")) };
        if cx.pass.counts_activity {
            for loss in losses {
                let wide = if loss.dtype().is_float() { loss.dtype().accumulator() } else { DType::F32 };
                cx.add_loss(loss.cast(wide)?.sum(&[], false)?)?;
            }
        }
        Ok(vec![(*x).clone()])
    })
    .masks(Masks::Pass)
    .kwargs(&["losses"]))
}
