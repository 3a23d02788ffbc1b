//! Turns an op that equals a composition of other ops into its gradient: builds the composition and differentiates it.
//!
//! Gradient kernels (of softmax, norms, losses) do in one pass what the composition does in ten, and are asked for
//! their own derivative so rarely that a hand-written rule would only be a place for mistakes.

use crate::error::Result;
use crate::gradient::{Backward, gradients};
use crate::methods::TensorOps;
use crate::trace::Sym;
use crate::{Op, Scalar, ops};

/// The gradients of an op's inputs through `build`, which makes the op's outputs from its inputs with other ops.
///
/// The rule that calls this must keep all inputs.
pub(crate) fn through(
    at: &Backward<'_>,
    build: impl FnOnce(&[Sym]) -> Result<Vec<Sym>>,
) -> Result<Vec<Option<Sym>>> {
    // The composition starts at views of the inputs: were it to start at the inputs, and one of them computed from
    // another, the inner pass would walk on into the forward pass, and the outer pass would do so again.
    let mut starts = Vec::new();
    for i in 0..at.n_inputs() {
        let x = at.input(i)?;
        starts.push(at.push(ops::Reshape(x.shape().clone()), &[&x])?.remove(0));
    }
    let outputs = build(&starts)?;
    let targets: Vec<(&Sym, Option<&Sym>)> =
        outputs.iter().enumerate().filter_map(|(i, y)| Some((y, Some(at.try_grad(i)?)))).collect();
    let wanted: Vec<usize> =
        (0..starts.len()).filter(|&i| at.wants(i) && starts[i].dtype().is_float()).collect();
    let found = gradients(&targets, &wanted.iter().map(|&i| &starts[i]).collect::<Vec<_>>(), at.site())?;
    let mut grads = vec![None; starts.len()];
    for (i, grad) in wanted.into_iter().zip(found) {
        grads[i] = grad;
    }
    Ok(grads)
}

/// The gradient at the sum of an op that applies `act` to a sum, from the gradient at its result; `plain` is the same op
/// without the activation.
pub(crate) fn before_activation(
    at: &Backward<'_>,
    act: Option<ops::Unary>,
    plain: impl Into<Op>,
) -> Result<Sym> {
    let dy = at.grad(0)?;
    match act {
        None => Ok(dy),
        Some(ops::Unary::Relu) => {
            let op = ops::ReluGrad { slope: Scalar(0.0) };
            Ok(at.push(op, &[&at.output(0)?, &dy])?.remove(0))
        }
        Some(act) => {
            // Activations whose slope the output does not tell: compute the sum once more.
            let inputs = (0..at.n_inputs()).map(|i| at.input(i)).collect::<Result<Vec<Sym>>>()?;
            let sum = at.push(plain, &inputs.iter().collect::<Vec<_>>())?.remove(0);
            let y = at.push(act, &[&sum])?.remove(0);
            let mut grads = gradients(&[(&y, Some(&dy))], &[&sum], at.site())?;
            grads.remove(0).ok_or_else(|| at.no_gradient("its activation has none"))
        }
    }
}
