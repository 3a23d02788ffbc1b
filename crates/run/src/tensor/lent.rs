//! Lends a tensor's memory to other libraries of the process, and makes tensors of theirs: nothing is copied.

use std::any::Any;
use std::sync::Arc;

use plimsoll_device::backend::ALIGNMENT;
use plimsoll_graph::{Site, Type};

use super::Tensor;
use crate::device::{Buffer, Device};
use crate::error::{Error, Result};

impl Tensor {
    /// Where its bytes begin, once all that was run on its device is done: an address of the host where the host reads the device's memory,
    /// else of the device. Bytes are there as long as a clone of the tensor is, and must not be written to.
    ///
    /// ```
    /// use plimsoll_run::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2])?;
    /// assert_eq!(x.address()?, x.as_bytes()?.as_ptr());
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    ///
    /// # Errors
    /// It is being traced, or something that was run before failed.
    #[track_caller]
    pub fn address(&self) -> Result<*const u8> {
        let site = Site::here();
        let buffer = self.buffer(site)?;
        buffer.device().backend().synchronize().map_err(|fault| Error::Fault { fault, site })?;
        Ok(buffer.ptr())
    }

    /// A tensor of bytes that another library holds on a device, for as long as `owner` is there. Nothing is written over them.
    ///
    /// # Errors
    /// They do not begin at a multiple of [`ALIGNMENT`] bytes, as kernels want it; then they must be copied.
    ///
    /// # Safety
    /// At the address there must be initialised bytes of that type on that device, contiguous and in row-major order. Until `owner` is
    /// dropped they must stay there, and nobody may write to them. Work that writes them must be done, or stand before the device's own
    /// ([`Device::meeting`]).
    #[track_caller]
    pub unsafe fn borrowed(
        device: &Device,
        ty: Type,
        at: *const u8,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Tensor> {
        if !(at as usize).is_multiple_of(ALIGNMENT) {
            let why = format!("borrows memory that does not begin at a multiple of {ALIGNMENT} bytes");
            return Err(Error::Signature { site: Site::here(), why });
        }
        let bytes = ty.bytes();
        Ok(Tensor::eager(ty, Arc::new(Buffer::borrowed(device, at.cast_mut(), bytes, owner))))
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{DType, TensorOps};

    use super::*;

    /// Elements at an address that kernels take.
    #[repr(align(64))]
    struct Held([f32; 16]);

    fn lent(held: &Arc<Held>) -> Tensor {
        let ty = Type::new(DType::F32, [16]);
        let device = Device::current().expect("there is a device");
        // SAFETY: the array stays where it is as long as it is held, and nobody writes to it.
        let lent = unsafe { Tensor::borrowed(&device, ty, held.0.as_ptr().cast(), Box::new(held.clone())) };
        lent.expect("it is aligned")
    }

    #[test]
    fn borrowed_memory_is_read_where_it_lies_and_given_back_with_the_last_clone() {
        let held = Arc::new(Held([2.0; 16]));
        let x = lent(&held);
        assert_eq!(x.address().expect("it is there"), held.0.as_ptr().cast::<u8>());
        let view = x.reshape([4, 4]).expect("as many elements");
        drop(x);
        let sum = view.add(&view).and_then(|y| y.sum(&[], false)).and_then(|y| y.item());
        assert_eq!(sum.expect("they are added"), 64.0);
        assert_eq!(Arc::strong_count(&held), 2);
        drop(view);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn nothing_is_written_over_borrowed_memory() {
        let held = Arc::new(Held([2.0; 16]));
        let mut x = lent(&held);
        x.set_bytes(&[0; 64]).expect("as many bytes");
        assert_eq!((held.0[3], x.to_vec::<f32>().expect("read")[3]), (2.0, 0.0));
        let y = lent(&held).in_place_of(Type::new(DType::F32, [2])).expect("there is room");
        assert_ne!(y.address().expect("it is there"), held.0.as_ptr().cast::<u8>());
    }

    #[test]
    fn memory_that_kernels_cannot_take_is_refused() {
        let held = Arc::new(Held([2.0; 16]));
        let device = Device::current().expect("there is a device");
        let at = held.0[1..].as_ptr().cast();
        // SAFETY: the array stays where it is as long as it is held, and nobody writes to it.
        let refused =
            unsafe { Tensor::borrowed(&device, Type::new(DType::F32, [4]), at, Box::new(held.clone())) };
        assert!(refused.is_err_and(|e| e.to_string().contains("multiple of 64")));
    }
}
