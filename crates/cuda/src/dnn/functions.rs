//! The functions of cuDNN that are called here, of the library that the process already has or of the one that is installed.
//!
//! cuDNN is several libraries that find one another by name. A process into which PyTorch has brought its own must use that one: parts of two versions
//! do not work together, and whole families of engines are then missing.

use std::ffi::c_void;
use std::sync::OnceLock;

use cudarc::cudnn::sys::*;

use crate::library;

/// How the names of cuDNN's files begin.
pub(crate) const STEM: &str = "libcudnn.so";

macro_rules! functions {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $result:ty, or $none:expr;)+) => {
        #[allow(non_snake_case)]
        struct Functions { $($name: unsafe extern "C" fn($($ty),*) -> $result,)+ }

        impl Functions {
            /// None where one of them is missing.
            fn of(library: &libloading::os::unix::Library) -> Option<Functions> {
                // SAFETY: these are the functions' types; the library is never closed.
                unsafe { Some(Functions { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes()).ok()?,)+ }) }
            }
        }

        $(
            /// As of cuDNN; refused where it is not there.
            ///
            /// # Safety
            /// As of cuDNN.
            #[allow(non_snake_case)]
            pub(super) unsafe fn $name($($arg: $ty),*) -> $result {
                // SAFETY: the caller's promise.
                found().map_or($none, |functions| unsafe { (functions.$name)($($arg),*) })
            }
        )+
    };
}

const ABSENT: cudnnStatus_t = cudnnStatus_t::CUDNN_STATUS_NOT_INITIALIZED;

functions! {
    cudnnGetVersion() -> usize, or 0;
    cudnnCreate(handle: *mut cudnnHandle_t) -> cudnnStatus_t, or ABSENT;
    cudnnDestroy(handle: cudnnHandle_t) -> cudnnStatus_t, or ABSENT;
    cudnnSetStream(handle: cudnnHandle_t, stream: cudaStream_t) -> cudnnStatus_t, or ABSENT;
    cudnnBackendCreateDescriptor(kind: cudnnBackendDescriptorType_t, to: *mut cudnnBackendDescriptor_t) -> cudnnStatus_t, or ABSENT;
    cudnnBackendDestroyDescriptor(of: cudnnBackendDescriptor_t) -> cudnnStatus_t, or ABSENT;
    cudnnBackendFinalize(of: cudnnBackendDescriptor_t) -> cudnnStatus_t, or ABSENT;
    cudnnBackendSetAttribute(
        of: cudnnBackendDescriptor_t, name: cudnnBackendAttributeName_t, kind: cudnnBackendAttributeType_t, count: i64, from: *const c_void
    ) -> cudnnStatus_t, or ABSENT;
    cudnnBackendGetAttribute(
        of: cudnnBackendDescriptor_t, name: cudnnBackendAttributeName_t, kind: cudnnBackendAttributeType_t, most: i64, count: *mut i64, to: *mut c_void
    ) -> cudnnStatus_t, or ABSENT;
    cudnnBackendExecute(handle: cudnnHandle_t, plan: cudnnBackendDescriptor_t, pack: cudnnBackendDescriptor_t) -> cudnnStatus_t, or ABSENT;
}

/// The functions; none where there is no cuDNN.
fn found() -> Option<&'static Functions> {
    static FOUND: OnceLock<Option<Functions>> = OnceLock::new();
    let find = || {
        let library = library::opened(STEM, &["", ".9"])?;
        let functions = Functions::of(&library);
        // It must stay open for as long as its functions are called, which is to the end.
        std::mem::forget(library);
        functions
    };
    FOUND.get_or_init(find).as_ref()
}

/// Whether there is a cuDNN with these functions.
pub(crate) fn are_there() -> bool {
    found().is_some()
}
