//! Two precisions of one model side by side: losses, activations layer by layer, gradients, and where they part.

use plimsoll_data::Dataset;
use plimsoll_nn::{Net, Pass};
use plimsoll_run::Tensor;

use crate::error::Result;
use crate::session::no_samples;
use crate::trainer::Trainer;

/// What one pass over a batch gave, as numbers: of a model in one precision.
#[derive(Clone, Debug, PartialEq)]
pub struct PassValues {
    /// The loss.
    pub loss: f64,
    /// What each layer gave, by its path, in the order in which they were done; the outputs last.
    pub layers: Vec<(String, Vec<f64>)>,
    /// The gradient of each trained parameter by its name, where it has one.
    pub gradients: Vec<(String, Vec<f64>)>,
}

/// How far two tensors of one name are apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Apart {
    /// Of which layer or parameter they are.
    pub name: String,
    /// |a - b| / |b|, each the root of the sum of squares: 0 where they are equal, infinite where only b is 0 or one is not finite.
    pub relative: f64,
    /// The largest difference of two elements.
    pub largest: f64,
    /// The root of the mean square of b, to judge the difference by.
    pub size: f64,
}

/// Two precisions side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Parity {
    /// The loss of the first, and of the one it is held against.
    pub losses: (f64, f64),
    /// Layers in the order in which they are done.
    pub layers: Vec<Apart>,
    /// Gradients in the order of the parameters.
    pub gradients: Vec<Apart>,
    /// The first layer that is further apart than the tolerance.
    pub parts_at: Option<String>,
    /// The parameter whose gradients are furthest apart.
    pub worst_gradient: Option<String>,
}

impl PassValues {
    /// How far this is from another pass of the same model on the same batch. `tolerance` is how large a relative difference of a layer may
    /// be before it counts as the place where they part.
    pub fn against(&self, other: &PassValues, tolerance: f64) -> Parity {
        let layers = apart(&self.layers, &other.layers);
        let gradients = apart(&self.gradients, &other.gradients);
        let parts_at = layers.iter().find(|layer| layer.relative > tolerance).map(|layer| layer.name.clone());
        let worst = gradients.iter().max_by(|a, b| a.relative.total_cmp(&b.relative));
        let worst_gradient = worst.map(|worst| worst.name.clone());
        Parity { losses: (self.loss, other.loss), layers, gradients, parts_at, worst_gradient }
    }
}

/// Pairs of one name and one size, in the order of the first.
fn apart(ones: &[(String, Vec<f64>)], others: &[(String, Vec<f64>)]) -> Vec<Apart> {
    let mut taken = vec![false; others.len()];
    let mut found = Vec::new();
    for (name, a) in ones {
        // A layer that is called twice is compared with the first and then the second of its name.
        let at = others
            .iter()
            .enumerate()
            .position(|(i, (other, b))| !taken[i] && other == name && a.len() == b.len());
        let Some(at) = at else { continue };
        taken[at] = true;
        found.push(Apart::new(name, a, &others[at].1));
    }
    found
}

impl Apart {
    fn new(name: &str, a: &[f64], b: &[f64]) -> Apart {
        let (mut off, mut size, mut largest) = (0.0, 0.0, 0.0f64);
        for (a, b) in a.iter().zip(b) {
            let difference = if a == b { 0.0 } else { (a - b).abs() };
            off += difference * difference;
            size += b * b;
            largest = if difference.is_nan() { f64::INFINITY } else { largest.max(difference) };
        }
        let relative = match (off, size) {
            (0.0, _) => 0.0,
            (off, size) if off.is_finite() && size > 0.0 => (off / size).sqrt(),
            _ => f64::INFINITY,
        };
        Apart { name: name.into(), relative, largest, size: (size / b.len().max(1) as f64).sqrt() }
    }
}

impl Trainer {
    /// Runs the model forward and backward on the first batch of data, with its weights as they are, or as they start from the seed where it has
    /// seen no data, and gives what every layer gave and every gradient. Nothing is trained. It is run eagerly and keeps every
    /// activation: the memory limit is not for it.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adam, Precision, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::Trainer;
    /// # let x: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
    /// # let y: Vec<i64> = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
    /// # let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?.batch(20);
    /// let trainer = |precision| {
    ///     let model = Sequential::new([2]).dense(8).relu().dense(2);
    ///     Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2)).precision(precision)
    /// };
    /// let wide = trainer(Precision::F32).pass(&data)?;
    /// let parity = trainer(Precision::MixedBf16).pass(&data)?.against(&wide, 0.02);
    /// assert!(parity.gradients.iter().all(|gradient| gradient.relative < 0.05));
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is no batch, or an op fails.
    pub fn pass(&mut self, data: &Dataset) -> Result<PassValues> {
        let device = self.pinned()?;
        device.scope(|| {
            let recipe = self.recipe(data, true, self.share)?;
            let (inputs, precision) = (recipe.inputs.len(), recipe.request.precision);
            let Some(batch) = data.batches()?.next() else { return Err(no_samples("the data to look at")) };
            let staged = self.staging.stage(&batch?, inputs + recipe.labels.len())?;
            let (inputs, labels) = staged.split_at(inputs);
            let params = Net::discover_in(precision, &recipe.inputs, &self.model)?;
            let values: Vec<Tensor> = match &self.training {
                Some(training) => training.values().to_vec(),
                None => params
                    .iter()
                    .map(|param| param.init.draw(&param.name, &param.ty, self.seed))
                    .collect::<plimsoll_run::Result<_>>()?,
            };
            let pass =
                Pass::run(&self.model, &self.loss, precision, &params, &values, inputs, labels, self.seed)?;
            let numbers = |name: String, tensor: &Tensor| Ok((name, tensor.to_f64()?));
            let layers = pass.layers.into_iter().map(|(name, tensor)| numbers(name, &tensor));
            let gradients = pass.gradients.into_iter().filter_map(|(name, grad)| Some((name, grad?)));
            let gradients = gradients.map(|(name, grad)| numbers(name, &grad));
            Ok(PassValues {
                loss: pass.loss,
                layers: layers.collect::<Result<_>>()?,
                gradients: gradients.collect::<Result<_>>()?,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(loss: f64, layers: &[(&str, &[f64])]) -> PassValues {
        let layers: Vec<(String, Vec<f64>)> =
            layers.iter().map(|(name, values)| (name.to_string(), values.to_vec())).collect();
        PassValues { loss, gradients: layers.clone(), layers }
    }

    #[test]
    fn the_first_layer_beyond_the_tolerance_is_where_they_part() {
        let exact = pass(1.0, &[("a", &[3.0, 4.0]), ("b", &[1.0, 0.0]), ("b", &[2.0]), ("c", &[0.0])]);
        let rough = pass(1.1, &[("a", &[3.0, 4.05]), ("b", &[1.5, 0.0]), ("b", &[2.0]), ("c", &[1.0])]);
        let parity = rough.against(&exact, 0.02);
        let relative: Vec<f64> = parity.layers.iter().map(|layer| layer.relative).collect();
        assert!((relative[0] - 0.01).abs() < 1e-9, "{relative:?}");
        assert_eq!((relative[1], relative[2], relative[3]), (0.5, 0.0, f64::INFINITY));
        assert_eq!(parity.parts_at.as_deref(), Some("b"));
        assert_eq!(parity.worst_gradient.as_deref(), Some("c"));
        assert_eq!(exact.against(&exact, 0.0).parts_at, None);
        let broken = pass(1.0, &[("a", &[f64::NAN, 4.0])]);
        assert_eq!(broken.against(&exact, 1.0).parts_at.as_deref(), Some("a"));
    }
}
