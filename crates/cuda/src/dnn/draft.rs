//! Turns the steps of an attention into operations of cuDNN, one after the other, over tensors that are described as they are named.

use cudarc::cudnn::sys;
use plimsoll_graph::ops::AttentionDims;
use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendDescriptorType_t as Kind;
use sys::cudnnDataType_t as Data;
use sys::cudnnPointwiseMode_t as Pointwise;
use sys::cudnnReduceTensorOp_t as Reduce;

use super::attention::Heads;
use super::case::{Tensor, Where};
use super::descriptor::Descriptor;
use super::engine::Graph;
use crate::error::Error;

/// Numbers of what exists within a graph alone begin behind this one.
const WITHIN: i64 = 100;

/// A graph of an attention while it is written.
pub(super) struct Draft {
    heads: Heads,
    /// The type of what is stored.
    pub(super) data: Data,
    within: i64,
    operations: Vec<Descriptor>,
    parts: Vec<Descriptor>,
}

/// The place of a tensor in a draft.
#[derive(Clone, Copy)]
pub(super) struct At(usize);

impl Draft {
    pub(super) fn new(heads: &Heads, data: Data) -> Draft {
        Draft { heads: *heads, data, within: WITHIN, operations: Vec::new(), parts: Vec::new() }
    }

    pub(super) fn finish(self, handle: sys::cudnnHandle_t) -> Result<Graph, Error> {
        Graph::new(handle, self.operations, self.parts)
    }

    /// A number for something that exists within the graph alone.
    pub(super) fn next(&mut self) -> i64 {
        self.within += 1;
        self.within
    }

    /// So many heads of a sequence: positions before heads in memory; cuDNN names heads first.
    pub(super) fn sequence(&self, id: i64, length: usize, heads: usize, width: usize) -> Tensor {
        Tensor {
            id,
            data: self.data,
            sizes: [self.heads.dims.batch, heads, length, width],
            strides: [length * heads * width, width, heads * width, 1],
            at: Where::Device,
        }
    }

    /// A number that a call brings along from the host.
    pub(super) fn number(&mut self, id: i64) -> Result<At, Error> {
        let data = Data::CUDNN_DATA_FLOAT;
        self.tensor(Tensor { id, data, sizes: [1; 4], strides: [1; 4], at: Where::Host })
    }

    /// A number for each query, on the card or within the graph.
    pub(super) fn rows(&mut self, id: i64, at: Where) -> Result<At, Error> {
        let AttentionDims { batch, heads, tq, .. } = self.heads.dims;
        let (sizes, strides) = ([batch, heads, tq, 1], [heads * tq, tq, 1, 1]);
        self.tensor(Tensor { id, data: Data::CUDNN_DATA_FLOAT, sizes, strides, at })
    }

    /// A matrix of queries by keys within the graph.
    pub(super) fn score(&mut self, data: Data) -> Result<At, Error> {
        let AttentionDims { batch, heads, tq, tk, .. } = self.heads.dims;
        let (sizes, strides) = ([batch, heads, tq, tk], [heads * tq * tk, tq * tk, tk, 1]);
        let id = self.next();
        self.tensor(Tensor { id, data, sizes, strides, at: Where::Within })
    }

    /// Scores with another number for keys behind their query, where attention is causal.
    pub(super) fn hidden(&mut self, s: At, number: i64) -> Result<At, Error> {
        if !self.heads.causal {
            return Ok(s);
        }
        let hidden = self.number(number)?;
        let row = self.score(Data::CUDNN_DATA_INT32)?;
        self.index(2, [s, row])?;
        let column = self.score(Data::CUDNN_DATA_INT32)?;
        self.index(3, [s, column])?;
        let sees = self.score(Data::CUDNN_DATA_BOOLEAN)?;
        self.pointwise(Pointwise::CUDNN_POINTWISE_CMP_GE, [row, sees], Some(column), None)?;
        let seen = self.score(Data::CUDNN_DATA_FLOAT)?;
        self.pointwise(Pointwise::CUDNN_POINTWISE_BINARY_SELECT, [s, seen], Some(hidden), Some(sees))?;
        Ok(seen)
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

/// A tensor with its last two axes the other way round.
pub(super) fn turned(t: Tensor) -> Tensor {
    let ([a, b, c, e], [s, u, w, x]) = (t.sizes, t.strides);
    Tensor { sizes: [a, b, e, c], strides: [s, u, x, w], ..t }
}
