//! `models/model.json` of an exported program as plain data: schema 8 of PyTorch's exported programs, what is not read left out.
//!
//! Names of fields and variants are PyTorch's own; unions are objects with one key, which is how serde writes enums.

#![allow(clippy::enum_variant_names, reason = "variants have the names that PyTorch's JSON has")]

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error, IgnoredAny, Visitor};
use serde::{Deserialize, Serialize};

/// The major version that is read here.
pub const MAJOR: u64 = 8;

/// What is read first, so that another version is refused by name and not by the first field that differs.
#[derive(Deserialize)]
pub struct Version {
    pub schema_version: SchemaVersion,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct SchemaVersion {
    pub major: u64,
    pub minor: u64,
}

#[derive(Deserialize)]
pub struct Exported {
    pub graph_module: GraphModule,
    #[serde(default)]
    pub verifiers: Vec<String>,
    #[serde(default)]
    pub torch_version: String,
}

#[derive(Deserialize)]
pub struct GraphModule {
    pub graph: Graph,
    pub signature: Signature,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Graph {
    pub inputs: Vec<Argument>,
    pub outputs: Vec<Argument>,
    pub nodes: Vec<Node>,
    pub tensor_values: BTreeMap<String, TensorMeta>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Node {
    pub target: String,
    pub inputs: Vec<NamedArgument>,
    pub outputs: Vec<Argument>,
    #[serde(default)]
    pub metadata: Metadata,
}

/// What a node says of where it comes from; the rest of its metadata is long and not read.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Metadata {
    #[serde(default)]
    pub stack_trace: String,
    #[serde(default)]
    pub nn_module_stack: String,
    #[serde(default)]
    pub torch_fn: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct NamedArgument {
    pub name: String,
    pub arg: Argument,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Named {
    pub name: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct GraphArgument {
    pub graph: Graph,
}

/// A number of a list that may be the result of a node.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymInt {
    AsName(String),
    AsInt(i64),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymFloat {
    AsName(String),
    AsFloat(Float),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymBool {
    AsName(String),
    AsBool(bool),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionalTensor {
    AsTensor(Named),
    AsNone(IgnoredAny),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    AsNone(IgnoredAny),
    AsTensor(Named),
    AsTensors(Vec<Named>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Float),
    AsFloats(Vec<Float>),
    AsString(String),
    AsStrings(Vec<String>),
    AsSymInt(SymInt),
    AsSymInts(Vec<SymInt>),
    AsScalarType(u8),
    AsMemoryFormat(IgnoredAny),
    AsLayout(IgnoredAny),
    AsDevice(IgnoredAny),
    AsBool(bool),
    AsBools(Vec<bool>),
    AsSymBool(SymBool),
    AsSymBools(IgnoredAny),
    AsGraph(Box<GraphArgument>),
    AsOptionalTensors(Vec<OptionalTensor>),
    AsCustomObj(IgnoredAny),
    AsOperator(IgnoredAny),
    AsSymFloat(SymFloat),
    AsSymFloats(IgnoredAny),
    AsOptionalTensor(OptionalTensor),
    AsComplex(IgnoredAny),
    AsNestedTensors(IgnoredAny),
    AsIntLists(IgnoredAny),
    AsStringToArgument(IgnoredAny),
    AsFloatLists(IgnoredAny),
}

#[derive(Clone, Debug, Deserialize)]
pub struct TensorMeta {
    pub dtype: u8,
    pub sizes: Vec<Size>,
    #[serde(default)]
    pub requires_grad: bool,
    pub strides: Vec<Size>,
    pub storage_offset: Size,
    pub layout: u8,
}

/// A length: a number, or a symbol that the inputs at hand give a value.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    AsInt(i64),
    AsExpr(Expr),
}

#[derive(Clone, Debug, Deserialize)]
pub struct Expr {
    pub expr_str: String,
    pub hint: Option<Hint>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    AsInt(i64),
    AsBool(IgnoredAny),
    AsFloat(IgnoredAny),
}

#[derive(Debug, Deserialize)]
pub struct Signature {
    pub input_specs: Vec<InputSpec>,
    pub output_specs: Vec<OutputSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSpec {
    UserInput { arg: Argument },
    Parameter { arg: Named, parameter_name: String },
    Buffer { arg: Named, buffer_name: String },
    TensorConstant { arg: Named, tensor_constant_name: String },
    CustomObj(IgnoredAny),
    Token(IgnoredAny),
    ConstantInput(IgnoredAny),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputSpec {
    UserOutput { arg: Argument },
    LossOutput { arg: Named },
    BufferMutation { arg: Named, buffer_name: String },
    ParameterMutation { arg: Named, parameter_name: String },
    GradientToParameter(IgnoredAny),
    GradientToUserInput(IgnoredAny),
    UserInputMutation { user_input_name: String },
    Token(IgnoredAny),
}

/// `model_weights_config.json` and `model_constants_config.json`: where each tensor's bytes are.
#[derive(Deserialize)]
pub struct Payloads {
    pub config: BTreeMap<String, Payload>,
}

#[derive(Deserialize)]
pub struct Payload {
    pub path_name: String,
    #[serde(default)]
    pub use_pickle: bool,
    pub tensor_meta: Option<TensorMeta>,
}

/// A float, which PyTorch writes as a number or, where JSON has none for it, as a word.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Float(pub f64);

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Float, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Float;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, Infinity, -Infinity or NaN")
            }
            fn visit_f64<E: Error>(self, x: f64) -> Result<Float, E> {
                Ok(Float(x))
            }
            fn visit_i64<E: Error>(self, x: i64) -> Result<Float, E> {
                Ok(Float(x as f64))
            }
            fn visit_u64<E: Error>(self, x: u64) -> Result<Float, E> {
                Ok(Float(x as f64))
            }
            fn visit_str<E: Error>(self, word: &str) -> Result<Float, E> {
                match word {
                    "Infinity" => Ok(Float(f64::INFINITY)),
                    "-Infinity" => Ok(Float(f64::NEG_INFINITY)),
                    "NaN" => Ok(Float(f64::NAN)),
                    other => Err(E::custom(format!("'{other}' is no number"))),
                }
            }
        }
        from.deserialize_any(Read)
    }
}
