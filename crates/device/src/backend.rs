//! What a backend must offer: a kernel for every op, with its scratch declared before it runs.
//!
//! A kernel allocates nothing. What it needs beside its operands it declares for given types, the caller hands it
//! over, and it is planned like any tensor.

use std::fmt;
use std::sync::Arc;

use plimsoll_graph::{DType, Op, Type};

use crate::{Bytes, Disk, HostMarks, LibraryBytes, Marks, Properties};

/// Every operand starts at a multiple of this many bytes.
pub const ALIGNMENT: usize = 64;

/// A value in device memory.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// What is there.
    pub ty: &'a Type,
    /// Where: an address of the device, aligned to [`ALIGNMENT`].
    pub ptr: *mut u8,
}

/// A call that is not made yet: an op with the types of its operands and of its results.
pub type Prepared<'a> = (&'a Op, Vec<&'a Type>, Vec<&'a Type>);

/// One kernel call: an op over operands that exist.
///
/// An output shares its address with an input only where the op's in-place rule allows it.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// What is computed.
    pub op: &'a Op,
    /// What is read.
    pub inputs: &'a [Operand<'a>],
    /// What is written.
    pub outputs: &'a [Operand<'a>],
    /// Scratch of at least the declared bytes, aligned to [`ALIGNMENT`], with any content.
    pub scratch: *mut u8,
    /// The bytes of scratch given.
    pub scratch_bytes: usize,
}

/// A type that Rust and the device hold in the same bytes.
///
/// # Safety
/// `DTYPE` must name exactly the representation of `Self`, and any bit pattern the engine writes must be valid.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The element type it stands for.
    const DTYPE: DType;
}

macro_rules! elements {
    ($( $held:ty => $dtype:ident, )+) => {
        $(
            // SAFETY: each pair names the same representation; Bool is held as u8 and has no Rust type of its own here.
            unsafe impl Element for $held {
                const DTYPE: DType = DType::$dtype;
            }
        )+
    };
}

elements! {
    f32 => F32,
    f64 => F64,
    half::bf16 => BF16,
    half::f16 => F16,
    i64 => I64,
    i32 => I32,
    i16 => I16,
    i8 => I8,
    u32 => U32,
    u16 => U16,
    u8 => U8,
}

impl Operand<'_> {
    /// The elements as a slice.
    ///
    /// # Safety
    /// The memory must be the CPU's, hold the elements of `ty`, live and unwritten for `'s`; `T` must have the size of
    /// `ty`'s elements.
    pub unsafe fn slice<'s, T: Element>(&self) -> &'s [T] {
        debug_assert_eq!(size_of::<T>(), self.ty.dtype.bytes());
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr.cast::<T>(), self.ty.elements()) }
    }

    /// The elements as a slice to write.
    ///
    /// # Safety
    /// As for [`Operand::slice`], and nothing else may reach the memory for `'s`: not where an input shares the
    /// address; kernels that may run in place work on pointers.
    pub unsafe fn slice_mut<'s, T: Element>(&self) -> &'s mut [T] {
        debug_assert_eq!(size_of::<T>(), self.ty.dtype.bytes());
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast::<T>(), self.ty.elements()) }
    }
}

impl Call<'_> {
    /// The scratch as bytes.
    ///
    /// # Safety
    /// The memory must be the CPU's, and nothing else may reach it for `'s`.
    pub unsafe fn scratch<'s>(&self) -> &'s mut [u8] {
        if self.scratch_bytes == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.scratch, self.scratch_bytes) }
    }

    /// Whether an output is written over an input.
    pub fn in_place(&self, output: usize, input: usize) -> bool {
        self.outputs[output].ptr == self.inputs[input].ptr
    }
}

/// A kernel refused its operands' values: an index out of range, say. The outputs hold nothing of use then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: {why}")]
pub struct Fault {
    /// The op's name.
    pub op: &'static str,
    /// What was wrong, where, and what to do.
    pub why: String,
    /// The rank that has ended or does not answer, where an exchange failed for that.
    pub lost_rank: Option<usize>,
}

impl Fault {
    /// A fault of an op: what was wrong, where, and what to do.
    pub fn new(op: &'static str, why: impl Into<String>) -> Fault {
        Fault { op, why: why.into(), lost_rank: None }
    }
}

/// A backend has no kernel for an op on these types.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device} has no kernel for {op} on {types}: {why}")]
pub struct Unsupported {
    /// The device's name.
    pub device: String,
    /// The op's name.
    pub op: &'static str,
    /// The input types.
    pub types: String,
    /// Why there is none, and what to do.
    pub why: String,
}

/// How fast a device is, roughly: what times are predicted from before anything has been timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Floating-point operations a second.
    pub flops: f64,
    /// Bytes read and written a second.
    pub bytes: f64,
    /// Seconds that any call takes, however small.
    pub call: f64,
}

/// How fast bytes go between a device's own memory and the host's, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// From the host to the device.
    pub up: f64,
    /// From the device to the host.
    pub down: f64,
}

impl Link {
    /// The slower of its two ways.
    pub fn slower(&self) -> f64 {
        self.up.min(self.down)
    }
}

/// Where libraries of one process meet on a card, as CUDA names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The number of the card.
    pub ordinal: i32,
    /// The stream on which the engine's work is queued.
    pub stream: usize,
}

/// A device that runs ops.
pub trait Backend: Send + Sync + fmt::Debug {
    /// The device's name, as it stands in logs: `cpu`.
    fn name(&self) -> &str;

    /// What tells it from other devices whose kernels take other times: model, instruction set, threads, version.
    fn signature(&self) -> String;

    /// What its user should know, a sentence each: a library that is not installed and would make it faster, say.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// What it is, in figures, as far as that is known without running anything.
    fn properties(&self) -> Properties {
        Properties { name: self.name().into(), notes: self.notes(), ..Properties::default() }
    }

    /// What the times of its kernels are filed under, where they are kept with those of another device.
    fn times_prefix(&self) -> &'static str {
        ""
    }

    /// How fast it is, roughly.
    fn speed(&self) -> Speed;

    /// Seconds that a kernel is predicted to take before it has been timed: what its arithmetic or its memory allows,
    /// whichever is slower.
    fn predict(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> f64 {
        let (speed, cost) = (self.speed(), op.cost(inputs, outputs));
        (cost.flops / speed.flops).max(cost.bytes / speed.bytes) + speed.call
    }

    /// The bytes of scratch that [`Backend::run`] needs for these types, or that there is no kernel for them.
    fn scratch(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Unsupported>;

    /// Runs a kernel, or puts it behind those before it: what reads its results through [`Backend::download`] sees them
    /// complete. Allocates nothing but the text of a fault. A device that does not wait for its kernels reports what they
    /// refuse at [`Backend::synchronize`].
    ///
    /// # Safety
    /// Operands and scratch must be live memory of this device, of the sizes their types and [`Backend::scratch`]
    /// say, and disjoint but for the sharing that the op's in-place rule allows.
    unsafe fn run(&self, call: &Call<'_>) -> Result<(), Fault>;

    /// Loads what [`Backend::run`] will need for these types beside its operands, and runs nothing: so that all of a
    /// program's code is there, and counted, before its memory is planned.
    ///
    /// # Errors
    /// The code could not be made.
    fn prepare(&self, _op: &Op, _inputs: &[&Type], _outputs: &[&Type]) -> Result<(), Fault> {
        Ok(())
    }

    /// Makes the code that [`Backend::prepare`] will load for all of these calls, side by side where that saves time. Loads none of it, and
    /// says nothing of what cannot be made: preparing that does.
    fn compile_ahead(&self, _calls: &[Prepared<'_>]) {}

    /// Whether it is only the record of a device: steps can be planned for it, and nothing can be run.
    fn is_recorded(&self) -> bool {
        false
    }

    /// Whether the host reads and writes the device's memory at its addresses.
    fn is_host(&self) -> bool {
        true
    }

    /// Writes host bytes to the device, behind what was run before. The bytes may be changed at once.
    ///
    /// # Safety
    /// `to` must be live memory of this device, of as many bytes, and used by nobody else.
    ///
    /// # Errors
    /// The device's refusal.
    unsafe fn upload(&self, to: *mut u8, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: the caller's promise: the memory is the host's.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Reads device bytes, once all that was run before is done.
    ///
    /// # Safety
    /// `from` must be live memory of this device, of as many bytes.
    ///
    /// # Errors
    /// What a kernel refused before, or the device's refusal.
    unsafe fn download(&self, from: *const u8, to: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the caller's promise: the memory is the host's.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies inside the device, behind what was run before.
    ///
    /// # Safety
    /// Both must be live memory of this device, of as many bytes, and not overlap but where they are the same.
    ///
    /// # Errors
    /// The device's refusal.
    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise: the memory is the host's.
        unsafe { from.copy_to(to, bytes) };
        Ok(())
    }

    /// Zeroes bytes of the device, behind what was run before.
    ///
    /// # Safety
    /// `at` must be live memory of this device, of as many bytes.
    ///
    /// # Errors
    /// The device's refusal.
    unsafe fn zero(&self, at: *mut u8, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise: the memory is the host's.
        unsafe { at.write_bytes(0, bytes) };
        Ok(())
    }

    /// Waits until all that was run is done.
    ///
    /// # Errors
    /// What a kernel refused since the last wait.
    fn synchronize(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Waits for all work on the device, that of other libraries of the process too.
    ///
    /// # Errors
    /// The device's refusal.
    fn synchronize_all(&self) -> Result<(), Fault> {
        self.synchronize()
    }

    /// Where other libraries of the process meet the device; none where its memory is the host's, or nobody else's.
    fn meeting(&self) -> Option<Meeting> {
        None
    }

    /// Whether all that was run is done, without waiting for it: where the device does not say, it is.
    fn is_idle(&self) -> bool {
        true
    }

    /// Gives back what it keeps only to be faster when it is used again: loaded code, libraries that were started. Called when nobody
    /// holds memory of the device.
    ///
    /// # Errors
    /// What a kernel refused since the last wait.
    fn trim(&self) -> Result<(), Fault> {
        self.synchronize()
    }

    /// What the process takes of the device's own memory, tensors included, as the system counts it; none where tensors
    /// are in the host's memory.
    fn taken(&self) -> Option<Bytes> {
        None
    }

    /// What of that each library took, in the order in which they were started: the context first. What they load later is in no row.
    fn libraries(&self) -> Vec<LibraryBytes> {
        Vec::new()
    }

    /// What the process could still take of the device's own memory; none where tensors are in the host's memory.
    fn free(&self) -> Option<Bytes> {
        None
    }

    /// All of the device's own memory; none where tensors are in the host's memory.
    fn total(&self) -> Option<Bytes> {
        None
    }

    /// What a process is declared to take of the host's memory because it uses the device: its driver, libraries and their code.
    /// Nothing where the device is the host.
    fn host_program(&self) -> Bytes {
        Bytes::ZERO
    }

    /// So many bytes of host memory from which batches are copied to the device beside its kernels; none where that has no
    /// use.
    ///
    /// # Errors
    /// The device's refusal.
    fn uploads(&self, _bytes: usize) -> Result<Option<Box<dyn Uploads>>, Fault> {
        Ok(None)
    }

    /// Records what `body` would run, so that it can be run again at once; none where that has no use. `body` must have
    /// been run before, and must not wait for the device.
    ///
    /// # Errors
    /// The first error of `body`, or the device's refusal.
    fn record(
        &self,
        _body: &mut dyn FnMut() -> Result<(), Fault>,
    ) -> Result<Option<Box<dyn Recording>>, Fault> {
        Ok(None)
    }

    /// So many points in time that it passes while it works. The default is the host's clock, for a device that is done with a
    /// kernel when [`Backend::run`] returns.
    ///
    /// # Errors
    /// The device's refusal.
    fn marks(&self, points: usize) -> Result<Box<dyn Marks>, Fault> {
        Ok(Box::new(HostMarks::new(points)))
    }

    /// The same device with a folder of a disk beside its memory: what else is told of the host's memory here ([`Backend::rough_link`],
    /// [`Backend::host_arena`], [`Backend::host_block`]) is of the disk then. None where it cannot keep anything there.
    fn with_disk(&self, _disk: &Arc<Disk>) -> Option<Arc<dyn Backend>> {
        None
    }

    /// The folder of a disk that it has beside its memory.
    fn disk(&self) -> Option<&Arc<Disk>> {
        None
    }

    /// How fast copies beside its kernels are, roughly: what is planned with before they have been timed. None where the
    /// device's memory is the host's and it has no disk, or it copies nothing beside its kernels.
    fn rough_link(&self) -> Option<Link> {
        None
    }

    /// Times copies between the device's memory at `at` and as many bytes of the host's, which are taken for as long. None
    /// as for [`Backend::rough_link`].
    ///
    /// # Safety
    /// `at` must be live memory of this device, of as many bytes, and used by nobody else; what it holds is lost.
    ///
    /// # Errors
    /// The device's refusal.
    unsafe fn time_link(&self, _at: *mut u8, _bytes: usize) -> Result<Option<Link>, Fault> {
        Ok(None)
    }

    /// An empty arena of the host's memory for copies beside kernels. None as for [`Backend::rough_link`].
    ///
    /// # Errors
    /// The device's refusal.
    fn host_arena(&self) -> Result<Option<Box<dyn HostArena>>, Fault> {
        Ok(None)
    }

    /// So many bytes of the host's memory, zeroed, that the device reaches at their address: by [`HostArena::fetch`] and
    /// [`HostArena::store`] beside its kernels, and by everything else that takes an address of the device, slowly. None as for
    /// [`Backend::rough_link`].
    ///
    /// # Errors
    /// The host has not so much left.
    fn host_block(&self, _bytes: usize) -> Result<Option<Box<dyn HostBlock>>, Fault> {
        Ok(None)
    }
}

/// Bytes of the host's memory that a device reaches at their address.
pub trait HostBlock: Send + Sync + fmt::Debug {
    /// Where they are, and how many there are.
    fn place(&self) -> (*mut u8, usize);

    /// Where they are, aligned to [`ALIGNMENT`].
    fn ptr(&self) -> *mut u8 {
        self.place().0
    }

    /// How many there are.
    fn bytes(&self) -> usize {
        self.place().1
    }
}

/// Host memory that a device copies to and from while its kernels run.
///
/// A copy begins when everything that was run before it is done, and is done for certain only behind [`HostArena::wait`]:
/// until then its source must stay as it is and its target is nobody's. Copies one way are done in the order in which they
/// are started. All of it can be recorded ([`Backend::record`]); a recording must wait for every copy that it starts.
pub trait HostArena: Send + fmt::Debug {
    /// Gives the arena so many bytes, and room for so many copies under way; what it held is lost.
    /// No copy may be under way.
    ///
    /// # Errors
    /// The host has not so much left; the arena is empty then.
    fn fit(&mut self, bytes: usize, slots: usize) -> Result<(), Fault>;

    /// Its bytes.
    fn bytes(&self) -> usize;

    /// How many copies may be under way.
    fn slots(&self) -> usize;

    /// How often it was given bytes. What was recorded with it holds only until that changes: the bytes are others then, even at
    /// the same address.
    fn generation(&self) -> u64;

    /// Starts a copy from the device to offset `to` of the arena, under the number `slot`, behind what was run before.
    ///
    /// # Safety
    /// `from` must be live memory of this device, of as many bytes, and must not be written before the copy was waited for.
    ///
    /// # Errors
    /// More bytes or slots than there are, or the device's refusal.
    unsafe fn offload(&self, from: *const u8, to: usize, bytes: usize, slot: usize) -> Result<(), Fault>;

    /// Starts a copy from offset `from` of the arena to the device, under the number `slot`, behind what was run before.
    ///
    /// # Safety
    /// `to` must be live memory of this device, of as many bytes, that nobody reads or writes before the copy was waited for.
    ///
    /// # Errors
    /// As for [`HostArena::offload`].
    unsafe fn prefetch(&self, from: usize, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault>;

    /// As [`HostArena::prefetch`], from a block of its own ([`Backend::host_block`]) instead of the arena.
    ///
    /// # Safety
    /// As for [`HostArena::prefetch`]; `from` must be of a live block, of as many bytes, and stay as it is until then.
    ///
    /// # Errors
    /// More slots than there are, or the device's refusal.
    unsafe fn fetch(&self, from: *const u8, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault>;

    /// As [`HostArena::offload`], to a block of its own instead of the arena.
    ///
    /// # Safety
    /// As for [`HostArena::offload`]; `to` must be of a live block, of as many bytes, that nobody reads or writes until then.
    ///
    /// # Errors
    /// As for [`HostArena::fetch`].
    unsafe fn store(&self, from: *const u8, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault>;

    /// Lets the next copy that is started end with a point in time, by its [`Marks::handle`]. Where copies have no time of their own
    /// nothing happens.
    ///
    /// # Safety
    /// The marks must be of the same device, and live until the copy has been waited for.
    unsafe fn end_at(&self, _handle: usize) {}

    /// Puts the wait for a copy behind what was run before: what is run from now on finds it done.
    ///
    /// # Errors
    /// No such copy is under way, or the device's refusal.
    fn wait(&self, slot: usize) -> Result<(), Fault>;

    /// Ends whatever copies are under way, and keeps the host waiting for that: for a program that failed among them.
    ///
    /// # Errors
    /// The device's refusal.
    fn settle(&self) -> Result<(), Fault>;
}

/// Host memory from which a device copies while it computes.
pub trait Uploads: Send + fmt::Debug {
    /// The host's side, to be filled: once the copies from it are done.
    ///
    /// # Errors
    /// The device's refusal.
    fn bytes(&mut self) -> Result<&mut [u8], Fault>;

    /// Starts to copy a part of the host's side, beside what is run.
    ///
    /// # Safety
    /// `to` must be live memory of the device, of as many bytes, until the copy is done; nothing that was run before and
    /// is not done may use it.
    ///
    /// # Errors
    /// There is no such part, or the device's refusal.
    unsafe fn start(&mut self, to: *mut u8, from: std::ops::Range<usize>) -> Result<(), Fault>;

    /// Lets all that is run from now on wait for the copies that were started.
    ///
    /// # Errors
    /// The device's refusal.
    fn finish(&mut self) -> Result<(), Fault>;
}

/// Kernel calls that a device runs again as one.
pub trait Recording: Send + fmt::Debug {
    /// Puts all of them behind what was run before.
    ///
    /// # Safety
    /// All memory that the recorded calls use must be live as it was.
    ///
    /// # Errors
    /// The device's refusal.
    unsafe fn replay(&self) -> Result<(), Fault>;
}
