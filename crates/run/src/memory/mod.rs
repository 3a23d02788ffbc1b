//! Memory limits as data: what stands beside a step's arena, and how a refusal reads.

mod fixed;
mod host;
mod refusal;

pub use fixed::FixedMemory;
pub use host::{HostAccount, HostInfeasible};
pub(crate) use refusal::Refusal;
pub use refusal::Remedy;
