//! Attention over sequences `[B, T, C]`.

use plimsoll_graph::{AttentionOps, DType, SoftmaxOps, TensorOps, Type};
use plimsoll_nn::Init;
use plimsoll_run::{Result as RunResult, Tensor};

use super::{Table, noise, trained};
use crate::error::{Result, refuse};
use crate::layer::{Arg, Args, Cx, Made, Masks, Weight};
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
        let is_concat = match s.text_or("score_mode", "dot")? {
            "dot" => false,
            "concat" => true,
            _ => return Err(s.wrong("score_mode", "dot and concat are known")),
        };
        plain(s, if is_concat { Score::Concat } else { Score::Dot })
    }),
    ("AdditiveAttention", |s| plain(s, Score::Additive)),
];

/// How a query and a key are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Score {
    Dot,
    /// The sum of tanh of their sum, scaled by numbers.
    Concat,
    /// The same, scaled channel by channel.
    Additive,
}

/// An attention layer without heads and projections.
fn plain(s: &Settings<'_>, score: Score) -> Result<Made> {
    let scaled = s.flag("use_scale", score == Score::Additive)?;
    let dropout = s.rate("dropout")?;
    let mut weights = if scaled { vec![trained(s, "scale", "scale_regularizer")?] } else { Vec::new() };
    if score == Score::Concat {
        weights.push(trained(s, "concat_score_weight", "concat_score_regularizer")?);
    }
    Ok(Made::with(weights, move |cx, args| {
        let all = args.args.first().map_or_else(Vec::new, |first| {
            let mut found = Vec::new();
            first.tensors(&mut found);
            found
        });
        let (q, v, k) = match all[..] {
            [q, v] => (q, v, v),
            [q, v, k] => (q, v, k),
            _ => return Err(refuse("gives not two or three tensors to an attention layer")),
        };
        let (&[b, rows, width], &[_, columns, _]) = (&q.shape()[..], &k.shape()[..]) else {
            return Err(refuse(format!("gives {} to a layer that takes sequences [B, T, C]", q.ty())));
        };
        let scores = match score {
            Score::Dot => {
                let scores = q.matmul_with(k, None, false, true)?;
                if scaled { scores.mul(&cx.param("scale", [], Init::Constant(1.0))?)? } else { scores }
            }
            _ => {
                let sum = q.reshape([b, rows, 1, width])?.add(&k.reshape([b, 1, columns, width])?)?;
                match (score, scaled) {
                    (Score::Concat, _) => {
                        let weight = match scaled {
                            true => Some(cx.param("scale", [], Init::Constant(1.0))?),
                            false => None,
                        };
                        let sum = if let Some(scale) = weight { sum.mul(&scale)? } else { sum };
                        let all = sum.tanh()?.sum(&[3], false)?;
                        all.mul(&cx.param("concat_score_weight", [], Init::Constant(1.0))?)?
                    }
                    (_, true) => {
                        let scale = cx.param("scale", [width], Init::glorot_uniform(width, 1))?;
                        sum.tanh()?.mul(&scale)?.sum(&[3], false)?
                    }
                    _ => sum.tanh()?.sum(&[3], false)?,
                }
            }
        };
        // What the masks of the values hide, and what comes later.
        let masks = masks_of(args)?;
        let mut shown: Option<Tensor> = None;
        if let Some(Some(mask)) = masks.get(1) {
            shown = Some(mask.cast(DType::F32)?.reshape([b, 1, columns])?);
        }
        if args.flag(4, "use_causal_mask")? {
            let ty = Type::new(DType::I64, [1, rows, columns]);
            let own = q.iota_like(ty.clone(), 1)?.greater_equal(&q.iota_like(ty, 2)?)?.cast(DType::F32)?;
            shown = Some(match shown {
                Some(shown) => shown.mul(&own)?,
                None => own,
            });
        }
        let far = if scores.dtype() == DType::F16 { -65504.0 } else { -1e9 };
        let scores = match shown {
            Some(shown) => scores.add(&shown.rsub_scalar(1.0)?.mul_scalar(far)?.cast(scores.dtype())?)?,
            None => scores,
        };
        let shares = scores.softmax(-1)?;
        let kept = noise::drop(cx, &shares, dropout, None)?;
        let mut y = kept.matmul(v)?;
        let query_mask = masks.first().cloned().flatten();
        if let Some(mask) = &query_mask {
            y = y.mul(&mask.cast(DType::F32)?.cast(y.dtype())?.reshape([b, rows, 1])?)?;
        }
        cx.pass.mask = query_mask;
        let mut outputs = vec![y];
        if args.flag(3, "return_attention_scores")? {
            outputs.push(shares);
        }
        Ok(outputs)
    })
    .masks(Masks::Read)
    .kwargs(&["mask", "use_causal_mask", "return_attention_scores", "training"]))
}

/// The masks of query, value and key: those that are named, or else those that came with the tensors.
fn masks_of(args: &Args) -> RunResult<Vec<Option<Tensor>>> {
    let named =
        args.kwargs.iter().find(|(key, _)| key == "mask").map(|(_, arg)| arg).or_else(|| args.args.get(1));
    let one = |arg: &Arg| match arg {
        Arg::Tensor(mask, _) => Ok(Some(mask.clone())),
        Arg::Value(value) if value.is_null() => Ok(None),
        _ => Err(refuse("gives something else than masks to an attention layer")),
    };
    match named {
        Some(Arg::List(list)) => list.iter().map(one).collect(),
        Some(arg @ Arg::Tensor(..)) => Ok(vec![one(arg)?]),
        _ => Ok(args.args.first().map_or_else(Vec::new, |first| {
            let first = Args { args: vec![first.clone()], kwargs: Vec::new() };
            first.masks().into_iter().map(|mask| mask.cloned()).collect()
        })),
    }
}

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
    Ok(Made::with(weights, move |cx, args| layer.apply(cx, args)).masks(Masks::Read).kwargs(&[
        "return_attention_scores",
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
        // Masks that are named, or else those that came with the tensors.
        let own = |place: usize, name: &str, at: usize| match args.get(place, name) {
            Some(Arg::Tensor(mask, _)) => Ok(Some(mask.clone())),
            Some(_) => Err(refuse(format!("gives something else than a mask as {name}"))),
            None => Ok(match args.get(at, ["query", "value", "key"][at]) {
                Some(Arg::Tensor(_, mask)) => mask.clone(),
                _ => None,
            }),
        };
        let masks = [own(3, "query_mask", 0)?, own(4, "value_mask", 1)?, own(5, "key_mask", 2)?];
        cx.pass.mask = masks[0].clone();
        let gives_scores = args.flag(7, "return_attention_scores")?;
        let given = args.tensor(6, "attention_mask")?;
        let shown = combined(given, &masks, query.shape()[1], value.shape()[1])?;
        let shown = shown.as_ref();
        let causal = args.flag(9, "use_causal_mask")?;
        let q = self.project(cx, 0, query, self.heads[0], self.key)?;
        let k = self.project(cx, 1, key, self.heads[1], self.key)?;
        let v = self.project(cx, 2, value, self.heads[1], self.value)?;
        // Rounded to f32, as Keras has it in whatever type it computes.
        let scale = f64::from((1.0 / (self.key as f64).sqrt()) as f32);
        let mut scores = None;
        let y = if gives_scores || (self.dropout > 0.0 && cx.is_training()) {
            let (y, shares) = self.dropped(cx, [&q, &k, &v], shown, causal, scale)?;
            scores = Some(shares);
            y
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
        Ok(std::iter::once(y).chain(scores.filter(|_| gives_scores)).collect())
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

    /// The same by its scores, which the op does not give, with dropout of them.
    fn dropped(
        &self,
        cx: &mut Cx<'_>,
        [q, k, v]: [&Tensor; 3],
        shown: Option<&Tensor>,
        causal: bool,
        scale: f64,
    ) -> RunResult<(Tensor, Tensor)> {
        let heads_first = |x: &Tensor| x.transpose(&[0, 2, 1, 3]);
        let (q4, mut k4, mut v4) = (heads_first(q)?.mul_scalar(scale)?, heads_first(k)?, heads_first(v)?);
        let times = self.heads[0] / self.heads[1].max(1);
        if times > 1 {
            // Queries share keys: each key head as often as it is read.
            let repeated = |x: &Tensor| -> RunResult<Tensor> {
                let [b, h, t, w] = x.shape()[..] else { return Err(refuse("made no heads")) };
                x.reshape([b, h, 1, t, w])?.broadcast([b, h, times, t, w])?.reshape([b, h * times, t, w])
            };
            (k4, v4) = (repeated(&k4)?, repeated(&v4)?);
        }
        let mut scores = q4.matmul_with(&k4, None, false, true)?;
        if let Some(mask) = hidden(q, k, shown, causal)? {
            scores = scores.add(&mask)?;
        }
        let shares = noise::drop(cx, &scores.softmax(-1)?, self.dropout, None)?;
        Ok((heads_first(&shares.matmul(&v4)?)?, shares))
    }
}

/// A mask `[B, T, S]` of attention from one that is given and those of query, value and key.
fn combined(
    given: Option<&Tensor>,
    masks: &[Option<Tensor>; 3],
    rows: usize,
    columns: usize,
) -> RunResult<Option<Tensor>> {
    let mut all: Option<Tensor> = given.map(|mask| mask.cast(DType::F32)).transpose()?;
    for (mask, is_query) in masks.iter().zip([true, false, false]) {
        let Some(mask) = mask else { continue };
        let b = mask.shape().first().copied().unwrap_or(1);
        let shape = if is_query { [b, rows, 1] } else { [b, 1, columns] };
        let own = mask.cast(DType::F32)?.reshape(shape)?.broadcast([b, rows, columns])?;
        all = Some(match all {
            // A mask of heads has one axis more.
            Some(all) if all.shape().rank() == 4 => all.mul(&own.reshape([b, 1, rows, columns])?)?,
            Some(all) => all.mul(&own)?,
            None => own,
        });
    }
    Ok(all)
}
