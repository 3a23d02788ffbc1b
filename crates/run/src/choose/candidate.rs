//! One way to run a step: the whole batch or micro-batches, with some of its state on the host; and its plans within a limit.

use plimsoll_device::Bytes;
use plimsoll_device::backend::ALIGNMENT;
use plimsoll_graph::micro_batch::{Cut, Run, cut, interleave};
use plimsoll_graph::{Graph, Type, passes};
use plimsoll_plan::{Digest, Infeasible};
use plimsoll_record::Kind;

use super::StepToPlan;
use super::placement::StatePlacement;
use super::subject::MANY_OPS;
use crate::device::{Device, padded};
use crate::error::{Error, Result};
use crate::lower::{Extent, PlannableGraph, PlannedGraph, Roles};
use crate::tensor::Tensor;
use crate::trace::Traced;

/// A step without a limit takes the least memory that is predicted to cost at most this much time over the fastest plan.
const LEAN: f64 = 1.01;

/// Which candidate: with how much of the state on the host, and in what micro-batches, if any.
#[derive(Clone, Debug)]
pub(crate) struct CandidateSpec {
    pub(super) placement: StatePlacement,
    pub(super) split: Option<Split>,
}

impl CandidateSpec {
    pub(super) fn is_side_by_side(&self) -> bool {
        matches!(self.split, Some(Split::SideBySide(_)))
    }
}

/// Micro-batches of so many samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Split {
    /// One pass after the other: what they add up is all that they share.
    Passes(usize),
    /// Side by side in one pass: they share statistics of the whole batch.
    SideBySide(usize),
}

/// A program of a candidate before it is planned.
pub(super) struct Part {
    pub(super) graph: PlannableGraph,
    pub(super) captured: Vec<Tensor>,
    pub(super) samples: usize,
    pub(super) runs: usize,
}

/// A program of a step with its plan, what it captured, and how often it runs on how many samples.
#[derive(Clone)]
pub(crate) struct PlannedPart {
    pub(crate) graph: PlannedGraph,
    pub(crate) captured: Vec<Tensor>,
    pub(crate) samples: usize,
    pub(crate) runs: usize,
}

/// What passes over micro-batches share with each other and with the update.
#[derive(Clone, Default)]
pub(crate) struct Shared {
    /// What passes add up.
    pub(crate) sums: Vec<Type>,
    /// Which of them must be finite before the update.
    pub(crate) guard: Option<usize>,
    /// Which state each pass changes, and which the update.
    pub(crate) passed: Vec<usize>,
    pub(crate) updated: Vec<usize>,
}

/// One way to run the step, before it is planned.
pub(crate) struct Candidate {
    /// The passes over the batch; where it is not split, one part that is the whole step.
    passes: Vec<Part>,
    /// What runs after all passes of a split batch.
    update: Option<Part>,
    pub(super) shared: Shared,
    /// Bytes of the device beside arena and account: what passes share, and state that could be on the host.
    pub(super) extra: Bytes,
    pub(super) placement: StatePlacement,
    /// How many micro-batches run side by side in a pass.
    pub(super) side_by_side: usize,
    /// Whether its kernels have been timed.
    is_timed: bool,
}

/// The plans of a candidate: of its passes and its update.
pub(crate) struct Planned {
    pub(super) passes: Vec<PlannedPart>,
    pub(super) update: Option<PlannedPart>,
    pub(super) ns: u64,
}

impl StepToPlan {
    /// The candidate of a spec; `whole` is the trace of the whole batch, where it is at hand.
    pub(super) fn candidate(&self, spec: &CandidateSpec, whole: Option<&Traced>) -> Result<Candidate> {
        let traced;
        let whole = match (spec.split, whole) {
            (Some(Split::Passes(samples)), _) => return self.passes(samples, &spec.placement),
            (_, Some(whole)) => whole,
            (_, None) => {
                traced = self.step.trace(self.step.batch)?;
                &traced
            }
        };
        match spec.split {
            Some(Split::SideBySide(samples)) => {
                let candidate = self.side_by_side(whole, samples, &spec.placement)?;
                candidate.ok_or_else(|| Error::Internal("micro-batches cannot run side by side".into()))
            }
            _ => self.whole(whole, &spec.placement),
        }
    }

    /// The step without a split.
    pub(super) fn whole(&self, traced: &Traced, placement: &StatePlacement) -> Result<Candidate> {
        self.one_pass(traced, placement, false)
    }

    /// The step in one pass. A long one, which stands beside another, is searched `in_haste`.
    fn one_pass(&self, traced: &Traced, placement: &StatePlacement, in_haste: bool) -> Result<Candidate> {
        let n_state = self.step.state.len();
        let replaces: Vec<Option<usize>> =
            (0..traced.graph.outputs().len()).map(|r| (r < n_state).then_some(r)).collect();
        let guard = (self.guarded && traced.graph.outputs().len() > n_state).then_some(n_state);
        let roles = Roles { replaces: &replaces, guard, extent: Extent::Step, in_haste, ..Roles::default() };
        let graph = self.plannable(&traced.graph, roles, 0, placement)?;
        let captured = traced.captured.clone();
        Ok(Candidate {
            passes: vec![Part { graph, captured, samples: self.step.batch.unwrap_or(1), runs: 1 }],
            update: None,
            shared: Shared::default(),
            extra: placement.device,
            placement: placement.clone(),
            side_by_side: 1,
            is_timed: false,
        })
    }

    /// The step in micro-batches of so many samples, the last of which may have fewer, one pass after the other.
    pub(super) fn passes(&self, samples: usize, placement: &StatePlacement) -> Result<Candidate> {
        let batch = self.step.batch.unwrap_or(1);
        let (full, rest) = (batch / samples, batch % samples);
        let mut passes = Vec::new();
        let mut made = None;
        for (samples, runs) in [(samples, full), (rest, usize::from(rest > 0))] {
            if runs == 0 || samples == 0 {
                continue;
            }
            let Traced { graph, captured, frame } = self.step.trace(Some(samples))?;
            let cut = cut(&graph, &frame, samples as f64 / batch as f64)?;
            let first_sum = graph.inputs().len();
            drop(graph);
            let state = cut.passed.iter().map(|&i| Some(i));
            let replaces: Vec<Option<usize>> =
                state.chain((0..cut.sums.len()).map(|i| Some(first_sum + i))).collect();
            let roles = Roles { replaces: &replaces, extent: Extent::Pass, ..Roles::default() };
            let graph = self.plannable(&cut.pass, roles, first_sum, placement)?;
            passes.push(Part { graph, captured: captured.clone(), samples, runs });
            made.get_or_insert((cut, captured, first_sum));
        }
        let Some((cut, captured, first_sum)) = made else {
            return Err(Error::Internal(format!("a batch of {batch} in micro-batches of {samples}")));
        };
        let outputs = cut.update.outputs().len() - cut.updated.len();
        let replaces: Vec<Option<usize>> =
            cut.updated.iter().map(|&i| Some(i)).chain((0..outputs).map(|_| None)).collect();
        // The loss is a sum of the passes; or where ranks exchange theirs, the update makes it.
        let loss = cut.outputs.first().copied().filter(|_| self.guarded);
        let guard = matches!(loss, Some(None)).then_some(cut.updated.len());
        let roles = Roles { replaces: &replaces, guard, extent: Extent::Update, ..Roles::default() };
        let graph = self.plannable(&cut.update, roles, first_sum, placement)?;
        let sums = cut.sums.iter().map(|ty| padded(ty.bytes()));
        let fixed = !self.step.device.backend().is_host();
        let rows = self.step.inputs.iter().map(|ty| staged(ty, batch, samples, fixed));
        let kept = cut.passed.iter().map(|&i| padded(self.step.state[i].ty.bytes()));
        let first = fixed.then(|| padded(size_of::<i64>()));
        let extra = sums.chain(rows).chain(kept).chain(first).chain([placement.device]).sum();
        let guard = loss.flatten();
        let Cut { sums, passed, updated, .. } = cut;
        Ok(Candidate {
            passes,
            update: Some(Part { graph, captured, samples: 0, runs: 1 }),
            shared: Shared { sums, guard, passed, updated },
            extra,
            placement: placement.clone(),
            side_by_side: 1,
            is_timed: false,
        })
    }

    /// The step in micro-batches side by side, which share the statistics of the whole batch; nothing where it cannot be written so.
    pub(super) fn side_by_side(
        &self,
        whole: &Traced,
        samples: usize,
        placement: &StatePlacement,
    ) -> Result<Option<Candidate>> {
        let batch = self.step.batch.unwrap_or(1);
        let mut runs = vec![(self.step.trace(Some(samples))?, samples, batch / samples)];
        if !batch.is_multiple_of(samples) {
            runs.push((self.step.trace(Some(batch % samples))?, batch % samples, 1));
        }
        let parts: Vec<Run<'_>> = runs
            .iter()
            .map(|(traced, samples, runs)| Run { graph: &traced.graph, samples: *samples, runs: *runs })
            .collect();
        let Some(graph) = interleave(&whole.graph, &parts, &whole.frame)? else { return Ok(None) };
        let captured = [whole].into_iter().chain(runs.iter().map(|(traced, ..)| traced));
        let captured = captured.flat_map(|traced| traced.captured.iter().cloned()).collect();
        let side_by_side = parts.iter().map(|run| run.runs).sum();
        let whole = Traced { graph, captured, frame: whole.frame };
        Ok(Some(Candidate { side_by_side, ..self.one_pass(&whole, placement, true)? }))
    }

    /// The graph of a part, whose arguments from `first_sum` on are sums, if that is not 0.
    fn plannable(
        &self,
        graph: &Graph,
        roles: Roles<'_>,
        first_sum: usize,
        placement: &StatePlacement,
    ) -> Result<PlannableGraph> {
        let graph = passes::optimize(graph)?;
        let mut kinds: Vec<Kind> = self.step.state.iter().map(|part| part.kind).collect();
        if first_sum > 0 {
            kinds.resize(first_sum, Kind::Input);
            kinds.resize(graph.inputs().len(), Kind::Gradient);
        }
        let in_haste = roles.in_haste || (self.in_haste && graph.nodes().len() > MANY_OPS);
        let roles = Roles { kinds: &kinds, hosted: &placement.hosted, in_haste, ..roles };
        PlannableGraph::untimed(graph, &roles, &self.step.device, placement.host_free)
    }
}

impl Candidate {
    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.passes.iter().chain(&self.update)
    }

    fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        self.passes.iter_mut().chain(&mut self.update)
    }

    /// What tells it from others whose bytes are known, and whose times are.
    pub(super) fn digests(&self) -> (Digest, Digest) {
        let start = Digest::of(b"candidate").with(self.extra.get());
        self.parts().fold((start, start), |(bytes, times), part| {
            let (with_bytes, with_times) = part.graph.digests();
            (bytes.with(with_bytes.0), times.with((with_times.0, part.runs)))
        })
    }

    /// Bytes beside the account: the least with which it can run.
    pub(super) fn floor(&mut self) -> Bytes {
        let extra = self.extra;
        extra + Bytes(self.parts_mut().map(|part| part.graph.floor()).max().unwrap_or(0))
    }

    /// Bytes beside the account with which it can run: the least, or of a long step what is found sooner.
    pub(super) fn enough(&mut self) -> Bytes {
        if self.ops() <= MANY_OPS {
            return self.floor();
        }
        let extra = self.extra;
        extra + Bytes(self.parts_mut().map(|part| part.graph.enough()).max().unwrap_or(0))
    }

    /// The least, if it is below so many bytes: whether it is, is mostly seen sooner.
    pub(super) fn floor_below(&mut self, bytes: Bytes) -> Option<Bytes> {
        let arena = bytes.checked_sub(self.extra)?.get();
        let floors: Option<Vec<u64>> = self.parts_mut().map(|part| part.graph.floor_below(arena)).collect();
        Some(self.extra + Bytes(floors?.into_iter().max().unwrap_or(0)))
    }

    /// Finds what [`Candidate::floor_below`] looks at first.
    pub(super) fn lower_once(&mut self) {
        self.parts_mut().for_each(|part| {
            part.graph.lowered_once();
        });
    }

    /// Looks for the least as far as plans within more bytes need it.
    pub(super) fn look_for_floor(&mut self) {
        self.parts_mut().for_each(|part| part.graph.look_for_floor());
    }

    /// Bytes beside the account that no plan of it can go below.
    pub(super) fn bound(&mut self) -> Bytes {
        let extra = self.extra;
        extra + Bytes(self.parts_mut().map(|part| part.graph.bound()).max().unwrap_or(0))
    }

    /// Whether it has been found that it cannot run with so many bytes beside the account. Nothing is searched for that.
    pub(super) fn is_known_to_need_more_than(&self, room: Bytes) -> bool {
        let floors = self.parts().filter_map(|part| part.graph.known_floor());
        floors.max().is_some_and(|floor| self.extra + Bytes(floor) > room)
    }

    /// Bytes beside the account with which nothing is recomputed.
    pub(super) fn unlimited(&mut self) -> Bytes {
        let extra = self.extra;
        extra + Bytes(self.parts_mut().map(|part| part.graph.unlimited()).max().unwrap_or(0))
    }

    /// Bytes beside the account if every value had its own.
    pub(super) fn unshared(&self) -> Bytes {
        self.extra + self.parts().map(|part| Bytes(part.graph.unshared())).max().unwrap_or_default()
    }

    pub(super) fn ops(&self) -> usize {
        self.parts().map(|part| part.graph.ops()).sum()
    }

    /// Times its kernels, as far as their operands fit into `room`. No floor depends on that.
    pub(super) fn time(&mut self, device: &Device, room: Bytes) -> Result<()> {
        if self.is_timed {
            return Ok(());
        }
        self.is_timed = true;
        self.parts_mut().try_for_each(|part| part.graph.time(device, Some(room)))
    }

    /// The bytes that timing each of its kernels takes, ascending.
    pub(super) fn timing_needs(&self, device: &Device) -> Result<Vec<Bytes>> {
        let mut all = Vec::new();
        for part in self.parts() {
            all.extend(part.graph.timing_needs(device)?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Predicted nanoseconds without recomputation.
    pub(super) fn unlimited_ns(&self) -> u64 {
        self.parts().map(|part| part.graph.unlimited_ns() * part.runs as u64).sum()
    }

    /// The least nanoseconds that any plan within so many bytes beside the account can take; nothing if there is none.
    pub(super) fn bound_ns(&mut self, room: Bytes) -> Option<u64> {
        let arena = room.checked_sub(self.extra)?.get();
        self.parts_mut().map(|part| Some(part.graph.bound_ns(arena)? * part.runs as u64)).sum()
    }

    /// The fastest plans within so many bytes beside the account, if they take less than so many nanoseconds.
    pub(super) fn plan(&mut self, room: Bytes, than: u64) -> Result<Option<Planned>> {
        let arena = room.saturating_sub(self.extra).get();
        if room < self.extra {
            return Ok(None);
        }
        // What no part can do without: the rest may be taken by any one of them.
        let (mut least, mut ns) = (self.unlimited_ns(), 0);
        self.planned(|graph, runs| {
            let most = graph.unlimited().saturating_add(graph.beside());
            least -= graph.unlimited_ns() * runs;
            let than =
                if than == u64::MAX { than } else { than.saturating_sub(ns + least).div_ceil(runs.max(1)) };
            let plan = graph.plan_faster(arena.min(most), than)?;
            ns += plan.as_ref().map_or(0, |plan| plan.figures().predicted_ns * runs);
            Ok(plan)
        })
    }

    /// The plans that take the least memory among those predicted to cost little more than the fastest.
    pub(super) fn lean(&mut self) -> Result<Option<Planned>> {
        self.planned(|graph, _| graph.lean(LEAN).map(Some))
    }

    /// Plans every part, which runs so often; nothing if one has no plan.
    fn planned(
        &mut self,
        mut plan: impl FnMut(&mut PlannableGraph, u64) -> Result<Option<PlannedGraph>>,
    ) -> Result<Option<Planned>> {
        let n = self.passes.len();
        let mut parts = Vec::with_capacity(n + 1);
        let mut total = 0;
        for part in self.passes.iter_mut().chain(&mut self.update) {
            let Some(graph) = plan(&mut part.graph, part.runs as u64)? else { return Ok(None) };
            total += graph.figures().predicted_ns * part.runs as u64;
            let (captured, samples, runs) = (part.captured.clone(), part.samples, part.runs);
            parts.push(PlannedPart { graph, captured, samples, runs });
        }
        let update = if parts.len() > n { parts.pop() } else { None };
        Ok(Some(Planned { passes: parts, update, ns: total }))
    }

    /// Why there is no plan, said of the part that needs most; `None` if none needs an arena.
    pub(super) fn refusal(&mut self) -> Result<Option<Box<Infeasible>>> {
        let worst = self.parts_mut().map(|part| (part.graph.floor(), part)).max_by_key(|(floor, _)| *floor);
        worst.map_or(Ok(None), |(_, part)| part.graph.refusal())
    }
}

/// Bytes in which a micro-batch's rows of an input are staged: none where the rows of every micro-batch are aligned and
/// need not be at a fixed place, as recordings want them.
pub(crate) fn staged(ty: &Type, batch: usize, samples: usize, fixed: bool) -> Bytes {
    let rows = ty.bytes() / batch.max(1) * samples;
    if rows.is_multiple_of(ALIGNMENT) && !fixed { Bytes::ZERO } else { padded(rows) }
}
