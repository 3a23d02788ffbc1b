//! Descriptors of cuBLASLt that are given back when they are dropped, however far the making of the others came.

use std::ffi::c_void;

use cudarc::cublaslt::result as lt;
use cudarc::cublaslt::sys;

use crate::error::Error;

/// The error of a call.
pub(super) fn failed(call: &'static str) -> impl Fn(lt::CublasError) -> Error {
    move |why| Error::Library { library: "cuBLASLt", call, why: format!("{why:?}") }
}

/// A value that an attribute is set to: plain numbers and addresses, whose bytes are all there is to them.
pub(super) trait Attribute: Copy {}

impl Attribute for i32 {}
impl Attribute for u32 {}
impl Attribute for i64 {}
impl Attribute for usize {}
impl Attribute for *mut u8 {}
impl Attribute for sys::cublasLtEpilogue_t {}

fn address<T: Attribute>(value: &T) -> *const c_void {
    (&raw const *value).cast()
}

/// Writes a descriptor that is given back when it is dropped, and how its attributes are set.
macro_rules! descriptor {
    ($(#[doc = $about:literal])+ $name:ident($handle:ty), $attribute:ty, $set:path, $call:literal, $destroy:path) => {
        $(#[doc = $about])+
        pub(super) struct $name(pub(super) $handle);

        impl $name {
            pub(super) fn set<T: Attribute>(&self, which: $attribute, value: T) -> Result<(), Error> {
                // SAFETY: the descriptor is live, and the address is of a value of so many bytes.
                unsafe { $set(self.0, which, address(&value), size_of::<T>()) }.map_err(failed($call))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: nobody else has it. A drop cannot report a refusal.
                let _ = unsafe { $destroy(self.0) };
            }
        }
    };
}

descriptor!(
    /// What a product computes.
    Operation(sys::cublasLtMatmulDesc_t),
    sys::cublasLtMatmulDescAttributes_t,
    lt::set_matmul_desc_attribute,
    "cublasLtMatmulDescSetAttribute",
    lt::destroy_matmul_desc
);

impl Operation {
    pub(super) fn new(
        compute: sys::cublasComputeType_t,
        scale: sys::cudaDataType,
    ) -> Result<Operation, Error> {
        lt::create_matmul_desc(compute, scale).map(Operation).map_err(failed("cublasLtMatmulDescCreate"))
    }
}

descriptor!(
    /// How a matrix lies in memory.
    Layout(sys::cublasLtMatrixLayout_t),
    sys::cublasLtMatrixLayoutAttribute_t,
    lt::set_matrix_layout_attribute,
    "cublasLtMatrixLayoutSetAttribute",
    lt::destroy_matrix_layout
);

impl Layout {
    /// A matrix by columns; of so many in a row, `offset` elements apart, where there are several.
    pub(super) fn new(
        dtype: sys::cudaDataType,
        (rows, columns): (usize, usize),
        leading: usize,
        (count, offset): (usize, usize),
    ) -> Result<Layout, Error> {
        use sys::cublasLtMatrixLayoutAttribute_t as L;
        let layout = lt::create_matrix_layout(dtype, rows as u64, columns as u64, leading as i64)
            .map(Layout)
            .map_err(failed("cublasLtMatrixLayoutCreate"))?;
        if count > 1 {
            layout.set(L::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count as i32)?;
            layout.set(L::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, offset as i64)?;
        }
        Ok(layout)
    }
}

descriptor!(
    /// What is wanted of an algorithm.
    Preference(sys::cublasLtMatmulPreference_t),
    sys::cublasLtMatmulPreferenceAttributes_t,
    lt::set_matmul_pref_attribute,
    "cublasLtMatmulPreferenceSetAttribute",
    lt::destroy_matmul_pref
);

impl Preference {
    pub(super) fn new() -> Result<Preference, Error> {
        lt::create_matmul_pref().map(Preference).map_err(failed("cublasLtMatmulPreferenceCreate"))
    }
}
