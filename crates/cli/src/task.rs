//! What a model of the zoo is to say of a sample: from labels and loss to the number of outputs, the loss and the metrics.

use std::sync::Arc;

use plimsoll::internals::graph::counted;
use plimsoll::nn::zoo::{Entry, Kind};
use plimsoll::nn::{Loss, Metric, class_weighted_cross_entropy, dice, mae};
use plimsoll::prelude::*;

use crate::Failure;
use crate::config::Config;
use crate::form::Form;
use crate::names::no_loss;

/// What is learned.
pub struct Task {
    loss: String,
    /// How much each class counts, where they do not count the same.
    weights: Option<Vec<f64>>,
    /// Numbers that the model gives, for a sample, a pixel or a token.
    pub outputs: usize,
    /// What is counted beside the loss, where nothing else is asked for.
    pub metrics: Vec<Metric>,
}

impl Task {
    /// The task for a model and data.
    ///
    /// # Errors
    /// The model does not read such data, or such labels cannot be learned with this loss.
    pub fn new(config: &Config, entry: Option<&Entry>, name: &str, form: &Form) -> Result<Task, Failure> {
        let (input, data) = (form.input()?, &form.data);
        let kind = entry.map_or(Kind::Images, |entry| entry.kind);
        let shown = format!("samples of {data} are {} of shape {:?}", input.dtype, input.shape);
        let is_read = match kind {
            Kind::Vectors => input.dtype.is_float(),
            Kind::Images | Kind::Pixels => input.dtype.is_float() && input.shape.len() == 3,
            Kind::Tokens => input.dtype == DType::I64 && input.shape.len() == 1,
        };
        if !is_read {
            let takes = entry.map_or("images, and a class each".into(), crate::sizes::takes);
            let other = match (input.dtype, input.shape.len()) {
                (DType::I64, 1) => "; gpt and lstm read such data",
                (_, 1) => "; mlp reads such data",
                _ => "",
            };
            return Err(Failure(format!("{name} takes {takes}, but {shown}{other}")));
        }
        let Some(label) = form.label()? else {
            return Err(Failure(format!(
                "{data} has no labels, so that there is nothing to learn from it; they are a last column, an array y, or sub-folders"
            )));
        };
        let is_number = label.dtype.is_float();
        let loss =
            config.loss.clone().unwrap_or_else(|| if is_number { "mse" } else { "cross-entropy" }.into());
        let per_sample: &[usize] = match kind {
            Kind::Pixels => &input.shape[..2],
            Kind::Tokens => &input.shape,
            Kind::Vectors | Kind::Images => &[],
        };
        let rest = label.shape.strip_prefix(per_sample);
        let count = match rest {
            Some(rest) if rest.len() <= 1 => rest.iter().product::<usize>().max(1),
            _ => {
                let says = match kind {
                    Kind::Pixels => "a class for every pixel",
                    Kind::Tokens => "the token after every token",
                    Kind::Vectors | Kind::Images => "a class for every sample",
                };
                let labels = format!("labels of {data} are of shape {:?}", label.shape);
                return Err(Failure(format!("{name} says {says}, but {labels} and {shown}")));
            }
        };
        if loss == "cross-entropy" {
            if is_number {
                let why = format!("labels of {data} are numbers ({}), not classes", label.dtype);
                return Err(Failure(format!(
                    "{why}; cross-entropy needs classes, --loss mse learns numbers"
                )));
            }
            let none = || Failure(format!("how many classes {data} has is not known; say --classes"));
            let outputs = config.classes.or(form.classes).ok_or_else(none)?;
            if outputs < 2 {
                return Err(Failure(format!(
                    "all labels of {data} are the one class 0, which any model says without learning; --classes 2 or more if others will come, --loss mse if they are numbers"
                )));
            }
            let metrics = match kind {
                Kind::Pixels => vec![Metric::Accuracy, Metric::MeanIou],
                _ => vec![Metric::Accuracy],
            };
            let metrics = if config.loss.is_some() { Vec::new() } else { metrics };
            let weights = config.class_weights.as_deref().map(|text| weights(text, outputs)).transpose()?;
            return Ok(Task { loss, weights, outputs, metrics });
        }
        if config.class_weights.is_some() {
            return Err(Failure(format!(
                "--class-weights is for classes (--loss cross-entropy), and {loss} has none"
            )));
        }
        // Every other loss compares numbers: as many as a label has.
        let metrics = if config.loss.is_none() { vec![Metric::Mae] } else { Vec::new() };
        Ok(Task { loss, weights: None, outputs: config.classes.unwrap_or(count), metrics })
    }

    /// Whether classes are learned.
    pub fn is_classes(&self) -> bool {
        self.loss == "cross-entropy"
    }

    /// The loss.
    pub fn loss(&self) -> Result<Arc<dyn Loss>, Failure> {
        Ok(match self.loss.as_str() {
            "cross-entropy" if self.weights.is_some() => {
                Arc::new(class_weighted_cross_entropy(self.weights.clone().unwrap_or_default()))
            }
            "cross-entropy" => Arc::new(softmax_cross_entropy),
            "mse" => Arc::new(mse),
            "mae" => Arc::new(mae),
            "binary-cross-entropy" => Arc::new(binary_cross_entropy),
            "dice" => Arc::new(dice),
            other => return Err(no_loss(other)),
        })
    }
}

/// The weights of so many classes, as they are written.
fn weights(text: &str, classes: usize) -> Result<Vec<f64>, Failure> {
    let refused = |why: String| Failure(format!("--class-weights {text}: {why}"));
    let weight = |part: &str| match part.trim().parse::<f64>() {
        Ok(weight) if weight.is_finite() && weight >= 0.0 => Ok(weight),
        _ => Err(refused(format!("'{}' is no weight; one is a number of at least 0", part.trim()))),
    };
    let weights: Vec<f64> = text.split(',').map(weight).collect::<Result<_, _>>()?;
    match weights.len() == classes {
        true if weights.iter().all(|weight| *weight == 0.0) => {
            Err(refused("nothing would be learned".into()))
        }
        true => Ok(weights),
        false => Err(refused(format!(
            "{} for {classes} classes; give one for each",
            counted(weights.len(), "weight")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_weight_for_each_class() {
        assert_eq!(weights("1, 2.5,0", 3).ok(), Some(vec![1.0, 2.5, 0.0]));
        for (text, what) in [
            ("1,2", "2 weights for 3 classes"),
            ("1,-2,1", "'-2' is no weight"),
            ("1,,2", "'' is no weight"),
            ("nan,1,1", "'nan' is no weight"),
            ("0,0,0", "nothing would be learned"),
        ] {
            let Err(Failure(why)) = weights(text, 3) else { panic!("{text} is taken") };
            assert!(why.contains(what), "{text}: {why}");
        }
    }
}
