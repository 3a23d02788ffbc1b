//! What a name of a program stands for while it runs.

use plimsoll_nn::blocks::Laid;

/// A value.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "most values are tensors")]
pub enum Value {
    /// Nothing was given.
    None,
    /// A tensor, and whether a gradient flows through it to a parameter.
    Tensor(Laid, bool),
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    /// The type itself is read off what comes out.
    DType,
    List(Vec<Value>),
    /// Devices, layouts and formats of memory: they say nothing of what is computed.
    Aside,
}

impl From<Laid> for Value {
    fn from(laid: Laid) -> Value {
        Value::Tensor(laid, false)
    }
}

impl From<plimsoll_run::Tensor> for Value {
    fn from(tensor: plimsoll_run::Tensor) -> Value {
        Value::Tensor(tensor.into(), false)
    }
}

impl Value {
    /// What it is, for errors.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::None => "nothing",
            Value::Tensor(..) => "a tensor",
            Value::Int(_) => "a whole number",
            Value::Float(_) => "a number",
            Value::Bool(_) => "a truth value",
            Value::Text(_) => "a word",
            Value::DType => "an element type",
            Value::List(_) => "a list",
            Value::Aside => "a device or a layout",
        }
    }

    /// Whether a gradient flows through it.
    pub fn is_learned(&self) -> bool {
        match self {
            Value::Tensor(_, is_learned) => *is_learned,
            Value::List(values) => values.iter().any(Value::is_learned),
            _ => false,
        }
    }
}
