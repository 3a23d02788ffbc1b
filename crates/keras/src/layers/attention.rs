//! Attention over sequences `[B, T, C]`.

use plimsoll_graph::{AttentionOps, DType, SoftmaxOps, TensorOps, Type};
use plimsoll_nn::Init;
use plimsoll_run::{Result as RunResult, Tensor};

use super::{Table, noise, trained};
use crate::error::{Result, refuse};
use crate::layer::{Args, Cx, Made, Masks, Weight};
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[
    ("MultiHeadAttention", |s| {
        let heads = s.units("num_heads")?;
        let key = s.units("key_dim")?;
        multi_head(s, [heads, heads], key, s.units_or("value_dim", key)?, "")
    }),
    ("GroupQueryAttention", |s| {
        let heads = [s.units("num_query_heads")?, s.units("num_key_value_heads")?];
        if !heads[0].is_multiple_of(heads[1]) {
            return Err(s.wrong("num_key_value_heads", "it should divide the number of query heads"));
        }
        let width = s.units("head_dim")?;
        // This layer keeps its projections under names with an underscore.
        multi_head(s, heads, width, width, "_")
    }),
    ("Attention", |s| {
        if s.text_or("score_mode", "dot")? != "dot" {
            return Err(s.wrong("score_mode", "only dot is taken"));
        }
        if s.rate("dropout")? != 0.0 {
            return Err(s.wrong("dropout", "this is not supported here"));
        }
        let scaled = s.flag("use_scale", false)?;
        let weights = if scaled { vec![trained(s, "scale", "scale_regularizer")?] } else { Vec::new() };
        Ok(Made::with(weights, move |cx, args| {
            let all = args.all();
            let (q, v, k) = match all[..] {
                [q, v] => (q, v, v),
                [q, v, k] => (q, v, k),
                _ => return Err(refuse("gives not two or three tensors to an attention layer")),
            };
            let alone = |x: &Tensor| match x.shape()[..] {
                [b, t, c] => x.reshape([b, t, 1, c]),
                _ => Err(refuse(format!("gives {} to a layer that takes sequences [B, T, C]", x.ty()))),
            };
            let mut q = alone(q)?;
            if scaled {
                q = q.mul(&cx.param("scale", [], Init::Constant(1.0))?)?;
            }
            if args.flag(2, "return_attention_scores")? {
                return Err(refuse("asks an attention layer for its scores, which is not supported"));
            }
            let causal = args.flag(4, "use_causal_mask")?;
            let y = attend(&q, &alone(k)?, &alone(v)?, None, causal, 1.0)?;
            let [b, t, _, c] = y.shape()[..] else { return Err(refuse("made no heads")) };
            Ok(vec![y.reshape([b, t, c])?])
        })
        .masks(Masks::Refuse)
        .kwargs(&["use_causal_mask"]))
    }),
];

/// Positions that a query does not see are this far below the others.
const HIDDEN: f64 = -1e9;

/// Attention by the op; a causal mask over sequences of two lengths starts at the same place in both, as Keras has it.
fn attend(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    shown: Option<&Tensor>,
    causal: bool,
    scale: f64,
) -> RunResult<Tensor> {
    let (rows, columns) = (q.shape()[1], k.shape()[1]);
    let is_square = rows == columns;
    if shown.is_none() && (!causal || is_square) {
        return q.attention(k, v, None, causal, Some(scale));
    }
    let mask = hidden(q, k, shown, causal)?;
    q.attention(k, v, mask.as_ref(), false, Some(scale))
}

/// The additive mask `[B or 1, 1, Tq, Tk]`, if anything is hidden.
fn hidden(q: &Tensor, k: &Tensor, shown: Option<&Tensor>, causal: bool) -> RunResult<Option<Tensor>> {
    let (rows, columns) = (q.shape()[1], k.shape()[1]);
    let additive = |shown: &Tensor| {
        shown.cast(q.dtype().accumulator())?.rsub_scalar(1.0)?.mul_scalar(HIDDEN)?.cast(q.dtype())
    };
    let mut mask: Option<Tensor> = None;
    if let Some(shown) = shown {
        let shape = match shown.shape()[..] {
            [b, t, s] => [b, 1, t, s],
            [b, h, t, s] => [b, h, t, s],
            _ => return Err(refuse(format!("gives {} as an attention mask [B, T, S]", shown.ty()))),
        };
        mask = Some(additive(&shown.reshape(shape)?)?);
    }
    if causal {
        let ty = Type::new(DType::I64, [1, 1, rows, columns]);
        let (row, column) = (q.iota_like(ty.clone(), 2)?, q.iota_like(ty, 3)?);
        let own = additive(&row.greater_equal(&column)?)?;
        mask = Some(match mask {
            Some(mask) => mask.add(&own)?,
            None => own,
        });
    }
    Ok(mask)
}

/// One of the four projections.
struct Projection {
    holder: &'static str,
    name: &'static str,
}

const PROJECTIONS: [Projection; 4] = [
    Projection { holder: "query_dense", name: "query" },
    Projection { holder: "key_dense", name: "key" },
    Projection { holder: "value_dense", name: "value" },
    Projection { holder: "output_dense", name: "attention_output" },
];

struct MultiHead {
    heads: [usize; 2],
    key: usize,
    value: usize,
    bias: bool,
    dropout: f64,
    out: Option<usize>,
}

fn multi_head(s: &Settings<'_>, heads: [usize; 2], key: usize, value: usize, prefix: &str) -> Result<Made> {
    if !s.is_null("attention_axes") && s.integers("attention_axes")? != [1] {
        return Err(s.wrong("attention_axes", "only sequences [B, T, C] are taken"));
    }
    for (key, unset) in
        [("use_gate", s.flag("use_gate", false)?), ("sliding_window", !s.is_null("sliding_window"))]
    {
        if unset {
            return Err(s.wrong(key, "this is not supported"));
        }
    }
    let out = if s.is_null("output_shape") { None } else { Some(s.integers("output_shape")?) };
    let out = match out.as_deref() {
        None => None,
        Some([n]) if *n > 0 => Some(*n as usize),
        Some(_) => return Err(s.wrong("output_shape", "one axis is taken")),
    };
    let layer =
        MultiHead { heads, key, value, bias: s.flag("use_bias", true)?, dropout: s.rate("dropout")?, out };
    let mut weights: Vec<Weight> = Vec::new();
    for Projection { holder, name } in PROJECTIONS {
        for own in ["kernel", "bias"].into_iter().take(1 + usize::from(layer.bias)) {
            let mut weight = trained(s, own, &format!("{own}_regularizer"))?;
            (weight.holder, weight.name) = (format!("{prefix}{holder}"), format!("{name}/{own}"));
            weights.push(weight);
        }
    }
    Ok(Made::with(weights, move |cx, args| layer.apply(cx, args)).masks(Masks::Refuse).kwargs(&[
        "query",
        "value",
        "key",
        "attention_mask",
        "use_causal_mask",
        "query_mask",
        "value_mask",
        "key_mask",
    ]))
}

impl MultiHead {
    fn apply(&self, cx: &mut Cx<'_>, args: &Args) -> RunResult<Vec<Tensor>> {
        let missing = || refuse("gives no query or no value to an attention layer");
        let query = args.tensor(0, "query")?.ok_or_else(missing)?;
        let value = args.tensor(1, "value")?.ok_or_else(missing)?;
        let key = args.tensor(2, "key")?.unwrap_or(value);
        for (place, name) in [(3, "query_mask"), (4, "value_mask"), (5, "key_mask")] {
            if args.get(place, name).is_some() {
                return Err(refuse(format!("gives {name} to an attention layer, which is not supported")));
            }
        }
        if args.flag(7, "return_attention_scores")? {
            return Err(refuse("asks an attention layer for its scores, which is not supported"));
        }
        let shown = args.tensor(6, "attention_mask")?;
        let causal = args.flag(9, "use_causal_mask")?;
        let q = self.project(cx, 0, query, self.heads[0], self.key)?;
        let k = self.project(cx, 1, key, self.heads[1], self.key)?;
        let v = self.project(cx, 2, value, self.heads[1], self.value)?;
        // Rounded to f32, as Keras has it in whatever type it computes.
        let scale = f64::from((1.0 / (self.key as f64).sqrt()) as f32);
        let y = if self.dropout > 0.0 && cx.is_training() {
            self.dropped(cx, [&q, &k, &v], shown, causal, scale)?
        } else {
            attend(&q, &k, &v, shown, causal, scale)?
        };
        let [b, t, heads, width] = y.shape()[..] else { return Err(refuse("made no heads")) };
        let channels = query.shape().last().copied().unwrap_or(1);
        let out = self.out.unwrap_or(channels);
        let y = y.reshape([b, t, heads * width])?;
        let init = Init::glorot_uniform(heads * width, out);
        let y = cx.scope(PROJECTIONS[3].name, |cx| {
            let w = cx.param("kernel", [heads, width, out], init)?.reshape([heads * width, out])?;
            let bias = cx.optional(self.bias, "bias", [out], Init::Constant(0.0))?;
            y.matmul_with(&w, bias.as_ref(), false, false)
        })?;
        Ok(vec![y])
    }

    /// A sequence `[B, T, C]` as heads `[B, T, H, D]`.
    fn project(
        &self,
        cx: &mut Cx<'_>,
        which: usize,
        x: &Tensor,
        heads: usize,
        width: usize,
    ) -> RunResult<Tensor> {
        let [b, t, channels] = x.shape()[..] else {
            return Err(refuse(format!("gives {} to a layer that takes sequences [B, T, C]", x.ty())));
        };
        let all = heads.saturating_mul(width);
        let init = Init::glorot_uniform(channels, all);
        cx.scope(PROJECTIONS[which].name, |cx| {
            let w = cx.param("kernel", [channels, heads, width], init)?.reshape([channels, all])?;
            let bias = cx.optional(self.bias, "bias", [heads, width], Init::Constant(0.0))?;
            let bias = bias.map(|b| b.reshape([all])).transpose()?;
            x.matmul_with(&w, bias.as_ref(), false, false)?.reshape([b, t, heads, width])
        })
    }

    /// The same with dropout of the scores, which the op does not have.
    fn dropped(
        &self,
        cx: &mut Cx<'_>,
        [q, k, v]: [&Tensor; 3],
        shown: Option<&Tensor>,
        causal: bool,
        scale: f64,
    ) -> RunResult<Tensor> {
        if self.heads[0] != self.heads[1] {
            return Err(refuse("drops scores of an attention with fewer key heads, which is not supported"));
        }
        let heads_first = |x: &Tensor| x.transpose(&[0, 2, 1, 3]);
        let (q4, k4, v4) = (heads_first(q)?.mul_scalar(scale)?, heads_first(k)?, heads_first(v)?);
        let mut scores = q4.matmul_with(&k4, None, false, true)?;
        if let Some(mask) = hidden(q, k, shown, causal)? {
            scores = scores.add(&mask)?;
        }
        let scores = noise::drop(cx, &scores.softmax(-1)?, self.dropout, None)?;
        heads_first(&scores.matmul(&v4)?)
    }
}
