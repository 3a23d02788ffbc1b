//! Recurrent layers, attention and rotary embeddings.

use plimsoll_graph::{DType, SoftmaxOps, TensorOps, Type};
use plimsoll_nn::blocks::recurrent::{Cell, Weights, level};
use plimsoll_nn::blocks::slice::select;
use plimsoll_nn::blocks::{attention as attend, element, index};
use plimsoll_run::{Result, Tensor};

use super::Table;
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("LSTM", |c| recurrent(c, 4)),
    ("GRU", |c| recurrent(c, 3)),
    ("RNN", |c| recurrent(c, 1)),
    ("Attention", attention),
    ("RotaryEmbedding", rotary),
];

/// An LSTM, a GRU or a plain cell, of as many gates.
fn recurrent(c: &mut Call<'_>, gates: usize) -> Result<Vec<Value>> {
    let is_batch_first = c.flag("layout", false)?;
    let x = c.plain(0)?;
    let x = if is_batch_first { x } else { swapped(&x)? };
    let (w, r) = (c.plain(1)?, c.plain(2)?);
    let bias = c.maybe_plain(3)?;
    let (&[b, t, _], &[directions, rows, _]) = (&x.shape()[..], &w.shape()[..]) else {
        return Err(refuse(format!("runs along {} with weights {}", x.shape(), w.shape())));
    };
    let hidden = rows / gates;
    let way = c.one_of("direction", &["forward", "reverse", "bidirectional"])?;
    if directions != 1 + usize::from(way == "bidirectional") || rows % gates != 0 {
        return Err(refuse(format!("runs {way} with weights {}", w.shape())));
    }
    if c.int("hidden_size", hidden as i64)? != hidden as i64 {
        return Err(refuse("says another width than its weights have"));
    }
    if let Some(lengths) = c.maybe_ints(4)?
        && lengths.iter().any(|&length| length != t as i64)
    {
        return Err(refuse("runs along sequences of different lengths"));
    }
    if c.has("clip") {
        return Err(refuse("clips its gates"));
    }
    if gates == 4 && (c.given(7).is_some() || c.flag("input_forget", false)?) {
        return Err(refuse("has peepholes, or ties its gates"));
    }
    let is_linear = gates == 3 && c.flag("linear_before_reset", false)?;
    let cell = cell_of(c, gates)?;
    let first = |i: usize| -> Result<Option<Tensor>> {
        let given = c.maybe_plain(i)?;
        given.map(|given| if is_batch_first { swapped(&given) } else { Ok(given) }).transpose()
    };
    let (h0, c0) = (first(5)?, if gates == 4 { first(6)? } else { None });
    let zeros = || x.full_like(Type::new(x.dtype(), [b, hidden]), 0.0);
    // ONNX has the gates in the orders i o f c and z r h; ours are i f c o and r z h.
    let order: &[usize] = match gates {
        4 => &[0, 2, 3, 1],
        3 => &[1, 0, 2],
        _ => &[0],
    };
    let arranged = |part: &Tensor| -> Result<Tensor> {
        let parts = order.iter().map(|&gate| part.narrow(0, gate * hidden, (gate + 1) * hidden));
        let parts = parts.collect::<Result<Vec<Tensor>>>()?;
        Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0)
    };
    let (mut every, mut last_h, mut last_c) = (Vec::new(), Vec::new(), Vec::new());
    for d in 0..directions {
        let wide = |part: &Tensor| arranged(&select(part, 0, d)?)?.transpose(&[1, 0]);
        let half = |i: usize| -> Result<Option<Tensor>> {
            let Some(bias) = &bias else { return Ok(None) };
            Ok(Some(arranged(&select(bias, 0, d)?.narrow(0, i * rows, (i + 1) * rows)?)?))
        };
        let weights = Weights { w: wide(&w)?, u: wide(&r)?, bias: half(0)?, bias_u: half(1)? };
        let own = |given: &Option<Tensor>| match given {
            Some(given) => select(given, 0, d),
            None => zeros(),
        };
        let backwards = way == "reverse" || d == 1;
        let (h0, c0) = (own(&h0)?, if gates == 4 { Some(own(&c0)?) } else { None });
        let (y, h, c) = match gates == 3 && !is_linear {
            true => gru_before_reset(&x, &weights, &h0, backwards)?,
            false => level(cell, &x, &weights, &h0, c0.as_ref(), backwards)?,
        };
        every.push(y.reshape([b, t, 1, hidden])?);
        last_h.push(h.reshape([1, b, hidden])?);
        last_c.extend(c.map(|c| c.reshape([1, b, hidden])).transpose()?);
    }
    let joined = |parts: &[Tensor], axis: isize| Tensor::concat(&parts.iter().collect::<Vec<_>>(), axis);
    // [B, T, D, H] as it is, or [T, D, B, H].
    let y = joined(&every, 2)?;
    let y = if is_batch_first { y } else { y.transpose(&[1, 2, 0, 3])? };
    let state = |parts: &[Tensor]| -> Result<Value> {
        let whole = joined(parts, 0)?;
        Ok(if is_batch_first { swapped(&whole)? } else { whole }.into())
    };
    let mut outputs = vec![y.into(), state(&last_h)?];
    if gates == 4 {
        outputs.push(state(&last_c)?);
    }
    Ok(outputs)
}

/// The first two axes in each other's place.
fn swapped(x: &Tensor) -> Result<Tensor> {
    if x.shape().rank() < 3 {
        return Err(refuse(format!("runs along {}, which is no sequence", x.shape())));
    }
    let order: Vec<usize> = [1, 0].into_iter().chain(2..x.shape().rank()).collect();
    x.transpose(&order)
}

/// The cell, where its activations are those that it usually has.
fn cell_of(c: &Call<'_>, gates: usize) -> Result<Cell> {
    for name in ["activation_alpha", "activation_beta"] {
        if c.float_list(name)?.is_some_and(|list| !list.is_empty()) {
            return Err(refuse(format!("sets {name}")));
        }
    }
    let said = c.text_list("activations")?.unwrap_or_default();
    let is = |wanted: &[&str]| {
        said.chunks(wanted.len()).all(|own| own.iter().zip(wanted).all(|(a, b)| a.eq_ignore_ascii_case(b)))
    };
    match gates {
        4 if is(&["Sigmoid", "Tanh", "Tanh"]) => Ok(Cell::Lstm),
        3 if is(&["Sigmoid", "Tanh"]) => Ok(Cell::Gru),
        1 if is(&["Tanh"]) => Ok(Cell::Tanh),
        1 if is(&["Relu"]) => Ok(Cell::Relu),
        _ => Err(refuse(format!("has the activations {said:?}, which are not those of its kind"))),
    }
}

/// A GRU whose reset gate is applied before the product with the state, step by step: gates r, z, h.
fn gru_before_reset(
    x: &Tensor,
    weights: &Weights,
    h0: &Tensor,
    backwards: bool,
) -> Result<(Tensor, Tensor, Option<Tensor>)> {
    let all = x.matmul_with(&weights.w, weights.bias.as_ref(), false, false)?;
    let &[b, steps, width] = &all.shape()[..] else { return Err(refuse("runs along no sequence")) };
    let n = width / 3;
    let mut h = h0.clone();
    let mut every: Vec<Tensor> = Vec::with_capacity(steps);
    let (u_gates, u_new) = (weights.u.narrow(1, 0, 2 * n)?, weights.u.narrow(1, 2 * n, 3 * n)?);
    let part =
        |from: usize, to: usize| weights.bias_u.as_ref().map(|bias| bias.narrow(0, from, to)).transpose();
    let (bias_gates, bias_new) = (part(0, 2 * n)?, part(2 * n, 3 * n)?);
    for step in 0..steps {
        let t = if backwards { steps - 1 - step } else { step };
        let own = all.narrow(1, t, t + 1)?.reshape([b, width])?;
        let gates =
            own.narrow(1, 0, 2 * n)?.add(&h.matmul_with(&u_gates, bias_gates.as_ref(), false, false)?)?;
        let gates = gates.sigmoid()?;
        let (reset, update) = (gates.narrow(1, 0, n)?, gates.narrow(1, n, 2 * n)?);
        let turned = reset.mul(&h)?.matmul_with(&u_new, bias_new.as_ref(), false, false)?;
        let new = own.narrow(1, 2 * n, 3 * n)?.add(&turned)?.tanh()?;
        h = new.add(&update.mul(&h.sub(&new)?)?)?;
        every.push(h.reshape([b, 1, n])?);
    }
    if backwards {
        every.reverse();
    }
    Ok((Tensor::concat(&every.iter().collect::<Vec<_>>(), 1)?, h, None))
}

/// softmax(scale q kᵀ + mask) v, over heads in front `[B, H, T, D]` or joined `[B, T, H · D]`.
fn attention(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let (q, k, v) = (c.plain(0)?, c.plain(1)?, c.plain(2)?);
    let mask = c.maybe_plain(3)?;
    let (past_k, past_v) = (c.maybe_plain(4)?, c.maybe_plain(5)?);
    let causal = c.flag("is_causal", false)?;
    let scale = if c.has("scale") { Some(c.float("scale", 1.0)?) } else { None };
    let softcap = c.float("softcap", 0.0)?;
    c.dtype("softmax_precision")?;
    let shown = c.int("qk_matmul_output_mode", 0)?;
    let (q_heads, kv_heads) = (c.int("q_num_heads", 0)?, c.int("kv_num_heads", 0)?);
    let is_joined = q.shape().rank() == 3;
    let front = |x: &Tensor, heads: i64| -> Result<Tensor> {
        match &x.shape()[..] {
            &[b, t, width] if heads > 0 && width % heads as usize == 0 => {
                let heads = heads as usize;
                x.reshape([b, t, heads, width / heads])?.transpose(&[0, 2, 1, 3])
            }
            &[_, _, _, _] => Ok(x.clone()),
            other => Err(refuse(format!("attends with {other:?} in {heads} heads"))),
        }
    };
    let (q, mut k, mut v) = (front(&q, q_heads)?, front(&k, kv_heads)?, front(&v, kv_heads)?);
    if let (Some(past_k), Some(past_v)) = (&past_k, &past_v) {
        k = Tensor::concat(&[past_k, &k], 2)?;
        v = Tensor::concat(&[past_v, &v], 2)?;
    }
    let (&[_, heads, tq, width], &[_, _, tk, _]) = (&q.shape()[..], &k.shape()[..]) else {
        return Err(refuse("attends without heads"));
    };
    let past = past_k.as_ref().map_or(0, |past| past.shape()[2]);
    let wants_scores = c.wants(3);
    let (y, scores) =
        if softcap == 0.0 && !wants_scores && past == 0 && mask.is_none() && !(causal && tq > tk) {
            // The kernel's, which has heads behind time.
            let behind = |x: &Tensor| x.transpose(&[0, 2, 1, 3]);
            let seen = attend::Mask { given: None, is_learned: false, causal };
            let y = attend::attention(&behind(&q)?, &behind(&k)?, &behind(&v)?, seen, scale, None)?;
            (behind(&y)?, None)
        } else {
            let repeated = |x: &Tensor| -> Result<Tensor> {
                let &[b, h, t, d] = &x.shape()[..] else { return Err(refuse("attends without heads")) };
                if h == heads || h == 0 || heads % h != 0 {
                    return Ok(x.clone());
                }
                x.reshape([b, h, 1, t, d])?.broadcast([b, h, heads / h, t, d])?.reshape([b, heads, t, d])
            };
            let scale = scale.unwrap_or(1.0 / (width.max(1) as f64).sqrt());
            let plain = q.matmul_with(&repeated(&k)?, None, false, true)?.mul_scalar(scale)?;
            let capped = match softcap {
                0.0 => plain.clone(),
                cap => plain.mul_scalar(1.0 / cap)?.tanh()?.mul_scalar(cap)?,
            };
            let mut masked = capped.clone();
            let hidden = |x: &Tensor| element::scalar(x, f64::NEG_INFINITY);
            if let Some(mask) = &mask {
                let mask = whole_keys(mask, tk)?;
                masked = match mask.dtype() {
                    DType::Bool => mask.select(&masked, &hidden(&masked)?)?,
                    _ => masked.add(&mask.cast(masked.dtype())?)?,
                };
            }
            if causal {
                let ty = Type::new(DType::I64, [tq, tk]);
                let (row, column) = (masked.iota_like(ty.clone(), 0)?, masked.iota_like(ty, 1)?);
                let seen = column.less_equal(&row.add_scalar(past as f64)?)?;
                masked = seen.select(&masked, &hidden(&masked)?)?;
            }
            let weights = weighed(&masked, mask.is_some() || causal)?;
            let y = weights.matmul(&repeated(&v)?)?;
            let scores = match shown {
                0 => plain,
                1 => {
                    if c.opset >= 24 {
                        masked
                    } else {
                        capped
                    }
                }
                2 => {
                    if c.opset >= 24 {
                        capped
                    } else {
                        masked
                    }
                }
                _ => weights,
            };
            (y, Some(scores))
        };
    let y = match is_joined {
        true => {
            let &[b, h, t, d] = &y.shape()[..] else { return Err(refuse("attends without heads")) };
            y.transpose(&[0, 2, 1, 3])?.reshape([b, t, h * d])?
        }
        false => y,
    };
    let mut outputs = vec![y.into(), k.into(), v.into()];
    outputs.extend(scores.map(Value::from));
    Ok(outputs)
}

/// The softmax of scores; a query that sees no key weighs all by 0.
fn weighed(scores: &Tensor, is_masked: bool) -> Result<Tensor> {
    if !is_masked {
        return scores.softmax(-1);
    }
    let last = scores.shape().rank() - 1;
    let sees = scores.max(&[last], true)?.greater(&element::scalar(scores, f64::NEG_INFINITY)?)?;
    let zero = element::scalar(scores, 0.0)?;
    sees.select(&sees.select(scores, &zero)?.softmax(-1)?, &zero)
}

/// A mask for all keys: those behind its end are hidden.
fn whole_keys(mask: &Tensor, tk: usize) -> Result<Tensor> {
    let rank = mask.shape().rank();
    let own = mask.shape().last().copied().unwrap_or(0);
    if own == tk || own == 1 || rank == 0 {
        return Ok(mask.clone());
    }
    if own > tk {
        return Err(refuse(format!("hides {own} keys of {tk}")));
    }
    let mut padding = vec![(0, 0); rank];
    padding[rank - 1] = (0, tk - own);
    match mask.dtype() {
        DType::Bool => {
            let bytes = mask.cast(DType::U8)?.pad(&padding, 0.0)?;
            bytes.cast(DType::Bool)
        }
        _ => mask.pad(&padding, f64::NEG_INFINITY),
    }
}

/// Pairs of features turned by angles of their places.
fn rotary(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, cos, sin) = (c.plain(0)?, c.plain(1)?, c.plain(2)?);
    let places = c.maybe_plain(3)?;
    let (interleaved, part) = (c.flag("interleaved", false)?, c.int("rotary_embedding_dim", 0)?);
    let heads = c.int("num_heads", 0)?;
    // Heads behind time: [B, T, H, D].
    let whole = match &x.shape()[..] {
        &[b, t, width] if heads > 0 && width % heads as usize == 0 => {
            x.reshape([b, t, heads as usize, width / heads as usize])?
        }
        &[_, _, _, _] => x.transpose(&[0, 2, 1, 3])?,
        other => return Err(refuse(format!("turns {other:?} in {heads} heads"))),
    };
    let &[b, t, h, d] = &whole.shape()[..] else { return Err(refuse("turns no heads")) };
    let part = if part > 0 { part as usize } else { d };
    if part > d || part % 2 != 0 {
        return Err(refuse(format!("turns {part} of {d} features")));
    }
    let angles = |table: &Tensor| -> Result<Tensor> {
        let own = match &places {
            Some(places) => index::gather(table, places, 0)?,
            None => table.clone(),
        };
        let own = if own.shape().last() == Some(&(part / 2)) { own } else { own.narrow(2, 0, part / 2)? };
        own.reshape([b, t, 1, part / 2])
    };
    let (cos, sin) = (angles(&cos)?, angles(&sin)?);
    let turned = whole.narrow(3, 0, part)?;
    let half = part / 2;
    let (first, second) = match interleaved {
        true => {
            let pairs = turned.reshape([b, t, h, half, 2])?;
            let side = |i: usize| pairs.narrow(4, i, i + 1)?.reshape([b, t, h, half]);
            (side(0)?, side(1)?)
        }
        false => (turned.narrow(3, 0, half)?, turned.narrow(3, half, part)?),
    };
    let real = first.mul(&cos)?.sub(&second.mul(&sin)?)?;
    let imaginary = first.mul(&sin)?.add(&second.mul(&cos)?)?;
    let turned = match interleaved {
        true => {
            let side = |x: &Tensor| x.reshape([b, t, h, half, 1]);
            Tensor::concat(&[&side(&real)?, &side(&imaginary)?], 4)?.reshape([b, t, h, part])?
        }
        false => Tensor::concat(&[&real, &imaginary], 3)?,
    };
    let y = match part == d {
        true => turned,
        false => Tensor::concat(&[&turned, &whole.narrow(3, part, d)?], 3)?,
    };
    let y = if x.shape().rank() == 3 { y.reshape(x.shape().clone())? } else { y.transpose(&[0, 2, 1, 3])? };
    Ok(vec![y.into()])
}
