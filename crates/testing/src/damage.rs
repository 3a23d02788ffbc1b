//! The ways in which a file goes bad.

use crate::Dice;

/// A copy of a file that is damaged in one of five ways: cut short, with bits turned over, with a part missing, with a part repeated
/// elsewhere, or with bytes that are often wrong at their ends.
///
/// ```
/// use plimsoll_testing::{Dice, damaged};
/// let mut dice = Dice(1);
/// assert!((0..20).any(|_| damaged(b"a whole file", &mut dice) != b"a whole file"));
/// ```
pub fn damaged(bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bad = bytes.to_vec();
    match dice.roll(5) {
        0 => bad.truncate(dice.roll(bytes.len())),
        1 => {
            for _ in 0..=dice.roll(8) {
                let at = dice.roll(bad.len());
                bad[at] ^= 1 << dice.roll(8);
            }
        }
        2 => {
            let (at, n) = (dice.roll(bad.len()), dice.roll(64));
            let end = (at + n).min(bad.len());
            bad.drain(at..end);
        }
        3 => {
            let (from, at, n) = (dice.roll(bad.len()), dice.roll(bad.len()), dice.roll(64));
            let part = bytes[from..(from + n).min(bytes.len())].to_vec();
            bad.splice(at..at, part);
        }
        _ => {
            let (at, n) = (dice.roll(bad.len()), dice.roll(12));
            let end = (at + n).min(bad.len());
            bad[at..end].iter_mut().for_each(|byte| *byte = [0, 0x7f, 0x80, 0xff][dice.roll(4)]);
        }
    }
    bad
}
