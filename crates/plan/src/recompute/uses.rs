//! Keeps in which stages each transient is made and used, and answers which making serves which use.

use crate::indexed_problem::IndexedProblem;

/// Where transients are made and used. A use is served by the latest making at or before it.
#[derive(Clone)]
pub(crate) struct Uses {
    /// The stages in which each transient is made, ascending.
    made: Vec<Vec<u32>>,
    /// The stages in which each transient is used, ascending, once for each use; the number of stages for what is kept.
    used: Vec<Vec<u32>>,
}

impl Uses {
    /// Those of the schedule without replays.
    pub fn new(indexed: &IndexedProblem) -> Uses {
        let mut used: Vec<Vec<u32>> = vec![Vec::new(); indexed.tensors() as usize];
        for op in 0..indexed.ops {
            indexed.ins.of(op).iter().for_each(|&t| used[t as usize].push(op));
        }
        for (_, used) in used.iter_mut().enumerate().filter(|(t, _)| indexed.keep[*t]) {
            used.push(indexed.ops);
        }
        Uses { made: indexed.producer.iter().map(|&p| vec![p]).collect(), used }
    }

    /// The stages in which `t` is used.
    pub fn of(&self, t: u32) -> &[u32] {
        &self.used[t as usize]
    }

    /// The first use of `t` at or after `stage`.
    pub fn from(&self, t: u32, stage: u32) -> Option<u32> {
        let used = &self.used[t as usize];
        used.get(used.partition_point(|&u| u < stage)).copied()
    }

    /// Whether `t` is made in `stage`.
    pub fn is_made_in(&self, t: u32, stage: u32) -> bool {
        self.made[t as usize].binary_search(&stage).is_ok()
    }

    /// The stage of the latest making of `t` at or before `stage`.
    pub fn made_before(&self, t: u32, stage: u32) -> u32 {
        let made = &self.made[t as usize];
        made[made.partition_point(|&m| m <= stage) - 1]
    }

    /// The stage of the first making of `t` after `stage`.
    pub fn made_after(&self, t: u32, stage: u32) -> Option<u32> {
        let made = &self.made[t as usize];
        made.get(made.partition_point(|&m| m <= stage)).copied()
    }

    /// The first use of the instance of `t` that is held after `stage`, if one is.
    pub fn next_use(&self, t: u32, stage: u32) -> Option<u32> {
        let used = &self.used[t as usize];
        let next = *used.get(used.partition_point(|&u| u <= stage))?;
        match self.made_after(t, stage) {
            Some(made) if made <= next => None,
            _ => Some(next),
        }
    }

    /// The last use before `stage` of an instance made at `made`, or `made` itself.
    pub fn last_use_before(&self, t: u32, made: u32, stage: u32) -> u32 {
        let used = &self.used[t as usize];
        match used.partition_point(|&u| u < stage) {
            0 => made,
            k => used[k - 1].max(made),
        }
    }

    /// Whether `t` is in memory at some time in `stage`.
    pub fn is_held(&self, t: u32, stage: u32) -> bool {
        if self.is_made_in(t, stage) {
            return true;
        }
        let Some(next) = self.from(t, stage) else { return false };
        self.made_after(t, stage).is_none_or(|made| next < made)
    }

    /// Adds or removes a making of `t` in `stage`; returns the stages of the makings before and after it.
    pub fn change_making(&mut self, t: u32, stage: u32, insert: bool) -> (u32, u32) {
        let made = &mut self.made[t as usize];
        let at = made.partition_point(|&m| m < stage);
        let before = made[at - 1];
        if insert {
            made.insert(at, stage);
        } else {
            made.remove(at);
        }
        (before, made.get(at + usize::from(insert)).copied().unwrap_or(u32::MAX))
    }

    /// Adds a use of `t` in `stage`.
    pub fn add(&mut self, t: u32, stage: u32) {
        let used = &mut self.used[t as usize];
        let at = used.partition_point(|&u| u < stage);
        used.insert(at, stage);
    }

    /// Removes a use of `t` in `stage`.
    pub fn remove(&mut self, t: u32, stage: u32) {
        let used = &mut self.used[t as usize];
        let at = used.partition_point(|&u| u < stage);
        used.remove(at);
    }
}
