//! A record in the making: names and source lines are kept once, and everything else refers to them by number.

use plimsoll_graph::Site;
use plimsoll_record as record;
use rustc_hash::FxHashMap;

/// A record of a step in the making.
#[derive(Default)]
pub(super) struct Recorder {
    pub(super) step: record::Step,
    names: FxHashMap<String, u32>,
    sites: FxHashMap<Site, u32>,
}

impl Recorder {
    /// The number of a name.
    pub(super) fn name(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.names.get(name) {
            return known;
        }
        let at = self.step.names.len() as u32;
        self.step.names.push(name.into());
        self.names.insert(name.into(), at);
        at
    }

    /// The number of a source line, where it is one of the user's.
    pub(super) fn site(&mut self, site: Site) -> Option<u32> {
        let site = site.known()?;
        let sites = &mut self.step.sites;
        Some(*self.sites.entry(site).or_insert_with(|| {
            sites.push(site.to_string());
            sites.len() as u32 - 1
        }))
    }
}
