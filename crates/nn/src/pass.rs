//! One eager pass of a model, with what every layer gave and every gradient: to look inside, and to compare precisions.

use plimsoll_graph::TensorOps;
use plimsoll_run::{Precision, Result, Tape, Tensor};

use crate::scale::LossScale;
use crate::{Loss, Model, Net, Param};

/// What a pass over a batch gave.
#[derive(Clone, Debug)]
pub struct Pass {
    /// The loss.
    pub loss: f64,
    /// What each layer gave, by its path, in the order in which they were done; the model's outputs last, as `output 0`.
    pub layers: Vec<(String, Tensor)>,
    /// The gradient of each trained parameter, by its name; none where the loss does not depend on it.
    pub gradients: Vec<(String, Option<Tensor>)>,
}

impl Pass {
    /// Runs a model in a precision on a batch, forward and backward, with these values of its parameters
    /// ([`Net::discover_in`]), as a training step would from the same seed. It keeps every activation: it is for looking, not for
    /// training.
    ///
    /// ```
    /// use plimsoll_graph::{DType, Type};
    /// use plimsoll_nn::{Net, Pass, Precision, Sequential, softmax_cross_entropy};
    /// use plimsoll_run::Tensor;
    /// let model = Sequential::new([2]).dense(4).relu().dense(2);
    /// let params = Net::discover(&[Type::new(DType::F32, [2, 2])], &model)?;
    /// let values: Vec<Tensor> =
    ///     params.iter().map(|p| p.init.draw(&p.name, &p.ty, 1)).collect::<Result<_, _>>()?;
    /// let x = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.0], [2, 2])?;
    /// let y = Tensor::from_slice(&[0i64, 1], [2])?;
    /// let pass = Pass::run(&model, &softmax_cross_entropy, Precision::MixedBf16, &params, &values, &[x], &[y], 1)?;
    /// assert_eq!(pass.gradients.len(), params.len());
    /// assert_eq!(pass.layers.last().map(|(name, _)| name.as_str()), Some("output 0"));
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    #[track_caller]
    pub fn run(
        model: &(impl Model + ?Sized),
        loss: &(impl Loss + ?Sized),
        precision: Precision,
        params: &[Param],
        values: &[Tensor],
        inputs: &[Tensor],
        labels: &[Tensor],
        seed: u64,
    ) -> Result<Pass> {
        let trained: Vec<usize> = (0..params.len()).filter(|&i| params[i].trained).collect();
        let wrt: Vec<&Tensor> = trained.iter().map(|&i| &values[i]).collect();
        let tape = Tape::new();
        wrt.iter().try_for_each(|w| tape.watch(w))?;
        let key = Tensor::from_slice(&[seed as i64, 0, 0], [3])?;
        let net = Net::bound(params, values, true).precision(precision).key(key);
        let (outputs, mut layers) = net.noting(inputs, model)?;
        let outputs_named = outputs.iter().enumerate().map(|(i, y)| (format!("output {i}"), y.clone()));
        layers.extend(outputs_named);
        let (loss, _) = loss.to_train(&outputs, labels)?;
        // Small gradients are lost in f16 unless the loss is large: as a training step does it.
        let scale = if precision.needs_loss_scale() { LossScale::START } else { 1.0 };
        let gradients = tape.try_gradient(&loss.mul_scalar(scale)?, &wrt)?;
        let named = trained.iter().zip(gradients).map(|(&i, grad)| {
            let grad = grad.map(|grad| grad.mul_scalar(1.0 / scale)).transpose()?;
            Ok((params[i].name.clone(), grad))
        });
        Ok(Pass { loss: loss.item()?, layers, gradients: named.collect::<Result<_>>()? })
    }
}
