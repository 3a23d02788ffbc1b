//! Turns attributes into descriptors of cuDNN's graph interface, and descriptors back into attributes.

use std::ffi::c_void;

use cudarc::cudnn::sys;
use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendAttributeType_t as Of;
use sys::cudnnBackendDescriptorType_t as Kind;

use super::{dnn, functions};
use crate::error::Error;

/// A description that cuDNN keeps; it goes with this value.
///
/// What a description names is kept by whoever made it until the description goes: see [`super::engine::Graph`].
pub(super) struct Descriptor(sys::cudnnBackendDescriptor_t);

/// A type of which cuDNN takes attributes.
pub(super) trait Attribute: Copy {
    /// What the library calls it.
    const OF: Of;
}

macro_rules! attributes {
    ($($type:ty: $of:ident,)*) => { $(impl Attribute for $type { const OF: Of = Of::$of; })* };
}

attributes! {
    i64: CUDNN_TYPE_INT64,
    f32: CUDNN_TYPE_FLOAT,
    f64: CUDNN_TYPE_DOUBLE,
    bool: CUDNN_TYPE_BOOLEAN,
    sys::cudnnDataType_t: CUDNN_TYPE_DATA_TYPE,
    sys::cudnnConvolutionMode_t: CUDNN_TYPE_CONVOLUTION_MODE,
    sys::cudnnBackendHeurMode_t: CUDNN_TYPE_HEUR_MODE,
    sys::cudnnPointwiseMode_t: CUDNN_TYPE_POINTWISE_MODE,
    sys::cudnnReduceTensorOp_t: CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
    sys::cudnnHandle_t: CUDNN_TYPE_HANDLE,
}

impl Descriptor {
    /// An empty description.
    pub(super) fn new(kind: Kind) -> Result<Descriptor, Error> {
        let mut made = std::ptr::null_mut();
        // SAFETY: the address is of a handle.
        unsafe { dnn!(cudnnBackendCreateDescriptor(kind, &mut made)) }?;
        Ok(Descriptor(made))
    }

    fn set<T>(self, name: Name, of: Of, values: &[T]) -> Result<Descriptor, Error> {
        let (count, at) = (values.len() as i64, values.as_ptr().cast::<c_void>());
        // SAFETY: the handle is live, and there are as many values as is said, of the type that is said; they are copied.
        unsafe { dnn!(cudnnBackendSetAttribute(self.0, name, of, count, at)) }?;
        Ok(self)
    }

    /// With an attribute of one value.
    pub(super) fn with<T: Attribute>(self, name: Name, value: T) -> Result<Descriptor, Error> {
        self.set(name, T::OF, &[value])
    }

    /// With an attribute of several values.
    pub(super) fn with_all<T: Attribute>(self, name: Name, values: &[T]) -> Result<Descriptor, Error> {
        self.set(name, T::OF, values)
    }

    /// With other descriptions as an attribute.
    pub(super) fn naming(self, name: Name, others: &[&Descriptor]) -> Result<Descriptor, Error> {
        let others: Vec<_> = others.iter().map(|other| other.0).collect();
        self.set(name, Of::CUDNN_TYPE_BACKEND_DESCRIPTOR, &others)
    }

    /// With addresses as an attribute.
    pub(super) fn at(self, name: Name, addresses: &[*mut u8]) -> Result<Descriptor, Error> {
        self.set(name, Of::CUDNN_TYPE_VOID_PTR, addresses)
    }

    /// The finished description: cuDNN looks whether it makes sense.
    pub(super) fn finish(self) -> Result<Descriptor, Error> {
        // SAFETY: the handle is live.
        unsafe { dnn!(cudnnBackendFinalize(self.0)) }?;
        Ok(self)
    }

    /// The values of an attribute, at most so many. They are plain numbers: a newer library may know values of an
    /// enumeration that this program does not.
    fn get<T: Copy>(&self, name: Name, of: Of, most: usize, empty: T) -> Result<Vec<T>, Error> {
        let (mut values, mut count) = (vec![empty; most], 0);
        let at = values.as_mut_ptr().cast::<c_void>();
        // SAFETY: the handle is live, and there is room for as many values as is said.
        unsafe { dnn!(cudnnBackendGetAttribute(self.0, name, of, most as i64, &mut count, at)) }?;
        values.truncate(count.max(0) as usize);
        Ok(values)
    }

    /// An attribute that is one whole number.
    pub(super) fn int(&self, name: Name) -> Result<i64, Error> {
        let found = self.get(name, Of::CUDNN_TYPE_INT64, 1, 0i64)?;
        found.first().copied().ok_or(Error::Library {
            library: "cuDNN",
            call: "cudnnBackendGetAttribute",
            why: format!("{name:?} has no value"),
        })
    }

    /// An attribute that is values of an enumeration.
    pub(super) fn values(&self, name: Name, of: Of, most: usize) -> Result<Vec<u32>, Error> {
        self.get(name, of, most, 0u32)
    }

    /// An attribute that is descriptions of a kind, at most so many.
    pub(super) fn named(&self, name: Name, kind: Kind, most: usize) -> Result<Vec<Descriptor>, Error> {
        let mut count = 0;
        let (of, none) = (Of::CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ptr::null_mut());
        // SAFETY: the handle is live; without room only the number is told.
        unsafe { dnn!(cudnnBackendGetAttribute(self.0, name, of, 0, &mut count, none)) }?;
        let most = most.min(count.max(0) as usize);
        // The library fills descriptions that are there already.
        let mut found = (0..most).map(|_| Descriptor::new(kind)).collect::<Result<Vec<_>, _>>()?;
        let mut handles: Vec<_> = found.iter().map(|d| d.0).collect();
        let at = handles.as_mut_ptr().cast::<c_void>();
        // SAFETY: the handle is live, and there is room for as many as is said.
        unsafe { dnn!(cudnnBackendGetAttribute(self.0, name, of, most as i64, &mut count, at)) }?;
        found.truncate(count.max(0) as usize);
        Ok(found)
    }

    /// The library's own name of it, for [`super::engine::Candidate::run`].
    pub(super) fn raw(&self) -> sys::cudnnBackendDescriptor_t {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: nobody has the handle any more. A drop cannot report a refusal.
        unsafe {
            let _ = functions::cudnnBackendDestroyDescriptor(self.0);
        }
    }
}
