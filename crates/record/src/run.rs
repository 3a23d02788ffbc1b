//! What happened in a run, gathered from its tables.

use serde::{Deserialize, Serialize};

use crate::{Epoch, Event, Kind, LedgerRow, Plan, Ranks, Steps};

/// What happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Steps, thinned out where there are many.
    pub steps: Steps,
    /// Epochs.
    pub epochs: Vec<Epoch>,
    /// Everything out of the ordinary.
    pub events: Vec<Event>,
    /// Planned and measured bytes by owner.
    pub ledger: Vec<LedgerRow>,
    /// What each of several ranks came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Ranks>,
    /// The most that was measured of the memory that is limited: a card's own where the run was on one, else the process's.
    /// None where it was not measured.
    pub peak_bytes: Option<u64>,
    /// The most that the process had of the host's memory.
    pub host_peak_bytes: Option<u64>,
    /// Milliseconds a step that were measured, waiting for input and all: the median.
    pub measured_ms: Option<f64>,
    /// Rows of its tables and events that could not be read: the last one of a run that was killed, say.
    pub unread_lines: u64,
}

impl Run {
    /// Takes the figures of the whole run from its tables: the one place for them.
    pub fn sum_up(&mut self, plan: &Plan) {
        let most = |column: &[u64], name: &str| {
            let at_epochs = self.epochs.iter().flat_map(|epoch| &epoch.values);
            let at_epochs = at_epochs.filter(|(known, _)| known == name).filter_map(|(_, value)| *value);
            column.iter().copied().chain(at_epochs.map(|value| value as u64)).max().filter(|most| *most > 0)
        };
        self.host_peak_bytes = most(&self.steps.resident_peak_bytes, "resident_peak_bytes");
        self.peak_bytes = match plan.is_of_a_card() {
            true => most(&self.steps.device_peak_bytes, "device_peak_bytes"),
            false => self.host_peak_bytes,
        };
        // The ledger was measured last: what the process took then is a part of the run too.
        let of_limit = self.ledger.iter().filter(|row| !matches!(row.kind, Kind::Host | Kind::Disk));
        let at_end: u64 = of_limit.filter_map(|row| row.measured_bytes).fold(0, u64::saturating_add);
        self.peak_bytes = self.peak_bytes.map(|peak| peak.max(at_end));
        let ms = |rate: &f64| (*rate > 0.0).then(|| plan.batch as f64 / rate * 1e3);
        let mut ms: Vec<f64> = self.steps.samples_s.iter().flatten().filter_map(ms).collect();
        ms.sort_by(f64::total_cmp);
        self.measured_ms = ms.get(ms.len() / 2).copied();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_summed_up_by_what_its_limit_counts() {
        let steps = Steps {
            samples_s: vec![Some(100.0), None, Some(50.0), Some(80.0)],
            resident_peak_bytes: vec![10, 20],
            device_peak_bytes: vec![300, 700],
            ..Steps::default()
        };
        let epochs =
            vec![Epoch { values: vec![("resident_peak_bytes".into(), Some(25.0))], ..Epoch::default() }];
        let summed = |device: &str, steps: &Steps| {
            let plan = Plan { device: Some(device.into()), batch: 8, ..Plan::default() };
            let mut run = Run { steps: steps.clone(), epochs: epochs.clone(), ..Run::default() };
            run.sum_up(&plan);
            (run.peak_bytes, run.host_peak_bytes, run.measured_ms)
        };
        assert_eq!(summed("cpu", &steps), (Some(25), Some(25), Some(100.0)));
        assert_eq!(summed("cuda:0", &steps), (Some(700), Some(25), Some(100.0)));
        // Without a figure of the card's, none of the host's is held against a limit of the card's memory.
        assert_eq!(summed("cuda:0", &Steps { device_peak_bytes: vec![], ..steps }).0, None);
    }
}
