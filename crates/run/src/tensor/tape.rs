//! The gradient tape: records eager ops and turns the record into gradients by the graph's own rules.
//!
//! The record is a graph without bytes; beside it the tape keeps only the tensors that the gradient rules declare
//! they will read, and lets go of each as the backward pass has passed it.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use plimsoll_graph::{
    Error as GraphError, Graph, NodeId, Op, Site, Sym, TensorOps, Trace, ValueId, gradients,
};
use rustc_hash::FxHashMap;

use super::{Tensor, TensorId};
use crate::error::{Error, Result};

thread_local! {
    static ACTIVE: RefCell<Vec<Weak<RefCell<Record>>>> = const { RefCell::new(Vec::new()) };
}

/// Records the ops of this thread from its creation on, as far as they follow from what it watches.
///
/// ```
/// use plimsoll_run::{Tape, Tensor, TensorOps};
/// let x = Tensor::from_slice(&[3.0f32], [1])?;
/// let tape = Tape::new();
/// tape.watch(&x)?;
/// let y = x.square()?.sum(&[], false)?;
/// let dx = tape.gradient(&y, &[&x])?.remove(0);
/// assert_eq!(dx.to_vec::<f32>()?, [6.0]);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
///
/// Inside a traced function the same calls add the gradient to the trace. A tape gives gradients once, and frees as it
/// goes; a persistent one ([`Tape::persistent`]) gives them as often as asked and keeps everything until it is dropped.
pub struct Tape {
    record: Rc<RefCell<Record>>,
    persistent: bool,
}

#[derive(Default)]
struct Record {
    graph: Graph,
    values: FxHashMap<TensorId, ValueId>,
    /// Whether a value follows from a watched one.
    tracked: Vec<bool>,
    kept: FxHashMap<ValueId, Tensor>,
    /// Ops made while the tape itself computes a gradient are not its own to record.
    paused: bool,
    /// It was asked to record no more.
    stopped: bool,
    spent: bool,
}

impl Default for Tape {
    fn default() -> Tape {
        Tape::new()
    }
}

impl Tape {
    /// A tape that gives gradients once.
    pub fn new() -> Tape {
        Tape::with(false)
    }

    /// A tape that gives gradients as often as asked.
    pub fn persistent() -> Tape {
        Tape::with(true)
    }

    fn with(persistent: bool) -> Tape {
        let record = Rc::new(RefCell::new(Record::default()));
        ACTIVE.with_borrow_mut(|tapes| {
            tapes.retain(|tape| tape.strong_count() > 0);
            tapes.push(Rc::downgrade(&record));
        });
        Tape { record, persistent }
    }

    /// Follows what is computed from a tensor.
    #[track_caller]
    pub fn watch(&self, tensor: &Tensor) -> Result<()> {
        let Some(id) = tensor.id() else { return Ok(()) };
        let mut record = self.record.borrow_mut();
        let value = record.value_of(id, tensor, Site::here());
        record.tracked[value.index()] = true;
        Ok(())
    }

    /// Records no further ops; gradients of what was recorded can still be asked for.
    pub fn stop(&self) {
        self.record.borrow_mut().stopped = true;
    }

    /// The gradients of a target (the sum of its elements) with respect to tensors, one each.
    #[track_caller]
    pub fn gradient(&self, target: &Tensor, wrt: &[&Tensor]) -> Result<Vec<Tensor>> {
        let site = Site::here();
        let grads = self.try_gradient_at(target, wrt, site)?;
        let missing = |i: usize| GraphError::NoPath {
            site,
            why: format!(
                "the target does not depend on tensor {i} ({}); watch it before it is used",
                wrt[i].ty()
            ),
        };
        grads.into_iter().enumerate().map(|(i, grad)| grad.ok_or_else(|| missing(i).into())).collect()
    }

    /// As [`Tape::gradient`], with `None` for tensors on which the target does not depend.
    #[track_caller]
    pub fn try_gradient(&self, target: &Tensor, wrt: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
        self.try_gradient_at(target, wrt, Site::here())
    }

    fn try_gradient_at(&self, target: &Tensor, wrt: &[&Tensor], site: Site) -> Result<Vec<Option<Tensor>>> {
        if let Some(tracing) = target.tracing() {
            let target = tracing.lift(target, "gradient", site)?;
            let wrt = wrt.iter().map(|t| tracing.lift(t, "gradient", site)).collect::<Result<Vec<Sym>>>()?;
            let grads = gradients(&[(&target, None)], &wrt.iter().collect::<Vec<_>>(), site)?;
            return Ok(grads.into_iter().map(|g| g.map(|sym| Tensor::traced(sym, tracing))).collect());
        }
        if std::mem::replace(&mut self.record.borrow_mut().paused, true) {
            return Err(
                GraphError::Internal("a tape was asked for a gradient while giving one".into()).into()
            );
        }
        let result = self.replay(target, wrt, site);
        self.record.borrow_mut().paused = false;
        result
    }

    /// Differentiates the record and runs what that adds, eagerly, so that outer tapes see it.
    fn replay(&self, target: &Tensor, wrt: &[&Tensor], site: Site) -> Result<Vec<Option<Tensor>>> {
        let (trace, mut values, mut kept) = {
            let mut record = self.record.borrow_mut();
            if record.spent {
                let why =
                    "this tape has given its gradients; use Tape::persistent() to ask more than once".into();
                return Err(Error::Signature { site, why });
            }
            if self.persistent {
                (Trace::of(record.graph.clone()), record.values.clone(), record.kept.clone())
            } else {
                record.spent = true;
                let graph = std::mem::take(&mut record.graph);
                (Trace::of(graph), std::mem::take(&mut record.values), std::mem::take(&mut record.kept))
            }
        };
        let mut sym_of = |tensor: &Tensor| -> Result<Sym> {
            let Some(id) = tensor.id() else {
                return Err(GraphError::ForeignValue { op: "gradient", site }.into());
            };
            let value =
                *values.entry(id).or_insert_with(|| trace.lock().input("", tensor.ty().clone(), site));
            Ok(trace.value(value))
        };
        let n_forward = trace.lock().nodes().len();
        let target_sym = sym_of(target)?;
        let wrt_syms = wrt.iter().map(|t| sym_of(t)).collect::<Result<Vec<Sym>>>()?;
        let grads = gradients(&[(&target_sym, None)], &wrt_syms.iter().collect::<Vec<_>>(), site)?;
        let wanted: Vec<ValueId> = grads.iter().flatten().map(Sym::id).collect();
        let graph = trace.lock().clone();
        let last_use = last_uses(&graph, n_forward, &wanted);
        // What the backward pass will not read is let go before it starts.
        kept.retain(|value, _| last_use[value.index()].is_some());
        for index in n_forward..graph.nodes().len() {
            let node = graph.node(NodeId(index as u32));
            if node.outputs.iter().all(|v| last_use[v.index()].is_none()) {
                continue;
            }
            let missing =
                |v: &ValueId| GraphError::Internal(format!("the tape did not keep %{} for {}", v.0, node.op));
            let inputs = node
                .inputs
                .iter()
                .map(|v| kept.get(v).cloned().ok_or_else(|| missing(v).into()))
                .collect::<Result<Vec<Tensor>>>()?;
            let outputs = target.emit(node.op.clone(), &inputs.iter().collect::<Vec<_>>(), node.site)?;
            drop(inputs);
            for v in &node.inputs {
                if last_use[v.index()] == Some(index) {
                    kept.remove(v);
                }
            }
            for (&v, tensor) in node.outputs.iter().zip(outputs) {
                if last_use[v.index()].is_some() {
                    kept.insert(v, tensor);
                }
            }
        }
        let result = grads.iter().map(|g| g.as_ref().and_then(|sym| kept.get(&sym.id()).cloned())).collect();
        Ok(result)
    }
}

/// Inside a traced function: what becomes of gradients of targets, each beside its target, on the way back to tensors; none where no target depends on one. Where a
/// gradient comes from elsewhere, from another rank say.
///
/// # Errors
/// A target is not traced, or a gradient not of its target's type.
#[track_caller]
pub fn pull_back(targets: &[(&Tensor, &Tensor)], wrt: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    let site = Site::here();
    let Some((first, _)) = targets.first() else { return Ok(vec![None; wrt.len()]) };
    let Some(tracing) = first.tracing() else {
        return Err(GraphError::ForeignValue { op: "gradient", site }.into());
    };
    let lift = |tensor: &Tensor| tracing.lift(tensor, "gradient", site);
    let both = |(target, grad): &(&Tensor, &Tensor)| Ok((lift(target)?, lift(grad)?));
    let targets = targets.iter().map(both).collect::<Result<Vec<(Sym, Sym)>>>()?;
    let targets: Vec<(&Sym, Option<&Sym>)> =
        targets.iter().map(|(target, grad)| (target, Some(grad))).collect();
    let wrt = wrt.iter().map(|tensor| lift(tensor)).collect::<Result<Vec<Sym>>>()?;
    let grads = gradients(&targets, &wrt.iter().collect::<Vec<_>>(), site)?;
    Ok(grads.into_iter().map(|grad| grad.map(|sym| Tensor::traced(sym, tracing))).collect())
}

/// For each value the last node from `first` on that reads it, `usize::MAX` for the wanted ones, `None` for those that
/// nothing wanted needs.
fn last_uses(graph: &Graph, first: usize, wanted: &[ValueId]) -> Vec<Option<usize>> {
    let mut last = vec![None; graph.values().len()];
    for v in wanted {
        last[v.index()] = Some(usize::MAX);
    }
    for index in (first..graph.nodes().len()).rev() {
        let node = graph.node(NodeId(index as u32));
        if node.outputs.iter().any(|v| last[v.index()].is_some()) {
            for v in &node.inputs {
                last[v.index()].get_or_insert(index);
            }
        }
    }
    last
}

impl Record {
    /// Whether ops are recorded now.
    fn is_open(&self) -> bool {
        !(self.paused || self.stopped || self.spent)
    }

    fn value_of(&mut self, id: TensorId, tensor: &Tensor, site: Site) -> ValueId {
        let Record { graph, values, tracked, .. } = self;
        *values.entry(id).or_insert_with(|| {
            tracked.push(false);
            graph.input("", tensor.ty().clone(), site)
        })
    }

    fn record(&mut self, op: &Op, inputs: &[&Tensor], outputs: &[Tensor], site: Site) -> Result<()> {
        let follows = |t: &&Tensor| {
            let value = t.id().and_then(|id| self.values.get(&id));
            value.is_some_and(|v| self.tracked[v.index()])
        };
        if !inputs.iter().any(follows) {
            return Ok(());
        }
        let mut ids = Vec::with_capacity(inputs.len());
        for tensor in inputs {
            if let Some(id) = tensor.id() {
                ids.push(self.value_of(id, tensor, site));
            }
        }
        let results = self.graph.push(op.clone(), &ids, site)?;
        let keep = op.keep();
        for (i, (&value, tensor)) in ids.iter().zip(inputs).enumerate() {
            if keep.inputs.checked_shr(i as u32).unwrap_or(0) & 1 == 1 {
                self.kept.insert(value, (*tensor).clone());
            }
        }
        for (i, (&value, tensor)) in results.iter().zip(outputs).enumerate() {
            self.tracked.push(tensor.dtype().is_float());
            if let Some(id) = tensor.id() {
                self.values.insert(id, value);
            }
            if keep.outputs.checked_shr(i as u32).unwrap_or(0) & 1 == 1 {
                self.kept.insert(value, tensor.clone());
            }
        }
        Ok(())
    }
}

/// Tells every active tape of this thread of an op that has run.
pub(crate) fn record(op: &Op, inputs: &[&Tensor], outputs: &[Tensor], site: Site) -> Result<()> {
    ACTIVE.with_borrow(|tapes| {
        for tape in tapes.iter().filter_map(Weak::upgrade) {
            let mut record = tape.borrow_mut();
            if record.is_open() {
                record.record(op, inputs, outputs, site)?;
            }
        }
        Ok(())
    })
}

/// Whether a tape of this thread follows one of these tensors.
pub(crate) fn follows(tensors: &[&Tensor]) -> bool {
    ACTIVE.with_borrow(|tapes| {
        tapes.iter().filter_map(Weak::upgrade).any(|tape| {
            let record = tape.borrow();
            let tracked = |t: &&Tensor| {
                t.id().and_then(|id| record.values.get(&id)).is_some_and(|v| record.tracked[v.index()])
            };
            record.is_open() && tensors.iter().any(tracked)
        })
    })
}

impl Drop for Tape {
    fn drop(&mut self) {
        let mine = Rc::as_ptr(&self.record);
        // A thread that is ending may have lost its list already; there is nothing to tidy then.
        let _ = ACTIVE.try_with(|tapes| tapes.borrow_mut().retain(|tape| tape.as_ptr() != mine));
    }
}
