//! Recurrent layers over sequences `[B, T, C]`, with PyTorch's parameters: gates beside each other, two biases.

use plimsoll_graph::{DType, GatherOps, RecurrentOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::padding::{last_filled, reversed_filled};
use crate::error::refuse;
use crate::{Init, LayerKind, Net};

/// The shape of a recurrent layer.
///
/// ```
/// use plimsoll_nn::Recurrent;
/// let reader = Recurrent::last(128).bidirectional();
/// assert!(reader.is_bidirectional && !reader.gives_all);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrent {
    /// Units of each direction.
    pub units: usize,
    /// Whether every step's output is given, `[B, T, units]`, or the last one's alone, `[B, units]`.
    pub gives_all: bool,
    /// Whether a second layer reads the sequence from its end; outputs stand beside each other.
    pub is_bidirectional: bool,
}

impl Recurrent {
    /// Gives every step's output.
    pub fn all(units: usize) -> Recurrent {
        Recurrent { units, gives_all: true, is_bidirectional: false }
    }

    /// Gives the last step's output (of the backward direction: the output at the first).
    pub fn last(units: usize) -> Recurrent {
        Recurrent { gives_all: false, ..Recurrent::all(units) }
    }

    /// In both directions.
    pub fn bidirectional(mut self) -> Recurrent {
        self.is_bidirectional = true;
        self
    }
}

impl Net {
    /// A long short-term memory, gates i, f, g, o. Parameters of each direction: `input_weight` `[C, 4 · units]`,
    /// `hidden_weight`, `input_bias`, `hidden_bias`; of the second in the scope `backward`.
    #[track_caller]
    pub fn lstm(&mut self, name: &str, x: &Tensor, layer: Recurrent) -> Result<Tensor> {
        let read = self.read(x);
        let y = self.recurrent(name, x, layer, |net, x| {
            let [w, u, input_bias, hidden_bias] = net.gates(x, 4, layer.units)?;
            // Added as f32 and rounded once.
            let bias = input_bias.add(&hidden_bias)?.cast(x.dtype())?;
            let zeros = zeros(x, layer.units)?;
            let (all, last, _) = x.lstm(&w, &u, &bias, &zeros, &zeros)?;
            Ok((all, last))
        });
        self.note(name, LayerKind::Lstm(layer), &read.iter().collect::<Vec<_>>(), y)
    }

    /// A gated recurrent unit, gates r, z, n. Parameters as those of [`Net::lstm`], with three gates.
    #[track_caller]
    pub fn gru(&mut self, name: &str, x: &Tensor, layer: Recurrent) -> Result<Tensor> {
        let read = self.read(x);
        let y = self.recurrent(name, x, layer, |net, x| {
            let [w, u, input_bias, hidden_bias] = net.gates(x, 3, layer.units)?;
            let (input_bias, hidden_bias) = (input_bias.cast(x.dtype())?, hidden_bias.cast(x.dtype())?);
            x.gru(&w, &u, &input_bias, &hidden_bias, &zeros(x, layer.units)?)
        });
        self.note(name, LayerKind::Gru(layer), &read.iter().collect::<Vec<_>>(), y)
    }

    #[track_caller]
    fn recurrent(
        &mut self,
        name: &str,
        x: &Tensor,
        layer: Recurrent,
        cell: impl Fn(&mut Net, &Tensor) -> Result<(Tensor, Tensor)>,
    ) -> Result<Tensor> {
        if x.shape().rank() != 3 {
            return Err(refuse(format!("gives {} to a layer that takes sequences [B, T, C]", x.ty())));
        }
        let (x, filled) = (self.compute_in(name, x)?, self.filled_of(x)?);
        let y = self.layer(name, |net| {
            let (all, last) = cell(net, &x)?;
            let forward = pick(layer, filled.as_ref(), all, last)?;
            if !layer.is_bidirectional {
                return Ok(forward);
            }
            let backward = net.scope("backward", |net| {
                let (all, last) = cell(net, &reversed(&x, filled.as_ref())?)?;
                match layer.gives_all {
                    true => reversed(&all, filled.as_ref()),
                    false => pick(layer, filled.as_ref(), all, last),
                }
            })?;
            Tensor::concat(&[&forward, &backward], -1)
        })?;
        if !layer.gives_all {
            // One output a sequence: there is no padding any more.
            self.replace_filled(None);
        }
        Ok(y)
    }

    /// Input and hidden weights as ops read them, input and hidden biases as f32. Two biases, as PyTorch has them, so
    /// that a model counts and trains as it does there.
    fn gates(&mut self, x: &Tensor, gates: usize, units: usize) -> Result<[Tensor; 4]> {
        let (width, init) = (x.shape()[2], Init::fan_in(units));
        Ok([
            self.param("input_weight", [width, gates * units], init)?,
            self.param("hidden_weight", [units, gates * units], init)?,
            self.master("input_bias", [gates * units], init)?,
            self.master("hidden_bias", [gates * units], init)?,
        ])
    }
}

fn zeros(x: &Tensor, units: usize) -> Result<Tensor> {
    x.full_like(Type::new(x.dtype(), [x.shape()[0], units]), 0.0)
}

/// All outputs, or the one at the last place, which is the last filled one where there is padding behind it.
fn pick(layer: Recurrent, filled: Option<&Tensor>, all: Tensor, last: Tensor) -> Result<Tensor> {
    match filled {
        _ if layer.gives_all => Ok(all),
        Some(filled) => last_filled(&all, filled),
        None => Ok(last),
    }
}

/// A sequence from its last step to its first; what is filled of it, where there is padding.
fn reversed(x: &Tensor, filled: Option<&Tensor>) -> Result<Tensor> {
    if let Some(filled) = filled {
        return reversed_filled(x, filled);
    }
    let steps = x.shape()[1];
    let order = x.iota_like(Type::new(DType::I64, [steps]), 0)?.rsub_scalar(steps as f64 - 1.0)?;
    x.gather(&order, 1)
}
