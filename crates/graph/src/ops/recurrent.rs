//! LSTM and GRU over a sequence, forward and backward, each a single op.
//!
//! Layout: B samples, T steps, I input features, H units. Sequences are `[B, T, features]`; weights stand so that rows
//! multiply them from the left, with the gates beside each other: w `[I, gates · H]`, u `[H, gates · H]`. What is saved
//! for the gradient is time-major, `[T, B, …]`, because the backward pass takes it step by step.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Cost, Keep, Rule, Types, traffic};
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
            return Err(format!("it takes a sequence [batch, steps, features] and a matrix, not {x} and {u}"));
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

/// A long short-term memory over a sequence.
///
/// ```text
/// i, f, o = σ(x w + h u + bias)   g = tanh(x w + h u + bias)      gates in the order i, f, g, o
/// c' = f ∘ c + i ∘ g              h' = o ∘ tanh(c')
/// ```
///
/// Inputs: x `[B, T, I]`, w `[I, 4H]`, u `[H, 4H]`, bias `[4H]`, h₀ `[B, H]`, c₀ `[B, H]`. Outputs: y `[B, T, H]` (every
/// h'), the last h and c `[B, H]`, and for the gradient the gates after activation `[T, B, 4H]` and the cells
/// `[T, B, H]`. PyTorch's two biases are one here: their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lstm;

impl Rule for Lstm {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, w, u, bias, h0, c0] = ops::arity(inputs)?;
        let d = RecurrentDims::new(x, u, 4)?;
        d.expect("input weights", w, x, [d.inputs, 4 * d.units])?;
        d.expect("recurrent weights", u, x, [d.units, 4 * d.units])?;
        d.expect("bias", bias, x, [4 * d.units])?;
        d.expect("first state", h0, x, d.state())?;
        d.expect("first cell", c0, x, d.state())?;
        let [y, state, gates, cells] = [d.sequence(), d.state(), d.saved(4), d.saved(1)].map(|s| x.with_shape(s));
        Ok(smallvec![y, state.clone(), state, gates, cells])
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let flops = RecurrentDims::new(inputs[0], inputs[2], 4).map_or(0.0, |d| d.flops(4));
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    /// All inputs but the bias; y, gates and cells.
    fn keep(&self) -> Keep {
        Keep::both(0b110111, 0b11001)
    }

    /// See [`LstmGrad`]; gradients may arrive at y and at the last h and c.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        if at.try_grad(3).is_some() || at.try_grad(4).is_some() {
            return Err(at.no_gradient("its gates and cells are kept for the gradient alone; use y, h and c"));
        }
        let mut inputs = [0, 1, 2, 4, 5].map(|i| at.input(i)).into_iter().collect::<Result<Vec<Sym>>>()?;
        inputs.extend([at.output(0)?, at.output(3)?, at.output(4)?, at.grad(0)?, at.grad(1)?, at.grad(2)?]);
        let grads = at.push(LstmGrad, &inputs.iter().collect::<Vec<_>>())?;
        Ok(grads.into_iter().map(Some).collect())
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, w, u, bias, h0, c0] = [0, 1, 2, 3, 4, 5].map(|i| inputs[i]);
        let d = array_dims(x, u);
        let n = d.units;
        let mut out: Vec<Array> = outputs.iter().map(zeros).collect();
        for b in 0..d.batch {
            let (mut h, mut c) = (row(h0, &[b]).to_vec(), row(c0, &[b]).to_vec());
            for t in 0..d.steps {
                let sum = |j: usize| bias.data[j] + dot(row(x, &[b, t]), w, j) + dot(&h, u, j);
                let act = |j: usize| if j / n == 2 { sum(j).tanh() } else { sigmoid(sum(j)) };
                let gates: Vec<f64> = (0..4 * n).map(act).collect();
                for j in 0..n {
                    c[j] = gates[n + j] * c[j] + gates[j] * gates[2 * n + j];
                    h[j] = gates[3 * n + j] * c[j].tanh();
                }
                let (rows_y, rows_saved) = (b * d.steps + t, t * d.batch + b);
                out[0].data[rows_y * n..][..n].copy_from_slice(&h);
                out[3].data[rows_saved * 4 * n..][..4 * n].copy_from_slice(&gates);
                out[4].data[rows_saved * n..][..n].copy_from_slice(&c);
            }
            out[1].data[b * n..][..n].copy_from_slice(&h);
            out[2].data[b * n..][..n].copy_from_slice(&c);
        }
        out
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |d: RecurrentDims| {
            let n = d.units;
            let shapes: [Shape; 6] = [
                [d.batch, d.steps, d.inputs].into(),
                [d.inputs, 4 * n].into(),
                [n, 4 * n].into(),
                [4 * n].into(),
                d.state(),
                d.state(),
            ];
            Example::new(Lstm, shapes.map(normal).into())
        };
        cases(dice).map(example).into()
    }
}

fn normal(shape: Shape) -> (Type, Domain) {
    (Type::new(DType::F32, shape), Domain::Normal)
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

/// The gradients of x, w, u, bias, h₀ and c₀ of an [`Lstm`].
///
/// Inputs: x, w, u, h₀, c₀, y, gates, cells, dy `[B, T, H]`, and the gradients of the last h and c `[B, H]`. From the last
/// step to the first, with dh = dy + what the next step hands back:
///
/// ```text
/// do = dh ∘ tanh(c') ∘ o(1-o)     dc = what the next step hands back + dh ∘ o ∘ (1 - tanh²(c'))
/// di = dc ∘ g ∘ i(1-i)    df = dc ∘ c ∘ f(1-f)    dg = dc ∘ i ∘ (1-g²)    handed back: dc ∘ f and [di df dg do] uᵀ
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LstmGrad;

impl Rule for LstmGrad {
    fn name(&self) -> &'static str {
        "lstm_grad"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, w, u, h0, c0, y, gates, cells, dy, dh, dc] = ops::arity(inputs)?;
        let d = RecurrentDims::new(x, u, 4)?;
        d.expect("input weights", w, x, [d.inputs, 4 * d.units])?;
        d.expect("recurrent weights", u, x, [d.units, 4 * d.units])?;
        for (what, state) in [("first state", h0), ("first cell", c0), ("last state", dh), ("last cell", dc)] {
            d.expect(what, state, x, d.state())?;
        }
        d.expect("result", y, x, d.sequence())?;
        d.expect("result's gradient", dy, x, d.sequence())?;
        d.expect("saved gates", gates, x, d.saved(4))?;
        d.expect("saved cells", cells, x, d.saved(1))?;
        let bias = x.with_shape([4 * d.units]);
        Ok([x, w, u, &bias, h0, c0].into_iter().cloned().collect())
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let flops = RecurrentDims::new(inputs[0], inputs[2], 4).map_or(0.0, |d| 2.0 * d.flops(4));
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient("an lstm is differentiated once only; write its steps with matmul, sigmoid and tanh instead"))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, w, u, h0, c0, y, saved, cells, dy, dh_last, dc_last] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|i| inputs[i]);
        let d = array_dims(x, u);
        let n = d.units;
        let mut out: Vec<Array> = outputs.iter().map(zeros).collect();
        for b in 0..d.batch {
            let (mut dh, mut dc) = (row(dh_last, &[b]).to_vec(), row(dc_last, &[b]).to_vec());
            for t in (0..d.steps).rev() {
                add_to(&mut dh, row(dy, &[b, t]));
                let (gates, cell) = (row(saved, &[t, b]), row(cells, &[t, b]));
                let (h_before, c_before) =
                    if t == 0 { (row(h0, &[b]), row(c0, &[b])) } else { (row(y, &[b, t - 1]), row(cells, &[t - 1, b])) };
                let mut grad = vec![0.0; 4 * n];
                for j in 0..n {
                    let [i, f, g, o] = [0, 1, 2, 3].map(|k| gates[k * n + j]);
                    let tanh = cell[j].tanh();
                    dc[j] += dh[j] * o * (1.0 - tanh * tanh);
                    grad[j] = dc[j] * g * i * (1.0 - i);
                    grad[n + j] = dc[j] * c_before[j] * f * (1.0 - f);
                    grad[2 * n + j] = dc[j] * i * (1.0 - g * g);
                    grad[3 * n + j] = dh[j] * tanh * o * (1.0 - o);
                    dc[j] *= f;
                }
                let place = (b * d.steps + t) * d.inputs;
                out[0].data[place..place + d.inputs].copy_from_slice(&times_transposed(&grad, w));
                add_outer(&mut out[1], row(x, &[b, t]), &grad);
                add_outer(&mut out[2], h_before, &grad);
                add_to(&mut out[3].data, &grad);
                dh = times_transposed(&grad, u);
            }
            out[4].data[b * n..][..n].copy_from_slice(&dh);
            out[5].data[b * n..][..n].copy_from_slice(&dc);
        }
        out
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |d: RecurrentDims| {
            let n = d.units;
            let shapes: [Shape; 11] = [
                [d.batch, d.steps, d.inputs].into(),
                [d.inputs, 4 * n].into(),
                [n, 4 * n].into(),
                d.state(),
                d.state(),
                d.sequence(),
                d.saved(4),
                d.saved(1),
                d.sequence(),
                d.state(),
                d.state(),
            ];
            Example::new(LstmGrad, shapes.map(normal).into())
        };
        cases(dice).map(example).into()
    }
}

/// A gated recurrent unit over a sequence, in the form that resets after the product (PyTorch's, and Keras' default).
///
/// ```text
/// r, z = σ(x w + bias + h u + bias_u)             gates in the order r, z, n
/// n = tanh(x w + bias + r ∘ (h u + bias_u))       h' = (1 - z) ∘ n + z ∘ h
/// ```
///
/// Inputs: x `[B, T, I]`, w `[I, 3H]`, u `[H, 3H]`, bias `[3H]`, bias_u `[3H]`, h₀ `[B, H]`. Outputs: y `[B, T, H]`, the last
/// h `[B, H]`, and for the gradient r, z, n and h u + bias_u of n, `[T, B, 4H]`. Keras writes the same formula with its
/// gates in the order z, r, n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gru;

impl Rule for Gru {
    fn name(&self) -> &'static str {
        "gru"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, w, u, bias, bias_u, h0] = ops::arity(inputs)?;
        let d = RecurrentDims::new(x, u, 3)?;
        d.expect("input weights", w, x, [d.inputs, 3 * d.units])?;
        d.expect("recurrent weights", u, x, [d.units, 3 * d.units])?;
        d.expect("bias", bias, x, [3 * d.units])?;
        d.expect("recurrent bias", bias_u, x, [3 * d.units])?;
        d.expect("first state", h0, x, d.state())?;
        Ok(smallvec![x.with_shape(d.sequence()), x.with_shape(d.state()), x.with_shape(d.saved(4))])
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let flops = RecurrentDims::new(inputs[0], inputs[2], 3).map_or(0.0, |d| d.flops(3));
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    /// x, w, u and h₀; y and the saved gates.
    fn keep(&self) -> Keep {
        Keep::both(0b100111, 0b101)
    }

    /// See [`GruGrad`]; gradients may arrive at y and at the last h.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        if at.try_grad(2).is_some() {
            return Err(at.no_gradient("its gates are kept for the gradient alone; use y and h"));
        }
        let mut inputs = [0, 1, 2, 5].map(|i| at.input(i)).into_iter().collect::<Result<Vec<Sym>>>()?;
        inputs.extend([at.output(0)?, at.output(2)?, at.grad(0)?, at.grad(1)?]);
        let grads = at.push(GruGrad, &inputs.iter().collect::<Vec<_>>())?;
        Ok(grads.into_iter().map(Some).collect())
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, w, u, bias, bias_u, h0] = [0, 1, 2, 3, 4, 5].map(|i| inputs[i]);
        let d = array_dims(x, u);
        let n = d.units;
        let mut out: Vec<Array> = outputs.iter().map(zeros).collect();
        for b in 0..d.batch {
            let mut h = row(h0, &[b]).to_vec();
            for t in 0..d.steps {
                let input: Vec<f64> = (0..3 * n).map(|j| bias.data[j] + dot(row(x, &[b, t]), w, j)).collect();
                let state: Vec<f64> = (0..3 * n).map(|j| bias_u.data[j] + dot(&h, u, j)).collect();
                let saved = &mut out[2].data[(t * d.batch + b) * 4 * n..][..4 * n];
                for j in 0..n {
                    let r = sigmoid(input[j] + state[j]);
                    let z = sigmoid(input[n + j] + state[n + j]);
                    let new = (input[2 * n + j] + r * state[2 * n + j]).tanh();
                    (saved[j], saved[n + j], saved[2 * n + j], saved[3 * n + j]) = (r, z, new, state[2 * n + j]);
                    h[j] = (1.0 - z) * new + z * h[j];
                }
                out[0].data[(b * d.steps + t) * n..][..n].copy_from_slice(&h);
            }
            out[1].data[b * n..][..n].copy_from_slice(&h);
        }
        out
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |d: RecurrentDims| {
            let n = d.units;
            let shapes: [Shape; 6] = [
                [d.batch, d.steps, d.inputs].into(),
                [d.inputs, 3 * n].into(),
                [n, 3 * n].into(),
                [3 * n].into(),
                [3 * n].into(),
                d.state(),
            ];
            Example::new(Gru, shapes.map(normal).into())
        };
        cases(dice).map(example).into()
    }
}

/// The gradients of x, w, u, both biases and h₀ of a [`Gru`].
///
/// Inputs: x, w, u, h₀, y, the saved gates, dy `[B, T, H]`, the gradient of the last h `[B, H]`. From the last step to the
/// first, with s = h u + bias_u of n and dh = dy + what the next step hands back:
///
/// ```text
/// dn = dh ∘ (1-z) ∘ (1-n²)    dz = dh ∘ (h-n) ∘ z(1-z)    dr = dn ∘ s ∘ r(1-r)    ds = dn ∘ r
/// x w + bias gets [dr dz dn], h u + bias_u gets [dr dz ds]; handed back: dh ∘ z + [dr dz ds] uᵀ
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GruGrad;

impl Rule for GruGrad {
    fn name(&self) -> &'static str {
        "gru_grad"
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, w, u, h0, y, saved, dy, dh] = ops::arity(inputs)?;
        let d = RecurrentDims::new(x, u, 3)?;
        d.expect("input weights", w, x, [d.inputs, 3 * d.units])?;
        d.expect("recurrent weights", u, x, [d.units, 3 * d.units])?;
        d.expect("first state", h0, x, d.state())?;
        d.expect("last state", dh, x, d.state())?;
        d.expect("result", y, x, d.sequence())?;
        d.expect("result's gradient", dy, x, d.sequence())?;
        d.expect("saved gates", saved, x, d.saved(4))?;
        let bias = x.with_shape([3 * d.units]);
        Ok([x, w, u, &bias, &bias, h0].into_iter().cloned().collect())
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let flops = RecurrentDims::new(inputs[0], inputs[2], 3).map_or(0.0, |d| 2.0 * d.flops(3));
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient("a gru is differentiated once only; write its steps with matmul, sigmoid and tanh instead"))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, w, u, h0, y, saved, dy, dh_last] = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| inputs[i]);
        let d = array_dims(x, u);
        let n = d.units;
        let mut out: Vec<Array> = outputs.iter().map(zeros).collect();
        for b in 0..d.batch {
            let mut dh = row(dh_last, &[b]).to_vec();
            for t in (0..d.steps).rev() {
                add_to(&mut dh, row(dy, &[b, t]));
                let gates = row(saved, &[t, b]);
                let h_before = if t == 0 { row(h0, &[b]) } else { row(y, &[b, t - 1]) };
                let (mut to_x, mut to_h) = (vec![0.0; 3 * n], vec![0.0; 3 * n]);
                for j in 0..n {
                    let [r, z, new, s] = [0, 1, 2, 3].map(|k| gates[k * n + j]);
                    let dn = dh[j] * (1.0 - z) * (1.0 - new * new);
                    to_x[j] = dn * s * r * (1.0 - r);
                    to_x[n + j] = dh[j] * (h_before[j] - new) * z * (1.0 - z);
                    to_x[2 * n + j] = dn;
                    to_h[2 * n + j] = dn * r;
                    dh[j] *= z;
                }
                to_h[..2 * n].copy_from_slice(&to_x[..2 * n]);
                let place = (b * d.steps + t) * d.inputs;
                out[0].data[place..place + d.inputs].copy_from_slice(&times_transposed(&to_x, w));
                add_outer(&mut out[1], row(x, &[b, t]), &to_x);
                add_outer(&mut out[2], h_before, &to_h);
                add_to(&mut out[3].data, &to_x);
                add_to(&mut out[4].data, &to_h);
                add_to(&mut dh, &times_transposed(&to_h, u));
            }
            out[5].data[b * n..][..n].copy_from_slice(&dh);
        }
        out
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |d: RecurrentDims| {
            let n = d.units;
            let shapes: [Shape; 8] = [
                [d.batch, d.steps, d.inputs].into(),
                [d.inputs, 3 * n].into(),
                [n, 3 * n].into(),
                d.state(),
                d.sequence(),
                d.saved(4),
                d.sequence(),
                d.state(),
            ];
            Example::new(GruGrad, shapes.map(normal).into())
        };
        cases(dice).map(example).into()
    }
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
        let outputs = self.emit(Lstm.into(), &[self, w, u, bias, h0, c0], Site::here())?;
        match &outputs[..] {
            [y, h, c, ..] => Ok((y.clone(), h.clone(), c.clone())),
            _ => Err(crate::Error::Internal("lstm gave too few outputs".into()).into()),
        }
    }

    /// A gated recurrent unit ([`Gru`]): every h and the last h.
    #[track_caller]
    fn gru(&self, w: &Self, u: &Self, bias: &Self, bias_u: &Self, h0: &Self) -> Result<(Self, Self), Self::Error> {
        let outputs = self.emit(Gru.into(), &[self, w, u, bias, bias_u, h0], Site::here())?;
        match &outputs[..] {
            [y, h, ..] => Ok((y.clone(), h.clone())),
            _ => Err(crate::Error::Internal("gru gave too few outputs".into()).into()),
        }
    }
}

impl<T: TensorOps> RecurrentOps for T {}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (x, w, u, bias, state) = (new(&[2, 3, 3]), new(&[3, 16]), new(&[4, 16]), new(&[16]), new(&[2, 4]));
        let (_, h, _) = x.lstm(&w, &u, &bias, &state, &state).unwrap();
        let grads = crate::gradient(&h, None, &[&x, &u]).unwrap();
        assert!(grads.iter().all(Option::is_some));
    }
}
