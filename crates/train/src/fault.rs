//! Faults on order: a failed allocation, a batch that is not finite, a device that is lost, to rehearse what happens then.

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
    /// The device fails for good at the n-th batch of the run, from 1: what it held cannot be read any more.
    Device(u64),
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let wrong = || format!("'{text}' is no fault; write alloc:N, nan:N or device:N with N from 1");
        let (what, n) = text.split_once(':').ok_or_else(wrong)?;
        let n: u64 = n.trim().parse().ok().filter(|n| *n > 0).ok_or_else(wrong)?;
        match what.trim() {
            "alloc" => Ok(Fault::Alloc(n)),
            "nan" => Ok(Fault::Nan(n)),
            "device" => Ok(Fault::Device(n)),
            _ => Err(wrong()),
        }
    }
}
