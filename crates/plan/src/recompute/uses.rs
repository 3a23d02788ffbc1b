//! Keeps in which stages each transient is made and used, and answers which making serves which use.

use crate::indexed_problem::IndexedProblem;
use smallvec::SmallVec;

/// Stages, ascending. Most transients are made and used a few times, so that theirs lie in the list itself: a search asks for nothing as
/// often as for these.
type Stages = SmallVec<[u32; 6]>;

/// Longer lists are halved to find a stage in them; shorter ones are counted through, which needs no guess at the outcome.
const SHORT: usize = 8;

/// How many of `stages` lie before `stage`.
#[inline]
fn before(stages: &[u32], stage: u32) -> usize {
    match stages.len() {
        0..=SHORT => stages.iter().map(|&at| usize::from(at < stage)).sum(),
        _ => stages.partition_point(|&at| at < stage),
    }
}

/// Where one transient is made and used.
#[derive(Clone)]
struct Own {
    /// The stages in which it is made.
    made: Stages,
    /// The stages in which it is used, once for each use; the number of stages too for what is kept.
    used: Stages,
}

/// Where transients are made and used. A use is served by the latest making at or before it.
#[derive(Clone)]
pub(crate) struct Uses(Vec<Own>);

impl Uses {
    /// Those of the schedule without replays.
    pub fn new(indexed: &IndexedProblem) -> Uses {
        let own = |&producer: &u32| Own { made: Stages::from_slice(&[producer]), used: Stages::new() };
        let mut all: Vec<Own> = indexed.producer.iter().map(own).collect();
        for op in 0..indexed.ops {
            indexed.ins.of(op).iter().for_each(|&t| all[t as usize].used.push(op));
        }
        for (_, own) in all.iter_mut().enumerate().filter(|(t, _)| indexed.keep[*t]) {
            own.used.push(indexed.ops);
        }
        Uses(all)
    }

    /// The stages in which `t` is used.
    pub fn of(&self, t: u32) -> &[u32] {
        &self.0[t as usize].used
    }

    /// The first use of `t` at or after `stage`.
    pub fn from(&self, t: u32, stage: u32) -> Option<u32> {
        let used = &self.0[t as usize].used[..];
        used.get(before(used, stage)).copied()
    }

    /// Whether `t` is made in `stage`.
    pub fn is_made_in(&self, t: u32, stage: u32) -> bool {
        let made = &self.0[t as usize].made[..];
        made.get(before(made, stage)) == Some(&stage)
    }

    /// The stage of the latest making of `t` at or before `stage`.
    pub fn made_before(&self, t: u32, stage: u32) -> u32 {
        let made = &self.0[t as usize].made[..];
        made[before(made, stage + 1) - 1]
    }

    /// The stage of the first making of `t` after `stage`.
    pub fn made_after(&self, t: u32, stage: u32) -> Option<u32> {
        let made = &self.0[t as usize].made[..];
        made.get(before(made, stage + 1)).copied()
    }

    /// The first use of the instance of `t` that is held after `stage`, if one is.
    pub fn next_use(&self, t: u32, stage: u32) -> Option<u32> {
        let Own { made, used } = &self.0[t as usize];
        let next = *used.get(before(used, stage + 1))?;
        match made.get(before(made, stage + 1)) {
            Some(made) if *made <= next => None,
            _ => Some(next),
        }
    }

    /// The last use before `stage` of an instance made at `made`, or `made` itself.
    pub fn last_use_before(&self, t: u32, made: u32, stage: u32) -> u32 {
        let used = &self.0[t as usize].used[..];
        match before(used, stage) {
            0 => made,
            k => used[k - 1].max(made),
        }
    }

    /// Whether `t` is in memory at some time in `stage`.
    pub fn is_held(&self, t: u32, stage: u32) -> bool {
        let Own { made, used } = &self.0[t as usize];
        let at = before(made, stage);
        let here = made.get(at).copied().unwrap_or(u32::MAX);
        if here == stage {
            return true;
        }
        used.get(before(used, stage)).is_some_and(|&next| next < here)
    }

    /// Adds or removes a making of `t` in `stage`; returns the stages of the makings before and after it.
    pub fn change_making(&mut self, t: u32, stage: u32, insert: bool) -> (u32, u32) {
        let made = &mut self.0[t as usize].made;
        let at = before(made, stage);
        let last = made[at - 1];
        if insert {
            made.insert(at, stage);
        } else {
            made.remove(at);
        }
        (last, made.get(at + usize::from(insert)).copied().unwrap_or(u32::MAX))
    }

    /// Adds a use of `t` in `stage`.
    pub fn add(&mut self, t: u32, stage: u32) {
        let used = &mut self.0[t as usize].used;
        used.insert(before(used, stage), stage);
    }

    /// Removes a use of `t` in `stage`.
    pub fn remove(&mut self, t: u32, stage: u32) {
        let used = &mut self.0[t as usize].used;
        used.remove(before(used, stage));
    }
}
