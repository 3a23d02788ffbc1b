//! In which order stages work on the parts of a batch: one way there, one way back.
//!
//! Time is cut into slots, in each of which a stage does one piece of work or waits; what is sent on is sent at the end of the slot, in the order of stages. So all messages
//! of a step stand in one order on all ranks, each rank does its own in that order, and none can wait for one that waits for it.

/// What a stage does in a slot, of which part of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Forward(usize),
    Backward(usize),
}

/// By slot and stage: what it does.
pub(super) type Slots = Vec<Vec<Option<Work>>>;

/// A step over so many parts: a stage begins with as many ways there as there are stages behind it, and then goes one there and one back by turns, so that it
/// never keeps more parts than there are stages from it on.
pub(super) fn one_there_one_back(stages: usize, parts: usize) -> Slots {
    let of_stage = |stage: usize| {
        let ahead = (stages - 1 - stage).min(parts);
        let mut all: Vec<Work> = (0..ahead).map(Work::Forward).collect();
        for part in 0..parts {
            all.extend((ahead + part < parts).then_some(Work::Forward(ahead + part)));
            all.push(Work::Backward(part));
        }
        all
    };
    in_slots((0..stages).map(of_stage).collect())
}

/// The way there alone, of the whole batch at once.
pub(super) fn there(stages: usize) -> Slots {
    in_slots(vec![vec![Work::Forward(0)]; stages])
}

/// Each stage's work, as early as what it needs was sent in a slot before.
fn in_slots(work: Vec<Vec<Work>>) -> Slots {
    let stages = work.len();
    let (mut next, mut there, mut back) = (vec![0; stages], vec![0; stages], vec![0; stages]);
    let mut slots = Slots::new();
    loop {
        let ready = |stage: usize| {
            let now = *work[stage].get(next[stage])?;
            let is_ready = match now {
                Work::Forward(part) => stage == 0 || there[stage - 1] > part,
                Work::Backward(part) => stage + 1 == stages || back[stage + 1] > part,
            };
            is_ready.then_some(now)
        };
        let slot: Vec<Option<Work>> = (0..stages).map(ready).collect();
        if slot.iter().all(Option::is_none) {
            return slots;
        }
        for (stage, work) in slot.iter().enumerate() {
            match work {
                Some(Work::Forward(_)) => there[stage] += 1,
                Some(Work::Backward(_)) => back[stage] += 1,
                None => continue,
            }
            next[stage] += 1;
        }
        slots.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_does_everything_after_what_it_needs_and_keeps_few_parts() {
        for (stages, parts) in [(1, 1), (1, 4), (2, 1), (2, 4), (3, 2), (4, 8), (5, 13), (8, 3)] {
            let slots = one_there_one_back(stages, parts);
            let when = |stage: usize, work: Work| {
                let at: Vec<usize> = (0..slots.len()).filter(|&t| slots[t][stage] == Some(work)).collect();
                assert_eq!(at.len(), 1, "{stage} {work:?} of {stages} and {parts}");
                at[0]
            };
            for part in 0..parts {
                for stage in 0..stages {
                    let (there, back) = (when(stage, Work::Forward(part)), when(stage, Work::Backward(part)));
                    assert!(there < back);
                    if stage + 1 < stages {
                        assert!(there < when(stage + 1, Work::Forward(part)));
                        assert!(back > when(stage + 1, Work::Backward(part)));
                    }
                }
            }
            for stage in 0..stages {
                let mut kept = 0;
                for slot in &slots {
                    match slot[stage] {
                        Some(Work::Forward(_)) => kept += 1,
                        Some(Work::Backward(_)) => kept -= 1,
                        None => {}
                    }
                    assert!(kept <= stages - stage, "{kept} at {stage} of {stages}");
                }
            }
        }
        // Where every piece takes as long, nobody waits but for the first and the last parts.
        assert_eq!(one_there_one_back(4, 8).len(), 2 * (8 + 3));
    }
}
