//! Norms. Scale, shift and statistics are f32 whatever the activations are.

use plimsoll_graph::{NormOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::channels;
use crate::error::refuse;
use crate::{Init, LayerKind, Net};

/// The momentum with which running statistics follow the batch's, as PyTorch counts it.
const BATCH_NORM_MOMENTUM: f64 = 0.1;
const NORM_EPS: f64 = 1e-5;

impl Net {
    /// Batch norm over all axes but the last: with the batch's statistics in training, with running ones otherwise.
    /// Parameters: `gamma`, `beta`; state: `mean`, `var`.
    #[track_caller]
    pub fn batch_norm(&mut self, name: &str, x: &Tensor) -> Result<Tensor> {
        self.batch_norm_with(name, x, BATCH_NORM_MOMENTUM, NORM_EPS)
    }

    /// As [`Net::batch_norm`], with another momentum (the share of the new batch; Keras counts the share of the old)
    /// and ε.
    #[track_caller]
    pub fn batch_norm_with(&mut self, name: &str, x: &Tensor, momentum: f64, eps: f64) -> Result<Tensor> {
        self.refuse_padding("batch norm")?;
        let x = self.compute_in(name, x)?;
        let width = channels(&x)?;
        let training = self.is_training();
        let y = self.layer(name, |net| {
            let (gamma, beta) = net.scale_and_shift(width)?;
            let mean = net.state("mean", [width], Init::Constant(0.0))?;
            let var = net.state("var", [width], Init::Constant(1.0))?;
            if !training {
                return x.batch_norm_inference(&gamma, &beta, &mean, &var, eps);
            }
            let (y, batch_mean, batch_var) = net.batch_norm_of(&x, &gamma, &beta, eps)?;
            // The running variance is kept unbiased, as PyTorch does. Keras 3 keeps the biased one; the bridge to its files
            // has a batch norm of its own for that.
            let unbiased = net.unbiased(&batch_var, &x)?;
            let follow =
                |old: &Tensor, new: &Tensor| old.mul_scalar(1.0 - momentum)?.add(&new.mul_scalar(momentum)?);
            net.update("mean", follow(&mean, &batch_mean)?)?;
            net.update("var", follow(&var, &unbiased)?)?;
            Ok(y)
        });
        self.note(name, LayerKind::BatchNorm { momentum, eps }, &[&x], y)
    }

    /// Layer norm over the last axis. Parameters: `gamma`, `beta`.
    #[track_caller]
    pub fn layer_norm(&mut self, name: &str, x: &Tensor) -> Result<Tensor> {
        self.layer_norm_with(name, x, NORM_EPS)
    }

    /// As [`Net::layer_norm`], with another ε.
    #[track_caller]
    pub fn layer_norm_with(&mut self, name: &str, x: &Tensor, eps: f64) -> Result<Tensor> {
        let x = self.compute_in(name, x)?;
        let width = channels(&x)?;
        let y = self.layer(name, |net| {
            let (gamma, beta) = net.scale_and_shift(width)?;
            x.layer_norm(&gamma, &beta, eps)
        });
        self.note(name, LayerKind::LayerNorm { eps }, &[&x], y)
    }

    /// Group norm of `[N, .., C]`; one group a channel is instance norm. Parameters: `gamma`, `beta`.
    #[track_caller]
    pub fn group_norm(&mut self, name: &str, x: &Tensor, groups: usize) -> Result<Tensor> {
        self.refuse_padding("group norm")?;
        let x = self.compute_in(name, x)?;
        let width = channels(&x)?;
        if groups == 0 || !width.is_multiple_of(groups) {
            return Err(refuse(format!("cuts {width} channels in {groups} groups")));
        }
        let y = self.layer(name, |net| {
            let (gamma, beta) = net.scale_and_shift(width)?;
            x.group_norm(&gamma, &beta, groups, NORM_EPS)
        });
        self.note(name, LayerKind::GroupNorm { groups, eps: NORM_EPS }, &[&x], y)
    }

    /// RMS norm over the last axis. Parameter: `gamma`.
    #[track_caller]
    pub fn rms_norm(&mut self, name: &str, x: &Tensor) -> Result<Tensor> {
        let x = self.compute_in(name, x)?;
        let width = channels(&x)?;
        let y = self.layer(name, |net| {
            let gamma = net.master("gamma", [width], Init::Constant(1.0))?;
            x.rms_norm(&gamma, NORM_EPS)
        });
        self.note(name, LayerKind::RmsNorm { eps: NORM_EPS }, &[&x], y)
    }

    fn scale_and_shift(&mut self, width: usize) -> Result<(Tensor, Tensor)> {
        let gamma = self.master("gamma", [width], Init::Constant(1.0))?;
        let beta = self.master("beta", [width], Init::Constant(0.0))?;
        Ok((gamma, beta))
    }
}
