//! What a name of a program stands for while it runs.

use plimsoll_graph::TensorOps;
use plimsoll_nn::blocks::Laid;
use plimsoll_run::Result;

use crate::error::refuse;

/// A value.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "most values are tensors")]
pub enum Value {
    /// Nothing was given.
    None,
    /// A tensor, and whether a gradient flows through it to a parameter.
    Tensor(Laid, bool),
    /// Complex numbers by their real and imaginary parts, and whether a gradient flows through them.
    Complex(Box<(Laid, Laid)>, bool),
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
            Value::Complex(..) => "complex numbers",
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
            Value::Tensor(_, is_learned) | Value::Complex(_, is_learned) => *is_learned,
            Value::List(values) => values.iter().any(Value::is_learned),
            _ => false,
        }
    }

    /// Complex numbers by their parts.
    pub fn complex(re: Laid, im: Laid) -> Value {
        Value::Complex(Box::new((re, im)), false)
    }

    /// Whether there are complex numbers in it.
    pub fn is_complex(&self) -> bool {
        match self {
            Value::Complex(..) => true,
            Value::List(values) => values.iter().any(Value::is_complex),
            _ => false,
        }
    }

    /// One part of complex numbers; what is not complex stays as it is.
    pub fn part(&self, is_imaginary: bool) -> Value {
        match self {
            Value::Complex(pair, is_learned) => {
                Value::Tensor(if is_imaginary { pair.1.clone() } else { pair.0.clone() }, *is_learned)
            }
            Value::List(values) => Value::List(values.iter().map(|value| value.part(is_imaginary)).collect()),
            other => other.clone(),
        }
    }

    /// The imaginary part of numbers, which is 0 of those that are not complex.
    pub fn imaginary(&self) -> Result<Value> {
        Ok(match self {
            Value::Tensor(laid, _) => laid.map(|t| t.full_like(t.ty().clone(), 0.0))?.into(),
            Value::List(values) => Value::List(values.iter().map(Value::imaginary).collect::<Result<_>>()?),
            Value::Int(_) => Value::Int(0),
            Value::Float(_) => Value::Float(0.0),
            other => other.part(true),
        })
    }

    /// Both parts of a tensor, be it complex or not.
    pub fn pair(&self) -> Result<(Laid, Laid)> {
        match (self, self.imaginary()?) {
            (Value::Complex(pair, _), _) => Ok((**pair).clone()),
            (Value::Tensor(re, _), Value::Tensor(im, _)) => Ok((re.clone(), im)),
            (other, _) => Err(refuse(format!("is given {} for a tensor", other.kind()))),
        }
    }
}
