//! Turns a step's body into what it would take and cost under any line: one plan, or all that are worth having.
//!
//! A step is traced and its candidates lowered once, and kernels are timed when the first line that can be kept asks for it; every
//! line after that costs a search, and the planner remembers what it found for others. No memory is taken for the step itself.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use plimsoll_device::Bytes;
use plimsoll_graph::{Site, Type};
use plimsoll_plan::Plan;
use plimsoll_record as record;
use plimsoll_record::Kind;
use serde::{Serialize, Serializer};

use crate::Sketch;
use crate::account::{Account, blocks};
use crate::compile::{Candidate, Compile, Terms};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::step::{Pass, StepInfo, StepOptions, StepResult, batch_of};
use crate::tensor::Tensor;
use crate::timeline::Recorded;

/// A plan that no other beats in both memory and time. Bytes are of the whole process, as the system will count it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FrontierPoint {
    /// The line that was asked for.
    #[serde(rename = "line_bytes", serialize_with = "number")]
    pub line: Bytes,
    /// What the plan takes: the least line that gives it.
    #[serde(rename = "planned_bytes", serialize_with = "number")]
    pub planned: Bytes,
    /// Predicted seconds of a step.
    pub predicted_seconds: f64,
    /// Into how many micro-batches the batch is split.
    pub micro_batches: usize,
    /// Ops that run again instead of keeping their results.
    pub recomputed_ops: usize,
}

/// What memory buys: the plans from the least line to one that is as good as none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Frontier {
    /// From least to most memory, and so from most to least time: each takes more than the one before and is faster.
    pub points: Vec<FrontierPoint>,
    /// Lines for which no plan was looked for, because time was over.
    pub left_out: usize,
    /// Seconds that the search took.
    pub seconds: f64,
}

fn number<S: Serializer>(bytes: &Bytes, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_u64(bytes.get())
}

/// A step that is planned and never run.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// use plimsoll_run::{Device, Kind, StepOptions, StepResult, Survey, TensorOps};
/// let (w, x) = (Type::new(DType::F32, [512, 512]), Type::new(DType::F32, [64, 512]));
/// let held = [("w".to_string(), Kind::Parameter, w)];
/// let options = StepOptions { batched: true, ..StepOptions::default() };
/// let mut survey = Survey::new(&options, &Device::current()?, &held, &[x], |pass| {
///     let loss = pass.inputs[0].matmul(&pass.state[0])?.tanh()?.square()?.mean(&[], false)?;
///     Ok(StepResult { state: pass.state.to_vec(), outputs: vec![loss], totals: vec![] })
/// })?;
/// let without_a_line = survey.plan(None)?;
/// let frontier = survey.frontier(8, None)?;
/// assert_eq!(frontier.points[0].line, without_a_line.floor);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub struct Survey<'a> {
    device: Device,
    options: StepOptions,
    names: Vec<(String, Kind)>,
    state: Vec<Tensor>,
    inputs: Vec<Type>,
    batch: Option<usize>,
    absent: Bytes,
    body: Body<'a>,
    site: Site,
    terms: Terms,
    /// The whole batch, then micro-batches of fewer and fewer samples.
    candidates: Vec<Candidate>,
    start: Instant,
}

type Body<'a> = Box<dyn Fn(&Pass<'_>) -> Result<StepResult> + 'a>;

/// The candidate that is fastest within a line, its plans and their time.
type Chosen = (usize, Vec<Plan>, u64);

impl<'a> Survey<'a> {
    /// Traces a step over a state and inputs of these types, on a device. The line of the options is not looked at, but for
    /// how much memory kernels may be timed in.
    #[track_caller]
    pub fn new(
        options: &StepOptions,
        device: &Device,
        held: &[(String, Kind, Type)],
        inputs: &[Type],
        body: impl Fn(&Pass<'_>) -> Result<StepResult> + 'a,
    ) -> Result<Survey<'a>> {
        let (site, start) = (Site::here(), Instant::now());
        let sketch = Sketch::new();
        let state: Vec<Tensor> = held.iter().map(|(name, _, ty)| sketch.tensor(name, ty.clone())).collect();
        let names: Vec<(String, Kind)> = held.iter().map(|(name, kind, _)| (name.clone(), *kind)).collect();
        let absent = blocks(device, held.iter().map(|(_, _, ty)| ty.bytes()));
        let batch = batch_of(options, inputs, site)?;
        let (guarded, started, settled) = (options.guarded, false, None);
        let compile = Compile {
            device,
            state: &state,
            names: &names,
            inputs,
            batch,
            options,
            guarded,
            absent,
            settled,
            started,
            present: false,
            body: &body,
            site,
        };
        let mut split = Vec::new();
        let (terms, one) = compile.terms(|candidate| split.push(candidate))?;
        let candidates = std::iter::once(one).chain(split.into_iter().rev()).collect();
        let (device, options, inputs) = (device.clone(), options.clone(), inputs.to_vec());
        let body: Body<'a> = Box::new(body);
        Ok(Survey {
            device,
            options,
            names,
            state,
            inputs,
            batch,
            absent,
            body,
            site,
            terms,
            candidates,
            start,
        })
    }

    /// The least line for which there is a plan, at the exactness that was allowed.
    pub fn floor(&self) -> Bytes {
        self.terms.account.elsewhere() + self.terms.least
    }

    /// What the fastest plan takes.
    pub fn unlimited(&self) -> Bytes {
        self.terms.account.elsewhere() + self.terms.unlimited
    }

    /// Plans from now on for a process that takes so much beside the workspace, whatever this one takes: for the step of a run
    /// that was, with what was said of it then ([`StepInfo::outside`]).
    pub fn set_outside(&mut self, outside: Bytes) {
        let account = &mut self.terms.account;
        let rest = account.tensors + account.staged + account.beside;
        account.program = outside.saturating_sub(rest);
        // Less than this process's own tensors and batches is no account of theirs: only the sum counts then.
        if account.elsewhere() > outside {
            *account =
                Account { program: outside, tensors: Bytes::ZERO, staged: Bytes::ZERO, beside: Bytes::ZERO };
        }
    }

    /// The plan within a line: what [`Step::compile_with`](crate::Step::compile_with) would run.
    ///
    /// # Errors
    /// [`Error::Infeasible`] if there is none.
    pub fn plan(&mut self, line: Option<Bytes>) -> Result<StepInfo> {
        let (i, plans, ns) = match line {
            None => {
                self.time()?;
                let (plans, ns) = self.candidates[0].lean()?;
                (0, plans, ns)
            }
            Some(line) if self.terms.is_below_floor(line) => {
                return Err(self.compile().refuse(line, &self.terms)?);
            }
            Some(line) => match self.fastest(line)? {
                Some(chosen) => chosen,
                None => return Err(self.compile().refuse(line, &self.terms)?),
            },
        };
        Ok(self.compile().info(&self.candidates[i], &plans, ns, &self.terms, line, self.start))
    }

    /// The record of the step within a line, instruction by instruction. It is planned anew for that.
    ///
    /// # Errors
    /// [`Error::Infeasible`] if there is no plan.
    pub fn timeline(&self, line: Option<Bytes>) -> Result<record::Step> {
        let options = StepOptions { memory: line, ..self.options.clone() };
        let compiled = Compile { options: &options, ..self.compile() }.run()?;
        let recorded = Recorded {
            device: &self.device,
            names: &self.names,
            state: &self.state,
            hosted: &compiled.hosted,
            inputs: &self.inputs,
            outputs: &compiled.outputs,
            batch: self.batch.unwrap_or(1),
            passes: compiled.passes.iter().collect(),
            update: compiled.update.as_ref(),
            n_sums: compiled.sums.len(),
            passed: compiled.passed.clone(),
            info: &compiled.info,
            memory_limit: line.map(Bytes::get),
        };
        Ok(recorded.timeline())
    }

    /// The plans that are worth having, of so many lines between the least and the one that the fastest plan needs. The
    /// ends come first and then what halves the largest gaps, so that a search that is cut short by `limit` has seen the
    /// whole range.
    pub fn frontier(&mut self, lines: usize, limit: Option<Duration>) -> Result<Frontier> {
        let start = Instant::now();
        let over = || limit.is_some_and(|limit| start.elapsed() >= limit);
        let (floor, most) = (self.floor(), self.unlimited().max(self.floor()));
        let last = lines.max(2) - 1;
        // Equal ratios: a little memory changes most where there is least of it.
        let ratio = most.get() as f64 / floor.get().max(1) as f64;
        let line = |i: usize| match i {
            0 => floor,
            i if i == last => most,
            i => Bytes((floor.get() as f64 * ratio.powf(i as f64 / last as f64)) as u64).min(most),
        };
        let mut points = Vec::new();
        let (slow, fast) = (self.point(floor)?, self.point(most)?);
        points.extend([slow, fast]);
        let mut gaps = VecDeque::from([(0usize, slow, last, fast)]);
        let mut left_out = 0;
        while let Some((low, slow, high, fast)) = gaps.pop_front() {
            let middle = low.midpoint(high);
            // Nothing to be found between two plans that cost the same.
            if middle == low || slow.predicted_seconds <= fast.predicted_seconds {
                continue;
            }
            if over() {
                left_out += high - low - 1;
                continue;
            }
            // More memory is never slower: where the faster plan fits, it is the answer.
            let found = match fast.planned <= line(middle) {
                true => fast,
                false => self.point(line(middle))?,
            };
            points.push(found);
            gaps.extend([(low, slow, middle, found), (middle, found, high, fast)]);
        }
        Ok(Frontier { points: undominated(points), left_out, seconds: start.elapsed().as_secs_f64() })
    }

    /// The plan within a line, in short.
    fn point(&mut self, line: Bytes) -> Result<FrontierPoint> {
        let Some((i, plans, ns)) = self.fastest(line)? else {
            return Err(Error::Internal(format!("there is no plan within {line}, which is above the least")));
        };
        let info = self.compile().info(&self.candidates[i], &plans, ns, &self.terms, Some(line), self.start);
        Ok(FrontierPoint {
            line,
            planned: info.planned,
            predicted_seconds: info.predicted_seconds,
            micro_batches: info.micro_batches,
            recomputed_ops: info.recomputed_ops as usize,
        })
    }

    /// The fastest of all candidates within a line: the choice of [`Compile`], over candidates that are kept.
    fn fastest(&mut self, line: Bytes) -> Result<Option<Chosen>> {
        let Some(room) = self.terms.room(&self.device, line).filter(|_| line >= self.floor()) else {
            return Ok(None);
        };
        self.time()?;
        let timing = self.compile().timing_room(&self.terms);
        let unlimited_ns = self.terms.unlimited_ns;
        let mut best: Option<Chosen> = None;
        for (i, candidate) in self.candidates.iter_mut().enumerate() {
            let known = best.as_ref().map_or(u64::MAX, |(_, _, ns)| *ns);
            if i > 0 && known <= unlimited_ns {
                break;
            }
            if i > 0 && candidate.bound() > room {
                continue;
            }
            candidate.time(&self.device, timing)?;
            if i > 0 && candidate.unlimited_ns().max(unlimited_ns) >= known {
                continue;
            }
            if let Some((plans, ns)) = candidate.plan(room, known)? {
                let ns = ns.max(unlimited_ns);
                if ns < known {
                    best = Some((i, plans, ns));
                }
            }
        }
        Ok(best)
    }

    /// Times the kernels of the whole batch, if they have not been.
    fn time(&mut self) -> Result<()> {
        let room = self.compile().timing_room(&self.terms);
        self.candidates[0].time(&self.device, room)?;
        self.terms.after_timing(&self.candidates[0]);
        Ok(())
    }

    fn compile(&self) -> Compile<'_> {
        let Survey { device, state, names, inputs, options, body, .. } = self;
        let (batch, absent, site, guarded) = (self.batch, self.absent, self.site, self.options.guarded);
        let (started, present, settled) = (false, false, None);
        Compile {
            device,
            state,
            names,
            inputs,
            batch,
            options,
            guarded,
            absent,
            settled,
            started,
            present,
            body,
            site,
        }
    }
}

/// The plans that no other beats in both memory and time, from least to most memory.
pub fn undominated(mut points: Vec<FrontierPoint>) -> Vec<FrontierPoint> {
    points.sort_by(|a, b| {
        a.planned
            .cmp(&b.planned)
            .then(a.predicted_seconds.total_cmp(&b.predicted_seconds))
            .then(a.line.cmp(&b.line))
    });
    let mut kept: Vec<FrontierPoint> = Vec::new();
    for point in points {
        if kept.last().is_none_or(|last| point.predicted_seconds < last.predicted_seconds) {
            kept.push(point);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{DType, TensorOps};

    use crate::{Exactness, Held, Step, Tape};

    /// A chain of layers on a batch, trained by gradient descent.
    fn body(pass: &Pass<'_>) -> Result<StepResult> {
        let tape = Tape::new();
        pass.state.iter().try_for_each(|w| tape.watch(w))?;
        let mut x = pass.inputs[0].clone();
        for w in pass.state {
            x = x.matmul(w)?.tanh()?;
        }
        let loss = x.square()?.mean(&[], false)?;
        let grads = tape.gradient(&loss, &pass.state.iter().collect::<Vec<_>>())?;
        let new = pass.state.iter().zip(&grads).map(|(w, g)| w.sub(&g.mul_scalar(0.1)?));
        Ok(StepResult { state: new.collect::<Result<_>>()?, outputs: vec![loss], totals: vec![] })
    }

    type State = (String, Kind, Type);

    /// Six layers of 64 and a batch large enough that what lies between them outweighs what planning needs.
    fn parts() -> (Device, StepOptions, Vec<State>, Vec<Type>) {
        let device = Device::cpu_with(1, Bytes::mib(512)).unwrap();
        let exactness = Exactness::Reassociated;
        let options = StepOptions { batched: true, exactness, ..StepOptions::default() };
        let weight = |i: usize| (format!("w{i}"), Kind::Parameter, Type::new(DType::F32, [64, 64]));
        (device, options, (0..6).map(weight).collect(), vec![Type::new(DType::F32, [32768, 64])])
    }

    #[test]
    fn every_point_of_the_frontier_takes_more_and_is_faster_than_the_one_before() {
        let (device, options, held, inputs) = parts();
        let mut survey = Survey::new(&options, &device, &held, &inputs, body).unwrap();
        let frontier = survey.frontier(9, None).unwrap();
        let points = &frontier.points;
        assert!(points.len() > 3 && frontier.left_out == 0, "{points:?}");
        for pair in points.windows(2) {
            assert!(pair[0].planned < pair[1].planned, "{points:?}");
            assert!(pair[0].predicted_seconds > pair[1].predicted_seconds, "{points:?}");
        }
        assert!(points.iter().all(|p| p.planned <= p.line));
        let (first, last) = (points[0], points[points.len() - 1]);
        let unlimited = survey.plan(Some(survey.unlimited())).unwrap();
        assert_eq!((first.line, first.planned), (survey.floor(), survey.floor()));
        assert_eq!(last.predicted_seconds, unlimited.unlimited_seconds);
        // What a point takes is a line that gives the same again.
        for point in points {
            let again = survey.plan(Some(point.planned)).unwrap();
            assert_eq!(
                (again.planned, again.predicted_seconds, again.micro_batches),
                (point.planned, point.predicted_seconds, point.micro_batches)
            );
        }
    }

    #[test]
    fn a_frontier_without_time_has_its_ends_and_says_what_is_missing() {
        let (device, options, held, inputs) = parts();
        let mut survey = Survey::new(&options, &device, &held, &inputs, body).unwrap();
        let frontier = survey.frontier(9, Some(Duration::ZERO)).unwrap();
        assert_eq!((frontier.points.len(), frontier.left_out), (2, 7));
    }

    #[test]
    fn plans_for_another_process_are_the_same_but_for_what_it_takes_outside() {
        let (device, options, held, inputs) = parts();
        let mut survey = Survey::new(&options, &device, &held, &inputs, body).unwrap();
        let (floor, most) = (survey.floor(), survey.unlimited());
        let line = Bytes((floor.get() + most.get()) / 2);
        let here = survey.plan(Some(line)).unwrap();
        for outside in [here.outside + Bytes::mib(7), Bytes::mib(1)] {
            survey.set_outside(outside);
            let moved = |bytes: Bytes| (bytes + outside).saturating_sub(here.outside);
            let there = survey.plan(Some(moved(line))).unwrap();
            assert_eq!((there.planned, there.floor), (moved(here.planned), moved(here.floor)));
            assert_eq!((there.unlimited, there.outside), (moved(here.unlimited), outside));
            assert_eq!(
                (there.arena, there.predicted_seconds, there.micro_batches),
                (here.arena, here.predicted_seconds, here.micro_batches)
            );
            assert_eq!(survey.frontier(5, None).unwrap().points[0].planned, there.floor);
        }
    }

    #[test]
    fn the_kinds_at_the_peak_add_up_to_what_is_planned() {
        let (device, options, held, inputs) = parts();
        let mut survey = Survey::new(&options, &device, &held, &inputs, body).unwrap();
        let (floor, most) = (survey.floor(), survey.unlimited());
        for line in [None, Some(floor), Some(Bytes((floor.get() + most.get()) / 2)), Some(most)] {
            let info = survey.plan(line).unwrap();
            let sum: Bytes = info.peak.kinds.iter().map(|(_, bytes)| *bytes).sum();
            assert_eq!(sum + info.peak.unused, info.planned, "{:?}", info.peak);
            assert!(info.peak.step < info.peak.steps && !info.peak.largest.is_empty());
            assert!(info.peak.site.is_some_and(|site| site.file.ends_with("survey.rs")), "{:?}", info.peak);
        }
    }

    #[test]
    fn a_survey_plans_what_a_step_would_run() {
        let (device, options, held, inputs) = parts();
        let survey = || Survey::new(&options, &device, &held, &inputs, body).unwrap();
        let (floor, most) = (survey().floor(), survey().unlimited());
        for line in [None, Some(Bytes((floor.get() + 3 * most.get()) / 4)), Some(most + Bytes::mib(64))] {
            // The pages of a test's process are measured, as they are more than declared, and other tests change them meanwhile.
            let same = (0..50).any(|_| {
                let planned = survey().plan(line).unwrap();
                let tensor = |ty: &Type| device.scope(|| Tensor::zeros(ty.clone())).unwrap();
                let kept = held.iter().map(|(name, kind, ty)| Held {
                    name: name.clone(),
                    kind: *kind,
                    tensor: tensor(ty),
                });
                let options = StepOptions { memory: line, ..options.clone() };
                let step = Step::compile_with(options, kept.collect(), &inputs, body).unwrap();
                let run = step.info();
                if run.account.program != planned.account.program {
                    return false;
                }
                assert_eq!(
                    (run.arena, run.predicted_seconds, run.micro_batches, run.recomputed_ops),
                    (planned.arena, planned.predicted_seconds, planned.micro_batches, planned.recomputed_ops)
                );
                true
            });
            assert!(same, "the process was never twice the same");
        }
    }
}
