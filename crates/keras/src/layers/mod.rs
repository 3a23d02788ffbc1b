//! Turns a layer's class and settings into what it computes. One file a family; each family is a table by class name.
//!
//! A class that no family knows is refused by name: nothing is skipped, and Python code in a file is never run.

mod activation;
mod attention;
mod augment;
mod category;
mod channels_first;
mod conv;
mod conv_lstm;
mod dense;
mod einsum;
mod ending;
mod followed;
mod function;
mod function_elements;
mod function_windows;
mod hashing;
mod lora;
mod merge;
mod noise;
mod norm;
mod operation;
mod pool;
mod preprocess;
mod recurrent;
mod recurrent_cell;
mod reshape;
mod resize;
mod spectrogram;
mod volume;
mod wrapper;

pub(crate) use activation::Activation;
pub(crate) use followed::{adds_loss, is_either};
pub(crate) use recurrent::KEPT_AT;

use plimsoll_formats::keras::Layer;

use crate::constraint::Constraint;
use crate::error::{Error, Result};
use crate::layer::{Made, Penalty, Side, Weight, WeightKind};
use crate::named::{Named, is_kerass};
use crate::settings::Settings;

/// Makes a layer of its settings.
pub(crate) type Maker = fn(&Settings<'_>) -> Result<Made>;

/// A family's classes.
pub(crate) type Table = &'static [(&'static str, Maker)];

/// A table of layers that there are for one, two and three axes: `"MaxPooling" => windows(true)` is `MaxPooling1D` as
/// `windows::<1>(settings, true)`, and so on.
macro_rules! by_axes {
    ($($name:literal => $make:ident($how:literal)),+ $(,)?) => {
        &[$(
            (concat!($name, "1D"), |s| $make::<1>(s, $how)),
            (concat!($name, "2D"), |s| $make::<2>(s, $how)),
            (concat!($name, "3D"), |s| $make::<3>(s, $how)),
        )+]
    };
}
use by_axes;

const FAMILIES: [Table; 20] = [
    activation::TABLE,
    attention::TABLE,
    augment::TABLE,
    category::TABLE,
    conv::TABLE,
    conv_lstm::TABLE,
    dense::TABLE,
    hashing::TABLE,
    merge::TABLE,
    noise::TABLE,
    norm::TABLE,
    pool::BY_AXES,
    pool::TABLE,
    preprocess::TABLE,
    recurrent::TABLE,
    reshape::BY_AXES,
    reshape::TABLE,
    resize::TABLE,
    spectrogram::TABLE,
    volume::TABLE,
];

/// Settings by class that are known to change nothing in what is computed here, beside those of all layers.
const IDLE: [(&[&str], &[&str]); 6] = [
    // How it is computed, and how a bias started.
    (
        &["LSTM", "GRU", "SimpleRNN", "RNN", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"],
        &["unroll", "implementation", "use_cudnn", "unit_forget_bias"],
    ),
    (&["MultiHeadAttention", "GroupQueryAttention"], &["flash_attention"]),
    (&["MultiHeadAttention"], &["query_shape", "key_shape", "value_shape"]),
    (&["Embedding"], &["input_length"]),
    // One device has all samples; the others belong to a renorm, and are read where there is one.
    (&["BatchNormalization"], &["synchronized", "fused", "renorm_clipping", "renorm_momentum"]),
    // Without padding there is nothing to fill; with it, constants are the only way.
    (&["Resizing"], &["fill_mode", "fill_value"]),
];

/// The settings of a class that change nothing.
pub(crate) fn idle(class: &str) -> Vec<&'static str> {
    IDLE.iter()
        .filter(|(classes, _)| classes.contains(&class))
        .flat_map(|(_, keys)| keys.iter().copied())
        .collect()
}

/// All classes that are known, sorted.
pub fn known_classes() -> Vec<&'static str> {
    let mut names: Vec<&str> =
        FAMILIES.iter().flat_map(|table| table.iter().map(|(name, _)| *name)).collect();
    names.extend(wrapper::CLASSES);
    names.extend(["InputLayer", "Sequential", "Functional"]);
    names.sort_unstable();
    names
}

/// Whether this is a function of `keras.ops`. Legacy files do not say where a class is from; but a layer says whether it is
/// trainable, which a function does not.
pub(crate) fn is_function(layer: &Layer) -> bool {
    let is_old =
        layer.module.is_none() && layer.registered_name.is_none() && !layer.config.contains_key("trainable");
    layer.is_operation() || (is_old && operation::is_known(&layer.class_name))
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
    if is_function(layer) {
        return operation::make(layer, place);
    }
    check_own(layer, place)?;
    if ending::is_layer(layer, place) {
        return ending::make(layer, place);
    }
    if channels_first::is_first(layer) {
        return channels_first::make(layer, place);
    }
    let settings = Settings::new(place, class, &layer.config);
    if layer.policy.as_ref().is_some_and(|p| p.name.contains("int8") || p.name.contains("float8")) {
        return Err(settings.unsupported("which is quantized; only floating-point layers are trained, so save the model before it is quantized"));
    }
    let maker = FAMILIES.iter().find_map(|table| table.iter().find(|(name, _)| *name == class));
    let mut made = match maker {
        _ if wrapper::CLASSES.contains(&class) => wrapper::make(&settings)?,
        _ if followed::is_one(layer) => followed::make(&settings)?,
        Some((_, make)) => make(&settings)?,
        None => return Err(settings.unsupported(
            "which is not known here; build the model in Keras from layers that are (known_classes lists them)",
        )),
    };
    made.activity = match made.activity {
        Some(own) => Some(own),
        None => penalty(&settings, "activity_regularizer")?,
    };
    settings.finish_layer(&idle(class))?;
    Ok(made)
}

/// Refuses a layer or model of the user's own, whatever it is called.
pub(crate) fn check_own(layer: &Layer, place: &str) -> Result<()> {
    let class = layer.class_name.as_str();
    let (module, registered) = (layer.module.as_deref(), layer.registered_name.as_deref());
    if followed::is_one(layer) || is_kerass(class, module, registered) {
        return Ok(());
    }
    Err(Error::unsupported(
        place,
        registered.filter(|name| name.contains('>')).unwrap_or(class),
        "a class of the user's own, whose code is not in the file; build it from layers of Keras instead",
    ))
}

/// Refuses what a model may say beside its layers and calls.
pub(crate) fn check_model(model: &Layer, place: &str) -> Result<()> {
    check_own(model, place)?;
    Settings::new(place, &model.class_name, &model.config).finish_layer(&["build_input_shape"])
}

/// Refuses what an input layer may say that is not so here.
pub(crate) fn check_input(layer: &Layer, place: &str) -> Result<()> {
    check_own(layer, place)?;
    let settings = Settings::new(place, &layer.class_name, &layer.config);
    // Shape and type are read where a model's inputs are.
    settings.finish_layer(&["shape", "input_shape", "batch_size"])
}

/// A weight that the optimizer moves, with the regularizer that the settings name for it.
pub(crate) fn trained(settings: &Settings<'_>, name: &str, regularizer: &str) -> Result<Weight> {
    let penalty = penalty(settings, regularizer)?;
    // Keras names both alike.
    let constraint = Constraint::read(settings, &regularizer.replace("_regularizer", "_constraint"))?;
    Ok(Weight {
        holder: String::new(),
        name: name.to_string(),
        kind: WeightKind::Trained,
        penalty,
        constraint,
        trainable: None,
    })
}

/// A weight that the layer keeps itself.
pub(crate) fn statistic(name: &str) -> Weight {
    Weight {
        holder: String::new(),
        name: name.to_string(),
        kind: WeightKind::Statistic,
        penalty: None,
        constraint: None,
        trainable: None,
    }
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
    let named = Named::read(value, &format!("{key} of {}", settings.place))?;
    let own = named.settings(settings.place);
    let penalty = match named.name {
        "L1" | "L2" | "L1L2" => {
            Penalty { l1: own.number_or("l1", 0.0)?, l2: own.number_or("l2", 0.0)?, orthogonal: None }
        }
        // Of outputs it would be taken of samples, of which Keras's own mean makes little sense.
        "OrthogonalRegularizer" if key != "activity_regularizer" => {
            let side = match own.text_or("mode", "rows")? {
                "rows" => Side::Rows,
                "columns" => Side::Columns,
                _ => return Err(own.wrong("mode", "rows and columns are known")),
            };
            Penalty { orthogonal: Some((own.number_or("factor", 0.01)?, side)), ..Penalty::default() }
        }
        _ => return Err(settings.wrong(key, "only L1, L2, L1L2 and OrthogonalRegularizer are known")),
    };
    own.finish(&[])?;
    Ok(Some(penalty))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::OutputLoss;
    use crate::optimizer_config::OptimizerConfig;
    use serde_json::{Value, json};

    /// Every setting that Keras stores, as it is without a word; see tests/make_fixtures.py.
    fn stored(kind: &str) -> Vec<Value> {
        let all: Value =
            serde_json::from_str(include_str!("../../tests/fixtures/configurations.json")).unwrap();
        all[kind].as_array().unwrap().clone()
    }

    /// Reads something as it is, and with one setting that nobody knows, which must be refused by name.
    fn holds(value: &Value, read: &dyn Fn(&Value) -> Result<()>) {
        read(value).unwrap_or_else(|e| panic!("{}: {e}", value["class_name"]));
        let mut odd = value.clone();
        odd["config"]["surprise"] = json!(3);
        let error = read(&odd).unwrap_err().to_string();
        assert!(error.contains("surprise"), "{}: {error}", value["class_name"]);
    }

    #[test]
    fn every_setting_that_keras_stores_is_read_and_every_other_is_refused() {
        let layers = stored("layers");
        let mut seen: Vec<&str> = layers.iter().filter_map(|layer| layer["class_name"].as_str()).collect();
        for layer in &layers {
            holds(layer, &|value| make(&Layer::from_json(value).unwrap(), "here").map(drop));
        }
        for loss in stored("losses") {
            holds(&loss, &|value| OutputLoss::read(value).map(drop));
        }
        for optimizer in stored("optimizers") {
            holds(&optimizer, &|value| OptimizerConfig::read(value).map(drop));
        }
        for regularizer in stored("regularizers") {
            holds(&regularizer, &|value| {
                let config = [("kernel_regularizer".to_string(), value.clone())].into_iter().collect();
                penalty(&Settings::new("here", "Dense", &config), "kernel_regularizer").map(drop)
            });
        }
        // All classes that are known are among them, but for models and what only Keras's applications have.
        seen.extend([
            "InputLayer",
            "Sequential",
            "Functional",
            "LayerScale",
            "StochasticDepth",
            "CustomScaleLayer",
        ]);
        seen.sort_unstable();
        assert_eq!(seen, known_classes());
    }

    #[test]
    fn settings_that_change_what_is_computed_are_refused_where_they_are_not_obeyed() {
        for (class, key, value) in [
            ("LSTM", "time_major", json!(true)),
            ("Dense", "quantization_config", json!({"mode": "int8"})),
            ("DepthwiseConv2D", "lora_rank", json!(4)),
            ("Dense", "activity_regularizer", json!({"class_name": "Own", "config": {"l2": 0.1}})),
            ("Dense", "kernel_constraint", json!({"class_name": "Own", "config": {}})),
            ("BatchNormalization", "virtual_batch_size", json!(4)),
            ("Conv2DTranspose", "groups", json!(2)),
            ("SeparableConv2D", "groups", json!(2)),
            ("Embedding", "quantization_config", json!({})),
        ] {
            let mut layer = stored("layers").into_iter().find(|layer| layer["class_name"] == class).unwrap();
            layer["config"][key] = value;
            let error = make(&Layer::from_json(&layer).unwrap(), "here").err().map(|e| e.to_string());
            assert!(error.as_deref().unwrap_or_default().contains(key), "{class}: {error:?}");
        }
        // A layer inside a wrapper computes in the wrapper's type, or not at all.
        let mut layer =
            stored("layers").into_iter().find(|layer| layer["class_name"] == "TimeDistributed").unwrap();
        layer["config"]["layer"]["config"]["dtype"] = json!("float16");
        let error = make(&Layer::from_json(&layer).unwrap(), "here").err().map(|e| e.to_string());
        assert!(error.as_deref().unwrap_or_default().contains("float16"), "{error:?}");
        let input = json!({"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [null, 3], "ragged": true}});
        let error = check_input(&Layer::from_json(&input).unwrap(), "x").unwrap_err().to_string();
        assert!(error.contains("ragged"), "{error}");
    }
}
