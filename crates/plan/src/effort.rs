//! Turns the length of a step and the asked asked for into amounts of work: how hard each part of the search tries.
//!
//! Work is counted, not timed, so that the same request gives the same plan.

/// How hard to search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Work for each level.
    pub level: u64,
    /// Work for each sublevel.
    pub sublevel: u64,
    /// Work for each attempt to find the floor.
    pub floor: u64,
    /// How many sublevels a level has.
    pub sublevels: u32,
    /// Every so many sublevels are searched: fewer in long steps, whose tensors are small beside the budget.
    pub stride: usize,
    /// With how many prices first schedules are looked for.
    pub scores: usize,
    /// The floor is looked for until this share of it is left open.
    pub open: u64,
    /// The most segments that schedules by checkpoints are tried with.
    pub segments: usize,
    /// From how many first schedules a level is searched.
    pub starts: usize,
    /// How many of the lowest schedules are packed.
    pub packed: usize,
    /// After so many failures to press the floor lower it is left where it is.
    pub fails: usize,
    /// How often it is pressed again from where it began.
    pub again: u64,
}

impl Effort {
    /// For a search beside that of the same step without copies: half the work, on levels three times as far apart. What copies
    /// gain is little on most devices, and without a tight bound hardly any level is left out.
    pub fn beside_another(self) -> Effort {
        let (sublevels, stride) = (3 * self.sublevels, 3 * self.stride);
        let (level, sublevel, floor) = (self.level / 2, self.sublevel / 2, self.floor / 2);
        Effort { sublevels, stride, level, sublevel, floor, again: 0, ..self }
    }

    /// `asked` 1 plans steps of up to 5,000 ops in about a second.
    pub fn new(ops: u32, asked: u32) -> Effort {
        let most = if ops <= 5_000 { 900_000 } else { 1_200_000 };
        let level = (1200 * u64::from(ops)).clamp(20_000, most) * u64::from(asked.max(1));
        let floor = (200 * u64::from(ops)).clamp(20_000, 500_000);
        let long = ops > 20_000;
        let (sublevels, stride, scores, open) = match ops {
            0..=5_000 => (32, 1, 3, 32),
            5_001..=20_000 => (48, 1, 3, 32),
            _ => (126, 20, 1, 4),
        };
        let fails = if long { 0 } else { (20_000 / ops.max(1) as usize).clamp(6, 24) };
        let starts = if ops <= 1_000 { 2 } else { 1 };
        let again = 4_000 / u64::from(ops.max(1_000));
        let packed = (12_000 / ops.max(1) as usize).clamp(1, 12);
        let segments = if long { 8 } else { 128.min(ops as usize / 8) };
        let level = if long { level / 3 } else { level };
        Effort {
            level,
            sublevel: level / 40 * stride.min(8) as u64,
            floor,
            sublevels,
            stride,
            scores,
            open,
            segments,
            starts,
            packed,
            fails,
            again,
        }
    }
}
