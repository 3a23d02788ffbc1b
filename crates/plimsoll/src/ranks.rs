//! Several ranks, processes or threads, that train one model together: connected, and handed to a device.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use plimsoll::prelude::*;
//! use plimsoll::ranks::{Connected, local};
//!
//! // Two threads here; `connect` joins processes that mpirun, torchrun or srun started.
//! std::thread::scope(|threads| {
//!     for rank in local::ranks(2, Duration::from_secs(10)) {
//!         threads.spawn(move || {
//!             let device = Device::cpu_with(1, "64MiB".parse()?)?.with_ranks(Arc::new(Connected::new(rank)?));
//!             let x = Column::memory("x", (0..40).map(|i| i as f32 / 20.0).collect::<Vec<f32>>(), [2])?;
//!             let y = Column::memory("y", (0..20).map(|i| i % 2).collect::<Vec<i64>>(), [])?;
//!             let data = Dataset::columns([x, y])?.batch(6); // 3 for each rank, of the last one 1
//!             let model = Sequential::new([2]).dense(4).relu().dense(2);
//!             let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2)).device(device);
//!             trainer.fit(&data, Epochs(2))?;
//!             Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//!         });
//!     }
//! });
//! ```

#[doc(inline)]
pub use plimsoll_comm::{
    CommError, Communicator, Connected, Imagined, Launch, Link, Machine, OnCards, RANK_TIMEOUT, Ranks,
    Topology, connect, connect_as, local,
};
#[doc(inline)]
pub use plimsoll_device::{Peers, RankTraffic};
#[doc(inline)]
pub use plimsoll_graph::ExchangeOps;
#[doc(inline)]
pub use plimsoll_graph::ops::Rank;
