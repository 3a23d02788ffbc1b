//! A small stream of numbers that is the same in every run, for tests that damage files.

/// Numbers from a seed, by xorshift.
///
/// ```
/// let mut dice = plimsoll_testing::Dice(0x9e37_79b9_7f4a_7c15);
/// assert!(dice.roll(6) < 6);
/// ```
pub struct Dice(pub u64);

impl Dice {
    /// The next number below this one; 0 where nothing is below.
    pub fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}
