//! A step's plan: what will run, where, and what is said of it in figures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use plimsoll_device::Bytes;
use plimsoll_graph::ops::{ExchangeKind, Rank};
use plimsoll_graph::{Op, Type};
use plimsoll_plan::Exactness;
use plimsoll_record::Kind;

use super::candidate::{Candidate, Planned, PlannedPart, Shared};
use super::limits::StepLimits;
use super::placement::StatePlacement;
use super::{PlanFigures, StepToPlan};
use crate::device::{Placement, padded, whole_pages};
use crate::error::Result;
use crate::memory::FixedMemory;
use crate::peak::Peak;

/// The plan of a step under a memory limit, verified. `plan`, `frontier` and training are given the same one.
#[derive(Clone)]
pub struct StepPlan {
    /// What it takes and how long it is predicted to run.
    pub figures: PlanFigures,
    pub(crate) subject: Arc<StepToPlan>,
    /// The passes over the batch; where it is not split, one part that is the whole step.
    pub(crate) passes: Vec<PlannedPart>,
    /// What runs after all passes of a split batch.
    pub(crate) update: Option<PlannedPart>,
    pub(crate) shared: Shared,
    pub(crate) outputs: Vec<Type>,
    pub(crate) placement: StatePlacement,
    pub(crate) limit: Option<Bytes>,
    /// Predicted nanoseconds.
    pub(super) ns: u64,
    /// Bytes of the device beside arena and account.
    extra: Bytes,
    /// How many micro-batches run side by side in a pass.
    side_by_side: usize,
}

impl StepPlan {
    /// The plans of a candidate; figures are still to be filled in.
    pub(super) fn new(subject: &Arc<StepToPlan>, candidate: &Candidate, planned: Planned) -> StepPlan {
        let Planned { passes, update, ns } = planned;
        StepPlan {
            figures: PlanFigures::NOTHING,
            subject: subject.clone(),
            passes,
            update,
            shared: candidate.shared.clone(),
            outputs: Vec::new(),
            placement: candidate.placement.clone(),
            limit: None,
            ns,
            extra: candidate.extra,
            side_by_side: candidate.side_by_side,
        }
    }

    /// The memory limit that it was made for, if there was one.
    pub fn limit(&self) -> Option<Bytes> {
        self.limit
    }

    /// What its owner should be told though it can be run: that f64 tensors enter a step whose other floats are narrower, by name.
    pub fn remark(&self) -> Option<String> {
        self.subject.remark()
    }

    /// Where every op of the step runs and why there: the placement log of a plan, in the order of the graphs.
    ///
    /// # Errors
    /// None but the engine's own: what cannot be placed is not planned.
    pub fn placements(&self) -> Result<Vec<Placement>> {
        let device = &self.subject.step.device;
        let graphs = self.parts().map(|part| &part.graph.lowered().graph);
        graphs.flat_map(|graph| graph.nodes().iter().map(|node| device.placement_of(graph, node))).collect()
    }

    /// What the step exchanges with other ranks: each exchange with the bytes of all ranks' values together, as often as it is run.
    pub fn exchanged(&self) -> Vec<(ExchangeKind, Rank, u64)> {
        let of = |part: &PlannedPart| {
            let graph = &part.graph.lowered().graph;
            let each = graph.nodes().iter().filter_map(|node| match &node.op {
                Op::Exchange(exchange) if exchange.of.ranks > 1 => {
                    let x = graph.ty(node.inputs[0]);
                    Some((exchange.kind.clone(), exchange.of, (exchange.len(x) * x.dtype.bytes()) as u64))
                }
                _ => None,
            });
            let each: Vec<(ExchangeKind, Rank, u64)> = each.collect();
            std::iter::repeat_n(each, part.runs).flatten()
        };
        self.parts().flat_map(of).collect()
    }

    /// Wishes for devices by names that no layer of the step has, as a sentence.
    pub(crate) fn unmet_wishes(&self) -> Option<String> {
        let names = self.subject.step.device.unmet_wishes();
        (!names.is_empty())
            .then(|| format!("no layer is called {}: nothing was placed by that name", names.join(", ")))
    }

    /// Which ops run on the host of a device with memory of its own, as a sentence.
    pub(crate) fn hosted_ops(&self) -> Option<String> {
        let lowered = || self.parts().map(|part| part.graph.lowered());
        let n: usize = lowered().map(|l| l.hosts.iter().filter(|on_host| **on_host).count()).sum();
        let device = &self.subject.step.device;
        let first = lowered().find_map(|l| {
            let node = l.graph.nodes().iter().zip(&l.hosts).find(|(_, on_host)| **on_host)?.0;
            device.placement_of(&l.graph, node).ok()
        })?;
        let Placement { op, layer, why, .. } = first;
        let name = if layer.is_empty() { op.to_string() } else { format!("{layer}/{op}") };
        let run = if n == 1 { "runs" } else { "run" };
        Some(format!(
            "{} {run} on the host, {name} first ({why}): operands are copied there and back, and the step is not recorded",
            plimsoll_graph::counted(n, "op")
        ))
    }

    /// All that the owner of the step should know of it, a sentence each.
    pub fn remarks(&self) -> Vec<String> {
        self.remark().into_iter().chain(self.hosted_ops()).chain(self.unmet_wishes()).collect()
    }

    fn parts(&self) -> impl Iterator<Item = &PlannedPart> {
        self.passes.iter().chain(&self.update)
    }

    /// The same with what is to be said of it.
    pub(super) fn with_figures(
        mut self,
        limits: &StepLimits,
        limit: Option<Bytes>,
        start: Instant,
    ) -> StepPlan {
        let (device, host) = (&self.subject.step.device, self.placement.host);
        let most = |of: &dyn Fn(&PlannedPart) -> u64| Bytes(self.parts().map(of).max().unwrap_or(0));
        let sum =
            |of: &dyn Fn(&PlannedPart) -> u64| self.parts().map(|part| of(part) * part.runs as u64).sum();
        let arena = most(&|part| part.graph.bytes().max(1));
        let staging = most(&|part| part.graph.host_staging(device));
        let kept_ns: u64 = sum(&|part| part.graph.figures().unlimited_ns);
        let passes: usize = self.passes.iter().map(|part| part.runs).sum();
        let exactness = match (passes, self.side_by_side) {
            (1, 1) => Exactness::Bitwise,
            (1, _) => Exactness::Reassociated,
            _ => limits.splits.unwrap_or(Exactness::Bitwise),
        };
        let elsewhere = limits.account.total();
        // Kernels are timed while the step is planned, before the arena is there: whichever takes more is announced, whether they
        // have to be timed or not.
        let before = limits.planning + limits.timing(limit, self.subject.movable_bytes());
        let whole = |arena: Bytes| elsewhere + whole_pages(device, before.max(arena));
        let planned = whole(self.extra + arena);
        let from_cache = self.parts().all(|part| part.graph.is_kept());
        self.figures = PlanFigures {
            planned,
            floor: limits.floor(),
            unlimited: elsewhere + limits.unlimited,
            live: most(&|part| part.graph.live()),
            arena,
            account: FixedMemory {
                tensors: limits.account.tensors + self.placement.device,
                ..limits.account
            },
            outside: elsewhere,
            predicted_seconds: self.ns as f64 / 1e9,
            unlimited_seconds: limits.unlimited_ns as f64 / 1e9,
            unshared: whole(limits.unshared),
            kept: whole(self.extra + most(&|part| part.graph.kept())),
            // Never a split for speed: a prediction that the parts take less time than the whole counts as the whole's.
            kept_seconds: kept_ns.max(limits.unlimited_ns) as f64 / 1e9,
            recomputed_ops: sum(&|part| part.graph.figures().recomputed_ops),
            host_bytes: most(&|part| part.graph.figures().host_bytes) + host + staging,
            hosted_bytes: host,
            is_on_disk: device.disk().is_some(),
            host: None,
            offloaded_bytes: Bytes(sum(&|part| part.graph.copies().1)),
            offloaded_copies: sum(&|part| part.graph.copies().0),
            micro_batches: passes * self.side_by_side,
            exactness,
            plan_seconds: start.elapsed().as_secs_f64(),
            from_cache,
            peak: self.peak(&limits.account, planned),
        };
        self.outputs = limits.outputs.clone();
        self.limit = limit;
        self
    }

    /// What the process holds when it holds most.
    fn peak(&self, account: &FixedMemory, planned: Bytes) -> Peak {
        let fullest = self.parts().max_by_key(|part| part.graph.bytes());
        let mut peak = fullest.and_then(|part| part.graph.peak()).unwrap_or_default();
        let mut held: BTreeMap<Kind, Bytes> = peak.kinds.into_iter().collect();
        let mut add = |kind: Kind, bytes: Bytes| *held.entry(kind).or_default() += bytes;
        let mut state = Bytes::ZERO;
        let parts = &self.subject.step.state;
        for (part, _) in parts.iter().zip(&self.placement.hosted).filter(|(_, is_hosted)| !**is_hosted) {
            state += padded(part.ty.bytes());
            add(part.kind, padded(part.ty.bytes()));
        }
        add(Kind::Library, account.ranks);
        add(Kind::Program, account.program + (account.tensors + self.placement.device).saturating_sub(state));
        add(Kind::Input, account.inputs + account.reserved);
        let sums: Bytes = self.shared.sums.iter().map(|ty| padded(ty.bytes())).sum();
        add(Kind::Gradient, sums);
        // What passes change is kept as it was, in case one fails; the rest are rows of a micro-batch.
        let mut rows = self.extra.saturating_sub(sums + self.placement.device);
        for &i in self.shared.passed.iter().filter(|_| self.update.is_some()) {
            let bytes = padded(parts[i].ty.bytes());
            add(parts[i].kind, bytes);
            rows = rows.saturating_sub(bytes);
        }
        add(Kind::Input, rows);
        peak.kinds = held.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO).collect();
        peak.unused = planned.saturating_sub(peak.kinds.iter().map(|(_, bytes)| *bytes).sum());
        peak
    }
}
