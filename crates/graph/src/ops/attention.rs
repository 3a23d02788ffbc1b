//! Scaled-dot-product attention, forward and backward, from which no backend need ever hold the T by T matrix.
//!
//! Layout: q `[B, Tq, H, D]`, k `[B, Tk, Hkv, D]`, v `[B, Tk, Hkv, Dv]`: heads stand beside their features, so that a
//! projection's result is reshaped and not transposed. Hkv divides H; query head h reads key head h / (H / Hkv).

mod grad;
mod methods;

pub use grad::AttentionGrad;
pub use methods::{AttentionArgs, AttentionOps};

use std::ops::Range;

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Type, ops};

/// The sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionDims {
    /// Samples.
    pub batch: usize,
    /// Query positions.
    pub tq: usize,
    /// Key positions.
    pub tk: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Features of a query and a key.
    pub d: usize,
    /// Features of a value.
    pub dv: usize,
}

impl AttentionDims {
    /// The sizes for given operands, or what does not fit.
    pub fn new(q: &Type, k: &Type, v: &Type) -> Result<AttentionDims, String> {
        ops::float(q)?;
        ops::same_dtype(q, k)?;
        ops::same_dtype(q, v)?;
        let axes = |what: &str, t: &Type| {
            <[usize; 4]>::try_from(&*t.shape)
                .map_err(|_| format!("{what} are [batch, positions, heads, features], not {}", t.shape))
        };
        let [batch, tq, heads, d] = axes("queries", q)?;
        let [bk, tk, kv_heads, dk] = axes("keys", k)?;
        let [bv, tv, hv, dv] = axes("values", v)?;
        if bk != batch || bv != batch {
            return Err(format!("the batches of {}, {} and {} differ", q.shape, k.shape, v.shape));
        }
        if dk != d {
            return Err(format!("queries {} and keys {} have different features", q.shape, k.shape));
        }
        if tv != tk || hv != kv_heads {
            return Err(format!("keys {} and values {} differ in positions or heads", k.shape, v.shape));
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(format!(
                "the {heads} heads of queries cannot be shared out to {kv_heads} heads of keys"
            ));
        }
        Ok(AttentionDims { batch, tq, tk, heads, kv_heads, d, dv })
    }

    /// Query heads that read one key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn check_starts(&self, starts: &Type) -> Result<(), String> {
        let wanted = Type::new(DType::I32, [self.batch, self.tq]);
        match *starts == wanted {
            true => Ok(()),
            false => Err(format!("the first keys of its queries must be {wanted}, not {starts}")),
        }
    }

    fn check_mask(&self, q: &Type, mask: &Type) -> Result<(), String> {
        ops::same_dtype(q, mask)?;
        let whole = [self.batch, self.heads, self.tq, self.tk];
        let fits = mask.shape.len() == 4
            && mask.shape.iter().zip(whole).take(3).all(|(&n, whole)| n == whole || n == 1)
            && mask.shape[3] == self.tk;
        if fits {
            return Ok(());
        }
        Err(format!(
            "a mask of {} cannot be repeated to {whole:?}, [batch, heads, queries, keys]",
            mask.shape
        ))
    }

    fn lse_type(&self, q: &Type) -> Type {
        Type::new(q.dtype.accumulator(), [self.batch, self.heads, self.tq])
    }
}

/// o = softmax(cap(scale · q kᵀ) + mask) v for every head, and the log of each softmax's sum.
///
/// Inputs: q, k, v; with `mask`, an additive mask `[B or 1, H or 1, Tq or 1, Tk]`; with `documents`, the first key that each query
/// may see, i32 `[B, Tq]`: so texts that are packed into one row are told apart without a matrix. Outputs: o `[B, Tq, H, Dv]`, lse
/// `[B, H, Tq]` in the accumulator's type, which is kept for the gradient alone. With `causal`, query i sees the keys
/// j ≤ i + (Tk - Tq): the last query sees all. A query that sees no key gives zeros (and lse = -∞).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// Whether later keys are hidden.
    pub causal: bool,
    /// Whether a mask is added.
    pub mask: bool,
    /// Whether earlier keys are hidden by the first key of each query.
    pub documents: bool,
    /// Of the keys that a causal attention shows, only the last so many are seen.
    pub window: Option<usize>,
    /// c, where scores are c · tanh(x / c) before the mask.
    pub cap: Option<Scalar>,
    /// What the products are multiplied by, as a rule 1/√D.
    pub scale: Scalar,
}

/// The score of a query and a key that it sees.
struct Score {
    key: usize,
    value: f64,
    /// Its derivative by scale · q·k.
    slope: f64,
}

impl Attention {
    /// An attention without mask, documents, window and cap.
    pub fn new(causal: bool, scale: f64) -> Attention {
        Attention { causal, mask: false, documents: false, window: None, cap: None, scale: Scalar(scale) }
    }

    /// Whether keys are hidden that stand before others that are seen.
    pub fn hides_early(&self) -> bool {
        self.documents || self.window.is_some()
    }

    /// The place of the first keys of queries among the inputs, where they are one.
    pub fn starts_at(&self) -> Option<usize> {
        self.documents.then_some(3 + usize::from(self.mask))
    }

    /// The keys that query `i` sees, where its document begins at key `start`.
    pub fn seen(&self, d: &AttentionDims, i: usize, start: i64) -> Range<usize> {
        let end = if self.causal { (i + 1 + d.tk).saturating_sub(d.tq).min(d.tk) } else { d.tk };
        let window = self.window.map_or(0, |window| (i + 1 + d.tk).saturating_sub(d.tq + window));
        let start = if self.documents { usize::try_from(start).unwrap_or(0) } else { 0 };
        start.max(window).min(end)..end
    }

    /// The scores of one query of one head, of the keys that it sees.
    fn scores(&self, d: &AttentionDims, inputs: &[&Array], b: usize, h: usize, i: usize) -> Vec<Score> {
        let start = self.starts_at().map_or(0, |at| inputs[at].at(&[b, i]) as i64);
        let score = |key: usize| {
            let dot: f64 = (0..d.d)
                .map(|f| inputs[0].at(&[b, i, h, f]) * inputs[1].at(&[b, key, h / d.group(), f]))
                .sum();
            let mask = if self.mask { inputs[3].broadcast_at(&[b, h, i, key]) } else { 0.0 };
            let (capped, slope) = match self.cap {
                None => (self.scale.0 * dot, 1.0),
                Some(Scalar(cap)) => {
                    let tanh = (self.scale.0 * dot / cap).tanh();
                    (cap * tanh, 1.0 - tanh * tanh)
                }
            };
            Score { key, value: capped + mask, slope }
        };
        self.seen(d, i, start).map(score).collect()
    }

    /// Inputs of the forward pass.
    pub fn n_inputs(&self) -> usize {
        3 + usize::from(self.mask) + usize::from(self.documents)
    }

    fn split<'a>(&self, inputs: &[&'a Type]) -> Result<(AttentionDims, Vec<&'a Type>), String> {
        let n = self.n_inputs();
        if inputs.len() < n {
            return Err(format!("it takes at least {n} inputs and was given {}", inputs.len()));
        }
        let dims = AttentionDims::new(inputs[0], inputs[1], inputs[2])?;
        if self.mask {
            dims.check_mask(inputs[0], inputs[3])?;
        }
        if let Some(at) = self.starts_at() {
            dims.check_starts(inputs[at])?;
        }
        match (self.window, self.causal) {
            (Some(0), _) => return Err("a window of no keys shows nothing".into()),
            (Some(_), false) => {
                return Err("a window counts back from each query; it is for causal attention alone".into());
            }
            _ => {}
        }
        if let Some(Scalar(cap)) = self.cap
            && !(cap > 0.0 && cap.is_finite())
        {
            return Err(format!("scores cannot be capped at {cap}"));
        }
        Ok((dims, inputs[n..].to_vec()))
    }

    /// Multiplications of one product of all queries with all keys that are seen, as if each row were one document.
    fn pairs(&self, d: &AttentionDims) -> f64 {
        let seen: usize = (0..d.tq).map(|i| self.seen(d, i, 0).len()).sum();
        (d.batch * d.heads) as f64 * seen as f64
    }
}

/// The sizes of an attention whose operands are arrays.
fn array_dims(inputs: &[&Array]) -> AttentionDims {
    let (q, k, v) = (&inputs[0].shape, &inputs[1].shape, &inputs[2].shape);
    AttentionDims { batch: q[0], tq: q[1], tk: k[1], heads: q[2], kv_heads: k[2], d: q[3], dv: v[3] }
}

/// ln Σ exp(s), -∞ where there is nothing to add up.
fn log_sum_exp(scores: &[Score]) -> f64 {
    let most = scores.iter().map(|score| score.value).fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return most;
    }
    most + scores.iter().map(|score| (score.value - most).exp()).sum::<f64>().ln()
}

/// exp(score - lse), 0 where the query sees nothing.
fn probability(score: f64, lse: f64) -> f64 {
    if lse == f64::NEG_INFINITY { 0.0 } else { (score - lse).exp() }
}

impl Rule for Attention {
    const NAME: &'static str = "attention";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let (dims, rest) = self.split(inputs)?;
        if !rest.is_empty() {
            return Err(format!("it takes {} inputs and was given {}", self.n_inputs(), inputs.len()));
        }
        let q = inputs[0];
        Ok(smallvec![q.with_shape([dims.batch, dims.tq, dims.heads, dims.dv]), dims.lse_type(q)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == 0
    }

    /// A query's result depends on no other query, so o may take q's place.
    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let flops = AttentionDims::new(inputs[0], inputs[1], inputs[2])
            .map_or(0.0, |d| self.pairs(&d) * (2 * (d.d + d.dv) + 8) as f64);
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    fn keep(&self) -> Keep {
        Keep::both((1 << self.n_inputs()) - 1, 3)
    }

    /// See [`AttentionGrad`].
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        if at.try_grad(1).is_some() {
            return Err(
                at.no_gradient("its log-sum-exp is kept for the gradient alone; compute it with log and exp")
            );
        }
        if self.mask && at.wants(3) {
            return Err(at.no_gradient(
                "its mask is taken as constant; add a learned bias to the scores with matmul and softmax instead",
            ));
        }
        let mut inputs = (0..self.n_inputs()).map(|i| at.input(i)).collect::<Result<Vec<Sym>>>()?;
        inputs.extend([at.output(0)?, at.output(1)?, at.grad(0)?]);
        let grads = at.push(AttentionGrad(*self), &inputs.iter().collect::<Vec<_>>())?;
        let mut grads: Vec<Option<Sym>> = grads.into_iter().map(Some).collect();
        grads.resize(self.n_inputs(), None);
        Ok(grads)
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let d = array_dims(inputs);
        let lse =
            Array::from_fn(&outputs[1].shape, |i| log_sum_exp(&self.scores(&d, inputs, i[0], i[1], i[2])));
        let o = Array::from_fn(&outputs[0].shape, |i| {
            let [b, t, h, f] = [i[0], i[1], i[2], i[3]];
            let sum = lse.at(&[b, h, t]);
            let scores = self.scores(&d, inputs, b, h, t);
            let weighed = |s: &Score| probability(s.value, sum) * inputs[2].at(&[b, s.key, h / d.group(), f]);
            scores.iter().map(weighed).sum()
        });
        vec![o, lse]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        cases(dice).into_iter().map(|(op, inputs, _)| Example::new(op, inputs)).collect()
    }
}

/// An attention, its inputs and its sizes.
type Case = (Attention, Vec<(Type, Domain)>, AttentionDims);

/// Attentions with their inputs: every combination of causal and masked, more and fewer keys than queries; then documents, windows
/// and caps, alone and together.
fn cases(dice: &mut Dice) -> Vec<Case> {
    let mut cases = Vec::new();
    for flags in 0..13 {
        let (causal, mask) = (flags & 1 == 1, flags & 2 == 2);
        let (documents, is_narrow, is_capped) =
            (matches!(flags, 8 | 9 | 11), matches!(flags, 9 | 11), matches!(flags, 10..));
        let kv_heads = dice.range(1, 3);
        let heads = kv_heads * if flags & 4 == 4 { 2 } else { 1 };
        // One case is longer than a tile of any backend, the others are small.
        let most = if matches!(flags, 5 | 9) { 80 } else { 9 };
        let (batch, tq, tk) = (dice.range(1, 3), dice.range(most - 7, most), dice.range(most - 7, most));
        let (d, dv) = (dice.range(1, 20), dice.range(1, 20));
        let f32s = |shape: [usize; 4]| (Type::new(DType::F32, shape), Domain::Normal);
        let mut inputs = vec![
            f32s([batch, tq, heads, d]),
            f32s([batch, tk, kv_heads, d]),
            f32s([batch, tk, kv_heads, dv]),
        ];
        if mask {
            let one_or = |dice: &mut Dice, n: usize| if dice.range(0, 2) == 0 { 1 } else { n };
            inputs.push(f32s([one_or(dice, batch), one_or(dice, heads), one_or(dice, tq), tk]));
        }
        if documents {
            inputs.push((Type::new(DType::I32, [batch, tq]), Domain::Index(tk)));
        }
        let op = Attention {
            mask,
            documents,
            window: is_narrow.then_some(tk / 2 + 1),
            cap: is_capped.then_some(Scalar(1.5)),
            ..Attention::new(causal, 1.0 / (d as f64).sqrt())
        };
        cases.push((op, inputs, AttentionDims { batch, tq, tk, heads, kv_heads, d, dv }));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_sees_no_key_gives_zeros() {
        let op = Attention::new(true, 1.0);
        let dims = AttentionDims { batch: 1, tq: 3, tk: 2, heads: 1, kv_heads: 1, d: 1, dv: 1 };
        assert_eq!([0, 1, 2].map(|i| op.seen(&dims, i, 0).len()), [0, 1, 2]);
        let (q, k) = (Array::new([1, 3, 1, 1], vec![1.0; 3]), Array::new([1, 2, 1, 1], vec![1.0, 2.0]));
        let types = [Type::new(DType::F32, [1, 3, 1, 1]), Type::new(DType::F32, [1, 1, 3])];
        let out = op.reference(&[&q, &k, &k], &types);
        assert_eq!(out[0].data[..2], [0.0, 1.0]);
        assert_eq!(out[1].data[0], f64::NEG_INFINITY);
    }

    #[test]
    fn shapes_that_do_not_fit_are_named() {
        let t = |shape: [usize; 4]| Type::new(DType::F32, shape);
        let op = Attention { mask: true, ..Attention::new(false, 1.0) };
        let infer = |q, k, v, mask: [usize; 4]| op.infer(&[&t(q), &t(k), &t(v), &t(mask)]).unwrap_err();
        let error = infer([2, 3, 4, 8], [2, 5, 3, 8], [2, 5, 3, 8], [1, 1, 3, 5]);
        assert!(error.contains("4 heads") && error.contains("3 heads"), "{error}");
        let error = infer([2, 3, 4, 8], [2, 5, 4, 8], [2, 5, 4, 8], [1, 1, 3, 4]);
        assert!(error.contains("[1, 1, 3, 4]") && error.contains("[2, 4, 3, 5]"), "{error}");
    }

    #[test]
    fn documents_and_windows_hide_what_is_early() {
        let dims = AttentionDims { batch: 1, tq: 6, tk: 6, heads: 1, kv_heads: 1, d: 1, dv: 1 };
        let packed = Attention { documents: true, ..Attention::new(true, 1.0) };
        let starts = [0, 0, 2, 2, 2, 5];
        let seen = |op: &Attention, i: usize| op.seen(&dims, i, starts[i]);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|i| seen(&packed, i)), [0..1, 0..2, 2..3, 2..4, 2..5, 5..6]);
        let narrow = Attention { window: Some(2), ..packed };
        assert_eq!([3, 4, 5].map(|i| seen(&narrow, i)), [2..4, 3..5, 5..6]);
        // A document that begins behind its own query shows nothing; one before the first key shows all.
        assert!(packed.seen(&dims, 1, 4).is_empty());
        assert_eq!(packed.seen(&dims, 1, -3), 0..2);
        let q = Type::new(DType::F32, [1, 6, 1, 1]);
        let wrong = packed.infer(&[&q, &q, &q, &Type::new(DType::I64, [1, 6])]).unwrap_err();
        assert!(wrong.contains("i32") && wrong.contains("i64"), "{wrong}");
        let wrong = Attention { causal: false, ..Attention { window: Some(2), ..Attention::new(true, 1.0) } };
        assert!(wrong.infer(&[&q, &q, &q]).unwrap_err().contains("causal"));
    }

    #[test]
    fn the_gradient_of_a_mask_is_refused_with_a_way_out() {
        let trace = crate::Trace::new();
        let q = trace.input("q", Type::new(DType::F32, [1, 2, 1, 4]));
        let mask = trace.input("mask", Type::new(DType::F32, [2, 2]));
        let y = q.attention(&q, &q, Some(&mask), false, None).unwrap();
        let error = crate::gradient(&y, None, &[&mask]).unwrap_err().to_string();
        assert!(error.contains("attention") && error.contains("softmax"), "{error}");
    }
}
