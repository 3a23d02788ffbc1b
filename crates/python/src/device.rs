//! Turns a device's name into the device, which is made once, with its threads.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use plimsoll::prelude::Device;

use crate::errors::Failure;

/// The device of a name: `cpu`, `cuda`, `cuda:1`.
pub fn device(name: &str) -> Result<Device, Failure> {
    static DEVICES: Mutex<Option<HashMap<String, Device>>> = Mutex::new(None);
    // Both are the same card, and tensors of two devices do not go together.
    let name = if name == "cuda" { "cuda:0" } else { name };
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let devices = devices.get_or_insert_default();
    if let Some(known) = devices.get(name) {
        return Ok(known.clone());
    }
    let made = plimsoll_cli::shared::device(name).map_err(Failure::Plain)?;
    Ok(devices.entry(name.into()).or_insert(made).clone())
}
