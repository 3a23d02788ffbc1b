//! Turns the number of ops in a step and the effort asked for into amounts of work: how hard each part of the search tries.
//!
//! Work is counted, not timed, so that the same request gives the same plan. Every amount here trades planning time for plans that
//! are faster or take less: it falls where steps get longer, so that planning a long step still ends soon.

/// How hard to search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Work for the first search at a level of the budget grid. More finds faster plans.
    pub level: u64,
    /// Work for each sublevel, which starts from the schedule of the one below and so needs less.
    pub sublevel: u64,
    /// Work for each attempt to find the floor. More finds lower floors.
    pub floor: u64,
    /// How many sublevels lie between two levels. Fewer make levels denser, so that more are searched from the start.
    pub sublevels: u32,
    /// Only every so many sublevels are searched. In long steps it is more than one: there each tensor is a small part of the budget,
    /// so that neighbouring sublevels hardly differ.
    pub stride: usize,
    /// How many weights of the gap (see `Score`) are tried for a first schedule. More finds better ones and takes as many times the
    /// work.
    pub gap_weights: usize,
    /// The search for the floor ends when the interval that is left is this part of it: 32 stops within 1/32.
    pub floor_precision: u64,
    /// The most segments that checkpoint schedules are tried with. More find lower schedules of long chains.
    pub most_segments: usize,
    /// From how many first schedules a level is searched.
    pub starts: usize,
    /// At how many prices of copies to the host a level is searched, where there are any.
    pub prices: usize,
    /// How many of the schedules with the lowest peaks are packed to find the lowest arena.
    pub packed: usize,
    /// After so many failures to lower a schedule's peak the search for the floor leaves it as it is.
    pub most_failures: usize,
    /// How often the search for the floor starts again with other random numbers, as long as that helps.
    pub restarts: u64,
}

impl Effort {
    /// `asked` is [`crate::plan::Request::effort`]; 1 plans steps of up to 5,000 ops in about a second.
    pub fn new(ops: u32, asked: u32) -> Effort {
        let effort = Effort::unhurried(ops, asked);
        if asked > 0 { effort } else { effort.in_haste() }
    }

    /// A floor and plans that are found sooner.
    fn in_haste(self) -> Effort {
        Effort {
            level: self.level / 4,
            sublevel: self.sublevel / 4,
            floor: self.floor / 4,
            sublevels: 3 * self.sublevels,
            stride: 3 * self.stride,
            gap_weights: 1,
            floor_precision: 8,
            most_segments: self.most_segments.min(32),
            starts: 1,
            prices: 1,
            packed: self.packed.min(2),
            most_failures: self.most_failures.min(4),
            restarts: 0,
        }
    }

    fn unhurried(ops: u32, asked: u32) -> Effort {
        let most = if ops <= 5_000 { 900_000 } else { 1_200_000 };
        let level = (1200 * u64::from(ops)).clamp(20_000, most) * u64::from(asked.max(1));
        let is_long = ops > 20_000;
        let level = if is_long { level / 3 } else { level };
        let (sublevels, stride, gap_weights, floor_precision) = match ops {
            0..=5_000 => (32, 1, 3, 32),
            5_001..=20_000 => (48, 1, 3, 32),
            _ => (126, 20, 1, 4),
        };
        Effort {
            level,
            sublevel: level / 40 * stride.min(8) as u64,
            floor: (200 * u64::from(ops)).clamp(20_000, 500_000),
            sublevels,
            stride,
            gap_weights,
            floor_precision,
            most_segments: if is_long { 8 } else { 128.min(ops as usize / 8) },
            starts: if ops <= 1_000 { 2 } else { 1 },
            prices: if ops <= 1_000 { 4 } else { 3 },
            packed: (12_000 / ops.max(1) as usize).clamp(1, 12),
            most_failures: if is_long { 0 } else { (20_000 / ops.max(1) as usize).clamp(6, 24) },
            restarts: 4_000 / u64::from(ops.max(1_000)),
        }
    }

    /// For the search with copies to the host, which runs beside that of the same step without: half the work for each price of
    /// copies, from one first schedule, on levels three times as far apart. Their weaker bound rules out hardly any level.
    pub fn beside_another(self) -> Effort {
        let (sublevels, stride) = (3 * self.sublevels, 3 * self.stride);
        let (level, sublevel, floor) = (self.level / 2, self.sublevel / 2, self.floor / 2);
        Effort { sublevels, stride, level, sublevel, floor, starts: 1, restarts: 0, ..self }
    }
}
