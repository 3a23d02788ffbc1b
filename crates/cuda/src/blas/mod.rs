//! Matrix products by cuBLASLt, with every byte of workspace declared and the algorithm chosen by sizes alone.
//!
//! The library stores matrices by columns. Ours are stored by rows, which is the same memory transposed: it is asked for
//! cᵀ = bᵀ aᵀ.

mod descriptor;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::result as lt;
use cudarc::cublaslt::sys;
use plimsoll_device::stopwatch::during;
use plimsoll_graph::DType;
use plimsoll_graph::ops::Unary;

use crate::card::Card;
use crate::error::Error;
use crate::kernels::{Matrix, Product};
use crate::library::Library;
use descriptor::{Layout, Operation, Preference, failed};

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
    operation: Operation,
    layouts: [Layout; 3],
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
            Entry::Vacant(vacant) => vacant.insert(during("products chosen", || self.plan(p, workspace))?),
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
            let (alpha, beta) = (p.scale as f32, if p.accumulate { 1.0f32 } else { 0.0 });
            let (alpha64, beta64) = (p.scale, f64::from(beta));
            let (alpha, beta): (*const c_void, *const c_void) = if p.c.dtype == DType::F64 {
                ((&raw const alpha64).cast(), (&raw const beta64).cast())
            } else {
                ((&raw const alpha).cast(), (&raw const beta).cast())
            };
            let [b, a, c] = &plan.layouts;
            if let Some(bias) = p.bias {
                plan.operation
                    .set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
            }
            // SAFETY: the caller's promise; the descriptors are those of this product, and the lock is held.
            unsafe {
                lt::matmul(
                    self.handle,
                    plan.operation.0,
                    alpha,
                    beta,
                    p.b.at.cast(),
                    b.0,
                    p.a.at.cast(),
                    a.0,
                    p.c.at.cast(),
                    c.0,
                    p.c.at.cast(),
                    c.0,
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

    /// The library's algorithm for a product; none where it has none, or the product is none that it is asked for.
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
        let operation = self.operation(p, b_turned, a_turned)?;
        // Seen by columns, a row-major matrix of r by c is one of c by r.
        let order = |turned: bool, rows: usize, columns: usize| {
            if turned { (rows, columns) } else { (columns, rows) }
        };
        let layouts = [
            Layout::new(tb, order(b_turned, p.k, p.n), b_ld, (p.batch, p.b.batch))?,
            Layout::new(ta, order(a_turned, p.m, p.k), a_ld, (p.batch, p.a.batch))?,
            Layout::new(tc, (p.n, p.m), p.c.row, (p.batch, p.c.batch))?,
        ];
        let preference = preference(p, workspace)?;
        let [b, a, c] = &layouts;
        // SAFETY: all descriptors are live.
        let found = unsafe {
            lt::get_matmul_algo_heuristic(self.handle, operation.0, b.0, a.0, c.0, c.0, preference.0)
        };
        let plan = |found: sys::cublasLtMatmulHeuristicResult_t| {
            let (algorithm, workspace) = (found.algo, found.workspaceSize);
            Plan { operation, layouts, algorithm, workspace }
        };
        Ok(found.ok().map(plan))
    }

    /// What is computed: in which type, of which operands transposed, and what follows.
    fn operation(&self, p: &Product, first_turned: bool, second_turned: bool) -> Result<Operation, Error> {
        use sys::cublasComputeType_t as Compute;
        use sys::cublasLtEpilogue_t as Epilogue;
        use sys::cublasLtMatmulDescAttributes_t as Desc;
        let (compute, scale) = match p.c.dtype {
            DType::F64 => (Compute::CUBLAS_COMPUTE_64F, sys::cudaDataType::CUDA_R_64F),
            _ if self.tf32 && p.a.dtype == DType::F32 => {
                (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, sys::cudaDataType::CUDA_R_32F)
            }
            _ => (Compute::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F),
        };
        let epilogue = match (p.bias.is_some(), p.act == Some(Unary::Relu)) {
            (false, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
            (false, true) => Epilogue::CUBLASLT_EPILOGUE_RELU,
            (true, false) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
            (true, true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        let operation = Operation::new(compute, scale)?;
        operation.set(Desc::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(first_turned))?;
        operation.set(Desc::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(second_turned))?;
        operation.set(Desc::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)?;
        if let Some(bias) = p.bias {
            operation.set(Desc::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
        }
        Ok(operation)
    }
}

/// What is wanted of an algorithm: so much workspace, partial sums in a fixed order, operands aligned as they are.
fn preference(p: &Product, workspace: usize) -> Result<Preference, Error> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Pref;
    // Partial sums are added in the compute type, in a fixed order.
    const IN_COMPUTE_TYPE: u32 = 2;
    let preference = Preference::new()?;
    preference.set(Pref::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace)?;
    preference.set(Pref::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, IN_COMPUTE_TYPE)?;
    for (which, at) in [
        (Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b.at),
        (Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a.at),
        (Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.c.at),
        (Pref::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.c.at),
    ] {
        preference.set(which, alignment(at) as u32)?;
    }
    Ok(preference)
}

impl Drop for Blas {
    fn drop(&mut self) {
        // Descriptors go before the handle that they were made with.
        self.plans.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: nobody has the handle any more. A drop cannot report a refusal.
        unsafe {
            let _ = lt::destroy_handle(self.handle);
        }
    }
}
