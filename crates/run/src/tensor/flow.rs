//! Turns a choice and loops into ops that can be traced, planned and differentiated.
//!
//! A plan is one list of ops, so in a traced function a choice computes both sides and a loop is written out: each says what that costs.

use plimsoll_graph::{DType, Shape, Site, TensorOps};

use super::Tensor;
use crate::error::{Error, Result};
use crate::scope::named;

fn refuse(site: Site, why: String) -> Error {
    Error::Signature { site, why }
}

/// The results of `yes` where a truth value is true, else those of `no`; both must give tensors of the same types.
///
/// Eager, only the side that is chosen runs. In a traced function both sides run and each result is selected, so that time and memory are those
/// of both. The gradient of the side that is not chosen is 0; where its slope is infinite or not a number, 0 times that is not a
/// number: hold the values apart from such places inside of the side, with `clamp` or `select`.
///
/// ```
/// use plimsoll_graph::TensorOps;
/// use plimsoll_run::{Tensor, cond, function};
/// let f = function(|x| {
///     let is_large = x[0].sum(&[], false)?.greater(&x[1])?;
///     cond(&is_large, || Ok(vec![x[0].mul_scalar(0.5)?]), || Ok(vec![x[0].clone()]))
/// });
/// let (x, limit) = (Tensor::from_slice(&[3.0f32, 5.0], [2])?, Tensor::from_slice(&[6.0f32], [])?);
/// assert_eq!(f.call(&[&x, &limit])?[0].to_vec::<f32>()?, [1.5, 2.5]);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
///
/// # Errors
/// The condition is not one truth value, or the sides give other numbers or types of tensors.
#[track_caller]
pub fn cond(
    condition: &Tensor,
    yes: impl FnOnce() -> Result<Vec<Tensor>>,
    no: impl FnOnce() -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let site = Site::here();
    if condition.dtype() != DType::Bool || condition.shape().elements() != 1 {
        let why = format!("of cond takes one truth value as its condition, not {}", condition.ty());
        return Err(refuse(site, why));
    }
    if !condition.is_traced() {
        let is_true = condition.to_f64()?.first().is_some_and(|&x| x != 0.0);
        return if is_true { named("then", yes) } else { named("else", no) };
    }
    let (yes, no) = (named("then", yes)?, named("else", no)?);
    let types =
        |tensors: &[Tensor]| tensors.iter().map(|t| t.ty().to_string()).collect::<Vec<_>>().join(", ");
    if yes.len() != no.len() || yes.iter().zip(&no).any(|(a, b)| a.ty() != b.ty()) {
        let why = format!("of cond gives ({}) on one side and ({}) on the other", types(&yes), types(&no));
        return Err(refuse(site, why));
    }
    let condition = condition.reshape(Shape::scalar())?;
    let mut chosen = Vec::with_capacity(yes.len());
    for (a, b) in yes.iter().zip(&no) {
        chosen.push(condition.select(a, b)?);
    }
    Ok(chosen)
}

/// Runs `body` over the slices of an axis, one after the other: it is given what is carried and a slice, and gives what is carried on and
/// a result. Returns what is carried at the end, and the results side by side along the same axis.
///
/// The loop is written out: a traced function has the ops of the body once for each slice, in scopes `name/0`, `name/1` and so on, and
/// planning takes as much longer. The slices are copied once. Gradients flow through everything; what the body keeps for them is kept for every
/// slice, or computed again where a memory limit asks for it.
///
/// ```
/// use plimsoll_graph::TensorOps;
/// use plimsoll_run::{Tensor, scan};
/// // A moving average: m = 0.5 m + 0.5 x.
/// let x = Tensor::from_slice(&[4.0f32, 0.0, 8.0], [3])?;
/// let (last, all) = scan("average", &x, 0, vec![Tensor::from_slice(&[0.0f32], [])?], |carried, x| {
///     let mean = carried[0].add(x)?.mul_scalar(0.5)?;
///     Ok((vec![mean.clone()], mean))
/// })?;
/// assert_eq!((last[0].to_vec::<f32>()?, all.to_vec::<f32>()?), (vec![4.5], vec![2.0, 1.0, 4.5]));
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
///
/// # Errors
/// The axis is empty or not there, or the body carries on other types than it was given.
#[track_caller]
pub fn scan(
    name: &str,
    over: &Tensor,
    axis: isize,
    mut carried: Vec<Tensor>,
    mut body: impl FnMut(&[Tensor], &Tensor) -> Result<(Vec<Tensor>, Tensor)>,
) -> Result<(Vec<Tensor>, Tensor)> {
    let site = Site::here();
    let axis = over.axis(axis, "scan", site)?;
    let n = over.shape()[axis];
    if n == 0 {
        return Err(refuse(
            site,
            format!("of scan has nothing to run over: {} along axis {axis}", over.ty()),
        ));
    }
    // One op whose gradient is one op, where slices would each have one of the whole size.
    let slices = over.split(axis as isize, &vec![1; n])?;
    let shape = over.shape().reduced(&[axis], false);
    let mut results = Vec::with_capacity(n);
    for (i, slice) in slices.iter().enumerate() {
        let slice = slice.reshape(&shape)?;
        let (next, result) = named(name, || named(&i.to_string(), || body(&carried, &slice)))?;
        carries_on("scan", i, &carried, &next, site)?;
        let rank = result.shape().rank();
        if axis > rank {
            let why = format!(
                "of scan puts results {} side by side along axis {axis}, which they lack",
                result.ty()
            );
            return Err(refuse(site, why));
        }
        let mut wide = Shape::from(&result.shape()[..axis]);
        wide.push(1);
        result.shape()[axis..].iter().for_each(|&length| wide.push(length));
        results.push(result.reshape(wide)?);
        carried = next;
    }
    let all = Tensor::concat(&results.iter().collect::<Vec<_>>(), axis as isize)?;
    Ok((carried, all))
}

/// Refuses a body that carries on other tensors than it was given.
fn carries_on(what: &str, i: usize, given: &[Tensor], back: &[Tensor], site: Site) -> Result<()> {
    if back.len() != given.len() {
        let (given, back) = (given.len(), back.len());
        return Err(refuse(site, format!("of {what} carries {given} tensors and step {i} gives {back}")));
    }
    if let Some(k) = (0..back.len()).find(|&k| back[k].ty() != given[k].ty()) {
        let (given, back) = (given[k].ty(), back[k].ty());
        let why =
            format!("of {what} carries {given} as tensor {k} and step {i} gives {back}; they must be alike");
        return Err(refuse(site, why));
    }
    Ok(())
}

/// Runs `body` as long as `goes_on` says true of what is carried, at most `most` times. Returns what is carried at the end, and whether it
/// would go on: false where the loop ended by itself.
///
/// Eager, the loop ends where it ends. A traced function has one list of ops, so there the body is written out `most` times, in scopes
/// `name/0`, `name/1` and so on, and from where the condition is false on, what is carried stays as it is: time and memory are those of
/// `most` rounds, and the result is the same. Gradients flow through the rounds that counted. A round that does not count is computed on
/// the last values that did, so it must not fail on them.
///
/// ```
/// use plimsoll_graph::TensorOps;
/// use plimsoll_run::{Tensor, function, while_loop};
/// // Halved until it is at most 1.
/// let f = function(|x| {
///     let one = x[0].full_like(x[0].ty().clone(), 1.0)?;
///     let halve = |x: &[Tensor]| Ok(vec![x[0].mul_scalar(0.5)?]);
///     Ok(while_loop("halve", 8, vec![x[0].clone()], |x| x[0].greater(&one), halve)?.0)
/// });
/// let result = |x: f32| f.call(&[&Tensor::from_slice(&[x], [])?])?[0].item();
/// assert_eq!((result(0.5)?, result(12.0)?, result(512.0)?), (0.5, 0.75, 2.0));
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
///
/// # Errors
/// The condition is not one truth value, or the body carries on other types than it was given.
#[track_caller]
pub fn while_loop(
    name: &str,
    most: usize,
    mut carried: Vec<Tensor>,
    mut goes_on: impl FnMut(&[Tensor]) -> Result<Tensor>,
    mut body: impl FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<(Vec<Tensor>, Tensor)> {
    let site = Site::here();
    let mut asks = |carried: &[Tensor]| -> Result<Tensor> {
        let condition = goes_on(carried)?;
        if condition.dtype() != DType::Bool || condition.shape().elements() != 1 {
            let why = format!("of while_loop goes on by one truth value, not by {}", condition.ty());
            return Err(refuse(site, why));
        }
        condition.reshape(Shape::scalar())
    };
    let mut going = asks(&carried)?;
    for i in 0..most {
        if !going.is_traced() && going.to_f64()?.first().is_none_or(|&x| x == 0.0) {
            return Ok((carried, going));
        }
        let next = named(name, || named(&i.to_string(), || body(&carried)))?;
        carries_on("while_loop", i, &carried, &next, site)?;
        if !going.is_traced() {
            (going, carried) = (asks(&next)?, next);
            continue;
        }
        for (kept, next) in carried.iter_mut().zip(&next) {
            *kept = going.select(next, kept)?;
        }
        // Once it has ended it stays ended: what is carried does not change any more, and neither does the answer.
        going = asks(&carried)?;
    }
    Ok((carried, going))
}
