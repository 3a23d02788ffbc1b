//! Turns sizes as people write them into numbers of bytes, and back.
//!
//! Every size that crosses a public interface is a [`Bytes`], so that no message can print a bare number
//! without its unit and no caller can mistake megabytes for mebibytes.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::str::FromStr;

/// A number of bytes.
///
/// ```
/// use plimsoll_device::Bytes;
///
/// let budget: Bytes = "6GiB".parse()?;
/// assert_eq!(budget, Bytes::gib(6));
/// assert_eq!(budget.to_string(), "6.00 GiB");
/// assert_eq!("1.5GB".parse::<Bytes>()?, Bytes(1_500_000_000));
/// # Ok::<(), plimsoll_device::ParseBytesError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes at all.
    pub const ZERO: Bytes = Bytes(0);
    /// The largest size that can be written down.
    pub const MAX: Bytes = Bytes(u64::MAX);

    /// `n` times 1024 bytes; stops at [`Bytes::MAX`].
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 10))
    }

    /// `n` times 1024² bytes; stops at [`Bytes::MAX`].
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 20))
    }

    /// `n` times 1024³ bytes; stops at [`Bytes::MAX`].
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 30))
    }

    /// The bare number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The size as an index into memory, or nothing where an address is too narrow for it.
    pub fn to_usize(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }

    /// The sum, or nothing where it does not fit.
    pub fn checked_add(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_add(other.0).map(Bytes)
    }

    /// The difference, or nothing where it would be negative.
    pub fn checked_sub(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_sub(other.0).map(Bytes)
    }

    /// The difference, or zero where it would be negative.
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl From<usize> for Bytes {
    fn from(n: usize) -> Bytes {
        // A usize has at most 64 bits on every target that Rust supports.
        Bytes(n as u64)
    }
}

/// Sums stop at [`Bytes::MAX`]: sixteen exbibytes compare as 'more than any budget', which is the right
/// answer, where a sum that wraps around would compare as 'almost nothing'.
impl Add for Bytes {
    type Output = Bytes;

    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(sizes: I) -> Bytes {
        sizes.fold(Bytes::ZERO, Add::add)
    }
}

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const GIB: usize = 3;

/// Writes three significant digits and a binary unit: `640 B`, `1.5 KiB`, `512 MiB`, `6.00 GiB`.
///
/// Below a gibibyte sizes are mostly round, and trailing zeros are left off. The alternate form `{:#}` rounds
/// up instead of to the nearest, so that a printed size, given back as a budget, is enough.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unit = (self.0.max(1).ilog2() / 10) as usize;
        let (scaled, decimals) = loop {
            let (scaled, decimals) = three_digits(self.0, unit, f.alternate());
            // 1023.9 KiB rounds to 1024 KiB, which is called 1 MiB.
            if scaled < 1024 * 10u128.pow(decimals) || unit + 1 == UNITS.len() {
                break (scaled, decimals as usize);
            }
            unit += 1;
        };
        let divisor = 10u128.pow(decimals as u32);
        let mut digits = (scaled / divisor).to_string();
        if decimals > 0 {
            let fraction = format!("{:0decimals$}", scaled % divisor);
            let fraction = if unit < GIB { fraction.trim_end_matches('0') } else { &fraction };
            if !fraction.is_empty() {
                digits = format!("{digits}.{fraction}");
            }
        }
        let text = format!("{digits} {}", UNITS[unit]);
        match f.width() {
            // `pad` would take a precision for a length to cut at; a size is never cut.
            Some(width) => match f.align() {
                Some(fmt::Alignment::Left) => write!(f, "{text:<width$}"),
                Some(fmt::Alignment::Center) => write!(f, "{text:^width$}"),
                // Numbers stand to the right of their column.
                _ => write!(f, "{text:>width$}"),
            },
            None => f.write_str(&text),
        }
    }
}

/// The size in the given unit times a power of ten, and that power: two decimals below 10, one below 100.
fn three_digits(bytes: u64, unit: usize, round_up: bool) -> (u128, u32) {
    let shift = 10 * unit as u32;
    let decimals = match bytes >> shift {
        _ if unit == 0 => 0,
        0..10 => 2,
        10..100 => 1,
        _ => 0,
    };
    let half = if shift == 0 { 0 } else { 1u128 << (shift - 1) };
    let rounding = if round_up { (1u128 << shift) - 1 } else { half };
    ((u128::from(bytes) * 10u128.pow(decimals) + rounding) >> shift, decimals)
}

/// What is wrong with a text that should have been a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseBytesError {
    /// There was nothing to read.
    #[error("an empty text is no size; write one like 6GiB, 512MiB or 1.5GB")]
    Empty,
    /// The text is not a number with a unit.
    #[error("'{text}' is no size; write one like 6GiB, 512MiB or 1.5GB")]
    NotASize {
        /// The text as it was given.
        text: String,
    },
    /// A fraction without a unit: half a byte was surely not meant.
    #[error("'{text}' has a fraction but no unit; write one like {text}GiB or {text}MiB")]
    NoUnit {
        /// The text as it was given.
        text: String,
    },
    /// The size needs more than 64 bits.
    #[error("'{text}' is more bytes than a size can hold; the most is 16 EiB less one byte")]
    TooLarge {
        /// The text as it was given.
        text: String,
    },
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// Reads `6GiB`, `512 MiB`, `1.5GB`, `1_000` or a plain number of bytes; `KB`, `MB`, `GB` are decimal.
    fn from_str(text: &str) -> Result<Bytes, ParseBytesError> {
        let trimmed = text.trim();
        let owned = || trimmed.to_owned();
        let unit = trimmed.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        // The parser takes a lone 'i' for a binary prefix without a prefix.
        if unit.eq_ignore_ascii_case("i") || unit.eq_ignore_ascii_case("ib") {
            return Err(ParseBytesError::NotASize { text: owned() });
        }
        let parsed = parse_size::parse_size(trimmed).map(Bytes).map_err(|error| match error {
            _ if trimmed.is_empty() => ParseBytesError::Empty,
            parse_size::Error::PosOverflow => ParseBytesError::TooLarge { text: owned() },
            _ => ParseBytesError::NotASize { text: owned() },
        })?;
        if unit.is_empty() && trimmed.contains('.') {
            return Err(ParseBytesError::NoUnit { text: owned() });
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_written_as_people_write_them() {
        for (bytes, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (10 * 1024 + 512, "10.5 KiB"),
            ((1 << 20) - 1, "1 MiB"),
            (512 << 20, "512 MiB"),
            ((512 << 20) + 1, "512 MiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (6 << 30, "6.00 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn the_alternate_form_rounds_up() {
        assert_eq!(format!("{:#}", Bytes((731 << 20) + 1)), "732 MiB");
        assert_eq!(format!("{:#}", Bytes(731 << 20)), "731 MiB");
        assert_eq!(format!("{:#}", Bytes((1 << 30) + 1)), "1.01 GiB");
    }

    #[test]
    fn sizes_stand_to_the_right_of_their_column() {
        assert_eq!(
            format!("{:>9}|{:9}|{:<9}|", Bytes(1), Bytes(1), Bytes(1)),
            "      1 B|      1 B|1 B      |"
        );
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("6GiB", 6 << 30),
            ("6 gib", 6 << 30),
            (" 512MiB ", 512 << 20),
            ("1.5GB", 1_500_000_000),
            ("1.5 KiB", 1536),
            ("1_000", 1000),
            ("640B", 640),
            ("0", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn nonsense_and_overflow_are_refused_with_the_text() {
        let parse = |text: &str| text.parse::<Bytes>().unwrap_err();
        assert_eq!(parse(""), ParseBytesError::Empty);
        assert_eq!(parse("  "), ParseBytesError::Empty);
        for text in ["much", "-1GiB", "6GiBs", "GiB", "5i", "5 ib", "0x10", "NaN", "1..5GB", "½GiB"] {
            assert_eq!(parse(text), ParseBytesError::NotASize { text: text.into() }, "{text}");
        }
        for text in ["16EiB", "18446744073709551616", "99999999999999999999GiB", "1e30"] {
            assert_eq!(parse(text), ParseBytesError::TooLarge { text: text.into() }, "{text}");
        }
        assert_eq!(parse("1.5"), ParseBytesError::NoUnit { text: "1.5".into() });
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_within_half_a_percent(bytes in any::<u64>(), shift in 0u32..64) {
            let bytes = Bytes(bytes >> shift);
            prop_assume!(bytes < Bytes::gib(15 << 30));
            let near: Bytes = bytes.to_string().parse().unwrap();
            prop_assert!(near.0.abs_diff(bytes.0) <= bytes.0 / 200);
            let enough: Bytes = format!("{bytes:#}").parse().unwrap();
            prop_assert!(enough >= bytes && enough.0 - bytes.0 <= bytes.0 / 100 + 1);
        }

        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "\\PC*") {
            let _ = text.parse::<Bytes>();
        }
    }
}
