//! Makes a model smaller: weights of 16 bits, weights of 8 bits, or all of it in whole numbers of 8 bits.

mod calibrate;
mod int8;

use plimsoll_run::Tensor;
use rustc_hash::FxHashMap;

use crate::error::Result;
use crate::lite_model::{ElementType, LiteModel, LiteOp, LiteTensor, Quantization};
use crate::ops::OpCode;
use crate::options::Options;
use crate::values::{quantized, reals};

/// How the numbers of a model are written.
#[derive(Clone, Default)]
pub enum Quantize {
    /// As they are, in f32.
    #[default]
    No,
    /// Weights in f16; all is computed in f32.
    HalfWeights,
    /// Weights of dense layers, convolutions and tables in int8, a scale for each of their channels; what is computed stays f32.
    DynamicRange,
    /// Weights and all that is computed in int8, with ranges that are found on data.
    Int8(Calibration),
}

/// Data on which the ranges of what is computed are found.
#[derive(Clone)]
pub struct Calibration {
    /// Batches of inputs, each as the file takes it.
    pub samples: Vec<Vec<Tensor>>,
    /// How ranges follow from what was seen.
    pub range: Range,
    /// Whether inputs and outputs of the model are int8 too, instead of f32.
    pub int8_ports: bool,
}

/// How the range of a tensor follows from its values.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Range {
    /// From the least to the most.
    #[default]
    MinMax,
    /// As much of it as holds this share of the values, in percent.
    Percentile(f64),
    /// The one whose 256 numbers tell most of how the values are spread (least Kullback-Leibler divergence).
    Entropy,
}

/// A quantized model.
pub(crate) struct Quantized {
    pub model: LiteModel,
    /// Ops that stay in floating point, by name and how often.
    pub floats: Vec<(String, usize)>,
}

/// Weights with fewer elements stay as they are: a scale for each channel would cost as much.
const LEAST_HALF: usize = 64;
const LEAST_INT8: usize = 1024;

/// A model in fewer bits. Weights that stay as they are are shared with the one that was given.
pub(crate) fn quantize(model: &LiteModel, how: &Quantize) -> Result<Quantized> {
    let plain = |model: LiteModel| Quantized { model: model.compact(), floats: Vec::new() };
    match how {
        Quantize::No => Ok(plain(model.clone())),
        Quantize::HalfWeights => Ok(plain(half_weights(model.clone()))),
        Quantize::DynamicRange => Ok(plain(dynamic_range(model.clone()))),
        Quantize::Int8(calibration) => {
            let ranges = calibrate::ranges(model, calibration)?;
            int8::int8(model, &ranges, calibration.int8_ports)
        }
    }
}

/// An op that turns a stored tensor into numbers of f32.
fn dequantize(from: usize, to: usize) -> LiteOp {
    LiteOp {
        code: OpCode::Dequantize,
        inputs: vec![Some(from)],
        outputs: vec![to],
        options: Options::None,
        keeps_float: true,
    }
}

fn half_weights(mut model: LiteModel) -> LiteModel {
    let mut first = Vec::new();
    for at in 0..model.tensors.len() {
        let tensor = &model.tensors[at];
        if tensor.ty != ElementType::F32 || tensor.elements() < LEAST_HALF {
            continue;
        }
        let Some(numbers) = reals(tensor) else { continue };
        if numbers.iter().any(|x| x.abs() > half::f16::MAX.to_f32()) {
            continue;
        }
        let data = numbers.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect();
        let stored = LiteTensor {
            name: format!("{}/f16", tensor.name),
            ty: ElementType::F16,
            data: Some(data),
            ..tensor.clone()
        };
        let stored = model.push(stored);
        model.tensors[at].data = None;
        first.push(dequantize(stored, at));
    }
    first.append(&mut model.ops);
    LiteModel { ops: first, ..model }
}

/// The axis of an op's weights along which its results lie.
fn channel_axis(code: OpCode) -> Option<usize> {
    match code {
        OpCode::Conv2d | OpCode::FullyConnected | OpCode::TransposeConv => Some(0),
        OpCode::DepthwiseConv2d => Some(3),
        _ => None,
    }
}

/// Scales of weights, one for each place along an axis: -127 to 127 reaches the largest.
fn channel_scales(numbers: &[f32], shape: &[usize], axis: usize) -> Vec<f32> {
    let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let mut most = vec![0.0f32; n];
    for (i, x) in numbers.iter().enumerate() {
        let at = i / inner.max(1) % n;
        most[at] = most[at].max(x.abs());
    }
    most.iter().map(|most| if *most > 0.0 { (most / 127.0).max(f32::MIN_POSITIVE) } else { 1.0 }).collect()
}

/// Weights in int8, symmetric, with these scales.
fn symmetric(tensor: &LiteTensor, numbers: &[f32], scales: Vec<f32>, axis: usize) -> LiteTensor {
    let zero_points = vec![0; scales.len()];
    let quantization = Quantization { scales, zero_points, axis };
    let data = quantized(numbers, &tensor.shape, &quantization);
    LiteTensor { ty: ElementType::I8, data: Some(data), quantization: Some(quantization), ..tensor.clone() }
}

fn dynamic_range(mut model: LiteModel) -> LiteModel {
    // By tensor and axis, so that what several ops share is stored once.
    let mut known: FxHashMap<(usize, Option<usize>), usize> = FxHashMap::default();
    let mut ops = Vec::new();
    for mut op in std::mem::take(&mut model.ops) {
        let place = if op.code == OpCode::Gather { 0 } else { 1 };
        let axis = channel_axis(op.code);
        let weights =
            op.inputs.get(place).copied().flatten().filter(|_| axis.is_some() || op.code == OpCode::Gather);
        let large = weights.filter(|&at| {
            model.tensors[at].ty == ElementType::F32 && model.tensors[at].elements() >= LEAST_INT8
        });
        let numbers = large.and_then(|at| Some((at, reals(&model.tensors[at])?)));
        let Some((at, numbers)) = numbers else {
            ops.push(op);
            continue;
        };
        let stored = *known.entry((at, axis)).or_insert_with(|| {
            let tensor = &model.tensors[at];
            let scales = match axis {
                Some(axis) => channel_scales(&numbers, &tensor.shape, axis),
                None => channel_scales(&numbers, &[1, tensor.elements()], 0),
            };
            let stored = symmetric(tensor, &numbers, scales, axis.unwrap_or(0));
            model.push(stored)
        });
        match op.code {
            // Rows of bytes are taken, then turned into numbers.
            OpCode::Gather => {
                let quantization = model.tensors[stored].quantization.clone();
                let made = op.outputs[0];
                let rows = LiteTensor {
                    name: format!("{}/int8", model.tensors[made].name),
                    ty: ElementType::I8,
                    quantization,
                    ..model.tensors[made].clone()
                };
                let rows = model.push(rows);
                op.inputs[0] = Some(stored);
                op.outputs[0] = rows;
                ops.push(op);
                ops.push(dequantize(rows, made));
            }
            // No runtime multiplies f32 with bytes there.
            OpCode::TransposeConv => {
                let numbers = LiteTensor { data: None, ..model.tensors[at].clone() };
                let numbers = model.push(numbers);
                ops.push(dequantize(stored, numbers));
                op.inputs[1] = Some(numbers);
                ops.push(op);
            }
            _ => {
                if let Options::FullyConnected { asymmetric, .. } = &mut op.options {
                    *asymmetric = true;
                }
                op.inputs[1] = Some(stored);
                ops.push(op);
            }
        }
    }
    LiteModel { ops, ..model }
}
