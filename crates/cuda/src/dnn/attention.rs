//! Turns attention into the graph of cuDNN's operations that its fused engines know.
//!
//! Of the gradients that cuDNN 9 has for a Hopper card, one adds up the queries' in whatever order blocks finish; the other is in `attention_grad.rs`.

use cudarc::cudnn::sys;
use plimsoll_graph::DType;
use plimsoll_graph::ops::AttentionDims;
use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendDescriptorType_t as Kind;
use sys::cudnnDataType_t as Data;
use sys::cudnnPointwiseMode_t as Pointwise;
use sys::cudnnReduceTensorOp_t as Reduce;

use super::case::{Tensor, Where, data_type};
use super::descriptor::Descriptor;
use super::engine::Graph;
use crate::error::Error;

/// The numbers of what a call brings along: q, k, v, o and the log-sum-exp on the card; on the host, as f32, the scale and
/// what hidden scores are.
pub(crate) const OPERANDS: [i64; 7] = [1, 2, 3, 4, 5, 6, 7];
/// Numbers of what exists within the graph alone.
const WITHIN: i64 = 100;
/// Scores below which starting a kernel takes longer than running it.
const FEW: usize = 1 << 22;

/// The sizes of one attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Heads {
    pub dims: AttentionDims,
    pub causal: bool,
    pub dtype: DType,
}

/// A graph while it is written.
pub(super) struct Draft {
    operations: Vec<Descriptor>,
    parts: Vec<Descriptor>,
}

/// The place of a tensor in a draft.
#[derive(Clone, Copy)]
pub(super) struct At(usize);

impl Draft {
    pub(super) fn new() -> Draft {
        Draft { operations: Vec::new(), parts: Vec::new() }
    }

    pub(super) fn finish(self, handle: sys::cudnnHandle_t) -> Result<Graph, Error> {
        Graph::new(handle, self.operations, self.parts)
    }

    pub(super) fn tensor(&mut self, tensor: Tensor) -> Result<At, Error> {
        self.parts.push(tensor.description()?);
        Ok(At(self.parts.len() - 1))
    }

    /// Adds an operation and what describes it.
    fn add(&mut self, operation: Descriptor, how: Descriptor) -> Result<(), Error> {
        self.operations.push(operation);
        self.parts.push(how);
        Ok(())
    }

    pub(super) fn matmul(&mut self, a: At, b: At, c: At) -> Result<(), Error> {
        let how = Descriptor::new(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_MATMUL_COMP_TYPE, Data::CUDNN_DATA_FLOAT)?
            .finish()?;
        let [a, b, c] = [a, b, c].map(|At(i)| &self.parts[i]);
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?
            .naming(Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, &[a])?
            .naming(Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, &[b])?
            .naming(Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, &[c])?
            .naming(Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&how])?
            .finish()?;
        self.add(operation, how)
    }

    pub(super) fn reduce(&mut self, by: Reduce, x: At, y: At) -> Result<(), Error> {
        let how = Descriptor::new(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_REDUCTION_COMP_TYPE, Data::CUDNN_DATA_FLOAT)?
            .with(Name::CUDNN_ATTR_REDUCTION_OPERATOR, by)?
            .finish()?;
        let [x, y] = [x, y].map(|At(i)| &self.parts[i]);
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?
            .naming(Name::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &[x])?
            .naming(Name::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &[y])?
            .naming(Name::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &[&how])?
            .finish()?;
        self.add(operation, how)
    }

    /// y of x, of a second operand where the function has two, and of a condition where it has one.
    pub(super) fn pointwise(
        &mut self,
        mode: Pointwise,
        [x, y]: [At; 2],
        second: Option<At>,
        condition: Option<At>,
    ) -> Result<(), Error> {
        let how = match mode {
            Pointwise::CUDNN_POINTWISE_CMP_GE => Data::CUDNN_DATA_BOOLEAN,
            _ => Data::CUDNN_DATA_FLOAT,
        };
        let how = Descriptor::new(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_POINTWISE_MODE, mode)?
            .with(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, how)?
            .finish()?;
        self.apply(how, [x, y], second, condition)
    }

    /// y is the index along an axis of x.
    pub(super) fn index(&mut self, axis: i64, [x, y]: [At; 2]) -> Result<(), Error> {
        let how = Descriptor::new(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_POINTWISE_MODE, Pointwise::CUDNN_POINTWISE_GEN_INDEX)?
            .with(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, Data::CUDNN_DATA_FLOAT)?
            .with(Name::CUDNN_ATTR_POINTWISE_AXIS, axis)?
            .finish()?;
        self.apply(how, [x, y], None, None)
    }

    /// y is x under other sizes.
    pub(super) fn reshape(&mut self, At(x): At, At(y): At) -> Result<(), Error> {
        let operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)?
            .naming(Name::CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &[&self.parts[x]])?
            .naming(Name::CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &[&self.parts[y]])?
            .finish()?;
        self.operations.push(operation);
        Ok(())
    }

    fn apply(
        &mut self,
        how: Descriptor,
        [At(x), At(y)]: [At; 2],
        second: Option<At>,
        condition: Option<At>,
    ) -> Result<(), Error> {
        let mut operation = Descriptor::new(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?
            .naming(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&how])?
            .naming(Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &[&self.parts[x]])?;
        if let Some(At(b)) = second {
            operation = operation.naming(Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &[&self.parts[b]])?;
        }
        if let Some(At(t)) = condition {
            operation = operation.naming(Name::CUDNN_ATTR_OPERATION_POINTWISE_TDESC, &[&self.parts[t]])?;
        }
        let operation =
            operation.naming(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[&self.parts[y]])?.finish()?;
        self.add(operation, how)
    }
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
        let AttentionDims { batch, tq, tk, heads, kv_heads, d, dv } = self.dims;
        let mut draft = Draft::new();
        let [q, k, v, o, lse, scale, hidden] = OPERANDS;
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
        let number =
            |id| Tensor { id, data: Data::CUDNN_DATA_FLOAT, sizes: [1; 4], strides: [1; 4], at: Where::Host };
        let rows = |id, at| Tensor {
            id,
            data: Data::CUDNN_DATA_FLOAT,
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
        let q = draft.tensor(heads_of(q, tq, heads, d))?;
        let k = draft.tensor(turned(heads_of(k, tk, kv_heads, d)))?;
        let v = draft.tensor(heads_of(v, tk, kv_heads, dv))?;
        let o = draft.tensor(heads_of(o, tq, heads, dv))?;
        let lse = draft.tensor(rows(lse, Where::Device))?;
        let scale = draft.tensor(number(scale))?;
        let mut score = |draft: &mut Draft, data| draft.tensor(scores(next(), data));
        let float = Data::CUDNN_DATA_FLOAT;

        let products = score(&mut draft, float)?;
        draft.matmul(q, k, products)?;
        let mut s = score(&mut draft, float)?;
        draft.pointwise(Pointwise::CUDNN_POINTWISE_MUL, [products, s], Some(scale), None)?;
        if self.causal {
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
        let less = score(&mut draft, float)?;
        let powers = score(&mut draft, float)?;
        let shares = score(&mut draft, data)?;
        let most = draft.tensor(rows(next(), Where::Within))?;
        let sums = draft.tensor(rows(next(), Where::Within))?;
        let logs = draft.tensor(rows(next(), Where::Within))?;
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
