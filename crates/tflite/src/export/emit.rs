//! Collects the tensors and ops of a model that is being written, with the constants that are known beforehand.
//!
//! What becomes of each op of ours is in `ops`; windows over images (`spatial`) and ops over sequences (`sequence`) have files of their own.

use std::sync::Arc;

use plimsoll_graph::{DType, Graph, Node, Op, Shape, Site, TensorOps, Type, ValueId};
use plimsoll_run::Tensor;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::{Error, Result, refuse};
use crate::lite_model::{ElementType, LiteModel, LiteOp, LiteTensor};
use crate::ops::OpCode;
use crate::options::{Fused, Options};
use crate::values::bytes_of;

/// Constants that would have more elements than this, and more than what they are made of, are left to the runtime.
const MOST_FOLDED: usize = 1 << 16;

pub(super) struct Emitter<'a> {
    pub graph: &'a Graph,
    pub model: LiteModel,
    /// Tensors of the file by the values they hold.
    at: FxHashMap<ValueId, usize>,
    /// Values that are known: parameters, constants, and what follows from them.
    known: FxHashMap<ValueId, (String, Tensor)>,
    lists: FxHashMap<Vec<i32>, usize>,
    /// The scope of the node at hand.
    scope: String,
    /// Whether what is added stays in floating point.
    pub keeps_float: bool,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(graph: &'a Graph, description: &str) -> Emitter<'a> {
        Emitter {
            graph,
            model: LiteModel { description: description.into(), ..LiteModel::default() },
            at: FxHashMap::default(),
            known: FxHashMap::default(),
            lists: FxHashMap::default(),
            scope: String::new(),
            keeps_float: false,
        }
    }

    /// An input of the model.
    pub(super) fn input(&mut self, name: &str, id: ValueId) -> Result<()> {
        let tensor = self.described(name, self.graph.ty(id))?;
        let at = self.model.push(tensor);
        self.model.inputs.push((name.into(), at));
        self.at.insert(id, at);
        Ok(())
    }

    /// A value that is known.
    pub(super) fn stored(&mut self, name: &str, value: &Tensor, id: ValueId) -> Result<()> {
        if *value.ty() != *self.graph.ty(id) {
            let why = format!("its value is {}, where {} belongs", value.ty(), self.graph.ty(id));
            return Err(Error::export(name, why));
        }
        self.known.insert(id, (name.into(), value.clone()));
        Ok(())
    }

    /// Goes through all ops that something follows from, and makes a model of it.
    pub(super) fn finish(mut self) -> Result<LiteModel> {
        let graph = self.graph;
        let mut wanted: FxHashSet<ValueId> = graph.outputs().iter().copied().collect();
        let mut live = vec![false; graph.nodes().len()];
        for (i, node) in graph.nodes().iter().enumerate().rev() {
            if node.outputs.iter().any(|id| wanted.contains(id)) {
                live[i] = true;
                wanted.extend(node.inputs.iter().copied());
            }
        }
        for (_, node) in graph.nodes().iter().enumerate().filter(|(i, _)| live[*i]) {
            self.scope.clone_from(&node.scope);
            let made = match self.folded(node) {
                Ok(true) => Ok(()),
                Ok(false) => self.op(node, &wanted),
                Err(error) => Err(error),
            };
            self.keeps_float = false;
            made.map_err(|error| match error {
                Error::Export(part) => Error::Export(part.at(node)),
                other => other,
            })?;
        }
        self.scope.clear();
        let mut taken: FxHashSet<usize> = self.model.inputs.iter().map(|(_, at)| *at).collect();
        for (i, &id) in graph.outputs().iter().enumerate() {
            let mut at = self.value(id)?;
            if self.model.tensors[at].data.is_some() || !taken.insert(at) {
                // An output is a tensor of its own.
                let shape = self.shape(at).to_vec();
                at = self.reshape(at, &shape);
            }
            let name = if i == 0 { "output".to_string() } else { format!("output_{i}") };
            self.model.outputs.push((name, at));
        }
        Ok(self.model)
    }

    /// Computes a node whose operands are all known. Whether it was one.
    fn folded(&mut self, node: &Node) -> Result<bool> {
        if matches!(
            node.op,
            Op::Uniform(_)
                | Op::Normal(_)
                | Op::TruncatedNormal(_)
                | Op::Dropout(_)
                | Op::Custom(_)
                | Op::Exchange(_)
        ) {
            return Ok(false);
        }
        let known: Option<Vec<Tensor>> =
            node.inputs.iter().map(|id| self.known.get(id).map(|(_, tensor)| tensor.clone())).collect();
        let Some(known) = known else { return Ok(false) };
        let elements = |ids: &[ValueId]| ids.iter().map(|&id| self.graph.ty(id).elements()).sum::<usize>();
        let (read, made) = (elements(&node.inputs), elements(&node.outputs));
        if made > MOST_FOLDED && made > 2 * read {
            return Ok(false);
        }
        let outputs = match known.first() {
            Some(first) => first.emit(node.op.clone(), &known.iter().collect::<Vec<_>>(), Site::here())?,
            None => Tensor::zeros(Type::new(DType::F32, []))?.emit(node.op.clone(), &[], Site::here())?,
        };
        let name = match node.inputs.first().and_then(|id| self.known.get(id)) {
            Some((name, _)) => name.clone(),
            None => node.op.name().to_string(),
        };
        for (&id, tensor) in node.outputs.iter().zip(outputs) {
            self.known.insert(id, (name.clone(), tensor));
        }
        Ok(true)
    }

    // === Values ===

    fn described(&self, name: &str, ty: &Type) -> Result<LiteTensor> {
        let Some(element) = ElementType::of_dtype(ty.dtype) else {
            return refuse(format!(
                "its elements are {}, which TensorFlow Lite does not compute with",
                ty.dtype
            ));
        };
        Ok(LiteTensor {
            name: name.into(),
            shape: ty.shape.to_vec(),
            ty: element,
            data: None,
            quantization: None,
        })
    }

    /// The tensor of a value.
    pub(super) fn value(&mut self, id: ValueId) -> Result<usize> {
        if let Some(&at) = self.at.get(&id) {
            return Ok(at);
        }
        let Some((name, tensor)) = self.known.get(&id).cloned() else {
            return refuse("it reads a value that no op makes");
        };
        let at = self.constant(&name, &tensor)?;
        self.at.insert(id, at);
        Ok(at)
    }

    /// The value itself, where it is known.
    pub(super) fn known(&self, id: ValueId) -> Option<&Tensor> {
        self.known.get(&id).map(|(_, tensor)| tensor)
    }

    /// The name that a known value has in the file.
    pub(super) fn known_name(&self, id: ValueId) -> String {
        self.known.get(&id).map(|(name, _)| name.clone()).unwrap_or_default()
    }

    pub(super) fn set(&mut self, id: ValueId, at: usize) {
        self.at.insert(id, at);
    }

    /// A stored tensor.
    pub(super) fn constant(&mut self, name: &str, value: &Tensor) -> Result<usize> {
        let mut tensor = self.described(name, value.ty())?;
        tensor.data = Some(value.to_bytes()?.into());
        Ok(self.model.push(tensor))
    }

    /// A stored list of whole numbers.
    pub(super) fn list(&mut self, values: &[i32]) -> usize {
        if let Some(&at) = self.lists.get(values) {
            return at;
        }
        let data: Arc<[u8]> = values.iter().flat_map(|n| n.to_le_bytes()).collect();
        let tensor = LiteTensor {
            name: "list".into(),
            shape: vec![values.len()],
            ty: ElementType::I32,
            data: Some(data),
            quantization: None,
        };
        let at = self.model.push(tensor);
        self.lists.insert(values.into(), at);
        at
    }

    /// A stored whole number, which has no axes.
    pub(super) fn whole(&mut self, value: i32) -> usize {
        let at = self.list(&[value]);
        let tensor = LiteTensor { shape: vec![], ..self.model.tensors[at].clone() };
        self.model.push(tensor)
    }

    /// A stored number of a type.
    pub(super) fn number(&mut self, ty: ElementType, value: f64) -> Result<usize> {
        let tensor = Tensor::from_f64(&[value], Type::new(ty.dtype(), []))?;
        self.constant("number", &tensor)
    }

    /// Stored f32s.
    pub(super) fn floats(&mut self, name: &str, values: &[f32], shape: &[usize]) -> usize {
        self.model.push(LiteTensor {
            name: name.into(),
            shape: shape.into(),
            ty: ElementType::F32,
            data: Some(bytes_of(values)),
            quantization: None,
        })
    }

    pub(super) fn shape(&self, at: usize) -> &[usize] {
        &self.model.tensors[at].shape
    }

    pub(super) fn ty(&self, at: usize) -> ElementType {
        self.model.tensors[at].ty
    }

    // === Ops ===

    /// An op with one result.
    pub(super) fn add(
        &mut self,
        code: OpCode,
        inputs: &[usize],
        ty: ElementType,
        shape: &[usize],
        options: Options,
    ) -> usize {
        let inputs = inputs.iter().map(|&at| Some(at)).collect();
        self.add_of(code, inputs, ty, &[shape.to_vec()], options)[0]
    }

    /// An op with a result of each shape.
    pub(super) fn add_of(
        &mut self,
        code: OpCode,
        inputs: Vec<Option<usize>>,
        ty: ElementType,
        shapes: &[Vec<usize>],
        options: Options,
    ) -> Vec<usize> {
        let scope = if self.scope.is_empty() { String::new() } else { format!("{}/", self.scope) };
        let name = format!("{scope}{}", code.name().to_lowercase());
        let mut outputs = Vec::new();
        for shape in shapes {
            let name = format!("{name}:{}", self.model.tensors.len());
            let shape = shape.clone();
            outputs.push(self.model.push(LiteTensor { name, shape, ty, data: None, quantization: None }));
        }
        let keeps_float = self.keeps_float;
        self.model.ops.push(LiteOp { code, inputs, outputs: outputs.clone(), options, keeps_float });
        outputs
    }

    /// An op that goes element by element over one operand.
    pub(super) fn unary(&mut self, code: OpCode, x: usize, options: Options) -> usize {
        let (ty, shape) = (self.ty(x), self.shape(x).to_vec());
        self.add(code, &[x], ty, &shape, options)
    }

    /// An op that goes element by element over two operands, repeated to one shape.
    pub(super) fn binary(&mut self, code: OpCode, a: usize, b: usize) -> Result<usize> {
        let shape = self.broadcast(&[a, b])?;
        use OpCode as C;
        let ty = match code {
            C::Equal | C::NotEqual | C::Less | C::LessEqual | C::Greater | C::GreaterEqual => {
                ElementType::Bool
            }
            _ => self.ty(a),
        };
        let options = match code {
            C::Add | C::Sub | C::Mul | C::Div => Options::Arithmetic { fused: Fused::None },
            _ => Options::None,
        };
        Ok(self.add(code, &[a, b], ty, &shape, options))
    }

    /// The shape to which all of them are repeated.
    pub(super) fn broadcast(&self, all: &[usize]) -> Result<Vec<usize>> {
        let mut shape = Shape::from(Vec::new());
        for &at in all {
            match shape.broadcast(&Shape::from(self.shape(at))) {
                Some(both) => shape = both,
                None => return refuse("its shapes do not fit"),
            }
        }
        Ok(shape.to_vec())
    }

    pub(super) fn reshape(&mut self, x: usize, shape: &[usize]) -> usize {
        let lengths: Vec<i32> = shape.iter().map(|&n| n as i32).collect();
        let (list, ty) = (self.list(&lengths), self.ty(x));
        self.add(OpCode::Reshape, &[x, list], ty, shape, Options::Reshape { shape: lengths })
    }

    pub(super) fn transpose(&mut self, x: usize, order: &[usize]) -> usize {
        let shape: Vec<usize> = order.iter().map(|&axis| self.shape(x)[axis]).collect();
        let list = self.list(&order.iter().map(|&axis| axis as i32).collect::<Vec<_>>());
        let ty = self.ty(x);
        self.add(OpCode::Transpose, &[x, list], ty, &shape, Options::None)
    }

    pub(super) fn reduce(&mut self, code: OpCode, x: usize, axes: &[usize], keeps_axes: bool) -> usize {
        let one = |(axis, &n): (usize, &usize)| match (axes.contains(&axis), keeps_axes) {
            (false, _) => Some(n),
            (true, true) => Some(1),
            (true, false) => None,
        };
        let shape: Vec<usize> = self.shape(x).iter().enumerate().filter_map(one).collect();
        let list = self.list(&axes.iter().map(|&axis| axis as i32).collect::<Vec<_>>());
        let ty = self.ty(x);
        self.add(code, &[x, list], ty, &shape, Options::Reduce { keeps_axes })
    }

    pub(super) fn concat(&mut self, parts: &[usize], axis: usize) -> usize {
        let mut shape = self.shape(parts[0]).to_vec();
        shape[axis] = parts.iter().map(|&at| self.shape(at)[axis]).sum();
        let ty = self.ty(parts[0]);
        self.add(OpCode::Concatenation, parts, ty, &shape, Options::Concatenation { axis: axis as i32 })
    }

    pub(super) fn split(&mut self, x: usize, axis: usize, sizes: &[usize]) -> Vec<usize> {
        let of = |n: &usize| {
            let mut shape = self.shape(x).to_vec();
            shape[axis] = *n;
            shape
        };
        let shapes: Vec<Vec<usize>> = sizes.iter().map(of).collect();
        let (ty, options) = (self.ty(x), Options::Split { pieces: sizes.len() });
        let axis = self.whole(axis as i32);
        if sizes.iter().all(|n| *n == sizes[0]) {
            return self.add_of(OpCode::Split, vec![Some(axis), Some(x)], ty, &shapes, options);
        }
        let list = self.list(&sizes.iter().map(|&n| n as i32).collect::<Vec<_>>());
        self.add_of(OpCode::SplitV, vec![Some(x), Some(list), Some(axis)], ty, &shapes, options)
    }

    /// x[start..stop] along each axis.
    pub(super) fn slice(&mut self, x: usize, ranges: &[(usize, usize)]) -> usize {
        let shape: Vec<usize> = ranges.iter().map(|(start, stop)| stop - start).collect();
        let begin = self.list(&ranges.iter().map(|(start, _)| *start as i32).collect::<Vec<_>>());
        let size = self.list(&shape.iter().map(|&n| n as i32).collect::<Vec<_>>());
        let ty = self.ty(x);
        self.add(OpCode::Slice, &[x, begin, size], ty, &shape, Options::None)
    }

    /// x with a value around it.
    pub(super) fn pad(&mut self, x: usize, around: &[(usize, usize)], value: f64) -> Result<usize> {
        let shape: Vec<usize> =
            self.shape(x).iter().zip(around).map(|(n, (low, high))| n + low + high).collect();
        let flat: Vec<i32> = around.iter().flat_map(|&(low, high)| [low as i32, high as i32]).collect();
        let at = self.list(&flat);
        let list = LiteTensor { shape: vec![around.len(), 2], ..self.model.tensors[at].clone() };
        let (list, ty) = (self.model.push(list), self.ty(x));
        if value == 0.0 {
            return Ok(self.add(OpCode::Pad, &[x, list], ty, &shape, Options::None));
        }
        let number = self.number(ty, value)?;
        let tensor = LiteTensor { shape: vec![1], ..self.model.tensors[number].clone() };
        let number = self.model.push(tensor);
        Ok(self.add(OpCode::PadV2, &[x, list, number], ty, &shape, Options::None))
    }

    pub(super) fn cast(&mut self, x: usize, to: ElementType) -> usize {
        let (from, shape) = (self.ty(x), self.shape(x).to_vec());
        self.add(OpCode::Cast, &[x], to, &shape, Options::Cast { from, to })
    }

    /// x · w + bias with w as the file has it, `[units, width]`.
    pub(super) fn dense(&mut self, x: usize, w: usize, bias: Option<usize>) -> usize {
        let mut shape = self.shape(x).to_vec();
        let rank = shape.len();
        shape[rank - 1] = self.shape(w)[0];
        let options = Options::FullyConnected { fused: Fused::None, keeps_axes: rank > 2, asymmetric: false };
        let inputs = vec![Some(x), Some(w), bias];
        self.add_of(OpCode::FullyConnected, inputs, ElementType::F32, &[shape], options)[0]
    }
}
