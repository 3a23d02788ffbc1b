//! Norms, attention and recurrent layers, put together from smaller ops.

use plimsoll_graph::{Node, TensorOps, ValueId, ops};
use rustc_hash::FxHashSet;

use super::emit::Emitter;
use crate::error::{Result, refuse};
use crate::lite_model::ElementType;
use crate::ops::OpCode;
use crate::options::Options;

/// What a masked place gets added, once for each place that it is too late: its softmax is zero, and no runtime meets an infinity.
const HIDDEN: f64 = -1e9;

impl Emitter<'_> {
    /// (x - mean) / √(var + ε) over axes.
    fn normed(&mut self, x: usize, axes: &[usize], eps: f64) -> Result<usize> {
        let mean = self.reduce(OpCode::Mean, x, axes, true);
        let centred = self.binary(OpCode::Sub, x, mean)?;
        self.scaled(centred, centred, axes, eps)
    }

    /// y / √(mean of x² + ε) over axes.
    fn scaled(&mut self, y: usize, x: usize, axes: &[usize], eps: f64) -> Result<usize> {
        let squares = self.binary(OpCode::Mul, x, x)?;
        let mean = self.reduce(OpCode::Mean, squares, axes, true);
        let eps = self.number(ElementType::F32, eps)?;
        let sum = self.binary(OpCode::Add, mean, eps)?;
        let root = self.unary(OpCode::Rsqrt, sum, Options::None);
        self.binary(OpCode::Mul, y, root)
    }

    fn last_axes(&self, x: usize, n: usize) -> Vec<usize> {
        let rank = self.shape(x).len();
        (rank - n..rank).collect()
    }

    pub(super) fn layer_norm(&mut self, norm: &ops::LayerNorm, node: &Node) -> Result<usize> {
        // Eight bits are too few for squares and roots.
        self.keeps_float = true;
        let (x, scale) = self.two(node)?;
        let shift = self.value(node.inputs[2])?;
        let axes = self.last_axes(x, norm.axes);
        let y = self.normed(x, &axes, norm.eps.0)?;
        let y = self.binary(OpCode::Mul, y, scale)?;
        self.binary(OpCode::Add, y, shift)
    }

    pub(super) fn rms_norm(&mut self, norm: &ops::RmsNorm, node: &Node) -> Result<usize> {
        self.keeps_float = true;
        let (x, scale) = self.two(node)?;
        let axes = self.last_axes(x, 1);
        let y = self.scaled(x, x, &axes, norm.eps.0)?;
        self.binary(OpCode::Mul, y, scale)
    }

    /// Over positions and groups of channels.
    pub(super) fn group_norm(&mut self, norm: &ops::GroupNorm, node: &Node) -> Result<usize> {
        self.keeps_float = true;
        let (x, scale) = self.two(node)?;
        let shift = self.value(node.inputs[2])?;
        let shape = self.shape(x).to_vec();
        let channels = shape[shape.len() - 1];
        let positions: usize = shape[1..shape.len() - 1].iter().product();
        let grouped = self.reshape(x, &[shape[0], positions, norm.groups, channels / norm.groups]);
        let y = self.normed(grouped, &[1, 3], norm.eps.0)?;
        let y = self.reshape(y, &shape);
        let y = self.binary(OpCode::Mul, y, scale)?;
        self.binary(OpCode::Add, y, shift)
    }

    /// softmax(scale q kᵀ + mask) v with heads in front of time.
    pub(super) fn attention(&mut self, attention: &ops::Attention, node: &Node) -> Result<usize> {
        let (q, k) = self.two(node)?;
        let v = self.value(node.inputs[2])?;
        let &[batch, tq, heads, _] = self.shape(q) else { return refuse("its queries have no four axes") };
        let (tk, groups, wide) = (self.shape(k)[1], self.shape(k)[2], self.shape(v)[3]);
        if heads != groups {
            return refuse("heads share keys");
        }
        let front = [0, 2, 1, 3];
        let (q, k, v) = (self.transpose(q, &front), self.transpose(k, &front), self.transpose(v, &front));
        let scale = self.number(ElementType::F32, attention.scale.0)?;
        let q = self.binary(OpCode::Mul, q, scale)?;
        let turned = Options::BatchMatMul { turn_a: false, turn_b: true };
        let mut scores =
            self.add(OpCode::BatchMatMul, &[q, k], ElementType::F32, &[batch, heads, tq, tk], turned);
        // Between what is hidden and what is seen eight bits tell nothing.
        self.keeps_float = attention.mask || attention.causal;
        if attention.mask {
            let mask = self.value(node.inputs[3])?;
            scores = self.binary(OpCode::Add, scores, mask)?;
        }
        if attention.causal {
            let mask = self.causal_mask(tq, tk)?;
            scores = self.binary(OpCode::Add, scores, mask)?;
        }
        let weights = self.unary(OpCode::Softmax, scores, Options::Softmax { beta: 1.0 });
        self.keeps_float = false;
        let plain = Options::BatchMatMul { turn_a: false, turn_b: false };
        let weighed =
            self.add(OpCode::BatchMatMul, &[weights, v], ElementType::F32, &[batch, heads, tq, wide], plain);
        Ok(self.transpose(weighed, &front))
    }

    /// What hides later places from earlier ones. It is made of the places' numbers while the file runs: they are as many as there are places, and the mask
    /// itself is as many as their square.
    fn causal_mask(&mut self, tq: usize, tk: usize) -> Result<usize> {
        let places: Vec<f32> = (0..tk).map(|j| j as f32).collect();
        let last_seen: Vec<f32> = (0..tq).map(|i| (i + tk) as f32 - tq as f32).collect();
        let places = self.floats("places", &places, &[1, 1, 1, tk]);
        let last_seen = self.floats("last_seen", &last_seen, &[1, 1, tq, 1]);
        let beyond = self.binary(OpCode::Sub, places, last_seen)?;
        let beyond = self.unary(OpCode::Relu, beyond, Options::None);
        let hidden = self.number(ElementType::F32, HIDDEN)?;
        self.binary(OpCode::Mul, beyond, hidden)
    }

    /// Weights `[in, out]` as a dense layer of the file has them.
    fn dense_weights(&mut self, id: ValueId) -> Result<usize> {
        let Some(known) = self.known(id).cloned() else { return refuse("its weights are computed") };
        let name = self.known_name(id);
        self.constant(&name, &known.transpose(&[1, 0])?)
    }

    /// A first state `[B, H]` as a step of a sequence.
    fn first_state(&mut self, id: ValueId) -> Result<usize> {
        let &[batch, units] = &self.graph.ty(id).shape[..] else {
            return refuse("its state has no two axes");
        };
        match self.known(id).cloned() {
            Some(known) => self.constant("state", &known.reshape([batch, 1, units])?),
            None => {
                let state = self.value(id)?;
                Ok(self.reshape(state, &[batch, 1, units]))
            }
        }
    }

    /// Sets the outputs of a recurrent layer: all states, and the last of each kind.
    fn steps_done(&mut self, node: &Node, states: &[usize], last: &[usize], wanted: &FxHashSet<ValueId>) {
        if wanted.contains(&node.outputs[0]) {
            let all = if states.len() == 1 { states[0] } else { self.concat(states, 1) };
            self.set(node.outputs[0], all);
        }
        for (i, &at) in last.iter().enumerate() {
            if wanted.contains(&node.outputs[i + 1]) {
                let shape = self.graph.ty(node.outputs[i + 1]).shape.to_vec();
                let state = self.reshape(at, &shape);
                self.set(node.outputs[i + 1], state);
            }
        }
    }

    /// What the inputs of all steps add to the gates, step by step.
    fn projected(&mut self, node: &Node, bias: ValueId) -> Result<(Vec<usize>, usize)> {
        let (x, bias) = (self.value(node.inputs[0])?, self.value(bias)?);
        let w = self.dense_weights(node.inputs[1])?;
        let steps = self.shape(x)[1];
        if steps == 0 {
            return refuse("its sequence is empty");
        }
        let all = self.dense(x, w, Some(bias));
        let parts = if steps == 1 { vec![all] } else { self.split(all, 1, &vec![1; steps]) };
        Ok((parts, self.dense_weights(node.inputs[2])?))
    }

    /// Every step by itself: an op with a state of its own would keep it from one sample to the next.
    pub(super) fn lstm(&mut self, node: &Node, wanted: &FxHashSet<ValueId>) -> Result<()> {
        let units = self.graph.ty(node.inputs[4]).shape[1];
        let (parts, u) = self.projected(node, node.inputs[3])?;
        let (mut h, mut c) = (self.first_state(node.inputs[4])?, self.first_state(node.inputs[5])?);
        let mut states = Vec::new();
        for part in parts {
            let recurrent = self.dense(h, u, None);
            let sum = self.binary(OpCode::Add, part, recurrent)?;
            let gates = self.split(sum, 2, &[units; 4]);
            let [i, f, o] = [0, 1, 3].map(|gate| self.unary(OpCode::Logistic, gates[gate], Options::None));
            let g = self.unary(OpCode::Tanh, gates[2], Options::None);
            let (new, old) = (self.binary(OpCode::Mul, i, g)?, self.binary(OpCode::Mul, f, c)?);
            c = self.binary(OpCode::Add, old, new)?;
            let shown = self.unary(OpCode::Tanh, c, Options::None);
            h = self.binary(OpCode::Mul, o, shown)?;
            states.push(h);
        }
        self.steps_done(node, &states, &[h, c], wanted);
        Ok(())
    }

    /// Every step by itself, as of an LSTM.
    pub(super) fn gru(&mut self, node: &Node, wanted: &FxHashSet<ValueId>) -> Result<()> {
        let units = self.graph.ty(node.inputs[5]).shape[1];
        let (parts, u) = self.projected(node, node.inputs[3])?;
        let bias = self.value(node.inputs[4])?;
        let mut h = self.first_state(node.inputs[5])?;
        let mut states = Vec::new();
        for part in parts {
            let recurrent = self.dense(h, u, Some(bias));
            let (given, kept) = (self.split(part, 2, &[units; 3]), self.split(recurrent, 2, &[units; 3]));
            let gate = |own: &mut Self, i: usize| -> Result<usize> {
                let sum = own.binary(OpCode::Add, given[i], kept[i])?;
                Ok(own.unary(OpCode::Logistic, sum, Options::None))
            };
            let (r, z) = (gate(self, 0)?, gate(self, 1)?);
            let reset = self.binary(OpCode::Mul, r, kept[2])?;
            let sum = self.binary(OpCode::Add, given[2], reset)?;
            let n = self.unary(OpCode::Tanh, sum, Options::None);
            let apart = self.binary(OpCode::Sub, h, n)?;
            let share = self.binary(OpCode::Mul, z, apart)?;
            h = self.binary(OpCode::Add, n, share)?;
            states.push(h);
        }
        self.steps_done(node, &states, &[h], wanted);
        Ok(())
    }
}
