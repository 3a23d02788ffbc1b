//! What devices this machine has, and what is known of each.

use std::path::Path;

use plimsoll_cuda::Cuda;
use plimsoll_device::Properties;

use super::Device;
use super::costs::measured_link;
use crate::error::{Error, Result};

/// The devices of a machine.
#[derive(Clone, Debug)]
pub struct Survey {
    /// What is known of each: the CPU first, then the cards.
    pub devices: Vec<Properties>,
    /// Why there is no card, where there is none: a library that was not found, a driver that is too old.
    pub no_card: Option<String>,
    /// Whether there is a card that cannot be used: the PCI bus has one, or the environment hides it.
    pub has_unusable_card: bool,
}

impl Device {
    /// What this device is, in figures: its memory and who holds it, what it computes with, which libraries were found.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let cpu = Device::cpu()?.properties();
    /// assert_eq!(cpu.name, "cpu");
    /// assert!(cpu.compute.allowed_cores >= 1 && cpu.compute.cores >= cpu.compute.allowed_cores);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn properties(&self) -> Properties {
        let backend = self.backend();
        let mut properties = backend.properties();
        if let Some(card) = &mut properties.card {
            card.measured_link = self.costs().timed_link(self.backend());
        }
        properties
    }

    /// The number of cards of this machine that can be used: none where there is no driver.
    pub fn cards() -> usize {
        Cuda::count().unwrap_or(0)
    }

    /// All devices of this machine. Nothing is run, and no memory of a card is taken. `cache` is where kernel times are kept
    /// ([`Device::calibrate`]): the speed of a card's link is read there, where it has been measured.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let survey = Device::survey(None)?;
    /// assert_eq!(survey.devices[0].name, "cpu");
    /// assert_eq!(survey.devices.len() == 1, survey.no_card.is_some());
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    ///
    /// # Errors
    /// The CPU cannot be used: the system gives no thread.
    pub fn survey(cache: Option<&Path>) -> Result<Survey> {
        let mut devices = vec![Device::cpu_threads(1)?.backend().properties()];
        let (no_card, has_unusable_card) = match Cuda::survey() {
            Ok(cards) => {
                devices.extend(cards);
                (None, false)
            }
            Err(why) => {
                let is_hidden = matches!(why, plimsoll_cuda::Error::NoCard { is_hidden: true });
                let on_bus = Cuda::cards_on_bus();
                let bus = match on_bus {
                    0 => String::new(),
                    n => format!(" (the PCI bus has {} of NVIDIA's)", plimsoll_graph::counted(n, "card")),
                };
                (Some(Error::from(why).to_string() + &bus), is_hidden || on_bus > 0)
            }
        };
        if let Some(folder) = cache {
            for device in devices.iter_mut() {
                let signature = format!("cuda {} {} ", device.model, device.compute.kernels);
                if let Some(card) = &mut device.card {
                    card.measured_link = measured_link(folder, &signature);
                }
            }
        }
        Ok(Survey { devices, no_card, has_unusable_card })
    }
}
