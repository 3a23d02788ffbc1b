//! Turns the JSON of a model's configuration into a typed tree of models and layers.
//!
//! A layer we do not know is kept as data, with its class name and its place: whether it can be used is for the importer to
//! say. Nothing in a configuration is ever executed, also not a `Lambda` layer's Python code.

use super::calls::{self, Call, Port};
use super::names::{Counter, snake_case};
use super::{Element, Reason, json};
use serde_json::{Map, Value};

/// A layer, an operation, or a model used as a layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its name, unique in its model.
    pub name: String,
    /// Its Python class: `Dense`.
    pub class_name: String,
    /// The Python module of its class: `keras.layers`. Absent in older files and for users' own classes.
    pub module: Option<String>,
    /// The name under which a user's own class was registered: `mine>Odd`.
    pub registered_name: Option<String>,
    /// Whether training may change its variables.
    pub trainable: bool,
    /// The types it computes and keeps its variables in.
    pub policy: Option<Policy>,
    /// Its configuration as stored; without the list of layers if it is a model.
    pub config: Map<String, Value>,
    /// What it was built with, usually `{"input_shape": […]}`.
    pub build_config: Value,
    /// The place of its variables in the weights: `layers/dense_1`, or for a legacy file `model_weights/dense_1`.
    pub path: String,
    /// What it consists of, if it is a Sequential or Functional model.
    pub model: Option<Box<Model>>,
}

/// The inside of a Sequential or Functional model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its layers in Keras' order.
    pub layers: Vec<Layer>,
    /// Every call of a layer, in an order in which each call comes after those whose results it takes.
    pub calls: Vec<Call>,
    /// What goes in. Empty for a Sequential model that was never built: then its first layer's call has no arguments.
    pub inputs: Vec<Port>,
    /// What comes out.
    pub outputs: Vec<Port>,
}

/// A dtype policy: the types a layer computes in and keeps its variables in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its name: `float32`, `mixed_bfloat16`.
    pub name: String,
    /// The type of computation, if the name says it.
    pub compute: Option<Element>,
    /// The type of variables, if the name says it.
    pub variables: Option<Element>,
}

impl Layer {
    /// Turns one entry of a list of layers into a layer, also one inside another's configuration (a wrapper's `layer`).
    /// It has no path; those of layers inside it go on from there.
    pub fn from_json(entry: &Value) -> Result<Layer, Reason> {
        let mut layer = parse(entry.clone(), false)?;
        assign_paths(&mut layer, String::new(), "layers");
        Ok(layer)
    }

    /// Whether this is a function of `keras.ops` that was called on a symbolic tensor. Such calls are entries like
    /// layers are, but Keras does not count them among a model's layers.
    pub fn is_operation(&self) -> bool {
        let module = self.module.as_deref().unwrap_or_default();
        module.starts_with("keras.src.ops") || module.starts_with("keras.ops")
    }

    /// Whether it is what a model's tensors come in by.
    pub fn is_input(&self) -> bool {
        self.class_name == "InputLayer"
    }

    /// Whether its configuration holds compiled Python code, which is never run.
    pub fn carries_code(&self) -> bool {
        fn code(value: &Value) -> bool {
            match value {
                Value::Object(map) => {
                    map.get("class_name").is_some_and(|class| class == "__lambda__") || map.values().any(code)
                }
                Value::Array(list) => list.iter().any(code),
                _ => false,
            }
        }
        self.class_name == "Lambda" || self.config.values().any(code)
    }

    /// This layer and all below it, parents first.
    pub fn all(&self) -> Vec<&Layer> {
        let mut all = vec![self];
        if let Some(model) = &self.model {
            all.extend(model.layers.iter().flat_map(Layer::all));
        }
        all
    }
}

/// Parses the configuration of a whole model, and what it was compiled with. `keras2` says that Keras 2 wrote it, which
/// counts calls of models differently.
pub(super) fn model(text: &str, keras2: bool) -> Result<(Layer, Value), Reason> {
    let mut value = json::parse(text).map_err(|e| Reason::config("the model", e))?;
    let compile_config = value.get_mut("compile_config").map(Value::take).unwrap_or(Value::Null);
    Ok((parse(value, keras2)?, compile_config))
}

fn parse(mut entry: Value, keras2: bool) -> Result<Layer, Reason> {
    let Some(entry) = entry.as_object_mut() else {
        return Err(Reason::config("a layer", "it is not an object"));
    };
    let mut config = match entry.get_mut("config").map(Value::take) {
        Some(Value::Object(config)) => config,
        _ => return Err(Reason::config(&text(entry, "name").unwrap_or_default(), "it has no settings")),
    };
    let name = text(entry, "name").or_else(|| text(&config, "name")).unwrap_or_default();
    let class_name = text(entry, "class_name").ok_or_else(|| Reason::config(&name, "it has no class"))?;
    let model = match class_name.as_str() {
        "Sequential" => Some(Box::new(sequential(&name, &mut config, keras2)?)),
        "Functional" | "Model" => Some(Box::new(functional(&name, &mut config, keras2)?)),
        _ => None,
    };
    Ok(Layer {
        module: text(entry, "module"),
        registered_name: text(entry, "registered_name"),
        trainable: config.get("trainable").and_then(Value::as_bool).unwrap_or(true),
        policy: config.get("dtype").and_then(Policy::parse),
        build_config: entry.get_mut("build_config").map(Value::take).unwrap_or(Value::Null),
        path: String::new(),
        name,
        class_name,
        config,
        model,
    })
}

fn text(map: &Map<String, Value>, key: &str) -> Option<String> {
    map.get(key).and_then(Value::as_str).map(str::to_string)
}

fn layers(name: &str, config: &mut Map<String, Value>) -> Result<Vec<Value>, Reason> {
    match config.remove("layers") {
        Some(Value::Array(layers)) => Ok(layers),
        _ => Err(Reason::config(name, "it has no list of layers")),
    }
}

fn sequential(name: &str, config: &mut Map<String, Value>, keras2: bool) -> Result<Model, Reason> {
    let layers =
        layers(name, config)?.into_iter().map(|entry| parse(entry, keras2)).collect::<Result<Vec<_>, _>>()?;
    unique(name, &layers)?;
    Ok(calls::chain(layers))
}

fn functional(name: &str, config: &mut Map<String, Value>, keras2: bool) -> Result<Model, Reason> {
    let mut nodes = Vec::new();
    let mut parsed = Vec::new();
    for mut entry in layers(name, config)? {
        nodes.push(entry.get_mut("inbound_nodes").map(Value::take).unwrap_or(Value::Null));
        parsed.push(parse(entry, keras2)?);
    }
    unique(name, &parsed)?;
    let inputs = config.remove("input_layers").unwrap_or(Value::Null);
    let outputs = config.remove("output_layers").unwrap_or(Value::Null);
    calls::resolve(name, parsed, nodes, &inputs, &outputs, keras2)
}

fn unique(model: &str, layers: &[Layer]) -> Result<(), Reason> {
    let mut seen = std::collections::HashSet::new();
    match layers.iter().find(|layer| !seen.insert(layer.name.as_str())) {
        Some(twice) => Err(Reason::config(model, format!("it has two layers called {:?}", twice.name))),
        None => Ok(()),
    }
}

/// Gives every layer the path Keras 3 stores its variables under: the class name in snake case, counted in the order of
/// `model.layers`, which holds no operations and in a Sequential model no input. `list` is the name of that list.
pub(super) fn assign_paths(layer: &mut Layer, path: String, list: &str) {
    if let Some(model) = &mut layer.model {
        let mut counter = Counter::default();
        let skip_input = layer.class_name == "Sequential";
        for (i, child) in model.layers.iter_mut().enumerate() {
            if child.is_operation() || (skip_input && i == 0 && child.is_input()) {
                continue;
            }
            let name = counter.unique(snake_case(&child.class_name));
            let place =
                if path.is_empty() { format!("{list}/{name}") } else { format!("{path}/{list}/{name}") };
            assign_paths(child, place, list);
        }
    }
    layer.path = path;
}

impl Policy {
    fn parse(value: &Value) -> Option<Policy> {
        let name = match value {
            Value::String(name) => name.clone(),
            Value::Object(map) => match map.get("config").and_then(|config| config.get("name")) {
                Some(Value::String(name)) => name.clone(),
                // A policy without a name (a map of policies by layer): its class is all there is to tell.
                _ => text(map, "class_name")?,
            },
            _ => return None,
        };
        let (compute, variables) = match name.strip_prefix("mixed_") {
            Some(compute) => (dtype(compute), Some(Element::F32)),
            None => (dtype(&name), dtype(&name)),
        };
        Some(Policy { name, compute, variables })
    }
}

/// The type that Keras calls `name`.
pub(super) fn dtype(name: &str) -> Option<Element> {
    Some(match name {
        "float64" => Element::F64,
        "float32" => Element::F32,
        "float16" => Element::F16,
        "bfloat16" => Element::BF16,
        "int64" => Element::I64,
        "int32" => Element::I32,
        "int16" => Element::I16,
        "int8" => Element::I8,
        "uint64" => Element::U64,
        "uint32" => Element::U32,
        "uint16" => Element::U16,
        "uint8" => Element::U8,
        "bool" => Element::Bool,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn policies_are_read_from_names_and_from_objects() {
        let policy = |value| Policy::parse(&value).map(|p| (p.compute, p.variables));
        assert_eq!(policy(json!("float64")), Some((Some(Element::F64), Some(Element::F64))));
        let mixed = json!({"class_name": "DTypePolicy", "config": {"name": "mixed_float16"}});
        assert_eq!(policy(mixed), Some((Some(Element::F16), Some(Element::F32))));
        let quantized = json!({"class_name": "QuantizedDTypePolicy", "config": {"mode": "int8"}});
        assert_eq!(policy(quantized), Some((None, None)));
        assert_eq!(policy(json!(null)), None);
    }

    #[test]
    fn a_layer_without_class_or_settings_is_refused_by_name() {
        let refusal = |value: Value| Layer::from_json(&value).expect_err("a refusal").to_string();
        assert_eq!(refusal(json!({"name": "a", "config": {}})), "the configuration of a: it has no class");
        assert_eq!(refusal(json!({"name": "a"})), "the configuration of a: it has no settings");
        let twice = json!({"class_name": "Dense", "config": {"name": "d"}});
        let model = json!({"class_name": "Sequential", "config": {"name": "m", "layers": [twice, twice]}});
        assert!(refusal(model).contains("two layers called \"d\""));
    }
}
