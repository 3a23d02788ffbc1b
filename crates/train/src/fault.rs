//! Faults on order: a failed allocation, a batch that is not finite, a device that is lost, to rehearse what happens then.

use std::fmt;
use std::str::FromStr;

use plimsoll_graph::{DType, TensorOps};
use plimsoll_run::Tensor;

use crate::error::{Error, Result};

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

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Alloc(n) => write!(f, "alloc:{n}"),
            Fault::Nan(n) => write!(f, "nan:{n}"),
            Fault::Device(n) => write!(f, "device:{n}"),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Fault, String> {
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

/// What a device says that failed for good, as far as a rehearsal needs it.
pub(crate) fn lost_device() -> Error {
    let why = "the device failed, as was asked for, and nothing can be read from it any more";
    let fault = plimsoll_device::backend::Fault::new("device", why);
    Error::Run(plimsoll_run::Error::Fault { fault, site: plimsoll_graph::Site::here() })
}

/// Makes the first number of the first floating-point input none.
pub(crate) fn poison(inputs: &mut [Tensor]) -> Result<()> {
    let Some(input) = inputs.iter_mut().find(|input| input.dtype().is_float()) else { return Ok(()) };
    let nan: &[u8] = match input.dtype() {
        DType::F32 => &f32::NAN.to_ne_bytes(),
        DType::F64 => &f64::NAN.to_ne_bytes(),
        DType::BF16 => &0x7fc0u16.to_ne_bytes(),
        _ => &0x7e00u16.to_ne_bytes(),
    };
    let mut bytes = input.to_bytes()?;
    bytes[..nan.len()].copy_from_slice(nan);
    Ok(input.set_bytes(&bytes)?)
}
