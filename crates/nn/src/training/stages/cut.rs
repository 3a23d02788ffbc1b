//! Turns a model's whole graph and the owners of its parameters into what each stage does, and what goes from one to the next.

use plimsoll_graph::{Graph, NodeId, TensorOps, ValueId};
use plimsoll_run::{Result, Tensor, named};

use super::places::Places;
use super::whole::Whole;
use crate::Param;
use crate::error::refuse;

/// A model for so many samples, cut into stages.
pub(super) struct Cut {
    pub(super) whole: Whole,
    stages: Vec<Stage>,
    /// By boundary: the values that go from its stage to the next one.
    pub(super) crossing: Vec<Vec<ValueId>>,
    places: Places,
    /// By value: whether something that is trained is in it, so that its gradient is of use.
    follows: Vec<bool>,
}

/// What a stage does.
struct Stage {
    /// Its nodes, in order.
    nodes: Vec<NodeId>,
    /// Which parameters it reads.
    params: Vec<usize>,
}

/// What of a stage there is a value for.
pub(super) struct Values(Vec<Option<Tensor>>);

impl Values {
    pub(super) fn get(&self, graph: &Graph, v: ValueId) -> Result<Tensor> {
        let name = || graph.info(v).name.clone();
        self.0[v.index()].clone().ok_or_else(|| refuse(format!("has a stage without {}", name())))
    }
}

impl Cut {
    pub(super) fn new(whole: Whole, params: &[Param], owners: &[usize], stages: usize) -> Result<Cut> {
        let graph = &whole.graph;
        let places = Places::new(&whole, |param, _, _| Some(owners[param]));
        // How far a value goes beyond where it is made.
        let mut reach: Vec<Option<usize>> =
            (0..graph.values().len()).map(|v| places.of(ValueId(v as u32))).collect();
        for (i, node) in graph.nodes().iter().enumerate() {
            let Some(place) = places.of_node(graph, i) else { continue };
            for v in node.inputs.iter().filter(|v| places.of(**v).is_some()) {
                reach[v.index()] = reach[v.index()].max(Some(place));
            }
        }
        for (i, new) in whole.updates.iter().enumerate() {
            let Some(new) = new else { continue };
            match places.of(*new) {
                Some(place) if place > owners[i] => {
                    return Err(refuse(format!(
                        "sets {} by what a later stage finds; take --parallel data",
                        params[i].name
                    )));
                }
                Some(_) => reach[new.index()] = reach[new.index()].max(Some(owners[i])),
                None => {}
            }
        }
        let mut crossing: Vec<Vec<ValueId>> = vec![Vec::new(); stages - 1];
        for (v, reach) in reach.iter().enumerate() {
            let v = ValueId(v as u32);
            if let (Some(from), Some(to)) = (places.of(v), *reach) {
                crossing[from..to].iter_mut().for_each(|values| values.push(v));
            }
        }
        let mut follows = vec![false; graph.values().len()];
        whole.params.iter().zip(params).for_each(|(v, param)| follows[v.index()] = param.trained);
        for node in graph.nodes() {
            if node.inputs.iter().any(|v| follows[v.index()]) {
                node.outputs.iter().for_each(|v| follows[v.index()] = graph.ty(*v).dtype.is_float());
            }
        }
        let mut cut = Cut { whole, stages: Vec::new(), crossing, places, follows };
        cut.stages = (0..stages).map(|stage| cut.stage(stage, owners)).collect();
        Ok(cut)
    }

    /// The stage that has a value in the end: the last where each could make it.
    pub(super) fn stage_of(&self, v: ValueId) -> usize {
        self.places.of(v).unwrap_or(self.crossing.len())
    }

    fn stage(&self, stage: usize, owners: &[usize]) -> Stage {
        let graph = &self.whole.graph;
        let mut needed = vec![false; graph.values().len()];
        let mut want = |v: ValueId, at: usize| needed[v.index()] |= at == stage;
        let results = self.whole.outputs.iter().chain(&self.whole.loss).chain(&self.whole.totals);
        results.for_each(|v| want(*v, self.stage_of(*v)));
        for (i, new) in self.whole.updates.iter().enumerate() {
            new.iter().for_each(|v| want(*v, self.places.of(*v).unwrap_or(owners[i])));
        }
        let sent = self.crossing.get(stage).into_iter().flatten();
        sent.for_each(|v| want(*v, self.stage_of(*v)));
        let mut nodes = Vec::new();
        for (i, node) in graph.nodes().iter().enumerate().rev() {
            let is_own = self.places.of_node(graph, i).is_none_or(|place| place == stage);
            if is_own && node.outputs.iter().any(|v| needed[v.index()]) {
                node.inputs.iter().for_each(|v| needed[v.index()] = true);
                nodes.push(NodeId(i as u32));
            }
        }
        nodes.reverse();
        let is_read = |i: &usize| needed[self.whole.params[*i].index()];
        Stage { nodes, params: (0..self.whole.params.len()).filter(is_read).collect() }
    }

    /// Whether something that is trained is in a value.
    pub(super) fn follows(&self, v: ValueId) -> bool {
        self.follows[v.index()]
    }

    /// Which parameters a stage reads.
    pub(super) fn reads(&self, stage: usize) -> &[usize] {
        &self.stages[stage].params
    }

    /// The values that come to a stage from the one before.
    pub(super) fn comes(&self, stage: usize) -> &[ValueId] {
        stage.checked_sub(1).map_or(&[], |before| &self.crossing[before])
    }

    /// The values that go from a stage to the next.
    pub(super) fn goes(&self, stage: usize) -> &[ValueId] {
        self.crossing.get(stage).map_or(&[], Vec::as_slice)
    }

    /// Does what a stage does, with values of what it is given: of the batch, the key, parameters, and what came. `near` is any tensor of the trace.
    pub(super) fn run(&self, stage: usize, given: &[(ValueId, Tensor)], near: &Tensor) -> Result<Values> {
        let graph = &self.whole.graph;
        let mut values: Vec<Option<Tensor>> = vec![None; graph.values().len()];
        for (v, tensor) in given.iter().chain(&self.whole.captured) {
            values[v.index()] = Some(tensor.clone());
        }
        let mut values = Values(values);
        for id in &self.stages[stage].nodes {
            let node = graph.node(*id);
            let inputs =
                node.inputs.iter().map(|v| values.get(graph, *v)).collect::<Result<Vec<Tensor>>>()?;
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            let emit = || near.emit(node.op.clone(), &inputs, node.site);
            let made = if node.scope.is_empty() { emit() } else { named(&node.scope, emit) }?;
            for (v, tensor) in node.outputs.iter().zip(made) {
                values.0[v.index()] = Some(tensor);
            }
        }
        Ok(values)
    }
}
