//! Turns a Keras file into a description of what is in it: layers, shapes, parameters, bytes.

use std::collections::HashMap;
use std::path::Path;

use plimsoll_formats::keras::{KerasFile, Kind, Layer};
use plimsoll_graph::Type;
use serde::Serialize;
use serde_json::Value;

use crate::KerasModel;
use crate::bind::is_aside;
use crate::error::{Error, Result};
use crate::layer::WeightKind;
use crate::model::trains;
use crate::optimizer_config::OptimizerConfig;

/// What is in a Keras file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// `archive`, `legacy` or `weights`.
    pub kind: &'static str,
    /// The version of Keras that wrote it, if it says so.
    pub keras_version: String,
    /// The model as a whole.
    #[serde(flatten)]
    pub model: ModelInfo,
    /// The layers in Keras's order, those inside of models after these.
    pub layers: Vec<LayerInfo>,
    /// Elements by kind.
    pub elements: Amounts,
    /// Bytes in the file by kind.
    pub bytes: Amounts,
    /// What it was compiled with.
    #[serde(flatten)]
    pub compiled: CompiledInfo,
}

/// A model in a file, as a whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelInfo {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: String,
    /// The types of one sample's inputs.
    pub inputs: Vec<String>,
    /// The types of one sample's outputs.
    pub outputs: Vec<String>,
    /// Why it cannot be trained here, if it cannot.
    pub problem: Option<String>,
}

/// What a model was compiled with, as far as it is known here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompiledInfo {
    /// The optimizer.
    pub optimizer: Option<String>,
    /// Its learning rate.
    pub learning_rate: Option<f64>,
}

/// A layer in a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerInfo {
    /// Its names from the outermost model on.
    pub place: String,
    /// Its Python class.
    pub class: String,
    /// The shapes it gives for one sample; empty where the model cannot be run here.
    pub outputs: Vec<Vec<usize>>,
    /// Whether it is trained: of models around it, only the outermost has a say, as in Keras.
    pub trainable: bool,
    /// Its dtype policy.
    pub dtype: Option<String>,
    /// Elements of its variables.
    pub elements: u64,
    /// Bytes of its variables.
    pub bytes: u64,
    /// Its variables.
    pub variables: Vec<VariableInfo>,
}

/// A variable in a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VariableInfo {
    /// Its name in the model, if the layer is known here.
    pub name: Option<String>,
    /// Its place in the file.
    pub path: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The type of its elements.
    pub element: &'static str,
}

/// Amounts by kind of variable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amounts {
    /// Weights that training moves.
    pub trained: u64,
    /// Weights of frozen layers.
    pub frozen: u64,
    /// What layers keep themselves: moving means.
    pub statistics: u64,
    /// The optimizer's state.
    pub optimizer: u64,
    /// Everything else: seeds, counters, variables of layers that are not known here.
    pub other: u64,
}

/// Describes a Keras file. A model that cannot be trained here is described too, with the reason.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/cnn.keras");
/// let found = plimsoll_keras::inspect(path)?;
/// assert_eq!(found.layers[1].outputs, [[1, 10, 10, 2]]);
/// assert!(found.model.problem.is_none() && found.elements.trained > found.elements.statistics);
/// # Ok::<(), plimsoll_keras::Error>(())
/// ```
///
/// # Errors
/// The file is damaged.
pub fn inspect(path: impl AsRef<Path>) -> Result<Inspection> {
    let path = path.as_ref();
    let opened = KerasModel::open(path);
    let file = KerasFile::open(path)?;
    // Where the model opens, its variables have names, and its layers shapes.
    let mut names: HashMap<&str, (&str, WeightKind, bool)> = HashMap::new();
    let mut shapes: HashMap<String, Vec<Type>> = HashMap::new();
    let mut problem = None;
    match &opened {
        Ok(model) => {
            // A weight that a wrapper lists again, before the layer's own, is one weight: the first place is a copy.
            let own: HashMap<&str, &str> =
                model.bindings.iter().map(|b| (b.name.as_str(), b.path.as_str())).collect();
            names.extend(model.bindings.iter().map(|b| {
                let is_copy = own.get(b.name.as_str()) != Some(&b.path.as_str());
                let kind = if is_copy { WeightKind::Idle } else { b.weight.kind };
                (b.path.as_str(), (b.name.as_str(), kind, b.trained))
            }));
            shapes = model.layer_outputs()?;
        }
        Err(Error::NoModel { .. }) => {}
        Err(error) => problem = Some(error.to_string()),
    }
    let (mut elements, mut bytes) = (Amounts::default(), Amounts::default());
    for variable in file.variables() {
        let count = (variable.bytes / variable.element.bytes()) as u64;
        let add = |amounts: &mut Amounts, n: u64| {
            let kind = names.get(variable.path.as_str()).map(|(_, kind, trained)| (*kind, *trained));
            *match kind {
                Some((WeightKind::Trained | WeightKind::Optional, true)) => &mut amounts.trained,
                Some((WeightKind::Trained | WeightKind::Optional, false)) => &mut amounts.frozen,
                Some((WeightKind::Statistic, _)) => &mut amounts.statistics,
                None if is_aside(&variable.path) && variable.path.starts_with("optimizer") => {
                    &mut amounts.optimizer
                }
                _ => &mut amounts.other,
            } += n;
        };
        add(&mut elements, count);
        add(&mut bytes, variable.bytes as u64);
    }
    let mut layers = Vec::new();
    if let Some(root) = file.root() {
        describe(&file, root, "", trains(root), &names, &shapes, &mut layers);
    }
    let optimizer = crate::compile::optimizer_config(file.compile_config());
    let class = optimizer.get("class_name").and_then(Value::as_str).map(str::to_string);
    let types = |types: &[Type]| types.iter().map(Type::to_string).collect();
    Ok(Inspection {
        kind: match file.kind() {
            Kind::Archive => "archive",
            Kind::Legacy => "legacy",
            Kind::Weights => "weights",
        },
        keras_version: file.keras_version().to_string(),
        model: ModelInfo {
            name: file.root().map(|root| root.name.clone()).unwrap_or_default(),
            class: file.root().map(|root| root.class_name.clone()).unwrap_or_default(),
            inputs: opened.as_ref().map(|model| types(&model.sample_inputs())).unwrap_or_default(),
            outputs: opened.as_ref().map(|model| types(model.outputs())).unwrap_or_default(),
            problem,
        },
        layers,
        elements,
        bytes,
        compiled: CompiledInfo {
            learning_rate: OptimizerConfig::read(optimizer).ok().map(|found| found.optimizer.lr),
            optimizer: class,
        },
    })
}

fn describe(
    file: &KerasFile,
    layer: &Layer,
    place: &str,
    trains: bool,
    names: &HashMap<&str, (&str, WeightKind, bool)>,
    shapes: &HashMap<String, Vec<Type>>,
    found: &mut Vec<LayerInfo>,
) {
    let Some(model) = &layer.model else { return };
    for child in &model.layers {
        let own = if place.is_empty() { child.name.clone() } else { format!("{place}/{}", child.name) };
        let trainable = trains && child.trainable;
        // The variables of a model are those of its layers, which come below.
        let variables = if child.model.is_some() { Vec::new() } else { file.variables_of(child) };
        let variables: Vec<_> = variables.into_iter().filter(|v| !is_aside(&v.path)).collect();
        let sum = |f: &dyn Fn(&plimsoll_formats::keras::Variable) -> usize| {
            variables.iter().fold(0u64, |n, v| n.saturating_add(f(v) as u64))
        };
        found.push(LayerInfo {
            class: child.class_name.clone(),
            outputs: shapes
                .get(&own)
                .map(|types| types.iter().map(|t| t.shape.to_vec()).collect())
                .unwrap_or_default(),
            trainable,
            dtype: child.policy.as_ref().map(|policy| policy.name.clone()),
            elements: sum(&|v| v.bytes / v.element.bytes()),
            bytes: sum(&|v| v.bytes),
            variables: variables
                .iter()
                .map(|v| VariableInfo {
                    name: names.get(v.path.as_str()).map(|(name, ..)| name.to_string()),
                    path: v.path.clone(),
                    shape: v.shape.clone(),
                    element: v.element.name(),
                })
                .collect(),
            place: own.clone(),
        });
        describe(file, child, &own, trains, names, shapes, found);
    }
}
