//! Layers of several inputs.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result as RunResult, Tensor};

use super::Table;
use crate::error::{Result, refuse};
use crate::layer::{Args, Made, Masks};
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[
    ("Add", |_| Ok(fold(|a, b| a.add(b)))),
    ("Subtract", |_| Ok(fold(|a, b| a.sub(b)))),
    ("Multiply", |_| Ok(fold(|a, b| a.mul(b)))),
    ("Maximum", |_| Ok(fold(|a, b| a.maximum(b)))),
    ("Minimum", |_| Ok(fold(|a, b| a.minimum(b)))),
    ("Average", |_| {
        Ok(Made::with(Vec::new(), |cx, args| {
            cx.pass.mask = common(args)?;
            let all = args.all();
            Ok(vec![folded(&all, &|a, b| a.add(b))?.mul_scalar(1.0 / all.len() as f64)?])
        })
        .masks(Masks::Read))
    }),
    ("Concatenate", |s| {
        let axis = if s.is_null("axis") { vec![-1] } else { s.integers("axis")? };
        let [axis] = axis[..] else { return Err(s.wrong("axis", "one axis is taken")) };
        Ok(Made::with(Vec::new(), move |cx, args| {
            cx.pass.mask = joined(args, axis)?;
            Ok(vec![concat(&args.all(), axis as isize)?])
        })
        .masks(Masks::Read))
    }),
    ("Dot", dot),
    // Of `keras.applications.InceptionResNetV2`: the first input and a part of the second.
    ("CustomScaleLayer", |s| {
        let scale = s.number("scale")?;
        Ok(Made::with(Vec::new(), move |_, args| match args.all()[..] {
            [whole, part] => Ok(vec![whole.add(&part.mul_scalar(scale)?)?]),
            ref all => Err(refuse(format!("gives a CustomScaleLayer {} inputs; it takes two", all.len()))),
        }))
    }),
];

/// Tensors one after the other, a few at a time: an op of hundreds of inputs is more than a tape can follow.
pub(crate) fn concat(all: &[&Tensor], axis: isize) -> RunResult<Tensor> {
    const AT_ONCE: usize = 16;
    if all.len() <= AT_ONCE {
        return Tensor::concat(all, axis);
    }
    let parts = all.chunks(AT_ONCE).map(|part| Tensor::concat(part, axis)).collect::<RunResult<Vec<_>>>()?;
    concat(&parts.iter().collect::<Vec<_>>(), axis)
}

fn fold(f: impl Fn(&Tensor, &Tensor) -> RunResult<Tensor> + Send + Sync + 'static) -> Made {
    Made::with(Vec::new(), move |cx, args| {
        cx.pass.mask = common(args)?;
        Ok(vec![folded(&args.all(), &f)?])
    })
    .masks(Masks::Read)
}

/// What all masks of the inputs show; an input without one shows all.
fn common(args: &Args) -> RunResult<Option<Tensor>> {
    let mut found: Option<Tensor> = None;
    for mask in args.masks().into_iter().flatten() {
        found = Some(match found {
            Some(all) => all.and(mask)?,
            None => mask.clone(),
        });
    }
    Ok(found)
}

/// The mask of inputs that are joined: along the steps their masks one after the other, along channels what all show.
fn joined(args: &Args, axis: i64) -> RunResult<Option<Tensor>> {
    let (all, masks) = (args.all(), args.masks());
    if masks.iter().all(Option::is_none) {
        return Ok(None);
    }
    let rank = all.first().map_or(0, |x| x.shape().rank()) as i64;
    let place = if axis < 0 { axis + rank } else { axis };
    if place + 1 == rank {
        return common(args);
    }
    let steps = |x: &Tensor, mask: &Option<&Tensor>| match mask {
        Some(mask) if mask.shape().rank() as i64 > place => Ok((*mask).clone()),
        Some(_) => Err(refuse("joins tensors with masks along an axis that these do not have")),
        None => {
            let shape: Vec<usize> = x.shape()[..2.min(x.shape().rank())].to_vec();
            x.full_like(Type::new(DType::Bool, &shape[..]), 1.0)
        }
    };
    let masks = all.iter().zip(&masks).map(|(x, mask)| steps(x, mask)).collect::<RunResult<Vec<_>>>()?;
    let bytes = masks.iter().map(|mask| mask.cast(DType::U8)).collect::<RunResult<Vec<_>>>()?;
    Ok(Some(concat(&bytes.iter().collect::<Vec<_>>(), place as isize)?.cast(DType::Bool)?))
}

fn folded(all: &[&Tensor], f: &dyn Fn(&Tensor, &Tensor) -> RunResult<Tensor>) -> RunResult<Tensor> {
    let Some((first, rest)) = all.split_first() else { return Err(refuse("merges nothing")) };
    // Keras gives those of fewer axes more of them behind the batch.
    let rank = all.iter().map(|x| x.shape().rank()).max().unwrap_or(0);
    let alike = |x: &Tensor| -> RunResult<Tensor> {
        let more = rank - x.shape().rank();
        if more == 0 {
            return Ok(x.clone());
        }
        let (batch, own) = x.shape().split_at(1.min(x.shape().rank()));
        let shape: Vec<usize> =
            batch.iter().copied().chain(std::iter::repeat_n(1, more)).chain(own.iter().copied()).collect();
        x.reshape(&shape[..])
    };
    rest.iter().try_fold(alike(first)?, |sum, x| f(&sum, &alike(x)?))
}

/// Products of two inputs along an axis each: of rank 2 or 3.
fn dot(s: &Settings<'_>) -> Result<Made> {
    let axes = s.integers("axes")?;
    let (a, b) = match axes[..] {
        [axis] => (axis, axis),
        [a, b] => (a, b),
        _ => return Err(s.wrong("axes", "one or two axes are taken")),
    };
    let normalize = s.flag("normalize", false)?;
    Ok(Made::with(Vec::new(), move |_, args| {
        let all = args.all();
        let [x, y] = all[..] else { return Err(refuse("gives not two tensors to a dot product")) };
        let place = |axis: i64, x: &Tensor| {
            let rank = x.shape().rank() as i64;
            let axis = if axis < 0 { axis + rank } else { axis };
            if (1..rank).contains(&axis) && rank <= 3 {
                return Ok(axis as usize);
            }
            Err(refuse(format!("multiplies {} along axis {axis}", x.ty())))
        };
        let (a, b) = (place(a, x)?, place(b, y)?);
        let unit = |x: &Tensor, axis: usize| -> RunResult<Tensor> {
            if !normalize {
                return Ok(x.clone());
            }
            x.mul(&x.square()?.sum(&[axis], true)?.clamp(1e-12, f64::INFINITY)?.rsqrt()?)
        };
        let (x, y) = (unit(x, a)?, unit(y, b)?);
        // As matrices a sample, with the common axis last in one and first in the other.
        let matrix = |x: &Tensor, axis: usize| -> RunResult<Tensor> {
            match x.shape()[..] {
                [n, c] => x.reshape([n, 1, c]),
                _ if axis == 2 => Ok(x.clone()),
                _ => x.transpose(&[0, 2, 1]),
            }
        };
        let product = matrix(&x, a)?.matmul_with(&matrix(&y, b)?, None, false, true)?;
        let [n, rows, columns] = product.shape()[..] else { return Err(refuse("made no matrices")) };
        let shape: Vec<usize> = match (x.shape().rank(), y.shape().rank()) {
            (2, 2) => vec![n, 1],
            (2, _) => vec![n, columns],
            (_, 2) => vec![n, rows],
            _ => vec![n, rows, columns],
        };
        Ok(vec![product.reshape(&shape[..])?])
    })
    .masks(Masks::Refuse))
}
