//! Turns tensors into DLPack's capsules and those of other libraries into tensors, on the host and on a card: nothing is copied where that can be.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use plimsoll::internals::graph::Shape;
use plimsoll::prelude::*;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Engine, Tensor};
use crate::call::{caught, op};

/// `kDLCPU`, `kDLCUDA` and `kDLCUDAHost`.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const PINNED: i32 = 3;
/// The version that is spoken here; minor ones add nothing to the structs.
const VERSION: (u32, u32) = (1, 0);
const READ_ONLY: u64 = 1;
const COPIED: u64 = 2;
const VERSIONED: &CStr = c"dltensor_versioned";
const PLAIN: &CStr = c"dltensor";

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    dtype: DlType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// DLPack's kinds of numbers, and our types of each kind.
const KINDS: [(u8, &[DType]); 5] = [
    (0, &[DType::I64, DType::I32, DType::I16, DType::I8]),
    (1, &[DType::U32, DType::U16, DType::U8]),
    (2, &[DType::F64, DType::F32, DType::F16]),
    (4, &[DType::BF16]),
    (6, &[DType::Bool]),
];

/// Every type of elements with the kind and the bits that DLPack knows it by.
fn types() -> impl Iterator<Item = (DType, u8, u8)> {
    KINDS.into_iter().flat_map(|(kind, types)| types.iter().map(move |&ty| (ty, kind, 8 * ty.bytes() as u8)))
}

/// What a capsule of ours keeps until its taker lets go of it. The tensor's memory is read until then.
struct Lent {
    tensor: Engine,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The taker's work on a card may still read what is about to be used for something else.
        if let Some(device) = self.tensor.device().filter(|device| device.meeting().is_some()) {
            device.settle().ok();
        }
    }
}

/// A tensor as DLPack describes it, with what keeps it there.
fn lent(tensor: Engine) -> Result<(DlTensor, Box<Lent>), plimsoll::internals::run::Error> {
    let address = tensor.address()?;
    let (code, bits) = types().find(|row| row.0 == tensor.dtype()).map_or((3, 8), |row| (row.1, row.2));
    let shape: Vec<i64> = tensor.shape().iter().map(|&n| n as i64).collect();
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1);
    }
    let device = tensor.device().and_then(Device::meeting).map_or([CPU, 0], |card| [CUDA, card.ordinal]);
    let mut lent = Box::new(Lent { tensor, shape, strides });
    let described = DlTensor {
        data: address.cast_mut().cast(),
        device,
        ndim: lent.shape.len() as i32,
        dtype: DlType { code, bits, lanes: 1 },
        shape: lent.shape.as_mut_ptr(),
        strides: lent.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    Ok((described, lent))
}

/// Lets go of what a capsule kept.
///
/// # Safety
/// `managed` came from [`capsule`], and is given back once.
unsafe extern "C" fn release(managed: *mut Managed) {
    // SAFETY: both were made by `Box::into_raw` there.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Lent>()));
    }
}

/// As [`release`].
///
/// # Safety
/// As there.
unsafe extern "C" fn release_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: both were made by `Box::into_raw` there.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Lent>()));
    }
}

/// Lets go of what is in a capsule that nobody has taken.
///
/// # Safety
/// Python calls it with a capsule that was made here.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule still has its first name where nobody has taken what is in it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            release(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            release_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// A capsule of a tensor, of the newer kind with its flags or of the older one.
fn capsule(py: Python<'_>, tensor: Engine, flags: Option<u64>) -> PyResult<Bound<'_, PyAny>> {
    let (tensor, lent) = op(py, || lent(tensor).map(Sent))?.0;
    let context = Box::into_raw(lent).cast();
    let (made, name): (*mut c_void, _) = match flags {
        Some(flags) => {
            let version = [VERSION.0, VERSION.1];
            let deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)> = Some(release_versioned);
            let managed = ManagedVersioned { version, context, deleter, flags, tensor };
            (Box::into_raw(Box::new(managed)).cast(), VERSIONED)
        }
        None => {
            let managed = Managed { tensor, context, deleter: Some(release) };
            (Box::into_raw(Box::new(managed)).cast(), PLAIN)
        }
    };
    // SAFETY: the pointer is live, the name is static, and the destructor knows both kinds.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(made, name.as_ptr(), Some(destroy))) }
}

/// What has addresses in it, handed out of a call that stays on its thread.
struct Sent<T>(T);

// SAFETY: `op` and `caught` run their bodies on the thread that calls them.
unsafe impl<T> Send for Sent<T> {}

#[pymethods]
impl Tensor {
    /// DLPack, by which NumPy, PyTorch, JAX and TensorFlow take its elements where they lie, on the host or on a card. They are not to be written
    /// to, which takers of DLPack 1.0 are told; those of older versions are given a copy on the host.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Work of ours is waited for, so that any stream of the taker's may go on at once.
        let _ = stream;
        if self.0.is_traced() {
            return Err(PyBufferError::new_err("a tensor that is being traced has no elements to give"));
        }
        let (here, is_versioned) =
            (self.__dlpack_device__(), max_version.is_some_and(|version| version.0 >= 1));
        let wanted = dl_device.unwrap_or(here);
        let is_moved =
            wanted != here || (here == (CPU, 0) && self.0.device().is_some_and(Device::has_own_memory));
        if is_moved && wanted != (CPU, 0) {
            let why =
                format!("a tensor on {here:?} cannot be given to the device {wanted:?}; move it with to()");
            return Err(PyBufferError::new_err(why));
        }
        let is_copied = is_moved || copy == Some(true) || (!is_versioned && here == (CPU, 0));
        if is_copied && copy == Some(false) {
            return Err(PyBufferError::new_err("the tensor can only be given as a copy, and copy is False"));
        }
        let given = match (is_moved, is_copied) {
            (true, _) => {
                let host = caught(py, || super::device_for_tensors("cpu"))?;
                op(py, || self.0.to(&host))?
            }
            (false, true) => op(py, || self.0.copy())?,
            (false, false) => self.0.clone(),
        };
        capsule(py, given, is_versioned.then_some(if is_copied { COPIED } else { READ_ONLY }))
    }

    /// The kind of its device and its number, as DLPack names them.
    fn __dlpack_device__(&self) -> (i32, i32) {
        self.0.device().and_then(Device::meeting).map_or((CPU, 0), |card| (CUDA, card.ordinal))
    }
}

/// What was taken out of a capsule of another library: given back when it is dropped.
enum Taken {
    Plain(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

// SAFETY: DLPack's deleters may be called on any thread.
unsafe impl Send for Taken {}
// SAFETY: nothing is done with it but to drop it.
unsafe impl Sync for Taken {}

impl Taken {
    /// Takes what is in a capsule, which gets another name so that nobody does again.
    fn new(capsule: &Bound<'_, PyAny>) -> PyResult<Taken> {
        let at = capsule.as_ptr();
        // SAFETY: the capsule is held; it has a pointer of the kind that its name says, which lives until its deleter is called.
        unsafe {
            for (name, used) in [(VERSIONED, c"used_dltensor_versioned"), (PLAIN, c"used_dltensor")] {
                if ffi::PyCapsule_IsValid(at, name.as_ptr()) != 1 {
                    continue;
                }
                let pointer = ffi::PyCapsule_GetPointer(at, name.as_ptr());
                if name == VERSIONED {
                    let managed: *mut ManagedVersioned = pointer.cast();
                    let [major, minor] = (*managed).version;
                    if major != VERSION.0 {
                        let why = format!("DLPack {major}.{minor} is not known here");
                        return Err(PyBufferError::new_err(why));
                    }
                }
                ffi::PyCapsule_SetName(at, used.as_ptr());
                let missing = || PyBufferError::new_err("a capsule of DLPack has nothing in it");
                return match name == VERSIONED {
                    true => NonNull::new(pointer.cast()).map(Taken::Versioned).ok_or_else(missing),
                    false => NonNull::new(pointer.cast()).map(Taken::Plain).ok_or_else(missing),
                };
            }
        }
        Err(PyTypeError::new_err("this is no capsule of DLPack, or it was taken before"))
    }

    fn tensor(&self) -> &DlTensor {
        // SAFETY: it lives until its deleter is called, in `drop`.
        unsafe {
            match self {
                Taken::Plain(managed) => &managed.as_ref().tensor,
                Taken::Versioned(managed) => &managed.as_ref().tensor,
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: it is given back once, here.
        unsafe {
            match self {
                Taken::Plain(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
                Taken::Versioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

/// The type of a tensor of another library, and where it begins.
fn described(tensor: &DlTensor) -> PyResult<(Type, *const u8)> {
    let DlType { code, bits, lanes } = tensor.dtype;
    let dtype = types().find(|row| (row.1, row.2) == (code, bits) && lanes == 1).map(|row| row.0);
    let dtype = dtype.ok_or_else(|| {
        let why = format!("elements of DLPack's kind {code} with {bits} bits in {lanes} lanes are not taken");
        PyTypeError::new_err(why)
    })?;
    let rank = usize::try_from(tensor.ndim).unwrap_or(0);
    let axes = |at: *const i64| match at.is_null() || rank == 0 {
        true => Vec::new(),
        // SAFETY: DLPack's description has as many lengths, and strides where there are any.
        false => unsafe { std::slice::from_raw_parts(at, rank) }.to_vec(),
    };
    let (shape, strides) = (axes(tensor.shape), axes(tensor.strides));
    let mut dense = 1;
    for (axis, &length) in shape.iter().enumerate().rev() {
        if strides.get(axis).is_some_and(|&stride| stride != dense && length > 1) && !shape.contains(&0) {
            return Err(PyBufferError::new_err(
                "the tensor is not contiguous in row-major order; make it so first (contiguous() in PyTorch)",
            ));
        }
        dense *= length;
    }
    let shape: Shape = shape.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
    Ok((Type::new(dtype, shape), tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize)))
}

/// A tensor of another library's, on the host or on a card, through DLPack: where it lies, and no copy of it. Whoever writes to it meanwhile changes this
/// one too. What does not begin at a multiple of 64 bytes is copied, on the host; on a card it is refused.
///
/// >>> plimsoll.from_dlpack(np.arange(3.0)).numpy()
/// array([0., 1., 2.])
#[pyfunction]
pub fn from_dlpack(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let missing = || {
        let class = value.get_type().name().map(|name| name.to_string()).unwrap_or_default();
        PyTypeError::new_err(format!("{class} does not give DLPack; plimsoll.Tensor takes what NumPy takes"))
    };
    let kind: (i32, i32) = value.call_method0("__dlpack_device__").map_err(|_| missing())?.extract()?;
    let name = match kind {
        (CPU | PINNED, _) => "cpu".to_string(),
        (CUDA, ordinal) => format!("cuda:{ordinal}"),
        (other, _) => {
            let why = format!(
                "tensors on DLPack's kind of device {other} are not taken; copy it to the host first"
            );
            return Err(PyBufferError::new_err(why));
        }
    };
    let device = caught(py, || super::device_for_tensors(&name))?;
    let settings = PyDict::new(py);
    if let Some(card) = device.meeting() {
        // The giver's work is put before ours.
        settings.set_item("stream", card.stream)?;
    }
    settings.set_item("max_version", VERSION)?;
    let capsule = value.call_method("__dlpack__", (), Some(&settings)).or_else(|error| {
        // Those that know DLPack before 1.0 only.
        if !error.is_instance_of::<PyTypeError>(py) {
            return Err(error);
        }
        settings.del_item("max_version")?;
        value.call_method("__dlpack__", (), Some(&settings))
    })?;
    let taken = Taken::new(&capsule)?;
    let (ty, at) = described(taken.tensor())?;
    let at = Sent(at);
    op(py, move || {
        let at = at;
        let Sent(at) = at;
        if device.has_own_memory() || (at as usize).is_multiple_of(64) && ty.bytes() > 0 {
            // SAFETY: the giver's description says that so many bytes are there, contiguous, until its deleter is called; and its work stands before
            // ours.
            return unsafe { Engine::borrowed(&device, ty, at, Box::new(taken)) };
        }
        device.scope(|| {
            let mut copy = Engine::zeros(ty.clone())?;
            if ty.bytes() > 0 {
                // SAFETY: as above; the memory is the host's.
                copy.set_bytes(unsafe { std::slice::from_raw_parts(at, ty.bytes()) })?;
            }
            drop(taken);
            Ok(copy)
        })
    })
    .map(Tensor)
}
