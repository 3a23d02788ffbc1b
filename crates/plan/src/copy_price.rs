//! Turns the time that copies take the link into the time that they count for in a search.
//!
//! What runs beside ops costs next to nothing, and what the link has no time left for is waited for. A search that counts every copy alike
//! takes too few of them where there is time, or so many that all wait for each other.

/// What copies to the host and back count for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyPrice {
    /// Copies beside ops count with their time divided by this.
    pub divisor: u64,
    /// So much time of copies, both ways together, runs beside ops; whatever they take beyond it counts whole.
    pub beside_ns: u64,
}

impl CopyPrice {
    /// Every copy counts whole.
    pub const WHOLE: CopyPrice = CopyPrice { divisor: 1, beside_ns: u64::MAX };

    /// What copies count for that take so long together.
    pub fn of(self, ns: u64) -> u64 {
        ns.min(self.beside_ns).div_ceil(self.divisor) + ns.saturating_sub(self.beside_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_link_has_no_time_for_counts_whole() {
        let price = CopyPrice { divisor: 10, beside_ns: 100 };
        assert_eq!([0, 5, 100, 130].map(|ns| price.of(ns)), [0, 1, 10, 40]);
        assert_eq!(CopyPrice::WHOLE.of(130), 130);
    }
}
