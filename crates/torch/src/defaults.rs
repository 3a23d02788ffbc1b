//! Arguments that a program leaves out, since they are at the default of PyTorch's own schema.
//!
//! The table is made by `python/torch_defaults.py` from PyTorch's schemas, for the ops that are known here.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;
use serde_json::Value as Json;

use crate::value::Value;

type Table = FxHashMap<String, FxHashMap<String, Json>>;

static TABLE: LazyLock<Table> =
    LazyLock::new(|| serde_json::from_str(include_str!("defaults.json")).unwrap_or_default());

/// The default of an argument of an op; none where it must be given.
pub fn default(op: &str, argument: &str) -> Option<Value> {
    TABLE.get(op)?.get(argument).map(read)
}

/// Whether the table has the op.
#[cfg(test)]
pub fn knows(op: &str) -> bool {
    TABLE.contains_key(op)
}

fn read(json: &Json) -> Value {
    match json {
        Json::Null => Value::None,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => match number.as_i64() {
            Some(whole) => Value::Int(whole),
            None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(word) if word == "Infinity" => Value::Float(f64::INFINITY),
        Json::String(word) if word == "-Infinity" => Value::Float(f64::NEG_INFINITY),
        Json::String(word) => Value::Text(word.clone()),
        Json::Array(items) => Value::List(items.iter().map(read).collect()),
        Json::Object(_) => Value::Aside,
    }
}
