//! What a backend must offer.

pub mod backend;

mod bytes;
mod owner;

pub mod allocator;
mod ledger;
mod marks;
mod oom;
pub mod process;
pub mod properties;

pub use allocator::{
    Allocator, AllocatorId, BestFit, Block, Damage, DamageKind, Debug, Failing, Growth, GrowthWatch,
    HostMemory, Lease, ReleaseError, ReserveError, Stats, System,
};
pub use bytes::{Bytes, ParseBytesError};
pub use ledger::{Ledger, LedgerError, Row};
pub use marks::{HostMarks, Marks, no_point};
pub use oom::{HOLDERS_IN_AN_ERROR, Holder, OutOfMemory, Verdict};
pub use owner::{Owner, Site};
pub use plimsoll_record::Kind;
pub use properties::Properties;
