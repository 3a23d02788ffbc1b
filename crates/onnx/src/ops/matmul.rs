//! Products of matrices.

use plimsoll_graph::{EinsumOps, Shape, TensorOps};
use plimsoll_nn::blocks::einsum::without_dots;
use plimsoll_run::{Result, Tensor};

use super::Table;
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("MatMul", |c| Ok(vec![product(&c.plain(0)?, &c.plain(1)?)?.into()])),
    ("Gemm", gemm),
    ("Einsum", |c| {
        let equation = c.text("equation", "")?;
        let operands = (0..c.n_inputs()).map(|i| c.plain(i)).collect::<Result<Vec<Tensor>>>()?;
        let ranks: Vec<usize> = operands.iter().map(|x| x.shape().rank()).collect();
        let equation = without_dots(equation, &ranks)?;
        Ok(vec![Tensor::einsum(&equation, &operands.iter().collect::<Vec<_>>())?.into()])
    }),
];

/// NumPy's matmul: rows and columns for what has one axis, and batches that broadcast.
pub(super) fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (ra, rb) = (a.shape().rank(), b.shape().rank());
    if ra == 0 || rb == 0 {
        return Err(refuse("multiplies a matrix by a number"));
    }
    if ra == 1 || rb == 1 {
        let wide = |x: &Tensor, shape: [usize; 2]| {
            if x.shape().rank() == 1 { x.reshape(shape) } else { Ok(x.clone()) }
        };
        let (n, m) = (a.shape()[0], b.shape()[0]);
        let y = product(&wide(a, [1, n])?, &wide(b, [m, 1])?)?;
        let mut shape = y.shape().to_vec();
        if rb == 1 {
            shape.pop();
        }
        if ra == 1 {
            shape.remove(shape.len() - if rb == 1 { 1 } else { 2 });
        }
        return y.reshape(shape);
    }
    // One matrix for all: the engine shares it. Equal batches: it goes through them together.
    let (batch_a, batch_b) = (Shape::from(&a.shape()[..ra - 2]), Shape::from(&b.shape()[..rb - 2]));
    if rb == 2 && ra > 2 {
        // Rows of all batches are rows of one matrix.
        let (k, rows) = (a.shape()[ra - 1], a.shape()[..ra - 1].iter().product::<usize>());
        let y = a.reshape([rows, k])?.matmul(b)?;
        let shape: Shape = a.shape()[..ra - 1].iter().copied().chain([b.shape()[1]]).collect();
        return y.reshape(shape);
    }
    if batch_a == batch_b {
        return a.matmul(b);
    }
    let batch = batch_a.broadcast(&batch_b);
    let batch = batch.ok_or_else(|| refuse(format!("multiplies {} by {}", a.shape(), b.shape())))?;
    let whole = |x: &Tensor| {
        let rank = x.shape().rank();
        let shape: Shape = batch.iter().chain(&x.shape()[rank - 2..]).copied().collect();
        x.broadcast(shape)
    };
    whole(a)?.matmul(&whole(b)?)
}

/// α op(a) op(b) + β c.
fn gemm(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let (alpha, beta) = (c.float("alpha", 1.0)?, c.float("beta", 1.0)?);
    let (ta, tb) = (c.flag("transA", false)?, c.flag("transB", false)?);
    let (a, b) = (c.plain(0)?, c.plain(1)?);
    if a.shape().rank() != 2 || b.shape().rank() != 2 {
        return Err(refuse(format!("multiplies {} by {}", a.shape(), b.shape())));
    }
    if !a.dtype().is_float() {
        return Err(refuse(format!("multiplies matrices of {} elements", a.dtype())));
    }
    let added = c.maybe_plain(2)?;
    let columns = if tb { b.shape()[0] } else { b.shape()[1] };
    if let (Some(bias), 1.0, 1.0) = (&added, alpha, beta)
        && *bias.shape() == [columns].into()
    {
        return Ok(vec![a.matmul_with(&b, Some(bias), ta, tb)?.into()]);
    }
    let mut y = a.matmul_with(&b, None, ta, tb)?;
    if alpha != 1.0 {
        y = y.mul_scalar(alpha)?;
    }
    if let Some(added) = added {
        let added = if beta == 1.0 { added } else { added.mul_scalar(beta)? };
        let sum = y.add(&added)?;
        if sum.shape() != y.shape() {
            return Err(refuse(format!("adds {} to {}", added.shape(), y.shape())));
        }
        y = sum;
    }
    Ok(vec![y.into()])
}
