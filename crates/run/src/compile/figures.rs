//! What is said of a step's plans: bytes, times, and what is held when most is.

use std::collections::BTreeMap;
use std::time::Instant;

use plimsoll_device::{Bytes, Kind as LedgerKind};
use plimsoll_graph::TensorOps;
use plimsoll_plan::{Exactness, Plan};

use super::{Candidate, Compile, Terms, padded};
use crate::account::{Account, whole_pages};
use crate::draft::Draft;
use crate::peak::Peak;
use crate::step::StepInfo;

impl Compile<'_> {
    /// What is to be said of a candidate's plans.
    pub(crate) fn info(
        &self,
        candidate: &Candidate,
        plans: &[Plan],
        predicted_ns: u64,
        terms: &Terms,
        line: Option<Bytes>,
        start: Instant,
    ) -> StepInfo {
        let parts = || candidate.parts().zip(plans);
        let arena = parts().map(|((draft, _), plan)| draft.bytes_of(plan).max(1)).max().unwrap_or(0);
        let live = parts().map(|((draft, _), plan)| draft.live_of(plan)).max().unwrap_or(0);
        let again = parts().map(|((_, runs), plan)| plan.figures.recomputed_ops * runs);
        let kept = parts().map(|((draft, _), plan)| draft.unlimited_of(plan)).max().unwrap_or(0);
        let kept_ns: u64 = parts().map(|((_, runs), plan)| plan.figures.unlimited_ns * runs).sum();
        let host = parts().map(|(_, plan)| plan.figures.host_bytes).max().unwrap_or(0);
        let copied = |((draft, runs), plan): ((&Draft, u64), &Plan)| {
            let (copies, bytes) = draft.copies_of(plan);
            (copies * runs, bytes * runs)
        };
        let (copies, copied) = parts().map(copied).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let micro_batches = candidate.micro_batches();
        let elsewhere = terms.account.elsewhere();
        // Kernels are timed while the step is planned, before the arena is there: whichever takes more is announced, whether they
        // have to be timed or not.
        let before = terms.planning + terms.timing(line, self.movable_here());
        let whole = |arena: Bytes| elsewhere + whole_pages(self.device, before.max(arena));
        let planned = whole(candidate.extra + Bytes(arena));
        StepInfo {
            planned,
            floor: elsewhere + terms.least,
            unlimited: elsewhere + terms.unlimited,
            live: Bytes(live),
            arena: Bytes(arena),
            account: Account { tensors: terms.account.tensors + candidate.hosting.here, ..terms.account },
            outside: elsewhere,
            predicted_seconds: predicted_ns as f64 / 1e9,
            unlimited_seconds: terms.unlimited_ns as f64 / 1e9,
            unshared: whole(terms.unshared),
            kept: whole(candidate.extra + Bytes(kept)),
            // Never a split for speed: a prediction that the parts take less time than the whole counts as the whole's.
            kept_seconds: kept_ns.max(terms.unlimited_ns) as f64 / 1e9,
            recomputed_ops: again.sum(),
            host_bytes: Bytes(host) + candidate.hosting.away,
            hosted_bytes: candidate.hosting.away,
            offloaded_bytes: Bytes(copied),
            offloaded_copies: copies,
            micro_batches,
            exactness: terms.splits.filter(|_| micro_batches > 1).unwrap_or(Exactness::Bitwise),
            plan_seconds: start.elapsed().as_secs_f64(),
            peak: self.peak(candidate, plans, &terms.account, planned),
        }
    }

    /// What the process holds when it holds most.
    fn peak(&self, candidate: &Candidate, plans: &[Plan], account: &Account, planned: Bytes) -> Peak {
        let fullest = candidate.parts().zip(plans).max_by_key(|((draft, _), plan)| draft.bytes_of(plan));
        let mut peak = fullest.and_then(|((draft, _), plan)| draft.peak(plan)).unwrap_or_default();
        let mut held: BTreeMap<LedgerKind, Bytes> = peak.kinds.into_iter().collect();
        let mut add = |kind: LedgerKind, bytes: Bytes| *held.entry(kind).or_default() += bytes;
        let mut state = Bytes::ZERO;
        let here = self.names.iter().zip(self.state).enumerate();
        for (_, ((_, kind), tensor)) in here.filter(|(i, _)| !candidate.hosting.hosted[*i]) {
            state += padded(tensor.ty().bytes());
            add(*kind, padded(tensor.ty().bytes()));
        }
        add(
            LedgerKind::Program,
            account.program + (account.tensors + candidate.hosting.here).saturating_sub(state),
        );
        add(LedgerKind::Input, account.staged + account.beside);
        let sums: Bytes = candidate.sums.iter().map(|ty| padded(ty.bytes())).sum();
        add(LedgerKind::Gradient, sums);
        // What passes change is kept as it was, in case one fails; the rest are rows of a micro-batch.
        let mut rows = candidate.extra.saturating_sub(sums + candidate.hosting.here);
        for &i in candidate.passed.iter().filter(|_| candidate.update.is_some()) {
            let bytes = padded(self.state[i].ty().bytes());
            add(self.names[i].1, bytes);
            rows = rows.saturating_sub(bytes);
        }
        add(LedgerKind::Input, rows);
        peak.kinds = held.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO).collect();
        peak.unused = planned.saturating_sub(peak.kinds.iter().map(|(_, bytes)| *bytes).sum());
        peak
    }
}
