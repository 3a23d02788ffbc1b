//! Turns host bytes into the content of tensors while the device that has them computes something else.

use std::sync::Arc;

use plimsoll_device::backend::{ALIGNMENT, Uploads};
use plimsoll_graph::{Site, TensorOps, Type};

use super::Tensor;
use crate::device::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};

/// Host memory of a fixed size from which tensors of a device are written beside what runs there.
pub struct HostUploader {
    uploads: Box<dyn Uploads>,
    bytes: usize,
}

impl HostUploader {
    /// Memory for tensors of these types together; none where a device has no use for it.
    ///
    /// # Errors
    /// The device's refusal.
    #[track_caller]
    pub fn new(device: &Device, types: &[Type]) -> Result<Option<HostUploader>> {
        let (site, bytes) = (Site::here(), types.iter().map(|ty| padded(ty.bytes())).sum());
        let uploads = device.backend().uploads(bytes).map_err(|fault| Error::Fault { fault, site })?;
        Ok(uploads.map(|uploads| HostUploader { uploads, bytes }))
    }

    /// The bytes of host memory that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Starts to write tensors. Nothing that still runs may read them; what is to read them comes after
    /// [`HostUploader::finish`].
    ///
    /// # Errors
    /// The values are of other sizes than the tensors or too large together, or a tensor is shared.
    #[track_caller]
    pub fn start<'v>(
        &mut self,
        tensors: &mut [Tensor],
        values: impl Iterator<Item = &'v [u8]>,
    ) -> Result<()> {
        let site = Site::here();
        let refused = |fault| Error::Fault { fault, site };
        let mut at = 0;
        for (tensor, value) in tensors.iter().zip(values) {
            let buffer = tensor.buffer(site)?;
            if tensor.ty().bytes() != value.len() || at + value.len() > self.bytes {
                let why = format!("feeds {} bytes to a tensor of {}", value.len(), tensor.ty());
                return Err(Error::Signature { site, why });
            }
            if Arc::strong_count(buffer) > 1 {
                return Err(Error::Signature { site, why: "feeds a tensor that somebody else holds".into() });
            }
            let part = at..at + value.len();
            self.uploads.bytes().map_err(refused)?[part.clone()].copy_from_slice(value);
            // SAFETY: nobody else holds the buffer, it has as many bytes, and the caller waits before it is read.
            unsafe { self.uploads.start(buffer.ptr(), part) }.map_err(refused)?;
            buffer.device().count_up(value.len());
            at += padded(value.len());
        }
        Ok(())
    }

    /// Lets all that runs from now on see what was written.
    ///
    /// # Errors
    /// The device's refusal.
    #[track_caller]
    pub fn finish(&mut self) -> Result<()> {
        self.uploads.finish().map_err(|fault| Error::Fault { fault, site: Site::here() })
    }
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

impl Tensor {
    /// A tensor of another type in the same bytes, whose content is to be written: for a smaller batch in the place of a
    /// larger one. Where somebody else holds the bytes, or there are too few, it gets bytes of its own.
    ///
    /// ```
    /// use plimsoll_graph::{DType, Type};
    /// use plimsoll_run::{Device, Tensor, TensorOps};
    /// let device = Device::cpu_with(1, "1MiB".parse().unwrap())?;
    /// device.scope(|| {
    ///     let x = Tensor::zeros(Type::new(DType::F32, [64, 8]))?;
    ///     let x = x.in_place_of(Type::new(DType::F32, [9, 8]))?;
    ///     assert_eq!(x.shape()[..], [9, 8]);
    ///     assert_eq!(device.memory_info().current.get(), 64 * 8 * 4);
    ///     Ok::<(), plimsoll_run::Error>(())
    /// })?;
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    #[track_caller]
    pub fn in_place_of(self, ty: Type) -> Result<Tensor> {
        let site = Site::here();
        let buffer = self.buffer(site)?;
        if Arc::strong_count(buffer) == 1 && !buffer.is_borrowed() && buffer.bytes() >= ty.bytes() {
            return Ok(Tensor::eager(ty, buffer.clone()));
        }
        let device = buffer.device().clone();
        // The old bytes go first: both together may be more than there is.
        drop(self);
        let buffer = Buffer::new(&device, ty.bytes(), "tensor", site)?;
        Ok(Tensor::eager(ty, Arc::new(buffer)))
    }
}
