//! Turns the gradient of attention into the graph of cuDNN's operations that its fused engines know.
//!
//! In this form the gradients of scores are kept, as 16-bit numbers, until those of the queries are made of them: an engine adds nothing up in whatever order
//! blocks finish. The matrix is the engine's workspace, so a call has few samples ([`HeadsGrad::at_once`]).

use cudarc::cudnn::sys;
use plimsoll_graph::ops::AttentionDims;
use sys::cudnnDataType_t as Data;
use sys::cudnnPointwiseMode_t as Pointwise;
use sys::cudnnReduceTensorOp_t as Reduce;

use super::attention::Heads;
use super::case::{Tensor, Where, data_type};
use super::draft::{At, Draft, turned};
use super::engine::Graph;
use crate::error::Error;

/// The numbers of what a call brings along: q, k, v, o, do, the log-sum-exp, dq, dk, dv and room for a number a query on the card; on the host, as f32, one,
/// the scale and what hidden scores are.
pub(crate) const OPERANDS: [i64; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];
/// Bytes of a matrix of scores' gradients: of one sample at most, and of several together. Memory is worth more than a few launches.
const MATRIX: usize = 256 << 20;
const OF_SEVERAL: usize = 64 << 20;

/// The gradient of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HeadsGrad(pub Heads);

impl HeadsGrad {
    /// How many samples a call may have: as many as divide them and have a matrix of scores that is not too large; none where one sample's is.
    pub(crate) fn at_once(&self) -> Option<usize> {
        let AttentionDims { batch, tq, tk, heads, .. } = self.0.dims;
        let one = heads * tq.next_multiple_of(64) * tk.next_multiple_of(64) * 2;
        let fits = |samples: &usize| match samples {
            1 => one <= MATRIX,
            _ => batch.is_multiple_of(*samples) && samples * one <= OF_SEVERAL,
        };
        (1..=batch).rev().find(fits)
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
        let mut draft = Draft::new(&self.0, data);
        let of_queries = |draft: &mut Draft, id, width| draft.tensor(draft.sequence(id, tq, heads, width));
        let [q, dq] = [of_queries(&mut draft, q, d)?, of_queries(&mut draft, dq, d)?];
        let [o, d_o] = [of_queries(&mut draft, o, dv)?, of_queries(&mut draft, d_o, dv)?];
        let k_turned = draft.tensor(turned(draft.sequence(k, tk, kv_heads, d)))?;
        let v_turned = draft.tensor(turned(draft.sequence(v, tk, kv_heads, dv)))?;
        let dk = draft.tensor(draft.sequence(dk, tk, kv_heads, d))?;
        let d_v = draft.tensor(draft.sequence(d_v, tk, kv_heads, dv))?;
        let [lse, sums] = [draft.rows(lse, Where::Device)?, draft.rows(sums, Where::Device)?];
        let [one, scale] = [draft.number(one)?, draft.number(scale)?];

        // What all outputs of a query say of its probabilities' sum.
        let id = draft.next();
        let both = Tensor { data: float, at: Where::Within, ..draft.sequence(id, tq, heads, dv) };
        let both = draft.tensor(both)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [d_o, both], Some(o), None)?;
        let id = draft.next();
        let sum = draft.rows(id, Where::Within)?;
        draft.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, both, sum)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [sum, sums], Some(one), None)?;

        // Probabilities, as they were.
        let [products, scaled, less] = [draft.score(float)?, draft.score(float)?, draft.score(float)?];
        draft.matmul(q, k_turned, products)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [products, scaled], Some(scale), None)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_SUB, [scaled, less], Some(lse), None)?;
        let s = draft.hidden(less, hidden)?;
        let shares = draft.score(float)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_EXP, [s, shares], None, None)?;

        // The same matrix with keys first, and sums over queries of it: of every head, then of those that share a key.
        let over_queries = |draft: &mut Draft, x: At, y: At, to: At, width: usize| {
            let id = draft.next();
            let (sizes, strides) = ([batch, heads, tk, tq], [heads * tq * tk, tq * tk, 1, tk]);
            let flipped = draft.tensor(Tensor { id, data, sizes, strides, at: Where::Within })?;
            draft.reshape(x, flipped)?;
            if heads == kv_heads {
                return draft.matmul(flipped, y, to);
            }
            let id = draft.next();
            let (sizes, strides) = ([batch, heads, tk, width], [heads * tk * width, tk * width, width, 1]);
            let apart = draft.tensor(Tensor { id, data, sizes, strides, at: Where::Within })?;
            draft.matmul(flipped, y, apart)?;
            draft.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, apart, to)
        };
        over_queries(&mut draft, shares, d_o, d_v, dv)?;

        // The gradient of each score, and of what it was made of.
        let [of_values, off, slopes] = [draft.score(float)?, draft.score(float)?, draft.score(float)?];
        let slopes_scaled = draft.score(float)?;
        draft.matmul(d_o, v_turned, of_values)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_SUB, [of_values, off], Some(sums), None)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [off, slopes], Some(shares), None)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [slopes, slopes_scaled], Some(scale), None)?;
        over_queries(&mut draft, slopes_scaled, q, dk, d)?;
        let id = draft.next();
        let keys = Tensor { at: Where::Within, ..draft.sequence(id, tk, kv_heads, d) };
        let keys = draft.tensor(keys)?;
        draft.reshape(k_turned, keys)?;
        draft.matmul(slopes_scaled, keys, dq)?;
        Ok(draft)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::DType;

    use super::*;

    #[test]
    fn a_call_has_no_more_samples_than_their_scores_are_worth() {
        let of = |batch, length, heads| {
            let dims = AttentionDims { batch, tq: length, tk: length, heads, kv_heads: heads, d: 64, dv: 64 };
            HeadsGrad(Heads { dims, causal: true, dtype: DType::BF16 }).at_once()
        };
        assert_eq!(of(4, 2048, 32), Some(1), "a sample's matrix is 256 MiB");
        assert_eq!(of(8, 1024, 12), Some(2), "two are 48 MiB");
        assert_eq!(of(7, 1024, 12), Some(1), "two do not divide seven");
        assert_eq!(of(1, 4096, 32), None, "one is a gigabyte");
    }
}
