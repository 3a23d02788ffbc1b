//! A TensorFlow Lite model as plain data: tensors, and ops over them in the order in which they run.

use std::sync::Arc;

use plimsoll_graph::DType;
use rustc_hash::FxHashMap;

use crate::ops::OpCode;
use crate::options::Options;

/// The type of a tensor's elements, each with its number in the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(i8)]
pub enum ElementType {
    F32 = 0,
    F16 = 1,
    I32 = 2,
    U8 = 3,
    I64 = 4,
    Bool = 6,
    I16 = 7,
    I8 = 9,
}

impl ElementType {
    const ALL: [ElementType; 8] = [
        ElementType::F32,
        ElementType::F16,
        ElementType::I32,
        ElementType::U8,
        ElementType::I64,
        ElementType::Bool,
        ElementType::I16,
        ElementType::I8,
    ];

    /// Its number in the schema.
    pub(crate) fn number(self) -> i8 {
        self as i8
    }

    /// The type of a number.
    pub(crate) fn of(number: i8) -> Option<ElementType> {
        ElementType::ALL.into_iter().find(|ty| ty.number() == number)
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            ElementType::U8 | ElementType::Bool | ElementType::I8 => 1,
            ElementType::F16 | ElementType::I16 => 2,
            ElementType::F32 | ElementType::I32 => 4,
            ElementType::I64 => 8,
        }
    }

    /// The engine's type of the same bytes.
    pub fn dtype(self) -> DType {
        match self {
            ElementType::F32 => DType::F32,
            ElementType::F16 => DType::F16,
            ElementType::I32 => DType::I32,
            ElementType::U8 => DType::U8,
            ElementType::I64 => DType::I64,
            ElementType::Bool => DType::Bool,
            ElementType::I16 => DType::I16,
            ElementType::I8 => DType::I8,
        }
    }

    /// The type of the same bytes as the engine's; none where TensorFlow Lite computes with no such elements.
    pub fn of_dtype(dtype: DType) -> Option<ElementType> {
        Some(match dtype {
            DType::F32 => ElementType::F32,
            DType::F16 => ElementType::F16,
            DType::I32 => ElementType::I32,
            DType::U8 => ElementType::U8,
            DType::I64 => ElementType::I64,
            DType::Bool => ElementType::Bool,
            DType::I16 => ElementType::I16,
            DType::I8 => ElementType::I8,
            DType::F64 | DType::BF16 | DType::U32 | DType::U16 => return None,
        })
    }
}

/// How whole numbers stand for others: real = scale · (stored - zero point), for the tensor or for every place along an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// One scale, or one for every place along the axis.
    pub scales: Vec<f32>,
    /// As many zero points.
    pub zero_points: Vec<i64>,
    /// The axis.
    pub axis: usize,
}

impl Quantization {
    /// One scale and zero point for all.
    pub fn whole(scale: f32, zero_point: i64) -> Quantization {
        Quantization { scales: vec![scale], zero_points: vec![zero_point], axis: 0 }
    }

    /// The scale and zero point, where they are one for all.
    pub fn one(&self) -> Option<(f32, i64)> {
        match (&self.scales[..], &self.zero_points[..]) {
            (&[scale], &[zero_point]) => Some((scale, zero_point)),
            _ => None,
        }
    }
}

/// A tensor: computed, given, or stored with its bytes (little-endian).
#[derive(Clone, Debug, PartialEq)]
pub struct LiteTensor {
    /// Its name.
    pub name: String,
    /// Its lengths.
    pub shape: Vec<usize>,
    /// What its elements are.
    pub ty: ElementType,
    /// Its bytes, where they are stored.
    pub data: Option<Arc<[u8]>>,
    /// What its whole numbers stand for.
    pub quantization: Option<Quantization>,
}

impl LiteTensor {
    /// How many elements there are.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// An op over tensors, by their places in [`LiteModel::tensors`].
#[derive(Clone, Debug, PartialEq)]
pub struct LiteOp {
    /// What is computed.
    pub code: OpCode,
    /// What is read; none where an operand is left out.
    pub inputs: Vec<Option<usize>>,
    /// What is written.
    pub outputs: Vec<usize>,
    /// What it is told beside.
    pub options: Options,
    /// Whether it stays in floating point when the model is quantized; not in the file.
    pub keeps_float: bool,
}

/// A model.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct LiteModel {
    /// What it is, in words.
    pub description: String,
    /// All tensors.
    pub tensors: Vec<LiteTensor>,
    /// All ops, in order.
    pub ops: Vec<LiteOp>,
    /// What is given, with the names under which it is asked for.
    pub inputs: Vec<(String, usize)>,
    /// What comes out, with its names.
    pub outputs: Vec<(String, usize)>,
}

impl LiteModel {
    /// Adds a tensor and says its place.
    pub(crate) fn push(&mut self, tensor: LiteTensor) -> usize {
        self.tensors.push(tensor);
        self.tensors.len() - 1
    }

    /// How many ops read each tensor; leaving the model counts too.
    pub(crate) fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.tensors.len()];
        let read = self.ops.iter().flat_map(|op| op.inputs.iter().flatten().copied());
        read.chain(self.outputs.iter().map(|(_, id)| *id)).for_each(|id| uses[id] += 1);
        uses
    }

    /// Removes ops whose results nobody reads, then tensors that no op names, and stores equal bytes once.
    pub(crate) fn compact(mut self) -> LiteModel {
        let mut wanted = vec![false; self.tensors.len()];
        self.outputs.iter().for_each(|(_, id)| wanted[*id] = true);
        let mut kept: Vec<LiteOp> = Vec::new();
        for op in std::mem::take(&mut self.ops).into_iter().rev() {
            if op.outputs.iter().any(|&id| wanted[id]) {
                op.inputs.iter().flatten().chain(&op.outputs).for_each(|&id| wanted[id] = true);
                kept.push(op);
            }
        }
        kept.reverse();
        self.inputs.iter().for_each(|(_, id)| wanted[*id] = true);
        let mut place = vec![0; self.tensors.len()];
        let mut tensors: Vec<LiteTensor> = Vec::new();
        // Where constants of the same bytes, shape and type are: they differ in how they are quantized.
        type Constant = (Arc<[u8]>, Vec<usize>, ElementType);
        let mut same: FxHashMap<Constant, Vec<usize>> = FxHashMap::default();
        for (i, tensor) in
            std::mem::take(&mut self.tensors).into_iter().enumerate().filter(|(i, _)| wanted[*i])
        {
            if let Some(data) = &tensor.data {
                let key = (data.clone(), tensor.shape.clone(), tensor.ty);
                let known = same.entry(key).or_default();
                if let Some(&at) = known.iter().find(|&&at| tensors[at].quantization == tensor.quantization) {
                    place[i] = at;
                    continue;
                }
                known.push(tensors.len());
            }
            place[i] = tensors.len();
            tensors.push(tensor);
        }
        for op in &mut kept {
            op.inputs.iter_mut().flatten().for_each(|id| *id = place[*id]);
            op.outputs.iter_mut().for_each(|id| *id = place[*id]);
        }
        self.inputs.iter_mut().chain(&mut self.outputs).for_each(|(_, id)| *id = place[*id]);
        LiteModel { tensors, ops: kept, ..self }
    }
}
