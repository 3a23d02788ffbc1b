//! NCCL and the few functions of the CUDA driver that say when it is done, found and loaded at run time.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::os::unix::Library as Loaded;
use plimsoll_graph::DType;

use crate::call::Reduce;

/// What ranks must share to find each other (`ncclUniqueId`).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// A communicator, a stream or an event: the library's or the driver's own.
pub type Opaque = *mut c_void;

macro_rules! functions {
    ($(#[$about:meta])* $table:ident { $($name:ident: $symbol:literal fn($($argument:ty),*) -> $result:ty;)* }) => {
        $(#[$about])*
        pub struct $table {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Kept loaded: the functions are in it.
            _loaded: Loaded,
        }

        impl $table {
            fn find(loaded: Loaded) -> Result<$table, String> {
                Ok($table {
                    // SAFETY: the public header of the library gives these functions these arguments.
                    $($name: unsafe {
                        *loaded.get::<unsafe extern "C" fn($($argument),*) -> $result>($symbol)
                            .map_err(|e| format!("it has no {}: {e}", $symbol))?
                    },)*
                    _loaded: loaded,
                })
            }
        }
    };
}

functions! {
    /// NCCL.
    Nccl {
        get_version: "ncclGetVersion" fn(*mut c_int) -> c_int;
        get_unique_id: "ncclGetUniqueId" fn(*mut UniqueId) -> c_int;
        comm_init_rank: "ncclCommInitRank" fn(*mut Opaque, c_int, UniqueId, c_int) -> c_int;
        comm_destroy: "ncclCommDestroy" fn(Opaque) -> c_int;
        comm_abort: "ncclCommAbort" fn(Opaque) -> c_int;
        comm_get_async_error: "ncclCommGetAsyncError" fn(Opaque, *mut c_int) -> c_int;
        get_error_string: "ncclGetErrorString" fn(c_int) -> *const c_char;
        all_reduce: "ncclAllReduce" fn(*const c_void, Opaque, usize, c_int, c_int, Opaque, Opaque) -> c_int;
        reduce: "ncclReduce" fn(*const c_void, Opaque, usize, c_int, c_int, c_int, Opaque, Opaque) -> c_int;
        broadcast: "ncclBroadcast" fn(*const c_void, Opaque, usize, c_int, c_int, Opaque, Opaque) -> c_int;
        reduce_scatter: "ncclReduceScatter" fn(*const c_void, Opaque, usize, c_int, c_int, Opaque, Opaque) -> c_int;
        all_gather: "ncclAllGather" fn(*const c_void, Opaque, usize, c_int, Opaque, Opaque) -> c_int;
        send: "ncclSend" fn(*const c_void, usize, c_int, c_int, Opaque, Opaque) -> c_int;
        recv: "ncclRecv" fn(Opaque, usize, c_int, c_int, Opaque, Opaque) -> c_int;
        group_start: "ncclGroupStart" fn() -> c_int;
        group_end: "ncclGroupEnd" fn() -> c_int;
    }
}

functions! {
    /// Streams and events of the CUDA driver, and memory to try a link with.
    Driver {
        stream_create: "cuStreamCreate" fn(*mut Opaque, c_uint) -> c_int;
        stream_destroy: "cuStreamDestroy_v2" fn(Opaque) -> c_int;
        mem_alloc: "cuMemAlloc_v2" fn(*mut u64, usize) -> c_int;
        mem_free: "cuMemFree_v2" fn(u64) -> c_int;
        event_create: "cuEventCreate" fn(*mut Opaque, c_uint) -> c_int;
        event_record: "cuEventRecord" fn(Opaque, Opaque) -> c_int;
        event_query: "cuEventQuery" fn(Opaque) -> c_int;
        event_destroy: "cuEventDestroy_v2" fn(Opaque) -> c_int;
    }
}

impl Nccl {
    /// Loads NCCL; what is missing, otherwise.
    pub fn load(path: Option<&str>) -> Result<Nccl, String> {
        let name = path.unwrap_or("libnccl.so.2");
        Nccl::find(open(name)?).map_err(|why| format!("{name}: {why}"))
    }

    /// A result of NCCL as a value.
    pub fn check(&self, name: &str, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: a text of the library's that stays.
        let text = unsafe { CStr::from_ptr((self.get_error_string)(code)) };
        Err(format!("{name} failed with {code}: {}", text.to_string_lossy()))
    }

    /// `2.32.3`.
    pub fn version(&self) -> Result<String, String> {
        let mut version = 0;
        // SAFETY: a place for one number.
        self.check("ncclGetVersion", unsafe { (self.get_version)(&mut version) })?;
        // Since 2.9 the second part has two digits of its own.
        let (major, rest) = if version < 10_000 {
            (version / 1000, version % 1000)
        } else {
            (version / 10_000, version % 10_000)
        };
        Ok(format!("{major}.{}.{}", rest / 100, rest % 100))
    }

    /// A new meeting of ranks.
    pub fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: a place for one.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&mut id) })?;
        Ok(id)
    }
}

impl Driver {
    /// Loads the driver; what is missing, otherwise.
    pub fn load() -> Result<Driver, String> {
        Driver::find(open("libcuda.so.1")?).map_err(|why| format!("libcuda.so.1: {why}"))
    }
}

fn open(name: &str) -> Result<Loaded, String> {
    // SAFETY: NVIDIA's own libraries; what they do when they are loaded is what they do for any program.
    unsafe { Loaded::new(name) }.map_err(|e| format!("{name} cannot be loaded: {e}"))
}

/// NCCL's number of a type (`ncclDataType_t`), where it reduces it.
pub fn data_type(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        DType::I16 | DType::U16 | DType::Bool => return None,
    })
}

/// NCCL's number of a reduction (`ncclRedOp_t`).
pub fn reduction(reduce: Reduce) -> c_int {
    match reduce {
        Reduce::Sum => 0,
        Reduce::Max => 2,
    }
}
