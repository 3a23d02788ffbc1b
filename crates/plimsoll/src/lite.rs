//! Running `.tflite` files in one arena, as a device does that has nothing else: the runtime is `plimsoll-lite`, a crate of its own.

#[doc(inline)]
pub use plimsoll_lite::{
    C_HEADER, Error, Model, OperatorInfo, Options, Result, TensorInfo, Type, operator_names, plan_file,
};
