//! What a training on a device with memory of its own takes of the host's, as figures beside the host's own limit.

use plimsoll_device::Bytes;

use super::Remedy;
use super::refusal::HostRefusal;

/// The parts of the account of the host's memory. They add up to the most that the process will take of it (its resident set).
///
/// ```
/// use plimsoll_device::Bytes;
/// use plimsoll_run::HostAccount;
/// let account = HostAccount { program: Bytes::mib(700), staging: Bytes::mib(20), ..HostAccount::default() };
/// assert_eq!(account.planned(), Bytes::mib(720));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostAccount {
    /// The limit of the host's memory: the caller's, or what the machine or its control group has. None where the system does not say.
    pub limit: Option<Bytes>,
    /// Whether the caller named the limit.
    pub is_given: bool,
    /// The program's own pages, and those of the device's driver and libraries.
    pub program: Bytes,
    /// What input pipelines hold.
    pub pipeline: Bytes,
    /// Pinned memory from which batches are copied, and buffers through which weights are written and read.
    pub staging: Bytes,
    /// Pinned memory that activations are copied to.
    pub copies: Bytes,
    /// Optimizer state that lives in pinned memory.
    pub state: Bytes,
}

impl HostAccount {
    /// Everything but what a plan chooses to keep there.
    pub fn beside(&self) -> Bytes {
        self.program + self.pipeline + self.staging
    }

    /// Everything.
    pub fn planned(&self) -> Bytes {
        self.beside() + self.copies + self.state
    }

    /// Each part with its name, in one order everywhere.
    pub fn parts(&self) -> [(&'static str, Bytes); 5] {
        [
            ("program", self.program),
            ("pipeline", self.pipeline),
            ("staging", self.staging),
            ("copies", self.copies),
            ("state", self.state),
        ]
    }

    /// What is planned of the limit, in words.
    pub fn text(&self) -> String {
        let of = match (self.limit, self.is_given) {
            (None, _) => String::new(),
            (Some(limit), true) => format!(" of the host memory limit {limit}"),
            (Some(limit), false) => format!(" of {limit}, which is all that this machine gives"),
        };
        let parts = self.parts().into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO);
        let parts: Vec<String> = parts.map(|(name, bytes)| format!("{name} {bytes}")).collect();
        format!("host memory: {} planned{of} ({})", self.planned(), parts.join(", "))
    }
}

/// A limit of the host's memory that cannot be kept: what was asked, the least, who holds it, ways out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInfeasible {
    /// The account that is over its limit.
    pub account: HostAccount,
    /// The least limit that would do, with pipelines that take the least and nothing copied.
    pub least: Bytes,
    /// What else could be done, and the least that would do then.
    pub ways: Vec<Remedy>,
}

impl std::fmt::Display for HostInfeasible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HostInfeasible { account, least, ways } = self;
        f.write_str(&HostRefusal { account, least: *least, ways }.text())
    }
}

impl std::error::Error for HostInfeasible {}
