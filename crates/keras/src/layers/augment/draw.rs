//! Random numbers of the kinds that changes of images draw: even, normal, of a gamma or beta distribution, and orders of a batch.
//!
//! Random numbers are our own: what is drawn has Keras's distribution, not its bits.

use plimsoll_graph::{DType, GatherOps, RandomOps, Shape, SortOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::layer::Cx;

/// How often a number of a gamma distribution is tried: each try is taken in at least 19 of 20 cases.
const TRIES: usize = 12;

/// The shape of one number a sample, to go with images.
fn each(x: &Tensor) -> Shape {
    x.shape().iter().enumerate().map(|(i, &n)| if i == 0 { n } else { 1 }).collect()
}

/// The shape of one number for all samples.
fn one(x: &Tensor) -> Shape {
    x.shape().iter().map(|_| 1).collect()
}

/// Numbers of a shape, evenly between two, in the type that places are computed in.
fn even_of(cx: &mut Cx<'_>, x: &Tensor, shape: Shape, low: f64, high: f64) -> Result<Tensor> {
    let ty = Type::new(DType::F32, shape);
    if low >= high {
        return x.full_like(ty.with_dtype(place_type(x)), low);
    }
    let (key, stream) = cx.net.draw("augment")?;
    key.random_uniform(ty, stream, low, high)?.cast(place_type(x))
}

/// The type in which places and factors of images are computed: never less than f32.
pub(super) fn place_type(x: &Tensor) -> DType {
    x.dtype().accumulator()
}

/// One number a sample, evenly between two.
pub(super) fn even(cx: &mut Cx<'_>, x: &Tensor, (low, high): (f64, f64)) -> Result<Tensor> {
    even_of(cx, x, each(x), low, high)
}

/// One number for all samples, evenly between two.
pub(super) fn even_once(cx: &mut Cx<'_>, x: &Tensor, (low, high): (f64, f64)) -> Result<Tensor> {
    even_of(cx, x, one(x), low, high)
}

/// Normally distributed numbers of a shape.
pub(super) fn normal(cx: &mut Cx<'_>, x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    let (key, stream) = cx.net.draw("augment")?;
    key.random_normal(Type::new(DType::F32, shape), stream, 0.0, 1.0)?.cast(place_type(x))
}

/// One number for each sample: whether it comes to pass with a chance between two.
pub(super) fn chance(cx: &mut Cx<'_>, x: &Tensor, between: (f64, f64)) -> Result<Tensor> {
    let likely = even(cx, x, between)?;
    even(cx, x, (0.0, 1.0))?.less(&likely)
}

/// 1 or -1 for each sample.
pub(super) fn sign(cx: &mut Cx<'_>, x: &Tensor) -> Result<Tensor> {
    let coin = even(cx, x, (0.0, 1.0))?;
    let half = number(&coin, 0.5)?;
    coin.less_equal(&half)?.select(&number(&coin, 1.0)?, &number(&coin, -1.0)?)
}

/// A whole number below `n` for all samples.
pub(super) fn whole_once(cx: &mut Cx<'_>, x: &Tensor, n: usize) -> Result<Tensor> {
    even_once(cx, x, (0.0, n as f64))?.floor()
}

/// The same number everywhere.
pub(super) fn number(like: &Tensor, value: f64) -> Result<Tensor> {
    like.full_like(Type::new(like.dtype(), []), value)
}

/// Logarithms of numbers of a gamma distribution whose shape is `alpha`, which stands for every number of `shape`.
///
/// Marsaglia's and Tsang's way for α + 1, several times at once, of which the first that is taken counts; and a power of an even
/// number to come from α + 1 to α. As logarithms, because a small α gives numbers that are too small for any type.
fn log_gamma_numbers(cx: &mut Cx<'_>, x: &Tensor, shape: Shape, alpha: &Tensor) -> Result<Tensor> {
    let tries: Shape = shape.iter().copied().chain([TRIES]).collect();
    let last = shape.rank() as isize;
    let wide: Shape = alpha.shape().iter().copied().chain([1]).collect();
    let d = alpha.reshape(wide)?.add_scalar(1.0 - 1.0 / 3.0)?;
    let c = d.mul_scalar(9.0)?.sqrt()?.reciprocal()?;
    let z = normal(cx, x, tries.clone())?;
    let u = even_of(cx, x, tries, f64::from(f32::MIN_POSITIVE), 1.0)?;
    let root = z.mul(&c)?.add_scalar(1.0)?;
    let is_positive = root.greater(&number(&root, 0.0)?)?;
    let safe = is_positive.select(&root, &number(&root, 1.0)?.broadcast(root.shape().clone())?)?;
    // v = (1 + c z)³, taken where ln u < z²/2 + d - d v + d ln v.
    let log_v = safe.log()?.mul_scalar(3.0)?;
    let v = log_v.exp()?;
    let bound = z.square()?.mul_scalar(0.5)?.add(&d.mul(&v.rsub_scalar(1.0)?.add(&log_v)?)?)?;
    let is_taken = is_positive.and(&u.log()?.less(&bound)?)?;
    let first = is_taken.cast(place_type(x))?.argmax(last)?;
    let places: Shape = shape.iter().copied().chain([1]).collect();
    let chosen = log_v.add(&d.log()?)?.take_along(&first.reshape(places)?, last)?.reshape(shape.clone())?;
    let u = even_of(cx, x, shape, f64::from(f32::MIN_POSITIVE), 1.0)?;
    chosen.add(&u.log()?.div(alpha)?)
}

/// One number a sample of a beta distribution with two equal settings.
pub(super) fn beta(cx: &mut Cx<'_>, x: &Tensor, alpha: &Tensor) -> Result<Tensor> {
    beta_of(cx, x, each(x), alpha)
}

/// One number for all samples of a beta distribution with two equal settings.
pub(super) fn beta_once(cx: &mut Cx<'_>, x: &Tensor, alpha: &Tensor) -> Result<Tensor> {
    beta_of(cx, x, one(x), alpha)
}

fn beta_of(cx: &mut Cx<'_>, x: &Tensor, shape: Shape, alpha: &Tensor) -> Result<Tensor> {
    let a = log_gamma_numbers(cx, x, shape.clone(), alpha)?;
    let b = log_gamma_numbers(cx, x, shape, alpha)?;
    // a / (a + b), of logarithms.
    a.sub(&b)?.sigmoid()
}

/// Shares that add up to 1, of a Dirichlet distribution: one for each of `n`, for all samples.
pub(super) fn shares(cx: &mut Cx<'_>, x: &Tensor, n: usize, alpha: f64) -> Result<Vec<Tensor>> {
    let alpha = x.full_like(Type::new(place_type(x), one(x)), alpha)?;
    let mut logs = Vec::with_capacity(n);
    for _ in 0..n {
        logs.push(log_gamma_numbers(cx, x, one(x), &alpha)?);
    }
    let mut most = logs.first().cloned().ok_or_else(|| crate::error::refuse("mixes no chains"))?;
    for log in &logs {
        most = most.maximum(log)?;
    }
    let parts: Vec<Tensor> = logs.iter().map(|log| log.sub(&most)?.exp()).collect::<Result<_>>()?;
    let mut sum = number(&most, 0.0)?;
    for part in &parts {
        sum = sum.add(part)?;
    }
    parts.iter().map(|part| part.div(&sum)).collect()
}

/// The samples of a batch in another order.
pub(super) fn order(cx: &mut Cx<'_>, x: &Tensor) -> Result<Tensor> {
    let n = x.shape().first().copied().unwrap_or(1);
    even_of(cx, x, [n].into_iter().collect(), 0.0, 1.0)?.argsort(0, false)
}

/// The samples in the order that [`order`] drew.
pub(super) fn in_order(x: &Tensor, order: &Tensor) -> Result<Tensor> {
    x.gather(order, 0)
}
