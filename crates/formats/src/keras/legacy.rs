//! Turns a legacy `.h5` file, or a `.weights.h5` file, into the same plain data as an archive.
//!
//! A legacy file stores weights by the names of layers: the group `model_weights/LAYER` has an attribute
//! `weight_names` with the order of its weights, which are datasets below it. A model inside the model is one such group
//! with the weights of all its layers.

use super::bytes::Bytes;
use super::hdf5::Hdf5;
use super::hdf5_types::Text;
use super::hdf5_write::Attributes;
use super::live::Held;
use super::{KerasFile, Kind, Layer, Limits, Reason, Variable, config, json};
use serde_json::Value;

const WEIGHTS: &str = "model_weights";
pub(super) const OPTIMIZER: &str = "optimizer_weights";
/// Weights that belong to the model itself; nearly always none.
const TOP_LEVEL: &str = "model_weights/top_level_model_weights";

pub(super) fn read(bytes: Bytes, limits: &Limits) -> Result<KerasFile, Reason> {
    let hdf5 = Hdf5::open(bytes.clone())?;
    let variables = hdf5.variables(limits)?;
    let attrs = hdf5.texts("")?.unwrap_or_default();
    let Some(config) = one(&attrs, "model_config") else {
        super::check_numbers(&variables)?;
        return Ok(KerasFile::of_variables(Kind::Weights, variables, Held::File(bytes)));
    };
    if config.len() as u64 > limits.json {
        return Err(Reason::limit("the size of model_config", config.len() as u64, limits.json));
    }
    let version = one(&attrs, "keras_version").unwrap_or_default();
    let (mut root, _) = config::model(&config, version.starts_with("2."))?;
    if let Some(model) = &mut root.model {
        for layer in &mut model.layers {
            assign_paths(layer, &format!("{WEIGHTS}/{}", layer.name));
        }
    }
    root.path = WEIGHTS.to_string();
    let compile_config = match one(&attrs, "training_config") {
        Some(text) if text.len() as u64 <= limits.json => {
            json::parse(&text).map_err(|e| Reason::config("the training", e))?
        }
        _ => Value::Null,
    };
    let mut file = KerasFile {
        config,
        version,
        root: Some(root),
        compile_config,
        ..KerasFile::of_variables(Kind::Legacy, variables, Held::File(bytes))
    };
    file.groups.insert(String::new(), attrs);
    let layers = file.model().map_or(&[][..], |model| &model.layers).iter().map(|layer| layer.path.clone());
    let groups = layers.chain([WEIGHTS, OPTIMIZER, TOP_LEVEL].map(str::to_string)).collect::<Vec<_>>();
    for group in groups {
        let Some(attrs) = hdf5.texts(&group)? else { continue };
        let order = order(&file, &group, names(&attrs, "weight_names"))?;
        file.ordered.insert(group.clone(), order);
        file.groups.insert(group, attrs);
    }
    Ok(file)
}

/// Layers inside a model have the path of the outermost layer: there the file stores their weights.
fn assign_paths(layer: &mut Layer, path: &str) {
    layer.path = path.to_string();
    if let Some(model) = &mut layer.model {
        model.layers.iter_mut().for_each(|child| assign_paths(child, path));
    }
}

fn one(attrs: &Attributes, name: &str) -> Option<String> {
    match attrs.get(name) {
        Some(Text::One(text)) => Some(text.clone()),
        _ => None,
    }
}

/// A list of names; lists over 64 KiB are stored in pieces, `weight_names0`, `weight_names1`, ….
fn names(attrs: &Attributes, name: &str) -> Vec<String> {
    let list = |name: &str| match attrs.get(name) {
        Some(Text::Many(list)) => Some(list.clone()),
        _ => None,
    };
    list(name).unwrap_or_else(|| (0..).map_while(|i| list(&format!("{name}{i}"))).flatten().collect())
}

fn order(file: &KerasFile, group: &str, names: Vec<String>) -> Result<Vec<usize>, Reason> {
    let find = |name: String| {
        let path = format!("{group}/{name}");
        let missing = || Reason::weights(&path, "it is announced but not there");
        file.by_path.get(&path).copied().ok_or_else(missing)
    };
    names.into_iter().map(find).collect()
}

pub(super) fn ordered<'a>(file: &'a KerasFile, group: &str) -> Vec<&'a Variable> {
    file.ordered.get(group).into_iter().flatten().map(|i| &file.variables[*i]).collect()
}

pub(super) fn variables_of<'a>(file: &'a KerasFile, layer: &Layer) -> Vec<&'a Variable> {
    let mut variables = ordered(file, &layer.path);
    let outermost = layer.path.strip_prefix(WEIGHTS).and_then(|rest| rest.strip_prefix('/'));
    if outermost != Some(layer.name.as_str()) {
        // The last piece of a path is the weight's own name, the first ones are the group's.
        let pieces = layer.path.split('/').count();
        variables.retain(|variable| {
            let inside: Vec<&str> = variable.path.split('/').skip(pieces).collect();
            inside[..inside.len().saturating_sub(1)].contains(&layer.name.as_str())
        });
    }
    variables
}
