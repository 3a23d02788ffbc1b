//! Devices, their memory, and what they say when memory runs out.
//!
//! [`Device`] is where tensors live and ops run. [`OutOfMemory`] is the error of an eager op that found no room: who asked, who holds
//! the rest, and whether it was fragmentation. An allocator of your own implements [`Allocator`].

#[doc(inline)]
pub use plimsoll_device::{
    Allocator, AllocatorId, AllocatorKind, BestFit, Block, Bytes, Damage, DamageKind, Debug, Failing, Growth,
    Holder, HostMemory, Lease, Ledger, LibraryBytes, OutOfMemory, Owner, Pages, ParseBytesError, Pool,
    Properties, ReleaseError, ReserveError, Row, Site, Stats, System, Verdict,
};
#[doc(inline)]
pub use plimsoll_run::{
    Counted, CudaOptions, Device, Kind, MemoryInfo, Placement, Profile, Survey, Traffic, on_device,
};

/// The parts of [`Properties`].
pub mod properties {
    #[doc(inline)]
    pub use plimsoll_device::properties::{Card, Compute, HoldingProcess, LibraryFound, Memory, PcieLink};
}

/// What the system says of this process: its memory and its processors.
pub mod process {
    #[doc(inline)]
    pub use plimsoll_device::process::{
        allowed_cpus, available_memory, cpu_time, memory_limit, peak_resident, resident,
    };
}
