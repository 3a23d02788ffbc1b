//! Turns anything that can be hashed into a name for it: 128 bits that are the same in every process and on every machine of a kind.

use std::fmt;
use std::hash::{Hash, Hasher};

/// 128 bits that stand for what was digested (FNV-1a). Equal things have equal digests, others different ones as good as always; it is
/// no defence against somebody who looks for two that are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub u128);

impl Digest {
    /// The digest of bytes.
    ///
    /// ```
    /// use plimsoll_record::Digest;
    /// assert_eq!(Digest::of(b"").to_string(), "6c62272e07bb014262b821756295c58d");
    /// assert_ne!(Digest::of(b"a"), Digest::of(b"b"));
    /// ```
    pub fn of(bytes: &[u8]) -> Digest {
        let mut sum = Sum(OFFSET);
        sum.write(bytes);
        Digest(sum.0)
    }

    /// The digest of this and something more.
    #[must_use]
    pub fn with(self, more: impl Hash) -> Digest {
        let mut sum = Sum(self.0);
        more.hash(&mut sum);
        Digest(sum.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

struct Sum(u128);

impl Hasher for Sum {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }

    fn finish(&self) -> u64 {
        self.0 as u64
    }
}
