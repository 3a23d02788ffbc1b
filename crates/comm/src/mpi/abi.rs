//! The two binary interfaces of MPI that are in use, as types and tables.
//!
//! In Open MPI a handle is a pointer and `MPI_COMM_WORLD` the address of a symbol. In MPICH, and in all that took over its interface
//! (Intel MPI, MVAPICH, Cray MPICH), a handle is a number, fixed in a header. The functions have the same names and orders of
//! arguments.

use std::ffi::{c_int, c_void};

use libloading::os::unix::Library;

/// What a handle is: of a communicator, a request, a type or an error handler.
pub trait Handle: Copy + Send + Sync + 'static {
    /// What stands for one that is not there.
    const EMPTY: Self;
    /// `MPI_ANY_SOURCE`.
    const ANY_SOURCE: c_int;
    /// The class of errors that says that a message is longer than its place (`MPI_ERR_TRUNCATE`).
    const TRUNCATED: c_int;

    /// The fixed handles; none where the library is of the other interface.
    fn constants(library: &Library) -> Option<Constants<Self>>;
}

/// Handles that are there from the start.
#[derive(Clone, Copy)]
pub struct Constants<H> {
    pub world: H,
    pub byte: H,
    pub errors_return: H,
}

/// A handle of Open MPI.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Pointer(*mut c_void);

// SAFETY: a name for something of the library's, which is called by one thread at a time.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

impl Handle for Pointer {
    const EMPTY: Pointer = Pointer(std::ptr::null_mut());
    const ANY_SOURCE: c_int = -1;
    const TRUNCATED: c_int = 15;

    fn constants(library: &Library) -> Option<Constants<Pointer>> {
        let address = |name: &str| {
            // SAFETY: only the address is taken.
            let symbol = unsafe { library.get::<*mut c_void>(name) }.ok()?;
            Some(Pointer(symbol.as_raw_ptr()))
        };
        Some(Constants {
            world: address("ompi_mpi_comm_world")?,
            byte: address("ompi_mpi_byte")?,
            errors_return: address("ompi_mpi_errors_return")?,
        })
    }
}

/// A handle of MPICH.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Number(c_int);

impl Handle for Number {
    const EMPTY: Number = Number(0x2c00_0000);
    const ANY_SOURCE: c_int = -2;
    const TRUNCATED: c_int = 14;

    fn constants(_: &Library) -> Option<Constants<Number>> {
        Some(Constants {
            world: Number(0x4400_0000),
            byte: Number(0x4c00_010d),
            errors_return: Number(0x5400_0001),
        })
    }
}
