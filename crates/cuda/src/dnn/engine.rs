//! Turns a graph of cuDNN's operations into engines that can run it, in the order in which cuDNN expects them to be fast.

use cudarc::cudnn::sys;
use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendAttributeType_t as Of;
use sys::cudnnBackendBehaviorNote_t as Behavior;
use sys::cudnnBackendDescriptorType_t as Kind;
use sys::cudnnBackendHeurMode_t as Mode;
use sys::cudnnBackendNumericalNote_t as Numerical;

use super::descriptor::Descriptor;
use super::dnn;
use crate::error::Error;

/// Configurations that are looked at.
const MOST_LOOKED_AT: usize = 64;
/// How cuDNN is asked: by what it learned of times, then for whatever works.
const MODES: [Mode; 2] = [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK];

/// Operations that are run as one, with all that they name.
pub(super) struct Graph {
    // Before what it names, so that it goes first.
    whole: Descriptor,
    _operations: Vec<Descriptor>,
    _parts: Vec<Descriptor>,
}

impl Graph {
    /// A graph of operations, which name the parts.
    pub(super) fn new(
        handle: sys::cudnnHandle_t,
        operations: Vec<Descriptor>,
        parts: Vec<Descriptor>,
    ) -> Result<Graph, Error> {
        let named: Vec<&Descriptor> = operations.iter().collect();
        let whole = Descriptor::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle)?
            .naming(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &named)?
            .finish()?;
        Ok(Graph { whole, _operations: operations, _parts: parts })
    }
}

/// What engines may do.
#[derive(Clone, Copy)]
pub(super) struct Allowed {
    /// Sums in f32 of f32 operands as they are; otherwise tensor cores may be used.
    pub strict: bool,
    /// Engines that compile their kernels when they are made, which takes a tenth of a second each.
    pub compiling: bool,
    /// Bytes of workspace.
    pub workspace: usize,
    /// How many are made and tried.
    pub number: usize,
    /// Whether the engine with the least is allowed where none has so little.
    pub else_least: bool,
}

/// A way to run a graph.
pub(super) struct Candidate {
    // Before what it names, so that it goes first.
    plan: Descriptor,
    _config: Descriptor,
    /// The engine with all its settings, as they are written down.
    pub name: String,
    pub workspace: usize,
}

impl Candidate {
    /// All engines for a graph that may be used and give the same bits in every run.
    pub(super) fn all(handle: sys::cudnnHandle_t, graph: &Graph, allowed: Allowed) -> Vec<Candidate> {
        let mut larger: Option<Candidate> = None;
        for mode in MODES {
            let mut found: Vec<Candidate> = Vec::new();
            for config in configs(graph, mode) {
                if found.len() == allowed.number {
                    break;
                }
                let Some(made) = Found::new(config, allowed).and_then(|engine| engine.made(handle)) else {
                    continue;
                };
                if made.workspace > allowed.workspace {
                    if larger.as_ref().is_none_or(|other| made.workspace < other.workspace) {
                        larger = Some(made);
                    }
                } else if found.iter().all(|other| other.name != made.name) {
                    found.push(made);
                }
            }
            if !found.is_empty() {
                return found;
            }
        }
        larger.filter(|_| allowed.else_least).into_iter().collect()
    }

    /// The engine of this name, where cuDNN has it.
    pub(super) fn named(
        handle: sys::cudnnHandle_t,
        graph: &Graph,
        allowed: Allowed,
        name: &str,
    ) -> Option<Candidate> {
        let mut found = MODES.into_iter().flat_map(|mode| configs(graph, mode));
        found
            .find_map(|config| Found::new(config, allowed).filter(|engine| engine.name == name))?
            .made(handle)
    }

    /// Puts it on the handle's stream, with addresses by the numbers of the graph's tensors.
    ///
    /// # Safety
    /// The addresses and the workspace must be live memory of the device, as large as the graph and the engine say.
    pub(super) unsafe fn run(
        &self,
        handle: sys::cudnnHandle_t,
        operands: &[(i64, *mut u8)],
        workspace: *mut u8,
    ) -> Result<(), Error> {
        let (ids, addresses): (Vec<i64>, Vec<*mut u8>) = operands.iter().copied().unzip();
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .with_all(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &ids)?
            .at(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?
            .at(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[workspace])?
            .finish()?;
        // SAFETY: the caller's promise; the descriptions are live.
        unsafe { dnn!(cudnnBackendExecute(handle, self.plan.raw(), pack.raw())) }
    }
}

/// An engine that may be used.
struct Found {
    config: Descriptor,
    name: String,
}

impl Found {
    fn new(config: Descriptor, allowed: Allowed) -> Option<Found> {
        let kind = Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR;
        let engine = config.named(Name::CUDNN_ATTR_ENGINECFG_ENGINE, kind, 1).ok()?.pop()?;
        let notes = |name, of| engine.values(name, of, 64).ok();
        let numerical = notes(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, Of::CUDNN_TYPE_NUMERICAL_NOTE)?;
        let behavior = notes(Name::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, Of::CUDNN_TYPE_BEHAVIOR_NOTE)?;
        if !may_be_used(&numerical, &behavior, allowed) {
            return None;
        }
        let name = name(&engine, &config).ok()?;
        Some(Found { config, name })
    }

    /// Ready to run, where cuDNN can make it.
    fn made(self, handle: sys::cudnnHandle_t) -> Option<Candidate> {
        let Found { config, name } = self;
        let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
            .and_then(|plan| plan.with(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle))
            .and_then(|plan| plan.naming(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[&config]))
            .and_then(Descriptor::finish)
            .ok()?;
        let workspace = plan.int(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE).ok()?;
        Some(Candidate { plan, _config: config, name, workspace: usize::try_from(workspace).ok()? })
    }
}

/// What cuDNN would run a graph with, the fastest first as it sees it. A mode that knows nothing of the graph has none.
fn configs(graph: &Graph, mode: Mode) -> Vec<Descriptor> {
    let asked = Descriptor::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
        .and_then(|asked| asked.naming(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&graph.whole]))
        .and_then(|asked| asked.with(Name::CUDNN_ATTR_ENGINEHEUR_MODE, mode))
        .and_then(Descriptor::finish);
    let kind = Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    let found =
        asked.and_then(|asked| asked.named(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, kind, MOST_LOOKED_AT));
    found.unwrap_or_default()
}

/// The number of an engine and its settings: `7 2=1 14=0`.
fn name(engine: &Descriptor, config: &Descriptor) -> Result<String, Error> {
    let mut name = engine.int(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?.to_string();
    let kind = Kind::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR;
    for knob in config.named(Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, kind, 64)? {
        let which = knob.values(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, Of::CUDNN_TYPE_KNOB_TYPE, 1)?;
        let value = knob.int(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE)?;
        name += &format!(" {}={value}", which.first().copied().unwrap_or_default());
    }
    Ok(name)
}

/// Whether what cuDNN notes of an engine is what we want: equal bits in every run, and no rounding that was not asked for.
fn may_be_used(numerical: &[u32], behavior: &[u32], allowed: Allowed) -> bool {
    let notes = |note: Numerical| numerical.contains(&(note as u32));
    let does = |what: Behavior| behavior.contains(&(what as u32));
    let never = [
        Numerical::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
        Numerical::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
        Numerical::CUDNN_NUMERICAL_NOTE_FFT,
        Numerical::CUDNN_NUMERICAL_NOTE_WINOGRAD,
    ];
    let strict =
        [Numerical::CUDNN_NUMERICAL_NOTE_TENSOR_CORE, Numerical::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS];
    let reorders = [
        Behavior::CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER,
        Behavior::CUDNN_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER,
    ];
    let rounds = never.into_iter().any(notes) || allowed.strict && strict.into_iter().any(notes);
    let compiles = does(Behavior::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION);
    !rounds && !reorders.into_iter().any(does) && (allowed.compiling || !compiles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_with_other_bits_in_every_run_are_never_used() {
        let allowed = Allowed { strict: false, compiling: false, workspace: 0, number: 1, else_least: true };
        let note = |note: Numerical| note as u32;
        let cores = note(Numerical::CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
        assert!(may_be_used(&[cores], &[], allowed));
        assert!(!may_be_used(&[cores], &[], Allowed { strict: true, ..allowed }));
        let random = note(Numerical::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
        assert!(!may_be_used(&[cores, random], &[], allowed));
        let compiled = Behavior::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION as u32;
        assert!(!may_be_used(&[], &[compiled], allowed));
        assert!(may_be_used(&[], &[compiled], Allowed { compiling: true, ..allowed }));
        // A note that only a newer library has says nothing.
        assert!(may_be_used(&[1000], &[1000], allowed));
    }
}
