//! Turns a model in f32 and the ranges of what it computes into one in int8, as TensorFlow Lite's quantization is specified:
//! <https://ai.google.dev/edge/litert/models/quantization_spec>.
//!
//! Weights are symmetric with a scale for each channel, biases int32, what is computed asymmetric with one scale for a tensor. Ops that
//! move numbers about give them out with the scale they came with, so all tensors that such ops connect share one. What has no form in int8 stays in
//! f32, between a DEQUANTIZE and a QUANTIZE.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::calibrate::Ranges;
use super::{Quantized, channel_axis, channel_scales, symmetric};
use crate::error::Result;
use crate::lite_model::{ElementType, LiteModel, LiteOp, LiteTensor, Quantization};
use crate::ops::OpCode;
use crate::options::Options;
use crate::values::{quantized, reals};

/// The scale and zero point of a tensor.
type Params = (f32, i64);

/// What an op does to scales.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// It has weights of its own.
    Weights,
    /// It computes, with any scales.
    Computes,
    /// Its result has these.
    Fixed(Params),
    /// It moves numbers about: all scales are the same.
    Moves,
    /// It has no form in int8.
    Float,
}

fn kind(code: OpCode) -> Kind {
    use OpCode as C;
    match code {
        C::Conv2d | C::DepthwiseConv2d | C::FullyConnected | C::TransposeConv => Kind::Weights,
        C::Add | C::Sub | C::Mul | C::BatchMatMul | C::Mean => Kind::Computes,
        C::Relu | C::Relu6 | C::LeakyRelu | C::Gelu => Kind::Computes,
        C::Logistic | C::Softmax => Kind::Fixed((1.0 / 256.0, -128)),
        C::Tanh => Kind::Fixed((1.0 / 128.0, 0)),
        C::LogSoftmax => Kind::Fixed((16.0 / 256.0, 127)),
        C::Reshape | C::Transpose | C::Slice | C::StridedSlice | C::Split | C::SplitV | C::Pad | C::PadV2 => {
            Kind::Moves
        }
        C::Concatenation | C::MaxPool2d | C::AveragePool2d | C::Gather | C::BroadcastTo | C::Reverse => {
            Kind::Moves
        }
        C::ResizeBilinear
        | C::ResizeNearestNeighbor
        | C::Maximum
        | C::Minimum
        | C::ReduceMax
        | C::ReduceMin => Kind::Moves,
        _ => Kind::Float,
    }
}

/// The scale and zero point for a range: 0 is one of the 256 numbers.
fn params(low: f32, high: f32) -> Params {
    let (low, high) = (low.min(0.0), high.max(0.0));
    let scale = (f64::from(high) - f64::from(low)) / 255.0;
    if scale < f64::from(f32::MIN_POSITIVE) {
        return (1.0, 0);
    }
    let zero = (-128.0 - f64::from(low) / scale).round().clamp(-128.0, 127.0);
    (scale as f32, zero as i64)
}

fn range_of(tensor: &LiteTensor) -> Option<(f32, f32)> {
    let numbers = reals(tensor)?;
    Some(numbers.iter().fold((0.0, 0.0), |(low, high), &x| (f32::min(low, x), f32::max(high, x))))
}

/// Operands of an op that hold numbers which are moved or computed with: not sizes, axes, weights.
fn operands(model: &LiteModel, op: &LiteOp) -> Vec<(usize, usize)> {
    let is_number = |(i, at): (usize, &Option<usize>)| {
        at.filter(|&at| model.tensors[at].ty == ElementType::F32).map(|at| (i, at))
    };
    let all = op.inputs.iter().enumerate().filter_map(is_number);
    match (kind(op.code), op.code) {
        (Kind::Weights, OpCode::TransposeConv) => all.filter(|(i, _)| *i == 2).collect(),
        (Kind::Weights, _) => all.filter(|(i, _)| *i == 0).collect(),
        _ => all.collect(),
    }
}

/// Tensors that share one scale, each known by one of them.
struct Groups(Vec<usize>);

impl Groups {
    fn of(&mut self, at: usize) -> usize {
        let up = self.0[at];
        if up == at {
            return at;
        }
        let top = self.of(up);
        self.0[at] = top;
        top
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.of(a), self.of(b));
        self.0[a.max(b)] = a.min(b);
    }
}

/// Decides which ops are in int8, and with which scale each tensor is.
fn decide(model: &LiteModel, ranges: &Ranges) -> (Vec<bool>, Vec<Option<Params>>) {
    let n = model.tensors.len();
    let is_const = |at: usize| model.tensors[at].data.is_some();
    let mut in_int8: Vec<bool> = vec![false; n];
    model.inputs.iter().for_each(|(_, at)| in_int8[*at] = model.tensors[*at].ty == ElementType::F32);
    let mut chosen = Vec::new();
    let mut fixed: Vec<Option<Params>> = vec![None; n];
    let mut groups = Groups((0..n).collect());
    let mut ranges: Vec<Option<(f32, f32)>> = ranges.clone();
    for op in &model.ops {
        let reads = operands(model, op);
        let are_numbers =
            op.outputs.iter().all(|&at| model.tensors[at].ty == ElementType::F32 && ranges[at].is_some());
        let kind = kind(op.code);
        let fits = match kind {
            Kind::Float => false,
            Kind::Weights => {
                let stored = |i: usize| op.inputs.get(i).copied().flatten().is_none_or(is_const);
                stored(1) && stored(if op.code == OpCode::TransposeConv { 3 } else { 2 })
            }
            // Numbers that are in f32 anyway are moved as they are.
            Kind::Moves => {
                reads.iter().any(|&(_, at)| in_int8[at])
                    || (op.code == OpCode::Gather && is_const(reads[0].1))
            }
            _ => true,
        };
        let is_chosen = fits && are_numbers && !reads.is_empty() && !op.keeps_float;
        chosen.push(is_chosen);
        if !is_chosen {
            continue;
        }
        op.outputs.iter().for_each(|&at| in_int8[at] = true);
        match kind {
            Kind::Fixed(params) => fixed[op.outputs[0]] = Some(params),
            Kind::Moves => {
                let sources: Vec<usize> =
                    reads.iter().map(|&(_, at)| at).filter(|&at| !is_const(at)).collect();
                let same = sources.first().and_then(|&at| fixed[at]);
                if same.is_some()
                    && reads.len() == sources.len()
                    && sources.iter().all(|&at| fixed[at] == same)
                {
                    op.outputs.iter().for_each(|&at| fixed[at] = same);
                    continue;
                }
                let out = op.outputs[0];
                op.outputs[1..].iter().for_each(|&at| groups.join(out, at));
                for at in sources {
                    match fixed[at] {
                        // It is brought to the scale of the others; its range counts.
                        Some(_) => widen(&mut ranges, out, ends(fixed[at])),
                        None => groups.join(out, at),
                    }
                }
                if op.code == OpCode::PadV2 {
                    // What is put around images for a maximum is the least there is, whatever the range.
                    ranges[out] = ranges[reads[0].1];
                }
                for (_, at) in reads.iter().filter(|(_, at)| is_const(*at)) {
                    let own = range_of(&model.tensors[*at]).filter(|(low, _)| *low > f32::MIN);
                    widen(&mut ranges, out, own);
                }
            }
            _ => {}
        }
    }
    let mut joined: FxHashMap<usize, (f32, f32)> = FxHashMap::default();
    for at in 0..n {
        if let Some((low, high)) = ranges[at].filter(|_| fixed[at].is_none()) {
            let all = joined.entry(groups.of(at)).or_insert((0.0, 0.0));
            *all = (all.0.min(low), all.1.max(high));
        }
    }
    let of = |at: usize| {
        let shared = joined.get(&groups.of(at)).map(|&(low, high)| params(low, high));
        fixed[at].or(shared)
    };
    let scales = (0..n).map(of).collect();
    (chosen, scales)
}

/// The least and the most that a scale can say.
fn ends(params: Option<Params>) -> Option<(f32, f32)> {
    let (scale, zero) = params?;
    Some(((-128 - zero) as f32 * scale, (127 - zero) as f32 * scale))
}

fn widen(ranges: &mut [Option<(f32, f32)>], at: usize, by: Option<(f32, f32)>) {
    if let (Some((low, high)), Some((more_low, more_high))) = (ranges[at], by) {
        ranges[at] = Some((low.min(more_low), high.max(more_high)));
    }
}

/// A model in int8 that is being put together.
struct Maker<'a> {
    from: &'a LiteModel,
    scales: Vec<Option<Params>>,
    model: LiteModel,
    /// Tensors of the old model in f32, and in int8 with a scale.
    floats: FxHashMap<usize, usize>,
    bytes: FxHashMap<(usize, u32, i64), usize>,
}

impl Maker<'_> {
    fn plain(&mut self, code: OpCode, from: usize, to: usize) {
        let (inputs, outputs) = (vec![Some(from)], vec![to]);
        self.model.ops.push(LiteOp { code, inputs, outputs, options: Options::None, keeps_float: false });
    }

    /// A tensor as it was: stored, not a number, or in f32.
    fn float(&mut self, at: usize) -> usize {
        if let Some(&known) = self.floats.get(&at) {
            return known;
        }
        let made = self.model.push(self.from.tensors[at].clone());
        self.floats.insert(at, made);
        let own =
            self.scales[at].and_then(|(scale, zero)| self.bytes.get(&(at, scale.to_bits(), zero)).copied());
        if let Some(bytes) = own {
            self.plain(OpCode::Dequantize, bytes, made);
        }
        made
    }

    /// A tensor in int8 with a scale.
    fn int8(&mut self, at: usize, (scale, zero): Params) -> usize {
        let key = (at, scale.to_bits(), zero);
        if let Some(&known) = self.bytes.get(&key) {
            return known;
        }
        let old = &self.from.tensors[at];
        let quantization = Quantization::whole(scale, zero);
        let data = reals(old).map(|numbers| quantized(&numbers, &old.shape, &quantization));
        let is_stored = data.is_some();
        let made = LiteTensor {
            name: format!("{}/int8", old.name),
            ty: ElementType::I8,
            data,
            quantization: Some(quantization),
            ..old.clone()
        };
        let made = self.model.push(made);
        self.bytes.insert(key, made);
        if !is_stored {
            // From f32, or from bytes with another scale.
            let other = self.scales[at].and_then(|(s, z)| self.bytes.get(&(at, s.to_bits(), z)).copied());
            let from = match other.filter(|&other| other != made) {
                Some(other) => other,
                None => self.float(at),
            };
            self.plain(OpCode::Quantize, from, made);
        }
        made
    }

    /// What an op gives, in int8.
    fn result(&mut self, at: usize) -> Option<usize> {
        let (scale, zero) = self.scales[at]?;
        let old = &self.from.tensors[at];
        let quantization = Some(Quantization::whole(scale, zero));
        let made = LiteTensor { ty: ElementType::I8, quantization, ..old.clone() };
        let made = self.model.push(made);
        self.bytes.insert((at, scale.to_bits(), zero), made);
        Some(made)
    }

    fn constant_params(&self, at: usize) -> Params {
        let (low, high) = range_of(&self.from.tensors[at]).unwrap_or((0.0, 0.0));
        params(low, high)
    }

    /// Weights by channel, and a bias in int32 whose scale is that of input and weights.
    fn weights(&mut self, op: &LiteOp, inputs: &mut [Option<usize>], input_scale: f32) {
        let Some(axis) = channel_axis(op.code) else { return };
        let Some(w_at) = op.inputs[1] else { return };
        let tensor = &self.from.tensors[w_at];
        let Some(numbers) = reals(tensor) else { return };
        let mut scales = channel_scales(&numbers, &tensor.shape, axis);
        let place = if op.code == OpCode::TransposeConv { 3 } else { 2 };
        let bias_at = op.inputs.get(place).copied().flatten();
        let bias = bias_at.and_then(|at| reals(&self.from.tensors[at]));
        if let Some(bias) = &bias {
            // A bias that would not fit in 32 bits makes the channel's steps larger.
            for (scale, bias) in scales.iter_mut().zip(bias) {
                *scale = scale.max(bias.abs() / input_scale / (1u32 << 30) as f32);
            }
        }
        let stored = symmetric(tensor, &numbers, scales.clone(), axis);
        inputs[1] = Some(self.model.push(stored));
        let (Some(bias), Some(bias_at)) = (bias, bias_at) else { return };
        let scales: Vec<f32> = scales.iter().map(|scale| scale * input_scale).collect();
        let whole = |(x, scale): (&f32, &f32)| (f64::from(*x) / f64::from(*scale)).round() as i32;
        let data: Arc<[u8]> = bias.iter().zip(&scales).flat_map(|pair| whole(pair).to_le_bytes()).collect();
        let zero_points = vec![0; scales.len()];
        let made = LiteTensor {
            ty: ElementType::I32,
            data: Some(data),
            quantization: Some(Quantization { scales, zero_points, axis: 0 }),
            ..self.from.tensors[bias_at].clone()
        };
        inputs[place] = Some(self.model.push(made));
    }

    /// An op in int8.
    fn op(&mut self, op: &LiteOp) -> Option<()> {
        let kind = kind(op.code);
        let mut inputs: Vec<Option<usize>> = op.inputs.clone();
        let mut input_scale = 1.0;
        let reads = operands(self.from, op);
        let moved = self.scales[op.outputs[0]]?;
        for &(i, at) in &reads {
            let is_const = self.from.tensors[at].data.is_some();
            let params = match (kind, is_const) {
                (Kind::Moves, _) => moved,
                (_, true) => self.constant_params(at),
                (_, false) => self.scales[at]?,
            };
            input_scale = params.0;
            inputs[i] = Some(self.int8(at, params));
        }
        for (i, at) in op.inputs.iter().enumerate() {
            let is_done = reads.iter().any(|(place, _)| *place == i);
            let is_weight =
                kind == Kind::Weights && self.from.tensors[(*at).unwrap_or(0)].ty == ElementType::F32;
            if let Some(at) = at.filter(|_| !is_done && !is_weight) {
                inputs[i] = Some(self.float(at));
            }
        }
        if kind == Kind::Weights {
            self.weights(op, &mut inputs, input_scale);
        }
        let outputs = op.outputs.iter().map(|&at| self.result(at)).collect::<Option<Vec<usize>>>()?;
        self.model.ops.push(LiteOp { inputs, outputs, ..op.clone() });
        Some(())
    }
}

/// The model in int8.
pub(super) fn int8(model: &LiteModel, ranges: &Ranges, int8_ports: bool) -> Result<Quantized> {
    let (chosen, scales) = decide(model, ranges);
    let start = LiteModel { description: model.description.clone(), ..LiteModel::default() };
    let mut maker = Maker {
        from: model,
        scales,
        model: start,
        floats: FxHashMap::default(),
        bytes: FxHashMap::default(),
    };
    for (name, at) in &model.inputs {
        let is_bytes = int8_ports && model.tensors[*at].ty == ElementType::F32;
        let made = match is_bytes.then(|| maker.result(*at)).flatten() {
            Some(made) => made,
            None => maker.float(*at),
        };
        maker.model.inputs.push((name.clone(), made));
    }
    let mut floats: BTreeMap<String, usize> = BTreeMap::new();
    for (op, is_chosen) in model.ops.iter().zip(&chosen) {
        if *is_chosen && maker.op(op).is_some() {
            continue;
        }
        if op.outputs.iter().any(|&at| model.tensors[at].ty == ElementType::F32) {
            *floats.entry(op.code.name().into()).or_default() += 1;
        }
        let inputs = op.inputs.iter().map(|at| at.map(|at| maker.float(at))).collect();
        let outputs = op.outputs.iter().map(|&at| maker.float(at)).collect();
        maker.model.ops.push(LiteOp { inputs, outputs, ..op.clone() });
    }
    for (name, at) in &model.outputs {
        let own = maker.scales[*at]
            .and_then(|(scale, zero)| maker.bytes.get(&(*at, scale.to_bits(), zero)).copied());
        let made = match own.filter(|_| int8_ports) {
            Some(made) => made,
            None => maker.float(*at),
        };
        maker.model.outputs.push((name.clone(), made));
    }
    Ok(Quantized { model: maker.model.compact(), floats: floats.into_iter().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_one_of_the_numbers_and_the_ends_are_reached() {
        for (low, high) in [(0.0, 6.0), (-1.0, 3.0), (-5.0, 0.0), (-0.3, 0.4), (0.0, 0.0)] {
            let (scale, zero) = params(low, high);
            assert!((-128..=127).contains(&zero));
            let (least, most) = ((-128 - zero) as f32 * scale, (127 - zero) as f32 * scale);
            assert!(least <= low + scale && most >= high - scale, "{low} {high}: {least} {most}");
        }
        assert_eq!(params(0.0, 255.0), (1.0, -128));
    }
}
