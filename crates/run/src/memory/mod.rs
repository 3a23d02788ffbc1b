//! Memory limits as data: what stands beside a step's arena, and how a refusal reads.

mod account;
mod refusal;

pub use account::Account;
pub(crate) use refusal::Refusal;
pub use refusal::Way;
