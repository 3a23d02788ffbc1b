//! Turns op calls into graph nodes: a [`Sym`] is a value of a graph under construction.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::graph::{Graph, ValueId};
use crate::methods::TensorOps;
use crate::{Op, Site, Type};

/// A graph under construction, shared by all of its values.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [4]));
/// let y = x.exp()?.sum(&[], false)?;
/// let graph = trace.finish(&[&y])?;
/// assert_eq!(graph.nodes().len(), 2);
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Graph>>);

impl Trace {
    /// An empty trace.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// A trace that goes on with a graph; its values are reached with [`Trace::value`].
    pub fn of(graph: Graph) -> Trace {
        Trace(Arc::new(Mutex::new(graph)))
    }

    /// Adds an input.
    #[track_caller]
    pub fn input(&self, name: &str, ty: Type) -> Sym {
        let id = self.lock().input(name, ty.clone(), Site::here());
        Sym { trace: self.clone(), id, ty }
    }

    /// The handle of a value of this trace's graph.
    pub fn value(&self, id: ValueId) -> Sym {
        let ty = self.lock().ty(id).clone();
        Sym { trace: self.clone(), id, ty }
    }

    /// Appends an op.
    pub fn push(&self, op: Op, inputs: &[&Sym], site: Site) -> Result<SmallVec<[Sym; 2]>> {
        if inputs.iter().any(|s| !s.trace.same(self)) {
            return Err(Error::ForeignValue { op: op.name(), site });
        }
        let mut ids: SmallVec<[ValueId; 4]> = inputs.iter().map(|s| s.id).collect();
        let mut graph = self.lock();
        // Exchanges keep their order by the token of the one before.
        if op.is_exchange() && ids.len() == 1 {
            ids.extend(graph.last_token());
        }
        let outputs = graph.push(op, &ids, site)?;
        let sym = |&id: &ValueId| Sym { trace: self.clone(), id, ty: graph.ty(id).clone() };
        Ok(outputs.iter().map(sym).collect())
    }

    /// Names the outputs and returns a copy of the finished graph.
    pub fn finish(&self, outputs: &[&Sym]) -> Result<Graph> {
        if let Some(foreign) = outputs.iter().find(|s| !s.trace.same(self)) {
            return Err(Error::ForeignValue { op: "output", site: self.lock().info(foreign.id).site });
        }
        let mut graph = self.lock().clone();
        graph.set_outputs(outputs.iter().map(|s| s.id).collect());
        Ok(graph)
    }

    /// Runs `body` inside a naming scope: what it makes carries `name` in its path.
    pub fn scoped<T>(&self, name: &str, body: impl FnOnce() -> T) -> T {
        self.lock().enter(name);
        let result = body();
        self.lock().leave();
        result
    }

    /// Whether both are the same trace.
    pub fn same(&self, other: &Trace) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The graph as it stands. Do not call other methods of this trace or its values while holding it.
    pub fn lock(&self) -> MutexGuard<'_, Graph> {
        // A panic elsewhere cannot leave the append-only graph half-written in a way that matters to readers.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value of a graph under construction; its methods ([`TensorOps`]) append nodes.
#[derive(Clone)]
pub struct Sym {
    trace: Trace,
    id: ValueId,
    ty: Type,
}

impl Sym {
    /// Its id in the graph.
    pub fn id(&self) -> ValueId {
        self.id
    }

    /// The trace it belongs to.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }
}

impl TensorOps for Sym {
    type Error = Error;

    fn ty(&self) -> &Type {
        &self.ty
    }

    fn emit(&self, op: Op, inputs: &[&Sym], site: Site) -> Result<SmallVec<[Sym; 2]>> {
        self.trace.push(op, inputs, site)
    }
}

impl fmt::Debug for Sym {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}: {}", self.id.0, self.ty)
    }
}
