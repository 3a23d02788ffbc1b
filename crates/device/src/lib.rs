//! What a backend must offer.

pub mod backend;

mod bytes;
mod owner;

pub mod allocator;
mod disk;
mod ledger;
mod marks;
mod oom;
mod peers;
pub mod process;
pub mod properties;
pub mod stopwatch;

pub use allocator::{
    Allocator, AllocatorId, AllocatorKind, BestFit, Block, Damage, DamageKind, Debug, Failing, Growth,
    GrowthWatch, Holes, HostMemory, HostPages, Idle, Lease, NoAllocator, NoPages, NoRemapping, PageSource,
    Paged, Pages, PagesWanted, Pool, ReleaseError, ReserveError, Stats, System, holders,
};
pub use bytes::{Bytes, ParseBytesError};
pub use disk::{Disk, DiskArena, DiskBlock, NoDisk};
pub use ledger::{Ledger, LedgerError, Row};
pub use marks::{HostMarks, Marks, no_point};
pub use oom::{HOLDERS_IN_AN_ERROR, Holder, OutOfMemory, Verdict};
pub use owner::{Owner, Site};
pub use peers::{Exchanged, Peers, RankTraffic};
pub use plimsoll_record::Kind;
pub use properties::{LibraryBytes, Properties};
