//! Normalisation: y = γ (x - mean) / √(var + ε) + β, over different sets of elements.
//!
//! The four norms differ only in which elements share a statistic and which share a scale. [`View`] says so by three
//! shapes that broadcast against one another; the meaning, the gradient's meaning and its own derivative are written
//! once, on views. Statistics, γ and β are in the accumulator's type: f32 for 16-bit data.
//!
//! The forward ops give their statistics as further outputs: saved for the gradient, and differentiable themselves.

mod batch;
mod group;
mod layer;
mod layer_add;
mod rms;
mod with_mean;

pub use batch::{BatchNorm, BatchNormGrad};
pub use group::{GroupNorm, GroupNormGrad};
pub use layer::{LayerNorm, LayerNormGrad};
pub use layer_add::LayerNormGradAdd;
pub use rms::{RmsNorm, RmsNormGrad};

use crate::error::Result;
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Cost, traffic};
use crate::reference::{Array, for_each_index};
use crate::trace::Sym;
use crate::{Scalar, Shape, Site, Type};

/// How a norm sees its input: three shapes of one rank that broadcast to the first.
struct View {
    /// The input's elements.
    x: Shape,
    /// One element for each set of elements with a mean and variance of its own.
    stats: Shape,
    /// One element for each γ and β.
    scale: Shape,
}

/// The meaning of a forward norm, in f64; all arrays have the view's shapes.
struct Forward {
    y: Array,
    mean: Array,
    var: Array,
    rstd: Array,
}

/// Adds each element of a function over the view's elements to the element of `shape` that it broadcasts from.
fn sum_to(shape: &Shape, over: &Shape, f: impl Fn(&[usize]) -> f64) -> Array {
    let mut out = Array::new(shape.clone(), vec![0.0; shape.elements()]);
    for_each_index(over, |i| {
        let place = shape.iter().zip(i).fold(0, |o, (&n, &i)| o * n + if n == 1 { 0 } else { i });
        out.data[place] += f(i);
    });
    out
}

impl View {
    /// The number of elements that share a statistic.
    fn count(&self) -> f64 {
        (self.x.elements() / self.stats.elements().max(1)) as f64
    }

    /// Checks that there is something to take the mean of.
    fn check(&self, x: &Type) -> Result<(), String> {
        let n: usize =
            self.x.iter().zip(self.stats.iter()).filter(|(_, s)| **s == 1).map(|(n, _)| n).product();
        if n == 0 { Err(format!("there is no mean of no elements in {}", x.shape)) } else { Ok(()) }
    }

    fn mean_of(&self, f: impl Fn(&[usize]) -> f64) -> Array {
        let mut mean = sum_to(&self.stats, &self.x, f);
        mean.data.iter_mut().for_each(|m| *m /= self.count());
        mean
    }

    fn array(&self, array: &Array, shape: &Shape) -> Array {
        Array::new(shape.clone(), array.data.clone())
    }

    /// The reference meaning; without β the mean is not subtracted either (root mean square).
    fn forward(&self, x: &Array, gamma: &Array, beta: Option<&Array>, eps: Scalar) -> Forward {
        let (x, gamma) = (self.array(x, &self.x), self.array(gamma, &self.scale));
        let beta = beta.map(|b| self.array(b, &self.scale));
        let mut mean = self.mean_of(|i| x.at(i));
        if beta.is_none() {
            mean.data.fill(0.0);
        }
        let var = self.mean_of(|i| (x.at(i) - mean.broadcast_at(i)).powi(2));
        let rstd =
            Array::new(self.stats.clone(), var.data.iter().map(|v| 1.0 / (v + eps.0).sqrt()).collect());
        let y = Array::from_fn(&self.x, |i| {
            let normal = (x.at(i) - mean.broadcast_at(i)) * rstd.broadcast_at(i);
            normal * gamma.broadcast_at(i) + beta.as_ref().map_or(0.0, |b| b.broadcast_at(i))
        });
        Forward { y, mean, var, rstd }
    }

    /// The reference meaning of the gradient: dx, dγ, dβ. With n = (x - mean) rstd and g = γ dy:
    /// dx = rstd (g - mean g - n mean(g n)), dγ = Σ dy n, dβ = Σ dy. Without a mean, `mean g` is left out too.
    fn backward(
        &self,
        x: &Array,
        gamma: &Array,
        mean: Option<&Array>,
        rstd: &Array,
        dy: &Array,
    ) -> [Array; 3] {
        let (x, dy) = (self.array(x, &self.x), self.array(dy, &self.x));
        let (gamma, rstd) = (self.array(gamma, &self.scale), self.array(rstd, &self.stats));
        let mean = mean.map(|m| self.array(m, &self.stats));
        let n =
            |i: &[usize]| (x.at(i) - mean.as_ref().map_or(0.0, |m| m.broadcast_at(i))) * rstd.broadcast_at(i);
        let g = |i: &[usize]| dy.at(i) * gamma.broadcast_at(i);
        let mut mean_g = self.mean_of(g);
        if mean.is_none() {
            mean_g.data.fill(0.0);
        }
        let mean_gn = self.mean_of(|i| g(i) * n(i));
        let dx = Array::from_fn(&self.x, |i| {
            rstd.broadcast_at(i) * (g(i) - mean_g.broadcast_at(i) - n(i) * mean_gn.broadcast_at(i))
        });
        let dgamma = sum_to(&self.scale, &self.x, |i| dy.at(i) * n(i));
        let dbeta = sum_to(&self.scale, &self.x, |i| dy.at(i));
        [dx, dgamma, dbeta]
    }

    /// [`View::backward`] as ops, for its own derivative: dx in x's type and shape, dγ and dβ in γ's.
    fn backward_ops(
        &self,
        x: &Sym,
        gamma: &Sym,
        mean: Option<&Sym>,
        rstd: &Sym,
        dy: &Sym,
    ) -> Result<[Sym; 3]> {
        let wide = rstd.dtype();
        let seen = |s: &Sym, shape: &Shape| s.cast(wide)?.reshape(shape);
        let (xs, dys) = (seen(x, &self.x)?, seen(dy, &self.x)?);
        let (gammas, rstds) = (seen(gamma, &self.scale)?, seen(rstd, &self.stats)?);
        let centred = match mean {
            Some(mean) => xs.sub(&seen(mean, &self.stats)?)?,
            None => xs,
        };
        let n = centred.mul(&rstds)?;
        let g = dys.mul(&gammas)?;
        let mean_of = |s: &Sym| s.sum_to(&self.stats)?.mul_scalar(1.0 / self.count());
        let mut inner = g.sub(&n.mul(&mean_of(&g.mul(&n)?)?)?)?;
        if mean.is_some() {
            inner = inner.sub(&mean_of(&g)?)?;
        }
        let dx = inner.mul(&rstds)?.reshape(x.shape())?.cast(x.dtype())?;
        let dgamma = dys.mul(&n)?.sum_to(&self.scale)?.reshape(gamma.shape())?;
        let dbeta = dys.sum_to(&self.scale)?.reshape(gamma.shape())?;
        Ok([dx, dgamma, dbeta])
    }

    /// What gradients that arrive at the statistics themselves add to dx:
    /// dmean / n + (2 dvar - drstd rstd³) (x - mean) / n.
    fn statistics_part(&self, at: &Backward<'_>, dx: Sym, stats: Statistics<'_>) -> Result<Sym> {
        let Statistics { mean, rstd, dmean, dvar, drstd } = stats;
        if dmean.is_none() && dvar.is_none() && drstd.is_none() {
            return Ok(dx);
        }
        let seen = |s: &Sym| s.reshape(&self.stats);
        let x = at.input(0)?.cast(rstd.dtype())?.reshape(&self.x)?;
        let centred = match mean {
            Some(mean) => x.sub(&seen(mean)?)?,
            None => x,
        };
        let zero = at.full(&Type::new(rstd.dtype(), self.stats.clone()), 0.0)?;
        let mut slope = zero.clone();
        if let Some(dvar) = dvar {
            slope = slope.add(&seen(dvar)?.mul_scalar(2.0)?)?;
        }
        if let Some(drstd) = drstd {
            slope = slope.sub(&seen(drstd)?.mul(&seen(rstd)?.pow_scalar(3.0)?)?)?;
        }
        let dmean = dmean.map_or(Ok(zero), seen)?;
        let part = centred.mul(&slope)?.add(&dmean)?.mul_scalar(1.0 / self.count())?;
        dx.add(&part.reshape(dx.shape())?.cast(dx.dtype())?)
    }
}

/// The statistics of a forward norm and the gradients that arrived at them.
#[derive(Clone, Copy)]
struct Statistics<'a> {
    mean: Option<&'a Sym>,
    rstd: &'a Sym,
    dmean: Option<&'a Sym>,
    dvar: Option<&'a Sym>,
    drstd: Option<&'a Sym>,
}

/// Checks that scales (or statistics) are in the accumulator's type of x and of a shape.
fn check_wide(what: &str, x: &Type, shape: &Shape, given: &[&Type]) -> Result<(), String> {
    let wanted = Type::new(x.dtype.accumulator(), shape.clone());
    match given.iter().find(|ty| ***ty != wanted) {
        Some(other) => Err(format!("{what} of {x} must be {wanted}, not {other}")),
        None => Ok(()),
    }
}

/// Checks that the gradient of y is of x's type.
fn check_dy(x: &Type, dy: &Type) -> Result<(), String> {
    if x == dy { Ok(()) } else { Err(format!("the gradient of the result must be {x}, not {dy}")) }
}

fn forward_cost(inputs: &[&Type], outputs: &[&Type]) -> Cost {
    Cost { flops: 8.0 * inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
}

fn backward_cost(inputs: &[&Type], outputs: &[&Type]) -> Cost {
    Cost { flops: 14.0 * inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
}

/// An array under the shape of a type: views are an op's private matter.
fn shaped(array: Array, ty: &Type) -> Array {
    Array::new(ty.shape.clone(), array.data)
}

/// Norms as methods. γ and β are in the accumulator's type: f32 for 16-bit data.
///
/// ```
/// use plimsoll_graph::{DType, NormOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [8, 16, 16, 64]));
/// let gamma = trace.input("gamma", Type::new(DType::F32, [64]));
/// let beta = trace.input("beta", Type::new(DType::F32, [64]));
/// let (y, mean, var) = x.batch_norm(&gamma, &beta, 1e-5)?;
/// assert_eq!((y.shape(), mean.shape(), var.shape()), (x.shape(), gamma.shape(), gamma.shape()));
/// assert_eq!(x.layer_norm(&gamma, &beta, 1e-5)?.shape(), x.shape());
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait NormOps: TensorOps {
    /// γ (x - mean) / √(var + ε) + β with mean and variance over as many trailing axes as γ has.
    #[track_caller]
    fn layer_norm(&self, gamma: &Self, beta: &Self, eps: f64) -> Result<Self, Self::Error> {
        let op = LayerNorm { eps: Scalar(eps), axes: gamma.shape().rank(), to: None };
        self.emit_one(op, &[self, gamma, beta], Site::here())
    }

    /// γ x / √(mean of x² + ε) over the last axis.
    #[track_caller]
    fn rms_norm(&self, gamma: &Self, eps: f64) -> Result<Self, Self::Error> {
        self.emit_one(RmsNorm { eps: Scalar(eps) }, &[self, gamma], Site::here())
    }

    /// For `[N, .., C]`: mean and variance of each sample over each of `groups` equal parts of the channels and all
    /// positions; γ and β are `[C]`.
    #[track_caller]
    fn group_norm(&self, gamma: &Self, beta: &Self, groups: usize, eps: f64) -> Result<Self, Self::Error> {
        self.emit_one(GroupNorm { groups, eps: Scalar(eps) }, &[self, gamma, beta], Site::here())
    }

    /// For `[.., C]` in training: mean and variance of each channel over the whole batch. Returns y, and the batch's
    /// mean and (biased) variance, with which the caller updates running statistics.
    #[track_caller]
    fn batch_norm(&self, gamma: &Self, beta: &Self, eps: f64) -> Result<(Self, Self, Self), Self::Error> {
        let op = BatchNorm { eps: Scalar(eps), relu: false };
        let [y, mean, var] = self.emit_first(op, &[self, gamma, beta], Site::here())?;
        Ok((y, mean, var))
    }

    /// For `[.., C]` with known statistics: γ (x - mean) / √(var + ε) + β, as x s + (β - mean s) with s = γ / √(var + ε).
    #[track_caller]
    fn batch_norm_inference(
        &self,
        gamma: &Self,
        beta: &Self,
        mean: &Self,
        var: &Self,
        eps: f64,
    ) -> Result<Self, Self::Error> {
        let scale = var.add_scalar(eps)?.rsqrt()?.mul(gamma)?;
        let shift = beta.sub(&mean.mul(&scale)?)?;
        self.cast(scale.dtype())?.mul(&scale)?.add(&shift)?.cast(self.dtype())
    }
}

impl<T: TensorOps> NormOps for T {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::example::{Dice, Domain};
    use crate::reference::interpret;
    use crate::trace::Trace;

    #[test]
    fn inference_with_the_batch_statistics_is_training() -> Result<()> {
        let trace = Trace::new();
        let (x, c) = (Type::new(DType::F64, [2, 3, 5]), Type::new(DType::F64, [5]));
        let xs = trace.input("x", x.clone());
        let (gamma, beta) = (trace.input("gamma", c.clone()), trace.input("beta", c.clone()));
        let (y, mean, var) = xs.batch_norm(&gamma, &beta, 1e-3)?;
        let z = xs.batch_norm_inference(&gamma, &beta, &mean, &var, 1e-3)?;
        let mut dice = Dice::new(1);
        let values = [&x, &c, &c].map(|ty| Domain::Normal.fill(ty, &mut dice));
        let out = interpret(&trace.finish(&[&y, &z])?, &values);
        for (y, z) in out[0].data.iter().zip(&out[1].data) {
            assert!((y - z).abs() < 1e-12, "{y} {z}");
        }
        Ok(())
    }

    #[test]
    fn a_second_derivative_goes_through_the_saved_statistics() -> Result<()> {
        // d/dx of Σ w (d/dx Σ v layer_norm(x)), against differences of the first derivative.
        let trace = Trace::new();
        let (x, c) = (Type::new(DType::F64, [3, 4]), Type::new(DType::F64, [4]));
        let xs = trace.input("x", x.clone());
        let (gamma, beta) = (trace.input("gamma", c.clone()), trace.input("beta", c.clone()));
        let (v, w) = (trace.input("v", x.clone()), trace.input("w", x.clone()));
        let y = xs.layer_norm(&gamma, &beta, 0.1)?;
        let first = crate::gradient(&y, Some(&v), &[&xs])?.remove(0).expect("a gradient");
        let weighted = first.mul(&w)?.sum(&[], false)?;
        let second = crate::gradient(&weighted, None, &[&xs])?.remove(0).expect("a gradient");
        let graph = trace.finish(&[&weighted, &second])?;
        let mut dice = Dice::new(2);
        let values = [&x, &c, &c, &x, &x].map(|ty| Domain::Normal.fill(ty, &mut dice));
        let analytic = interpret(&graph, &values)[1].data.clone();
        for (i, analytic) in analytic.iter().enumerate() {
            let at = |delta: f64| {
                let mut moved = values.clone();
                moved[0].data[i] += delta;
                interpret(&graph, &moved)[0].data[0]
            };
            let numeric = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((numeric - analytic).abs() < 1e-6 * (1.0 + numeric.abs()), "{numeric} {analytic}");
        }
        Ok(())
    }
}
