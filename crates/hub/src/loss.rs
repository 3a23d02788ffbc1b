//! The loss of tokens: from features and the output layer, not from logits, which need never be there at once.

use plimsoll_graph::{FrozenCrossEntropyOps, LinearCrossEntropyOps, TensorOps};
use plimsoll_nn::Loss;
use plimsoll_nn::blocks::refuse;
use plimsoll_run::{Result, Tensor};

/// The weighted cross-entropy of tokens: the sum of weight · loss over the tokens of a sample, then the mean over samples.
///
/// Outputs: features `[B, T, C]` and the output layer `[V, C]`. Labels: the tokens that should follow `[B, T]`, and weights `[B, T]`; or one
/// label a sample, `[B]`, where T is 1.
/// With weights B / n, where n tokens of the batch count, it is the mean over those, as transformers has it; and a batch that is run
/// in pieces has the gradient of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenLoss {
    /// c, where logits are c · tanh(x / c).
    pub logit_cap: Option<f64>,
    /// Whether the output layer is not trained: then the gradient of the features is made together with the loss, from the same logits.
    pub is_frozen: bool,
}

impl TokenLoss {
    fn of(&self, outputs: &[Tensor], labels: &[Tensor], trains: bool) -> Result<Tensor> {
        let ([features, head], [next, weights @ ..]) = (outputs, labels) else {
            return Err(refuse(format!(
                "gives {} outputs and {} labels to the loss of tokens, which takes two and two",
                outputs.len(),
                labels.len()
            )));
        };
        let losses = |next: &Tensor| match trains && self.is_frozen && self.logit_cap.is_none() {
            true => features.frozen_cross_entropy(head, next),
            false => features.linear_cross_entropy(head, next, self.logit_cap),
        };
        let Some(weights) = weights.first() else {
            return losses(&next.reshape([next.shape()[0], 1])?)?.mean(&[], false);
        };
        let losses = losses(next)?;
        losses.mul(&weights.cast(losses.dtype())?)?.sum(&[1], false)?.mean(&[], false)
    }
}

impl Loss for TokenLoss {
    fn loss(&self, outputs: &[Tensor], labels: &[Tensor]) -> Result<Tensor> {
        self.of(outputs, labels, false)
    }

    fn to_train(&self, outputs: &[Tensor], labels: &[Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
        Ok((self.of(outputs, labels, true)?, Vec::new()))
    }
}
