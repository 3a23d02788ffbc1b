//! Turns names that users write into what they name: optimizers, losses, metrics. A name that is none is refused with those that are.

use std::sync::Arc;

use plimsoll::nn::{Auc, Metric};
use plimsoll::prelude::*;

use crate::Failure;

/// The optimizer of a name.
pub fn optimizer(name: &str, rate: f64) -> Result<Arc<dyn Optimizer>, Failure> {
    let known = "sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, ftrl, lion and adafactor";
    plimsoll::nn::optimizer(name, rate)
        .ok_or_else(|| Failure(format!("there is no optimizer {name}; there are {known}")))
}

/// Whether there is a loss of this name.
pub fn check_loss(name: &str) -> Result<(), Failure> {
    match name {
        "cross-entropy" | "mse" | "mae" | "binary-cross-entropy" | "dice" => Ok(()),
        other => Err(no_loss(other)),
    }
}

/// Says which losses there are.
pub fn no_loss(name: &str) -> Failure {
    let known = "cross-entropy, mse, mae, binary-cross-entropy and dice";
    Failure(format!("there is no loss {name}; there are {known}"))
}

/// The metric of a name.
pub fn metric(name: &str) -> Result<Metric, Failure> {
    Ok(match name {
        "accuracy" => Metric::Accuracy,
        "binary-accuracy" => Metric::BinaryAccuracy,
        "auc" => Metric::Auc(Auc::default()),
        "precision" => Metric::Precision { threshold: 0.5, class: None },
        "recall" => Metric::Recall { threshold: 0.5, class: None },
        "mean-iou" => Metric::MeanIou,
        "cross-entropy" => Metric::CrossEntropy,
        "perplexity" => Metric::Perplexity,
        "mae" => Metric::Mae,
        "mse" => Metric::Mse,
        "rmse" => Metric::Rmse,
        "r2" => Metric::R2,
        _ => match name.strip_prefix("top").and_then(|k| k.parse().ok()).filter(|&k: &usize| k > 0) {
            Some(k) => Metric::TopK(k),
            None => {
                return Err(Failure(format!(
                    "there is no metric {name}; accuracy, top5, auc, precision, recall, mean-iou, perplexity, mae … are some"
                )));
            }
        },
    })
}
