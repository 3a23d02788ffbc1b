//! Why a step cannot be run as was asked, and what would help.

use plimsoll_device::Bytes;
use plimsoll_graph::TensorOps;
use plimsoll_graph::micro_batch::Splits;
use plimsoll_plan::Exactness;

use super::forms::Traced;
use super::{Compile, Terms, padded, sizes};
use crate::account::whole_pages;
use crate::error::{Error, Result, Way};
use crate::step::StepOptions;

/// More host memory than any step copies to.
const MUCH: Bytes = Bytes::gib(1 << 16);

impl Compile<'_> {
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

    /// Why the batch is not split as the caller asks.
    pub(super) fn cannot_split(&self, whole: &Traced) -> Result<Error> {
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
}
