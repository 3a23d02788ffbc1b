//! Turns convolutions into calls of cuDNN, where it is installed and knows the case; elsewhere the crate's own kernels run.
//!
//! Of cuDNN's algorithms only those are used that give the same bits in every run. Its workspace is declared as scratch.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::cudnn::sys;
use plimsoll_graph::DType;

use crate::card::Card;
use crate::error::Error;
use crate::library::Library;

/// More workspace than this is not worth it: the crate's own kernel runs instead.
const MOST_WORKSPACE: usize = 1 << 30;

/// What is computed of x ∗ w = y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    /// y of x and w.
    Output,
    /// The gradient at x, of w and y's.
    Input,
    /// The gradient at w, of x and y's.
    Filter,
}

/// What a convolution, as x ∗ w = y, is about; images are channels last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) images: usize,
    pub(crate) size: [usize; 2],
    pub(crate) channels: usize,
    pub(crate) out: [usize; 2],
    pub(crate) filters: usize,
    pub(crate) window: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) pad: [(usize, usize); 2],
    pub(crate) dilation: [usize; 2],
    pub(crate) groups: usize,
}

impl Shape {
    /// Whether padding by the same on both sides gives an output of this size: then what is read is the same too.
    fn is_symmetric(&self) -> bool {
        (0..2).all(|i| {
            let reach = self.dilation[i] * (self.window[i].max(1) - 1) + 1;
            let padded = self.size[i] + 2 * self.pad[i].0;
            padded >= reach && (padded - reach) / self.stride[i].max(1) + 1 == self.out[i]
        })
    }
}

/// Descriptions that cuDNN made of a convolution.
struct Plan {
    x: sys::cudnnTensorDescriptor_t,
    y: sys::cudnnTensorDescriptor_t,
    w: sys::cudnnFilterDescriptor_t,
    conv: sys::cudnnConvolutionDescriptor_t,
    workspace: usize,
}

impl Plan {
    const EMPTY: Plan = Plan {
        x: std::ptr::null_mut(),
        y: std::ptr::null_mut(),
        w: std::ptr::null_mut(),
        conv: std::ptr::null_mut(),
        workspace: 0,
    };
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: nobody has the handles any more; those that were not made are null, and left alone.
        unsafe {
            if !self.x.is_null() {
                let _ = sys::cudnnDestroyTensorDescriptor(self.x);
            }
            if !self.y.is_null() {
                let _ = sys::cudnnDestroyTensorDescriptor(self.y);
            }
            if !self.w.is_null() {
                let _ = sys::cudnnDestroyFilterDescriptor(self.w);
            }
            if !self.conv.is_null() {
                let _ = sys::cudnnDestroyConvolutionDescriptor(self.conv);
            }
        }
    }
}

type Key = (Wanted, Shape, DType);

struct State {
    // Before the handle, so that they go first.
    plans: HashMap<Key, Option<Plan>>,
    handle: sys::cudnnHandle_t,
}

/// A handle of cuDNN. One thread uses it at a time, as the library asks.
pub(crate) struct Dnn {
    state: Mutex<State>,
    tf32: bool,
}

// SAFETY: the handle and the descriptions are only used under the lock.
unsafe impl Send for Dnn {}
// SAFETY: as above.
unsafe impl Sync for Dnn {}

fn check(call: &'static str, status: sys::cudnnStatus_t) -> Result<(), Error> {
    if status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::Library { library: "cuDNN", call, why: format!("{status:?}") })
}

/// Calls a function of cuDNN and names it in the error.
macro_rules! dnn {
    ($f:ident($($arg:expr),* $(,)?)) => { check(stringify!($f), sys::$f($($arg),*)) };
}

const FORWARD: sys::cudnnConvolutionFwdAlgo_t =
    sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
const INPUT: sys::cudnnConvolutionBwdDataAlgo_t =
    sys::cudnnConvolutionBwdDataAlgo_t::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
const FILTER: sys::cudnnConvolutionBwdFilterAlgo_t =
    sys::cudnnConvolutionBwdFilterAlgo_t::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

impl Dnn {
    /// The library's version; none where it is not installed.
    pub(crate) fn version() -> Option<usize> {
        // SAFETY: the library is there.
        Library::Dnn.is_present().then(|| unsafe { sys::cudnnGetVersion() })
    }

    /// A handle for the card's stream, or none where the library is not installed or does not start.
    pub(crate) fn new(card: &Card, tf32: bool) -> Option<Dnn> {
        Dnn::version()?;
        card.enter().ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the address is of a handle, and the stream lives as long as the card.
        unsafe {
            dnn!(cudnnCreate(&mut handle)).ok()?;
            dnn!(cudnnSetStream(handle, card.stream.cast())).ok()?;
        }
        Some(Dnn { state: Mutex::new(State { plans: HashMap::new(), handle }), tf32 })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of workspace for a convolution; none where cuDNN does not know the case.
    pub(crate) fn workspace(&self, wanted: Wanted, shape: &Shape, dtype: DType) -> Option<usize> {
        let mut state = self.state();
        let State { plans, handle } = &mut *state;
        let plan = match plans.entry((wanted, *shape, dtype)) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(self.plan(*handle, wanted, shape, dtype)),
        };
        plan.as_ref().map(|plan| plan.workspace)
    }

    fn plan(&self, handle: sys::cudnnHandle_t, wanted: Wanted, s: &Shape, dtype: DType) -> Option<Plan> {
        use sys::cudnnDataType_t as Data;
        let data = match dtype {
            DType::F32 => Data::CUDNN_DATA_FLOAT,
            DType::BF16 => Data::CUDNN_DATA_BFLOAT16,
            DType::F16 => Data::CUDNN_DATA_HALF,
            _ => return None,
        };
        let math = match (dtype, self.tf32) {
            (DType::F32, false) => sys::cudnnMathType_t::CUDNN_FMA_MATH,
            _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        };
        if !s.is_symmetric() {
            return None;
        }
        let int = |n: usize| i32::try_from(n).ok();
        let layout = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let (n, c, k, groups) = (int(s.images)?, int(s.channels)?, int(s.filters)?, int(s.groups)?);
        let depth = int(s.channels / s.groups.max(1))?;
        let pair = |a: [usize; 2]| Some([int(a[0])?, int(a[1])?]);
        let (size, out, window) = (pair(s.size)?, pair(s.out)?, pair(s.window)?);
        let (stride, dilation, pad) = (pair(s.stride)?, pair(s.dilation)?, pair(s.pad.map(|(low, _)| low))?);
        let mut plan = Plan::EMPTY;
        let made = || -> Result<Plan, Error> {
            // SAFETY: every address is of a handle or number of the right type, and handles are live once they are made.
            unsafe {
                dnn!(cudnnCreateTensorDescriptor(&mut plan.x))?;
                dnn!(cudnnCreateTensorDescriptor(&mut plan.y))?;
                dnn!(cudnnCreateFilterDescriptor(&mut plan.w))?;
                dnn!(cudnnCreateConvolutionDescriptor(&mut plan.conv))?;
                dnn!(cudnnSetTensor4dDescriptor(plan.x, layout, data, n, c, size[0], size[1]))?;
                dnn!(cudnnSetTensor4dDescriptor(plan.y, layout, data, n, k, out[0], out[1]))?;
                dnn!(cudnnSetFilter4dDescriptor(plan.w, data, layout, k, depth, window[0], window[1]))?;
                dnn!(cudnnSetConvolution2dDescriptor(
                    plan.conv,
                    pad[0],
                    pad[1],
                    stride[0],
                    stride[1],
                    dilation[0],
                    dilation[1],
                    mode,
                    Data::CUDNN_DATA_FLOAT
                ))?;
                dnn!(cudnnSetConvolutionGroupCount(plan.conv, groups))?;
                dnn!(cudnnSetConvolutionMathType(plan.conv, math))?;
                let Plan { x, y, w, conv, .. } = plan;
                let bytes = &mut plan.workspace;
                match wanted {
                    Wanted::Output => {
                        dnn!(cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, conv, y, FORWARD, bytes))
                    }
                    Wanted::Input => {
                        dnn!(cudnnGetConvolutionBackwardDataWorkspaceSize(
                            handle, w, y, conv, x, INPUT, bytes
                        ))
                    }
                    Wanted::Filter => {
                        dnn!(cudnnGetConvolutionBackwardFilterWorkspaceSize(
                            handle, x, y, conv, w, FILTER, bytes
                        ))
                    }
                }?;
            }
            Ok(plan)
        };
        made().ok().filter(|plan| plan.workspace <= MOST_WORKSPACE)
    }

    /// Puts a convolution on the stream. The filter is `[filters, height, width, channels]`.
    ///
    /// # Safety
    /// x, w, y and the workspace, of the bytes that [`Dnn::workspace`] says, must be live memory of the device.
    pub(crate) unsafe fn run(
        &self,
        card: &Card,
        (wanted, shape, dtype): Key,
        [x, w, y]: [*mut u8; 3],
        workspace: *mut u8,
    ) -> Result<(), Error> {
        card.enter()?;
        let state = self.state();
        let Some(Some(plan)) = state.plans.get(&(wanted, shape, dtype)) else {
            let why = "a convolution that was not asked for before".into();
            return Err(Error::Library { library: "cuDNN", call: "a convolution", why });
        };
        let (one, zero) = (1.0f32, 0.0f32);
        let (one, zero) = ((&raw const one).cast::<c_void>(), (&raw const zero).cast::<c_void>());
        let (handle, conv, bytes) = (state.handle, plan.conv, plan.workspace);
        let (dx, dw, dy) = (plan.x, plan.w, plan.y);
        let (x, w, y, space) = (x.cast::<c_void>(), w.cast::<c_void>(), y.cast::<c_void>(), workspace.cast());
        // SAFETY: the caller's promise; the factors are read before the call returns.
        unsafe {
            match wanted {
                Wanted::Output => dnn!(cudnnConvolutionForward(
                    handle, one, dx, x, dw, w, conv, FORWARD, space, bytes, zero, dy, y
                )),
                Wanted::Input => dnn!(cudnnConvolutionBackwardData(
                    handle, one, dw, w, dy, y, conv, INPUT, space, bytes, zero, dx, x
                )),
                Wanted::Filter => dnn!(cudnnConvolutionBackwardFilter(
                    handle, one, dx, x, dy, y, conv, FILTER, space, bytes, zero, dw, w
                )),
            }
        }
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.plans.clear();
        // SAFETY: nobody has the handle any more. A drop cannot report a refusal.
        unsafe {
            let _ = sys::cudnnDestroy(state.handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_on_one_side_counts_as_both_where_it_reads_the_same() {
        let plain = Shape {
            images: 1,
            size: [8, 8],
            channels: 3,
            out: [8, 8],
            filters: 4,
            window: [3, 3],
            stride: [1, 1],
            pad: [(1, 1); 2],
            dilation: [1, 1],
            groups: 1,
        };
        assert!(plain.is_symmetric());
        // A stride of two never reaches the last column of padding.
        assert!(Shape { stride: [2, 2], out: [4, 4], ..plain }.is_symmetric());
        assert!(!Shape { pad: [(0, 1); 2], stride: [2, 2], out: [4, 4], ..plain }.is_symmetric());
        assert!(!Shape { pad: [(0, 2); 2], ..plain }.is_symmetric());
    }
}
