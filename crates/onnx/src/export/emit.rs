//! Collects the nodes and stored tensors of a graph that is being written, with names for its values.
//!
//! What becomes of each op of ours is in `ops`, and in `elements` for those that go element by element; those that become several nodes have
//! files of their own (`batch_norm`, `recurrent`).

use plimsoll_graph::{DType, Graph, Node, TensorOps, Type, ValueId};
use plimsoll_nn::Predicting;
use plimsoll_nn::blocks::reordered;
use plimsoll_run::Tensor;
use rustc_hash::{FxHashMap, FxHashSet};

use super::batch_norm;
use crate::constant::{Constant, data_type_of};
use crate::error::{Error, Result};
use crate::messages::attribute_proto::AttributeType;
use crate::messages::tensor_shape_proto::{Dimension, dimension};
use crate::messages::type_proto::{Tensor as TensorType, Value as TypeValue};
use crate::messages::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto,
};

/// A length of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dim {
    Fixed(usize),
    /// So many times the batch.
    Batch(usize),
}

/// From channels last to channels first, and back.
const TO_FIRST: [i64; 4] = [0, 3, 1, 2];
const TO_LAST: [i64; 4] = [0, 2, 3, 1];

pub(super) struct Emitter<'a> {
    pub graph: &'a Graph,
    other: &'a Graph,
    batches: [usize; 2],
    /// Names of values as they are, and of images with their channels first.
    plain: FxHashMap<ValueId, String>,
    first: FxHashMap<ValueId, String>,
    /// Values that are stored, before anybody has asked for them.
    stored: FxHashMap<ValueId, (String, Constant)>,
    /// Those of them that are no parameters.
    constants: FxHashSet<ValueId>,
    inputs: Vec<ValueInfoProto>,
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    known: FxHashSet<String>,
    lists: FxHashMap<Vec<i64>, String>,
    batch: Option<String>,
    count: usize,
    /// The scope of the node at hand.
    pub scope: String,
}

pub(super) fn int(name: &str, value: i64) -> AttributeProto {
    let kind = Some(AttributeType::Int as i32);
    AttributeProto { name: Some(name.into()), i: Some(value), r#type: kind, ..AttributeProto::default() }
}

pub(super) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    let kind = Some(AttributeType::Ints as i32);
    AttributeProto { name: Some(name.into()), ints: values.into(), r#type: kind, ..AttributeProto::default() }
}

pub(super) fn float(name: &str, value: f64) -> AttributeProto {
    let kind = Some(AttributeType::Float as i32);
    AttributeProto {
        name: Some(name.into()),
        f: Some(value as f32),
        r#type: kind,
        ..AttributeProto::default()
    }
}

pub(super) fn text(name: &str, value: &str) -> AttributeProto {
    let kind = Some(AttributeType::String as i32);
    let s = Some(value.as_bytes().to_vec().into());
    AttributeProto { name: Some(name.into()), s, r#type: kind, ..AttributeProto::default() }
}

impl<'a> Emitter<'a> {
    pub(super) fn new(few: &'a Predicting, other: &'a Graph, batches: [usize; 2]) -> Result<Emitter<'a>> {
        let graph = &few.graph;
        let same = |(a, b): (&Node, &Node)| a.op.variant() == b.op.variant() && a.inputs == b.inputs;
        if graph.nodes().len() != other.nodes().len() || !graph.nodes().iter().zip(other.nodes()).all(same) {
            let why = "it computes something else for another size of batches";
            return Err(Error::export("the model", why));
        }
        Ok(Emitter {
            graph,
            other,
            batches,
            plain: FxHashMap::default(),
            first: FxHashMap::default(),
            stored: FxHashMap::default(),
            constants: few.captured.iter().map(|(id, _)| *id).collect(),
            inputs: Vec::new(),
            nodes: Vec::new(),
            initializers: Vec::new(),
            known: FxHashSet::default(),
            lists: FxHashMap::default(),
            batch: None,
            count: 0,
            scope: String::new(),
        })
    }

    /// An input of the model.
    pub(super) fn input(&mut self, name: &str, ty: &Type, id: ValueId) {
        let dims: Vec<Dim> = ty
            .shape
            .iter()
            .enumerate()
            .map(|(i, &n)| if i == 0 { Dim::Batch(1) } else { Dim::Fixed(n) })
            .collect();
        let name = self.unique(name);
        self.inputs.push(info(&name, ty.dtype, &dims));
        self.plain.insert(id, name);
    }

    /// A value that is stored in the file.
    pub(super) fn stored(&mut self, name: &str, value: &Tensor, id: ValueId) -> Result<()> {
        if *value.ty() != *self.graph.ty(id) {
            let why = format!("its value is {}, where {} belongs", value.ty(), self.graph.ty(id));
            return Err(Error::export(name, why));
        }
        self.stored.insert(id, (name.into(), Constant::of(value)?));
        Ok(())
    }

    /// Goes through all ops that something follows from, and makes a file of it.
    pub(super) fn finish(mut self, name: &str, opset: i64, ir_version: i64) -> Result<ModelProto> {
        let graph = self.graph;
        let mut wanted: FxHashSet<ValueId> = graph.outputs().iter().copied().collect();
        let mut live = vec![false; graph.nodes().len()];
        let norms = batch_norm::find(graph);
        for (i, node) in graph.nodes().iter().enumerate().rev() {
            if node.outputs.iter().any(|id| wanted.contains(id)) {
                live[i] = true;
                match norms.get(&node.outputs[0]) {
                    Some(norm) => wanted.extend(norm.reads),
                    None => wanted.extend(node.inputs.iter().copied()),
                }
            }
        }
        for (_, node) in graph.nodes().iter().enumerate().filter(|(i, _)| live[*i]) {
            self.scope.clone_from(&node.scope);
            let made = match norms.get(&node.outputs[0]) {
                Some(norm) => self.batch_norm(*norm, node.outputs[0]),
                None => self.op(node, &wanted),
            };
            made.map_err(|error| match error {
                Error::Export(part) => Error::Export(part.at(node)),
                other => other,
            })?;
        }
        self.scope.clear();
        let mut outputs = Vec::new();
        for (i, &id) in graph.outputs().iter().enumerate() {
            let own = if i == 0 { "output".to_string() } else { format!("output_{i}") };
            let own = self.unique(&own);
            let from = self.plain(id)?;
            self.nodes.push(NodeProto {
                input: vec![from],
                output: vec![own.clone()],
                op_type: Some("Identity".into()),
                name: Some(own.clone()),
                ..NodeProto::default()
            });
            outputs.push(info(&own, graph.ty(id).dtype, &self.dims(id)?));
        }
        let graph = GraphProto {
            node: self.nodes,
            name: Some(name.into()),
            initializer: self.initializers,
            input: self.inputs,
            output: outputs,
            ..GraphProto::default()
        };
        Ok(ModelProto {
            ir_version: Some(ir_version),
            opset_import: vec![OperatorSetIdProto { domain: Some(String::new()), version: Some(opset) }],
            producer_name: Some("plimsoll".into()),
            producer_version: Some(env!("CARGO_PKG_VERSION").into()),
            graph: Some(graph),
            ..ModelProto::default()
        })
    }

    fn unique(&mut self, name: &str) -> String {
        let mut own = name.to_string();
        while !self.known.insert(own.clone()) {
            self.count += 1;
            own = format!("{name}#{}", self.count);
        }
        own
    }

    // === Values ===

    /// The name of a value as it is.
    pub(super) fn plain(&mut self, id: ValueId) -> Result<String> {
        if let Some(name) = self.plain.get(&id) {
            return Ok(name.clone());
        }
        if let Some(first) = self.first.get(&id).cloned() {
            let name = self.node("Transpose", &[&first], vec![ints("perm", &TO_LAST)]);
            self.plain.insert(id, name.clone());
            return Ok(name);
        }
        if let Some((name, constant)) = self.stored.get(&id).cloned() {
            // What is no parameter must not train when the file is read: a constant is a node.
            let name = match self.constants.contains(&id) {
                true => {
                    let t = Some(tensor(None, &constant));
                    let kind = Some(AttributeType::Tensor as i32);
                    let value = AttributeProto {
                        name: Some("value".into()),
                        t,
                        r#type: kind,
                        ..AttributeProto::default()
                    };
                    self.node("Constant", &[], vec![value])
                }
                false => self.initializer(&name, &constant),
            };
            self.plain.insert(id, name.clone());
            return Ok(name);
        }
        Err(Error::export("", "it reads a value that no op makes"))
    }

    /// The name of images `[N, H, W, C]` with their channels first.
    pub(super) fn first(&mut self, id: ValueId) -> Result<String> {
        if let Some(name) = self.first.get(&id) {
            return Ok(name.clone());
        }
        let plain = self.plain(id)?;
        let name = self.node("Transpose", &[&plain], vec![ints("perm", &TO_FIRST)]);
        self.first.insert(id, name.clone());
        Ok(name)
    }

    pub(super) fn has_first(&self, id: ValueId) -> bool {
        self.first.contains_key(&id)
    }

    pub(super) fn set(&mut self, id: ValueId, name: String) {
        self.plain.insert(id, name);
    }

    pub(super) fn set_first(&mut self, id: ValueId, name: String) {
        self.first.insert(id, name);
    }

    /// A stored value with its axes in another order, as a tensor of the file.
    pub(super) fn turned(&mut self, id: ValueId, order: &[usize]) -> Result<String> {
        let Some((name, constant)) = self.stored.get(&id).cloned() else {
            let plain = self.plain(id)?;
            let perm: Vec<i64> = order.iter().map(|&axis| axis as i64).collect();
            return Ok(self.node("Transpose", &[&plain], vec![ints("perm", &perm)]));
        };
        let shape = &constant.ty.shape;
        let bytes = reordered(&constant.bytes[..], constant.ty.dtype.bytes(), shape, order);
        let shape: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        Ok(self.initializer(
            &name,
            &Constant { ty: Type::new(constant.ty.dtype, &shape[..]), bytes: bytes.into_owned().into() },
        ))
    }

    /// A tensor of the file.
    pub(super) fn initializer(&mut self, name: &str, constant: &Constant) -> String {
        let own = self.unique(name);
        self.initializers.push(tensor(Some(own.clone()), constant));
        own
    }

    /// A list of whole numbers.
    pub(super) fn list(&mut self, values: &[i64]) -> String {
        if let Some(name) = self.lists.get(values) {
            return name.clone();
        }
        let name = self.initializer("list", &Constant::ints(values));
        self.lists.insert(values.into(), name.clone());
        name
    }

    /// A number.
    pub(super) fn scalar(&mut self, dtype: DType, value: f64) -> Result<String> {
        let tensor = Tensor::from_f64(&[value], Type::new(dtype, []))?;
        Ok(self.initializer("number", &Constant::of(&tensor)?))
    }

    // === Nodes ===

    /// A node with one output.
    pub(super) fn node(&mut self, op: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        self.node_of(op, inputs, 1, attributes).swap_remove(0)
    }

    /// A node with so many outputs.
    pub(super) fn node_of(
        &mut self,
        op: &str,
        inputs: &[&str],
        outputs: usize,
        attribute: Vec<AttributeProto>,
    ) -> Vec<String> {
        let scope = if self.scope.is_empty() { String::new() } else { format!("{}/", self.scope) };
        let name = self.unique(&format!("{scope}{op}"));
        let output: Vec<String> = (0..outputs)
            .map(|i| if i == 0 { format!("{name}:out") } else { format!("{name}:out{i}") })
            .collect();
        let output: Vec<String> = output.iter().map(|own| self.unique(own)).collect();
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|&input| input.into()).collect(),
            output: output.clone(),
            name: Some(name),
            op_type: Some(op.into()),
            attribute,
            ..NodeProto::default()
        });
        output
    }

    // === Shapes ===

    /// The lengths of a value, of which some are the batch's.
    pub(super) fn dims(&self, id: ValueId) -> Result<Vec<Dim>> {
        self.dims_of(&self.graph.ty(id).shape, &self.other.ty(id).shape)
    }

    fn dims_of(&self, few: &[usize], many: &[usize]) -> Result<Vec<Dim>> {
        let [a, b] = self.batches;
        let one = |(&few, &many): (&usize, &usize)| match few == many {
            true => Ok(Dim::Fixed(few)),
            false if few % a == 0 && few / a * b == many => Ok(Dim::Batch(few / a)),
            false => {
                let why = format!("a length is {few} for batches of {a} and {many} for batches of {b}");
                Err(Error::export("", why))
            }
        };
        few.iter().zip(many).map(one).collect()
    }

    /// A shape as a list, computed from the batch where it must be.
    pub(super) fn shape(&mut self, dims: &[Dim]) -> String {
        let fixed = |dim: &Dim| match dim {
            Dim::Fixed(n) => Some(*n as i64),
            Dim::Batch(_) => None,
        };
        if let Some(all) = dims.iter().map(fixed).collect::<Option<Vec<i64>>>() {
            return self.list(&all);
        }
        let batch = match self.batch.clone() {
            Some(batch) => batch,
            None => {
                let input = self.inputs.first().and_then(|input| input.name.clone()).unwrap_or_default();
                let attributes = vec![int("start", 0), int("end", 1)];
                let batch = self.node("Shape", &[&input], attributes);
                self.batch = Some(batch.clone());
                batch
            }
        };
        let mut parts: Vec<String> = Vec::new();
        for dim in dims {
            parts.push(match dim {
                Dim::Fixed(n) => self.list(&[*n as i64]),
                Dim::Batch(1) => batch.clone(),
                Dim::Batch(k) => {
                    let times = self.list(&[*k as i64]);
                    self.node("Mul", &[&batch, &times], vec![])
                }
            });
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.node("Concat", &parts, vec![int("axis", 0)])
    }

    /// The target of a reshape: one length may be whatever is left.
    pub(super) fn target(&mut self, dims: &[Dim]) -> String {
        if dims.iter().filter(|dim| matches!(dim, Dim::Batch(_))).count() > 1 {
            return self.shape(dims);
        }
        let list: Vec<i64> = dims
            .iter()
            .map(|dim| match dim {
                Dim::Fixed(n) => *n as i64,
                Dim::Batch(_) => -1,
            })
            .collect();
        self.list(&list)
    }
}

fn tensor(name: Option<String>, constant: &Constant) -> TensorProto {
    TensorProto {
        name,
        dims: constant.ty.shape.iter().map(|&n| n as i64).collect(),
        data_type: Some(data_type_of(constant.ty.dtype) as i32),
        raw_data: Some(constant.to_le().into()),
        ..TensorProto::default()
    }
}

fn info(name: &str, dtype: DType, dims: &[Dim]) -> ValueInfoProto {
    let dim = |dim: &Dim| {
        let value = match dim {
            Dim::Fixed(n) => dimension::Value::DimValue(*n as i64),
            Dim::Batch(1) => dimension::Value::DimParam("batch".into()),
            Dim::Batch(k) => dimension::Value::DimParam(format!("{k}*batch")),
        };
        Dimension { value: Some(value), ..Dimension::default() }
    };
    let tensor = TensorType {
        elem_type: Some(data_type_of(dtype) as i32),
        shape: Some(TensorShapeProto { dim: dims.iter().map(dim).collect() }),
    };
    let ty = TypeProto { value: Some(TypeValue::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: Some(name.into()), r#type: Some(ty), ..ValueInfoProto::default() }
}
