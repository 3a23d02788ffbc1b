//! One step of a recurrent layer, and a sequence of steps.

use plimsoll_graph::{DType, Shape, TensorOps};
use plimsoll_run::{Result as RunResult, Tensor};

use super::Activation;
use crate::error::{Result, refuse};
use crate::settings::Settings;

/// The longest sequence that is run step by step: each step is a dozen ops.
const MOST_STEPS: usize = 4096;

/// Which cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Simple,
    Lstm,
    /// Whether the reset gate acts after the product with the recurrent weights, or before.
    Gru {
        reset_after: bool,
    },
}

impl Cell {
    pub(crate) fn gru(s: &Settings<'_>) -> Result<Cell> {
        // Keras 2 files before 2.0 had it false, and all files since name it.
        Ok(Cell::Gru { reset_after: s.flag("reset_after", true)? })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Cell::Simple => "simple_rnn_cell",
            Cell::Lstm => "lstm_cell",
            Cell::Gru { .. } => "gru_cell",
        }
    }

    pub(crate) fn gates(self) -> usize {
        match self {
            Cell::Simple => 1,
            Cell::Lstm => 4,
            Cell::Gru { .. } => 3,
        }
    }

    pub(crate) fn states(self) -> usize {
        if self == Cell::Lstm { 2 } else { 1 }
    }

    pub(crate) fn bias_shape(self, columns: usize) -> Shape {
        match self {
            Cell::Gru { reset_after: true } => [2, columns].into_iter().collect(),
            _ => [columns].into_iter().collect(),
        }
    }
}

/// A cell with what surrounds it, run one step after the other.
pub(crate) struct Stepped {
    pub cell: Cell,
    /// Which steps are shown, `[B, T]`.
    pub mask: Option<Tensor>,
    pub activation: Activation,
    pub gate: Activation,
    /// Whether a hidden step gives zeros; else it repeats the output before it.
    pub zero_masked: bool,
    /// What the hidden state is multiplied by before every step.
    pub hidden_mask: Option<Tensor>,
}

impl Stepped {
    /// The outputs of all steps, and the state after the last.
    pub(crate) fn run(
        &self,
        x: &Tensor,
        [w, u, b]: [&Tensor; 3],
        mut state: Vec<Tensor>,
        steps: usize,
    ) -> RunResult<(Vec<Tensor>, Vec<Tensor>)> {
        if steps > MOST_STEPS {
            return Err(refuse(format!(
                "runs {steps} steps one by one, more than {MOST_STEPS}; masks and unusual activations need that"
            )));
        }
        let (batch, columns) = (x.shape()[0], w.shape()[1]);
        // The inputs' part of all gates and steps is one product.
        let input_bias = match self.cell {
            Cell::Gru { reset_after: true } => b.narrow(0, 0, 1)?.reshape([columns])?,
            _ => b.clone(),
        };
        let inputs = x.matmul_with(w, Some(&input_bias), false, false)?;
        let mut outputs: Vec<Tensor> = Vec::with_capacity(steps);
        for t in 0..steps {
            let input = inputs.narrow(1, t, t + 1)?.reshape([batch, columns])?;
            let mut new = self.step(&input, u, b, &state)?;
            let mut output = new[0].clone();
            if let Some(mask) = &self.mask {
                let units = output.shape()[1];
                let shown = mask
                    .cast(DType::U8)?
                    .narrow(1, t, t + 1)?
                    .reshape([batch, 1])?
                    .broadcast([batch, units])?;
                let shown = shown.cast(DType::Bool)?;
                let zeros = output.full_like(output.ty().clone(), 0.0)?;
                let before = if self.zero_masked { None } else { outputs.last() };
                output = shown.select(&output, before.unwrap_or(&zeros))?;
                for (new, old) in new.iter_mut().zip(&state) {
                    *new = shown.select(new, old)?;
                }
            }
            outputs.push(output);
            state = new;
        }
        Ok((outputs, state))
    }

    /// The state after one step; the first of it is the output.
    fn step(&self, input: &Tensor, u: &Tensor, b: &Tensor, state: &[Tensor]) -> RunResult<Vec<Tensor>> {
        let h = match &self.hidden_mask {
            Some(mask) => state[0].mul(mask)?,
            None => state[0].clone(),
        };
        let units = h.shape()[1];
        match self.cell {
            Cell::Simple => Ok(vec![self.activation.apply(&input.add(&h.matmul(u)?)?)?]),
            Cell::Lstm => {
                let z = input.add(&h.matmul(u)?)?.split(-1, &[units; 4])?;
                let (i, f) = (self.gate.apply(&z[0])?, self.gate.apply(&z[1])?);
                let c = f.mul(&state[1])?.add(&i.mul(&self.activation.apply(&z[2])?)?)?;
                let o = self.gate.apply(&z[3])?;
                Ok(vec![o.mul(&self.activation.apply(&c)?)?, c])
            }
            Cell::Gru { reset_after } => {
                let x = input.split(-1, &[units; 3])?;
                let (z, candidate) = if reset_after {
                    let hidden_bias = b.narrow(0, 1, 2)?.reshape([3 * units])?;
                    let inner = h.matmul_with(u, Some(&hidden_bias), false, false)?.split(-1, &[units; 3])?;
                    let z = self.gate.apply(&x[0].add(&inner[0])?)?;
                    let r = self.gate.apply(&x[1].add(&inner[1])?)?;
                    (z, x[2].add(&r.mul(&inner[2])?)?)
                } else {
                    let parts = u.split(-1, &[units; 3])?;
                    let z = self.gate.apply(&x[0].add(&h.matmul(&parts[0])?)?)?;
                    let r = self.gate.apply(&x[1].add(&h.matmul(&parts[1])?)?)?;
                    (z, x[2].add(&r.mul(&h)?.matmul(&parts[2])?)?)
                };
                let new = self.activation.apply(&candidate)?;
                // z h + (1 - z) new
                Ok(vec![new.add(&z.mul(&state[0].sub(&new)?)?)?])
            }
        }
    }
}
