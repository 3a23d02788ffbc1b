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

/// What a product computes.
pub(super) struct Operation(pub(super) sys::cublasLtMatmulDesc_t);

impl Operation {
    pub(super) fn new(
        compute: sys::cublasComputeType_t,
        scale: sys::cudaDataType,
    ) -> Result<Operation, Error> {
        lt::create_matmul_desc(compute, scale).map(Operation).map_err(failed("cublasLtMatmulDescCreate"))
    }

    pub(super) fn set<T: Attribute>(
        &self,
        which: sys::cublasLtMatmulDescAttributes_t,
        value: T,
    ) -> Result<(), Error> {
        // SAFETY: the descriptor is live, and the address is of a value of so many bytes.
        unsafe { lt::set_matmul_desc_attribute(self.0, which, address(&value), size_of::<T>()) }
            .map_err(failed("cublasLtMatmulDescSetAttribute"))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: nobody else has it. A drop cannot report a refusal.
        let _ = unsafe { lt::destroy_matmul_desc(self.0) };
    }
}

/// How a matrix lies in memory.
pub(super) struct Layout(pub(super) sys::cublasLtMatrixLayout_t);

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

    fn set<T: Attribute>(&self, which: sys::cublasLtMatrixLayoutAttribute_t, value: T) -> Result<(), Error> {
        // SAFETY: as for an operation.
        unsafe { lt::set_matrix_layout_attribute(self.0, which, address(&value), size_of::<T>()) }
            .map_err(failed("cublasLtMatrixLayoutSetAttribute"))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: as for an operation.
        let _ = unsafe { lt::destroy_matrix_layout(self.0) };
    }
}

/// What is wanted of an algorithm.
pub(super) struct Preference(pub(super) sys::cublasLtMatmulPreference_t);

impl Preference {
    pub(super) fn new() -> Result<Preference, Error> {
        lt::create_matmul_pref().map(Preference).map_err(failed("cublasLtMatmulPreferenceCreate"))
    }

    pub(super) fn set<T: Attribute>(
        &self,
        which: sys::cublasLtMatmulPreferenceAttributes_t,
        value: T,
    ) -> Result<(), Error> {
        // SAFETY: as for an operation.
        unsafe { lt::set_matmul_pref_attribute(self.0, which, address(&value), size_of::<T>()) }
            .map_err(failed("cublasLtMatmulPreferenceSetAttribute"))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: as for an operation.
        let _ = unsafe { lt::destroy_matmul_pref(self.0) };
    }
}
