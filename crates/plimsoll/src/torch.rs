//! PyTorch programs: what `torch.export` writes (`.pt2`) as a model to train.

#[doc(inline)]
pub use plimsoll_torch::{
    Cycled, Error, Held, Input, Kind, Length, Level, Limits, Output, Program, ProgramLoss, Result, Rule,
    TorchModel, TorchOptimizer, Values, known_ops,
};
