//! Turns the gradient of attention into the graph of cuDNN's operations that its fused engines know.
//!
//! In this form the gradients of scores are kept, as 16-bit numbers, until those of the queries are made of them: an engine adds nothing up in whatever order
//! blocks finish. The matrix is the engine's workspace, so a call has few samples ([`HeadsGrad::at_once`]).

use cudarc::cudnn::sys;
use plimsoll_graph::ops::AttentionDims;
use sys::cudnnDataType_t as Data;
use sys::cudnnPointwiseMode_t as Pointwise;
use sys::cudnnReduceTensorOp_t as Reduce;

use super::attention::{At, Draft, Heads};
use super::case::{Tensor, Where, data_type};
use super::engine::Graph;
use crate::error::Error;

/// The numbers of what a call brings along: q, k, v, o, do, the log-sum-exp, dq, dk, dv and room for a number a query on the card; on the host, as f32, one,
/// the scale and what hidden scores are.
pub(crate) const OPERANDS: [i64; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];
/// Numbers of what exists within the graph alone.
const WITHIN: i64 = 100;
/// Bytes of a matrix of scores' gradients.
const MATRIX: usize = 256 << 20;

/// The gradient of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HeadsGrad(pub Heads);

impl HeadsGrad {
    /// How many samples a call may have: as many as divide them and have a matrix of scores that is not too large; none where one sample's is.
    pub(crate) fn at_once(&self) -> Option<usize> {
        let AttentionDims { batch, tq, tk, heads, .. } = self.0.dims;
        let one = heads * tq.next_multiple_of(64) * tk.next_multiple_of(64) * 2;
        (1..=batch).rev().find(|samples| batch.is_multiple_of(*samples) && samples * one <= MATRIX)
    }

    /// What engines may take of workspace: the matrix, and a part for sums of heads.
    pub(super) fn workspace() -> usize {
        MATRIX + (64 << 20)
    }

    /// The graph; none where cuDNN does not know the type.
    pub(super) fn graph(&self, handle: sys::cudnnHandle_t) -> Option<Result<Graph, Error>> {
        let data = data_type(self.0.dtype)?;
        Some(self.draft(data).and_then(|draft| draft.finish(handle)))
    }

    fn draft(&self, data: Data) -> Result<Draft, Error> {
        let AttentionDims { batch, tq, tk, heads, kv_heads, d, dv } = self.0.dims;
        let [q, k, v, o, d_o, lse, dq, dk, d_v, sums, one, scale, hidden] = OPERANDS;
        let float = Data::CUDNN_DATA_FLOAT;
        let mut draft = Draft::new();
        // Positions before heads in memory; cuDNN names heads first.
        let heads_of = |id, length: usize, heads: usize, width: usize| Tensor {
            id,
            data,
            sizes: [batch, heads, length, width],
            strides: [length * heads * width, width, heads * width, 1],
            at: Where::Device,
        };
        let turned = |t: Tensor| {
            let ([a, b, c, e], [s, u, w, x]) = (t.sizes, t.strides);
            Tensor { sizes: [a, b, e, c], strides: [s, u, x, w], ..t }
        };
        let number = |id| Tensor { id, data: float, sizes: [1; 4], strides: [1; 4], at: Where::Host };
        let rows = |id, at| Tensor {
            id,
            data: float,
            sizes: [batch, heads, tq, 1],
            strides: [heads * tq, tq, 1, 1],
            at,
        };
        let mut within = WITHIN;
        let mut next = || {
            within += 1;
            within
        };
        let scores = |id, data| Tensor {
            id,
            data,
            sizes: [batch, heads, tq, tk],
            strides: [heads * tq * tk, tq * tk, tk, 1],
            at: Where::Within,
        };
        let (q, q_heads) = (draft.tensor(heads_of(q, tq, heads, d))?, heads);
        let k_turned = draft.tensor(turned(heads_of(k, tk, kv_heads, d)))?;
        let v_turned = draft.tensor(turned(heads_of(v, tk, kv_heads, dv)))?;
        let o = draft.tensor(heads_of(o, tq, heads, dv))?;
        let d_o = draft.tensor(heads_of(d_o, tq, heads, dv))?;
        let lse = draft.tensor(rows(lse, Where::Device))?;
        let dq = draft.tensor(heads_of(dq, tq, heads, d))?;
        let dk = draft.tensor(heads_of(dk, tk, kv_heads, d))?;
        let d_v = draft.tensor(heads_of(d_v, tk, kv_heads, dv))?;
        let sums = draft.tensor(rows(sums, Where::Device))?;
        let [one, scale] = [draft.tensor(number(one))?, draft.tensor(number(scale))?];

        // What all outputs of a query say of its probabilities' sum.
        let both = Tensor { data: float, at: Where::Within, ..heads_of(next(), tq, heads, dv) };
        let both = draft.tensor(both)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [d_o, both], Some(o), None)?;
        let sum = draft.tensor(rows(next(), Where::Within))?;
        draft.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, both, sum)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [sum, sums], Some(one), None)?;

        // Probabilities, as they were.
        let mut score = |draft: &mut Draft, data| draft.tensor(scores(next(), data));
        let products = score(&mut draft, float)?;
        draft.matmul(q, k_turned, products)?;
        let scaled = score(&mut draft, float)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [products, scaled], Some(scale), None)?;
        let mut s = score(&mut draft, float)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_SUB, [scaled, s], Some(lse), None)?;
        if self.0.causal {
            let hidden = draft.tensor(number(hidden))?;
            let row = score(&mut draft, Data::CUDNN_DATA_INT32)?;
            draft.index(2, [s, row])?;
            let column = score(&mut draft, Data::CUDNN_DATA_INT32)?;
            draft.index(3, [s, column])?;
            let sees = score(&mut draft, Data::CUDNN_DATA_BOOLEAN)?;
            draft.pointwise(Pointwise::CUDNN_POINTWISE_CMP_GE, [row, sees], Some(column), None)?;
            let seen = score(&mut draft, float)?;
            draft.pointwise(Pointwise::CUDNN_POINTWISE_BINARY_SELECT, [s, seen], Some(hidden), Some(sees))?;
            s = seen;
        }
        let shares = score(&mut draft, float)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_EXP, [s, shares], None, None)?;

        // The gradient of each score.
        let of_values = score(&mut draft, float)?;
        let less = score(&mut draft, float)?;
        let slopes = score(&mut draft, float)?;
        let slopes_scaled = score(&mut draft, float)?;
        // The same matrices, keys first.
        let mut flipped = |draft: &mut Draft| {
            let t = scores(next(), data);
            draft.tensor(Tensor {
                sizes: [batch, q_heads, tk, tq],
                strides: [q_heads * tq * tk, tq * tk, 1, tk],
                ..t
            })
        };
        let shares_turned = flipped(&mut draft)?;
        let slopes_turned = flipped(&mut draft)?;
        // Sums of every head of queries, and of those that share a key.
        let mut joined = |draft: &mut Draft, [x, y]: [At; 2], to: At, width: usize| {
            if heads == kv_heads {
                return draft.matmul(x, y, to);
            }
            let apart = draft.tensor(Tensor {
                id: next(),
                data,
                sizes: [batch, heads, tk, width],
                strides: [heads * tk * width, tk * width, width, 1],
                at: Where::Within,
            })?;
            draft.matmul(x, y, apart)?;
            draft.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, apart, to)
        };
        draft.reshape(shares, shares_turned)?;
        joined(&mut draft, [shares_turned, d_o], d_v, dv)?;
        draft.matmul(d_o, v_turned, of_values)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_SUB, [of_values, less], Some(sums), None)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [less, slopes], Some(shares), None)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [slopes, slopes_scaled], Some(scale), None)?;
        draft.reshape(slopes_scaled, slopes_turned)?;
        joined(&mut draft, [slopes_turned, q], dk, d)?;
        let keys = draft.tensor(Tensor { at: Where::Within, ..heads_of(next(), tk, kv_heads, d) })?;
        draft.reshape(k_turned, keys)?;
        draft.matmul(slopes_scaled, keys, dq)?;
        Ok(draft)
    }
}
