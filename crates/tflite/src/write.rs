//! Turns a [`LiteModel`] into the bytes of a `.tflite` file.
//!
//! The tables are written field by field with the slots of the published schema: they are few, and code that is generated from the whole
//! schema would be twenty thousand lines.

use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::lite_model::{ElementType, LiteModel, LiteOp, Quantization};
use crate::ops::OpCode;
use crate::options::{Field, Options};

/// What stands at the beginning of a file.
pub(crate) const IDENTIFIER: &[u8; 4] = b"TFL3";
/// The version of the format.
pub(crate) const SCHEMA: u32 = 3;
/// The most bytes a file may have: its offsets have 31 bits.
const MOST: usize = (1 << 31) - (1 << 20);
/// Stored tensors begin at multiples of it, so that they can be read in place.
const ALIGNED: usize = 16;

type Builder = FlatBufferBuilder<'static>;
type Offset = WIPOffset<TableFinishedWIPOffset>;

/// A field of a table that is being written.
enum Slot {
    U8(u8),
    I8(i8),
    I32(i32),
    U32(u32),
    F32(f32),
    Flag(bool),
    /// Something that was written before.
    At(WIPOffset<()>),
}

fn placed<T>(offset: WIPOffset<T>) -> Slot {
    Slot::At(WIPOffset::new(offset.value()))
}

fn table(builder: &mut Builder, fields: &[(u16, Slot)]) -> Offset {
    let start = builder.start_table();
    for (slot, field) in fields {
        let at = 4 + 2 * slot;
        match field {
            Slot::U8(n) => builder.push_slot_always(at, *n),
            Slot::I8(n) => builder.push_slot_always(at, *n),
            Slot::I32(n) => builder.push_slot_always(at, *n),
            Slot::U32(n) => builder.push_slot_always(at, *n),
            Slot::F32(n) => builder.push_slot_always(at, *n),
            Slot::Flag(is) => builder.push_slot_always(at, *is),
            Slot::At(offset) => builder.push_slot_always(at, *offset),
        }
    }
    builder.end_table(start)
}

fn ints(builder: &mut Builder, values: impl Iterator<Item = usize>) -> Slot {
    let values: Vec<i32> = values.map(|n| n as i32).collect();
    placed(builder.create_vector(&values))
}

fn tables(builder: &mut Builder, all: &[Offset]) -> Slot {
    placed(builder.create_vector(all))
}

/// Pads until so many more bytes end at an aligned place: a file is written from its end to its beginning.
fn align(builder: &mut Builder, more: usize) {
    while !(builder.unfinished_data().len() + more).is_multiple_of(ALIGNED) {
        builder.push(0u8);
    }
}

/// The bytes of a file.
pub(crate) fn write(model: &LiteModel) -> Result<Vec<u8>> {
    let stored: usize = model.tensors.iter().filter_map(|t| t.data.as_ref()).map(|data| data.len()).sum();
    if stored > MOST {
        let why = format!("its weights have {stored} bytes, and a file of this format ends at {MOST}");
        return Err(Error::export(model.description.clone(), why));
    }
    let mut builder = FlatBufferBuilder::with_capacity(stored + (1 << 16));
    let builder = &mut builder;
    // The first buffer is empty: what is computed has no bytes.
    let mut buffers = vec![table(builder, &[])];
    let mut tensors = Vec::new();
    let mut zero_points: ZeroPoints<'_> = FxHashMap::default();
    for tensor in &model.tensors {
        let buffer = match &tensor.data {
            None => 0,
            Some(data) => {
                // A byte string is followed by a zero.
                align(builder, data.len() + 1);
                let bytes = placed(builder.create_byte_string(data));
                buffers.push(table(builder, &[(0, bytes)]));
                buffers.len() - 1
            }
        };
        let (name, shape) =
            (placed(builder.create_string(&tensor.name)), ints(builder, tensor.shape.iter().copied()));
        let mut fields =
            vec![(0, shape), (1, Slot::I8(tensor.ty.number())), (2, Slot::U32(buffer as u32)), (3, name)];
        if let Some(found) = &tensor.quantization {
            fields.push((4, placed(quantization(builder, found, &mut zero_points))));
        }
        fields.push((8, Slot::Flag(true)));
        tensors.push(table(builder, &fields));
    }
    let mut codes: Vec<(OpCode, i32)> = Vec::new();
    let mut known: FxHashMap<OpCode, usize> = FxHashMap::default();
    let mut ops = Vec::new();
    for op in &model.ops {
        let version = version(op, model);
        let index = *known.entry(op.code).or_insert_with(|| {
            codes.push((op.code, version));
            codes.len() - 1
        });
        // One number for all ops of a kind: the newest that one of them needs.
        codes[index].1 = codes[index].1.max(version);
        let inputs: Vec<i32> = op.inputs.iter().map(|id| id.map_or(-1, |id| id as i32)).collect();
        let inputs = placed(builder.create_vector(&inputs));
        let outputs = ints(builder, op.outputs.iter().copied());
        let mut fields = vec![(0, Slot::U32(index as u32)), (1, inputs), (2, outputs)];
        if op.options != Options::None {
            let told = options(builder, &op.options);
            fields.push((3, Slot::U8(op.code.options())));
            fields.push((4, placed(told)));
        }
        ops.push(table(builder, &fields));
    }
    let graph_name = placed(builder.create_string("main"));
    let graph = vec![
        (0, tables(builder, &tensors)),
        (1, ints(builder, model.inputs.iter().map(|(_, id)| *id))),
        (2, ints(builder, model.outputs.iter().map(|(_, id)| *id))),
        (3, tables(builder, &ops)),
        (4, graph_name),
    ];
    let graph = table(builder, &graph);
    let codes: Vec<Offset> = codes
        .iter()
        .map(|&(code, version)| {
            let code = code as i32;
            let old = code.min(127) as i8;
            table(builder, &[(0, Slot::I8(old)), (2, Slot::I32(version)), (3, Slot::I32(code))])
        })
        .collect();
    let signature = signature(builder, model);
    let description = placed(builder.create_string(&model.description));
    let root = vec![
        (0, Slot::U32(SCHEMA)),
        (1, tables(builder, &codes)),
        (2, tables(builder, &[graph])),
        (3, description),
        (4, tables(builder, &buffers)),
        (7, tables(builder, &[signature])),
    ];
    let root = table(builder, &root);
    // The place of the root and the mark come first.
    align(builder, 8);
    builder.finish(root, Some("TFL3"));
    Ok(builder.finished_data().to_vec())
}

/// Zero points that were written: those of weights and biases are all zero, eight bytes a channel, and one list does for all of a length.
type ZeroPoints<'a> = FxHashMap<&'a [i64], WIPOffset<()>>;

fn quantization<'a>(builder: &mut Builder, found: &'a Quantization, known: &mut ZeroPoints<'a>) -> Offset {
    let scales = placed(builder.create_vector(&found.scales));
    let zero_points = *known
        .entry(&found.zero_points)
        .or_insert_with(|| WIPOffset::new(builder.create_vector(&found.zero_points).value()));
    table(builder, &[(2, scales), (3, Slot::At(zero_points)), (6, Slot::I32(found.axis as i32))])
}

fn options(builder: &mut Builder, told: &Options) -> Offset {
    let mut fields = Vec::new();
    for (slot, field) in told.fields() {
        fields.push((
            slot,
            match field {
                Field::Byte(n) => Slot::I8(n),
                Field::Int(n) => Slot::I32(n),
                Field::Float(x) => Slot::F32(x),
                Field::Flag(is) => Slot::Flag(is),
                Field::Ints(values) => placed(builder.create_vector(&values)),
            },
        ));
    }
    table(builder, &fields)
}

/// Under which names inputs and outputs are asked for.
fn signature(builder: &mut Builder, model: &LiteModel) -> Offset {
    let mut ports = |all: &[(String, usize)]| {
        let one = |(name, id): &(String, usize)| {
            let name = placed(builder.create_string(name));
            table(builder, &[(0, name), (1, Slot::U32(*id as u32))])
        };
        let all: Vec<Offset> = all.iter().map(one).collect();
        tables(builder, &all)
    };
    let (inputs, outputs) = (ports(&model.inputs), ports(&model.outputs));
    let key = placed(builder.create_string("serving_default"));
    table(builder, &[(0, inputs), (1, outputs), (2, key), (4, Slot::U32(0))])
}

/// The version of an op from which on it does what it is asked to: runtimes that are older refuse the file instead of doing something else.
fn version(op: &LiteOp, model: &LiteModel) -> i32 {
    let ty = |i: usize| op.inputs.get(i).copied().flatten().map(|id| model.tensors[id].ty);
    let rank = |i: usize| op.inputs.get(i).copied().flatten().map_or(0, |id| model.tensors[id].shape.len());
    let is_int8 = ty(0) == Some(ElementType::I8);
    let (f32, i8) = (Some(ElementType::F32), Some(ElementType::I8));
    let hybrid = ty(0) == f32 && ty(1) == i8;
    use OpCode as C;
    match op.code {
        C::Conv2d if is_int8 => 3,
        C::Conv2d if hybrid => 5,
        C::DepthwiseConv2d if is_int8 => 3,
        C::DepthwiseConv2d if hybrid => 6,
        C::DepthwiseConv2d => match op.options {
            Options::Depthwise { dilation: [1, 1], .. } => 1,
            _ => 2,
        },
        C::FullyConnected => match op.options {
            _ if hybrid => 9,
            _ if is_int8 && rank(0) > 2 => 5,
            _ if is_int8 => 4,
            _ if op.inputs.get(2).copied().flatten().is_none() => 6,
            Options::FullyConnected { keeps_axes: true, .. } => 5,
            _ => 1,
        },
        C::TransposeConv if op.inputs.len() > 3 => 3,
        C::TransposeConv if ty(1) == i8 => 2,
        C::BatchMatMul if is_int8 => 2,
        C::Gather | C::StridedSlice if is_int8 => 2,
        C::Slice if is_int8 => 2,
        C::Transpose if rank(0) > 4 => 4,
        C::Dequantize => match ty(0) {
            Some(ElementType::F16) => 3,
            _ => 2,
        },
        C::ResizeBilinear | C::ResizeNearestNeighbor => match op.options {
            Options::Bilinear { half_pixel: true, .. } | Options::Nearest { half_pixel: true, .. } => 3,
            _ if is_int8 => 2,
            _ => 1,
        },
        C::Quantize if is_int8 => 2,
        C::Gelu if is_int8 => 2,
        C::Add | C::Sub | C::Mul | C::Concatenation | C::Mean | C::Sum | C::MaxPool2d | C::AveragePool2d
            if is_int8 =>
        {
            2
        }
        C::Pad | C::PadV2 | C::Softmax | C::Logistic | C::Tanh | C::Relu | C::Relu6 | C::LeakyRelu
            if is_int8 =>
        {
            2
        }
        C::Maximum | C::Minimum | C::Transpose | C::LogSoftmax | C::ReduceMax | C::ReduceMin if is_int8 => 2,
        C::Split if is_int8 => 2,
        C::SplitV if is_int8 => 2,
        C::Equal | C::NotEqual | C::Less | C::LessEqual | C::Greater | C::GreaterEqual if is_int8 => 2,
        _ => 1,
    }
}
