//! Saying what a gradient is: values through which none flows, and values whose gradient a user writes.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Keep, Rule, Types};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Site, Type, ops};

/// y = x, and no gradient flows back to x; no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StopGradient;

impl Rule for StopGradient {
    const NAME: &'static str = "stop_gradient";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        Ok(smallvec![x.clone()])
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    fn is_view(&self) -> bool {
        true
    }

    fn gradient(&self, _: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![None])
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        vec![inputs[0].clone()]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let x = (Type::new(DType::F32, [dice.range(1, 9), 3]), Domain::Normal);
        vec![Example::new(StopGradient, vec![x])]
    }
}

type Written = dyn Fn(&Backward<'_>) -> Result<Vec<Option<Sym>>> + Send + Sync;

/// y = the first input, whose gradient goes to the other inputs by a rule that a user wrote, and not to what y was made from; no copy.
#[derive(Clone)]
pub struct OwnGradient(Arc<Written>);

impl OwnGradient {
    /// With this rule: it sees y as input 0 and what y was made from as the inputs behind it, and gives a gradient for each of
    /// those, without one for y.
    pub fn new(
        rule: impl Fn(&Backward<'_>) -> Result<Vec<Option<Sym>>> + Send + Sync + 'static,
    ) -> OwnGradient {
        OwnGradient(Arc::new(rule))
    }
}

impl fmt::Debug for OwnGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnGradient")
    }
}

impl PartialEq for OwnGradient {
    fn eq(&self, other: &OwnGradient) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for OwnGradient {}

impl Hash for OwnGradient {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).cast::<u8>().hash(state);
    }
}

impl Rule for OwnGradient {
    const NAME: &'static str = "own_gradient";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        match inputs {
            [y, _, ..] if inputs.len() <= 32 => Ok(smallvec![(*y).clone()]),
            [_, _, ..] => Err(format!("it takes 31 inputs beside its value, not {}", inputs.len() - 1)),
            _ => Err("it takes a value and at least one input that its gradient goes to".into()),
        }
    }

    /// The others are not read forward.
    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    fn is_view(&self) -> bool {
        true
    }

    const KEEP: Keep = Keep::inputs(u32::MAX);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let written = (self.0)(at)?;
        if written.len() + 1 != at.n_inputs() {
            let why = format!("it gave {} gradients for {} inputs", written.len(), at.n_inputs() - 1);
            return Err(at.no_gradient(&why));
        }
        for (i, grad) in written.iter().enumerate() {
            let want = at.input_type(i + 1);
            if let Some(grad) = grad.as_ref().filter(|grad| grad.ty() != want) {
                return Err(
                    at.no_gradient(&format!("its gradient {i} is {} where the input is {want}", grad.ty()))
                );
            }
        }
        Ok([None].into_iter().chain(written).collect())
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        vec![inputs[0].clone()]
    }

    /// What y was made from gets none, and the other input, which y does not read, none either.
    fn examples(dice: &mut Dice) -> Vec<Example> {
        let x = (Type::new(DType::F32, [dice.range(1, 9), 3]), Domain::Normal);
        let op = OwnGradient::new(|_| Ok(vec![None]));
        vec![Example::new(op, vec![x.clone(), x])]
    }
}

/// Methods that say what a gradient is.
pub trait GradientOps: TensorOps {
    /// The same values, through which no gradient flows back.
    ///
    /// ```
    /// use plimsoll_graph::{DType, GradientOps, TensorOps, Trace, Type, gradient};
    /// let trace = Trace::new();
    /// let x = trace.input("x", Type::new(DType::F32, [4]));
    /// let y = x.mul(&x.stop_gradient()?)?.sum(&[], false)?;
    /// assert!(gradient(&y, None, &[&x])?[0].is_some());
    /// assert!(gradient(&x.stop_gradient()?.sum(&[], false)?, None, &[&x])?[0].is_none());
    /// # Ok::<(), plimsoll_graph::Error>(())
    /// ```
    #[track_caller]
    fn stop_gradient(&self) -> Result<Self, Self::Error> {
        self.emit_one(StopGradient, &[self], Site::here())
    }

    /// The same values, with a gradient that you write: `rule` gives one for each of `inputs`, from the gradient that arrives
    /// (`at.grad(0)`), this value (`at.input(0)`) and the inputs (`at.input(1)` and on). How the value was made has no say in it.
    ///
    /// ```
    /// use plimsoll_graph::{DType, GradientOps, TensorOps, Trace, Type, gradient};
    /// let trace = Trace::new();
    /// let x = trace.input("x", Type::new(DType::F32, [4]));
    /// // Rounded down forward; backward as if it were not (straight through).
    /// let y = x.floor()?.with_gradient(&[&x], |at| Ok(vec![Some(at.grad(0)?)]))?;
    /// assert!(gradient(&y.sum(&[], false)?, None, &[&x])?[0].is_some());
    /// # Ok::<(), plimsoll_graph::Error>(())
    /// ```
    #[track_caller]
    fn with_gradient(
        &self,
        inputs: &[&Self],
        rule: impl Fn(&Backward<'_>) -> Result<Vec<Option<Sym>>> + Send + Sync + 'static,
    ) -> Result<Self, Self::Error> {
        let all: Vec<&Self> = [self].into_iter().chain(inputs.iter().copied()).collect();
        self.emit_one(OwnGradient::new(rule), &all, Site::here())
    }
}

impl<T: TensorOps> GradientOps for T {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::interpret;
    use crate::{Trace, gradient};

    /// The gradient of the sum of a function of x at 1, 2, 3.
    fn slope(f: impl Fn(&Sym) -> Result<Sym>) -> Result<Vec<f64>> {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F64, [3]));
        let y = f(&x)?.sum(&[], false)?;
        let Some(dx) = gradient(&y, None, &[&x])?.remove(0) else { return Ok(vec![]) };
        let graph = trace.finish(&[&dx])?;
        Ok(interpret(&graph, &[Array::new([3], vec![1.0, 2.0, 3.0])]).remove(0).data)
    }

    #[test]
    fn nothing_flows_through_what_is_stopped_and_all_beside_it() {
        assert_eq!(slope(|x| x.mul(&x.stop_gradient()?)).unwrap(), [1.0, 2.0, 3.0]);
        assert!(slope(|x| x.square()?.stop_gradient()).unwrap().is_empty());
    }

    #[test]
    fn a_written_gradient_is_taken_instead_of_that_of_the_ops() {
        let doubled =
            |x: &Sym| x.square()?.with_gradient(&[x], |at| Ok(vec![Some(at.grad(0)?.mul(&at.input(1)?)?)]));
        assert_eq!(slope(doubled).unwrap(), [1.0, 2.0, 3.0]);
        // It sees the value too: y dy = x² dy.
        let seen =
            |x: &Sym| x.square()?.with_gradient(&[x], |at| Ok(vec![Some(at.grad(0)?.mul(&at.input(0)?)?)]));
        assert_eq!(slope(seen).unwrap(), [1.0, 4.0, 9.0]);
    }

    #[test]
    fn a_written_gradient_that_does_not_fit_is_an_error_that_says_so() {
        let none = slope(|x| x.with_gradient(&[x], |_| Ok(vec![]))).unwrap_err().to_string();
        assert!(none.contains("0 gradients for 1 inputs"), "{none}");
        let wide = slope(|x| x.with_gradient(&[x], |at| Ok(vec![Some(at.grad(0)?.reshape([3, 1])?)])));
        let wide = wide.unwrap_err().to_string();
        assert!(wide.contains("[3, 1]") && wide.contains("[3]"), "{wide}");
    }
}
