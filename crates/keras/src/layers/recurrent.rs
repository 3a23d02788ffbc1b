//! Recurrent layers over sequences `[B, T, C]`.
//!
//! The usual settings run as one op; others, and masks, step by step.

use plimsoll_graph::{DType, GatherOps, RecurrentOps, Shape, TensorOps, Type};
use plimsoll_nn::{Activation as Nn, Init};
use plimsoll_run::{Result as RunResult, Tensor};

use super::recurrent_cell::{Cell, Stepped};
use super::{Activation, Table, merge, trained};
use crate::error::{Result, refuse};
use crate::layer::{Arg, Args, Cx, Made, Masks, Weight};
use crate::layers::noise;
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[
    ("LSTM", |s| Ok(Rnn::read(s, Cell::Lstm)?.made())),
    ("GRU", |s| Ok(Rnn::read(s, Cell::gru(s)?)?.made())),
    ("SimpleRNN", |s| Ok(Rnn::read(s, Cell::Simple)?.made())),
];

/// A recurrent layer's settings.
#[derive(Clone)]
pub(crate) struct Rnn {
    cell: Cell,
    units: usize,
    activation: Activation,
    gate: Activation,
    bias: bool,
    backwards: bool,
    pub gives_all: bool,
    pub gives_state: bool,
    zero_masked: bool,
    dropout: f64,
    recurrent_dropout: f64,
    init: [Init; 2],
    weights: Vec<Weight>,
}

/// What a recurrent layer makes of a sequence.
pub(crate) struct Ran {
    /// Every step's output, or the last one's.
    pub output: Tensor,
    /// The state after the last step.
    pub state: Vec<Tensor>,
}

impl Rnn {
    pub(crate) fn read(s: &Settings<'_>, cell: Cell) -> Result<Rnn> {
        if s.flag("stateful", false)? {
            return Err(s.wrong("stateful", "a state that outlives the batch is not supported"));
        }
        let units = s.units("units")?;
        let bias = s.flag("use_bias", true)?;
        let gate = if s.is_null("recurrent_activation") {
            Activation::Sigmoid
        } else {
            s.activation("recurrent_activation")?
        };
        let mut weights = vec![
            trained(s, "kernel", "kernel_regularizer")?,
            trained(s, "recurrent_kernel", "recurrent_regularizer")?,
        ];
        if bias {
            weights.push(trained(s, "bias", "bias_regularizer")?);
        }
        for weight in &mut weights {
            weight.holder = "cell".into();
            weight.name = format!("{}/{}", cell.name(), weight.name);
        }
        Ok(Rnn {
            cell,
            units,
            activation: s.activation("activation")?,
            gate,
            bias,
            backwards: s.flag("go_backwards", false)?,
            gives_all: s.flag("return_sequences", false)?,
            gives_state: s.flag("return_state", false)?,
            zero_masked: s.flag("zero_output_for_mask", false)?,
            dropout: s.rate("dropout")?,
            recurrent_dropout: s.rate("recurrent_dropout")?,
            init: [s.init("kernel_initializer", 64, units), s.init("recurrent_initializer", units, units)],
            weights,
        })
    }

    /// The same layer in the other direction.
    pub(crate) fn turned(&self) -> Rnn {
        Rnn { backwards: !self.backwards, ..self.clone() }
    }

    pub(crate) fn weights(&self) -> &[Weight] {
        &self.weights
    }

    fn made(self) -> Made {
        Made::with(self.weights.clone(), move |cx, args| {
            let x = args.get(0, "sequences");
            let Some(Arg::Tensor(x, mask)) = x else {
                return Err(refuse("gives no sequence to a recurrent layer"));
            };
            let start = initial(args)?;
            let ran = self.run(cx, x, mask.as_ref(), &start)?;
            cx.pass.mask = if self.gives_all { mask.clone() } else { None };
            let mut outputs = vec![ran.output];
            if self.gives_state {
                outputs.extend(ran.state);
            }
            Ok(outputs)
        })
        .masks(Masks::Read)
        .kwargs(&["initial_state"])
    }

    /// The layer over a sequence, from a state (none: zeros).
    pub(crate) fn run(
        &self,
        cx: &mut Cx<'_>,
        x: &Tensor,
        mask: Option<&Tensor>,
        start: &[Tensor],
    ) -> RunResult<Ran> {
        let [batch, steps, width] = x.shape()[..] else {
            return Err(refuse(format!("gives {} to a layer that takes sequences [B, T, C]", x.ty())));
        };
        let (gates, units) = (self.cell.gates(), self.units);
        let columns = gates.saturating_mul(units);
        let name = self.cell.name();
        let (w, u, b) = cx.scope(name, |cx| {
            let bias: Shape = self.cell.bias_shape(columns);
            Ok((
                cx.param("kernel", [width, columns], self.init[0])?,
                cx.param("recurrent_kernel", [units, columns], self.init[1])?,
                cx.optional(self.bias, "bias", bias, Init::Constant(0.0))?,
            ))
        })?;
        let b = match b {
            Some(b) => b,
            None => x.full_like(Type::new(x.dtype(), self.cell.bias_shape(columns)), 0.0)?,
        };
        let (x, mask) = match self.backwards {
            true => (reversed(x)?, mask.map(reversed).transpose()?),
            false => (x.clone(), mask.cloned()),
        };
        // One mask for all steps.
        let across: Shape = [batch, 1, width].into_iter().collect();
        let x = noise::drop(cx, &x, self.dropout, Some(across))?;
        let zeros = x.full_like(Type::new(x.dtype(), [batch, units]), 0.0)?;
        let states = self.cell.states();
        let start: Vec<Tensor> = match start.len() {
            0 => vec![zeros.clone(); states],
            n if n == states => start.to_vec(),
            n => return Err(refuse(format!("gives {n} tensors as the state of a layer that has {states}"))),
        };
        let recurrent_dropped = self.recurrent_dropout > 0.0 && cx.is_training();
        let is_usual = self.activation == Activation::Of(Nn::Tanh) && self.gate == Activation::Sigmoid;
        if is_usual
            && mask.is_none()
            && !recurrent_dropped
            && let Some((all, state)) = self.fused(&x, &w, &u, &b, &start)?
        {
            let output = if self.gives_all { all } else { state[0].clone() };
            return Ok(Ran { output, state });
        }
        let hidden_mask = match recurrent_dropped {
            true => {
                let ones = x.full_like(zeros.ty().clone(), 1.0)?;
                Some(noise::drop(cx, &ones, self.recurrent_dropout, None)?)
            }
            false => None,
        };
        let stepped = Stepped {
            cell: self.cell,
            activation: self.activation,
            gate: self.gate,
            mask,
            hidden_mask,
            zero_masked: self.zero_masked,
        };
        let (outputs, state) = stepped.run(&x, [&w, &u, &b], start, steps)?;
        let output = match self.gives_all {
            true => {
                let rows =
                    outputs.iter().map(|y| y.reshape([batch, 1, units])).collect::<RunResult<Vec<_>>>()?;
                merge::concat(&rows.iter().collect::<Vec<_>>(), 1)?
            }
            false => outputs.last().cloned().unwrap_or(zeros),
        };
        Ok(Ran { output, state })
    }

    /// One op for the whole sequence, where there is one: all outputs, and the state at the end.
    fn fused(
        &self,
        x: &Tensor,
        w: &Tensor,
        u: &Tensor,
        b: &Tensor,
        start: &[Tensor],
    ) -> RunResult<Option<(Tensor, Vec<Tensor>)>> {
        let start = start.iter().map(|s| s.cast(x.dtype())).collect::<RunResult<Vec<_>>>()?;
        match (self.cell, &start[..]) {
            (Cell::Lstm, [h, c]) => {
                let (all, h, c) = x.lstm(w, u, b, h, c)?;
                Ok(Some((all, vec![h, c])))
            }
            (Cell::Gru { reset_after: true }, [h]) => {
                // Keras has the gates z, r, h beside each other, the op r, z, h.
                let order = |w: &Tensor| -> RunResult<Tensor> {
                    let parts = w.split(-1, &[self.units; 3])?;
                    Tensor::concat(&[&parts[1], &parts[0], &parts[2]], -1)
                };
                let columns = 3 * self.units;
                let row = |i: usize| b.narrow(0, i, i + 1)?.reshape([columns]);
                let (input, hidden) = (order(&row(0)?)?, order(&row(1)?)?);
                let (all, h) = x.gru(&order(w)?, &order(u)?, &input, &hidden, h)?;
                Ok(Some((all, vec![h])))
            }
            _ => Ok(None),
        }
    }
}

/// The state that a recurrent layer is started with.
pub(crate) fn initial(args: &Args) -> RunResult<Vec<Tensor>> {
    let mut found = Vec::new();
    if let Some(arg) = args.get(1, "initial_state") {
        arg.tensors(&mut found);
    }
    if args.args.len() > 2 {
        return Err(refuse("gives more than a sequence and a state to a recurrent layer"));
    }
    Ok(found.into_iter().cloned().collect())
}

/// A sequence, or its mask, from its last step to its first.
pub(crate) fn reversed(x: &Tensor) -> RunResult<Tensor> {
    let Some(&steps) = x.shape().get(1) else {
        return Err(refuse(format!("reverses {} as a sequence", x.ty())));
    };
    let order = x.iota_like(Type::new(DType::I64, [steps]), 0)?.rsub_scalar(steps as f64 - 1.0)?;
    if x.dtype() == DType::Bool {
        return x.cast(DType::U8)?.gather(&order, 1)?.cast(DType::Bool);
    }
    x.gather(&order, 1)
}
