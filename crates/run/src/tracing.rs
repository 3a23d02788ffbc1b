//! The recording of a function: its trace and the eager tensors it reached for.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_graph::{Error as GraphError, Site, Sym, TensorOps, Trace, Type};

use crate::error::Result;
use crate::tensor::{Tensor, TensorId};

thread_local! {
    static PATH: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static SITE: Cell<Option<Site>> = const { Cell::new(None) };
}

/// Runs `body` inside a naming scope: values traced in it carry the name in their path, and so do plans and refusals.
///
/// ```
/// use plimsoll_run::{Tensor, TensorOps, function, named};
/// let f = function(|x| named("layer1", || Ok(vec![x[0].exp()?])));
/// assert_eq!(f.call(&[&Tensor::from_slice(&[0.0f32], [1])?])?[0].to_vec::<f32>()?, [1.0]);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub fn named<T>(name: &str, body: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            PATH.with_borrow_mut(|path| {
                path.pop();
            });
        }
    }
    PATH.with_borrow_mut(|path| path.push(name.into()));
    let _leave = Leave;
    body()
}

/// Runs `body` as part of what another line asked for: values traced in it carry that line, and so do plans, refusals and
/// reports. A layer uses it so that the line of the model is named and not the layer's own.
pub fn asked_at<T>(site: Site, body: impl FnOnce() -> T) -> T {
    struct Leave(Option<Site>);
    impl Drop for Leave {
        fn drop(&mut self) {
            SITE.set(self.0);
        }
    }
    let _leave = Leave(SITE.replace(Some(site)));
    body()
}

/// The line that [`asked_at`] names, if the caller runs inside it.
pub fn asked_from() -> Option<Site> {
    SITE.get()
}

/// The naming scopes that are open, outermost first.
pub(crate) fn path() -> String {
    PATH.with_borrow(|path| path.join("/"))
}

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
}
