//! Copies between host and device, zeroing, waiting, and host memory that the card reads at full speed.

use cudarc::driver::sys;
use plimsoll_device::backend::{Fault, HostBlock};

use crate::card::{Card, cu};
use crate::error::Error;
use crate::launch::is_only_loading;
use crate::{Cuda, Engine};

/// Bytes of the place where kernels report what they refuse: code, place, value, limit.
pub(crate) const FLAG_BYTES: usize = 32;

/// Bytes of pinned memory that are worth a thread to make them zero.
const A_THREAD: usize = 64 << 20;

/// The ops whose kernels can refuse a value, in the order of their codes, from 1.
const REFUSING: [&str; 8] = [
    "gather",
    "scatter_add",
    "one_hot",
    "take_along",
    "put_along_add",
    "index_put",
    "cross_entropy",
    "cross_entropy_grad",
];

/// The code under which a kernel of an op reports.
pub(crate) fn refusal_code(op: &str) -> usize {
    REFUSING.iter().position(|&name| name == op).map_or(REFUSING.len() + 1, |i| i + 1)
}

/// A few bytes of the card that live as long as its context: for flags.
pub(crate) fn device_bytes(card: &Card, bytes: usize) -> Result<*mut u8, Error> {
    card.enter()?;
    let mut address = 0;
    // SAFETY: the address is of a number.
    unsafe { cu!(cuMemAlloc_v2(&mut address, bytes)) }?;
    Ok(address as *mut u8)
}

impl Cuda {
    /// Copies host bytes to the device, after all that is on the stream before; the bytes may be changed at once.
    ///
    /// # Safety
    /// `to` must be live memory of this device, of as many bytes.
    ///
    /// # Errors
    /// The driver's refusal.
    pub unsafe fn upload(&self, to: *mut u8, from: &[u8]) -> Result<(), Error> {
        match &self.0.engine {
            Engine::Card(card) => {
                card.enter()?;
                // SAFETY: the caller's promise; the stream is waited for while the slice lives.
                unsafe {
                    cu!(cuMemcpyHtoDAsync_v2(to as u64, from.as_ptr().cast(), from.len(), card.stream))?;
                    cu!(cuStreamSynchronize(card.stream))
                }
            }
            Engine::Host(_) => {
                // SAFETY: the caller's promise: the emulator's memory is the host's.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
                Ok(())
            }
        }
    }

    /// Copies device bytes to the host, after all that is on the stream before, and waits for them.
    ///
    /// # Safety
    /// `from` must be live memory of this device, of as many bytes.
    ///
    /// # Errors
    /// The driver's refusal.
    pub unsafe fn download(&self, from: *const u8, to: &mut [u8]) -> Result<(), Error> {
        match &self.0.engine {
            Engine::Card(card) => {
                card.enter()?;
                // SAFETY: as for an upload.
                unsafe {
                    cu!(cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from as u64, to.len(), card.stream))?;
                    cu!(cuStreamSynchronize(card.stream))
                }
            }
            Engine::Host(_) => {
                // SAFETY: the caller's promise: the emulator's memory is the host's.
                unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
                Ok(())
            }
        }
    }

    /// Puts a copy inside the device on the stream.
    ///
    /// # Safety
    /// Both must be live memory of this device, of as many bytes, until the stream has run it, and not overlap.
    ///
    /// # Errors
    /// The driver's refusal.
    pub unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Error> {
        if bytes == 0 || is_only_loading() {
            return Ok(());
        }
        match &self.0.engine {
            Engine::Card(card) => {
                card.enter()?;
                // Either end may be pinned memory of the host, so the driver finds out the way by itself.
                // SAFETY: the caller's promise.
                unsafe { cu!(cuMemcpyAsync(to as u64, from as u64, bytes, card.stream)) }
            }
            Engine::Host(_) => {
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
                Ok(())
            }
        }
    }

    /// Puts the zeroing of device bytes on the stream.
    ///
    /// # Safety
    /// `at` must be live memory of this device, of as many bytes, until the stream has run it.
    ///
    /// # Errors
    /// The driver's refusal.
    pub unsafe fn zero(&self, at: *mut u8, bytes: usize) -> Result<(), Error> {
        if bytes == 0 || is_only_loading() {
            return Ok(());
        }
        match &self.0.engine {
            Engine::Card(card) => {
                card.enter()?;
                // SAFETY: the caller's promise.
                unsafe { cu!(cuMemsetD8Async(at as u64, 0, bytes, card.stream)) }
            }
            Engine::Host(_) => {
                // SAFETY: the caller's promise.
                unsafe { std::ptr::write_bytes(at, 0, bytes) };
                Ok(())
            }
        }
    }

    /// Waits for all that is on the stream, and says whether a kernel refused a value since the last wait.
    ///
    /// # Errors
    /// [`Error::Fault`] with the first refusal, or the driver's error.
    pub fn synchronize(&self) -> Result<(), Error> {
        let mut bytes = [0u8; FLAG_BYTES];
        // SAFETY: the flag is that many bytes of the device.
        unsafe { self.download(self.0.flag, &mut bytes) }?;
        let mut words = [0i64; FLAG_BYTES / 8];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = i64::from_ne_bytes(chunk.try_into().unwrap_or_default());
        }
        let [code, place, value, limit] = words;
        if code == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.zero(self.0.flag, FLAG_BYTES) }?;
        let op = REFUSING.get(code as usize - 1).copied().unwrap_or("a kernel");
        let why = format!("index {value} at place {place} is not in 0..{limit}; check the labels or indices");
        Err(Fault::new(op, why).into())
    }
}

/// Host memory that stays where it is, so that the card copies from and to it at the link's full speed.
#[derive(Debug)]
pub struct Pinned {
    cuda: Cuda,
    at: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its bytes; the address moves with it.
unsafe impl Send for Pinned {}
// SAFETY: a shared one gives shared slices only.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Takes so many bytes of host memory, zeroed.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn new(cuda: &Cuda, bytes: usize) -> Result<Pinned, Error> {
        let card = cuda.card("pinned memory")?;
        card.enter()?;
        let mut at = std::ptr::null_mut();
        // SAFETY: the address is of a pointer; the driver gives as many bytes, or an error.
        unsafe {
            cu!(cuMemHostAlloc(&mut at, bytes.max(1), 0))?;
        }
        let mut pinned = Pinned { cuda: cuda.clone(), at: at.cast(), bytes };
        pinned.clear();
        Ok(pinned)
    }

    /// Makes all bytes zero, on several threads where there are many: the state of a large model is tens of gigabytes.
    fn clear(&mut self) {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(self.bytes / A_THREAD);
        let part = self.bytes.div_ceil(threads.max(1)).max(1);
        // SAFETY: the driver gave as many bytes, which are nobody else's; any bytes are numbers of this type.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(self.at.cast::<std::mem::MaybeUninit<u8>>(), self.bytes)
        };
        let zero = |part: &mut [std::mem::MaybeUninit<u8>]| part.fill(std::mem::MaybeUninit::new(0));
        if threads <= 1 {
            return zero(bytes);
        }
        std::thread::scope(|scope| {
            for part in bytes.chunks_mut(part) {
                scope.spawn(move || zero(part));
            }
        });
    }

    /// The same, with a refusal that says what to do.
    pub(crate) fn or_refuse(cuda: &Cuda, bytes: usize) -> Result<Pinned, Fault> {
        let refused = |why: Error| {
            Fault::new(
                "host memory",
                format!("the host does not give {bytes} bytes that stay in place ({why}); allow less of it"),
            )
        };
        Pinned::new(cuda, bytes).map_err(refused)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as many bytes are there, were zeroed, and live as long as this value.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    /// The bytes, to write. A copy from or to them must have been waited for.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl HostBlock for Pinned {
    fn place(&self) -> (*mut u8, usize) {
        (self.at, self.bytes)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(card) = self.cuda.card("pinned memory")
            && card.enter().is_ok()
        {
            // SAFETY: the driver gave it, and nobody has it any more. A drop cannot report a refusal.
            unsafe {
                let _ = sys::cuMemFreeHost(self.at.cast());
            }
        }
    }
}
