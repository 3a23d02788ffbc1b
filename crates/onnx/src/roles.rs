//! Turns a graph into what each of its stored tensors is: a weight that trains, one that stays, or a constant.
//!
//! A file does not say. So: what must be known before the model runs (shapes, axes, bounds), and all that it is computed from, is
//! constant; so is what is no fraction, and a single number that is not where a layer has its weights. The rest are weights.
//! Statistics of a batch norm follow the batches; other weights train.

use rustc_hash::{FxHashMap, FxHashSet};

use plimsoll_graph::{DType, Shape, Type};

use crate::file::{Graph, OnnxFile};
use crate::ops;

/// What a stored tensor is in a model that trains.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    /// Where it is in the graph's list of initializers.
    pub index: usize,
    /// Whether the optimizer moves it.
    pub trained: bool,
    /// The type in which it is kept: of a filter, with its axes in the engine's order.
    pub ty: Type,
    /// Axis i, as the file has it, is axis `order[i]` of what is kept.
    pub order: Vec<usize>,
    /// The element type of the file.
    pub dtype: DType,
}

/// A use of a value: the op, and which of its inputs.
type Uses<'a> = FxHashMap<&'a str, Vec<(&'a str, usize)>>;

/// What makes a value: the op, and what it reads.
type Makers<'a> = FxHashMap<&'a str, (&'a str, Vec<&'a str>)>;

/// The weights among a graph's initializers, by name.
pub(crate) fn weights(file: &OnnxFile) -> FxHashMap<String, Weight> {
    let mut uses = Uses::default();
    let mut makers = Makers::default();
    collect(&file.graph, &mut uses, &mut makers);
    let known = must_be_known(&uses, &makers);
    let mut weights = FxHashMap::default();
    for (index, (name, stored)) in file.graph.initializers.iter().enumerate() {
        let own = uses.get(name.as_str()).map_or(&[][..], Vec::as_slice);
        let n = stored.ty.elements();
        let is_layer = own.iter().any(|&(op, input)| is_layers(op, input));
        let is_weight = stored.ty.dtype.is_float() && n > 0 && (n > 1 || is_layer) && !own.is_empty();
        if !is_weight || known.contains(name.as_str()) {
            continue;
        }
        let follows = |&(op, input): &(&str, usize)| op == "BatchNormalization" && input >= 3;
        let counts = |&(op, _): &(&str, usize)| op.ends_with("QuantizeLinear") || op == "DequantizeLinear";
        let trained = !own.iter().any(follows) && !own.iter().all(counts);
        let filter = |&(op, input): &(&str, usize)| input == 1 && (op == "Conv" || op == "ConvTranspose");
        let shape = &stored.ty.shape;
        let (kept, order) = match own.iter().any(filter) && shape.rank() >= 3 {
            // [O, I, ..] is kept as [.., I, O].
            true => {
                let k = shape.rank() - 2;
                let kept: Shape = shape[2..].iter().chain([&shape[1], &shape[0]]).copied().collect();
                (kept, [k + 1, k].into_iter().chain(0..k).collect())
            }
            false => (shape.clone(), (0..shape.rank()).collect()),
        };
        // Halves are kept in f32, in which small updates are not lost.
        let ty = Type::new(stored.ty.dtype.accumulator(), kept);
        weights.insert(name.clone(), Weight { index, trained, ty, order, dtype: stored.ty.dtype });
    }
    weights
}

/// The names of values that must be known before a graph runs.
pub(crate) fn known_names(graph: &Graph) -> FxHashSet<String> {
    let (mut uses, mut makers) = (Uses::default(), Makers::default());
    collect(graph, &mut uses, &mut makers);
    must_be_known(&uses, &makers).into_iter().map(String::from).collect()
}

/// Where a layer has its weights, so that even one number is one.
fn is_layers(op: &str, input: usize) -> bool {
    match op {
        "Conv" | "ConvTranspose" | "Gemm" | "LSTM" | "GRU" | "RNN" => input >= 1,
        "MatMul" => true,
        "BatchNormalization"
        | "LayerNormalization"
        | "InstanceNormalization"
        | "GroupNormalization"
        | "RMSNormalization"
        | "PRelu" => input >= 1,
        _ => false,
    }
}

fn collect<'a>(graph: &'a Graph, uses: &mut Uses<'a>, makers: &mut Makers<'a>) {
    for node in &graph.nodes {
        for (i, input) in node.inputs.iter().enumerate() {
            uses.entry(input).or_default().push((&node.op, i));
        }
        for output in &node.outputs {
            let inner =
                node.graphs.iter().flat_map(|(_, inner)| inner.outputs.iter().map(|port| port.name.as_str()));
            makers.insert(output, (&node.op, node.inputs.iter().map(String::as_str).chain(inner).collect()));
        }
        for (_, inner) in &node.graphs {
            collect(inner, uses, makers);
        }
    }
}

/// The names of all values from which something follows that must be known before the model runs.
fn must_be_known<'a>(uses: &Uses<'a>, makers: &Makers<'a>) -> FxHashSet<&'a str> {
    let wanted = |list: &Vec<(&str, usize)>| list.iter().any(|&(op, input)| ops::wants_known(op, input));
    let mut open: Vec<&str> = uses.iter().filter(|(_, list)| wanted(list)).map(|(name, _)| *name).collect();
    let mut known: FxHashSet<&str> = FxHashSet::default();
    while let Some(name) = open.pop() {
        if !known.insert(name) {
            continue;
        }
        // A shape is known whatever the values are.
        if let Some((op, inputs)) = makers.get(name).filter(|(op, _)| !matches!(*op, "Shape" | "Size")) {
            let through = inputs.iter().enumerate().filter(|(i, _)| !(*op == "CastLike" && *i == 1));
            open.extend(through.map(|(_, input)| *input));
        }
    }
    known
}
