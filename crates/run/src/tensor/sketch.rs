//! Tensors without bytes, to find out what a computation would be like.

use std::sync::Arc;

use plimsoll_graph::{Graph, Site, Sym, Type, ValueId};

use super::Tensor;
use super::Tracing;
use crate::error::Result;

/// A place where ops give types and errors but no values: nothing runs, nothing is allocated.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// use plimsoll_run::{Sketch, TensorOps};
/// let sketch = Sketch::new();
/// let x = sketch.tensor("x", Type::new(DType::F32, [1000, 1000, 1000]));
/// assert_eq!(x.sum(&[2], false)?.shape().to_string(), "[1000, 1000]");
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone)]
pub struct Sketch(Arc<Tracing>);

impl Sketch {
    /// An empty sketch.
    pub fn new() -> Sketch {
        Sketch(Tracing::new())
    }

    /// A tensor of a type.
    #[track_caller]
    pub fn tensor(&self, name: &str, ty: Type) -> Tensor {
        self.0.argument(name, ty)
    }

    /// The value of the sketch's graph that stands for a tensor; none if it is of another place.
    pub fn value(&self, tensor: &Tensor) -> Option<ValueId> {
        tensor.sym().filter(|sym| sym.trace().same(self.0.trace())).map(Sym::id)
    }

    /// The tensors with values that the computation reached for, each with the value of the graph that stands for it.
    pub fn captured(&self) -> Vec<(ValueId, Tensor)> {
        self.0.captures().into_iter().map(|(sym, tensor)| (sym.id(), tensor)).collect()
    }

    /// The graph of everything that was sketched, with these outputs.
    ///
    /// # Errors
    /// An output is not of this sketch.
    pub fn graph(&self, outputs: &[&Tensor]) -> Result<Graph> {
        let site = Site::here();
        let outputs = outputs.iter().map(|t| self.0.lift(t, "output", site)).collect::<Result<Vec<Sym>>>()?;
        Ok(self.0.trace().finish(&outputs.iter().collect::<Vec<_>>())?)
    }
}

impl Default for Sketch {
    fn default() -> Sketch {
        Sketch::new()
    }
}
