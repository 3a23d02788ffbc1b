//! Why a step cannot be run as was asked, and what would help.

use plimsoll_device::Bytes;
use plimsoll_graph::micro_batch::Splits;
use plimsoll_graph::{TensorOps, counted};
use plimsoll_plan::Exactness;

use super::forms::Traced;
use super::hosting::Hosting;
use super::{Compile, Terms, padded, sizes};
use crate::account::whole_pages;
use crate::error::{Error, Result};
use crate::refusal::Way;
use crate::step::StepOptions;

/// More host memory than any step copies to.
const MUCH: Bytes = Bytes::gib(1 << 16);

impl Compile<'_> {
    /// Why the line cannot be kept, and what would help.
    pub(crate) fn refuse(&self, line: Bytes, terms: &Terms) -> Result<Error> {
        let mut ways = Vec::new();
        let Terms { account, splits, .. } = terms;
        let elsewhere = account.elsewhere();
        // With as much on the host as may be.
        let least_here = self.hostings().pop().unwrap_or_default();
        let least = elsewhere + terms.least;
        let allowed = splits.is_some_and(|needed| self.options.exactness >= needed);
        let smallest = |batch: usize| sizes(batch).last().copied().unwrap_or(batch);
        if let (Some(needed), Some(batch), false) = (*splits, self.batch, allowed) {
            let floor = self.split(smallest(batch), &least_here)?.floor();
            let flag = format!("--exact {}", needed);
            let change = match needed {
                Exactness::Approximate => "micro-batches, each with statistics of its own",
                _ => "micro-batches: the same sums in another order",
            };
            ways.push(Way { flag, change: change.into(), least: elsewhere + floor });
        }
        if let (Some(batch), false) = (self.batch, allowed) {
            for smaller in [batch / 2, batch / 4, 1] {
                if smaller > 0 && smaller < batch && ways.len() < 3 {
                    let mut fewer = self.whole(&self.trace(Some(smaller))?, &least_here)?;
                    let saved: Bytes =
                        self.inputs.iter().map(|ty| padded(ty.bytes() / batch * (batch - smaller))).sum();
                    let least = elsewhere.saturating_sub(saved) + fewer.floor();
                    let (flag, change) =
                        (format!("--batch {smaller}"), counted(smaller, "sample") + " a step");
                    ways.push(Way { flag, change, least });
                }
            }
        }
        let smallest = |compile: &Compile<'_>, hosting: &Hosting| match self.batch {
            Some(batch) if allowed => compile.split(smallest(batch), hosting),
            _ => compile.whole(&compile.trace(self.batch)?, hosting),
        };
        if self.host() == Bytes::ZERO && self.device.backend().rough_link().is_some() {
            let options = StepOptions { host_memory: Some(MUCH), ..self.options.clone() };
            let compile = Compile { options: &options, ..*self };
            let hosting = compile.hostings().pop().unwrap_or_default();
            let mut copying = smallest(&compile, &hosting)?;
            let floor = copying.floor();
            let plans = copying.plan(floor, u64::MAX)?;
            let host = plans.and_then(|(plans, _)| plans.iter().map(|p| p.figures.host_bytes).max());
            // State that may move with host memory and not without it is counted with the account here.
            let beside = elsewhere.saturating_sub(compile.movable_here().saturating_sub(self.movable_here()));
            if let Some(host) = host.map(|host| Bytes(host) + hosting.away).filter(|host| *host > Bytes::ZERO)
            {
                let flag = format!("--host-memory {}MiB", host.get().div_ceil(1 << 20));
                let change = "host memory to copy to and fetch from".into();
                ways.push(Way { flag, change, least: beside + whole_pages(self.device, floor) });
            }
        }
        let mut candidate = smallest(self, &least_here)?;
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
