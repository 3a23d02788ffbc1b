//! Turns a layer's class and settings into what it computes. One file a family; each family is a table by class name.
//!
//! A class that no family knows is refused by name: nothing is skipped, and Python code in a file is never run.

mod activation;
mod attention;
mod conv;
mod dense;
mod einsum;
mod merge;
mod noise;
mod norm;
mod operation;
mod pool;
mod preprocess;
mod recurrent;
mod recurrent_cell;
mod reshape;
mod wrapper;

pub(crate) use activation::Activation;

use plimsoll_formats::keras::Layer;

use crate::error::{Error, Result};
use crate::layer::{Made, Penalty, Weight, WeightKind};
use crate::settings::Settings;

/// Makes a layer of its settings.
pub(crate) type Maker = fn(&Settings<'_>) -> Result<Made>;

/// A family's classes.
pub(crate) type Table = &'static [(&'static str, Maker)];

const FAMILIES: [Table; 11] = [
    activation::TABLE,
    attention::TABLE,
    conv::TABLE,
    dense::TABLE,
    merge::TABLE,
    noise::TABLE,
    norm::TABLE,
    pool::TABLE,
    preprocess::TABLE,
    recurrent::TABLE,
    reshape::TABLE,
];

/// Classes outside of `keras.layers` that Keras's own applications register.
const APPLICATION_LAYERS: [&str; 2] = ["LayerScale", "StochasticDepth"];

/// All classes that are known, sorted.
pub fn known_classes() -> Vec<&'static str> {
    let mut names: Vec<&str> =
        FAMILIES.iter().flat_map(|table| table.iter().map(|(name, _)| *name)).collect();
    names.extend(wrapper::CLASSES);
    names.extend(["InputLayer", "Sequential", "Functional"]);
    names.sort_unstable();
    names
}

/// What a layer computes, or why it is refused.
pub(crate) fn make(layer: &Layer, place: &str) -> Result<Made> {
    let class = layer.class_name.as_str();
    if layer.carries_code() {
        return Err(Error::unsupported(
            place,
            class,
            "which carries Python code; code in a file is never run, so put layers or operations of Keras in its place",
        ));
    }
    // Legacy files do not say where a class is from; but a layer says whether it is trainable, which a function does not.
    let is_function = layer.module.is_none() && !layer.config.contains_key("trainable");
    if layer.is_operation() || (is_function && operation::is_known(class)) {
        return operation::make(layer, place);
    }
    let is_ours = match (&layer.module, &layer.registered_name) {
        (Some(module), _) => {
            module == "keras" || module.starts_with("keras.") || module.starts_with("tf_keras.")
        }
        // Old files name neither; users' own classes are registered as PACKAGE>NAME.
        (None, registered) => !registered.as_deref().unwrap_or_default().contains('>'),
    };
    if !is_ours && !APPLICATION_LAYERS.contains(&class) {
        return Err(Error::unsupported(
            place,
            class,
            "a class of the user's own, whose code is not in the file; build it from layers of Keras instead",
        ));
    }
    let settings = Settings::new(place, class, &layer.config);
    if layer.policy.as_ref().is_some_and(|p| p.name.contains("int8") || p.name.contains("float8")) {
        return Err(settings.unsupported("which is quantized; only floating-point layers are trained, so save the model before it is quantized"));
    }
    settings.check_extras()?;
    if wrapper::CLASSES.contains(&class) {
        return wrapper::make(&settings);
    }
    let maker = FAMILIES.iter().find_map(|table| table.iter().find(|(name, _)| *name == class));
    match maker {
        Some((_, make)) => make(&settings),
        None if class.ends_with("3D") => Err(settings.unsupported(
            "which runs over three axes; layers over one or two axes are known here, so fold one axis into another or into the batch",
        )),
        None => Err(settings.unsupported(
            "which is not known here; build the model in Keras from layers that are (known_classes lists them)",
        )),
    }
}

/// A weight that the optimizer moves, with the regularizer that the settings name for it.
pub(crate) fn trained(settings: &Settings<'_>, name: &str, regularizer: &str) -> Result<Weight> {
    let penalty = penalty(settings, regularizer)?;
    Ok(Weight { holder: String::new(), name: name.to_string(), kind: WeightKind::Trained, penalty })
}

/// A weight that the layer keeps itself.
pub(crate) fn statistic(name: &str) -> Weight {
    Weight { holder: String::new(), name: name.to_string(), kind: WeightKind::Statistic, penalty: None }
}

/// A layer's kernel and, where it has one, bias.
pub(crate) fn kernel_and_bias(settings: &Settings<'_>, bias: bool) -> Result<Vec<Weight>> {
    let mut weights = vec![trained(settings, "kernel", "kernel_regularizer")?];
    if bias {
        weights.push(trained(settings, "bias", "bias_regularizer")?);
    }
    Ok(weights)
}

fn penalty(settings: &Settings<'_>, key: &str) -> Result<Option<Penalty>> {
    let value = settings.get(key);
    if value.is_null() {
        return Ok(None);
    }
    let number = |name: &str| {
        let x = value.get("config").and_then(|c| c.get(name)).and_then(serde_json::Value::as_f64);
        x.filter(|x| x.is_finite()).unwrap_or(0.0)
    };
    match value.get("class_name").and_then(serde_json::Value::as_str) {
        Some("L1" | "L2" | "L1L2") => Ok(Some(Penalty { l1: number("l1"), l2: number("l2") })),
        _ => Err(settings.wrong(key, "only L1, L2 and L1L2 are known")),
    }
}
