//! What numbers of inputs are multiplied by on their way from a file to a sample.

use crate::error::{Error, Result};

/// What numbers of inputs are multiplied by.
///
/// Without a word (`Open::scale` is `None`), bytes that are pixels are divided by 255, unless fields are asked for
/// by name ([`Open::fields`](crate::Open::fields)), as models of Keras files do: Keras takes them as they are, and so do
/// such models here. What is said holds for all inputs of numbers, floats too, and never for labels and indices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// As they are stored: bytes from 0 to 255.
    None,
    /// Divided by 255: bytes from 0 to 1.
    Unit,
    /// Multiplied by a number.
    Factor(f32),
}

impl Scale {
    /// What a number is divided by.
    pub(crate) fn divisor(self) -> f32 {
        match self {
            Scale::None => 1.0,
            Scale::Unit => 255.0,
            Scale::Factor(factor) => 1.0 / factor,
        }
    }

    /// Refuses what makes every number the same or none.
    pub(crate) fn checked(self) -> Result<Scale> {
        match self {
            Scale::Factor(factor) if !(factor.is_normal() && (1.0 / factor).is_normal()) => {
                Err(Error::Stage(format!(
                    "inputs cannot be multiplied by {factor}; give a number other than zero"
                )))
            }
            scale => Ok(scale),
        }
    }
}

impl std::str::FromStr for Scale {
    type Err = Error;

    /// Reads `none`, `unit` or a number to multiply by.
    ///
    /// ```
    /// use plimsoll_data::Scale;
    ///
    /// assert_eq!("unit".parse::<Scale>()?, Scale::Unit);
    /// assert_eq!("0.5".parse::<Scale>()?, Scale::Factor(0.5));
    /// assert!("half".parse::<Scale>().is_err());
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    fn from_str(text: &str) -> Result<Scale> {
        match text.trim() {
            "none" => Ok(Scale::None),
            "unit" => Ok(Scale::Unit),
            number => match number.parse() {
                Ok(factor) => Scale::Factor(factor).checked(),
                Err(_) => Err(Error::Stage(format!(
                    "'{text}' is no scale; write none, unit (divide by 255) or a number to multiply by"
                ))),
            },
        }
    }
}

impl std::fmt::Display for Scale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scale::None => f.write_str("as stored"),
            Scale::Unit => f.write_str("divided by 255"),
            Scale::Factor(factor) => write!(f, "multiplied by {factor}"),
        }
    }
}

/// What is done to numbers that are divided by this.
pub(crate) fn divided(divisor: f32) -> String {
    match divisor {
        1.0 => Scale::None.to_string(),
        255.0 => Scale::Unit.to_string(),
        other => Scale::Factor(1.0 / other).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_that_loses_the_numbers_is_refused() {
        for text in ["0", "nan", "inf", "1e-45", ""] {
            assert!(text.parse::<Scale>().is_err(), "{text}");
        }
        assert_eq!(divided("2".parse::<Scale>().unwrap().divisor()), "multiplied by 2");
        assert_eq!(divided(Scale::Unit.divisor()), "divided by 255");
    }
}
