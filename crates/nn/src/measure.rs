//! What is counted beside the loss: a metric with its name, the output and the labels that it compares, and what it sees of
//! the output.

use std::sync::Arc;

use plimsoll_graph::{DType, SoftmaxOps, TensorOps, Type};
use plimsoll_run::{Error, Result, Tensor};

use crate::error::refuse;
use crate::{Loss, Metric};

/// A number that is followed in training and evaluation. A [`Metric`] is one, of the first output and the first labels.
///
/// ```
/// use plimsoll_nn::{Measure, Metric, View};
/// let age = Measure { name: "age_mae".into(), output: 1, label: 1, ..Metric::Mae.into() };
/// let auc = Measure { view: View::Sigmoid, ..Metric::Auc(Default::default()).into() };
/// assert_eq!((age.name.as_str(), auc.name.as_str()), ("age_mae", "auc"));
/// ```
#[derive(Clone)]
pub struct Measure {
    /// What it is called.
    pub name: String,
    /// What is counted.
    pub count: Count,
    /// Of which output.
    pub output: usize,
    /// With which labels.
    pub label: usize,
    /// What is seen of the output.
    pub view: View,
}

/// What is counted.
#[derive(Clone)]
pub enum Count {
    /// A metric.
    Metric(Metric),
    /// The mean of a loss of one output over samples.
    Mean(Arc<dyn Loss>),
    /// The mean of a part of the loss that is trained, by its place in what [`Loss::parts`] gives.
    Part(usize),
    /// A metric of one's own.
    Own(Arc<dyn OwnMetric>),
    /// A mean that is weighted by samples: the last of the labels are the weights, and the closure gives the total of what is counted of each
    /// sample times its weight, from the output, the labels and the weights.
    Weighted(Arc<Weighing>),
}

/// See [`Count::Weighted`].
pub type Weighing = dyn Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor> + Send + Sync;

/// A metric of one's own. Its state is a few sums: those of a batch are computed on the device beside the step, added up over an epoch in
/// f64, kept in checkpoints, and turned into a number on the host.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps};
/// use plimsoll_nn::{Measure, OwnMetric};
/// use plimsoll_run::{Result, Tensor};
/// // How far outputs lie above labels on average: a sum and a count are its state.
/// struct Bias;
/// impl OwnMetric for Bias {
///     fn sums(&self, output: &Tensor, label: &Tensor) -> Result<Tensor> {
///         let off = output.sub(label)?.cast(DType::F32)?;
///         let n = off.full_like(plimsoll_graph::Type::new(DType::F32, [1]), off.ty().elements() as f64)?;
///         Tensor::concat(&[&off.sum(&[], false)?.reshape([1])?, &n], 0)
///     }
///     fn finish(&self, sums: &[f64]) -> f64 {
///         sums[0] / sums[1]
///     }
/// }
/// let measure = Measure::own("bias", Bias);
/// let (x, t) = (Tensor::from_slice(&[1.0f32, 2.0], [2])?, Tensor::from_slice(&[0.0f32, 0.0], [2])?);
/// let sums = measure.sums(&[x], &[t], &[])?.to_f64()?;
/// assert_eq!(measure.finish(&sums), 1.5);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub trait OwnMetric: Send + Sync {
    /// The sums of a batch, f32, one axis: as many for every batch, and over samples, so that batches of any size and pieces of one add up.
    fn sums(&self, output: &Tensor, label: &Tensor) -> Result<Tensor>;

    /// The number, from sums over everything.
    fn finish(&self, sums: &[f64]) -> f64;
}

/// What a metric sees of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The output itself.
    #[default]
    Plain,
    /// Its sigmoid.
    Sigmoid,
    /// Its softmax over the last axis.
    Softmax,
}

impl View {
    #[track_caller]
    fn of(self, output: &Tensor) -> Result<Tensor> {
        match self {
            View::Plain => Ok(output.clone()),
            View::Sigmoid => output.cast(DType::F32)?.sigmoid(),
            View::Softmax => output.cast(DType::F32)?.softmax(-1),
        }
    }
}

impl From<Metric> for Measure {
    fn from(metric: Metric) -> Measure {
        let (name, count) = (metric.name(), Count::Metric(metric));
        Measure { name, count, output: 0, label: 0, view: View::Plain }
    }
}

impl std::fmt::Debug for Measure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of output {} and labels {}", self.name, self.output, self.label)
    }
}

impl Measure {
    /// A metric of one's own over the first output and the first label.
    pub fn own(name: &str, metric: impl OwnMetric + 'static) -> Measure {
        let count = Count::Own(Arc::new(metric));
        Measure { name: name.into(), count, output: 0, label: 0, view: View::Plain }
    }

    /// The sums of a batch, f32 and small; add those of all batches up for [`Measure::finish`].
    #[track_caller]
    pub fn sums(&self, outputs: &[Tensor], labels: &[Tensor], parts: &[Tensor]) -> Result<Tensor> {
        let none =
            |what: &str, n: usize| refuse(format!("counts {} of {what}, of which there are {n}", self.name));
        let output = outputs.get(self.output);
        let label =
            || labels.get(self.label).ok_or_else(|| none(&format!("labels {}", self.label), labels.len()));
        let output = || output.ok_or_else(|| none(&format!("output {}", self.output), outputs.len()));
        let mean = match &self.count {
            Count::Metric(metric) => {
                let sums = metric.sums(&self.view.of(output()?)?, label()?);
                return sums.map_err(|error| match error {
                    Error::Signature { site, why } => {
                        Error::Signature { site, why: format!("counts {}, which {why}", self.name) }
                    }
                    other => other,
                });
            }
            Count::Own(own) => {
                let sums = own.sums(&self.view.of(output()?)?, label()?)?;
                if sums.dtype() != DType::F32 || sums.shape().rank() != 1 {
                    let why =
                        format!("counts {} by sums of {}; give f32 along one axis", self.name, sums.ty());
                    return Err(refuse(why));
                }
                return Ok(sums);
            }
            Count::Weighted(weighing) => {
                let weights = labels.last().ok_or_else(|| none("weights", 0))?;
                let total = weighing(&self.view.of(output()?)?, label()?, weights)?;
                let all = weights.cast(DType::F32)?.sum(&[], false)?;
                let parts = [total.cast(DType::F32)?.reshape([1])?, all.reshape([1])?];
                return Tensor::concat(&[&parts[0], &parts[1]], 0);
            }
            Count::Mean(loss) => &loss.loss(&[self.view.of(output()?)?], std::slice::from_ref(label()?))?,
            Count::Part(i) => parts.get(*i).ok_or_else(|| none(&format!("part {i}"), parts.len()))?,
        };
        // Every sample counts once, in batches of any size.
        let samples = labels.first().and_then(|t| t.shape().first().copied()).unwrap_or(1);
        let count = mean.full_like(Type::new(DType::F32, [1]), samples as f64)?;
        let sum = mean.cast(DType::F32)?.mul_scalar(samples as f64)?.reshape([1])?;
        Tensor::concat(&[&sum, &count], 0)
    }

    /// The number, from sums over everything; not a number where there was nothing.
    pub fn finish(&self, sums: &[f64]) -> f64 {
        match (&self.count, sums) {
            (Count::Metric(metric), sums) => metric.finish(sums),
            (Count::Own(own), sums) => own.finish(sums),
            // Keras counts a mean over no weight as 0.
            (Count::Weighted(_), [_, 0.0]) => 0.0,
            (_, [sum, count]) => sum / count,
            _ => f64::NAN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, [values.len()]).unwrap()
    }

    #[test]
    fn every_measure_is_of_its_own_output_and_labels() {
        let outputs = [row(&[0.0, 0.0]), row(&[1.0, 5.0])];
        let labels = [row(&[1.0, 1.0]), row(&[1.0, 1.0])];
        let value = |m: &Measure| m.finish(&m.sums(&outputs, &labels, &[]).unwrap().to_f64().unwrap());
        let second = Measure { output: 1, label: 1, ..Metric::Mae.into() };
        assert_eq!((value(&Metric::Mae.into()), value(&second)), (1.0, 2.0));
        let seen = Measure { view: View::Sigmoid, ..Metric::Mae.into() };
        assert_eq!(value(&seen), 0.5);
        let loss = Measure { count: Count::Mean(Arc::new(crate::mse)), ..second.clone() };
        assert_eq!(value(&loss), 8.0);
        let none = Measure { output: 2, ..second };
        let error = none.sums(&outputs, &labels, &[]).unwrap_err().to_string();
        assert!(
            error.contains("mae") && error.contains("output 2") && error.contains("there are 2"),
            "{error}"
        );
    }

    #[test]
    fn a_weighted_mean_is_by_the_sum_of_weights() {
        let count =
            Count::Weighted(Arc::new(|x: &Tensor, t: &Tensor, w: &Tensor| x.sub(t)?.mul(w)?.sum(&[], false)));
        let measure = Measure { count, ..Metric::Mae.into() };
        let sums = |x: &[f32], w: &[f32]| {
            let labels = [row(&vec![0.0; x.len()]), row(w)];
            measure.sums(&[row(x)], &labels, &[]).unwrap().to_f64().unwrap()
        };
        let (a, b) = (sums(&[1.0, 4.0], &[2.0, 0.5]), sums(&[7.0], &[0.0]));
        assert_eq!(measure.finish(&[a[0] + b[0], a[1] + b[1]]), 1.6);
        assert_eq!(measure.finish(&b), 0.0);
    }

    #[test]
    fn parts_of_the_loss_weigh_by_samples() {
        let part = Measure { count: Count::Part(0), ..Metric::Mae.into() };
        let sums = |loss: f32, n: usize| {
            let parts = [Tensor::from_slice(&[loss], []).unwrap()];
            part.sums(&[], &[row(&vec![0.0; n])], &parts).unwrap().to_f64().unwrap()
        };
        let (a, b) = (sums(1.0, 3), sums(5.0, 1));
        assert_eq!(part.finish(&[a[0] + b[0], a[1] + b[1]]), 2.0);
        assert!(part.finish(&[]).is_nan());
        assert!(part.sums(&[], &[], &[]).is_err());
    }
}
