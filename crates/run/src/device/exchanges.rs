//! Exchanges with other ranks as kernels of a device: what is planned, timed and run like any op.

use std::sync::Arc;

use plimsoll_device::backend::{Backend, Call, Fault, Recording, Speed, Unsupported};
use plimsoll_device::{Exchanged, Peers, RankTraffic};
use plimsoll_graph::ops::{Exchange, Rank};
use plimsoll_graph::{Op, Type};

use super::Device;
use super::host_ops::HostOps;

/// What stands for an exchange that is over when it is started.
const OVER: u64 = u64::MAX;

/// The kernels of exchanges, over memory of a device.
#[derive(Debug)]
pub(crate) struct Exchanges {
    device: Arc<dyn Backend>,
    peers: Arc<dyn Peers>,
    name: String,
    /// Where ranks exchange what is in the host's memory and the device has its own: the same over copies there.
    staged: Option<HostOps>,
}

impl Device {
    /// The same device, kernels and memory, as one rank among others: exchanges in what it runs are theirs.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use plimsoll_comm::{Connected, local};
    /// use plimsoll_graph::{ExchangeOps, ops::Rank};
    /// use plimsoll_run::{Device, Tensor};
    /// std::thread::scope(|threads| {
    ///     for rank in local::ranks(2, Duration::from_secs(10)) {
    ///         threads.spawn(move || {
    ///             let peers = Arc::new(Connected::new(rank).unwrap());
    ///             let device = Device::cpu_with(1, "8MiB".parse().unwrap()).unwrap().with_ranks(peers);
    ///             let of = device.rank();
    ///             let sum = device.scope(|| Tensor::from_slice(&[1.0f32, of.rank as f32], [2])?.all_reduce(of));
    ///             assert_eq!(sum.unwrap().to_vec::<f32>().unwrap(), [2.0, 1.0]);
    ///         });
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn with_ranks(&self, peers: Arc<dyn Peers>) -> Device {
        let mut device = self.alike(self.0.memory.clone());
        let name = format!("{}, {}", self.name(), peers.by());
        let own = self.0.backend.clone();
        let staged = match peers.is_on_host() && !own.is_host() {
            // Without a processor there would be no program.
            true => Device::default_cpu().ok().map(|cpu| {
                let (device, name, peers) = (cpu.0.backend.clone(), name.clone(), peers.clone());
                HostOps::new(own.clone(), Arc::new(Exchanges { device, peers, name, staged: None }))
            }),
            false => None,
        };
        device.exchanges = Some(Exchanges { device: own, peers, name, staged });
        Device(Arc::new(device))
    }

    /// The ranks it is one of, where it is.
    pub fn ranks(&self) -> Option<&Arc<dyn Peers>> {
        self.0.exchanges.as_ref().map(|exchanges| &exchanges.peers)
    }

    /// Which rank it is, and of how many: of one where it is connected to nobody.
    pub fn rank(&self) -> Rank {
        self.ranks().map_or(Rank::ONLY, |peers| peers.rank())
    }

    /// What it sent to other ranks and received from them.
    pub fn rank_traffic(&self) -> RankTraffic {
        self.ranks().map_or(RankTraffic::default(), |peers| peers.traffic())
    }

    /// Starts an exchange with other ranks: the number to wait for it by.
    ///
    /// # Safety
    /// As of a kernel's run, until [`Device::finish_exchange`] has returned.
    pub(crate) unsafe fn start_exchange(&self, call: &Call<'_>) -> Result<u64, Fault> {
        let (Some(exchanges), Op::Exchange(exchange), [x, ..], [y, ..]) =
            (self.exchanges(), call.op, call.inputs, call.outputs)
        else {
            let why = "this device is connected to no other ranks; run it on Device::with_ranks";
            return Err(Fault::new(call.op.name(), why));
        };
        if let Some(staged) = &exchanges.staged {
            // SAFETY: the caller's promise.
            unsafe { staged.run(call) }?;
            return Ok(OVER);
        }
        // Whatever was queued before has made the values.
        exchanges.device.synchronize()?;
        // SAFETY: the caller's promise.
        unsafe { exchanges.peers.start(exchange, Exchanged { x: *x, y: *y, scratch: call.scratch() }) }
    }

    /// Waits for an exchange that was started.
    pub(crate) fn finish_exchange(&self, started: u64) -> Result<(), Fault> {
        if started == OVER {
            return Ok(());
        }
        self.ranks().map_or(Ok(()), |peers| peers.finish(started))
    }

    /// Moves exchanges along that were started, without waiting.
    pub(crate) fn move_exchanges_along(&self) {
        if let Some(peers) = self.ranks() {
            peers.move_along();
        }
    }

    /// Ends all exchanges that were started, of all ranks: none can go on.
    pub(crate) fn abandon_exchanges(&self, why: &str) {
        if let Some(peers) = self.ranks() {
            peers.stop(why);
        }
    }

    /// The kernels of exchanges, where it is connected to other ranks.
    pub(super) fn exchanges(&self) -> Option<&Exchanges> {
        self.0.exchanges.as_ref()
    }
}

impl Exchanges {
    /// Whether values go to the host and back for it.
    pub(super) fn is_staged(&self) -> bool {
        self.staged.is_some()
    }

    /// The copies on the host that it is done over, where it is.
    pub(super) fn staged(&self) -> Option<&HostOps> {
        self.staged.as_ref()
    }

    /// The exchange that an op is, if it is one of these ranks.
    fn of<'o>(&self, op: &'o Op, types: &[&Type]) -> Result<&'o Exchange, Unsupported> {
        let own = self.peers.rank();
        let why = match op {
            Op::Exchange(_) if !self.is_staged() && self.peers.is_on_host() != self.device.is_host() => {
                "ranks exchange values that are on a card; run them there (--device cuda)".into()
            }
            Op::Exchange(exchange) if exchange.of.is_in(own) => return Ok(exchange),
            Op::Exchange(exchange) => {
                let Rank { rank, ranks, .. } = exchange.of;
                format!("it is of rank {rank} of {ranks}, and this is rank {} of {}", own.rank, own.ranks)
            }
            _ => "it exchanges nothing".to_string(),
        };
        let types = types.iter().map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ");
        Err(Unsupported { device: self.name.clone(), op: op.name(), types, why })
    }
}

impl Backend for Exchanges {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> String {
        format!("{} of {} by {}", self.device.signature(), self.peers.rank().ranks, self.peers.by())
    }

    fn times_prefix(&self) -> &'static str {
        "between ranks "
    }

    fn speed(&self) -> Speed {
        self.device.speed()
    }

    fn predict(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> f64 {
        if let Some(staged) = &self.staged {
            return staged.predict(op, inputs, outputs);
        }
        match (op, inputs) {
            (Op::Exchange(exchange), [x, ..]) => self.peers.seconds(exchange, x) + self.speed().call,
            _ => self.device.predict(op, inputs, outputs),
        }
    }

    fn scratch(&self, op: &Op, inputs: &[&Type], _: &[&Type]) -> Result<usize, Unsupported> {
        let exchange = self.of(op, inputs)?;
        if self.is_staged() {
            return Ok(0);
        }
        Ok(inputs.first().map_or(0, |x| self.peers.scratch(exchange, x)))
    }

    fn prepare(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<(), Fault> {
        self.staged.as_ref().map_or(Ok(()), |staged| staged.prepare(op, inputs, outputs))
    }

    unsafe fn run(&self, call: &Call<'_>) -> Result<(), Fault> {
        if let Some(staged) = &self.staged {
            // SAFETY: the caller's promise.
            return unsafe { staged.run(call) };
        }
        let (Op::Exchange(exchange), [x, ..], [y, ..]) = (call.op, call.inputs, call.outputs) else {
            return Err(Fault::new(call.op.name(), "it exchanges nothing"));
        };
        // Whatever was queued before has made the values.
        self.device.synchronize()?;
        // SAFETY: the caller's promise.
        unsafe { self.peers.exchange(exchange, Exchanged { x: *x, y: *y, scratch: call.scratch() }) }
    }

    fn is_host(&self) -> bool {
        self.device.is_host()
    }

    /// What waits for other ranks cannot be recorded.
    fn record(&self, _: &mut dyn FnMut() -> Result<(), Fault>) -> Result<Option<Box<dyn Recording>>, Fault> {
        Ok(None)
    }
}
