//! Turns host data into tensors and back.

use std::borrow::Cow;
use std::sync::Arc;

use half::{bf16, f16};
use plimsoll_device::backend::Element;
use plimsoll_graph::{DType, Shape, Site, TensorOps, Type};

use super::{Tensor, tape, timed};
use crate::device::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};

impl Tensor {
    /// A tensor on the current device with a copy of the elements.
    #[track_caller]
    pub fn from_slice<T: Element>(data: &[T], shape: impl Into<Shape>) -> Result<Tensor> {
        let site = Site::here();
        let shape = shape.into();
        if data.len() != shape.elements() {
            return Err(Error::Length { given: data.len(), shape, site });
        }
        let ty = Type::new(T::DTYPE, shape);
        Tensor::filled(ty, site, |bytes| {
            // SAFETY: `T` is a plain element type without padding; its bytes can be read.
            let source = unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), size_of_val(data)) };
            bytes.copy_from_slice(source);
        })
    }

    /// A tensor of truth values.
    #[track_caller]
    pub fn from_bools(data: &[bool], shape: impl Into<Shape>) -> Result<Tensor> {
        let site = Site::here();
        let shape = shape.into();
        if data.len() != shape.elements() {
            return Err(Error::Length { given: data.len(), shape, site });
        }
        Tensor::filled(Type::new(DType::Bool, shape), site, |bytes| {
            bytes.iter_mut().zip(data).for_each(|(byte, &truth)| *byte = u8::from(truth));
        })
    }

    /// A tensor of any element type, each element rounded from an f64.
    #[track_caller]
    pub fn from_f64(data: &[f64], ty: Type) -> Result<Tensor> {
        let site = Site::here();
        if data.len() != ty.elements() {
            return Err(Error::Length { given: data.len(), shape: ty.shape, site });
        }
        let dtype = ty.dtype;
        Tensor::filled(ty, site, |bytes| {
            for (slot, &x) in bytes.chunks_exact_mut(dtype.bytes()).zip(data) {
                match dtype {
                    DType::F32 => slot.copy_from_slice(&(x as f32).to_ne_bytes()),
                    DType::F64 => slot.copy_from_slice(&x.to_ne_bytes()),
                    DType::BF16 => slot.copy_from_slice(&bf16::from_f64(x).to_ne_bytes()),
                    DType::F16 => slot.copy_from_slice(&f16::from_f64(x).to_ne_bytes()),
                    DType::I64 => slot.copy_from_slice(&(x as i64).to_ne_bytes()),
                    DType::I32 => slot.copy_from_slice(&(x as i32).to_ne_bytes()),
                    DType::I16 => slot.copy_from_slice(&(x as i16).to_ne_bytes()),
                    DType::I8 => slot.copy_from_slice(&(x as i8).to_ne_bytes()),
                    DType::U32 => slot.copy_from_slice(&(x as u32).to_ne_bytes()),
                    DType::U16 => slot.copy_from_slice(&(x as u16).to_ne_bytes()),
                    DType::U8 => slot[0] = x as u8,
                    DType::Bool => slot[0] = u8::from(x != 0.0),
                }
            }
        })
    }

    /// A tensor on the current device with one value everywhere.
    #[track_caller]
    pub fn full(ty: Type, value: f64) -> Result<Tensor> {
        let site = Site::here();
        let anchor = Tensor::filled(Type::new(DType::U8, [0]), site, |_| ())?;
        anchor.emit_one(plimsoll_graph::ops::Full { ty, value: value.into() }, &[], site)
    }

    /// A tensor of zeros on the current device.
    #[track_caller]
    pub fn zeros(ty: Type) -> Result<Tensor> {
        Tensor::full(ty, 0.0)
    }

    /// The elements, copied to the host.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let site = Site::here();
        if self.dtype() != T::DTYPE {
            return Err(Error::ElementType { actual: self.dtype(), asked: T::DTYPE, site });
        }
        let (buffer, n) = (self.buffer(site)?, self.ty().elements());
        let mut elements = Vec::<T>::with_capacity(n);
        // SAFETY: there is room for so many elements, which take any bits and are initialised as zeros before they are
        // seen as bytes.
        unsafe {
            elements.as_mut_ptr().write_bytes(0, n);
            elements.set_len(n);
            let bytes =
                std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast::<u8>(), n * size_of::<T>());
            fetch(buffer, 0, bytes, site)?;
        }
        Ok(elements)
    }

    /// The elements of any type as f64, copied to the host.
    #[track_caller]
    pub fn to_f64(&self) -> Result<Vec<f64>> {
        let site = Site::here();
        let bytes = self.bytes(site)?;
        Ok(bytes.chunks_exact(self.dtype().bytes()).map(|slot| element(self.dtype(), slot)).collect())
    }

    /// The only element of a tensor that has one, as f64.
    #[track_caller]
    pub fn item(&self) -> Result<f64> {
        let site = Site::here();
        if self.ty().elements() != 1 {
            let why = format!("asks for the one element of {}", self.ty());
            return Err(Error::Signature { site, why });
        }
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..self.dtype().bytes()];
        fetch(self.buffer(site)?, 0, bytes, site)?;
        Ok(element(self.dtype(), bytes))
    }

    /// The raw bytes, copied to the host: for comparing bits.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        Ok(self.bytes(Site::here())?.into_owned())
    }

    /// The same elements on another device; on the one it is on, the tensor itself.
    ///
    /// ```
    /// use plimsoll_run::{Device, Tensor, TensorOps};
    /// let (one, other) = (Device::cpu_with(1, "64MiB".parse().unwrap())?, Device::cpu_with(1, "64MiB".parse().unwrap())?);
    /// let x = one.scope(|| Tensor::from_slice(&[1.0f32, 2.0], [2]))?;
    /// let y = x.to(&other)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
    /// // Ops on tensors of two devices are refused; `to` says which of them is meant.
    /// assert!(x.add(&y).is_err() && x.to(&other)?.add(&y).is_ok());
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is no room on that device, the tensor is being traced, or a tape follows it: gradients do not pass from one device
    /// to another.
    #[track_caller]
    pub fn to(&self, device: &Device) -> Result<Tensor> {
        let site = Site::here();
        if self.buffer(site)?.device().same(device) {
            return Ok(self.clone());
        }
        if tape::follows(&[self]) {
            let why = "moves a tensor that a tape follows to another device; move it before it is watched, or take the \
                       gradient first"
                .into();
            return Err(Error::Signature { site, why });
        }
        let bytes = self.bytes(site)?;
        device.scope(|| Tensor::filled(self.ty().clone(), site, |to| to.copy_from_slice(&bytes)))
    }

    /// Writes other elements over those it has, given as raw bytes. Where somebody holds a clone, that keeps what it saw.
    ///
    /// ```
    /// use plimsoll_run::Tensor;
    /// let mut x = Tensor::from_slice(&[1.0f32, 2.0], [2])?;
    /// x.set_bytes(&[0; 8])?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.0]);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    #[track_caller]
    pub fn set_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let site = Site::here();
        if bytes.len() != self.ty().bytes() {
            let why = format!("writes {} bytes over a tensor of {}", bytes.len(), self.ty());
            return Err(Error::Signature { site, why });
        }
        self.unshare(site)?;
        // SAFETY: nobody else holds the buffer, and it has as many bytes.
        unsafe { send(self.buffer(site)?, bytes, site) }
    }

    /// Writes another tensor's elements over those it has, on the device that both are on. Where somebody holds a clone, that keeps what it saw.
    ///
    /// ```
    /// use plimsoll_run::Tensor;
    /// let (mut x, y) = (Tensor::from_slice(&[1.0f32, 2.0], [2])?, Tensor::from_slice(&[3.0f32, 4.0], [2])?);
    /// x.set_from(&y)?;
    /// assert_eq!(x.to_vec::<f32>()?, [3.0, 4.0]);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    #[track_caller]
    pub fn set_from(&mut self, other: &Tensor) -> Result<()> {
        let site = Site::here();
        if other.ty() != self.ty() {
            let why = format!("writes {} over a tensor of {}", other.ty(), self.ty());
            return Err(Error::Signature { site, why });
        }
        if !other.buffer(site)?.device().same(self.buffer(site)?.device()) {
            let why = "writes a tensor over one of another device".into();
            return Err(Error::Signature { site, why });
        }
        self.unshare(site)?;
        let (to, from, bytes) = (self.buffer(site)?, other.buffer(site)?, self.ty().bytes());
        // SAFETY: nobody else holds the buffer that is written, and both have as many bytes.
        unsafe { to.device().backend().copy(to.ptr(), from.ptr(), bytes) }
            .map_err(|fault| Error::Fault { fault, site })
    }

    /// Lets `fill` write other elements over those it has: in place where the host can write them, else by way of a copy. Where
    /// somebody holds a clone, that keeps what it saw.
    ///
    /// ```
    /// use plimsoll_run::Tensor;
    /// let mut x = Tensor::from_slice(&[1u8, 2], [2])?;
    /// let before = x.clone();
    /// x.fill_bytes(|bytes| bytes[1] = 7)?;
    /// assert_eq!((x.to_vec::<u8>()?[1], before.to_vec::<u8>()?[1]), (7, 2));
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    #[track_caller]
    pub fn fill_bytes(&mut self, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let (site, n) = (Site::here(), self.ty().bytes());
        let buffer = self.buffer(site)?;
        if !buffer.device().backend().is_host() || buffer.is_hosted() {
            let mut bytes = vec![0; n];
            fill(&mut bytes);
            return self.set_bytes(&bytes);
        }
        if self.unshare(site)? {
            // SAFETY: the buffer is fresh, and nobody else knows it.
            unsafe { self.buffer(site)?.ptr().write_bytes(0, n) };
        }
        // SAFETY: nobody else holds the buffer, it has as many bytes, and all of them are initialised.
        fill(unsafe { std::slice::from_raw_parts_mut(self.buffer(site)?.ptr(), n) });
        Ok(())
    }

    /// Gives it a buffer of its own, whose bytes are still to be written, where somebody else holds the one that it has.
    fn unshare(&mut self, site: Site) -> Result<bool> {
        let buffer = self.buffer(site)?;
        let is_shared = Arc::strong_count(buffer) > 1 || buffer.is_borrowed();
        if is_shared {
            let device = self.buffer(site)?.device().clone();
            *self = Tensor::uninitialized(&device, self.ty().clone(), "tensor", site)?;
        }
        Ok(is_shared)
    }

    /// The raw bytes: in place where the host can read them, else a copy. See [`Tensor::read_bytes`] for large ones.
    #[track_caller]
    pub fn as_bytes(&self) -> Result<Cow<'_, [u8]>> {
        self.bytes(Site::here())
    }

    /// Copies as many of the raw bytes as `into` holds, from `start` on: for writing a tensor of any device somewhere
    /// without a copy of it all.
    ///
    /// ```
    /// use plimsoll_run::Tensor;
    /// let x = Tensor::from_slice(&[1u8, 2, 3, 4], [4])?;
    /// let mut two = [0; 2];
    /// x.read_bytes(1, &mut two)?;
    /// assert_eq!(two, [2, 3]);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    #[track_caller]
    pub fn read_bytes(&self, start: usize, into: &mut [u8]) -> Result<()> {
        let site = Site::here();
        let end = start.checked_add(into.len());
        if end.is_none_or(|end| end > self.ty().bytes()) {
            let why = format!("reads {} bytes from {start} on of a tensor of {}", into.len(), self.ty());
            return Err(Error::Signature { site, why });
        }
        fetch(self.buffer(site)?, start, into, site)
    }

    /// A copy with bytes of its own.
    #[track_caller]
    pub fn copy(&self) -> Result<Tensor> {
        let site = Site::here();
        if self.buffer(site)?.is_hosted() {
            return self.hosted();
        }
        self.copied_to(Buffer::new(self.buffer(site)?.device(), self.ty().bytes(), "tensor", site)?, site)
    }

    /// A tensor with the same elements in the host's memory, where its device reaches them: what large state that is seldom
    /// wanted may be kept in. On a device with a disk ([`Device::with_disk`]) they are in a file there; on any other whose memory is the host's
    /// it is the tensor itself.
    #[track_caller]
    pub fn hosted(&self) -> Result<Tensor> {
        let site = Site::here();
        match Buffer::hosted(self.buffer(site)?.device(), self.ty().bytes(), site)? {
            Some(buffer) => self.copied_to(buffer, site),
            None => Ok(self.clone()),
        }
    }

    /// Whether its bytes are in the host's memory though its device has memory of its own; or on a disk, where the device has one.
    pub fn is_hosted(&self) -> bool {
        self.buffer(Site::here()).is_ok_and(|buffer| buffer.is_hosted())
    }

    /// A tensor with the same elements in the device's own memory.
    pub(crate) fn unhosted(&self, site: Site) -> Result<Tensor> {
        let device = self.buffer(site)?.device();
        self.copied_to(Buffer::new(device, self.ty().bytes(), "step state", site)?, site)
    }

    fn copied_to(&self, buffer: Buffer, site: Site) -> Result<Tensor> {
        let device = buffer.device().clone();
        let copy = Tensor::eager(self.ty().clone(), Arc::new(buffer));
        let (to, from) = (copy.buffer(site)?.ptr(), self.buffer(site)?.ptr());
        match (self.is_hosted(), copy.is_hosted()) {
            (true, false) => device.count_up(self.ty().bytes()),
            (false, true) => device.count_down(self.ty().bytes()),
            _ => {}
        }
        // SAFETY: the new buffer has as many bytes, and nobody else knows it.
        unsafe { device.backend().copy(to, from, self.ty().bytes()) }
            .map_err(|fault| Error::Fault { fault, site })?;
        // What the host writes or frees next does not wait for the device.
        if copy.is_hosted() || self.is_hosted() {
            device.backend().synchronize().map_err(|fault| Error::Fault { fault, site })?;
        }
        Ok(copy)
    }

    pub(crate) fn bytes(&self, site: Site) -> Result<Cow<'_, [u8]>> {
        let (buffer, n) = (self.buffer(site)?, self.ty().bytes());
        // What is kept in a file has an address, and pages that are touched there count.
        if buffer.device().backend().is_host() && !buffer.is_hosted() {
            // SAFETY: the buffer lives as long as this tensor, is initialised and not written while shared.
            return Ok(Cow::Borrowed(unsafe { std::slice::from_raw_parts(buffer.ptr(), n) }));
        }
        let mut bytes = vec![0; n];
        fetch(buffer, 0, &mut bytes, site)?;
        Ok(Cow::Owned(bytes))
    }

    /// A new tensor whose bytes are still to be written.
    pub(crate) fn uninitialized(device: &Device, ty: Type, what: &'static str, site: Site) -> Result<Tensor> {
        let buffer = Buffer::new(device, ty.bytes(), what, site)?;
        Ok(Tensor::eager(ty, Arc::new(buffer)))
    }

    /// A new tensor whose bytes are written once by `fill`.
    pub(crate) fn filled(ty: Type, site: Site, fill: impl FnOnce(&mut [u8])) -> Result<Tensor> {
        let device = Device::current()?;
        let buffer = Buffer::new(&device, ty.bytes(), "tensor", site)?;
        if !device.backend().is_host() {
            let mut bytes = vec![0; ty.bytes()];
            fill(&mut bytes);
            // SAFETY: the buffer is fresh and nobody else knows it.
            unsafe { send(&buffer, &bytes, site) }?;
            return Ok(Tensor::eager(ty, Arc::new(buffer)));
        }
        // SAFETY: the buffer is fresh and nobody else knows it; it is zeroed first so that the slice is initialised.
        let bytes = unsafe {
            buffer.ptr().write_bytes(0, ty.bytes());
            std::slice::from_raw_parts_mut(buffer.ptr(), ty.bytes())
        };
        fill(bytes);
        Ok(Tensor::eager(ty, Arc::new(buffer)))
    }
}

/// Copies bytes of a buffer to the host. From memory of the device's own it is a copy that a profile shows.
fn fetch(buffer: &Buffer, start: usize, into: &mut [u8], site: Site) -> Result<()> {
    if !buffer.device().has_own_memory() {
        return buffer.read(start, into, site);
    }
    let bytes = into.len();
    timed(buffer.device(), "download", || bytes, site, || buffer.read(start, into, site))
}

/// Copies bytes of the host to a buffer, as [`fetch`] copies the other way.
///
/// # Safety
/// As for [`Buffer::write`].
unsafe fn send(buffer: &Buffer, bytes: &[u8], site: Site) -> Result<()> {
    // SAFETY: the caller's promise.
    let write = || unsafe { buffer.write(bytes, site) };
    if !buffer.device().has_own_memory() {
        return write();
    }
    timed(buffer.device(), "upload", || bytes.len(), site, write)
}

/// An element of any type as f64.
pub(crate) fn element(dtype: DType, slot: &[u8]) -> f64 {
    let wide = |n: usize| {
        let mut bytes = [0u8; 8];
        bytes[..n].copy_from_slice(&slot[..n]);
        bytes
    };
    let two = || [slot[0], slot[1]];
    let four = || [slot[0], slot[1], slot[2], slot[3]];
    match dtype {
        DType::F32 => f64::from(f32::from_ne_bytes(four())),
        DType::F64 => f64::from_ne_bytes(wide(8)),
        DType::BF16 => bf16::from_ne_bytes(two()).to_f64(),
        DType::F16 => f16::from_ne_bytes(two()).to_f64(),
        DType::I64 => i64::from_ne_bytes(wide(8)) as f64,
        DType::I32 => f64::from(i32::from_ne_bytes(four())),
        DType::I16 => f64::from(i16::from_ne_bytes(two())),
        DType::I8 => f64::from(slot[0] as i8),
        DType::U32 => f64::from(u32::from_ne_bytes(four())),
        DType::U16 => f64::from(u16::from_ne_bytes(two())),
        DType::U8 | DType::Bool => f64::from(slot[0]),
    }
}
