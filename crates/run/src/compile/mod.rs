//! Turns a step's body and a line into programs: chooses how many micro-batches, and the fastest plan for each part.
//!
//! A batch of B samples can be run whole or in micro-batches of fewer samples; each way is a candidate with graphs of
//! its own. The least time among the candidates' plans within the line wins, so more memory never plans a slower step.
//! A batch is split for want of memory, never for speed: a prediction that its parts take less time than the whole
//! counts as the whole's, and of equals the one with fewer parts is taken.

mod candidate;
mod figures;
mod forms;
mod hosting;
mod refusal;

pub(crate) use candidate::Candidate;
pub(crate) use hosting::is_movable;

use std::time::Instant;

use plimsoll_device::Bytes;
use plimsoll_device::backend::ALIGNMENT;
use plimsoll_graph::{Graph, Site, Type, ValueId, passes};
use plimsoll_plan::{Exactness, Kind, Plan};

use crate::account::{Account, full_pages, planning, whole_pages};
use crate::device::Device;
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::program::Program;
use crate::step::{Pass, StepInfo, StepOptions, StepResult};
use crate::tensor::Tensor;
use forms::Traced;
use hosting::Hosting;

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
    /// Which state is on the host, where that is settled and not for this plan to choose.
    pub(crate) settled: Option<&'a [bool]>,
    /// Whether the step has run before, and what stands beside it with it.
    pub(crate) started: bool,
    /// Whether a batch of inputs exists already, and is among the tensors that are counted.
    pub(crate) present: bool,
    pub(crate) body: &'a dyn Fn(&Pass<'_>) -> Result<StepResult>,
    pub(crate) site: Site,
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
    /// Which state is on the host.
    pub(crate) hosted: Vec<bool>,
    pub(crate) info: StepInfo,
}

/// One way to run a step: with how much of its state on the host, and in what micro-batches, if any.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    hosting: Hosting,
    samples: Option<usize>,
}

/// What is known of a step before a line is looked at.
pub(crate) struct Terms {
    pub(crate) account: Account,
    pub(crate) outputs: Vec<Type>,
    /// What exactness a split takes, if the step can be split at all.
    pub(crate) splits: Option<Exactness>,
    /// What to consider beside the first candidate: state on the host, then micro-batches, then both.
    pub(crate) ways: Vec<Way>,
    /// What planning needs for itself, in the arena's place.
    planning: Bytes,
    /// What timing each kernel of the first candidate takes beside that, ascending.
    timing: Vec<Bytes>,
    /// Bytes beside the account: the least with which any candidate can run, and what the fastest plan takes.
    pub(crate) least: Bytes,
    pub(crate) unlimited: Bytes,
    pub(crate) unlimited_ns: u64,
    /// Bytes beside the account if every value had its own.
    unshared: Bytes,
}

/// Kernels whose operands take no more are timed however little the step itself takes; of others the roofline says enough.
const TIMED_ANYWAY: Bytes = Bytes::mib(16);

/// Bytes kept for the outputs of other forms of a step: a smaller last batch, an evaluation.
const LATER_OUTPUTS: usize = 4096;

impl Terms {
    /// What is known of the step's time once the kernels of the first candidate have been timed.
    pub(crate) fn after_timing(&mut self, one: &Candidate) {
        self.unlimited_ns = one.unlimited_ns();
    }

    /// Whether no plan keeps a line.
    pub(crate) fn is_below_floor(&self, line: Bytes) -> bool {
        self.account.elsewhere() + self.least > line
    }

    /// The most that timing a kernel may take: what the largest kernel does for which the line has room beside what planning
    /// takes, and state that may yet go to the host (`movable`).
    pub(crate) fn timing(&self, line: Option<Bytes>, movable: Bytes) -> Bytes {
        let taken = self.account.elsewhere() + movable + self.planning;
        let room = line.map_or(Bytes::MAX, |line| line.saturating_sub(taken));
        let fits = self.timing.partition_point(|&bytes| bytes <= room);
        self.timing[..fits].last().copied().unwrap_or_default()
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
        one.time(self.device, self.timing_room(&terms))?;
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
        let info = self.info(&candidate, &plans, predicted_ns, &terms, self.options.memory, start);
        let Candidate { drafts, update, sums, guard, passed, updated, hosting, .. } = candidate;
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
        let (outputs, hosted) = (terms.outputs, hosting.hosted);
        Ok(Compiled { passes, update, sums, guard, passed, updated, outputs, hosted, info })
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
        // State that may go to the host counts with the candidates that keep it on the device.
        account.tensors = (account.tensors + self.absent).saturating_sub(self.movable_here());
        let (splits, exactness) = self.how_it_splits(&whole)?;
        let allowed = splits && self.options.exactness >= exactness;
        let (samples, sizes) = match (self.batch, self.options.micro_batch) {
            (Some(_), Some(0)) => {
                let why = "micro-batches of 0 samples were asked for; 1 is the least".into();
                return Err(Error::Split { why, site: self.site });
            }
            (Some(batch), Some(samples)) if samples < batch => {
                if !allowed {
                    return Err(self.cannot_split(&whole)?);
                }
                (Some(samples), Vec::new())
            }
            (Some(batch), None) if allowed => (None, sizes(batch)),
            _ => (None, Vec::new()),
        };
        let mut hostings = self.hostings().into_iter();
        let here = hostings.next().unwrap_or_default();
        let others: Vec<Hosting> = hostings.collect();
        let mut ways: Vec<Way> =
            others.iter().map(|hosting| Way { hosting: hosting.clone(), samples }).collect();
        for hosting in [&here].into_iter().chain(others.last()) {
            ways.extend(sizes.iter().map(|&s| Way { hosting: hosting.clone(), samples: Some(s) }));
        }
        let mut one = match samples {
            Some(samples) => self.split(samples, &here)?,
            None => self.whole(&whole, &here)?,
        };
        // The last ways take least; what cannot take less is not searched for how little it can take.
        let mut least = Bytes(u64::MAX);
        for way in ways.iter().rev() {
            let mut candidate = self.candidate(way, Some(&whole))?;
            if candidate.bound() < least {
                least = least.min(candidate.floor());
            }
            made(candidate);
        }
        if one.bound() < least {
            least = least.min(one.floor());
        }
        let planning = planning(self.device, one.ops());
        let unlimited = one.extra + Bytes(one.all().map(|(draft, _)| draft.unlimited()).max().unwrap_or(0));
        let mut timing = one.timing_needs(self.device)?;
        timing.retain(|bytes| *bytes <= unlimited.max(TIMED_ANYWAY));
        let before = planning + timing.last().copied().unwrap_or_default();
        let terms = Terms {
            account,
            outputs,
            splits: splits.then_some(exactness),
            ways,
            planning,
            timing,
            least: whole_pages(self.device, least.max(planning)),
            unlimited: whole_pages(self.device, before.max(unlimited)),
            unlimited_ns: one.unlimited_ns(),
            unshared: one.extra
                + one.parts().map(|(draft, _)| Bytes(draft.unshared())).max().unwrap_or_default(),
        };
        Ok((terms, one))
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
        let mut best = one.plan(room, u64::MAX)?.map(|(plans, ns)| (one, plans, ns));
        for way in &terms.ways {
            if best.as_ref().is_some_and(|(_, _, ns)| *ns <= unlimited_ns) {
                break;
            }
            let mut candidate = self.candidate(way, None)?;
            if candidate.bound() > room {
                continue;
            }
            candidate.time(self.device, self.timing_room(terms))?;
            let least = candidate.unlimited_ns().max(unlimited_ns);
            if best.as_ref().is_some_and(|(_, _, ns)| least >= *ns) {
                continue;
            }
            let than = best.as_ref().map_or(u64::MAX, |(_, _, ns)| *ns);
            if let Some((plans, ns)) = candidate.plan(room, than)? {
                let ns = ns.max(unlimited_ns);
                if best.as_ref().is_none_or(|(_, _, known)| ns < *known) {
                    best = Some((candidate, plans, ns));
                }
            }
        }
        Ok(best)
    }

    /// The candidate of a way; `whole` is the trace of the whole batch, where it is at hand.
    fn candidate(&self, way: &Way, whole: Option<&Traced>) -> Result<Candidate> {
        match (way.samples, whole) {
            (Some(samples), _) => self.split(samples, &way.hosting),
            (None, Some(whole)) => self.whole(whole, &way.hosting),
            (None, None) => self.whole(&self.trace(self.batch)?, &way.hosting),
        }
    }

    /// What kernels may be timed in, before any state has gone to the host.
    pub(crate) fn timing_room(&self, terms: &Terms) -> Bytes {
        terms.timing(self.options.memory, self.movable_here())
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
