//! Faults on order: a failed allocation or a batch that is not finite, to rehearse what happens then.

use std::str::FromStr;

/// A fault to inject into a run.
///
/// ```
/// use plimsoll_train::Fault;
/// assert_eq!("nan:3".parse(), Ok(Fault::Nan(3)));
/// assert!("nan:0".parse::<Fault>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The n-th allocation of tensor memory fails, from 1.
    Alloc(u64),
    /// The n-th batch of the run has a number in it that is none, from 1.
    Nan(u64),
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let wrong = || format!("'{text}' is no fault; write alloc:N or nan:N with N from 1");
        let (what, n) = text.split_once(':').ok_or_else(wrong)?;
        let n: u64 = n.trim().parse().ok().filter(|n| *n > 0).ok_or_else(wrong)?;
        match what.trim() {
            "alloc" => Ok(Fault::Alloc(n)),
            "nan" => Ok(Fault::Nan(n)),
            _ => Err(wrong()),
        }
    }
}
