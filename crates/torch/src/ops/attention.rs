//! Scaled dot-product attention.

use plimsoll_graph::TensorOps;
use plimsoll_nn::blocks::Laid;
use plimsoll_nn::blocks::attention::{Mask, attention};
use plimsoll_run::{Result, Tensor};

use super::{Table, one};
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const OPS: Table = &[("aten.scaled_dot_product_attention.default", |c| dot_product(c))];

fn dot_product(c: &mut Call<'_, '_>) -> Result<Vec<Value>> {
    let (q, k, v) = (c.laid("query")?, c.laid("key")?, c.laid("value")?);
    let (given, is_learned) = (c.opt_tensor("attn_mask")?, c.is_learned("attn_mask"));
    let (rate, causal) = (c.float("dropout_p")?, c.flag("is_causal")?);
    let scale = c.opt_number("scale")?.map(|n| n.value);
    // Fewer heads of keys than of queries are taken anyway.
    c.flag("enable_gqa")?;
    let rank = q.rank();
    if rank < 2 || k.rank() != rank || v.rank() != rank {
        return Err(refuse(format!("attends with {}, {} and {}", q.shape(), k.shape(), v.shape())));
    }
    let out: Vec<usize> = q.shape()[..rank - 1].iter().copied().chain(v.shape().last().copied()).collect();
    let (q, k, v) = (stacked(&q)?, stacked(&k)?, stacked(&v)?);
    let batch = q.shape()[0].max(k.shape()[0]);
    let whole = |x: &Laid| -> Result<Tensor> {
        // [B, H, T, D] as [B, T, H, D]; a batch of one serves all.
        let t = x.in_order(&[0, 2, 1, 3])?;
        if t.shape()[0] == batch { Ok(t) } else { t.broadcast(t.shape().with(0, batch)) }
    };
    let given = given.map(|mask| mask_of(&mask, rank)).transpose()?;
    let drawn = if rate > 0.0 && c.net.is_training() { Some(c.draw()?) } else { None };
    let dropout = drawn.as_ref().map(|(key, stream)| (rate, key, *stream));
    let mask = Mask { given: given.as_ref(), is_learned, causal };
    let y = attention(&whole(&q)?, &whole(&k)?, &whole(&v)?, mask, scale, dropout)?;
    one(Laid::ordered(y, &[0, 2, 1, 3]).reshape(out)?)
}

/// Four axes: batch, heads, places, features. Leading ones are joined, missing ones are of length 1.
fn stacked(x: &Laid) -> Result<Laid> {
    let s = x.shape().to_vec();
    let (front, back) = s.split_at(s.len() - 2);
    let (batch, heads) = match front {
        [] => (1, 1),
        [n] => (*n, 1),
        [rest @ .., heads] => (rest.iter().product(), *heads),
    };
    x.reshape([batch, heads, back[0], back[1]])
}

fn mask_of(mask: &Tensor, rank: usize) -> Result<Tensor> {
    let s = mask.shape().to_vec();
    match (rank, s.len()) {
        // Without heads, samples are the first of three axes.
        (3, 3) => mask.reshape([s[0], 1, s[1], s[2]]),
        (_, 0..=4) if rank <= 4 => Ok(mask.clone()),
        (_, 0..=3) => Ok(mask.clone()),
        (_, n) if n == rank => {
            let [.., heads, tq, tk] = s[..] else { return Err(refuse("has a mask of too few axes")) };
            let batch: usize = s[..n - 3].iter().product();
            mask.reshape([batch, heads, tq, tk])
        }
        _ => Err(refuse(format!("has a mask of shape {}", mask.shape()))),
    }
}
