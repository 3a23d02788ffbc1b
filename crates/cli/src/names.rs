//! Turns names that users write into what they name: optimizers, losses, metrics. A name that is none is refused with those that are.

use std::sync::Arc;

use plimsoll::nn::{Auc, Decay, Kept, Metric, Optimizer};
use plimsoll::prelude::*;

use crate::Failure;
use crate::config::Config;

/// The optimizer of a name, with a learning rate and a weight decay, where that is not its own.
pub fn optimizer(name: &str, rate: f64, decay: Option<f64>) -> Result<Arc<dyn Optimizer>, Failure> {
    let known = "sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, ftrl, lion and adafactor";
    let plain = plimsoll::nn::optimizer(name, rate)
        .ok_or_else(|| Failure(format!("there is no optimizer {name}; there are {known}")))?;
    let Some(decay) = decay else { return Ok(plain) };
    let sgd = |sgd: Sgd| Arc::new(Sgd { decay: Decay::l2(decay), ..sgd });
    Ok(match name {
        "sgd" => sgd(Sgd::new(rate)),
        "momentum" => sgd(Sgd::momentum(rate, 0.9)),
        "nesterov" => sgd(Sgd::nesterov(rate, 0.9)),
        "adam" => Arc::new(Adam { decay: Decay::l2(decay), ..Adam::new(rate) }),
        "adamw" => Arc::new(Adam::w(rate, decay)),
        other => {
            let takes = "sgd, momentum, nesterov, adam and adamw";
            return Err(Failure(format!("--weight-decay is not for {other}; it is for {takes}")));
        }
    })
}

/// An optimizer with its state kept as the settings say.
pub fn with_state(optimizer: Arc<dyn Optimizer>, config: &Config) -> Result<Arc<dyn Optimizer>, Failure> {
    let kept = config.kept()?;
    if kept == Kept::F32 {
        return Ok(optimizer);
    }
    let none = || {
        let known = "adam, adamw, momentum, nesterov and lion have; name one with --optimizer";
        let (flag, name, state) = (kept.name(), optimizer.name(), kept.state());
        Failure(format!("--state {flag}: {name} has no {state}; {known}"))
    };
    optimizer.with_state(kept).ok_or_else(none)
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
