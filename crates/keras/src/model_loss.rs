//! The losses of a model's outputs as one: read from how the model was compiled, weighted, and added up.

use plimsoll_graph::TensorOps;
use plimsoll_nn::Loss;
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::{Map, Value};

use crate::error::{Error, Result, refuse};
use crate::layer::add_wide;
use crate::loss::OutputLoss;

/// The losses of all outputs, weighted, and what regularizers add.
///
/// Its outputs are those of the model that it was made with (see `KerasModel::compiled`); one more at the end is the
/// regularizers' sum. Labels are those of [`KerasLoss::labelled`] outputs, or one for each output.
#[derive(Clone, Debug, PartialEq)]
pub struct KerasLoss {
    /// The loss of each output, if it has one.
    pub outputs: Vec<Option<OutputLoss>>,
    /// What each output's loss is multiplied by.
    pub weights: Vec<f64>,
    /// Which outputs have labels also without a loss, for metrics.
    pub measured: Vec<bool>,
    /// Which outputs bring a mask that says what of them counts: behind all outputs and what regularizers add.
    pub masked: Vec<usize>,
    /// Whether samples bring weights: one more label behind all others, `[N]`, which multiplies the losses of all outputs.
    pub is_weighted: bool,
}

impl KerasLoss {
    /// A loss of the first of so many outputs; the others have none.
    pub fn of_first(loss: OutputLoss, outputs: usize) -> KerasLoss {
        let mut all = vec![None; outputs.max(1)];
        all[0] = Some(loss);
        KerasLoss::of(all)
    }

    /// No loss of any output: for models that are only used.
    pub fn none(outputs: usize) -> KerasLoss {
        KerasLoss::of(vec![None; outputs])
    }

    /// The losses of all outputs, none weighted.
    pub fn of(outputs: Vec<Option<OutputLoss>>) -> KerasLoss {
        let n = outputs.len();
        KerasLoss {
            weights: vec![1.0; n],
            measured: vec![false; n],
            masked: Vec::new(),
            is_weighted: false,
            outputs,
        }
    }

    /// The outputs that have labels, in the order in which these are given: those with a loss, and those measured.
    pub fn labelled(&self) -> Vec<usize> {
        let measured = |i: usize| self.measured.get(i).copied().unwrap_or(false);
        (0..self.outputs.len()).filter(|&i| self.outputs[i].is_some() || measured(i)).collect()
    }

    /// The outputs that have a loss, in the order of the parts of the whole.
    pub(crate) fn parts_of(&self) -> impl Iterator<Item = usize> {
        self.outputs.iter().enumerate().filter(|(_, loss)| loss.is_some()).map(|(i, _)| i)
    }

    /// Reads `loss` and `loss_weights` of a compile configuration, for outputs of these names.
    pub(crate) fn read(loss: &Value, weights: &Value, names: &[String]) -> Result<KerasLoss> {
        let one = |value: &Value| match value {
            Value::Null => Ok(None),
            value => OutputLoss::read(value).map(Some),
        };
        let outputs: Vec<Option<OutputLoss>> = match loss {
            Value::Array(list) if list.len() == names.len() => list.iter().map(one).collect::<Result<_>>()?,
            Value::Array(_) => return Err(Error::config("the loss", "there are not as many as outputs")),
            Value::Object(map) if !map.contains_key("class_name") => {
                known_keys("loss", map, names)?;
                names.iter().map(|name| one(map.get(name).unwrap_or(&Value::Null))).collect::<Result<_>>()?
            }
            // One for all.
            value => names.iter().map(|_| one(value)).collect::<Result<_>>()?,
        };
        if outputs.iter().all(Option::is_none) {
            return Err(Error::config("the loss", "the model was compiled without one; name a loss"));
        }
        let weight = |value: &Value| match value {
            Value::Null => Ok(1.0),
            value => {
                let number = value.as_f64().filter(|x| x.is_finite());
                number.ok_or_else(|| Error::config("the loss", "a weight is not a number"))
            }
        };
        let weights = match weights {
            Value::Null => vec![1.0; names.len()],
            Value::Array(list) if list.len() == names.len() => {
                list.iter().map(weight).collect::<Result<_>>()?
            }
            Value::Object(map) => {
                known_keys("loss_weights", map, names)?;
                names
                    .iter()
                    .map(|name| weight(map.get(name).unwrap_or(&Value::Null)))
                    .collect::<Result<_>>()?
            }
            value if names.len() == 1 => vec![weight(value)?],
            _ => return Err(Error::config("the loss", "its weights are not one for each output")),
        };
        Ok(KerasLoss { weights, ..KerasLoss::of(outputs) })
    }
}

/// Refuses what is said of outputs that the model does not have.
fn known_keys(what: &str, map: &Map<String, Value>, names: &[String]) -> Result<()> {
    match map.keys().find(|key| !names.contains(key)) {
        None => Ok(()),
        Some(key) => {
            let known = names.join(", ");
            Err(Error::config("the loss", format!("{what} names {key}, but the outputs are {known}")))
        }
    }
}

impl Loss for KerasLoss {
    fn loss(&self, outputs: &[Tensor], labels: &[Tensor]) -> RunResult<Tensor> {
        Ok(self.parts(outputs, labels)?.0)
    }

    /// The weighted sum, and the loss of every output that has one, without its weight.
    fn parts(&self, outputs: &[Tensor], labels: &[Tensor]) -> RunResult<(Tensor, Vec<Tensor>)> {
        let (n, labelled) = (self.outputs.len(), self.labelled());
        let (labels, sample_weights) = match labels.split_last() {
            Some((weights, labels)) if self.is_weighted => (labels, Some(weights)),
            _ => (labels, None),
        };
        let extra = n + self.masked.len();
        if outputs.len() < extra
            || outputs.len() > extra + 1
            || (labels.len() != n && labels.len() != labelled.len())
        {
            let (given, labels, own) = (outputs.len(), labels.len(), labelled.len());
            return Err(refuse(format!(
                "gives {given} outputs and {labels} labels to losses of {n} outputs, {own} of them labelled"
            )));
        }
        let mut parts = Vec::new();
        // What regularizers add comes after the outputs.
        let masks = &outputs[outputs.len() - self.masked.len()..];
        let mut total: Option<Tensor> = (outputs.len() > extra).then(|| outputs[n].clone());
        for (i, loss) in self.outputs.iter().enumerate() {
            let place = if labels.len() == n { Some(i) } else { labelled.iter().position(|own| *own == i) };
            let (Some(loss), Some(label)) = (loss, place.and_then(|at| labels.get(at))) else { continue };
            let mask = self.masked.iter().position(|own| *own == i).map(|at| &masks[at]);
            let mut part = match (mask, sample_weights) {
                (Some(mask), weights) => loss.masked_mean(&outputs[i], label, weights, mask)?,
                (None, Some(weights)) => loss.weighted_mean(&outputs[i], label, weights)?,
                (None, None) => loss.mean(&outputs[i], label)?,
            };
            parts.push(part.clone());
            if self.weights[i] != 1.0 {
                part = part.mul_scalar(self.weights[i])?;
            }
            total = Some(match total {
                Some(total) => add_wide(&total, &part)?,
                None => part,
            });
        }
        Ok((total.ok_or_else(|| refuse("has no loss for any output"))?, parts))
    }

    fn leaves_out(&self) -> bool {
        self.outputs.iter().any(Option::is_none)
    }
}
