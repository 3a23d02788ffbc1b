//! What a run takes of a Keras file: arrays of its data, and losses and metrics that are named for the model's outputs.

use std::path::Path;

use plimsoll::internals::data::{FieldKind, FieldSpec, Fields, Wanted};
use plimsoll::keras::{Compiled, KerasLoss, KerasModel, OutputLoss};
use plimsoll::nn::{Count, ScheduleShape};
use plimsoll::prelude::*;

use crate::Failure;
use crate::config::Config;
use crate::model_setup::Purpose;
use crate::names::no_loss;
use crate::request::is_keras;

/// The Keras file that a run names, in the precision that it names; none where it names another model.
pub fn keras_model(config: &Config) -> Result<Option<KerasModel>, Failure> {
    let Some(path) = config.model.as_deref().filter(|name| is_keras(name)) else { return Ok(None) };
    let (all, layers) = config.precision()?;
    let copy = config.model_copy.as_deref();
    let opened = KerasModel::open(copy.unwrap_or(Path::new(path)))?.with_layer_precisions(&layers)?;
    Ok(Some(match all {
        Some(all) => opened.with_precision(all),
        None => opened,
    }))
}

/// The arrays that a Keras model takes of a data set: its inputs, and labels for the outputs that have a loss or a metric.
pub fn fields(config: &Config, model: &KerasModel, purpose: Purpose) -> Result<Fields, Failure> {
    let input = |(name, ty): (String, &DType)| {
        let kind = if ty.is_float() { FieldKind::Numbers } else { FieldKind::Indices };
        Wanted { name, kind }
    };
    let names = model.input_names().into_iter();
    let inputs = names.zip(model.input_dtypes().iter()).map(input).collect();
    let labelled = labelled(config, model, purpose)?;
    let names = labelled.iter().filter_map(|&i| model.output_names().get(i));
    let labels = names.map(|name| Wanted { name: name.clone(), kind: FieldKind::Label }).collect();
    Ok(Fields { inputs, labels })
}

/// The outputs that have labels: those with a loss or a metric.
fn labelled(config: &Config, model: &KerasModel, purpose: Purpose) -> Result<Vec<usize>, Failure> {
    let path = config.model.as_deref().unwrap_or_default();
    Ok(match (purpose, losses(config, model)?) {
        (Purpose::Predict, _) => Vec::new(),
        (_, Some(named)) => (0..named.len()).filter(|&i| named[i].is_some()).collect(),
        (_, None) => model.measured().map_err(|e| advised(e, path, "--loss"))?.labelled,
    })
}

/// The outputs that have labels, each with whether those are numbers of classes; others are numbers of the output's shape.
pub fn labels(config: &Config, model: &KerasModel, purpose: Purpose) -> Result<Vec<(usize, bool)>, Failure> {
    let outputs = labelled(config, model, purpose)?;
    let is_classes: Vec<bool> = match losses(config, model)? {
        Some(named) => named.iter().map(|loss| *loss == Some("cross-entropy")).collect(),
        None if outputs.is_empty() => Vec::new(),
        None => model.labels_are_classes()?,
    };
    Ok(outputs.into_iter().map(|i| (i, is_classes.get(i) == Some(&true))).collect())
}

/// The losses that are named, by output: one for all, or those of some by name.
fn losses<'a>(config: &'a Config, model: &KerasModel) -> Result<Option<Vec<Option<&'a str>>>, Failure> {
    if config.class_weights.is_some() {
        return Err(Failure(
            "--class-weights is for models of the zoo; a Keras file's loss counts all classes the same"
                .into(),
        ));
    }
    let Some(text) = config.loss.as_deref() else { return Ok(None) };
    let names = model.output_names();
    if !text.contains('=') {
        return Ok(Some(vec![Some(text); names.len()]));
    }
    let mut all = vec![None; names.len()];
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((output, loss)) = part.split_once('=') else {
            let why = "names a loss without its output; one is written as name=mse";
            return Err(Failure(format!("--loss {text} {why}")));
        };
        all[output_of(output.trim(), names)?] = Some(loss.trim());
    }
    Ok(Some(all))
}

/// The number of the output of a name.
fn output_of(name: &str, names: &[String]) -> Result<usize, Failure> {
    let none = || Failure(format!("the model has no output {name}; there are {}", names.join(", ")));
    names.iter().position(|own| own == name).ok_or_else(none)
}

/// A loss that was named for a Keras model.
pub enum Named {
    Loss(KerasLoss),
    Dice,
}

/// The loss that is named, over what the model gives: a file's model may end in a softmax or sigmoid of its own.
pub fn named_loss(
    config: &Config,
    path: &str,
    model: &KerasModel,
    labels: &[FieldSpec],
) -> Result<Option<Named>, Failure> {
    let Some(named) = losses(config, model)? else { return Ok(None) };
    let (mut all, mut labels) = (Vec::new(), labels.iter());
    for (i, name) in named.iter().enumerate() {
        let Some(name) = name else {
            all.push(None);
            continue;
        };
        let label = labels.next();
        let from_logits = !model.gives_probabilities(i);
        all.push(Some(match *name {
            // Labels are classes, or distributions over them.
            "cross-entropy" if label.is_some_and(|field| field.dtype.is_float()) => {
                OutputLoss::Categorical { from_logits, smoothing: 0.0 }
            }
            "cross-entropy" => OutputLoss::SparseCategorical { from_logits },
            "binary-cross-entropy" => OutputLoss::Binary { from_logits, smoothing: 0.0 },
            "mse" => OutputLoss::Mse,
            "mae" => OutputLoss::Mae,
            "dice" if named.len() > 1 => {
                return Err(Failure(format!(
                    "{path}: dice is only for models with one output; name another loss"
                )));
            }
            "dice" if !model.on_logits().gives_probabilities(0) => return Ok(Some(Named::Dice)),
            "dice" => {
                let why = "dice takes what goes into the last sigmoid, which is not to be had in 16 bits";
                return Err(Failure(format!("{path}: {why}; name another loss, or --precision f32")));
            }
            other => return Err(no_loss(other)),
        }));
    }
    Ok(Some(Named::Loss(KerasLoss::of(all))))
}

/// Of the metrics that a file was compiled with, those of outputs that still have labels stay, if they would see the same.
pub fn keep_metrics(compiled: &mut Compiled, kept: Compiled) {
    for mut measure in kept.metrics {
        let output = measure.output;
        let label = compiled.labelled.iter().position(|own| *own == output);
        let same = kept.model.gives_logits(output) == compiled.model.gives_logits(output);
        if let (Some(label), true, false) = (label, same, matches!(measure.count, Count::Part(_))) {
            measure.label = label;
            compiled.metrics.push(measure);
        }
    }
    compiled.other_metrics = kept.other_metrics;
}

/// Puts the metrics that are named in the place of a file's own.
pub fn name_metrics(config: &Config, path: &str, compiled: &mut Compiled) -> Result<(), Failure> {
    let Some(named) = config.measures()? else { return Ok(()) };
    compiled.metrics.retain(|measure| matches!(measure.count, Count::Part(_)));
    let names = compiled.model.output_names().to_vec();
    for (output, metric) in named {
        let output = match (output, &compiled.labelled[..]) {
            (Some(name), _) => output_of(&name, &names)?,
            (None, [one]) => *one,
            (None, _) => {
                let (metric, names) = (metric.name(), names.join(", "));
                return Err(Failure(format!(
                    "{path} has several outputs, {names}; say of which {metric} is: {}={metric}",
                    compiled.labelled_names().next().unwrap_or("output")
                )));
            }
        };
        let name = match names.len() {
            1 => metric.name(),
            _ => format!("{}_{}", names[output], metric.name()),
        };
        compiled.measure(metric, output, &name)?;
    }
    Ok(())
}

/// Whether samples of so many fields have what the model takes.
pub fn fits(compiled: &Compiled, fields: usize, purpose: Purpose) -> Result<(), Failure> {
    let inputs = compiled.model.n_inputs();
    let wanted = inputs + compiled.labelled.len();
    if fields == wanted || (purpose == Purpose::Predict && fields >= inputs) {
        return Ok(());
    }
    let labels: Vec<&str> = compiled.labelled_names().collect();
    let then = match purpose {
        Purpose::Predict => String::new(),
        _ => format!(", and then labels for {}", labels.join(", ")),
    };
    Err(Failure(format!(
        "a sample of the data has {fields} arrays, but the model takes {inputs} as inputs{then}"
    )))
}

/// An error with the file and the flags that help.
pub fn advised(error: plimsoll::keras::Error, path: &str, flags: &str) -> Failure {
    Failure(format!("{path} cannot be used as it was compiled: {error} ({flags})"))
}

/// Whether a Keras file's schedule of the learning rate is followed: nothing else is named for it.
pub fn follows_file(config: &Config) -> bool {
    config.optimizer.is_none() && config.schedule.is_none() && config.warm_up.is_none()
}

/// Says what a file holds that is not followed in training.
pub fn not_followed(config: &Config, compiled: &Compiled) {
    // Another optimizer was asked for, and has nothing to do with the file's.
    if config.optimizer.is_some() {
        return;
    }
    for notice in &compiled.notices {
        eprintln!("plimsoll: {notice}");
    }
    if compiled.schedule.shape != ScheduleShape::Constant && !follows_file(config) {
        eprintln!(
            "plimsoll: the file's own schedule of the learning rate is replaced by the one that is named"
        );
    }
}

/// Says which metrics of a file have no counterpart, unless others were named.
pub fn not_counted(config: &Config, others: &[String]) {
    if config.metrics.is_none() && !others.is_empty() {
        eprintln!("plimsoll: these metrics of the file are not counted here: {}", others.join(", "));
    }
}
