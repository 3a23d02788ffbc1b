//! Ranks whose values lie on cards: NCCL's calls on device pointers, on a stream of their own, behind the same trait.
//!
//! The order of additions is NCCL's own, so that bits are those of NCCL and not of the other backends. Calls are queued on that stream in
//! the order in which they are started; no header is exchanged for each, so ranks compare their plans before ([`crate::agree`]).

mod library;
mod on_cards;

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::call::{Call, Kind};
use crate::check::check;
use crate::collectives::Collectives;
use crate::communicator::{Buffers, Communicator, Ticket, Traffic};
use crate::error::{CommError, Result};
use crate::schedule::Schedule;
use crate::shard::shard;
use library::{Driver, Nccl, Opaque, data_type, reduction};
pub use on_cards::OnCards;

/// Names the library where it is not in the loader's path.
pub const LIBRARY_VARIABLE: &str = "PLIMSOLL_NCCL";

/// An event that takes no time (`CU_EVENT_DISABLE_TIMING`), and what a query says of one that has not come (`CUDA_ERROR_NOT_READY`).
const NO_TIMING: u32 = 2;
const NOT_READY: c_int = 600;

/// A stream that does not wait for the context's default one (`CU_STREAM_NON_BLOCKING`).
const NON_BLOCKING: u32 = 1;

/// NCCL with its version, and the driver; what is missing, otherwise.
fn load() -> Result<(String, Nccl, Driver), String> {
    let path = std::env::var(LIBRARY_VARIABLE).ok().filter(|path| !path.is_empty());
    let nccl = Nccl::load(path.as_deref())?;
    Ok((nccl.version()?, nccl, Driver::load()?))
}

/// Ranks connected by NCCL.
pub struct Cards<C: Communicator> {
    nccl: Nccl,
    driver: Driver,
    name: String,
    communicator: Opaque,
    stream: Opaque,
    host: Arc<C>,
    timeout: Duration,
    own_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tickets: u64,
    events: HashMap<u64, (Opaque, Call)>,
    traffic: Traffic,
    failed: Option<CommError>,
}

// SAFETY: handles of thread-safe libraries; events and calls are used under the lock.
unsafe impl<C: Communicator> Send for Cards<C> {}
// SAFETY: as above.
unsafe impl<C: Communicator> Sync for Cards<C> {}

impl<C: Communicator> Cards<C> {
    /// Connects the cards of ranks that are connected on the host already. `held` says how many bytes of its card this process holds: what NCCL
    /// takes for itself is measured ([`Communicator::own_bytes`]).
    ///
    /// Calls go on a stream of their own, so that kernels run beside them: what a call reads is there before it is started, and whoever reads its
    /// result waits for it first.
    ///
    /// # Safety
    /// The context of the card is current on this thread and on every one that makes calls, and outlives this.
    ///
    /// # Errors
    /// A library is missing, or NCCL refuses; the other ranks hear of it. A rank that ends while NCCL connects them is not seen by this: NCCL waits
    /// for it.
    pub unsafe fn connect(host: Arc<C>, timeout: Duration, held: &dyn Fn() -> u64) -> Result<Cards<C>> {
        let (version, nccl, driver) = load().map_err(|why| {
            let why = format!(
                "cards of several ranks need NCCL and the driver of NVIDIA: {why}; install libnccl2, or name it with {LIBRARY_VARIABLE}=PATH"
            );
            host.stop(&why);
            CommError::Start(why)
        })?;
        let refused = |why: String| {
            host.stop(&why);
            CommError::Start(format!("NCCL {version}: {why}"))
        };
        let mut id = match host.rank() {
            0 => nccl.unique_id().map_err(refused)?,
            _ => library::UniqueId([0; 128]),
        };
        // NCCL waits for all ranks without end; here they are seen to be there first.
        host.broadcast(0, &mut id.0)?;
        host.barrier()?;
        let before = held();
        let mut communicator = std::ptr::null_mut();
        let (rank, ranks) = (host.rank() as c_int, host.ranks() as c_int);
        // SAFETY: the id of rank 0 on all ranks, and a place for the communicator.
        let code = unsafe { (nccl.comm_init_rank)(&mut communicator, ranks, id, rank) };
        nccl.check("ncclCommInitRank", code).map_err(refused)?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for the stream; the caller promises a context.
        let code = unsafe { (driver.stream_create)(&mut stream, NON_BLOCKING) };
        if code != 0 {
            // SAFETY: nothing was called of it.
            unsafe { (nccl.comm_abort)(communicator) };
            return Err(refused(format!("cuStreamCreate failed with {code}")));
        }
        let own_bytes = held().saturating_sub(before);
        let name = format!("NCCL {version}");
        let state = Mutex::default();
        Ok(Cards { nccl, driver, name, communicator, stream, host, timeout, own_bytes, state })
    }

    /// The ranks as they are connected on the host.
    pub fn host(&self) -> &C {
        &self.host
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a call on the stream.
    fn queue(&self, call: &Call, buffers: &Buffers, dtype: c_int) -> Result<(), String> {
        let (nccl, comm, stream) = (&self.nccl, self.communicator, self.stream);
        let (input, output) =
            (buffers.input.cast::<std::ffi::c_void>(), buffers.output.cast::<std::ffi::c_void>());
        let (n, size) = (self.ranks(), call.dtype.bytes());
        let is_even = call.len.is_multiple_of(n);
        let at = |rank: usize| shard(call.len, n, rank).start * size;
        // SAFETY: the caller of `start` promises device memory of these lengths; offsets stay within them.
        unsafe {
            match call.kind {
                Kind::AllReduce(reduce) => {
                    let code =
                        (nccl.all_reduce)(input, output, call.len, dtype, reduction(reduce), comm, stream);
                    nccl.check("ncclAllReduce", code)
                }
                Kind::ReduceScatter(reduce) if is_even => {
                    let op = reduction(reduce);
                    let code = (nccl.reduce_scatter)(input, output, call.len / n, dtype, op, comm, stream);
                    nccl.check("ncclReduceScatter", code)
                }
                Kind::ReduceScatter(reduce) => self.each(|rank| {
                    let (from, len) = (input.wrapping_byte_add(at(rank)), shard(call.len, n, rank).len());
                    let op = reduction(reduce);
                    let code = (nccl.reduce)(from, output, len, dtype, op, rank as c_int, comm, stream);
                    nccl.check("ncclReduce", code)
                }),
                Kind::AllGather if is_even => {
                    let code = (nccl.all_gather)(input, output, call.len / n, dtype, comm, stream);
                    nccl.check("ncclAllGather", code)
                }
                Kind::AllGather => self.each(|rank| {
                    let (to, len) = (output.wrapping_byte_add(at(rank)), shard(call.len, n, rank).len());
                    let code = (nccl.broadcast)(input, to, len, dtype, rank as c_int, comm, stream);
                    nccl.check("ncclBroadcast", code)
                }),
                Kind::Broadcast { root } => {
                    let code = (nccl.broadcast)(input, output, call.len, dtype, root as c_int, comm, stream);
                    nccl.check("ncclBroadcast", code)
                }
                Kind::Send { to } => {
                    nccl.check("ncclSend", (nccl.send)(input, call.len, dtype, to as c_int, comm, stream))
                }
                Kind::Receive { from } => {
                    nccl.check("ncclRecv", (nccl.recv)(output, call.len, dtype, from as c_int, comm, stream))
                }
                Kind::Barrier => Ok(()),
            }
        }
    }

    /// Something for every rank, as one call of the library.
    fn each(&self, mut run: impl FnMut(usize) -> Result<(), String>) -> Result<(), String> {
        // SAFETY: a group is ended where it is begun, whatever happens between.
        self.nccl.check("ncclGroupStart", unsafe { (self.nccl.group_start)() })?;
        let all = (0..self.ranks()).try_for_each(&mut run);
        // SAFETY: as above.
        let ended = self.nccl.check("ncclGroupEnd", unsafe { (self.nccl.group_end)() });
        all.and(ended)
    }

    fn fail(&self, state: &mut State, error: CommError) -> CommError {
        // SAFETY: aborting ends what is queued; nothing is queued afterwards, since `failed` is set.
        unsafe { (self.nccl.comm_abort)(self.communicator) };
        self.host.stop(&error.to_string());
        state.failed = Some(error.clone());
        error
    }

    fn look(&self, state: &mut State, ticket: &Ticket) -> Result<bool> {
        let Some((event, call)) = state.events.get(&ticket.0).copied() else { return Ok(true) };
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let mut said = 0;
        // SAFETY: an event of this call, and the communicator.
        let (code, asked) = unsafe {
            ((self.driver.event_query)(event), (self.nccl.comm_get_async_error)(self.communicator, &mut said))
        };
        let fault = match code {
            0 | NOT_READY => {
                self.nccl.check("ncclCommGetAsyncError", if asked == 0 { said } else { asked }).err()
            }
            code => Some(format!("cuEventQuery failed with {code}")),
        };
        // Another rank may have said why before this one sees anything.
        if let Err(error) = self.host.progress() {
            return Err(self.fail(state, error));
        }
        if let Some(why) = fault {
            let error = CommError::Transport { rank: self.rank(), doing: call.to_string(), why };
            return Err(self.fail(state, error));
        }
        if code == 0 {
            state.events.remove(&ticket.0);
            // SAFETY: nobody else knows it.
            unsafe { (self.driver.event_destroy)(event) };
        }
        Ok(code == 0)
    }
}

impl<C: Communicator> Communicator for Cards<C> {
    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn ranks(&self) -> usize {
        self.host.ranks()
    }

    fn backend(&self) -> &str {
        &self.name
    }

    fn is_on_host(&self) -> bool {
        false
    }

    /// NCCL has its own, which is part of [`Communicator::own_bytes`].
    fn scratch_bytes(&self, _call: &Call) -> usize {
        0
    }

    unsafe fn start(&self, call: &Call, buffers: Buffers) -> Result<Ticket> {
        let schedule = Schedule::new(*call, self.rank(), self.ranks());
        // All but scratch, of which none is needed.
        check(
            call,
            &schedule,
            &Buffers { scratch: 8 as *mut u8, scratch_bytes: schedule.scratch_bytes(), ..buffers },
        )?;
        let Some(dtype) = data_type(call.dtype) else {
            return Err(CommError::Invalid {
                call: call.to_string(),
                why: format!("NCCL has no type {}", call.dtype),
            });
        };
        if call.kind == Kind::Barrier {
            self.host.barrier()?;
        }
        let mut state = self.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let mut event = std::ptr::null_mut();
        let queued = self.queue(call, &buffers, dtype).and_then(|()| {
            // SAFETY: a place for the event, and the stream of this communicator.
            let codes = unsafe {
                (
                    (self.driver.event_create)(&mut event, NO_TIMING),
                    (self.driver.event_record)(event, self.stream),
                )
            };
            if codes == (0, 0) { Ok(()) } else { Err(format!("an event cannot be recorded: {codes:?}")) }
        });
        if let Err(why) = queued {
            let error = CommError::Transport { rank: self.rank(), doing: call.to_string(), why };
            return Err(self.fail(&mut state, error));
        }
        let (sent, received) = schedule.traffic();
        state.traffic.sent += sent;
        state.traffic.received += received;
        state.traffic.messages += 1;
        let ticket = state.tickets;
        state.tickets += 1;
        state.events.insert(ticket, (event, *call));
        Ok(Ticket(ticket))
    }

    fn test(&self, ticket: &Ticket) -> Result<bool> {
        self.look(&mut self.state(), ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut state = self.state();
            if self.look(&mut state, &ticket)? {
                return Ok(());
            }
            if start.elapsed() >= self.timeout {
                let doing = state.events.get(&ticket.0).map(|(_, call)| call.to_string()).unwrap_or_default();
                let why = format!(
                    "it is not complete after {} s: a rank hangs, has ended, or has not started it (the wait is bounded by the rank timeout)",
                    start.elapsed().as_secs_f64()
                );
                let error = CommError::Transport { rank: self.rank(), doing, why };
                return Err(self.fail(&mut state, error));
            }
            drop(state);
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    fn progress(&self) -> Result<bool> {
        self.host.progress()?;
        Ok(!self.state().events.is_empty())
    }

    fn stop(&self, reason: &str) {
        let mut state = self.state();
        if state.failed.is_none() {
            self.fail(&mut state, CommError::Stopped { by: self.rank(), reason: reason.into() });
        }
    }

    fn own_bytes(&self) -> u64 {
        self.own_bytes
    }

    fn traffic(&self) -> Traffic {
        self.state().traffic
    }
}

impl<C: Communicator> Drop for Cards<C> {
    fn drop(&mut self) {
        let has_more = !self.state().events.is_empty();
        if has_more {
            self.stop("it left with calls under way");
        }
        if self.state().failed.is_none() {
            // SAFETY: nothing is under way, and nothing is called afterwards.
            unsafe { (self.nccl.comm_destroy)(self.communicator) };
        }
        // SAFETY: the stream is this communicator's own, which is gone.
        unsafe { (self.driver.stream_destroy)(self.stream) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local;

    #[test]
    fn without_nccl_or_a_driver_a_sentence_says_what_is_missing_to_all() {
        if Nccl::load(None).and(Driver::load().map(|_| ())).is_ok() {
            return;
        }
        let mut ranks = local::ranks(2, Duration::from_secs(10));
        let other = ranks.remove(1);
        // SAFETY: there is no card, and so no call is made.
        let refused = unsafe { Cards::connect(Arc::new(ranks.remove(0)), Duration::from_secs(1), &|| 0) };
        let why = refused.err().unwrap().to_string();
        assert!(why.starts_with("cards of several ranks need NCCL and the driver of NVIDIA: lib"), "{why}");
        let heard = other.barrier().unwrap_err().to_string();
        assert!(heard.starts_with("rank 0 stopped: cards of several ranks need NCCL"), "{heard}");
    }

    #[test]
    fn types_and_versions_are_those_of_nccl() {
        use plimsoll_graph::DType;
        let known: Vec<c_int> = DType::ALL.into_iter().filter_map(data_type).collect();
        assert_eq!(known, [7, 8, 9, 6, 4, 2, 0, 3, 1]);
        let path = std::env::var(LIBRARY_VARIABLE).ok();
        let Some(nccl) = plimsoll_testing::group("nccl", Nccl::load(path.as_deref())) else { return };
        let version = nccl.version().unwrap();
        assert!(version.starts_with("2.") && version.split('.').count() == 3, "{version}");
        assert_ne!(nccl.unique_id().unwrap().0, [0; 128]);
        assert!(
            nccl.check("ncclSend", 4).unwrap_err().starts_with("ncclSend failed with 4: invalid argument")
        );
    }
}
