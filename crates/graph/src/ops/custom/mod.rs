//! Ops that users bring: a rule, a kernel in Rust for the CPU and, if wanted, CUDA source for a card.
//!
//! The planner, the verifier and the gradient treat such an op like any other: its scratch is in the plan, its results are kept or
//! recomputed, and what its gradient does not keep is not kept.

mod call;
mod cuda;
mod example;

pub use call::{Elements, ElementsMut, HostCall, OnEveryThread, Parallel};
pub use cuda::{CudaArgument, CudaKernel};

use std::any::TypeId;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::error::Result;
use crate::example::{Dice, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{Site, Type};

/// What a user says of an op of their own.
///
/// Two ops are the same if they are of one Rust type and their `Debug` texts are equal: so all attributes belong into that text.
/// Kernels are timed on memory of any content; they must end whatever they read.
///
/// ```
/// use plimsoll_graph::custom::{CustomOp, CustomOps, HostCall};
/// use plimsoll_graph::{Along, Backward, DType, Sym, TensorOps, Trace, Type, Types};
///
/// /// y = x³.
/// #[derive(Debug)]
/// struct Cube;
///
/// impl CustomOp for Cube {
///     fn name(&self) -> &'static str {
///         "cube"
///     }
///
///     fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
///         match inputs {
///             [x] if x.dtype == DType::F32 => Ok([(*x).clone()].into_iter().collect()),
///             _ => Err("it takes one tensor of f32".into()),
///         }
///     }
///
///     fn keeps_apart(&self, _: &Along<'_>) -> bool {
///         true
///     }
///
///     fn run(&self, call: &mut HostCall<'_>) -> Result<(), String> {
///         let x = call.inputs[0].f32()?;
///         let y = call.outputs[0].f32()?;
///         call.parallel.chunks(y, 4096, &|i, y| {
///             for (y, x) in y.iter_mut().zip(&x[i * 4096..]) {
///                 *y = x * x * x;
///             }
///         });
///         Ok(())
///     }
///
///     fn keep(&self) -> plimsoll_graph::Keep {
///         plimsoll_graph::Keep::inputs(1)
///     }
///
///     /// dx = 3 x² dy, of ops that exist; it could be an op of its own too.
///     fn gradient(&self, at: &Backward<'_>) -> plimsoll_graph::Result<Vec<Option<Sym>>> {
///         Ok(vec![Some(at.input(0)?.square()?.mul_scalar(3.0)?.mul(&at.grad(0)?)?)])
///     }
/// }
///
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [4]));
/// assert_eq!(x.custom(Cube, &[&x])?[0].shape().to_string(), "[4]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait CustomOp: fmt::Debug + Send + Sync + 'static {
    /// The name that people see in errors, plans and reports.
    fn name(&self) -> &'static str;

    /// Output types from input types, or a sentence about what does not fit.
    fn infer(&self, inputs: &[&Type]) -> Result<Types, String>;

    /// Computes the outputs on the CPU, or says what is wrong with the values it was given. Allocates nothing: what it needs
    /// beside the operands is scratch.
    fn run(&self, call: &mut HostCall<'_>) -> Result<(), String>;

    /// The bytes of scratch that one call needs.
    fn scratch(&self, _inputs: &[&Type], _outputs: &[&Type]) -> usize {
        0
    }

    /// The kernel for a card; without one, the op is refused there by name.
    fn cuda(&self, _inputs: &[&Type], _outputs: &[&Type]) -> Option<CudaKernel> {
        None
    }

    /// Whether samples along an axis are kept apart, so that a batch may be split ([`Rule::keeps_apart`]).
    fn keeps_apart(&self, _along: &Along<'_>) -> bool {
        false
    }

    /// Work and traffic, for plans before anything was timed.
    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: outputs.first().map_or(0, |t| t.elements()) as f64, bytes: traffic(inputs, outputs) }
    }

    /// What the gradient reads of the forward pass; reading another value is an error.
    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    /// The gradients of the inputs, one entry each, `None` where none flows; without a rule, asking for one is an error.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient("its CustomOp defines no gradient"))
    }
}

/// An op that a user brought.
#[derive(Clone)]
pub struct Custom {
    op: Arc<dyn CustomOp>,
    /// Its Rust type and its `Debug` text: what tells it from others.
    identity: (TypeId, Arc<str>),
}

impl Custom {
    /// An op of a user's own, to be emitted or pushed by a gradient.
    pub fn new<O: CustomOp>(op: O) -> Custom {
        let identity = (TypeId::of::<O>(), format!("{op:?}").into());
        Custom { op: Arc::new(op), identity }
    }

    /// The op as its user wrote it.
    pub fn op(&self) -> &dyn CustomOp {
        &*self.op
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Custom({} {})", self.op.name(), self.identity.1)
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Custom) -> bool {
        self.identity == other.identity
    }
}

impl Eq for Custom {}

impl Hash for Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity.hash(state);
    }
}

impl Rule for Custom {
    const NAME: &'static str = "custom";

    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let outputs = self.op.infer(inputs)?;
        if outputs.is_empty() { Err("its CustomOp names no output".into()) } else { Ok(outputs) }
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        self.op.keeps_apart(along)
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        self.op.cost(inputs, outputs)
    }

    fn keep(&self) -> Keep {
        self.op.keep()
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let grads = self.op.gradient(at)?;
        if grads.len() == at.n_inputs() {
            return Ok(grads);
        }
        let why = format!("its CustomOp gave {} gradients for {} inputs", grads.len(), at.n_inputs());
        Err(at.no_gradient(&why))
    }

    /// The user's own kernel on f64 and i64 values: what it means is what it does.
    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        call::on_arrays(&*self.op, inputs, outputs)
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        example::examples(dice)
    }
}

/// Calling ops of one's own.
pub trait CustomOps: TensorOps {
    /// The outputs of an op of one's own.
    #[track_caller]
    fn custom(&self, op: impl CustomOp, inputs: &[&Self]) -> Result<Vec<Self>, Self::Error> {
        Ok(self.emit(Custom::new(op).into(), inputs, Site::here())?.into_vec())
    }
}

impl<T: TensorOps> CustomOps for T {}
