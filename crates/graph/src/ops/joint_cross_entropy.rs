//! A linear layer with cross-entropy whose losses and gradients are made at once: the logits are made once for both.
//!
//! Nobody traces it: where a loss and its gradient are in one graph, and the gradient of each loss is known before the losses are, a pass
//! ([`join_losses`](crate::passes::join_losses)) puts it in their place. Its bits are theirs.

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Rule, Types, traffic};
use crate::ops::linear_cross_entropy::cases;
use crate::ops::{LinearCrossEntropy, LinearCrossEntropyGrad};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{Scalar, Type, ops};

/// What [`LinearCrossEntropy`] and [`LinearCrossEntropyGrad`] make one after the other. Inputs: x `[.., C]`, w `[V, C]`, labels `[..]`, dloss `[..]`.
/// Outputs: loss, then dx where it is wanted, then dw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JointCrossEntropy {
    /// c, where logits are c · tanh(x wᵀ / c).
    pub cap: Option<Scalar>,
    /// Whether dx is wanted.
    pub dx: bool,
}

impl JointCrossEntropy {
    /// The op of the losses, and that of the gradients.
    pub fn apart(&self) -> (LinearCrossEntropy, LinearCrossEntropyGrad) {
        (
            LinearCrossEntropy { cap: self.cap },
            LinearCrossEntropyGrad { cap: self.cap, dx: self.dx, dw: true },
        )
    }
}

impl Rule for JointCrossEntropy {
    const NAME: &'static str = "joint_cross_entropy";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, w, labels, dloss] = ops::arity(inputs)?;
        let (losses, gradients) = self.apart();
        let [loss, lse] = &losses.infer(&[x, w, labels])?[..] else { unreachable!("a loss and its log-sum") };
        let mut types = gradients.infer(&[x, w, labels, lse, dloss])?;
        types.insert(0, loss.clone());
        Ok(types)
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        self.apart().0.keeps_apart(along)
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let products = 2.0 + f64::from(u8::from(self.dx));
        let logits = inputs[1].shape[0] as f64 * inputs[2].elements() as f64;
        Cost {
            flops: logits * (2.0 * products * inputs[1].shape[1] as f64 + 20.0),
            bytes: traffic(inputs, outputs),
        }
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient(
            "it holds gradients already, and those of a linear layer with cross-entropy are not differentiated; use linear_cross_entropy",
        ))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (losses, gradients) = self.apart();
        let made = losses.reference(&inputs[..3], &[outputs[0].clone(), outputs[0].clone()]);
        let of = [inputs[0], inputs[1], inputs[2], &made[1], inputs[3]];
        let grads = gradients.reference(&of, &outputs[1..]);
        std::iter::once(made[0].clone()).chain(grads).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for (i, (cap, mut inputs)) in cases(dice).into_iter().enumerate() {
            let dloss = Type::new(inputs[0].0.dtype.accumulator(), &inputs[2].0.shape[..]);
            inputs.push((dloss, Domain::Normal));
            examples.push(Example::new(JointCrossEntropy { cap, dx: i != 2 }, inputs).wide(0b1000));
        }
        examples
    }
}
