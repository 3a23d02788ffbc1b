//! A metric that somebody follows from epoch to epoch: which way is better, and by how much it must become so.

use crate::callback::EpochEvent;
use crate::error::{Error, Result};

/// Names that end so fall as a model becomes better; everything else rises.
const FALLING: [&str; 12] = [
    "loss",
    "mae",
    "mse",
    "mape",
    "msle",
    "rmse",
    "error",
    "entropy",
    "crossentropy",
    "perplexity",
    "divergence",
    "poisson",
];

/// A metric by name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Watched {
    pub(crate) metric: String,
    /// A value counts as better only where it is better by more than this.
    pub(crate) min_delta: f64,
}

impl Watched {
    pub(crate) fn new(metric: &str) -> Watched {
        Watched { metric: metric.into(), min_delta: 0.0 }
    }

    /// Whether progress is up.
    pub(crate) fn larger_is_better(&self) -> bool {
        !FALLING.iter().any(|down| self.metric.ends_with(down))
    }

    /// Whether a value is better than the best so far; anything is better than none.
    pub(crate) fn is_better(&self, value: f64, best: Option<f64>) -> bool {
        match best.filter(|best| !best.is_nan()) {
            None => true,
            Some(best) if self.larger_is_better() => value > best + self.min_delta,
            Some(best) => value < best - self.min_delta,
        }
    }

    /// Its value in an epoch; an error that names what there is where it is not measured. `who` waits for it.
    pub(crate) fn value(&self, epoch: &EpochEvent, who: &str) -> Result<f64> {
        epoch.metric(&self.metric).ok_or_else(|| {
            let names: Vec<&str> =
                std::iter::once("loss").chain(epoch.metrics.iter().map(|(name, _)| name.as_str())).collect();
            let metric = &self.metric;
            Error::Mismatch(format!("{who} waits for {metric}, but there are only {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_down_for_losses_up_for_the_rest_and_by_more_than_the_delta() {
        let mut loss = Watched::new("val_loss");
        assert!(
            loss.is_better(1.0, None) && loss.is_better(0.5, Some(0.6)) && !loss.is_better(0.6, Some(0.6))
        );
        loss.min_delta = 0.1;
        assert!(!loss.is_better(0.55, Some(0.6)) && loss.is_better(0.4, Some(0.6)));
        let accuracy = Watched::new("val_accuracy");
        assert!(accuracy.is_better(0.7, Some(0.6)) && !accuracy.is_better(0.5, Some(0.6)));
        assert!(accuracy.is_better(0.1, Some(f64::NAN)) && !accuracy.is_better(f64::NAN, Some(0.1)));
    }
}
