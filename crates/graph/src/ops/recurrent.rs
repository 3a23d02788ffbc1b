//! LSTM and GRU over a sequence, forward and backward, each a single op.
//!
//! Layout: B samples, T steps, I input features, H units. Sequences are `[B, T, features]`; weights stand so that rows
//! multiply them from the left, with the gates beside each other: w `[I, gates · H]`, u `[H, gates · H]`. What is saved
//! for the gradient is time-major, `[T, B, …]`, because the backward pass takes it step by step.

mod gru;
mod lstm;

pub use gru::{Gru, GruGrad};
pub use lstm::{Lstm, LstmGrad};

use crate::error::Result;
use crate::example::{Dice, Domain};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Cost, Op, traffic};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Shape, Site, Type, ops};

/// The sizes of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentDims {
    /// Samples.
    pub batch: usize,
    /// Steps.
    pub steps: usize,
    /// Input features.
    pub inputs: usize,
    /// Units.
    pub units: usize,
}

impl RecurrentDims {
    /// The sizes that a sequence and the recurrent weights of `gates` gates say, or what does not fit.
    pub fn new(x: &Type, u: &Type, gates: usize) -> Result<RecurrentDims, String> {
        ops::float(x)?;
        let (&[batch, steps, inputs], &[units, columns]) = (&*x.shape, &*u.shape) else {
            return Err(format!(
                "it takes a sequence [batch, steps, features] and a matrix, not {x} and {u}"
            ));
        };
        if columns != gates * units {
            return Err(format!("recurrent weights of {units} units and {gates} gates are not {}", u.shape));
        }
        Ok(RecurrentDims { batch, steps, inputs, units })
    }

    fn state(&self) -> Shape {
        [self.batch, self.units].into()
    }

    fn sequence(&self) -> Shape {
        [self.batch, self.steps, self.units].into()
    }

    /// A saved form of `n` values a unit.
    fn saved(&self, n: usize) -> Shape {
        [self.steps, self.batch, n * self.units].into()
    }

    /// The shapes of x, w and u for so many gates.
    fn operands(&self, gates: usize) -> [Shape; 3] {
        let columns = gates * self.units;
        [
            [self.batch, self.steps, self.inputs].into(),
            [self.inputs, columns].into(),
            [self.units, columns].into(),
        ]
    }

    /// The sizes of x and u, and whether both weights have them.
    fn checked(x: &Type, w: &Type, u: &Type, gates: usize) -> Result<RecurrentDims, String> {
        let d = RecurrentDims::new(x, u, gates)?;
        let [_, input, recurrent] = d.operands(gates);
        d.expect("input weights", w, x, input)?;
        d.expect("recurrent weights", u, x, recurrent)?;
        Ok(d)
    }

    /// Checks that a value has the type of x and a shape.
    fn expect(&self, what: &str, ty: &Type, x: &Type, shape: impl Into<Shape>) -> Result<(), String> {
        let wanted = x.with_shape(shape);
        if *ty == wanted {
            return Ok(());
        }
        Err(format!("its {what} must be {wanted} for a sequence {x} and {} units, not {ty}", self.units))
    }

    /// The products of one pass over all steps.
    fn flops(&self, gates: usize) -> f64 {
        2.0 * (self.batch * self.steps * gates * self.units) as f64 * (self.inputs + self.units) as f64
    }
}

/// The cost of `passes` passes over all steps.
fn cost(inputs: &[&Type], outputs: &[&Type], gates: usize, passes: f64) -> Cost {
    let flops = RecurrentDims::new(inputs[0], inputs[2], gates).map_or(0.0, |d| passes * d.flops(gates));
    Cost { flops, bytes: traffic(inputs, outputs) }
}

/// The gradients of an op's inputs by its gradient op, which reads the inputs `kept` and `others`.
fn gradients(
    at: &Backward<'_>,
    op: impl Into<Op>,
    kept: &[usize],
    others: Vec<Sym>,
) -> Result<Vec<Option<Sym>>> {
    let mut inputs = kept.iter().map(|&i| at.input(i)).collect::<Result<Vec<Sym>>>()?;
    inputs.extend(others);
    let grads = at.push(op, &inputs.iter().collect::<Vec<_>>())?;
    Ok(grads.into_iter().map(Some).collect())
}

fn array_dims(x: &Array, u: &Array) -> RecurrentDims {
    RecurrentDims { batch: x.shape[0], steps: x.shape[1], inputs: x.shape[2], units: u.shape[0] }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn zeros(ty: &Type) -> Array {
    Array::new(ty.shape.clone(), vec![0.0; ty.elements()])
}

/// Σ rows[r] · matrix[r, column].
fn dot(row: &[f64], matrix: &Array, column: usize) -> f64 {
    let width = matrix.shape[1];
    row.iter().enumerate().map(|(r, x)| x * matrix.data[r * width + column]).sum()
}

/// A row of an array whose last axis is taken whole.
fn row<'a>(array: &'a Array, index: &[usize]) -> &'a [f64] {
    let n = array.shape[array.shape.rank() - 1];
    let place = index.iter().zip(array.shape.iter()).fold(0, |o, (&i, &n)| o * n + i) * n;
    &array.data[place..place + n]
}

/// `out += rowᵀ · grad`: what one row adds to the gradient of a matrix.
fn add_outer(out: &mut Array, row: &[f64], grad: &[f64]) {
    for (r, x) in row.iter().enumerate() {
        out.data[r * grad.len()..(r + 1) * grad.len()].iter_mut().zip(grad).for_each(|(o, g)| *o += x * g);
    }
}

/// `grad · matrixᵀ`: the gradient of a row that multiplied a matrix.
fn times_transposed(grad: &[f64], matrix: &Array) -> Vec<f64> {
    matrix.data.chunks(grad.len().max(1)).map(|m| m.iter().zip(grad).map(|(a, b)| a * b).sum()).collect()
}

fn add_to(out: &mut [f64], values: &[f64]) {
    out.iter_mut().zip(values).for_each(|(o, v)| *o += v);
}

fn normal(shape: Shape) -> (Type, Domain) {
    (Type::new(DType::F32, shape), Domain::Normal)
}

/// The cases of the gradients. Random gates were never squashed, and grow with every step that hands back a sum of
/// many: where there are many units there is one step, or rounding alone would exceed what tests allow.
fn grad_cases(dice: &mut Dice) -> [RecurrentDims; 3] {
    cases(dice).map(|d| if d.units > 8 { RecurrentDims { steps: 1, ..d } } else { d })
}

/// Sizes below and above one vector, a single step, a single sample.
fn cases(dice: &mut Dice) -> [RecurrentDims; 3] {
    let mut of = |batch, steps, inputs, units: usize| RecurrentDims {
        batch: dice.range(1, batch),
        steps: dice.range(1, steps),
        inputs: dice.range(1, inputs),
        units: dice.range(units / 2, units),
    };
    [of(4, 5, 6, 6), of(12, 3, 20, 40), of(2, 2, 4, 4)]
}

/// Recurrent layers over a sequence `[B, T, I]`.
///
/// ```
/// use plimsoll_graph::{DType, RecurrentOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let new = |name: &str, shape: &[usize]| trace.input(name, Type::new(DType::F32, shape));
/// let (x, w, u, bias) = (new("x", &[2, 5, 3]), new("w", &[3, 16]), new("u", &[4, 16]), new("bias", &[16]));
/// let state = new("state", &[2, 4]);
/// let (y, h, c) = x.lstm(&w, &u, &bias, &state, &state)?;
/// assert_eq!(y.shape().to_string(), "[2, 5, 4]");
/// assert_eq!(h.ty(), c.ty());
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait RecurrentOps: TensorOps {
    /// A long short-term memory ([`Lstm`]): every h, the last h and the last c.
    #[track_caller]
    fn lstm(
        &self,
        w: &Self,
        u: &Self,
        bias: &Self,
        h0: &Self,
        c0: &Self,
    ) -> Result<(Self, Self, Self), Self::Error> {
        let [y, h, c] = self.emit_first(Lstm, &[self, w, u, bias, h0, c0], Site::here())?;
        Ok((y, h, c))
    }

    /// A gated recurrent unit ([`Gru`]): every h and the last h.
    #[track_caller]
    fn gru(
        &self,
        w: &Self,
        u: &Self,
        bias: &Self,
        bias_u: &Self,
        h0: &Self,
    ) -> Result<(Self, Self), Self::Error> {
        let [y, h] = self.emit_first(Gru, &[self, w, u, bias, bias_u, h0], Site::here())?;
        Ok((y, h))
    }
}

impl<T: TensorOps> RecurrentOps for T {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rule;

    #[test]
    fn weights_of_another_number_of_gates_are_refused_with_both_shapes() {
        let t = |shape: &[usize]| Type::new(DType::F32, shape);
        let (x, state) = (t(&[2, 5, 3]), t(&[2, 4]));
        let error = Lstm.infer(&[&x, &t(&[3, 16]), &t(&[4, 12]), &t(&[16]), &state, &state]).unwrap_err();
        assert!(error.contains("4 units and 4 gates") && error.contains("[4, 12]"), "{error}");
        let error = Lstm.infer(&[&x, &t(&[3, 12]), &t(&[4, 16]), &t(&[16]), &state, &state]).unwrap_err();
        assert!(error.contains("f32[3, 16]") && error.contains("f32[3, 12]"), "{error}");
    }

    #[test]
    fn a_gradient_that_arrives_at_the_last_state_alone_flows() {
        let trace = crate::Trace::new();
        let new = |shape: &[usize]| trace.input("x", Type::new(DType::F32, shape));
        let (x, w, u, bias, state) =
            (new(&[2, 3, 3]), new(&[3, 16]), new(&[4, 16]), new(&[16]), new(&[2, 4]));
        let (_, h, _) = x.lstm(&w, &u, &bias, &state, &state).unwrap();
        let grads = crate::gradient(&h, None, &[&x, &u]).unwrap();
        assert!(grads.iter().all(Option::is_some));
    }
}
