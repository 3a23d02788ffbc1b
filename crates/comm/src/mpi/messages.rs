//! Messages between ranks as calls of an MPI library.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::abi::Handle;
use super::library::{Library, Refused, Status};
use crate::transport::{Fault, NOTICE_BYTES, PointToPoint, TAGS, Tag, TransferId};

/// Notices have a tag of their own.
const NOTICES: c_int = TAGS as c_int;

/// How long a transfer that is given up may take to end.
const MANNERS: Duration = Duration::from_millis(200);

pub struct Mpi<H: Handle> {
    rank: usize,
    ranks: usize,
    name: String,
    own_bytes: u64,
    library: Library<H>,
    communicator: H,
    /// All calls of the library are made under this lock.
    state: Mutex<State<H>>,
}

struct State<H> {
    next: u64,
    transfers: HashMap<TransferId, Transfer<H>>,
    /// Notices on their way, with their bytes.
    notices: Vec<(H, Vec<u8>)>,
    /// How often nothing had moved when it was looked.
    idle: u32,
    is_over: bool,
    /// A receive was given up and has not ended: the library would write to bytes that are not ours any more, if it were called.
    is_stuck: bool,
}

struct Transfer<H> {
    request: H,
    is_receive: bool,
    len: usize,
}

impl<H: Handle> Mpi<H> {
    pub fn new(
        library: Library<H>,
        communicator: H,
        (rank, ranks): (usize, usize),
        name: &str,
        own_bytes: u64,
    ) -> Mpi<H> {
        let state = State {
            next: 0,
            transfers: HashMap::new(),
            notices: Vec::new(),
            idle: 0,
            is_over: false,
            is_stuck: false,
        };
        Mpi { rank, ranks, name: name.into(), own_bytes, library, communicator, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(
        &self,
        name: &str,
        is_receive: bool,
        len: usize,
        call: impl FnOnce(c_int, *mut H) -> c_int,
    ) -> Result<TransferId, Fault> {
        let count = c_int::try_from(len)
            .map_err(|_| Fault::Failed(format!("a message of {len} bytes is too long for MPI")))?;
        let mut state = self.state();
        let mut request = H::EMPTY;
        self.library.check(name, call(count, &mut request)).map_err(|refused| Fault::Failed(refused.text))?;
        state.next += 1;
        let id = TransferId(state.next);
        state.transfers.insert(id, Transfer { request, is_receive, len });
        Ok(id)
    }

    /// Whether a request is complete, and of how many bytes.
    fn test(&self, request: &mut H) -> Result<Option<usize>, Refused> {
        let (mut is_done, mut count) = (0, 0);
        let mut status = Status::new();
        // SAFETY: a request of this library, and places for what it says.
        unsafe {
            self.library.check("MPI_Test", (self.library.call.test)(request, &mut is_done, &mut status))?;
            if is_done == 0 {
                return Ok(None);
            }
            // Only of receives does it say something; for others it is not looked at.
            (self.library.call.get_count)(&status, self.library.fixed.byte, &mut count);
        }
        Ok(Some(count.max(0) as usize))
    }
}

impl<H: Handle> PointToPoint for Mpi<H> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn name(&self) -> &str {
        &self.name
    }

    unsafe fn send(&self, to: usize, tag: Tag, bytes: *const u8, len: usize) -> Result<TransferId, Fault> {
        self.post("MPI_Isend", false, len, |count, request| {
            let (byte, peer) = (self.library.fixed.byte, to as c_int);
            let (tag, among, isend) = (c_int::from(tag), self.communicator, self.library.call.isend);
            // SAFETY: the caller promises the bytes until the transfer ends.
            unsafe { isend(bytes.cast(), count, byte, peer, tag, among, request) }
        })
    }

    unsafe fn receive(&self, from: usize, tag: Tag, bytes: *mut u8, len: usize) -> Result<TransferId, Fault> {
        self.post("MPI_Irecv", true, len, |count, request| {
            let (byte, peer) = (self.library.fixed.byte, from as c_int);
            let (tag, among, irecv) = (c_int::from(tag), self.communicator, self.library.call.irecv);
            // SAFETY: as above.
            unsafe { irecv(bytes.cast(), count, byte, peer, tag, among, request) }
        })
    }

    fn is_done(&self, id: TransferId) -> Result<bool, Fault> {
        let mut state = self.state();
        let Some(transfer) = state.transfers.get_mut(&id) else { return Ok(true) };
        let (expected, is_receive) = (transfer.len, transfer.is_receive);
        let tested = self.test(&mut transfer.request);
        if let Ok(None) = tested {
            return Ok(false);
        }
        state.transfers.remove(&id);
        state.idle = 0;
        match tested {
            Ok(Some(found)) if is_receive && found != expected => {
                Err(Fault::Length { expected, found: format!("{found} bytes") })
            }
            Ok(_) => Ok(true),
            Err(refused) if refused.is_truncated => {
                Err(Fault::Length { expected, found: "more bytes".into() })
            }
            Err(refused) => Err(Fault::Failed(refused.text)),
        }
    }

    fn cancel(&self, id: TransferId) {
        let mut state = self.state();
        let Some(mut transfer) = state.transfers.remove(&id) else { return };
        // A send cannot be called back; its bytes are only read, and only within calls of this process.
        if transfer.is_receive {
            // SAFETY: a request of this library that is not complete.
            unsafe { (self.library.call.cancel)(&mut transfer.request) };
        }
        let deadline = Instant::now() + MANNERS;
        while matches!(self.test(&mut transfer.request), Ok(None)) {
            if state.is_stuck || Instant::now() >= deadline {
                state.is_stuck = true;
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn tell(&self, to: usize, notice: &[u8]) {
        let bytes = notice.to_vec();
        let mut request = H::EMPTY;
        let mut state = self.state();
        // SAFETY: the bytes are kept with the request.
        let code = unsafe {
            (self.library.call.isend)(
                bytes.as_ptr().cast(),
                bytes.len() as c_int,
                self.library.fixed.byte,
                to as c_int,
                NOTICES,
                self.communicator,
                &mut request,
            )
        };
        if code == 0 {
            state.notices.push((request, bytes));
        }
    }

    fn flush(&self) {
        let deadline = Instant::now() + Duration::from_millis(500);
        let mut state = self.state();
        while !state.notices.is_empty() && !state.is_stuck && Instant::now() < deadline {
            state.notices.retain_mut(|(request, _)| matches!(self.test(request), Ok(None)));
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn heard(&self) -> Option<Vec<u8>> {
        let mut state = self.state();
        state.notices.retain_mut(|(request, _)| matches!(self.test(request), Ok(None)));
        let (mut is_there, mut count) = (0, 0);
        let mut status = Status::new();
        let (call, byte) = (&self.library.call, self.library.fixed.byte);
        let mut bytes;
        // SAFETY: places for what is asked; nobody else takes the message between the two, since calls are made under the lock.
        let code = unsafe {
            let code = (call.iprobe)(H::ANY_SOURCE, NOTICES, self.communicator, &mut is_there, &mut status);
            if code != 0 || is_there == 0 {
                return None;
            }
            bytes = vec![0u8; NOTICE_BYTES];
            let room = NOTICE_BYTES as c_int;
            (call.recv)(
                bytes.as_mut_ptr().cast(),
                room,
                byte,
                H::ANY_SOURCE,
                NOTICES,
                self.communicator,
                &mut status,
            )
        };
        // SAFETY: the status that was just written.
        let counted = unsafe { (call.get_count)(&status, byte, &mut count) };
        bytes.truncate(count.max(0) as usize);
        (code == 0 && counted == 0).then_some(bytes)
    }

    /// MPI knows no waiting without a processor; others are let in, longer the longer nothing moves.
    fn idle(&self, at_most: Duration) {
        let mut state = self.state();
        state.idle = state.idle.saturating_add(1);
        let idle = state.idle;
        drop(state);
        match idle {
            0..200 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(20 * u64::from(idle / 200).min(25)).min(at_most)),
        }
    }

    fn own_bytes(&self) -> u64 {
        self.own_bytes
    }

    fn ends_together(&self) -> bool {
        true
    }

    fn leave(&self, failed: bool) {
        let mut state = self.state();
        let is_first = !std::mem::replace(&mut state.is_over, true);
        // Ending MPI waits for all ranks. Where one has failed, that would be for ever; its launcher ends the others.
        if is_first && !failed {
            // SAFETY: nothing is under way and nothing is called afterwards.
            unsafe { (self.library.call.finalize)() };
        }
        // What a library has started may go on until the process ends.
        std::mem::take(&mut state.notices).into_iter().for_each(std::mem::forget);
    }
}
