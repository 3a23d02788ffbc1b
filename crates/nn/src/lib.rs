//! Turns layers into models and models into training steps.
//!
//! A model is a function over a [`Net`], which hands it its parameters by name. [`Training`] traces it once with its
//! loss, gradient and optimizer into one step.
//!
//! What is not here: files, devices, memory plans.

mod init;
mod layers;
mod net;

mod adam;
mod training;

pub mod zoo;

pub use adam::Adam;
pub use init::Init;
pub use layers::{Conv2d, Layers};
pub use net::{Net, Param};
pub use training::{Loss, Recipe, Training, mean_cross_entropy};
