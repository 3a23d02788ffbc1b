//! Turns a model into one that computes the same in a smaller arena: wide layers run in parts of their channels, one after the other.
//!
//! A convolution makes each channel of its result by itself, and a depthwise convolution or a pooling behind it keeps channels apart. So all of
//! them can be done for some channels, then for the next ones, and what comes out is joined: nothing is computed twice, and every number is the
//! same. What is never there at once is the wide tensor between them, which is what most arenas are full of.

use std::ops::Range;
use std::sync::Arc;

use plimsoll_nn::blocks::Unwritable;

use crate::error::{Error, Result};
use crate::lite_model::{LiteModel, LiteOp, LiteTensor};
use crate::ops::OpCode;
use crate::options::Options;
use crate::write::write;

/// Into how many parts layers are cut.
const PARTS: [usize; 5] = [2, 3, 4, 6, 8];
/// So many chains of layers are looked at: each is written and planned several times.
const MOST_CHAINS: usize = 12;

/// A model within a limit.
pub(crate) struct Shrunk {
    pub model: LiteModel,
    /// How many layers run in parts.
    pub in_parts: usize,
}

/// The bytes of the arena in which a file runs.
///
/// # Errors
/// It is not run here.
pub(crate) fn arena_bytes(file: &[u8]) -> Result<usize, String> {
    plimsoll_lite::Model::load(file).map(|model| model.arena_bytes()).map_err(|why| why.to_string())
}

/// The model in an arena of at most so many bytes.
///
/// # Errors
/// It takes more however it is cut: said how much the least was that was found. Or it is not run here, so that nobody knows.
pub(crate) fn within(mut model: LiteModel, limit: usize) -> Result<Shrunk> {
    let arena = |model: &LiteModel| -> Result<usize> {
        arena_bytes(&write(model)?).map_err(|why| {
            let why = format!("plimsoll-lite does not run the model, so that its arena is not known: {why}");
            Error::Export(Unwritable::new("a limit of memory", why))
        })
    };
    let mut least = arena(&model)?;
    let mut in_parts = 0;
    let mut tried: Vec<String> = Vec::new();
    while least > limit && tried.len() < MOST_CHAINS {
        let Some(chain) = widest(&model, &tried) else { break };
        tried.push(model.tensors[model.ops[chain[0]].outputs[0]].name.clone());
        let mut best: Option<(usize, LiteModel)> = None;
        for parts in PARTS {
            let Some(cut) = cut(&model, &chain, parts) else { continue };
            let bytes = arena(&cut)?;
            if best.as_ref().is_none_or(|(known, _)| bytes < *known) {
                best = Some((bytes, cut));
            }
            if bytes <= limit {
                break;
            }
        }
        if let Some((bytes, cut)) = best.filter(|(bytes, _)| *bytes < least) {
            (least, model, in_parts) = (bytes, cut, in_parts + chain.len());
        }
    }
    if least > limit {
        return Err(Error::Arena { least, limit });
    }
    Ok(Shrunk { model, in_parts })
}

/// A convolution and the ops behind it that keep channels apart, each the only one that reads the one before: of all such chains that with the
/// most bytes in it.
fn widest(model: &LiteModel, tried: &[String]) -> Option<Vec<usize>> {
    let uses = model.uses();
    let bytes = |op: &usize| {
        let tensor = &model.tensors[model.ops[*op].outputs[0]];
        tensor.elements() * tensor.ty.bytes()
    };
    let chain = |(first, op): (usize, &LiteOp)| {
        let &[wide] = &op.outputs[..] else { return None };
        let name = &model.tensors[wide].name;
        let is_new = tried.iter().all(|known| name != known && !name.starts_with(&format!("{known}/part")));
        let stored =
            |i: usize| op.inputs.get(i).copied().flatten().is_none_or(|at| model.tensors[at].data.is_some());
        // Of a grouped convolution each part would read other channels.
        let read =
            |i: usize| op.inputs.get(i).copied().flatten().and_then(|at| model.tensors[at].shape.get(3));
        if op.code != OpCode::Conv2d || read(0) != read(1) || !is_new || !stored(1) || !stored(2) {
            return None;
        }
        let (mut chain, mut last) = (vec![first], wide);
        while uses[last] == 1
            && let Some(at) = model.ops.iter().position(|op| op.inputs.first() == Some(&Some(last)))
            && keeps_apart(model, &model.ops[at])
        {
            chain.push(at);
            last = model.ops[at].outputs[0];
        }
        let most = chain.windows(2).map(|pair| pair.iter().map(bytes).sum::<usize>()).max()?;
        Some((most, chain))
    };
    let found = model.ops.iter().enumerate().filter_map(chain);
    found.max_by_key(|(most, chain)| (*most, usize::MAX - chain[0])).map(|(_, chain)| chain)
}

/// Whether each channel of an op's result comes of the same channel of what it reads.
fn keeps_apart(model: &LiteModel, op: &LiteOp) -> bool {
    let channels = |at: usize| model.tensors[at].shape.last().copied();
    let is_same = op.inputs[0].and_then(channels) == channels(op.outputs[0]);
    let stored = op.inputs.iter().skip(1).flatten().all(|&at| model.tensors[at].data.is_some());
    match (op.code, &op.options) {
        (OpCode::MaxPool2d | OpCode::AveragePool2d | OpCode::Relu | OpCode::Relu6, _) => true,
        // With one number for all elements.
        (OpCode::Minimum | OpCode::Maximum, _) => {
            let single = |at: &usize| model.tensors[*at].data.is_some() && model.tensors[*at].elements() == 1;
            is_same && op.inputs.iter().skip(1).flatten().all(single)
        }
        (OpCode::Pad, _) => is_same && stored && model.tensors[op.outputs[0]].shape.len() == 4,
        (OpCode::DepthwiseConv2d, Options::Depthwise { multiplier: 1, .. }) => is_same && stored,
        _ => false,
    }
}

/// The model with a chain of ops in parts; none where their channels do not come in so many.
fn cut(model: &LiteModel, chain: &[usize], parts: usize) -> Option<LiteModel> {
    let mut made = LiteModel { ops: Vec::new(), ..model.clone() };
    let end = *chain.last()?;
    let out = model.ops[end].outputs[0];
    let axis = model.tensors[out].shape.len().checked_sub(1)?;
    let channels = model.tensors[out].shape[axis];
    if !channels.is_multiple_of(parts) || channels <= parts {
        return None;
    }
    let each = channels / parts;
    let mut pieces = Vec::new();
    let mut ops = Vec::new();
    for part in 0..parts {
        let range = part * each..(part + 1) * each;
        let mut before = None;
        for &at in chain {
            let op = &model.ops[at];
            let output = made.push(piece(&model.tensors[op.outputs[0]], axis, each, part));
            let mut of_part = of_part(&mut made, op, &range, output)?;
            if before.is_some() {
                of_part.inputs[0] = before;
            }
            ops.push(of_part);
            before = Some(output);
        }
        pieces.push(before);
    }
    ops.push(LiteOp {
        code: OpCode::Concatenation,
        inputs: pieces,
        outputs: vec![out],
        options: Options::Concatenation { axis: axis as i32 },
        keeps_float: model.ops[end].keeps_float,
    });
    for (i, op) in model.ops.iter().enumerate() {
        match i {
            i if i == end => made.ops.append(&mut ops),
            i if chain.contains(&i) => {}
            _ => made.ops.push(op.clone()),
        }
    }
    Some(made.compact())
}

/// A part of a computed tensor.
fn piece(whole: &LiteTensor, axis: usize, each: usize, part: usize) -> LiteTensor {
    let mut shape = whole.shape.clone();
    shape[axis] = each;
    LiteTensor { name: format!("{}/part{part}", whole.name), shape, ..whole.clone() }
}

/// An op for some channels, over its weights for those.
fn of_part(model: &mut LiteModel, op: &LiteOp, range: &Range<usize>, output: usize) -> Option<LiteOp> {
    let mut inputs = op.inputs.clone();
    if !matches!(op.code, OpCode::Conv2d | OpCode::DepthwiseConv2d) {
        return Some(LiteOp { inputs, outputs: vec![output], ..op.clone() });
    }
    for (i, at) in inputs.iter_mut().enumerate().skip(1) {
        let Some(stored) = at.map(|at| model.tensors[at].clone()) else { continue };
        // Weights of a convolution lie `[channels, height, width, inputs]`, depthwise ones have channels last, a bias has nothing else.
        let axis = if i == 1 && op.code == OpCode::DepthwiseConv2d { 3 } else { 0 };
        *at = Some(model.push(sliced(&stored, axis, range)?));
    }
    Some(LiteOp { inputs, outputs: vec![output], ..op.clone() })
}

/// A stored tensor from one place of an axis to another, with the scales that are its own.
fn sliced(tensor: &LiteTensor, axis: usize, range: &Range<usize>) -> Option<LiteTensor> {
    let data = tensor.data.as_deref()?;
    let length = *tensor.shape.get(axis).filter(|length| range.end <= **length)?;
    let inner = tensor.shape[axis + 1..].iter().product::<usize>() * tensor.ty.bytes();
    let rows = data.chunks_exact((length * inner).max(1));
    let data: Arc<[u8]> =
        rows.flat_map(|row| &row[range.start * inner..range.end * inner]).copied().collect();
    let mut shape = tensor.shape.clone();
    shape[axis] = range.len();
    let mut quantization = tensor.quantization.clone();
    if let Some(q) =
        quantization.as_mut().filter(|q| q.scales.len() == length && q.axis == axis && length > 1)
    {
        q.scales = q.scales[range.clone()].to_vec();
        q.zero_points = q.zero_points[range.clone()].to_vec();
    }
    let name = format!("{}/{}", tensor.name, range.start);
    Some(LiteTensor { name, shape, data: Some(data), quantization, ..tensor.clone() })
}
