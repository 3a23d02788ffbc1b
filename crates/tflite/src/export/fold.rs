//! Folds what stands around a layer of weights into it: scales and shifts of norms into weights and bias, activations into options, borders of
//! zeros into padding.

use super::spatial::same;
use crate::lite_model::{ElementType, LiteModel, LiteTensor};
use crate::ops::OpCode;
use crate::options::{Fused, Options, Padding};
use crate::values::{bytes_of, integers, reals};

/// A layer with weights: where they stand among its operands, and along which of their axes the results lie.
fn layer(code: OpCode) -> Option<(usize, usize)> {
    match code {
        OpCode::Conv2d | OpCode::FullyConnected => Some((1, 0)),
        OpCode::DepthwiseConv2d => Some((1, 3)),
        OpCode::TransposeConv => Some((1, 0)),
        _ => None,
    }
}

/// Where the bias stands among the operands.
fn bias_place(code: OpCode) -> usize {
    if code == OpCode::TransposeConv { 3 } else { 2 }
}

/// Folds until nothing is left to fold.
pub(super) fn fold(mut model: LiteModel) -> LiteModel {
    let mut makers: Vec<Option<usize>> = vec![None; model.tensors.len()];
    let uses = model.uses();
    let mut gone = vec![false; model.ops.len()];
    for i in 0..model.ops.len() {
        let op = model.ops[i].clone();
        let before = |at: Option<usize>| at.filter(|&at| uses[at] == 1).and_then(|at| makers[at]);
        if let Some(frame) = op.inputs.first().and_then(|x| before(*x)) {
            border_into_padding(&mut model, frame, i);
        }
        let folded = match op.code {
            // Relu6 of those who know no other name for it.
            OpCode::Minimum => [(0, 1), (1, 0)].into_iter().find_map(|(x, by)| {
                let (maker, by) = (before(op.inputs[x])?, &model.tensors[op.inputs[by]?]);
                let is_six = by.elements() == 1 && reals(by).is_some_and(|numbers| numbers == [6.0]);
                if !is_six {
                    return None;
                }
                match (model.ops[maker].code, model.ops[maker].options.fused()) {
                    (OpCode::Relu, _) => model.ops[maker].code = OpCode::Relu6,
                    (_, Some(Fused::Relu)) => model.ops[maker].options.set_fused(Fused::Relu6),
                    _ => return None,
                }
                Some(maker)
            }),
            OpCode::Mul | OpCode::Add | OpCode::Sub
                if op.options == (Options::Arithmetic { fused: Fused::None }) =>
            {
                let (a, b) = (op.inputs[0], op.inputs[1]);
                let pairs = if op.code == OpCode::Sub { vec![(a, b)] } else { vec![(a, b), (b, a)] };
                let found = pairs.into_iter().find_map(|(x, by)| {
                    let (maker, by) = (before(x)?, by?);
                    (model.tensors[op.outputs[0]].shape == model.tensors[x?].shape).then_some((maker, by))
                });
                match found {
                    Some((maker, by)) => (shift_or_scale(&mut model, maker, i, by)).then_some(maker),
                    None => None,
                }
            }
            _ => Fused::of(op.code).and_then(|fused| {
                let maker = before(op.inputs[0])?;
                let is_free = model.ops[maker].options.fused() == Some(Fused::None);
                is_free.then(|| {
                    model.ops[maker].options.set_fused(fused);
                    maker
                })
            }),
        };
        match folded {
            // What the op gave is given by the one before it, in its place: what lies between reads neither.
            Some(maker) => {
                let outputs = std::mem::take(&mut model.ops[i].outputs);
                makers[outputs[0]] = Some(maker);
                model.ops[maker].outputs = outputs;
                gone[i] = true;
            }
            None => {
                if let &[only] = &model.ops[i].outputs[..] {
                    makers[only] = Some(i);
                }
            }
        }
    }
    let mut kept = gone.iter().map(|gone| !gone);
    model.ops.retain(|_| kept.next().unwrap_or(true));
    model
}

/// Lets a convolution pad by itself where a border of zeros before it is what SAME would pad; the op that makes the border is then read by nobody.
fn border_into_padding(model: &mut LiteModel, frame: usize, op: usize) {
    let (border, conv) = (&model.ops[frame], &model.ops[op]);
    let (Options::Conv { padding, stride, dilation, .. }
    | Options::Depthwise { padding, stride, dilation, .. }) = conv.options
    else {
        return;
    };
    let (Some(x), Some(widths), Some(weights)) =
        (border.inputs[0], border.inputs.get(1).copied().flatten(), conv.inputs[1])
    else {
        return;
    };
    if border.code != OpCode::Pad || padding != Padding::Valid {
        return;
    }
    let Ok(widths) = integers(&model.tensors[widths]) else { return };
    let (size, window) = (&model.tensors[x].shape, &model.tensors[weights].shape);
    let of = |side: usize| {
        let (low, high) = same(size[1 + side], window[1 + side], stride[side], dilation[side]);
        [low as i64, high as i64]
    };
    // Height and width stand second and third in pictures and in both kinds of weights.
    if size.len() != 4
        || window.len() != 4
        || size.contains(&0)
        || widths != [[0, 0], of(0), of(1), [0, 0]].concat()
    {
        return;
    }
    let conv = &mut model.ops[op];
    conv.inputs[0] = Some(x);
    if let Options::Conv { padding, .. } | Options::Depthwise { padding, .. } = &mut conv.options {
        *padding = Padding::Same;
    }
}

/// Folds a product or sum with a constant into a layer of weights. Whether it could be.
fn shift_or_scale(model: &mut LiteModel, maker: usize, op: usize, by: usize) -> bool {
    let (code, layer_op) = (model.ops[op].code, model.ops[maker].clone());
    let Some((place, axis)) = layer(layer_op.code) else { return false };
    if layer_op.options.fused().unwrap_or(Fused::None) != Fused::None {
        return false;
    }
    let by = &model.tensors[by];
    let (Some(w_at), Some(factors)) = (layer_op.inputs[place], reals(by)) else { return false };
    let w = model.tensors[w_at].clone();
    let Some(mut weights) = reals(&w).filter(|_| w.ty == ElementType::F32 && by.ty == ElementType::F32)
    else {
        return false;
    };
    let channels = w.shape[axis];
    // One number, or one for each channel, along the last axis.
    let is_last = by.shape.last() == Some(&channels) && factors.len() == channels;
    if !is_last && factors.len() != 1 {
        return false;
    }
    let factor = |c: usize| f64::from(if factors.len() == 1 { factors[0] } else { factors[c] });
    let bias_at = layer_op.inputs.get(bias_place(layer_op.code)).copied().flatten();
    let mut bias = match bias_at {
        None => vec![0.0; channels],
        Some(at) => match reals(&model.tensors[at]) {
            Some(bias) => bias,
            None => return false,
        },
    };
    let name = bias_at.map_or_else(|| format!("{}/bias", w.name), |at| model.tensors[at].name.clone());
    match code {
        OpCode::Mul => {
            let inner: usize = w.shape[axis + 1..].iter().product();
            for (i, x) in weights.iter_mut().enumerate() {
                *x = (f64::from(*x) * factor(i / inner % channels)) as f32;
            }
            bias.iter_mut().enumerate().for_each(|(c, x)| *x = (f64::from(*x) * factor(c)) as f32);
            let folded = model.push(LiteTensor { data: Some(bytes_of(&weights)), ..w });
            model.ops[maker].inputs[place] = Some(folded);
        }
        _ => {
            let sign = if code == OpCode::Sub { -1.0 } else { 1.0 };
            bias.iter_mut().enumerate().for_each(|(c, x)| *x = (f64::from(*x) + sign * factor(c)) as f32);
        }
    }
    let folded = model.push(LiteTensor {
        name,
        shape: vec![channels],
        ty: ElementType::F32,
        data: Some(bytes_of(&bias)),
        quantization: None,
    });
    let at = bias_place(layer_op.code);
    let inputs = &mut model.ops[maker].inputs;
    inputs.resize(inputs.len().max(at + 1), None);
    inputs[at] = Some(folded);
    true
}
