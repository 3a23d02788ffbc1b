//! Turns what a run tells its callbacks into what the live view shows: bounded, however long the run.

use std::collections::VecDeque;

use plimsoll::internals::graph::counted;
use plimsoll::internals::run::HostAccount;
use plimsoll::internals::run::record::Ranks;
use plimsoll::prelude::*;
use plimsoll::train::{EpochEvent, Eta, Notice, RunPlan, StepEvent};

/// So many of the last events are kept, each so many characters long.
const EVENTS: usize = 32;
const EVENT_CHARS: usize = 200;

/// Everything that is shown of a run but what the system and the pipeline are asked for.
#[derive(Clone, Default)]
pub struct State {
    /// The memory limit, if there is one.
    pub memory_limit: Option<Bytes>,
    /// The account of the host's memory beside a card's.
    pub host: Option<HostAccount>,
    /// What was planned, of that the most that each kind holds at once, and what stays unused.
    pub planned: Bytes,
    pub kinds: Vec<(&'static str, Bytes)>,
    /// One sentence on how the plan gets there.
    pub plan: String,
    pub epochs: u64,
    /// Samples of an epoch, where that is known.
    pub samples: Option<u64>,
    /// How long it will still take.
    pub eta: Eta,
    /// The last step.
    pub step: Option<StepEvent>,
    pub losses: Curve,
    /// What the last epoch came to, by name.
    pub metrics: Vec<(String, f64)>,
    pub events: VecDeque<String>,
    /// The most the process has taken when the last epoch was over.
    pub peak: Bytes,
    /// What each of several ranks had come to then.
    pub ranks: Option<Ranks>,
}

impl State {
    /// Takes up the plan.
    pub fn start(&mut self, plan: &RunPlan<'_>) {
        let info = plan.info;
        let peak = &info.peak;
        self.memory_limit = plan.limit;
        self.host = info.host;
        self.planned = info.planned;
        self.kinds = peak.kinds.iter().map(|(kind, bytes)| (kind.name(), *bytes)).collect();
        if peak.unused > Bytes::ZERO {
            self.kinds.push(("unused", peak.unused));
        }
        self.plan = format!(
            "{:.1} ms a step predicted, {:.1} ms unlimited; {}, {} recomputed, {}; the least is {:#}",
            info.predicted_seconds * 1e3,
            info.unlimited_seconds * 1e3,
            counted(info.micro_batches, "micro-batch"),
            counted(info.recomputed_ops, "op"),
            info.exactness,
            info.floor
        );
        (self.epochs, self.samples, self.eta) = (plan.epochs, plan.samples, Eta::new(plan));
        // Room for everything that comes, so that a step need not ask for any.
        self.events.reserve(EVENTS + 1);
        self.losses.reserve();
    }

    /// Takes up a step. Allocates nothing.
    pub fn step(&mut self, step: &StepEvent) {
        self.step = Some(*step);
        self.eta.step(step);
        self.losses.push(step.loss);
    }

    /// Takes up an epoch.
    pub fn epoch(&mut self, epoch: &EpochEvent) {
        self.eta.epoch(epoch);
        self.metrics.clear();
        self.metrics.push(("loss".into(), epoch.loss));
        self.metrics.extend(epoch.metrics.iter().cloned());
        self.peak = Bytes(epoch.memory.device_peak_bytes);
        self.ranks.clone_from(&epoch.ranks);
        let metrics: String =
            epoch.metrics.iter().map(|(name, value)| format!("  {name} {value:.4}")).collect();
        self.event(format!(
            "epoch {}  loss {:.4}{metrics}  {:.0} samples/s",
            epoch.epoch, epoch.loss, epoch.samples_s
        ));
    }

    /// Takes up something out of the ordinary.
    pub fn notice(&mut self, notice: &Notice) {
        self.event(match notice {
            Notice::Skipped { step, loss_scale } => {
                let scale =
                    loss_scale.map_or(String::new(), |scale| format!("; the loss scale is now {scale}"));
                format!("step {step}: a batch was left out, it was not finite{scale}")
            }
            Notice::Replanned { step, why } => format!("step {step}: planned again, because {why}"),
            Notice::Saved { step, path } => format!("step {step}: checkpoint {}", path.display()),
            Notice::Resumed { step, path } => format!("going on after step {step} from {}", path.display()),
            Notice::DamagedCheckpoint { path, why } => format!("{} is damaged: {why}", path.display()),
            Notice::Best { step, epoch, metric, value, .. } => {
                format!("step {step}: epoch {epoch} is the best so far, {metric} {value}")
            }
            Notice::Restored { epoch, .. } => format!("the weights are those of epoch {epoch}, the best"),
            Notice::Remarked { what, .. } => format!("note: {what}"),
            Notice::Rehearsed { step, what } => format!("step {step}: {what}"),
        });
    }

    /// Keeps a sentence.
    pub fn event(&mut self, text: String) {
        if self.events.len() >= EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(text.chars().take(EVENT_CHARS).collect());
    }
}

/// A curve of any length in a bounded number of points: when they are used up, two become one.
#[derive(Clone, Debug)]
pub struct Curve {
    points: Vec<f64>,
    /// How many values a point is the mean of.
    each: u32,
    sum: f64,
    n: u32,
}

impl Default for Curve {
    fn default() -> Curve {
        Curve { points: Vec::new(), each: 1, sum: 0.0, n: 0 }
    }
}

impl Curve {
    const MOST: usize = 512;

    fn reserve(&mut self) {
        self.points.reserve_exact(Curve::MOST);
    }

    /// Adds a value; one that is not finite is left out.
    pub fn push(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        (self.sum, self.n) = (self.sum + value, self.n + 1);
        if self.n < self.each {
            return;
        }
        if self.points.len() == Curve::MOST {
            for i in 0..Curve::MOST / 2 {
                self.points[i] = (self.points[2 * i] + self.points[2 * i + 1]) / 2.0;
            }
            self.points.truncate(Curve::MOST / 2);
            self.each = self.each.saturating_mul(2);
            if self.n < self.each {
                return;
            }
        }
        self.points.push(self.sum / f64::from(self.n));
        (self.sum, self.n) = (0.0, 0);
    }

    /// The points, each with the number of values before it.
    pub fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.points.iter().enumerate().map(|(i, &value)| (i as f64 * f64::from(self.each), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_of_a_million_values_keeps_its_ends_in_few_points() {
        let mut curve = Curve::default();
        curve.reserve();
        let n = 1_000_000;
        (0..n).for_each(|i| curve.push(i as f64));
        let points: Vec<(f64, f64)> = curve.points().collect();
        assert!(points.len() > Curve::MOST / 4 && points.len() <= Curve::MOST, "{}", points.len());
        assert_eq!(curve.points.capacity(), Curve::MOST);
        let (first, last) = (points[0], points[points.len() - 1]);
        assert!(first.1 < n as f64 / 200.0 && last.1 > n as f64 * 0.98, "{first:?} {last:?}");
        // A point is the mean of what came from its place on.
        assert!(points.iter().all(|(at, value)| value >= at && *value <= at + n as f64 / 100.0));
    }

    #[test]
    fn events_are_bounded_in_number_and_length() {
        let mut state = State::default();
        (0..1000).for_each(|i| state.event(format!("{i} {}", "ä".repeat(1000))));
        assert_eq!(state.events.len(), EVENTS);
        assert!(state.events.iter().all(|event| event.chars().count() <= EVENT_CHARS));
        assert!(state.events.back().is_some_and(|event| event.starts_with("999 ")));
    }
}
