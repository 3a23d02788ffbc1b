//! A tensor: eager, with its bytes on a device, or traced, a value of a function being recorded.
//!
//! How its elements come from the host and go there is in `host` and `uploader`, how they are lent to other libraries in `lent`.

mod flow;
mod host;
mod lent;
mod profile;
mod sketch;
pub(crate) mod tape;
mod tracing;
mod uploader;

pub use flow::{cond, scan, while_loop};
pub(crate) use host::element;
pub(crate) use profile::timed;
pub use profile::{OpCall, OpProfile, profile};
pub use sketch::Sketch;
pub use tape::{Tape, pull_back};
pub(crate) use tracing::Tracing;
pub use uploader::HostUploader;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_device::backend::Operand;
use plimsoll_graph::{Error as GraphError, Op, Site, Sym, TensorOps, Type};
use smallvec::SmallVec;

use crate::device::{Buffer, Chosen, Device};
use crate::error::{Error, Result};
use crate::scope::{asked_from, path, with_path};

/// An n-dimensional array. Clones share their bytes; bytes are freed with the last clone.
///
/// ```
/// use plimsoll_run::{Tensor, TensorOps};
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let y = x.matmul(&x)?.add_scalar(1.0)?;
/// assert_eq!(y.to_vec::<f32>()?, [8.0, 11.0, 16.0, 23.0]);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    ty: Type,
    repr: Repr,
}

#[derive(Clone)]
enum Repr {
    Eager { id: TensorId, buffer: Arc<Buffer> },
    Traced { sym: Sym, tracing: Arc<Tracing> },
}

/// What a tape knows an eager tensor by: views of one buffer are different tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TensorId(u64);

impl TensorId {
    fn next() -> TensorId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        TensorId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Tensor {
    pub(crate) fn eager(ty: Type, buffer: Arc<Buffer>) -> Tensor {
        Tensor { ty, repr: Repr::Eager { id: TensorId::next(), buffer } }
    }

    pub(crate) fn traced(sym: Sym, tracing: &Arc<Tracing>) -> Tensor {
        Tensor { ty: sym.ty().clone(), repr: Repr::Traced { sym, tracing: tracing.clone() } }
    }

    /// The device its bytes are on; `None` for a traced value.
    pub fn device(&self) -> Option<&Device> {
        match &self.repr {
            Repr::Eager { buffer, .. } => Some(buffer.device()),
            Repr::Traced { .. } => None,
        }
    }

    /// Whether it is being traced and has no bytes.
    pub fn is_traced(&self) -> bool {
        matches!(self.repr, Repr::Traced { .. })
    }

    pub(crate) fn sym(&self) -> Option<&Sym> {
        match &self.repr {
            Repr::Traced { sym, .. } => Some(sym),
            Repr::Eager { .. } => None,
        }
    }

    pub(crate) fn tracing(&self) -> Option<&Arc<Tracing>> {
        match &self.repr {
            Repr::Traced { tracing, .. } => Some(tracing),
            Repr::Eager { .. } => None,
        }
    }

    pub(crate) fn id(&self) -> Option<TensorId> {
        match &self.repr {
            Repr::Eager { id, .. } => Some(*id),
            Repr::Traced { .. } => None,
        }
    }

    pub(crate) fn buffer(&self, site: Site) -> Result<&Arc<Buffer>> {
        match &self.repr {
            Repr::Eager { buffer, .. } => Ok(buffer),
            Repr::Traced { .. } => Err(Error::Traced { ty: self.ty.clone(), site }),
        }
    }
}

impl TensorOps for Tensor {
    type Error = Error;

    fn ty(&self) -> &Type {
        &self.ty
    }

    fn emit(&self, op: Op, inputs: &[&Tensor], site: Site) -> Result<SmallVec<[Tensor; 2]>> {
        let traced = inputs.iter().copied().chain([self]).find_map(Tensor::tracing);
        if let Some(tracing) = traced {
            let tracing = tracing.clone();
            let site = asked_from().unwrap_or(site);
            let syms =
                inputs.iter().map(|t| tracing.lift(t, op.name(), site)).collect::<Result<Vec<Sym>>>()?;
            tracing.enter_scope();
            let outputs = tracing.trace().push(op, &syms.iter().collect::<Vec<_>>(), site)?;
            return Ok(outputs.into_iter().map(|sym| Tensor::traced(sym, &tracing)).collect());
        }
        let outputs = run_eager(self, &op, inputs, site)?;
        tape::record(&op, inputs, &outputs, site)?;
        Ok(outputs)
    }
}

/// Runs one op at once, on the device of its inputs.
fn run_eager(anchor: &Tensor, op: &Op, inputs: &[&Tensor], site: Site) -> Result<SmallVec<[Tensor; 2]>> {
    let first = inputs.first().copied().unwrap_or(anchor);
    let device = first.buffer(site)?.device().clone();
    for other in inputs {
        let other = other.buffer(site)?.device();
        if !other.same(&device) {
            let (first, second) = (device.name().to_string(), other.name().to_string());
            return Err(Error::TwoDevices { op: op.name(), site, first, second });
        }
    }
    let types: SmallVec<[&Type; 4]> = inputs.iter().map(|t| &t.ty).collect();
    let output_types = op.infer(&types).map_err(|why| Error::from(op.mismatch(&types, why, site)))?;
    if op.is_view() {
        let view = || Chosen { on_host: false, why: "a view of its input".into(), scratch: 0 };
        device.placed(|| device.placement(op.name(), &path(), view(), site));
        let ty = output_types.into_iter().next();
        let ty = ty.ok_or_else(|| GraphError::Internal(format!("{op} is a view of nothing")))?;
        return Ok(smallvec::smallvec![Tensor::eager(ty, first.buffer(site)?.clone())]);
    }
    let chosen = {
        let output_types: SmallVec<[&Type; 2]> = output_types.iter().collect();
        with_path(|scope| device.choose(scope, op, &types, &output_types, site))?
    };
    let Chosen { on_host, scratch: scratch_bytes, .. } = chosen;
    device.placed(|| device.placement(op.name(), &path(), chosen, site));
    let outputs = output_types
        .iter()
        .map(|ty| Ok(Arc::new(Buffer::new(&device, ty.bytes(), op.name(), site)?)))
        .collect::<Result<SmallVec<[Arc<Buffer>; 2]>>>()?;
    let scratch = match scratch_bytes {
        0 => None,
        bytes => Some(Buffer::new(&device, bytes, op.name(), site)?),
    };
    let ins = inputs
        .iter()
        .map(|t| Ok(Operand { ty: &t.ty, ptr: t.buffer(site)?.ptr() }))
        .collect::<Result<SmallVec<[Operand<'_>; 4]>>>()?;
    let outs: SmallVec<[Operand<'_>; 2]> =
        output_types.iter().zip(&outputs).map(|(ty, buffer)| Operand { ty, ptr: buffer.ptr() }).collect();
    let call = plimsoll_device::backend::Call {
        op,
        inputs: &ins,
        outputs: &outs,
        scratch: scratch.as_ref().map_or(std::ptr::null_mut(), Buffer::ptr),
        scratch_bytes,
    };
    // SAFETY: inputs are kept alive by the tensors, outputs and scratch are fresh, all on this device and of the sizes
    // their types and the kernel's own declaration say.
    let kernels = device.kernels(op, on_host)?;
    if on_host {
        device.count_down(types.iter().map(|ty| ty.bytes()).sum());
        device.count_up(output_types.iter().map(Type::bytes).sum());
    }
    // SAFETY: as above.
    let run = || unsafe { kernels.run(&call) }.map_err(|fault| Error::of_kernel(op, fault, site));
    let bytes = || types.iter().copied().chain(&output_types).map(Type::bytes).sum();
    timed(&device, op.name(), bytes, site, run)?;
    drop(outs);
    Ok(output_types.into_iter().zip(outputs).map(|(ty, buffer)| Tensor::eager(ty, buffer)).collect())
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.repr {
            Repr::Eager { buffer, .. } => write!(f, "{} on {}", self.ty, buffer.device().name()),
            Repr::Traced { sym, .. } => write!(f, "{sym:?} (traced)"),
        }
    }
}
