//! Tensors without bytes, to find out what a computation would be like.

use std::sync::Arc;

use plimsoll_graph::Type;

use crate::tensor::Tensor;
use crate::tracing::Tracing;

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
}

impl Default for Sketch {
    fn default() -> Sketch {
        Sketch::new()
    }
}
