//! A small network that tests of steps share.

use plimsoll_run::{Result, StepArgs, StepResult, Tape, TensorOps};

/// One step down the slope of a dense network.
pub fn body(pass: &StepArgs<'_>) -> Result<StepResult> {
    let tape = Tape::new();
    pass.state.iter().try_for_each(|w| tape.watch(w))?;
    let y = pass.state.iter().try_fold(pass.inputs[0].clone(), |x, w| x.matmul(w)?.tanh())?;
    let loss = y.square()?.mean(&[], false)?;
    let slopes = tape.gradient(&loss, &pass.state.iter().collect::<Vec<_>>())?;
    let state = pass.state.iter().zip(&slopes).map(|(w, slope)| w.sub(slope)).collect::<Result<_>>()?;
    Ok(StepResult { state, outputs: vec![loss], totals: vec![] })
}
