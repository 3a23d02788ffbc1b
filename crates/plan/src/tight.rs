//! Packs the one schedule that becomes a plan as low as is found, changing it where that costs nothing.
//!
//! A packing that does not reach the bytes that are live is most often one of few: another schedule that takes as long has another
//! packing, and one of some dozens reaches them at once. So many are packed in little time each. They differ in what
//! writes over what it reads (an op that need not may leave its input where it is and write elsewhere, which cuts a long
//! buffer in two), in when things are made again, and in what is.

use crate::dense::Dense;
use crate::entry::Entry;
use crate::lifespan::{Act, lifespans, separable};
use crate::place::{place, usual_work};
use crate::recompute::improve::wander;
use crate::recompute::repair::{Chance, Repair};
use crate::recompute::spread::spread_acts;
use crate::recompute::state::State;
use std::sync::Arc;

/// How long a packing is searched, in the packer's seconds: that of the schedule as it is, with and without polish, those of other
/// schedules in all, each in little time and in more, and that of the best once more.
const FIRST: f64 = 0.05;
const POLISHED: f64 = 0.1;
const QUICK: f64 = 0.2;
const SLOW: f64 = 0.15;
const LAST: f64 = 0.1;
/// Where the usual packing takes longer than this, only quick attempts are made, and above the second none.
const LONG: f64 = 0.025;
const LONGEST: f64 = 0.08;
/// Steps of so many ops are not changed.
const SHORT: u32 = 107;

impl Entry {
    /// This schedule, of which a packing of `height` is known, or another that takes at most `more_ns` longer and packs lower.
    pub fn tightened(&self, height: u64, scratch_alignment: u64, host_budget: u64, more_ns: u64) -> Entry {
        let mut best = Entry::of(self.acts.clone(), self.dense.clone(), self.budget, self.ns, self.live);
        best.packed = self.packed.clone();
        let usual = usual_work(self.packed.as_ref().map_or(0, |packed| packed.offsets.len()));
        let mut least = height;
        let again = |entry: &mut Entry, least: &mut u64, work: f64, polish: bool| {
            if entry.packed.as_ref().is_some_and(|packed| packed.is_lowest) {
                return *least <= entry.live;
            }
            let spans = lifespans(&entry.dense, &entry.acts, scratch_alignment);
            let again = place(&spans, entry.dense.resident_bytes, entry.live, work, polish);
            if again.height < *least {
                *least = again.height;
                entry.packed = Some(again);
            }
            *least <= entry.live
        };
        // In a long step one packing takes as long as all the attempts on a short one.
        if again(&mut best, &mut least, (3.0 * usual).min(FIRST), false) || usual > LONGEST {
            return best;
        }
        // A short step is packed as low as can be by now, or has few other schedules.
        let is_short = self.dense.ops <= SHORT;
        if usual <= LONG && !is_short && again(&mut best, &mut least, POLISHED, true) {
            return best;
        }
        // What copies take depends on all else that runs, so schedules with copies are left as they are.
        if self.dense.carries() || self.acts.iter().any(|act| matches!(act, Act::Load(_))) {
            if usual <= LONG {
                again(&mut best, &mut least, (8.0 * usual).min(LAST), false);
            }
            return best;
        }
        let (dense, frozen) = spread_acts(&self.dense, &self.acts);
        let mut state = frozen.thaw(&dense);
        let extra_ns = state.extra_ns;
        let (quick, slow) = (usual / 5.0, 1.5 * usual);
        let most = if is_short { 0 } else { u64::from(self.dense.ops) };
        let n_quick = ((QUICK / quick) as u64).min(most);
        let n_slow = if usual > LONG { 0 } else { ((SLOW / slow) as u64).min(most / 32) };
        let attempts = n_quick + n_slow;
        let mut chance = Chance(17);
        for attempt in 0..attempts {
            // The later, the more it may hold and the longer it may take.
            let budget = self.live + (least - 1).saturating_sub(self.live) * attempt / attempts;
            if state.peak() as u64 > budget {
                state = frozen.thaw(&dense);
            }
            if attempt % 2 == 1 && state.pairs > 0 {
                let mut repair = Repair::new(&state, budget, host_budget, attempt);
                let extra_ns = extra_ns..=extra_ns + more_ns * attempt / attempts;
                wander(&mut state, &mut repair, 20_000, 4 << (attempt / 2 % 4), &extra_ns);
            }
            let mut next = varied(&mut state, self.budget, scratch_alignment, attempt, &mut chance);
            let (work, polish) = if attempt < n_quick { (quick, false) } else { (slow, true) };
            if next.live < least && again(&mut next, &mut least, work, polish) {
                return next;
            }
            if next.packed.is_some() {
                best = next;
            }
        }
        if usual <= LONG {
            again(&mut best, &mut least, (8.0 * usual).min(LAST), false);
        }
        best
    }
}

/// The schedule of `state`, in which some of the ops that need not write over what they read do not.
fn varied(
    state: &mut State,
    budget: u64,
    scratch_alignment: u64,
    attempt: u64,
    chance: &mut Chance,
) -> Entry {
    let (acts, live) = (state.acts(), state.peak() as u64);
    let dense: &Dense = state.dense;
    let ns = dense.base_ns() + state.extra_ns;
    let spans = lifespans(dense, &acts, scratch_alignment);
    let room = live - dense.resident_bytes;
    let mut apart = separable(dense, &acts, &spans, room);
    let of_four = [2, 0, 1, 3, 4][(attempt % 5) as usize];
    apart.retain(|_| chance.below(4) < of_four);
    let dense = Arc::new(dense.apart(&apart));
    Entry::of(acts, dense, budget, ns, live)
}
