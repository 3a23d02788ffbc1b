//! Turns a NumPy array into bytes that are read where they lie, and bytes into what NumPy reads.

use std::io;
use std::sync::{Mutex, PoisonError};

use plimsoll::internals::formats::Element;
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// An array of NumPy, in C order. It is held as long as this is.
pub struct Array {
    start: *const u8,
    bytes: usize,
    pub element: Element,
    pub shape: Vec<usize>,
    _owner: Py<PyAny>,
}

// SAFETY: the bytes are only read, and the array that owns them is held; NumPy never moves an array's memory, and refuses to resize one
// that is referred to. Writing to an array while it is trained on races as it does with every library that reads it without the lock.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl AsRef<[u8]> for Array {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: NumPy's own description of the array says that so many bytes begin here, and the array is held.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl Array {
    /// Takes an array as it lies.
    ///
    /// # Errors
    /// It is no plain array of NumPy, not in C order, or of elements that are not taken.
    pub fn new(value: &Bound<'_, PyAny>) -> PyResult<Array> {
        let py = value.py();
        // What another class says of its memory is not to be believed.
        if !value.get_type().is(&py.import("numpy")?.getattr("ndarray")?) {
            let class = value.get_type().name()?;
            return Err(PyTypeError::new_err(format!("an array of NumPy belongs here, not {class}")));
        }
        let name: String = value.getattr("dtype")?.getattr("name")?.extract()?;
        let element = element(&name)?;
        let interface = value.getattr("__array_interface__")?.cast_into::<PyDict>()?;
        let part = |key: &str| {
            interface.get_item(key)?.ok_or_else(|| PyTypeError::new_err("an array without a description"))
        };
        let (start, _): (usize, bool) = part("data")?.extract()?;
        let shape: Vec<usize> = part("shape")?.cast::<PyTuple>()?.extract()?;
        let order: String = part("typestr")?.extract()?;
        if !part("strides")?.is_none() || order.starts_with('>') {
            return Err(PyValueError::new_err(
                "an array in C order and in the machine's byte order belongs here",
            ));
        }
        let bytes = element.bytes_of(&shape).ok_or_else(|| PyValueError::new_err("an array is too large"))?;
        if value.getattr("nbytes")?.extract::<usize>()? != bytes {
            return Err(PyValueError::new_err(format!(
                "an array of {name} is not as large as its shape says"
            )));
        }
        Ok(Array { start: start as *const u8, bytes, element, shape, _owner: value.clone().unbind() })
    }
}

/// The element type that NumPy calls so.
pub fn element(name: &str) -> PyResult<Element> {
    Element::from_numpy(name).ok_or_else(|| {
        PyTypeError::new_err(format!("arrays of {name} are not taken; convert it to float32 or int64"))
    })
}

/// Reads an array of a store, which answers to `read(name)`, into a buffer of the size that the array had `then`.
pub fn read_into(store: &Py<PyAny>, name: &str, buffer: &mut [u8], then: &str) -> io::Result<()> {
    let read = |py: Python<'_>| -> PyResult<()> {
        let array = Array::new(&store.bind(py).call_method1("read", (name,))?)?;
        let bytes = array.as_ref();
        if bytes.len() != buffer.len() {
            let (found, expected) = (bytes.len(), buffer.len());
            return Err(PyValueError::new_err(format!("it has {found} bytes now and had {expected} {then}")));
        }
        buffer.copy_from_slice(bytes);
        Ok(())
    };
    Python::attach(read).map_err(kept)
}

/// What ended the interpreter's code in the middle of a variable, and is no error of that: Ctrl-C. The engine only hears of a failure to read.
static INTERRUPT: Mutex<Option<PyErr>> = Mutex::new(None);

/// What Python raised as the engine's readers take it. An interrupt is kept for whoever called.
pub fn kept(error: PyErr) -> io::Error {
    Python::attach(|py| {
        if !error.is_instance_of::<PyException>(py) {
            *INTERRUPT.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone_ref(py));
        }
    });
    io::Error::other(error)
}

/// The interrupt that was met while variables were read, once.
pub fn interrupt() -> Option<PyErr> {
    INTERRUPT.lock().unwrap_or_else(PoisonError::into_inner).take()
}
