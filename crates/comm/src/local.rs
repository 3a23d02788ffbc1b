//! Ranks that are threads of one process: a message is one copy, from where the sender has it to where the receiver wants it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ranks::Ranks;
use crate::transport::{Fault, PointToPoint, Tag, TransferId};

/// As many ranks as asked for, each for a thread of its own.
///
/// ```
/// use std::time::Duration;
/// use plimsoll_comm::{Collectives, Communicator, Reduce, local};
/// let ranks = local::ranks(3, Duration::from_secs(10));
/// std::thread::scope(|threads| {
///     for rank in ranks {
///         threads.spawn(move || {
///             let mut values = [rank.rank() as f32, 1.0];
///             rank.all_reduce(Reduce::Sum, &mut values).unwrap();
///             assert_eq!(values, [3.0, 3.0]);
///         });
///     }
/// });
/// ```
pub fn ranks(n: usize, timeout: Duration) -> Vec<Ranks> {
    let world = Arc::new(World { state: Mutex::default(), changed: Condvar::new() });
    world.state().notices.resize_with(n, VecDeque::new);
    world.state().has_left.resize(n, false);
    let rank = |rank| Local { rank, ranks: n, world: Arc::clone(&world), seen: AtomicU64::new(0) };
    (0..n).map(|r| Ranks::new(Box::new(rank(r)), timeout)).collect()
}

struct World {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: u64,
    transfers: HashMap<TransferId, Transfer>,
    /// Sends and receives that have not met: by sender, receiver and tag, in order.
    queues: HashMap<(usize, usize, Tag), [VecDeque<TransferId>; 2]>,
    notices: Vec<VecDeque<Vec<u8>>>,
    has_left: Vec<bool>,
    /// Goes up with everything that others may wait for.
    changes: u64,
}

struct Transfer {
    key: (usize, usize, Tag),
    is_send: bool,
    bytes: *mut u8,
    len: usize,
    stage: Stage,
}

#[derive(Clone, PartialEq)]
enum Stage {
    /// Waits for its counterpart.
    Alone,
    /// A receive that has met this send, which it may copy from.
    Met(TransferId),
    /// Its bytes are being copied, or are about to be, by the receiver.
    Busy,
    Done,
    Failed(Fault),
}

// SAFETY: the pointers are used only while the ranks that handed them over wait for their transfers.
unsafe impl Send for Transfer {}

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, state: &mut State) {
        state.changes += 1;
        self.changed.notify_all();
    }
}

impl State {
    /// Brings a send and a receive together where both are there.
    fn meet(&mut self, key: (usize, usize, Tag)) {
        let Some([sends, receives]) = self.queues.get_mut(&key) else { return };
        while let (Some(send), Some(receive)) = (sends.front().copied(), receives.front().copied()) {
            sends.pop_front();
            receives.pop_front();
            let lens = [send, receive].map(|id| self.transfers.get(&id).map_or(0, |transfer| transfer.len));
            let stages = if lens[0] == lens[1] {
                [Stage::Busy, Stage::Met(send)]
            } else {
                let fault =
                    |i: usize| Fault::Length { expected: lens[i], found: format!("{} bytes", lens[1 - i]) };
                [Stage::Failed(fault(0)), Stage::Failed(fault(1))]
            };
            for (id, stage) in [send, receive].into_iter().zip(stages) {
                if let Some(transfer) = self.transfers.get_mut(&id) {
                    transfer.stage = stage;
                }
            }
        }
        if self.queues.get(&key).is_some_and(|queue| queue.iter().all(VecDeque::is_empty)) {
            self.queues.remove(&key);
        }
    }
}

struct Local {
    rank: usize,
    ranks: usize,
    world: Arc<World>,
    /// The changes of which this rank knows, since it looks at all it waits for after it has looked for notices.
    seen: AtomicU64,
}

impl Local {
    fn post(&self, key: (usize, usize, Tag), is_send: bool, bytes: *mut u8, len: usize) -> TransferId {
        let mut state = self.world.state();
        let id = TransferId(state.next);
        state.next += 1;
        state.transfers.insert(id, Transfer { key, is_send, bytes, len, stage: Stage::Alone });
        state.queues.entry(key).or_default()[usize::from(!is_send)].push_back(id);
        state.meet(key);
        self.world.change(&mut state);
        id
    }

    fn peer(&self, transfer: &Transfer) -> usize {
        if transfer.is_send { transfer.key.1 } else { transfer.key.0 }
    }
}

impl PointToPoint for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn name(&self) -> &str {
        "threads"
    }

    unsafe fn send(&self, to: usize, tag: Tag, bytes: *const u8, len: usize) -> Result<TransferId, Fault> {
        Ok(self.post((self.rank, to, tag), true, bytes.cast_mut(), len))
    }

    unsafe fn receive(&self, from: usize, tag: Tag, bytes: *mut u8, len: usize) -> Result<TransferId, Fault> {
        Ok(self.post((from, self.rank, tag), false, bytes, len))
    }

    fn is_done(&self, id: TransferId) -> Result<bool, Fault> {
        let mut state = self.world.state();
        let Some(transfer) = state.transfers.get_mut(&id) else { return Ok(true) };
        match transfer.stage.clone() {
            Stage::Alone => {
                let peer = self.peer(transfer);
                if !state.has_left[peer] {
                    return Ok(false);
                }
                drop(state);
                self.cancel(id);
                Err(Fault::Gone)
            }
            Stage::Busy => Ok(false),
            Stage::Done => {
                state.transfers.remove(&id);
                Ok(true)
            }
            Stage::Failed(fault) => {
                state.transfers.remove(&id);
                Err(fault)
            }
            Stage::Met(send) => {
                let (to, len) = (transfer.bytes, transfer.len);
                transfer.stage = Stage::Busy;
                let Some(from) = state.transfers.get(&send).map(|send| send.bytes) else { return Ok(false) };
                // Not under the lock: other pairs go on meanwhile. A sender that gives up waits for the end of it.
                drop(state);
                // SAFETY: both ranks promised these bytes until their transfers end, and both are busy.
                unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
                let mut state = self.world.state();
                if let Some(send) = state.transfers.get_mut(&send) {
                    send.stage = Stage::Done;
                }
                state.transfers.remove(&id);
                self.world.change(&mut state);
                Ok(true)
            }
        }
    }

    fn cancel(&self, id: TransferId) {
        let mut state = self.world.state();
        loop {
            let Some(transfer) = state.transfers.get(&id) else { return };
            let (key, is_send) = (transfer.key, transfer.is_send);
            match transfer.stage.clone() {
                Stage::Alone => {
                    if let Some(queue) = state.queues.get_mut(&key) {
                        queue[usize::from(!is_send)].retain(|waiting| *waiting != id);
                    }
                    break;
                }
                Stage::Met(send) => {
                    if let Some(send) = state.transfers.get_mut(&send) {
                        send.stage = Stage::Failed(Fault::Gone);
                    }
                    break;
                }
                // A send that was met and not yet copied: its receiver finds that it is gone.
                Stage::Busy if is_send => {
                    let receiver = state.transfers.values_mut().find(|other| other.stage == Stage::Met(id));
                    let Some(receiver) = receiver else {
                        state = self.world.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                        continue;
                    };
                    receiver.stage = Stage::Failed(Fault::Gone);
                    break;
                }
                Stage::Busy | Stage::Done | Stage::Failed(_) => break,
            }
        }
        state.transfers.remove(&id);
        self.world.change(&mut state);
    }

    fn tell(&self, to: usize, notice: &[u8]) {
        let mut state = self.world.state();
        state.notices[to].push_back(notice.to_vec());
        self.world.change(&mut state);
    }

    fn flush(&self) {}

    fn heard(&self) -> Option<Vec<u8>> {
        let mut state = self.world.state();
        self.seen.store(state.changes, Ordering::Relaxed);
        state.notices[self.rank].pop_front()
    }

    fn idle(&self, at_most: Duration) {
        let state = self.world.state();
        let seen = self.seen.load(Ordering::Relaxed);
        let is_same = |state: &mut State| state.changes == seen;
        drop(self.world.changed.wait_timeout_while(state, at_most, is_same));
    }

    fn leave(&self, _failed: bool) {
        let mut state = self.world.state();
        state.has_left[self.rank] = true;
        self.world.change(&mut state);
    }
}
