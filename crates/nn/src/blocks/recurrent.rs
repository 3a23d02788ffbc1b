//! Recurrent layers of several levels and both directions, over sequences `[B, T, I]`.

use plimsoll_graph::{RecurrentOps, ReorderOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

/// Which cell runs along a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Gates in the order i, f, g, o.
    Lstm,
    /// Gates in the order r, z, n.
    Gru,
    /// h' = tanh(x w + h u + b)
    Tanh,
    /// h' = max(x w + h u + b, 0)
    Relu,
}

/// The weights of one level in one direction: w `[I, G · H]`, u `[H, G · H]`, and both biases `[G · H]`.
pub struct Weights {
    /// From inputs to gates.
    pub w: Tensor,
    /// From the last state to gates.
    pub u: Tensor,
    /// Added to the inputs' part.
    pub bias: Option<Tensor>,
    /// Added to the state's part.
    pub bias_u: Option<Tensor>,
}

/// One level in one direction: every h `[B, T, H]`, the last h and, of an LSTM, the last c.
#[track_caller]
pub fn level(
    cell: Cell,
    x: &Tensor,
    weights: &Weights,
    h0: &Tensor,
    c0: Option<&Tensor>,
    backwards: bool,
) -> Result<(Tensor, Tensor, Option<Tensor>)> {
    let x = if backwards { x.flip(&[1])? } else { x.clone() };
    let width = weights.w.shape().last().copied().unwrap_or(0);
    let zeros = || x.full_like(Type::new(x.dtype(), [width]), 0.0);
    let part = |bias: &Option<Tensor>| bias.clone().map_or_else(zeros, Ok);
    let (y, h, c) = match cell {
        Cell::Lstm => {
            let bias = match (&weights.bias, &weights.bias_u) {
                (Some(a), Some(b)) => a.add(b)?,
                (one, other) => part(if one.is_some() { one } else { other })?,
            };
            let first = |given: Option<&Tensor>| given.cloned().map_or_else(|| h0.mul_scalar(0.0), Ok);
            let (y, h, c) = x.lstm(&weights.w, &weights.u, &bias, h0, &first(c0)?)?;
            (y, h, Some(c))
        }
        Cell::Gru => {
            let (y, h) = x.gru(&weights.w, &weights.u, &part(&weights.bias)?, &part(&weights.bias_u)?, h0)?;
            (y, h, None)
        }
        Cell::Tanh | Cell::Relu => {
            let (y, h) = plain(cell, &x, weights, h0)?;
            (y, h, None)
        }
    };
    Ok((if backwards { y.flip(&[1])? } else { y }, h, c))
}

/// A cell without gates, step by step.
fn plain(cell: Cell, x: &Tensor, weights: &Weights, h0: &Tensor) -> Result<(Tensor, Tensor)> {
    let all = x.matmul_with(&weights.w, weights.bias.as_ref(), false, false)?;
    let &[b, steps, width] = &all.shape()[..] else {
        return Err(crate::error::refuse(format!("runs along {}, which is no sequence", x.shape())));
    };
    let (mut h, mut every) = (h0.clone(), Vec::with_capacity(steps));
    for t in 0..steps {
        let own = all.narrow(1, t, t + 1)?.reshape([b, width])?;
        let sum = own.add(&h.matmul_with(&weights.u, weights.bias_u.as_ref(), false, false)?)?;
        h = if cell == Cell::Relu { sum.relu()? } else { sum.tanh()? };
        every.push(h.reshape([b, 1, width])?);
    }
    Ok((Tensor::concat(&every.iter().collect::<Vec<_>>(), 1)?, h))
}
