//! Turns convolutions and attention into calls of cuDNN's graph interface, where it is installed and knows the case;
//! elsewhere the crate's own kernels run.
//!
//! For every case cuDNN names engines that could run it. Of those only such are used as give the same bits in every run, and
//! of them the one that is fastest when the case is first run: it is timed on the operands at hand. The choice is written
//! down and kept. What an engine needs of workspace is declared as scratch before it is known which one it will be, so that
//! no plan depends on what was measured.

mod attention;
mod attention_grad;
mod case;
mod choices;
mod conv;
mod descriptor;
mod draft;
mod engine;
pub(crate) mod functions;
mod watch;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::cudnn::sys;
use plimsoll_device::stopwatch::during;

use crate::Cuda;
use crate::card::Card;
use crate::error::Error;
use crate::library::Library;
pub(crate) use attention::{Heads, OPERANDS as OF_ATTENTION};
pub(crate) use attention_grad::{HeadsGrad, OPERANDS as OF_ATTENTION_GRAD};
pub(crate) use case::Case;
use choices::{Choice, Choices};
pub(crate) use conv::{OPERANDS as OF_CONV, Shape, Wanted};
use engine::{Candidate, Graph};

/// An engine that cuDNN ranks lower is taken where it is faster by more than this: less may be chance.
const NEAR: f64 = 1.05;

/// Calls a function of cuDNN and names it in the error.
macro_rules! dnn {
    ($f:ident($($arg:expr),* $(,)?)) => { $crate::dnn::check(stringify!($f), $crate::dnn::functions::$f($($arg),*)) };
}
use dnn;

fn check(call: &'static str, status: sys::cudnnStatus_t) -> Result<(), Error> {
    if status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::Library { library: "cuDNN", call, why: format!("{status:?}") })
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
        during("cuDNN found", || Library::Dnn.is_present().then(|| unsafe { functions::cudnnGetVersion() }))
    }

    /// A handle for the card's stream, or none where the library is not installed.
    pub(crate) fn new(card: &Card, tf32: bool) -> Result<Option<Dnn>, Error> {
        let Some(version) = Dnn::version() else { return Ok(None) };
        card.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the address is of a handle.
        let status = unsafe { functions::cudnnCreate(&mut handle) };
        if status != sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS {
            let (free, _) = card.memory()?;
            return Err(Error::Library {
                library: "cuDNN",
                call: "cudnnCreate",
                why: format!(
                    "version {version} is installed and does not start ({status:?}, {} MiB of the card are free); \
                     leave it more memory, or mend or remove the installation",
                    free >> 20
                ),
            });
        }
        let name: String =
            card.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let choices = Choices::kept_in(card.cache().path(&format!("cudnn-{version}-{name}.engines")));
        let dnn = Dnn { state: Mutex::new(State { cases: HashMap::new(), choices, handle }), tf32 };
        // SAFETY: the handle is live, and the stream lives as long as the card.
        unsafe { dnn!(cudnnSetStream(handle, card.stream.cast())) }?;
        Ok(Some(dnn))
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
                vacant.insert(during("cuDNN asked", || Known::new(*handle, case, self.tf32, choice)))
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
        cuda: &Cuda,
        case: &Case,
        operands: &[(i64, *mut u8)],
        workspace: *mut u8,
        own: Option<&Own<'_>>,
    ) -> Result<(), Error> {
        cuda.card("cuDNN")?.enter()?;
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
                let chosen = during("cuDNN engines timed", || known.fastest(cuda, &run, own))?;
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
    /// The engines for a case, or the one that was chosen; none where there are none. A choice that makes no sense, from a
    /// file that somebody has changed, is none.
    fn new(handle: sys::cudnnHandle_t, case: &Case, tf32: bool, choice: Option<&Choice>) -> Option<Known> {
        let graph = case.graph(handle)?.ok()?;
        let allowed = case.allowed(tf32);
        if let Some(Choice { engine, workspace }) = choice
            && engine == OWN
            && case.has_own()
            && *workspace <= allowed.workspace
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
            && (candidate.workspace..=candidate.workspace.max(allowed.workspace)).contains(workspace)
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
        cuda: &Cuda,
        run: &dyn Fn(&Candidate) -> Result<(), Error>,
        own: Option<&Own<'_>>,
    ) -> Result<usize, Error> {
        if self.candidates.len() + usize::from(own.is_some()) == 1 || cuda.card("cuDNN")?.is_capturing()? {
            return Ok(0);
        }
        // An engine that fails is none.
        let time = |run: &Own<'_>| watch::time(cuda, run).unwrap_or(f64::INFINITY);
        let engines = self.candidates.iter().map(|candidate| time(&|| run(candidate)));
        let times: Vec<f64> = engines.chain(own.map(time)).collect();
        Ok(first_of_the_fastest(&times))
    }
}

/// The first that is as good as the best.
fn first_of_the_fastest(times: &[f64]) -> usize {
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    times.iter().position(|&time| time <= least * NEAR).unwrap_or(0)
}

impl Drop for Dnn {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.cases.clear();
        // SAFETY: nobody has the handle any more. A drop cannot report a refusal.
        unsafe {
            let _ = functions::cudnnDestroy(state.handle);
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
        assert_eq!(first_of_the_fastest(&[f64::INFINITY, 3.0]), 1);
        assert_eq!(first_of_the_fastest(&[f64::INFINITY]), 0);
    }
}
