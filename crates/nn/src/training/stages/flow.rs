//! Which gradients come back from stage to stage: found by tracing every stage once, without values, the last one first.

use plimsoll_graph::{TensorOps, ValueId};
use plimsoll_run::{Result, Sketch, Tensor, pull_back};

use super::cut::Cut;
use crate::Param;

/// Which gradients there are.
pub(super) struct Flow {
    /// By boundary and value that crosses it: whether its gradient comes back.
    pub(super) back: Vec<Vec<bool>>,
    /// By stage and parameter that it reads: whether it finds a gradient of it.
    pub(super) of_params: Vec<Vec<bool>>,
}

/// What a stage takes gradients with respect to: parameters that it reads, then what came to it, each by its place there.
pub(super) struct Wrt {
    pub(super) params: Vec<usize>,
    pub(super) comes: Vec<usize>,
}

impl Wrt {
    pub(super) fn new(cut: &Cut, stage: usize, params: &[Param]) -> Wrt {
        let is_trained = |at: &usize| params[cut.reads(stage)[*at]].trained;
        let is_of_use = |at: &usize| cut.follows(cut.comes(stage)[*at]);
        Wrt {
            params: (0..cut.reads(stage).len()).filter(is_trained).collect(),
            comes: (0..cut.comes(stage).len()).filter(is_of_use).collect(),
        }
    }
}

impl Flow {
    pub(super) fn new(cut: &Cut, params: &[Param]) -> Result<Flow> {
        let graph = &cut.whole.graph;
        let stages = cut.crossing.len() + 1;
        let mut back: Vec<Vec<bool>> = cut.crossing.iter().map(|values| vec![false; values.len()]).collect();
        let mut of_params = vec![Vec::new(); stages];
        for stage in (0..stages).rev() {
            let sketch = Sketch::new();
            let tensor = |v: ValueId| (v, sketch.tensor("given", graph.ty(v).clone()));
            let reads: Vec<ValueId> = cut.reads(stage).iter().map(|i| cut.whole.params[*i]).collect();
            let near = sketch.tensor("near", graph.ty(cut.whole.key).clone());
            let mut given: Vec<(ValueId, Tensor)> = vec![(cut.whole.key, near.clone())];
            given.extend(cut.whole.batch.iter().copied().map(tensor));
            let (params_at, n) = (given.len(), reads.len());
            given.extend(reads.into_iter().map(tensor));
            given.extend(cut.comes(stage).iter().copied().map(tensor));
            let values = cut.run(stage, &given, &near)?;
            let wrt = Wrt::new(cut, stage, params);
            let at: Vec<usize> = wrt
                .params
                .iter()
                .map(|i| params_at + i)
                .chain(wrt.comes.iter().map(|i| params_at + n + i))
                .collect();
            let mut targets: Vec<(Tensor, Tensor)> = Vec::new();
            let is_seeded = |i: &usize| back.get(stage).is_some_and(|back| back[*i]);
            let loss = cut.whole.loss.filter(|loss| cut.stage_of(*loss) == stage);
            let sent = cut.goes(stage).iter().enumerate().filter(|(i, _)| is_seeded(i)).map(|(_, v)| *v);
            for v in sent.chain(loss) {
                let target = values.get(graph, v)?;
                let seed = target.full_like(target.ty().clone(), 1.0)?;
                targets.push((target, seed));
            }
            let tensors: Vec<&Tensor> = at.iter().map(|i| &given[*i].1).collect();
            let targets: Vec<(&Tensor, &Tensor)> =
                targets.iter().map(|(target, seed)| (target, seed)).collect();
            let found = pull_back(&targets, &tensors)?;
            let (own, came) = found.split_at(wrt.params.len());
            of_params[stage] = vec![false; n];
            wrt.params.iter().zip(own).for_each(|(i, grad)| of_params[stage][*i] = grad.is_some());
            if stage > 0 {
                wrt.comes.iter().zip(came).for_each(|(i, grad)| back[stage - 1][*i] = grad.is_some());
            }
        }
        Ok(Flow { back, of_params })
    }
}
