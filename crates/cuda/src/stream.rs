//! Streams beside the one that kernels run on, for copies that overlap with work, and events that order them.

use cudarc::driver::sys;

use crate::Cuda;
use crate::card::cu;
use crate::error::Error;
use crate::memory::Pinned;

/// A queue of copies beside the kernels' own.
#[derive(Debug)]
pub struct Stream {
    cuda: Cuda,
    stream: sys::CUstream,
}

/// A point in a stream that others can wait for.
#[derive(Debug)]
pub struct Event {
    cuda: Cuda,
    event: sys::CUevent,
}

macro_rules! any_thread {
    ($($handle:ident)+) => { $(
        // SAFETY: a handle of the driver, which locks its own state.
        unsafe impl Send for $handle {}
        // SAFETY: as above.
        unsafe impl Sync for $handle {}
    )+ };
}
any_thread!(Stream Event);

impl Event {
    /// An event that orders streams and is marked again and again; it tells no times.
    pub(crate) fn untimed(cuda: &Cuda) -> Result<Event, Error> {
        Event::with(cuda, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    fn with(cuda: &Cuda, flags: u32) -> Result<Event, Error> {
        cuda.card("an event")?.enter()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: the address is of a handle.
        unsafe { cu!(cuEventCreate(&mut event, flags)) }?;
        Ok(Event { cuda: cuda.clone(), event })
    }

    /// An event whose time is asked for.
    pub(crate) fn timed(cuda: &Cuda) -> Result<Event, Error> {
        Event::with(cuda, 0)
    }

    /// What the driver knows it by.
    pub(crate) fn handle(&self) -> sys::CUevent {
        self.event
    }

    /// Waits on the host until the point has been passed.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn wait(&self) -> Result<(), Error> {
        self.cuda.card("an event")?.enter()?;
        // SAFETY: the handle is live.
        unsafe { cu!(cuEventSynchronize(self.event)) }
    }

    /// Seconds from another event to this one; both must have been passed.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn since(&self, start: &Event) -> Result<f64, Error> {
        self.cuda.card("an event")?.enter()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: the handles are live and the address is of a number.
        unsafe { cu!(cuEventElapsedTime_v2(&mut milliseconds, start.event, self.event)) }?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody has the handle any more. A drop cannot report a refusal.
        unsafe {
            let _ = sys::cuEventDestroy_v2(self.event);
        }
    }
}

impl Cuda {
    /// Marks the present end of the kernels' stream.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn record(&self) -> Result<Event, Error> {
        let event = Event::timed(self)?;
        self.mark(&event)?;
        Ok(event)
    }

    /// Sets an event to the present end of the kernels' stream. Who waits for where it was before is not concerned.
    pub(crate) fn mark(&self, event: &Event) -> Result<(), Error> {
        let card = self.card("an event")?;
        card.enter()?;
        // SAFETY: the handles are live.
        unsafe { cu!(cuEventRecord(event.event, card.stream)) }
    }

    /// Lets the kernels' stream wait for an event before it goes on.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn wait_for(&self, event: &Event) -> Result<(), Error> {
        let card = self.card("an event")?;
        card.enter()?;
        // SAFETY: the handles are live.
        unsafe { cu!(cuStreamWaitEvent(card.stream, event.event, 0)) }
    }
}

impl Stream {
    /// A new queue on a card.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn new(cuda: &Cuda) -> Result<Stream, Error> {
        cuda.card("a stream")?.enter()?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the address is of a handle.
        unsafe { cu!(cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32)) }?;
        Ok(Stream { cuda: cuda.clone(), stream })
    }

    /// Puts a copy from pinned memory to the device on the queue.
    ///
    /// # Safety
    /// `to` must be live memory of this device, of `bytes` bytes; both must stay and the source unchanged until the copy
    /// has been waited for.
    ///
    /// # Errors
    /// More bytes than there are, or the driver's refusal.
    pub unsafe fn upload(&self, to: *mut u8, from: &Pinned, start: usize, bytes: usize) -> Result<(), Error> {
        let part = part(from.bytes(), start, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.upload_from(to, part.as_ptr(), bytes) }
    }

    /// As [`Stream::upload`], from an address of pinned memory.
    ///
    /// # Safety
    /// As for [`Stream::upload`], and so many bytes must be there.
    pub(crate) unsafe fn upload_from(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Error> {
        self.cuda.card("a stream")?.enter()?;
        // SAFETY: the caller's promise.
        unsafe { cu!(cuMemcpyHtoDAsync_v2(to as u64, from.cast(), bytes, self.stream)) }
    }

    /// Puts a copy from the device to pinned memory on the queue.
    ///
    /// # Safety
    /// As for [`Stream::upload`], and the bytes must not be read until the copy has been waited for.
    ///
    /// # Errors
    /// More bytes than there are, or the driver's refusal.
    pub unsafe fn download(
        &self,
        from: *const u8,
        to: &Pinned,
        start: usize,
        bytes: usize,
    ) -> Result<(), Error> {
        let part = part(to.bytes(), start, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.download_to(from, part.as_ptr().cast_mut(), bytes) }
    }

    /// As [`Stream::download`], to an address of pinned memory.
    ///
    /// # Safety
    /// As for [`Stream::download`], and there must be room for so many bytes.
    pub(crate) unsafe fn download_to(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), Error> {
        self.cuda.card("a stream")?.enter()?;
        // SAFETY: the caller's promise.
        unsafe { cu!(cuMemcpyDtoHAsync_v2(to.cast(), from as u64, bytes, self.stream)) }
    }

    /// Marks the present end of the queue.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn record(&self) -> Result<Event, Error> {
        let event = Event::timed(&self.cuda)?;
        self.mark(&event)?;
        Ok(event)
    }

    /// Sets an event to the present end of the queue. Who waits for where it was before is not concerned.
    pub(crate) fn mark(&self, event: &Event) -> Result<(), Error> {
        self.cuda.card("a stream")?.enter()?;
        // SAFETY: the handles are live.
        unsafe { cu!(cuEventRecord(event.event, self.stream)) }
    }

    /// As [`mark_time`], on this queue.
    ///
    /// # Safety
    /// The event must be live, and made to be timed.
    pub(crate) unsafe fn mark_time(&self, event: sys::CUevent) -> Result<(), Error> {
        self.cuda.card("a stream")?.enter()?;
        // SAFETY: the caller's promise.
        unsafe { mark_time(event, self.stream) }
    }

    /// Lets the queue wait for an event before it goes on.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn wait_for(&self, event: &Event) -> Result<(), Error> {
        self.cuda.card("a stream")?.enter()?;
        // SAFETY: the handles are live.
        unsafe { cu!(cuStreamWaitEvent(self.stream, event.event, 0)) }
    }

    /// Waits for all that is on the queue.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.cuda.card("a stream")?.enter()?;
        // SAFETY: the handle is live.
        unsafe { cu!(cuStreamSynchronize(self.stream)) }
    }
}

/// Sets an event whose time is asked for to the present end of a queue. While the queue is captured it becomes a node of the graph:
/// an event that is captured like others orders streams and tells no times.
///
/// # Safety
/// Both handles must be live, and the event made to be timed.
pub(crate) unsafe fn mark_time(event: sys::CUevent, stream: sys::CUstream) -> Result<(), Error> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller's promise, and the address is of a status.
    unsafe { cu!(cuStreamIsCapturing(stream, &mut status)) }?;
    let flags = match status {
        sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => 0,
        // Only valid while a queue is captured.
        _ => sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32,
    };
    // SAFETY: the caller's promise.
    unsafe { cu!(cuEventRecordWithFlags(event, stream, flags)) }
}

fn part(bytes: &[u8], start: usize, length: usize) -> Result<&[u8], Error> {
    let end = start.checked_add(length);
    end.and_then(|end| bytes.get(start..end)).ok_or_else(|| Error::Driver {
        call: "a copy",
        why: format!(
            "bytes {start} and the next {length} are not within the {} of the host's side",
            bytes.len()
        ),
    })
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nobody has the handle any more. A drop cannot report a refusal.
        unsafe {
            let _ = sys::cuStreamDestroy_v2(self.stream);
        }
    }
}
