//! What is drawn: from a generator of the engine's own, so that streams differ from PyTorch's and their statistics do not.

use plimsoll_graph::{DType, RandomOps, TensorOps, Type};
use plimsoll_run::Result;

use super::elementwise::converted;
use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const OPS: Table = &[
    ("aten.native_dropout.default", |c| {
        let (rate, train) = (c.float("p")?, c.value("train")?);
        let is_on = !matches!(train, Value::Bool(false));
        dropout(c, "input", rate, is_on)
    }),
    ("aten.dropout.default", |c| {
        let (rate, is_on) = (c.float("p")?, c.flag("train")?);
        dropout(c, "input", rate, is_on)
    }),
    ("aten.feature_dropout.default", |c| {
        let (rate, is_on) = (c.float("p")?, c.flag("train")?);
        let x = c.laid("input")?;
        if !is_on || rate == 0.0 || !c.net.is_training() {
            return one(x);
        }
        // Whole channels, by a mask of one element each.
        let (key, stream) = c.draw()?;
        let shape: Vec<usize> =
            x.shape().iter().enumerate().map(|(i, &n)| if i < 2 { n } else { 1 }).collect();
        let ones = c.full(x.dtype(), shape, 1.0)?;
        let mask = ones.dropout(rate, &key, stream)?.into();
        one(plimsoll_nn::blocks::Laid::zip(&[&x, &mask], |t| t[0].mul(&t[1]))?)
    }),
    ("aten.rrelu.default", |c| {
        let (x, low, high) = (c.laid("self")?, c.float("lower")?, c.float("upper")?);
        let _ = c.value("generator")?;
        if !c.flag("training")? || !c.net.is_training() {
            return one(x.map(|t| t.leaky_relu((low + high) / 2.0))?);
        }
        // A slope for each element, drawn anew.
        let (key, stream) = c.draw()?;
        let slopes = key.random_uniform(Type::new(DType::F32, x.shape()), stream, low, high)?;
        let slopes = plimsoll_nn::blocks::Laid::from(converted(&slopes, x.dtype())?);
        one(plimsoll_nn::blocks::Laid::zip(&[&x, &slopes], |t| {
            let zero = t[0].full_like(Type::new(t[0].dtype(), []), 0.0)?;
            t[0].less(&zero)?.select(&t[0].mul(&t[1])?, &t[0])
        })?)
    }),
    ("aten.bernoulli.p", |c| {
        let (x, p) = (c.laid("self")?, c.float("p")?);
        // In an evaluation a draw stands for its mean: a path that is dropped in training is taken whole.
        if !c.net.is_training() {
            return one(x.map(|t| t.full_like(t.ty().clone(), p))?);
        }
        let (key, stream) = c.draw()?;
        let shape = x.shape().clone();
        let drawn = key.random_uniform(Type::new(DType::F32, shape), stream, 0.0, 1.0)?;
        let is_on = drawn.less(&drawn.full_like(Type::new(DType::F32, []), p)?)?;
        one(is_on.cast(x.dtype())?)
    }),
    ("aten.bernoulli.default", |c| {
        let p = c.tensor("self")?;
        if !c.net.is_training() {
            return one(p);
        }
        let (key, stream) = c.draw()?;
        let drawn = key.random_uniform(Type::new(DType::F32, p.shape()), stream, 0.0, 1.0)?;
        one(drawn.less(&p.cast(DType::F32)?)?.cast(p.dtype())?)
    }),
    ("aten.rand.default", |c| {
        let shape = c.sizes("size")?;
        drawn(c, shape, true)
    }),
    ("aten.randn.default", |c| {
        let shape = c.sizes("size")?;
        drawn(c, shape, false)
    }),
    ("aten.rand_like.default", |c| {
        let shape = c.laid("self")?.shape().to_vec();
        drawn(c, shape, true)
    }),
    ("aten.randn_like.default", |c| {
        let shape = c.laid("self")?.shape().to_vec();
        drawn(c, shape, false)
    }),
    ("aten.uniform.default", |c| {
        let shape = c.laid("self")?.shape().to_vec();
        let (low, high, out) = (c.float("from")?, c.float("to")?, c.out_dtype(0)?);
        let (key, stream) = only_in_training(c)?;
        one(converted(&key.random_uniform(Type::new(DType::F32, shape), stream, low, high)?, out)?)
    }),
    ("aten.exponential.default", |c| {
        let shape = c.laid("self")?.shape().to_vec();
        let (rate, out) = (c.float("lambd")?, c.out_dtype(0)?);
        let (key, stream) = only_in_training(c)?;
        // -ln(1 - u) / λ: u is below 1.
        let drawn = key.random_uniform(Type::new(DType::F32, shape), stream, 0.0, 1.0)?;
        one(converted(&drawn.rsub_scalar(1.0)?.log()?.mul_scalar(-1.0 / rate)?, out)?)
    }),
    ("aten.randint.low", |c| {
        let (low, high) = (c.float("low")?, c.float("high")?);
        whole(c, low, high)
    }),
    ("aten.randint.default", |c| {
        let high = c.float("high")?;
        whole(c, 0.0, high)
    }),
];

fn dropout(c: &mut Call<'_, '_>, name: &str, rate: f64, is_on: bool) -> Values {
    let x = c.laid(name)?;
    if !is_on || rate == 0.0 || !c.net.is_training() {
        return one(x);
    }
    if rate >= 1.0 {
        return one(x.map(|t| t.mul_scalar(0.0))?);
    }
    let (key, stream) = c.draw()?;
    // Which elements go depends on a sample's index, so samples must come first.
    match x.order().first() {
        Some(0) => one(x.map(|t| t.dropout(rate, &key, stream))?),
        _ => one(x.plain()?.dropout(rate, &key, stream)?),
    }
}

/// Draws that no evaluation can do without are refused there: there is nothing that they stand for.
fn only_in_training(c: &mut Call<'_, '_>) -> Result<(plimsoll_run::Tensor, u32)> {
    if !c.net.is_training() {
        return Err(refuse("draws random numbers, which only a training step does here"));
    }
    c.draw()
}

fn drawn(c: &mut Call<'_, '_>, shape: Vec<usize>, is_uniform: bool) -> Values {
    let out = c.out_dtype(0)?;
    let _ = c.value("dtype");
    let (key, stream) = only_in_training(c)?;
    let wide = if out == DType::F64 { DType::F64 } else { DType::F32 };
    let ty = Type::new(wide, shape);
    let y = match is_uniform {
        true => key.random_uniform(ty, stream, 0.0, 1.0)?,
        false => key.random_normal(ty, stream, 0.0, 1.0)?,
    };
    one(converted(&y, out)?)
}

fn whole(c: &mut Call<'_, '_>, low: f64, high: f64) -> Values {
    let (shape, out) = (c.sizes("size")?, c.out_dtype(0)?);
    let _ = c.value("dtype");
    let (key, stream) = only_in_training(c)?;
    let y = key.random_uniform(Type::new(DType::F64, shape), stream, low, high)?.floor()?;
    one(converted(&y.clamp(low, high - 1.0)?, out)?)
}
