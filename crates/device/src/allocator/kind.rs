//! The allocators that can be chosen by name, on the CPU and on a card.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{BestFit, HostMemory, NoRemapping, Pages, Pool, ReserveError, System};
use crate::{Bytes, process};

/// How a device's memory is divided among eager tensors.
///
/// ```
/// use plimsoll_device::AllocatorKind;
/// assert_eq!("pages".parse(), Ok(AllocatorKind::Pages));
/// assert!("bfc".parse::<AllocatorKind>().unwrap_err().contains("best-fit, system, pages or pool"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocatorKind {
    /// One region, split by best fit and joined again: [`BestFit`]. What the CPU has without a word.
    BestFit,
    /// The system's own, block by block: `malloc`, or `cuMemAlloc` on a card.
    System,
    /// Pages that are mapped wherever they are wanted, so that no request fails for want of contiguity. What a card has without a word.
    Pages,
    /// Freed blocks are kept and handed out again: by size on the CPU, in the order of the stream (`cuMemAllocAsync`) on a card.
    Pool,
}

/// Why there is no allocator of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAllocator {
    /// Its region is too large.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// The system cannot move pages.
    #[error(transparent)]
    Pages(#[from] NoRemapping),
}

impl AllocatorKind {
    /// All of them.
    pub const ALL: [AllocatorKind; 4] =
        [AllocatorKind::BestFit, AllocatorKind::System, AllocatorKind::Pages, AllocatorKind::Pool];

    /// Its name, as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            AllocatorKind::BestFit => "best-fit",
            AllocatorKind::System => "system",
            AllocatorKind::Pages => "pages",
            AllocatorKind::Pool => "pool",
        }
    }

    /// One of this kind over the host's memory, with a limit; without one, limited by what the machine or its control group has.
    ///
    /// # Errors
    /// The system does not reserve so much, or cannot move pages.
    pub fn on_host(self, limit: Option<Bytes>) -> Result<Arc<dyn HostMemory>, NoAllocator> {
        let most = || limit.or_else(process::memory_limit).unwrap_or(Bytes::MAX);
        Ok(match (self, limit) {
            (AllocatorKind::BestFit, None) => Arc::new(BestFit::with_machine_limit()?),
            (AllocatorKind::BestFit, Some(limit)) => Arc::new(BestFit::new(limit)?),
            (AllocatorKind::System, _) => Arc::new(System::new(most())),
            (AllocatorKind::Pages, _) => Arc::new(Pages::new(most())?),
            (AllocatorKind::Pool, _) => Arc::new(Pool::new(most())),
        })
    }
}

impl fmt::Display for AllocatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AllocatorKind {
    type Err = String;

    fn from_str(name: &str) -> Result<AllocatorKind, String> {
        let known = AllocatorKind::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| format!("there is no allocator '{name}'; use best-fit, system, pages or pool"))
    }
}
