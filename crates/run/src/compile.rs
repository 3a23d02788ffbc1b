//! Turns a step's body and a line into programs: chooses how many micro-batches, and the fastest plan for each part.
//!
//! A batch of B samples can be run whole or in micro-batches of fewer samples; each way is a candidate with graphs of
//! its own. The least time among the candidates' plans within the line wins, so more memory never plans a slower step.
//! A batch is split for want of memory, never for speed: a prediction that its parts take less time than the whole
//! counts as the whole's, and of equals the one with fewer parts is taken.

use std::collections::BTreeMap;
use std::time::Instant;

use plimsoll_device::backend::ALIGNMENT;
use plimsoll_device::{Bytes, Kind as LedgerKind};
use plimsoll_graph::micro_batch::{Cut, Frame, Splits, cut, splits};
use plimsoll_graph::{DType, Graph, Site, TensorOps, Type, ValueId, passes};
use plimsoll_plan::{Exactness, Infeasible, Kind, Plan};

use crate::account::{Account, full_pages, planning, whole_pages};
use crate::device::Device;
use crate::draft::Draft;
use crate::error::{Error, Result, Way};
use crate::function::finish;
use crate::lower::Roles;
use crate::peak::{Peak, ledger_kind};
use crate::program::Program;
use crate::step::{Pass, StepInfo, StepOptions, StepResult};
use crate::tensor::Tensor;
use crate::tracing::Tracing;

/// A step without a line takes the least memory that is predicted to cost at most this much time over the fastest plan.
const LEAN: f64 = 1.01;

/// What is compiled.
pub(crate) struct Compile<'a> {
    pub(crate) device: &'a Device,
    pub(crate) state: &'a [Tensor],
    pub(crate) names: &'a [(String, Kind)],
    pub(crate) inputs: &'a [Type],
    /// Samples in the inputs, where their first axis counts them.
    pub(crate) batch: Option<usize>,
    pub(crate) options: &'a StepOptions,
    /// Whether the first output must be finite, or nothing is changed.
    pub(crate) guarded: bool,
    /// Bytes of state that is only sketched, and would be there.
    pub(crate) absent: Bytes,
    /// Whether the step has run before, and what stands beside it with it.
    pub(crate) started: bool,
    /// Whether a batch of inputs exists already, and is among the tensors that are counted.
    pub(crate) present: bool,
    pub(crate) body: &'a dyn Fn(&Pass<'_>) -> Result<StepResult>,
    pub(crate) site: Site,
}

/// The step traced for some number of samples.
struct Traced {
    graph: Graph,
    captured: Vec<Tensor>,
    frame: Frame,
}

/// One part of a compiled step: a program, what it captured, and how often it runs on how many samples.
pub(crate) struct Part {
    pub(crate) program: Program,
    pub(crate) captured: Vec<Tensor>,
    pub(crate) samples: usize,
    pub(crate) runs: usize,
}

/// A compiled step.
pub(crate) struct Compiled {
    /// The passes over the batch; where it is not split, one part that is the whole step.
    pub(crate) passes: Vec<Part>,
    /// What runs after all passes of a split batch.
    pub(crate) update: Option<Part>,
    /// What passes add up.
    pub(crate) sums: Vec<Type>,
    /// Which of them must be finite before the update.
    pub(crate) guard: Option<usize>,
    /// Which state each pass changes, and which the update.
    pub(crate) passed: Vec<usize>,
    pub(crate) updated: Vec<usize>,
    pub(crate) outputs: Vec<Type>,
    pub(crate) info: StepInfo,
}

/// What is known of a step before a line is looked at.
pub(crate) struct Terms {
    pub(crate) account: Account,
    pub(crate) outputs: Vec<Type>,
    /// What exactness a split takes, if the step can be split at all.
    pub(crate) splits: Option<Exactness>,
    /// The sizes of micro-batches to consider beside the whole batch.
    pub(crate) sizes: Vec<usize>,
    /// What planning needs for itself, in the arena's place.
    planning: Bytes,
    /// Bytes beside the account: the least with which any candidate can run, and what the fastest plan takes.
    pub(crate) least: Bytes,
    pub(crate) unlimited: Bytes,
    pub(crate) unlimited_ns: u64,
    /// Bytes beside the account if every value had its own.
    unshared: Bytes,
}

/// More host memory than any step copies to.
const MUCH: Bytes = Bytes::gib(1 << 16);

/// Bytes kept for the outputs of other forms of a step: a smaller last batch, an evaluation.
const LATER_OUTPUTS: usize = 4096;

/// One way to run the step, before it is planned.
pub(crate) struct Candidate {
    drafts: Vec<(Draft, Vec<Tensor>, usize, usize)>,
    update: Option<(Draft, Vec<Tensor>)>,
    sums: Vec<Type>,
    guard: Option<usize>,
    passed: Vec<usize>,
    updated: Vec<usize>,
    extra: Bytes,
    /// Whether its kernels have been timed.
    is_timed: bool,
}

impl Candidate {
    /// The parts, each with how often it runs.
    fn parts(&self) -> impl Iterator<Item = (&Draft, u64)> {
        let passes = self.drafts.iter().map(|(draft, _, _, runs)| (draft, *runs as u64));
        passes.chain(self.update.iter().map(|(draft, _)| (draft, 1)))
    }

    fn all(&mut self) -> impl Iterator<Item = (&mut Draft, u64)> {
        let passes = self.drafts.iter_mut().map(|(draft, _, _, runs)| (draft, *runs as u64));
        passes.chain(self.update.iter_mut().map(|(draft, _)| (draft, 1)))
    }

    fn micro_batches(&self) -> usize {
        self.drafts.iter().map(|(_, _, _, runs)| runs).sum()
    }

    /// Bytes beside the account: the least with which it can run.
    fn floor(&mut self) -> Bytes {
        let extra = self.extra;
        extra + Bytes(self.all().map(|(draft, _)| draft.floor()).max().unwrap_or(0))
    }

    pub(crate) fn bound(&mut self) -> Bytes {
        let extra = self.extra;
        extra + Bytes(self.all().map(|(draft, _)| draft.bound()).max().unwrap_or(0))
    }

    fn ops(&self) -> usize {
        self.parts().map(|(draft, _)| draft.ops()).sum()
    }

    /// Times its kernels, as far as their operands fit into `room` beside what planning takes. No floor depends on that.
    pub(crate) fn time(&mut self, device: &Device, room: Option<Bytes>) -> Result<()> {
        if self.is_timed {
            return Ok(());
        }
        let planning = planning(device, self.ops());
        let room = room.map(|room| room.saturating_sub(planning));
        self.is_timed = true;
        self.all().try_for_each(|(draft, _)| draft.time(device, room))
    }

    pub(crate) fn unlimited_ns(&self) -> u64 {
        self.parts().map(|(draft, runs)| draft.unlimited_ns() * runs).sum()
    }

    /// The fastest plans within so many bytes beside the account, with their time.
    pub(crate) fn plan(&mut self, room: Bytes) -> Result<Option<(Vec<Plan>, u64)>> {
        let arena = room.saturating_sub(self.extra).get();
        if room < self.extra {
            return Ok(None);
        }
        let (mut plans, mut ns) = (Vec::new(), 0);
        for (draft, runs) in self.all() {
            let most = draft.unlimited();
            let Ok(plan) = draft.plan(arena.min(most))? else { return Ok(None) };
            ns += plan.figures.predicted_ns * runs;
            plans.push(plan);
        }
        Ok(Some((plans, ns)))
    }

    /// The plans that take the least memory among those predicted to cost little more than the fastest.
    pub(crate) fn lean(&mut self) -> Result<(Vec<Plan>, u64)> {
        let (mut plans, mut ns) = (Vec::new(), 0);
        for (draft, runs) in self.all() {
            let plan = draft.lean(LEAN)?;
            ns += plan.figures.predicted_ns * runs;
            plans.push(plan);
        }
        Ok((plans, ns))
    }

    /// Why there is no plan, said of the part that needs most; `None` if none needs an arena.
    fn refusal(&mut self) -> Result<Option<Box<Infeasible>>> {
        let worst = self.all().map(|(draft, _)| (draft.floor(), draft)).max_by_key(|(floor, _)| *floor);
        match worst {
            Some((floor, draft)) if floor > 0 => Ok(draft.plan(floor - 1)?.err()),
            _ => Ok(None),
        }
    }
}

impl Terms {
    /// What is known of the step's time once the kernels of the first candidate have been timed.
    pub(crate) fn after_timing(&mut self, one: &Candidate) {
        self.unlimited_ns = one.unlimited_ns();
    }

    /// Whether no plan keeps a line.
    pub(crate) fn is_below_floor(&self, line: Bytes) -> bool {
        self.account.elsewhere() + self.least > line
    }

    /// Bytes beside the account within a line, in whole pages; none where the line does not even hold the account.
    pub(crate) fn room(&self, device: &Device, line: Bytes) -> Option<Bytes> {
        line.checked_sub(self.account.elsewhere()).map(|room| full_pages(device, room))
    }
}

impl Compile<'_> {
    /// Traces, chooses, plans.
    pub(crate) fn run(&self) -> Result<Compiled> {
        let start = Instant::now();
        let (mut terms, mut one) = self.terms(|_| ())?;
        // No floor depends on how long kernels take, so a refusal need not wait until they are timed.
        if let Some(line) = self.options.memory.filter(|&line| terms.is_below_floor(line)) {
            return Err(self.refuse(line, &terms)?);
        }
        one.time(self.device, self.room(&terms.account))?;
        terms.after_timing(&one);
        let (candidate, plans, predicted_ns) = match self.options.memory {
            None => {
                let (plans, ns) = one.lean()?;
                (one, plans, ns)
            }
            Some(line) => match self.choose(one, &terms, line)? {
                Some(chosen) => chosen,
                None => return Err(self.refuse(line, &terms)?),
            },
        };
        let info = self.info(&candidate, &plans, predicted_ns, &terms, start);
        let Candidate { drafts, update, sums, guard, passed, updated, .. } = candidate;
        let mut plans = plans.into_iter();
        let missing = || Error::Internal("a part of a step has no plan".into());
        let mut part = |draft: Draft, captured, samples, runs| -> Result<Part> {
            let program = draft.program(plans.next().ok_or_else(missing)?, self.device)?;
            Ok(Part { program, captured, samples, runs })
        };
        let passes = drafts
            .into_iter()
            .map(|(draft, captured, samples, runs)| part(draft, captured, samples, runs))
            .collect::<Result<Vec<Part>>>()?;
        let update = update.map(|(draft, captured)| part(draft, captured, 0, 1)).transpose()?;
        Ok(Compiled { passes, update, sums, guard, passed, updated, outputs: terms.outputs, info })
    }

    /// What is known of the step before a line is looked at and any kernel is timed, and the first candidate. The others are made for that, the
    /// smallest first, and handed to `made`: whoever plans for one line lets go of each at once, since two at a time
    /// would be counted.
    pub(crate) fn terms(&self, mut made: impl FnMut(Candidate)) -> Result<(Terms, Candidate)> {
        let whole = self.trace(self.batch)?;
        let outputs: Vec<Type> =
            whole.graph.outputs()[self.state.len()..].iter().map(|&v| whole.graph.ty(v).clone()).collect();
        // The first form of a step leaves room for what later ones give back: a few numbers each.
        let (inputs, later) = if self.present { (&[][..], None) } else { (self.inputs, Some(LATER_OUTPUTS)) };
        let next = if self.options.ahead { inputs } else { &[] };
        let staged = inputs.iter().chain(next).chain(&outputs).map(Type::bytes).chain(later);
        if !self.device.backend().is_host() {
            prepare(&passes::optimize(&whole.graph)?, self.device)?;
        }
        let mut account = Account::new(self.device, staged, self.options.beside, self.started);
        account.tensors += self.absent;
        let (splits, exactness) = self.how_it_splits(&whole)?;
        let allowed = splits && self.options.exactness >= exactness;
        let (mut one, sizes) = match (self.batch, self.options.micro_batch) {
            (Some(batch), Some(samples)) if samples < batch => {
                if !allowed {
                    return Err(self.cannot_split(&whole)?);
                }
                (self.split(samples.max(1))?, Vec::new())
            }
            (Some(batch), None) if allowed => (self.whole(whole)?, sizes(batch)),
            _ => (self.whole(whole)?, Vec::new()),
        };
        let mut least = one.floor();
        for &samples in sizes.iter().rev() {
            let mut candidate = self.split(samples)?;
            if candidate.bound() < least {
                least = least.min(candidate.floor());
            }
            made(candidate);
        }
        let planning = planning(self.device, one.ops());
        let unlimited = one.all().map(|(draft, _)| draft.unlimited()).max().unwrap_or(0);
        let terms = Terms {
            account,
            outputs,
            splits: splits.then_some(exactness),
            sizes,
            planning,
            least: whole_pages(self.device, least.max(planning)),
            unlimited: whole_pages(self.device, planning.max(one.extra + Bytes(unlimited))),
            unlimited_ns: one.unlimited_ns(),
            unshared: one.extra
                + one.parts().map(|(draft, _)| Bytes(draft.unshared())).max().unwrap_or_default(),
        };
        Ok((terms, one))
    }

    /// What is to be said of a candidate's plans.
    pub(crate) fn info(
        &self,
        candidate: &Candidate,
        plans: &[Plan],
        predicted_ns: u64,
        terms: &Terms,
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
        let whole = |arena: Bytes| elsewhere + whole_pages(self.device, terms.planning.max(arena));
        let planned = whole(candidate.extra + Bytes(arena));
        StepInfo {
            planned,
            floor: elsewhere + terms.least,
            unlimited: elsewhere + terms.unlimited,
            live: Bytes(live),
            arena: Bytes(arena),
            account: terms.account,
            predicted_seconds: predicted_ns as f64 / 1e9,
            unlimited_seconds: terms.unlimited_ns as f64 / 1e9,
            unshared: whole(terms.unshared),
            kept: whole(candidate.extra + Bytes(kept)),
            // Never a split for speed: a prediction that the parts take less time than the whole counts as the whole's.
            kept_seconds: kept_ns.max(terms.unlimited_ns) as f64 / 1e9,
            recomputed_ops: again.sum(),
            host_bytes: Bytes(host),
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
        for ((_, kind), tensor) in self.names.iter().zip(self.state) {
            state += padded(tensor.ty().bytes());
            add(ledger_kind(*kind), padded(tensor.ty().bytes()));
        }
        add(LedgerKind::Program, account.program + account.tensors.saturating_sub(state));
        add(LedgerKind::Input, account.staged + account.beside);
        let sums: Bytes = candidate.sums.iter().map(|ty| padded(ty.bytes())).sum();
        add(LedgerKind::Gradient, sums);
        // What passes change is kept as it was, in case one fails; the rest are rows of a micro-batch.
        let mut rows = candidate.extra.saturating_sub(sums);
        for &i in candidate.passed.iter().filter(|_| candidate.update.is_some()) {
            let bytes = padded(self.state[i].ty().bytes());
            add(ledger_kind(self.names[i].1), bytes);
            rows = rows.saturating_sub(bytes);
        }
        add(LedgerKind::Input, rows);
        peak.kinds = held.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO).collect();
        peak.unused = planned.saturating_sub(peak.kinds.iter().map(|(_, bytes)| *bytes).sum());
        peak
    }

    /// The fastest of all candidates within the line.
    fn choose(
        &self,
        mut one: Candidate,
        terms: &Terms,
        line: Bytes,
    ) -> Result<Option<(Candidate, Vec<Plan>, u64)>> {
        let Some(room) = terms.room(self.device, line) else { return Ok(None) };
        let unlimited_ns = terms.unlimited_ns;
        let mut best = one.plan(room)?.map(|(plans, ns)| (one, plans, ns));
        for &samples in &terms.sizes {
            if best.as_ref().is_some_and(|(_, _, ns)| *ns <= unlimited_ns) {
                break;
            }
            let mut candidate = self.split(samples)?;
            if candidate.bound() > room {
                continue;
            }
            candidate.time(self.device, self.room(&terms.account))?;
            let least = candidate.unlimited_ns().max(unlimited_ns);
            if best.as_ref().is_some_and(|(_, _, ns)| least >= *ns) {
                continue;
            }
            if let Some((plans, ns)) = candidate.plan(room)? {
                let ns = ns.max(unlimited_ns);
                if best.as_ref().is_none_or(|(_, _, known)| ns < *known) {
                    best = Some((candidate, plans, ns));
                }
            }
        }
        Ok(best)
    }

    /// Why the line cannot be kept, and what would help.
    pub(crate) fn refuse(&self, line: Bytes, terms: &Terms) -> Result<Error> {
        let mut ways = Vec::new();
        let Terms { account, splits, .. } = terms;
        let elsewhere = account.elsewhere();
        let least = elsewhere + terms.least;
        let allowed = splits.is_some_and(|needed| self.options.exactness >= needed);
        let smallest = |batch: usize| sizes(batch).last().copied().unwrap_or(batch);
        if let (Some(needed), Some(batch), false) = (*splits, self.batch, allowed) {
            let floor = self.split(smallest(batch))?.floor();
            ways.push(Way {
                change: format!("allow {needed} plans: micro-batches"),
                least: elsewhere + floor,
            });
        }
        if let (Some(batch), false) = (self.batch, allowed) {
            for smaller in [batch / 2, batch / 4, 1] {
                if smaller > 0 && smaller < batch && ways.len() < 3 {
                    let mut fewer = self.whole(self.trace(Some(smaller))?)?;
                    let saved: Bytes =
                        self.inputs.iter().map(|ty| padded(ty.bytes() / batch * (batch - smaller))).sum();
                    let least = elsewhere.saturating_sub(saved) + fewer.floor();
                    ways.push(Way { change: format!("a batch of {smaller}"), least });
                }
            }
        }
        let smallest = |compile: &Compile<'_>| match self.batch {
            Some(batch) if allowed => compile.split(smallest(batch)),
            _ => compile.whole(compile.trace(self.batch)?),
        };
        if self.host() == Bytes::ZERO && self.device.backend().rough_link().is_some() {
            let options = StepOptions { host_memory: Some(MUCH), ..self.options.clone() };
            let mut copying = smallest(&Compile { options: &options, ..*self })?;
            let floor = copying.floor();
            let host =
                copying.plan(floor)?.and_then(|(plans, _)| plans.iter().map(|p| p.figures.host_bytes).max());
            if let Some(host) = host.filter(|&host| host > 0) {
                let change = format!("{} of host memory to copy to", Bytes(host));
                ways.push(Way { change, least: elsewhere + whole_pages(self.device, floor) });
            }
        }
        let mut candidate = smallest(self)?;
        let refusal = candidate.refusal()?;
        let mut heaviest: Vec<(String, Bytes)> = self
            .names
            .iter()
            .zip(self.state)
            .map(|((name, _), t)| (name.clone(), t.ty().bytes().into()))
            .collect();
        let largest = refusal.iter().flat_map(|refusal| &refusal.largest);
        heaviest.extend(largest.map(|t| (t.name.clone(), Bytes(t.bytes))));
        heaviest.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
        heaviest.dedup();
        heaviest.truncate(5);
        Ok(Error::Infeasible { asked: line, least, account: *account, refusal, heaviest, ways })
    }

    /// Whether the step can be split at all, and what exactness that takes.
    fn how_it_splits(&self, whole: &Traced) -> Result<(bool, Exactness)> {
        Ok(match self.splits(whole)? {
            Splits::Exactly => (true, Exactness::Reassociated),
            Splits::Approximately(_) => (true, Exactness::Approximate),
            Splits::Not(_) => (false, Exactness::Approximate),
        })
    }

    fn splits(&self, whole: &Traced) -> Result<Splits> {
        let Some(batch) = self.batch.filter(|&batch| batch > 1) else {
            return Ok(Splits::Not("the step has no batch of several samples".into()));
        };
        let half = batch.div_ceil(2);
        let part = self.trace(Some(half))?;
        Ok(splits((&part.graph, &whole.graph), (half, batch), &whole.frame))
    }

    /// Why the batch is not split as the caller asks.
    fn cannot_split(&self, whole: &Traced) -> Result<Error> {
        let allowed = self.options.exactness;
        let why = match self.splits(whole)? {
            Splits::Exactly => format!("only {allowed} plans are allowed; allow {}", Exactness::Reassociated),
            Splits::Approximately(why) => format!(
                "{why}, which micro-batches would change; allow {} plans to have statistics of each micro-batch instead",
                Exactness::Approximate
            ),
            Splits::Not(why) => why,
        };
        Ok(Error::Split { why, site: self.site })
    }

    fn trace(&self, samples: Option<usize>) -> Result<Traced> {
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
    fn whole(&self, traced: Traced) -> Result<Candidate> {
        let n_state = self.state.len();
        let replaces: Vec<Option<usize>> =
            (0..traced.graph.outputs().len()).map(|r| (r < n_state).then_some(r)).collect();
        let guard = (self.guarded && traced.graph.outputs().len() > n_state).then_some(n_state);
        let draft = self.draft(&traced.graph, &replaces, guard, 0)?;
        let batch = self.batch.unwrap_or(1);
        Ok(Candidate {
            drafts: vec![(draft, traced.captured, batch, 1)],
            update: None,
            sums: Vec::new(),
            guard: None,
            passed: Vec::new(),
            updated: Vec::new(),
            extra: Bytes::ZERO,
            is_timed: false,
        })
    }

    /// The step in micro-batches of so many samples, the last of which may have fewer.
    fn split(&self, samples: usize) -> Result<Candidate> {
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
            let draft = self.draft(&cut.pass, &replaces, None, first_sum)?;
            drafts.push((draft, traced.captured.clone(), samples, runs));
            made.get_or_insert((cut, traced.captured, first_sum));
        }
        let Some((cut, captured, first_sum)) = made else {
            return Err(Error::Internal(format!("a batch of {batch} in micro-batches of {samples}")));
        };
        let outputs = cut.update.outputs().len() - cut.updated.len();
        let replaces: Vec<Option<usize>> =
            cut.updated.iter().map(|&i| Some(i)).chain((0..outputs).map(|_| None)).collect();
        let update = self.draft(&cut.update, &replaces, None, first_sum)?;
        let sums = cut.sums.iter().map(|ty| padded(ty.bytes()));
        let fixed = !self.device.backend().is_host();
        let rows = self.inputs.iter().map(|ty| staged(ty, batch, samples, fixed));
        let kept = cut.passed.iter().map(|&i| padded(self.state[i].ty().bytes()));
        let first = fixed.then(|| padded(size_of::<i64>()));
        let extra = sums.chain(rows).chain(kept).chain(first).sum();
        let guard = cut.outputs.first().copied().flatten().filter(|_| self.guarded);
        let Cut { sums, passed, updated, .. } = cut;
        let update = Some((update, captured));
        Ok(Candidate { drafts, update, sums, guard, passed, updated, extra, is_timed: false })
    }

    fn draft(
        &self,
        graph: &Graph,
        replaces: &[Option<usize>],
        guard: Option<usize>,
        first_sum: usize,
    ) -> Result<Draft> {
        let graph = passes::optimize(graph)?;
        let mut kinds: Vec<Kind> = self.names.iter().map(|(_, kind)| *kind).collect();
        if first_sum > 0 {
            kinds.resize(first_sum, Kind::Input);
            kinds.resize(graph.inputs().len(), Kind::Gradient);
        }
        Draft::untimed(graph, &Roles { replaces, kinds: &kinds, guard }, self.device, self.host())
    }

    /// Bytes of the host that plans may copy to: none where the device's memory is the host's.
    fn host(&self) -> Bytes {
        let link = self.device.backend().rough_link();
        self.options.host_memory.filter(|_| link.is_some()).unwrap_or(Bytes::ZERO)
    }

    /// What the line leaves for timing kernels.
    pub(crate) fn room(&self, account: &Account) -> Option<Bytes> {
        self.options.memory.map(|line| line.saturating_sub(account.elsewhere()))
    }
}

/// Bytes in which a micro-batch's rows of an input are staged: none where the rows of every micro-batch are aligned and
/// need not be at a fixed place, as recordings want them.
pub(crate) fn staged(ty: &Type, batch: usize, samples: usize, fixed: bool) -> Bytes {
    let rows = ty.bytes() / batch.max(1) * samples;
    if rows.is_multiple_of(ALIGNMENT) && !fixed { Bytes::ZERO } else { padded(rows) }
}

/// Loads the code of a graph's kernels.
fn prepare(graph: &Graph, device: &Device) -> Result<()> {
    for node in graph.nodes().iter().filter(|node| !node.op.is_view()) {
        let types = |ids: &[ValueId]| ids.iter().map(|&v| graph.ty(v)).collect::<Vec<&Type>>();
        device
            .backend()
            .prepare(&node.op, &types(&node.inputs), &types(&node.outputs))
            .map_err(|fault| Error::Fault { fault, site: node.site })?;
    }
    Ok(())
}

pub(crate) fn padded(bytes: usize) -> Bytes {
    bytes.next_multiple_of(ALIGNMENT).into()
}

/// The sizes of micro-batches to consider for a batch, descending: about 2/3 of the one before.
fn sizes(batch: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    let (mut two, mut three) = (2, 3);
    while two.min(three) < 2 * batch {
        let parts = two.min(three);
        let samples = batch.div_ceil(parts);
        if samples < batch && sizes.last() != Some(&samples) {
            sizes.push(samples);
        }
        if two < three { two *= 2 } else { three *= 2 }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_batches_go_down_to_one_sample() {
        assert_eq!(sizes(10), [5, 4, 3, 2, 1]);
        assert_eq!(sizes(64), [32, 22, 16, 11, 8, 6, 4, 3, 2, 1]);
        assert_eq!(sizes(2), [1]);
        assert!(sizes(1).is_empty());
    }
}
