//! Turns attention into the graph of cuDNN's operations that its fused engines know.
//!
//! Of the gradients that cuDNN 9 has for a Hopper card, one adds up the queries' in whatever order blocks finish; the other is in `attention_grad.rs`.

use cudarc::cudnn::sys;
use plimsoll_graph::DType;
use plimsoll_graph::ops::AttentionDims;
use sys::cudnnDataType_t as Data;
use sys::cudnnPointwiseMode_t as Pointwise;
use sys::cudnnReduceTensorOp_t as Reduce;

use super::case::{Where, data_type};
use super::draft::{Draft, turned};
use super::engine::Graph;
use crate::error::Error;

/// The numbers of what a call brings along: q, k, v, o and the log-sum-exp on the card; on the host, as f32, the scale and
/// what hidden scores are.
pub(crate) const OPERANDS: [i64; 7] = [1, 2, 3, 4, 5, 6, 7];
/// Scores below which starting a kernel takes longer than running it.
const FEW: usize = 1 << 22;

/// The sizes of one attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Heads {
    pub dims: AttentionDims,
    pub causal: bool,
    pub dtype: DType,
}

impl Heads {
    /// Whether cuDNN's engines may know the case and it is worth making them: 16-bit heads of whole rows of 16 bytes, and a
    /// diagonal that starts in the corner.
    pub(crate) fn may_be_known(&self) -> bool {
        let AttentionDims { batch, tq, tk, heads, d, dv, .. } = self.dims;
        let even = |width: usize| width.is_multiple_of(8) && width <= 128;
        matches!(self.dtype, DType::BF16 | DType::F16)
            && even(d)
            && even(dv)
            && d.min(dv) > 0
            && batch * heads * tq * tk >= FEW
            && (!self.causal || tq == tk)
    }

    /// The bytes of all operands.
    pub(super) fn bytes(&self) -> usize {
        let AttentionDims { batch, tq, tk, heads, kv_heads, d, dv } = self.dims;
        batch * (tq * heads + tk * kv_heads) * (d + dv) * self.dtype.bytes()
    }

    /// The graph; none where cuDNN does not know the type.
    pub(super) fn graph(&self, handle: sys::cudnnHandle_t) -> Option<Result<Graph, Error>> {
        let data = data_type(self.dtype)?;
        Some(self.draft(data).and_then(|draft| draft.finish(handle)))
    }

    fn draft(&self, data: Data) -> Result<Draft, Error> {
        let AttentionDims { tq, tk, heads, kv_heads, d, dv, .. } = self.dims;
        let mut draft = Draft::new(self, data);
        let [q, k, v, o, lse, scale, hidden] = OPERANDS;
        let q = draft.tensor(draft.sequence(q, tq, heads, d))?;
        let k = draft.tensor(turned(draft.sequence(k, tk, kv_heads, d)))?;
        let v = draft.tensor(draft.sequence(v, tk, kv_heads, dv))?;
        let o = draft.tensor(draft.sequence(o, tq, heads, dv))?;
        let lse = draft.rows(lse, Where::Device)?;
        let scale = draft.number(scale)?;
        let float = Data::CUDNN_DATA_FLOAT;

        let products = draft.score(float)?;
        draft.matmul(q, k, products)?;
        let scaled = draft.score(float)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [products, scaled], Some(scale), None)?;
        let s = draft.hidden(scaled, hidden)?;
        let [less, powers, shares] = [draft.score(float)?, draft.score(float)?, draft.score(data)?];
        let mut within = || {
            let id = draft.next();
            draft.rows(id, Where::Within)
        };
        let [most, sums, logs] = [within()?, within()?, within()?];
        draft.reduce(Reduce::CUDNN_REDUCE_TENSOR_MAX, s, most)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_SUB, [s, less], Some(most), None)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_EXP, [less, powers], None, None)?;
        draft.reduce(Reduce::CUDNN_REDUCE_TENSOR_ADD, powers, sums)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_LOG, [sums, logs], None, None)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_ADD, [most, lse], Some(logs), None)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_DIV, [powers, shares], Some(sums), None)?;
        draft.matmul(shares, v, o)?;
        Ok(draft)
    }
}
