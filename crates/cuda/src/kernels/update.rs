//! An optimizer's step as kernels take it, whatever its state is kept as.

use plimsoll_device::backend::Call;
use plimsoll_graph::DType;
use plimsoll_graph::ops::Update;

use crate::launch::{Args, Code};

/// The arguments that are `Moved` in the source: the parameter, its gradient and the numbers of the step.
pub(super) fn moved(update: &Update, call: &Call<'_>) -> Args {
    let read = |at: usize| call.inputs[at].ptr;
    let mut args = Args::new().int(call.inputs[0].ty.elements()).at(read(0)).at(read(1));
    // The scalars are on the card; the numbers of the rule are here.
    args = args.at(read(2)).at(read(3)).at(read(update.first_state() - 1)).at(call.outputs[0].ptr);
    let step = update.step(&[0.0; 3]);
    for constant in step.constants {
        args = args.float(f64::from(constant));
    }
    args.float(f64::from(step.l2)).int(usize::from(update.shrinks))
}

/// A family of kernels for a step of this rule, over parameters of a type.
pub(super) fn code(name: &'static str, text: &'static str, update: &Update, dtype: DType) -> Code<'static> {
    Code { contract: false, ..Code::of(name, text, dtype).with("RULE", update.rule.number()) }
}
