//! Keeps in which stages each transient is made and used, and answers which making serves which use.
//!
//! Most questions are about a stage behind all makings or all uses of a transient: the last of each is looked at first.

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

/// Whether all of `stages` lie before `stage`.
#[inline]
fn is_behind(stages: &[u32], stage: u32) -> bool {
    stages.last().is_none_or(|&last| last < stage)
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
        let own = |t: u32| {
            let made =
                std::iter::once(indexed.producer[t as usize]).chain(indexed.anew.of(t).iter().copied());
            Own { made: made.collect(), used: Stages::new() }
        };
        let mut all: Vec<Own> = (0..indexed.tensors()).map(own).collect();
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
        if is_behind(made, stage) {
            return false;
        }
        made.get(before(made, stage)) == Some(&stage)
    }

    /// The stage of the latest making of `t` at or before `stage`.
    pub fn made_before(&self, t: u32, stage: u32) -> u32 {
        let made = &self.0[t as usize].made[..];
        match made.last() {
            Some(&last) if last <= stage => last,
            _ => made[before(made, stage + 1) - 1],
        }
    }

    /// The stage of the first making of `t` after `stage`.
    pub fn made_after(&self, t: u32, stage: u32) -> Option<u32> {
        let made = &self.0[t as usize].made[..];
        if is_behind(made, stage + 1) {
            return None;
        }
        made.get(before(made, stage + 1)).copied()
    }

    /// The first use of the instance of `t` that is held after `stage`, if one is.
    pub fn next_use(&self, t: u32, stage: u32) -> Option<u32> {
        let Own { made, used } = &self.0[t as usize];
        if is_behind(used, stage + 1) {
            return None;
        }
        let next = *used.get(before(used, stage + 1))?;
        if is_behind(made, stage + 1) {
            return Some(next);
        }
        match made.get(before(made, stage + 1)) {
            Some(made) if *made <= next => None,
            _ => Some(next),
        }
    }

    /// Whether an instance of `t` is held after `stage`.
    pub fn is_held_after(&self, t: u32, stage: u32) -> bool {
        let Own { made, used } = &self.0[t as usize];
        !is_behind(used, stage + 1) && (is_behind(made, stage + 1) || self.next_use(t, stage).is_some())
    }

    /// The last use before `stage` of an instance made at `made`, or `made` itself.
    pub fn last_use_before(&self, t: u32, made: u32, stage: u32) -> u32 {
        let used = &self.0[t as usize].used[..];
        if let Some(&last) = used.last()
            && last < stage
        {
            return last.max(made);
        }
        match before(used, stage) {
            0 => made,
            k => used[k - 1].max(made),
        }
    }

    /// Whether `t` is in memory at some time in `stage`.
    pub fn is_held(&self, t: u32, stage: u32) -> bool {
        let Own { made, used } = &self.0[t as usize];
        if is_behind(made, stage) {
            return !is_behind(used, stage);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked of `made` and `used` at a stage, found by looking through all of them.
    fn plainly(
        made: &[u32],
        used: &[u32],
        stage: u32,
    ) -> (bool, Option<u32>, Option<u32>, Option<u32>, bool, u32) {
        let made_after = made.iter().copied().find(|&at| at > stage);
        let used_after = used.iter().copied().find(|&at| at > stage);
        let next = used_after.filter(|&next| made_after.is_none_or(|made| made > next));
        let here = made.iter().copied().find(|&at| at >= stage).unwrap_or(u32::MAX);
        let from = used.iter().copied().find(|&at| at >= stage);
        let is_held = here == stage || from.is_some_and(|from| from < here);
        let made_before = made.iter().copied().rfind(|&at| at <= stage);
        let first = made[0];
        let last = used.iter().copied().rfind(|&at| at < stage).map_or(first, |last| last.max(first));
        (made.contains(&stage), made_before, made_after, next, is_held, last)
    }

    #[test]
    fn the_last_making_and_use_answer_as_all_of_them_do() {
        let lists: [&[u32]; 6] = [&[2], &[2, 5], &[2, 5, 6, 9], &[2, 11], &[2, 3, 4], &[2, 4, 8, 10, 11]];
        let uses: [&[u32]; 6] = [&[], &[3], &[3, 5, 7], &[5, 5, 9], &[9, 12], &[4, 6, 6, 8, 11, 12]];
        for (made, used) in lists.iter().flat_map(|made| uses.iter().map(move |used| (made, used))) {
            let own = Own { made: Stages::from_slice(made), used: Stages::from_slice(used) };
            let all = Uses(vec![own]);
            for stage in 2..14 {
                let (made_in, made_before, made_after, next, is_held, last) = plainly(made, used, stage);
                assert_eq!(all.is_made_in(0, stage), made_in, "{made:?} {used:?} {stage}");
                assert_eq!(Some(all.made_before(0, stage)), made_before, "{made:?} {used:?} {stage}");
                assert_eq!(all.made_after(0, stage), made_after, "{made:?} {used:?} {stage}");
                assert_eq!(all.next_use(0, stage), next, "{made:?} {used:?} {stage}");
                assert_eq!(all.is_held_after(0, stage), next.is_some(), "{made:?} {used:?} {stage}");
                assert_eq!(all.is_held(0, stage), is_held, "{made:?} {used:?} {stage}");
                assert_eq!(all.last_use_before(0, made[0], stage), last, "{made:?} {used:?} {stage}");
            }
        }
    }
}
