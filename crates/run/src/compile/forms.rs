//! Traces a step's body for some number of samples and makes candidates of it: the whole batch, or passes and an update.

use plimsoll_device::Bytes;
use plimsoll_graph::micro_batch::{Cut, Frame, Splits, cut, splits};
use plimsoll_graph::{DType, Graph, TensorOps, Type, passes};
use plimsoll_plan::{Exactness, Kind};

use super::hosting::Hosting;
use super::{Candidate, Compile, padded, staged};
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::function::finish;
use crate::lower::{Extent, Roles};
use crate::step::{Pass, StepResult};
use crate::tensor::Tensor;
use crate::tracing::Tracing;

/// The step traced for some number of samples.
pub(super) struct Traced {
    pub(super) graph: Graph,
    pub(super) captured: Vec<Tensor>,
    pub(super) frame: Frame,
}

impl Compile<'_> {
    /// Whether the step can be split at all, and what exactness that takes.
    pub(super) fn how_it_splits(&self, whole: &Traced) -> Result<(bool, Exactness)> {
        Ok(match self.splits(whole)? {
            Splits::Exactly => (true, Exactness::Reassociated),
            Splits::Approximately(_) => (true, Exactness::Approximate),
            Splits::Not(_) => (false, Exactness::Approximate),
        })
    }

    pub(super) fn splits(&self, whole: &Traced) -> Result<Splits> {
        let Some(batch) = self.batch.filter(|&batch| batch > 1) else {
            return Ok(Splits::Not("the step has no batch of several samples".into()));
        };
        let half = batch.div_ceil(2);
        let part = self.trace(Some(half))?;
        Ok(splits((&part.graph, &whole.graph), (half, batch), &whole.frame))
    }

    pub(super) fn trace(&self, samples: Option<usize>) -> Result<Traced> {
        let tracing = Tracing::new();
        let state: Vec<Tensor> = self
            .state
            .iter()
            .zip(self.names)
            .map(|(t, (name, _))| tracing.argument(name, t.ty().clone()))
            .collect();
        let inputs: Vec<Tensor> = self
            .inputs
            .iter()
            .enumerate()
            .map(|(i, ty)| {
                let shape = samples.map_or(ty.shape.clone(), |samples| ty.shape.with(0, samples));
                tracing.argument(&format!("input {i}"), ty.with_shape(shape))
            })
            .collect();
        let first = tracing.argument("first sample", Type::new(DType::I64, [1]));
        let pass = Pass { state: &state, inputs: &inputs, first: &first };
        let StepResult { state: new, outputs, totals } = self.device.scope(|| (self.body)(&pass))?;
        let types = |tensors: &[Tensor]| tensors.iter().map(|t| t.ty().clone()).collect::<Vec<Type>>();
        if types(&new) != types(&state) {
            let why = format!("returns a state of {:?} where it was given {:?}", types(&new), types(&state));
            return Err(Error::Signature { site: self.site, why });
        }
        let frame = Frame { state: state.len(), inputs: inputs.len() + 1, totals: totals.len() };
        let results: Vec<Tensor> = new.into_iter().chain(outputs).chain(totals).collect();
        let graph = finish(&tracing, &results, self.site)?;
        Ok(Traced { graph, captured: tracing.captured(), frame })
    }

    /// The step without a split.
    pub(super) fn whole(&self, traced: &Traced, hosting: &Hosting) -> Result<Candidate> {
        let n_state = self.state.len();
        let replaces: Vec<Option<usize>> =
            (0..traced.graph.outputs().len()).map(|r| (r < n_state).then_some(r)).collect();
        let guard = (self.guarded && traced.graph.outputs().len() > n_state).then_some(n_state);
        let draft = self.draft(&traced.graph, Extent::Step, &replaces, guard, 0, hosting)?;
        let batch = self.batch.unwrap_or(1);
        Ok(Candidate {
            drafts: vec![(draft, traced.captured.clone(), batch, 1)],
            update: None,
            sums: Vec::new(),
            guard: None,
            passed: Vec::new(),
            updated: Vec::new(),
            extra: hosting.here,
            hosting: hosting.clone(),
            is_timed: false,
        })
    }

    /// The step in micro-batches of so many samples, the last of which may have fewer.
    pub(super) fn split(&self, samples: usize, hosting: &Hosting) -> Result<Candidate> {
        let batch = self.batch.unwrap_or(1);
        let (full, rest) = (batch / samples, batch % samples);
        let mut drafts = Vec::new();
        let mut made = None;
        for (samples, runs) in [(samples, full), (rest, usize::from(rest > 0))] {
            if runs == 0 || samples == 0 {
                continue;
            }
            let traced = self.trace(Some(samples))?;
            let cut = cut(&traced.graph, &traced.frame, samples as f64 / batch as f64)?;
            let first_sum = traced.graph.inputs().len();
            let state = cut.passed.iter().map(|&i| Some(i));
            let replaces: Vec<Option<usize>> =
                state.chain((0..cut.sums.len()).map(|i| Some(first_sum + i))).collect();
            let draft = self.draft(&cut.pass, Extent::Pass, &replaces, None, first_sum, hosting)?;
            drafts.push((draft, traced.captured.clone(), samples, runs));
            made.get_or_insert((cut, traced.captured, first_sum));
        }
        let Some((cut, captured, first_sum)) = made else {
            return Err(Error::Internal(format!("a batch of {batch} in micro-batches of {samples}")));
        };
        let outputs = cut.update.outputs().len() - cut.updated.len();
        let replaces: Vec<Option<usize>> =
            cut.updated.iter().map(|&i| Some(i)).chain((0..outputs).map(|_| None)).collect();
        let update = self.draft(&cut.update, Extent::Update, &replaces, None, first_sum, hosting)?;
        let sums = cut.sums.iter().map(|ty| padded(ty.bytes()));
        let fixed = !self.device.backend().is_host();
        let rows = self.inputs.iter().map(|ty| staged(ty, batch, samples, fixed));
        let kept = cut.passed.iter().map(|&i| padded(self.state[i].ty().bytes()));
        let first = fixed.then(|| padded(size_of::<i64>()));
        let extra = sums.chain(rows).chain(kept).chain(first).chain([hosting.here]).sum();
        let guard = cut.outputs.first().copied().flatten().filter(|_| self.guarded);
        let Cut { sums, passed, updated, .. } = cut;
        let update = Some((update, captured));
        let hosting = hosting.clone();
        Ok(Candidate { drafts, update, sums, guard, passed, updated, extra, hosting, is_timed: false })
    }

    pub(super) fn draft(
        &self,
        graph: &Graph,
        extent: Extent,
        replaces: &[Option<usize>],
        guard: Option<usize>,
        first_sum: usize,
        hosting: &Hosting,
    ) -> Result<Draft> {
        let graph = passes::optimize(graph)?;
        let mut kinds: Vec<Kind> = self.names.iter().map(|(_, kind)| *kind).collect();
        if first_sum > 0 {
            kinds.resize(first_sum, Kind::Input);
            kinds.resize(graph.inputs().len(), Kind::Gradient);
        }
        let roles = Roles { replaces, kinds: &kinds, guard, hosted: &hosting.hosted, extent };
        Draft::untimed(graph, &roles, self.device, hosting.left)
    }

    /// Bytes of the host that plans may copy to: none where the device's memory is the host's.
    pub(super) fn host(&self) -> Bytes {
        let link = self.device.backend().rough_link();
        self.options.host_memory.filter(|_| link.is_some()).unwrap_or(Bytes::ZERO)
    }
}
