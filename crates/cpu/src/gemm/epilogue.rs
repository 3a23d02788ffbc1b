//! What happens to a finished sum before it is stored: bias, activation, and a caller's own function.

/// A caller's own function on finished rows, for activations that the kernels do not know.
pub trait RowHook: Sync {
    /// Changes the finished values of output row `row`, columns `col ..`. A row may come in several pieces, each
    /// exactly once, from several threads.
    fn apply(&self, row: usize, col: usize, values: &mut [f32]);
}

impl<F: Fn(usize, usize, &mut [f32]) + Sync> RowHook for F {
    fn apply(&self, row: usize, col: usize, values: &mut [f32]) {
        self(row, col, values)
    }
}

/// The activations that the micro-kernels apply themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// The sum as it is.
    #[default]
    None,
    /// `max(0, x)`; a NaN stays a NaN.
    Relu,
}

/// What is done with a finished sum, in this order: add the old output, add the bias, activate, call the hook.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// Add to what the output holds instead of replacing it.
    pub accumulate: bool,
    /// One value a column (output channel).
    pub bias: Option<&'a [f32]>,
    /// Applied after the bias.
    pub activation: Activation,
    /// Applied last.
    pub hook: Option<&'a dyn RowHook>,
}

impl<'a> Epilogue<'a> {
    /// Store the sum as it is.
    pub const NONE: Epilogue<'static> =
        Epilogue { accumulate: false, bias: None, activation: Activation::None, hook: None };

    /// Add the sum to what the output holds.
    pub const ACCUMULATE: Epilogue<'static> = Epilogue { accumulate: true, ..Epilogue::NONE };

    /// Add a bias.
    pub fn bias(bias: &'a [f32]) -> Epilogue<'a> {
        Epilogue { bias: Some(bias), ..Epilogue::NONE }
    }
}
