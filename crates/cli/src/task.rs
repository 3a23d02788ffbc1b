//! What a model of the zoo is to say of a sample: from labels and loss to the number of outputs, the loss and the metrics.

use std::sync::Arc;

use plimsoll::nn::zoo::{Entry, Kind};
use plimsoll::nn::{Loss, Metric, dice, mae};
use plimsoll::prelude::*;

use crate::Failure;
use crate::config::Config;
use crate::form::Form;
use crate::names::no_loss;

/// What is learned.
pub struct Task {
    loss: String,
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
            let metrics = match kind {
                Kind::Pixels => vec![Metric::Accuracy, Metric::MeanIou],
                _ => vec![Metric::Accuracy],
            };
            let metrics = if config.loss.is_some() { Vec::new() } else { metrics };
            return Ok(Task { loss, outputs, metrics });
        }
        // Every other loss compares numbers: as many as a label has.
        let metrics = if config.loss.is_none() { vec![Metric::Mae] } else { Vec::new() };
        Ok(Task { loss, outputs: config.classes.unwrap_or(count), metrics })
    }

    /// Whether classes are learned.
    pub fn is_classes(&self) -> bool {
        self.loss == "cross-entropy"
    }

    /// The loss.
    pub fn loss(&self) -> Result<Arc<dyn Loss>, Failure> {
        Ok(match self.loss.as_str() {
            "cross-entropy" => Arc::new(softmax_cross_entropy),
            "mse" => Arc::new(mse),
            "mae" => Arc::new(mae),
            "binary-cross-entropy" => Arc::new(binary_cross_entropy),
            "dice" => Arc::new(dice),
            other => return Err(no_loss(other)),
        })
    }
}
