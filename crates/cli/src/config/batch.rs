//! `--batch`: a number of samples, or `auto` for what a memory limit holds.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

/// How many samples a step has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSize {
    /// So many.
    Samples(usize),
    /// As many as the planner finds fastest within the memory limit.
    Auto,
}

/// Samples at a time of a file that is used without training, where nothing is said.
pub const USUAL_BATCH: usize = 32;

impl BatchSize {
    /// The number, where one is named.
    pub fn samples(self) -> Option<usize> {
        match self {
            BatchSize::Samples(n) => Some(n),
            BatchSize::Auto => None,
        }
    }
}

impl FromStr for BatchSize {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchSize, String> {
        match text {
            "auto" => Ok(BatchSize::Auto),
            number => number
                .parse()
                .map(BatchSize::Samples)
                .map_err(|_| format!("'{number}' is no number of samples; name one, or auto")),
        }
    }
}

impl fmt::Display for BatchSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchSize::Samples(n) => write!(f, "{n}"),
            BatchSize::Auto => f.write_str("auto"),
        }
    }
}

impl Serialize for BatchSize {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            BatchSize::Samples(n) => to.serialize_u64(*n as u64),
            BatchSize::Auto => to.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for BatchSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<BatchSize, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = BatchSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of samples, or \"auto\"")
            }

            fn visit_u64<E: Error>(self, n: u64) -> Result<BatchSize, E> {
                usize::try_from(n)
                    .map(BatchSize::Samples)
                    .map_err(|_| E::invalid_value(Unexpected::Unsigned(n), &self))
            }

            fn visit_i64<E: Error>(self, n: i64) -> Result<BatchSize, E> {
                usize::try_from(n)
                    .map(BatchSize::Samples)
                    .map_err(|_| E::invalid_value(Unexpected::Signed(n), &self))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<BatchSize, E> {
                match text {
                    "auto" => Ok(BatchSize::Auto),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }
        }
        from.deserialize_any(Words)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    #[test]
    fn it_is_a_number_or_auto_and_comes_back_from_a_file() {
        for (text, size) in
            [("batch = 32\n", BatchSize::Samples(32)), ("batch = \"auto\"\n", BatchSize::Auto)]
        {
            let config: Config = toml::from_str(text).unwrap();
            assert_eq!(config.batch, Some(size));
            assert_eq!(toml::to_string(&config).unwrap(), text);
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for wrong in ["batch = -1", "batch = 1.5", "batch = \"many\""] {
            let why = toml::from_str::<Config>(wrong).unwrap_err().to_string();
            assert!(why.contains("a number of samples, or \"auto\""), "{why}");
        }
        assert!("-3".parse::<BatchSize>().unwrap_err().contains("auto"));
    }
}
