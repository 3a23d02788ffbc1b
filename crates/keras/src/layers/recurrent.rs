//! Recurrent layers over sequences `[B, T, C]`.
//!
//! The usual settings run as one op; others, and masks, step by step.

use plimsoll_formats::keras::Layer;
use plimsoll_graph::{DType, GatherOps, GradientOps, RecurrentOps, Shape, TensorOps, Type};
use plimsoll_nn::{Activation as Nn, Init};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::recurrent_cell::{Cell, Stepped};
use super::{Activation, Table, merge, statistic, trained};
use crate::error::{Error, Result, refuse};
use crate::layer::{Arg, Args, Cx, Made, Masks, Weight};
use crate::layers::noise;
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[
    ("LSTM", |s| Ok(Rnn::read(s, Cell::Lstm)?.made())),
    ("GRU", |s| Ok(Rnn::read(s, Cell::gru(s)?)?.made())),
    ("SimpleRNN", |s| Ok(Rnn::read(s, Cell::Simple)?.made())),
    ("RNN", of_cells),
];

/// A recurrent layer's settings.
#[derive(Clone)]
pub(crate) struct Rnn {
    cell: Cell,
    /// What its weights are under.
    name: String,
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
    /// Of how many samples a state is kept from batch to batch, where one is.
    kept: Option<usize>,
}

/// The setting that says of how many samples a state is kept, and where it is among a layer's variables: `python/plimsoll/_store.py` has both.
const KEPT: &str = "plimsoll_kept";
pub(crate) const KEPT_AT: &str = "states";

fn kept_name(i: usize) -> String {
    format!("state_{i}")
}

/// What a recurrent layer makes of a sequence.
pub(crate) struct Ran {
    /// Every step's output, or the last one's.
    pub output: Tensor,
    /// The state after the last step.
    pub state: Vec<Tensor>,
}

impl Rnn {
    /// A layer that is a cell and a sequence in one.
    pub(crate) fn read(s: &Settings<'_>, cell: Cell) -> Result<Rnn> {
        Rnn::of(s, s, cell, cell.name(), "cell")
    }

    /// A sequence of the settings `s` of a cell of the settings `c`, which is stored at `holder`.
    fn of(s: &Settings<'_>, c: &Settings<'_>, cell: Cell, name: &str, holder: &str) -> Result<Rnn> {
        let kept = match (s.flag("stateful", false)?, s.get(KEPT)) {
            (true, Value::Null) => {
                let why = "a state that outlives the batch is in no file, and is kept of LSTM, GRU, SimpleRNN and RNN of one cell of live models alone";
                return Err(s.wrong("stateful", why));
            }
            (true, _) => Some(s.units(KEPT)?),
            (false, _) => None,
        };
        let units = c.units("units")?;
        let bias = c.flag("use_bias", true)?;
        let gate = if c.is_null("recurrent_activation") {
            Activation::Sigmoid
        } else {
            c.activation("recurrent_activation")?
        };
        let mut weights = vec![
            trained(c, "kernel", "kernel_regularizer")?,
            trained(c, "recurrent_kernel", "recurrent_regularizer")?,
        ];
        if bias {
            weights.push(trained(c, "bias", "bias_regularizer")?);
        }
        for weight in &mut weights {
            weight.holder = holder.into();
            weight.name = format!("{name}/{}", weight.name);
        }
        if kept.is_some() {
            let of_state = |i: usize| Weight { holder: KEPT_AT.into(), ..statistic(&kept_name(i)) };
            weights.extend((0..cell.states()).map(of_state));
        }
        Ok(Rnn {
            kept,
            cell,
            name: name.into(),
            units,
            activation: c.activation("activation")?,
            gate,
            bias,
            backwards: s.flag("go_backwards", false)?,
            gives_all: s.flag("return_sequences", false)?,
            gives_state: s.flag("return_state", false)?,
            zero_masked: s.flag("zero_output_for_mask", false)?,
            dropout: c.rate("dropout")?,
            recurrent_dropout: c.rate("recurrent_dropout")?,
            init: [c.init("kernel_initializer", 64, units), c.init("recurrent_initializer", units, units)],
            weights,
        })
    }

    /// An `RNN` of one cell, or of several that are stacked: each is a sequence of the outputs of the one before.
    pub(crate) fn of_cells(s: &Settings<'_>) -> Result<Vec<Rnn>> {
        let wrong = |why: &str| s.wrong("cell", why);
        let read = |value: &Value| {
            Layer::from_json(value).map_err(|e| Error::config(s.place, format!("its cell: {e}")))
        };
        let cell = read(s.get("cell"))?;
        let cells: Vec<Layer> = match cell.class_name.as_str() {
            "StackedRNNCells" => match cell.config.get("cells") {
                Some(Value::Array(list)) if !list.is_empty() && list.len() <= 64 => {
                    list.iter().map(read).collect::<Result<_>>()?
                }
                _ => return Err(wrong("it has no cells")),
            },
            _ => vec![cell.clone()],
        };
        let is_stacked = cell.class_name == "StackedRNNCells";
        let mut found = Vec::new();
        for (i, own) in cells.iter().enumerate() {
            let place = format!("{}/{}", s.place, own.name);
            super::check_own(own, &place)?;
            let c = Settings::new(&place, &own.class_name, &own.config);
            let kind = match own.class_name.as_str() {
                "LSTMCell" => Cell::Lstm,
                "GRUCell" => Cell::gru(&c)?,
                "SimpleRNNCell" => Cell::Simple,
                _ => return Err(c.unsupported("which is not known here as a cell")),
            };
            // Keras files cells of a list by their class, with numbers from the second of a class on.
            let before = cells[..i].iter().filter(|cell| cell.class_name == own.class_name).count();
            let (name, holder) = match (is_stacked, before) {
                (false, _) => (own.name.clone(), "cell".to_string()),
                (true, 0) => (format!("{i}_{}", own.name), format!("cell/cells/{}", kind.name())),
                (true, n) => (format!("{i}_{}", own.name), format!("cell/cells/{}_{n}", kind.name())),
            };
            let mut rnn = Rnn::of(s, &c, kind, &name, &holder)?;
            if i > 0 {
                rnn.backwards = false;
            }
            rnn.weights.iter_mut().for_each(|weight| weight.trainable = Some(own.trainable));
            if i + 1 < cells.len() {
                (rnn.gives_all, rnn.gives_state) = (true, false);
            }
            c.finish_layer(&["unit_forget_bias", "implementation"])?;
            found.push(rnn);
        }
        if found.len() > 1 && s.flag("return_state", false)? {
            return Err(s.wrong("return_state", "of stacked cells this is not supported"));
        }
        Ok(found)
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
            let given = initial(args)?;
            let start = if given.is_empty() { self.kept_start(cx, x)? } else { given.clone() };
            // Keras hands a mask only to layers that are called with one tensor: with a state given, all steps run, and the mask goes on to what
            // follows.
            let ran = self.run(cx, x, mask.as_ref().filter(|_| given.is_empty()), &start)?;
            if self.kept.is_some() && !cx.net.is_discovering() {
                let dtype = cx.master_dtype();
                for (i, state) in ran.state.iter().enumerate() {
                    cx.carry(&kept_name(i), state.stop_gradient()?.cast(dtype)?)?;
                }
            }
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

    /// The state that the last batch left; nothing where none is kept.
    fn kept_start(&self, cx: &mut Cx<'_>, x: &Tensor) -> RunResult<Vec<Tensor>> {
        let Some(kept) = self.kept else { return Ok(Vec::new()) };
        let batch = x.shape().first().copied().unwrap_or(0);
        let mut found = Vec::new();
        for i in 0..self.cell.states() {
            let state = cx.state(&kept_name(i), [kept, self.units], Init::Constant(0.0))?;
            found.push(match cx.net.is_discovering() && batch < kept {
                // Shapes are found with fewer samples than there are.
                true => state.narrow(0, 0, batch)?,
                false => state,
            });
        }
        if batch != kept && !cx.net.is_discovering() {
            return Err(refuse(format!(
                "gives {batch} samples to a stateful layer that keeps the state of {kept}; every batch must have {kept}"
            )));
        }
        Ok(found)
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
        let (w, u, b) = cx.scope(&self.name, |cx| {
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

/// A sequence of one cell or of several.
fn of_cells(s: &Settings<'_>) -> Result<Made> {
    let mut layers = Rnn::of_cells(s)?;
    if layers.len() == 1 {
        return Ok(layers.remove(0).made());
    }
    if s.flag("stateful", false)? {
        return Err(s.wrong("stateful", "of stacked cells this is not supported"));
    }
    let weights = layers.iter().flat_map(|layer| layer.weights.iter().cloned()).collect();
    let gives_all = layers.last().is_some_and(|layer| layer.gives_all);
    Ok(Made::with(weights, move |cx, args| {
        let Some(Arg::Tensor(x, mask)) = args.get(0, "sequences") else {
            return Err(refuse("gives no sequence to a recurrent layer"));
        };
        if !initial(args)?.is_empty() {
            return Err(refuse("gives stacked cells a state to start with, which is not supported"));
        }
        let mut x = x.clone();
        // What is turned round stays so from the first on.
        let turned = match (layers[0].backwards, mask) {
            (true, Some(mask)) => Some(reversed(mask)?),
            (_, mask) => mask.clone(),
        };
        for (i, layer) in layers.iter().enumerate() {
            x = layer.run(cx, &x, if i == 0 { mask.as_ref() } else { turned.as_ref() }, &[])?.output;
        }
        cx.pass.mask = if gives_all { mask.clone() } else { None };
        Ok(vec![x])
    })
    .masks(Masks::Read)
    .kwargs(&["initial_state"]))
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
