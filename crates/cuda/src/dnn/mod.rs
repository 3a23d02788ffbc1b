//! Turns convolutions and attention into calls of cuDNN's graph interface, where it is installed and knows the case;
//! elsewhere the crate's own kernels run.
//!
//! For every case cuDNN names engines that could run it. Of those only such are used as give the same bits in every run, and
//! of them the one that is fastest when the case is first run: it is timed on the operands at hand. The choice is written
//! down and kept. What an engine needs of workspace is declared as scratch before it is known which one it will be, so that
//! no plan depends on what was measured.

mod attention;
mod choices;
mod conv;
mod descriptor;
mod engine;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::cudnn::sys;
use cudarc::driver::sys as driver;
use plimsoll_graph::DType;
use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendDescriptorType_t as Kind;

use crate::card::{Card, cu};
use crate::error::Error;
use crate::library::Library;
pub(crate) use attention::{Heads, OPERANDS as OF_ATTENTION};
use choices::{Choice, Choices};
pub(crate) use conv::{OPERANDS as OF_CONV, Shape, Wanted};
use descriptor::Descriptor;
use engine::{Allowed, Candidate, Graph};

/// Workspace that an engine may have beside operands of any size, and the part of the operands' bytes that it may have else:
/// memory is worth more than the last few percent of speed.
const LITTLE: usize = 20 << 20;
const PART: usize = 16;
/// Timings of an engine, and about how many milliseconds each takes: so many runs that what the host does for the first
/// does not count.
const TIMINGS: usize = 3;
const MILLISECONDS: f32 = 1.5;
const MOST_RUNS: f32 = 20.0;
/// An engine that cuDNN ranks lower is taken where it is faster by more than this: less may be chance.
const NEAR: f32 = 1.05;

/// Calls a function of cuDNN and names it in the error.
macro_rules! dnn {
    ($f:ident($($arg:expr),* $(,)?)) => { $crate::dnn::check(stringify!($f), sys::$f($($arg),*)) };
}
use dnn;

fn check(call: &'static str, status: sys::cudnnStatus_t) -> Result<(), Error> {
    if status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::Library { library: "cuDNN", call, why: format!("{status:?}") })
}

/// What cuDNN calls a type, where it computes in it.
fn data_type(dtype: DType) -> Option<sys::cudnnDataType_t> {
    match dtype {
        DType::F32 => Some(sys::cudnnDataType_t::CUDNN_DATA_FLOAT),
        DType::BF16 => Some(sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16),
        DType::F16 => Some(sys::cudnnDataType_t::CUDNN_DATA_HALF),
        _ => None,
    }
}

/// Where a tensor of a graph is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Device,
    /// On the host: a number that is read when the graph is run.
    Host,
    /// Within the graph alone.
    Within,
}

/// A tensor of a graph.
struct Tensor {
    id: i64,
    data: sys::cudnnDataType_t,
    sizes: [usize; 4],
    strides: [usize; 4],
    at: Where,
}

impl Tensor {
    fn description(&self) -> Result<Descriptor, Error> {
        Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, self.data)?
            .with_all(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &self.sizes.map(|n| n as i64))?
            .with_all(Name::CUDNN_ATTR_TENSOR_STRIDES, &self.strides.map(|n| n as i64))?
            .with(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, self.id)?
            .with(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16i64)?
            .with(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, self.at == Where::Within)?
            .with(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, self.at == Where::Host)?
            .finish()
    }
}

/// One computation with all its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Case {
    /// A convolution, or one of its gradients.
    Conv(Wanted, Shape, DType),
    /// Attention.
    Attention(Heads),
}

impl Case {
    fn graph(&self, handle: sys::cudnnHandle_t) -> Option<Result<Graph, Error>> {
        match self {
            Case::Conv(wanted, shape, dtype) => shape.graph(handle, *wanted, *dtype),
            Case::Attention(heads) => heads.graph(handle),
        }
    }

    fn allowed(&self, tf32: bool) -> Allowed {
        match self {
            Case::Conv(_, shape, dtype) => Allowed {
                strict: *dtype == DType::F32 && !tf32,
                compiling: false,
                workspace: (shape.elements() * dtype.bytes() / PART).max(LITTLE),
                number: 8,
                else_least: true,
            },
            Case::Attention(heads) => Allowed {
                strict: false,
                compiling: true,
                workspace: (heads.bytes() / PART).max(LITTLE),
                number: 2,
                else_least: false,
            },
        }
    }
}

/// Runs the crate's own kernel for a case.
type Own<'o> = dyn Fn() -> Result<(), Error> + 'o;

/// What the crate's own kernel is written down as.
const OWN: &str = "own";

/// What is known of a case.
struct Known {
    // Before the graph, so that they go first.
    candidates: Vec<Candidate>,
    _graph: Graph,
    /// Which of them runs; none before the first run.
    chosen: Option<usize>,
    /// What any of them needs.
    workspace: usize,
}

struct State {
    // Before the handle, so that they go first.
    cases: HashMap<Case, Option<Known>>,
    choices: Choices,
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

impl Dnn {
    /// The library's version; none where it is not installed.
    pub(crate) fn version() -> Option<usize> {
        // SAFETY: the library is there.
        Library::Dnn.is_present().then(|| unsafe { sys::cudnnGetVersion() })
    }

    /// A handle for the card's stream, or none where the library is not installed or does not start.
    pub(crate) fn new(card: &Card, tf32: bool) -> Option<Dnn> {
        let version = Dnn::version()?;
        card.enter().ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the address is of a handle, and the stream lives as long as the card.
        unsafe {
            dnn!(cudnnCreate(&mut handle)).ok()?;
            dnn!(cudnnSetStream(handle, card.stream.cast())).ok()?;
        }
        let name: String =
            card.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let choices = Choices::kept_in(card.cache().path(&format!("cudnn-{version}-{name}.engines")));
        Some(Dnn { state: Mutex::new(State { cases: HashMap::new(), choices, handle }), tf32 })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the choice for a case is written down as.
    fn key(&self, case: &Case) -> String {
        format!("{case:?}{}", if self.tf32 { " tf32" } else { "" })
    }

    /// Bytes of workspace for a case; none where cuDNN does not know it.
    pub(crate) fn workspace(&self, case: &Case) -> Option<usize> {
        let mut state = self.state();
        let State { cases, choices, handle } = &mut *state;
        let known = match cases.entry(*case) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(vacant) => {
                let choice = choices.of(&self.key(case));
                vacant.insert(Known::new(*handle, case, self.tf32, choice))
            }
        };
        known.as_ref().map(|known| known.workspace)
    }

    /// Puts a case on the stream, with addresses by the numbers of its operands. The first time, the engines for it and
    /// the crate's `own` kernel, where there is a good one, are timed: results are then written several times.
    ///
    /// # Safety
    /// The operands, and the workspace of the bytes that [`Dnn::workspace`] says, must be live memory of the device, or of
    /// the host for numbers that the case takes from there.
    pub(crate) unsafe fn run(
        &self,
        card: &Card,
        case: &Case,
        operands: &[(i64, *mut u8)],
        workspace: *mut u8,
        own: Option<&Own<'_>>,
    ) -> Result<(), Error> {
        card.enter()?;
        let mut state = self.state();
        let State { cases, choices, handle } = &mut *state;
        let Some(Some(known)) = cases.get_mut(case) else {
            let why = "a case that was not asked for before".into();
            return Err(Error::Library { library: "cuDNN", call: "a graph", why });
        };
        // SAFETY: the caller's promise.
        let run = |candidate: &Candidate| unsafe { candidate.run(*handle, operands, workspace) };
        let chosen = match known.chosen {
            Some(chosen) => chosen,
            None => {
                let chosen = known.fastest(card, &run, own)?;
                let engine = known.candidates.get(chosen).map_or(OWN, |candidate| &candidate.name).into();
                choices.keep(self.key(case), Choice { engine, workspace: known.workspace });
                *known.chosen.insert(chosen)
            }
        };
        match (known.candidates.get(chosen), own) {
            (Some(candidate), _) => run(candidate),
            (None, Some(own)) => own(),
            (None, None) => {
                let why = "an engine was chosen that is not there".into();
                Err(Error::Library { library: "cuDNN", call: "a graph", why })
            }
        }
    }
}

impl Known {
    /// The engines for a case, or the one that was chosen; none where there are none.
    fn new(handle: sys::cudnnHandle_t, case: &Case, tf32: bool, choice: Option<&Choice>) -> Option<Known> {
        let graph = case.graph(handle)?.ok()?;
        let allowed = case.allowed(tf32);
        if let Some(Choice { engine, workspace }) = choice
            && engine == OWN
        {
            return Some(Known {
                candidates: Vec::new(),
                _graph: graph,
                chosen: Some(0),
                workspace: *workspace,
            });
        }
        if let Some(Choice { engine, workspace }) = choice
            && let Some(candidate) = Candidate::named(handle, &graph, allowed, engine)
            && candidate.workspace <= *workspace
        {
            let (candidates, workspace) = (vec![candidate], *workspace);
            return Some(Known { candidates, _graph: graph, chosen: Some(0), workspace });
        }
        let candidates = Candidate::all(handle, &graph, allowed);
        let workspace = candidates.iter().map(|candidate| candidate.workspace).max()?;
        Some(Known { candidates, _graph: graph, chosen: None, workspace })
    }

    /// The fastest engine, or the number behind the last for the crate's own kernel. While a step is recorded, nothing can
    /// be timed, and it is the one that cuDNN ranks first.
    fn fastest(
        &self,
        card: &Card,
        run: &dyn Fn(&Candidate) -> Result<(), Error>,
        own: Option<&Own<'_>>,
    ) -> Result<usize, Error> {
        if self.candidates.len() + usize::from(own.is_some()) == 1 || card.is_capturing()? {
            return Ok(0);
        }
        let watch = Watch::new(card)?;
        // The first run loads code. An engine that fails is none.
        let time = |run: &Own<'_>| {
            let time = run().and_then(|()| watch.least(run)).and_then(|once| {
                let runs = (MILLISECONDS / once).clamp(2.0, MOST_RUNS) as usize;
                let all = watch.least(|| (0..runs).try_for_each(|_| run()));
                all.map(|all| all / runs as f32)
            });
            time.unwrap_or(f32::INFINITY)
        };
        let engines = self.candidates.iter().map(|candidate| time(&|| run(candidate)));
        let times: Vec<f32> = engines.chain(own.map(time)).collect();
        Ok(first_of_the_fastest(&times))
    }
}

/// The first that is as good as the best.
fn first_of_the_fastest(times: &[f32]) -> usize {
    let least = times.iter().copied().fold(f32::INFINITY, f32::min);
    times.iter().position(|&time| time <= least * NEAR).unwrap_or(0)
}

/// Two events between which the stream is timed.
struct Watch<'c> {
    card: &'c Card,
    events: [driver::CUevent; 2],
}

impl Watch<'_> {
    fn new(card: &Card) -> Result<Watch<'_>, Error> {
        let mut watch = Watch { card, events: [std::ptr::null_mut(); 2] };
        for event in &mut watch.events {
            // SAFETY: the address is of a handle.
            unsafe { cu!(cuEventCreate(event, driver::CUevent_flags::CU_EVENT_DEFAULT as u32)) }?;
        }
        Ok(watch)
    }

    /// The shortest of several timings, in milliseconds.
    fn least(&self, body: impl Fn() -> Result<(), Error>) -> Result<f32, Error> {
        let ([start, end], mut least) = (self.events, f32::INFINITY);
        for _ in 0..TIMINGS {
            // SAFETY: the handles are live.
            unsafe { cu!(cuEventRecord(start, self.card.stream)) }?;
            body()?;
            let mut time = 0.0;
            // SAFETY: as above, and the address is of a number.
            unsafe {
                cu!(cuEventRecord(end, self.card.stream))?;
                cu!(cuEventSynchronize(end))?;
                cu!(cuEventElapsedTime_v2(&mut time, start, end))?;
            }
            least = least.min(time);
        }
        Ok(least)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        for event in self.events.into_iter().filter(|event| !event.is_null()) {
            // SAFETY: nobody has the handle any more. A drop cannot report a refusal.
            unsafe {
                let _ = driver::cuEventDestroy_v2(event);
            }
        }
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.cases.clear();
        // SAFETY: nobody has the handle any more. A drop cannot report a refusal.
        unsafe {
            let _ = sys::cudnnDestroy(state.handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::first_of_the_fastest;

    #[test]
    fn the_library_s_order_decides_where_times_do_not() {
        assert_eq!(first_of_the_fastest(&[1.0, 0.97, 2.0]), 0);
        assert_eq!(first_of_the_fastest(&[1.0, 0.9, 0.89]), 1);
        assert_eq!(first_of_the_fastest(&[f32::INFINITY, 3.0]), 1);
        assert_eq!(first_of_the_fastest(&[f32::INFINITY]), 0);
    }
}
