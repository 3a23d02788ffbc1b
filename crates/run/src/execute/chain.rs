//! A step for tests: a chain of layers over a batch, of which most can be recomputed.

use crate::{Result, StepArgs, StepResult, Tape, TensorOps};

/// So many layers of one weight, trained by gradient descent.
pub(crate) fn chain(layers: usize) -> impl Fn(&StepArgs<'_>) -> Result<StepResult> + Send + Sync + 'static {
    move |args| {
        let weight = &args.state[0];
        let tape = Tape::new();
        tape.watch(weight)?;
        let layer = |x: crate::Tensor, _| x.matmul(weight)?.tanh();
        let x = (0..layers).try_fold(args.inputs[0].clone(), layer)?;
        let loss = x.square()?.mean(&[], false)?;
        let gradient = tape.gradient(&loss, &[weight])?.remove(0);
        let state = vec![weight.sub(&gradient.mul_scalar(0.1)?)?];
        Ok(StepResult { state, outputs: vec![loss], totals: vec![] })
    }
}
