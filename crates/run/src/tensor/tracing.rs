//! The recording of a function: its trace and the eager tensors it reached for.

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_graph::{Error as GraphError, Graph, Site, Sym, TensorOps, Trace, Type};

use super::{Tensor, TensorId};
use crate::error::Result;
use crate::scope::path;

/// A function being traced. Eager tensors that its body uses become inputs of the graph, bound to their values.
#[derive(Default)]
pub(crate) struct Tracing {
    trace: Trace,
    captured: Mutex<Vec<(TensorId, Sym, Tensor)>>,
}

impl Tracing {
    pub(crate) fn new() -> Arc<Tracing> {
        Arc::new(Tracing::default())
    }

    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Files what is pushed next under the naming scopes that are open.
    pub(crate) fn enter_scope(&self) {
        self.trace.lock().set_scope(&path());
    }

    /// A new argument of the function.
    #[track_caller]
    pub(crate) fn argument(self: &Arc<Tracing>, name: &str, ty: Type) -> Tensor {
        Tensor::traced(self.trace.input(name, ty), self)
    }

    /// The value of this trace that stands for a tensor.
    pub(crate) fn lift(&self, tensor: &Tensor, op: &'static str, site: Site) -> Result<Sym> {
        if let Some(sym) = tensor.sym() {
            if !sym.trace().same(&self.trace) {
                return Err(GraphError::ForeignValue { op, site }.into());
            }
            return Ok(sym.clone());
        }
        let Some(id) = tensor.id() else {
            return Err(GraphError::Internal("a tensor is neither eager nor traced".into()).into());
        };
        let mut captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, sym, _)) = captured.iter().find(|(known, ..)| *known == id) {
            return Ok(sym.clone());
        }
        let sym = self.trace.input("captured", tensor.ty().clone());
        captured.push((id, sym.clone(), tensor.clone()));
        Ok(sym)
    }

    /// The captured tensors, in the order of their graph inputs, after those of the arguments.
    pub(crate) fn captured(&self) -> Vec<Tensor> {
        let captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        captured.iter().map(|(_, _, tensor)| tensor.clone()).collect()
    }

    /// The captured tensors, each with the value that stands for it.
    pub(crate) fn captures(&self) -> Vec<(Sym, Tensor)> {
        let captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        captured.iter().map(|(_, sym, tensor)| (sym.clone(), tensor.clone())).collect()
    }

    /// The graph of what returned these tensors; eager ones among them are captured.
    pub(crate) fn finish(&self, results: &[Tensor], site: Site) -> Result<Graph> {
        let syms = results.iter().map(|t| self.lift(t, "return", site)).collect::<Result<Vec<Sym>>>()?;
        Ok(self.trace.finish(&syms.iter().collect::<Vec<_>>())?)
    }
}
