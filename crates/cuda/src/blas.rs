//! Matrix products by cuBLASLt, with every byte of workspace declared and the algorithm chosen by sizes alone.
//!
//! The library stores matrices by columns. Ours are stored by rows, which is the same memory transposed: it is asked for
//! cᵀ = bᵀ aᵀ.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::result as lt;
use cudarc::cublaslt::sys;
use plimsoll_graph::DType;
use plimsoll_graph::ops::Unary;

use crate::card::Card;
use crate::error::Error;
use crate::kernels::{Matrix, Product};
use crate::library::Library;

/// The most workspace that an algorithm may ask for.
const WORKSPACE: usize = 32 << 20;
/// The alignment that a workspace gets inside of the scratch.
const WORKSPACE_ALIGN: usize = 256;

/// What an algorithm depends on: sizes, types, strides, alignment, epilogue and the workspace there is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    sizes: [usize; 4],
    strides: [usize; 8],
    types: [DType; 3],
    aligned: [usize; 3],
    flags: [bool; 3],
    workspace: usize,
}

/// A chosen algorithm and what it is called with; none if the library has none.
struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

/// A handle of the library and the algorithms chosen so far.
pub(crate) struct Blas {
    handle: sys::cublasLtHandle_t,
    tf32: bool,
    plans: Mutex<HashMap<Key, Option<Plan>>>,
}

// SAFETY: the handle may be used by all threads; descriptors are only touched under the lock.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

fn failed(call: &'static str) -> impl Fn(lt::CublasError) -> Error {
    move |why| Error::Library { library: "cuBLASLt", call, why: format!("{why:?}") }
}

fn type_of(dtype: DType) -> Option<sys::cudaDataType> {
    Some(match dtype {
        DType::F32 => sys::cudaDataType::CUDA_R_32F,
        DType::F64 => sys::cudaDataType::CUDA_R_64F,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        _ => return None,
    })
}

/// How a row-major matrix is told to the library: whether it is to be transposed, and its leading dimension.
fn leading(x: &Matrix, rows: usize, columns: usize) -> Option<(bool, usize)> {
    if x.column == 1 && x.row >= columns {
        Some((false, x.row))
    } else if x.row == 1 && x.column >= rows {
        Some((true, x.column))
    } else {
        None
    }
}

fn alignment(at: *mut u8) -> usize {
    1 << (at as usize | 16).trailing_zeros()
}

impl Blas {
    /// A handle, or none where the library is not installed.
    pub(crate) fn new(card: &Card, tf32: bool) -> Result<Option<Blas>, Error> {
        if !Library::BlasLt.is_present() {
            return Ok(None);
        }
        card.enter()?;
        let handle = lt::create_handle().map_err(failed("cublasLtCreate"))?;
        Ok(Some(Blas { handle, tf32, plans: Mutex::default() }))
    }

    /// The library's version.
    pub(crate) fn version(&self) -> usize {
        // SAFETY: the library is there: it gave a handle.
        unsafe { sys::cublasLtGetVersion() }
    }

    fn key(&self, p: &Product, workspace: usize) -> Key {
        Key {
            sizes: [p.batch, p.m, p.n, p.k],
            strides: [p.a.row, p.a.column, p.a.batch, p.b.row, p.b.column, p.b.batch, p.c.row, p.c.batch],
            types: [p.a.dtype, p.b.dtype, p.c.dtype],
            aligned: [alignment(p.a.at), alignment(p.b.at), alignment(p.c.at)],
            flags: [p.accumulate, p.bias.is_some(), p.act == Some(Unary::Relu)],
            workspace,
        }
    }

    /// Runs `f` with the plan of a product, made first if there is none yet.
    fn with_plan<R>(
        &self,
        p: &Product,
        workspace: usize,
        f: impl FnOnce(Option<&Plan>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let key = self.key(p, workspace);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = match plans.entry(key) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(self.plan(p, workspace)?),
        };
        f(plan.as_ref())
    }

    /// The bytes of scratch that a product needs; none where the library has no algorithm for it.
    pub(crate) fn scratch(&self, p: &Product) -> Option<usize> {
        let bytes = self.with_plan(p, WORKSPACE, |plan| Ok(plan.map(|plan| plan.workspace))).ok()??;
        Some(if bytes == 0 { 0 } else { bytes + WORKSPACE_ALIGN })
    }

    /// Puts a product on the stream and says what is left to do after it; none where the library cannot.
    ///
    /// # Safety
    /// All operands must be live memory of the device, and the scratch of as many bytes.
    pub(crate) unsafe fn run(
        &self,
        card: &Card,
        p: &Product,
        scratch: *mut u8,
        scratch_bytes: usize,
    ) -> Result<Option<Option<Unary>>, Error> {
        card.enter()?;
        // The plan that was asked for its scratch, where its workspace is there; else one that makes do with less.
        let declared = self.with_plan(p, WORKSPACE, |plan| Ok(plan.map(|plan| plan.workspace)))?;
        let fits = declared.is_none_or(|bytes| bytes == 0 || bytes + WORKSPACE_ALIGN <= scratch_bytes);
        let limit = if fits { WORKSPACE } else { scratch_bytes.saturating_sub(WORKSPACE_ALIGN) };
        self.with_plan(p, limit, |plan| {
            let Some(plan) = plan else { return Ok(None) };
            let place = (scratch as usize).next_multiple_of(WORKSPACE_ALIGN) as *mut c_void;
            let (one, beta) = (1.0f32, if p.accumulate { 1.0f32 } else { 0.0 });
            let (one64, beta64) = (1.0f64, f64::from(beta));
            let (alpha, beta): (*const c_void, *const c_void) = if p.c.dtype == DType::F64 {
                ((&raw const one64).cast(), (&raw const beta64).cast())
            } else {
                ((&raw const one).cast(), (&raw const beta).cast())
            };
            let [b, a, c] = plan.layouts;
            // SAFETY: the caller's promise; the descriptors are those of this product, and the lock is held.
            unsafe {
                if let Some(bias) = p.bias {
                    let which = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
                    lt::set_matmul_desc_attribute(plan.operation, which, (&raw const bias).cast(), 8)
                        .map_err(failed("cublasLtMatmulDescSetAttribute"))?;
                }
                lt::matmul(
                    self.handle,
                    plan.operation,
                    alpha,
                    beta,
                    p.b.at.cast(),
                    b,
                    p.a.at.cast(),
                    a,
                    p.c.at.cast(),
                    c,
                    p.c.at.cast(),
                    c,
                    &plan.algorithm,
                    place,
                    plan.workspace,
                    card.stream.cast(),
                )
                .map_err(failed("cublasLtMatmul"))?;
            }
            // Of activations the library knows one; products that differ in others share a plan.
            Ok(Some(p.act.filter(|act| *act != Unary::Relu)))
        })
    }

    fn plan(&self, p: &Product, workspace: usize) -> Result<Option<Plan>, Error> {
        let (Some(ta), Some(tb), Some(tc)) = (type_of(p.a.dtype), type_of(p.b.dtype), type_of(p.c.dtype))
        else {
            return Ok(None);
        };
        let fits = p.a.dtype == p.b.dtype && (p.c.dtype == p.a.dtype || p.c.dtype == p.a.dtype.accumulator());
        let (Some((a_turned, a_ld)), Some((b_turned, b_ld))) =
            (leading(&p.a, p.m, p.k), leading(&p.b, p.k, p.n))
        else {
            return Ok(None);
        };
        if !fits || p.c.column != 1 || p.c.row < p.n || p.m == 0 || p.n == 0 || p.k == 0 {
            return Ok(None);
        }
        use sys::cublasComputeType_t as Compute;
        let (compute, scale) = match p.c.dtype {
            DType::F64 => (Compute::CUBLAS_COMPUTE_64F, sys::cudaDataType::CUDA_R_64F),
            _ if self.tf32 && p.a.dtype == DType::F32 => {
                (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, sys::cudaDataType::CUDA_R_32F)
            }
            _ => (Compute::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F),
        };
        let relu = p.act == Some(Unary::Relu);
        use sys::cublasLtEpilogue_t as Epilogue;
        let epilogue = match (p.bias.is_some(), relu) {
            (false, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
            (false, true) => Epilogue::CUBLASLT_EPILOGUE_RELU,
            (true, false) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
            (true, true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        let operation = lt::create_matmul_desc(compute, scale).map_err(failed("cublasLtMatmulDescCreate"))?;
        use sys::cublasLtMatmulDescAttributes_t as Desc;
        let turn = |turned: bool| -> i32 { i32::from(turned) };
        let (trans_a, trans_b) = (turn(b_turned), turn(a_turned));
        // SAFETY: every address is of a value of the attribute's type.
        unsafe {
            let set = |which, value: *const c_void, bytes| {
                lt::set_matmul_desc_attribute(operation, which, value, bytes)
                    .map_err(failed("cublasLtMatmulDescSetAttribute"))
            };
            set(Desc::CUBLASLT_MATMUL_DESC_TRANSA, (&raw const trans_a).cast(), 4)?;
            set(Desc::CUBLASLT_MATMUL_DESC_TRANSB, (&raw const trans_b).cast(), 4)?;
            set(Desc::CUBLASLT_MATMUL_DESC_EPILOGUE, (&raw const epilogue).cast(), 4)?;
            if let Some(bias) = p.bias {
                set(Desc::CUBLASLT_MATMUL_DESC_BIAS_POINTER, (&raw const bias).cast(), 8)?;
            }
        }
        // Seen by columns, a row-major matrix of r by c is one of c by r.
        let layout = |dtype, rows: usize, columns: usize, ld: usize, batch: usize| {
            let layout = lt::create_matrix_layout(dtype, rows as u64, columns as u64, ld as i64)
                .map_err(failed("cublasLtMatrixLayoutCreate"))?;
            if p.batch > 1 {
                let (count, offset) = (p.batch as i32, batch as i64);
                use sys::cublasLtMatrixLayoutAttribute_t as L;
                // SAFETY: every address is of a value of the attribute's type.
                unsafe {
                    let set = |which, value: *const c_void, bytes| {
                        lt::set_matrix_layout_attribute(layout, which, value, bytes)
                            .map_err(failed("cublasLtMatrixLayoutSetAttribute"))
                    };
                    set(L::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (&raw const count).cast(), 4)?;
                    set(L::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, (&raw const offset).cast(), 8)?;
                }
            }
            Ok::<_, Error>(layout)
        };
        let order = |turned: bool, rows: usize, columns: usize| {
            if turned { (rows, columns) } else { (columns, rows) }
        };
        let (br, bc) = order(b_turned, p.k, p.n);
        let (ar, ac) = order(a_turned, p.m, p.k);
        let layouts = [
            layout(tb, br, bc, b_ld, p.b.batch)?,
            layout(ta, ar, ac, a_ld, p.a.batch)?,
            layout(tc, p.n, p.m, p.c.row, p.c.batch)?,
        ];
        let preference = lt::create_matmul_pref().map_err(failed("cublasLtMatmulPreferenceCreate"))?;
        use sys::cublasLtMatmulPreferenceAttributes_t as Pref;
        // Partial sums are added in the compute type, in a fixed order.
        let reduction: u32 = 2;
        let aligned = [alignment(p.b.at), alignment(p.a.at), alignment(p.c.at)].map(|a| a as u32);
        // SAFETY: every address is of a value of the attribute's type; descriptors are live.
        let found = unsafe {
            let set = |which, value: *const c_void, bytes| {
                lt::set_matmul_pref_attribute(preference, which, value, bytes)
                    .map_err(failed("cublasLtMatmulPreferenceSetAttribute"))
            };
            set(Pref::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const workspace).cast(), 8)?;
            set(Pref::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (&raw const reduction).cast(), 4)?;
            set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (&raw const aligned[0]).cast(), 4)?;
            set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (&raw const aligned[1]).cast(), 4)?;
            set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (&raw const aligned[2]).cast(), 4)?;
            set(Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (&raw const aligned[2]).cast(), 4)?;
            let [b, a, c] = layouts;
            let found = lt::get_matmul_algo_heuristic(self.handle, operation, b, a, c, c, preference);
            let _ = lt::destroy_matmul_pref(preference);
            found
        };
        let Ok(found) = found else {
            release(operation, layouts);
            return Ok(None);
        };
        let (algorithm, workspace) = (found.algo, found.workspaceSize);
        Ok(Some(Plan { operation, layouts, algorithm, workspace }))
    }
}

fn release(operation: sys::cublasLtMatmulDesc_t, layouts: [sys::cublasLtMatrixLayout_t; 3]) {
    // SAFETY: nobody has these handles any more.
    unsafe {
        let _ = lt::destroy_matmul_desc(operation);
        for layout in layouts {
            let _ = lt::destroy_matrix_layout(layout);
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let plans = self.plans.get_mut().unwrap_or_else(PoisonError::into_inner);
        for plan in plans.values().flatten() {
            release(plan.operation, plan.layouts);
        }
        // SAFETY: nobody has the handle any more. A drop cannot report a refusal.
        unsafe {
            let _ = lt::destroy_handle(self.handle);
        }
    }
}
