//! One stream to another rank: what is to be written, what is being read, and for whom.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use super::frame::{Frame, FrameKind};
use crate::transport::{Fault, Tag, TransferId};

/// Stands in for bytes of transfers that were cancelled while they were written or read.
const NOTHING: usize = 4096;

pub struct Peer {
    stream: Arc<TcpStream>,
    /// Why nothing more comes.
    fault: Option<Fault>,
    sends: Vec<Send>,
    receives: VecDeque<Receive>,
    /// What the other side has a place for and this side has not sent: tags and lengths.
    ready: Vec<(Tag, usize)>,
    out: VecDeque<Out>,
    input: Input,
    notices: VecDeque<Vec<u8>>,
    /// Whether something was asked for since it last read and wrote.
    has_news: bool,
}

/// A send that waits until the other side is ready.
struct Send {
    id: TransferId,
    tag: Tag,
    bytes: *const u8,
    len: usize,
    fault: Option<Fault>,
}

struct Receive {
    id: TransferId,
    tag: Tag,
    bytes: *mut u8,
    len: usize,
    fault: Option<Fault>,
}

/// A frame that is being written, with what follows it.
struct Out {
    frame: [u8; Frame::BYTES],
    id: Option<TransferId>,
    follows: Follows,
    written: usize,
}

enum Follows {
    Nothing,
    /// Bytes of the caller's; none where the transfer was cancelled.
    Bytes(Option<*const u8>, usize),
    Notice(Vec<u8>),
}

#[derive(Default)]
struct Input {
    frame: [u8; Frame::BYTES],
    /// Bytes of the frame that have come, and then bytes of what follows.
    n_frame: usize,
    n_follows: usize,
    /// The receive that what follows is for; none where it was cancelled.
    receive: Option<Receive>,
    notice: Vec<u8>,
}

// SAFETY: the pointers are the callers', who promised the bytes until their transfers are complete or cancelled.
unsafe impl std::marker::Send for Peer {}

impl Peer {
    pub fn new(stream: TcpStream) -> Peer {
        Peer {
            stream: Arc::new(stream),
            fault: None,
            sends: Vec::new(),
            receives: VecDeque::new(),
            ready: Vec::new(),
            out: VecDeque::new(),
            input: Input::default(),
            notices: VecDeque::new(),
            has_news: false,
        }
    }

    pub fn stream(&self) -> Arc<TcpStream> {
        Arc::clone(&self.stream)
    }

    pub fn is_open(&self) -> bool {
        self.fault.is_none()
    }

    pub fn wants_to_write(&self) -> bool {
        !self.out.is_empty()
    }

    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub fn send(&mut self, id: TransferId, tag: Tag, bytes: *const u8, len: usize) -> Result<(), Fault> {
        self.sends.push(Send { id, tag, bytes, len, fault: None });
        self.has_news = true;
        self.match_sends();
        Ok(())
    }

    pub fn receive(&mut self, id: TransferId, tag: Tag, bytes: *mut u8, len: usize) {
        self.receives.push_back(Receive { id, tag, bytes, len, fault: None });
        let frame = Frame { kind: FrameKind::Ready, tag, len }.encode();
        self.out.push_back(Out { frame, id: None, follows: Follows::Nothing, written: 0 });
        self.has_news = true;
    }

    pub fn is_done(&mut self, id: TransferId) -> Result<bool, Fault> {
        let send = self.sends.iter().position(|send| send.id == id);
        let receive = self.receives.iter().position(|receive| receive.id == id);
        let fault = match (send, receive) {
            (Some(i), _) => self.sends[i].fault.clone(),
            (_, Some(i)) => self.receives[i].fault.clone(),
            _ => None,
        };
        let is_under_way = send.is_some()
            || receive.is_some()
            || self.out.iter().any(|out| out.id == Some(id))
            || self.input.receive.as_ref().is_some_and(|receive| receive.id == id);
        match fault.or_else(|| self.fault.clone()) {
            Some(fault) if is_under_way => {
                self.cancel(id);
                Err(fault)
            }
            _ => Ok(!is_under_way),
        }
    }

    pub fn cancel(&mut self, id: TransferId) {
        self.sends.retain(|send| send.id != id);
        self.receives.retain(|receive| receive.id != id);
        if self.input.receive.as_ref().is_some_and(|receive| receive.id == id) {
            self.input.receive = None;
        }
        for out in self.out.iter_mut().filter(|out| out.id == Some(id)) {
            if let Follows::Bytes(at, _) = &mut out.follows {
                *at = None;
            }
        }
    }

    pub fn tell(&mut self, notice: &[u8]) {
        let frame = Frame { kind: FrameKind::Notice, tag: 0, len: notice.len() }.encode();
        self.out.push_back(Out { frame, id: None, follows: Follows::Notice(notice.into()), written: 0 });
    }

    pub fn heard(&mut self) -> Option<Vec<u8>> {
        self.notices.pop_front()
    }

    /// Reads and writes what can be without waiting, where something was asked for since that was last done: whoever looks after many transfers does it
    /// once for all of them.
    pub fn advance_with_news(&mut self) {
        if self.has_news {
            self.advance();
        }
    }

    /// Reads and writes what can be without waiting.
    pub fn advance(&mut self) {
        self.has_news = false;
        if self.fault.is_some() {
            return;
        }
        if let Err(fault) = self.write().and_then(|()| self.read()).and_then(|()| self.write()) {
            // What came before the end counts: a notice may say why.
            let _ = self.read();
            self.fault = Some(fault);
            self.out.clear();
        }
    }

    /// Sends for which the other side is ready, in the order of both.
    fn match_sends(&mut self) {
        let mut i = 0;
        while i < self.ready.len() {
            let (tag, len) = self.ready[i];
            let Some(at) = self.sends.iter().position(|send| send.tag == tag && send.fault.is_none()) else {
                i += 1;
                continue;
            };
            self.ready.remove(i);
            if self.sends[at].len != len {
                let expected = self.sends[at].len;
                self.sends[at].fault = Some(Fault::Length { expected, found: format!("{len} bytes") });
                continue;
            }
            let send = self.sends.remove(at);
            let frame = Frame { kind: FrameKind::Data, tag, len }.encode();
            let follows = Follows::Bytes(Some(send.bytes), len);
            self.out.push_back(Out { frame, id: Some(send.id), follows, written: 0 });
        }
    }

    fn write(&mut self) -> Result<(), Fault> {
        while let Some(out) = self.out.front_mut() {
            let after = out.written.saturating_sub(Frame::BYTES);
            let zeros = [0; NOTHING];
            let bytes = match &out.follows {
                _ if out.written < Frame::BYTES => &out.frame[out.written..],
                Follows::Nothing => &[],
                Follows::Notice(notice) => &notice[after..],
                Follows::Bytes(None, len) => &zeros[..NOTHING.min(len - after)],
                // SAFETY: the transfer is neither complete nor cancelled.
                Follows::Bytes(Some(at), len) => unsafe {
                    std::slice::from_raw_parts(at.wrapping_add(after), len - after)
                },
            };
            if bytes.is_empty() {
                self.out.pop_front();
                continue;
            }
            // A frame and what follows it in one call of the system.
            let sent = match &out.follows {
                // SAFETY: as above.
                Follows::Bytes(Some(at), len) if out.written < Frame::BYTES => unsafe {
                    let follows = std::slice::from_raw_parts(*at, *len);
                    (&*self.stream).write_vectored(&[IoSlice::new(bytes), IoSlice::new(follows)])
                },
                _ => (&*self.stream).write(bytes),
            };
            match sent {
                Ok(0) => return Err(Fault::Gone),
                Ok(n) => out.written += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(fault(&e)),
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), Fault> {
        loop {
            let input = &mut self.input;
            let is_head = input.n_frame < Frame::BYTES;
            let frame = if is_head { None } else { Frame::decode(&input.frame) };
            let mut nothing = [0; NOTHING];
            let room = match (is_head, frame) {
                (true, _) => &mut input.frame[input.n_frame..],
                (false, None) => return Err(Fault::Failed("the stream holds what no rank writes".into())),
                (false, Some(frame)) => {
                    let left = frame.len - input.n_follows;
                    match (frame.kind, &input.receive) {
                        (FrameKind::Ready, _) => &mut [],
                        (FrameKind::Notice, _) => &mut input.notice[input.n_follows..],
                        (FrameKind::Data, None) => &mut nothing[..NOTHING.min(left)],
                        // SAFETY: the transfer is neither complete nor cancelled, and as long as the frame says.
                        (FrameKind::Data, Some(receive)) => unsafe {
                            std::slice::from_raw_parts_mut(receive.bytes.wrapping_add(input.n_follows), left)
                        },
                    }
                }
            };
            if room.is_empty() {
                if let Some(frame) = frame {
                    self.take(frame);
                }
                continue;
            }
            match (&*self.stream).read(room) {
                Ok(0) => return Err(Fault::Gone),
                Ok(n) if is_head => {
                    input.n_frame += n;
                    if input.n_frame == Frame::BYTES {
                        self.open();
                    }
                }
                Ok(n) => input.n_follows += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(fault(&e)),
            }
        }
    }

    /// A frame has come: finds the place for what follows.
    fn open(&mut self) {
        let Some(frame) = Frame::decode(&self.input.frame) else { return };
        match frame.kind {
            FrameKind::Ready => {}
            FrameKind::Notice => self.input.notice = vec![0; frame.len],
            FrameKind::Data => {
                let at = self
                    .receives
                    .iter()
                    .position(|receive| receive.tag == frame.tag && receive.fault.is_none());
                // Of one that was cancelled, the bytes are read and dropped.
                let Some(at) = at else { return };
                let receive = &mut self.receives[at];
                if receive.len == frame.len {
                    self.input.receive = self.receives.remove(at);
                } else {
                    let found = format!("{} bytes", frame.len);
                    receive.fault = Some(Fault::Length { expected: receive.len, found });
                }
            }
        }
    }

    /// A frame and what follows it are complete.
    fn take(&mut self, frame: Frame) {
        let input = std::mem::take(&mut self.input);
        match frame.kind {
            FrameKind::Ready => {
                self.ready.push((frame.tag, frame.len));
                self.match_sends();
            }
            FrameKind::Notice => self.notices.push_back(input.notice),
            FrameKind::Data => {}
        }
    }
}

fn fault(error: &std::io::Error) -> Fault {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => Fault::Gone,
        _ => Fault::Failed(format!("the stream failed: {error}")),
    }
}
