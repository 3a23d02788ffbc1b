//! Activations by name.

use plimsoll_graph::{SoftmaxOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::{LayerKind, Net};

/// Parameters of the self-normalising activation, after Klambauer and others (2017).
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// A function of one element, or of one row.
///
/// ```
/// use plimsoll_nn::Activation;
/// use plimsoll_run::Tensor;
/// let x = Tensor::from_slice(&[-1.0f32, 9.0], [2])?;
/// assert_eq!(Activation::Relu6.apply(&x)?.to_vec::<f32>()?, [0.0, 6.0]);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// max(x, 0)
    Relu,
    /// x held between 0 and 6
    Relu6,
    /// x where x > 0, else this much of it
    LeakyRelu(f64),
    /// x where x > 0, else α (e^x - 1)
    Elu(f64),
    /// The scaled elu that keeps mean 0 and variance 1
    Selu,
    /// x Φ(x)
    Gelu,
    /// gelu by its tanh approximation
    GeluTanh,
    /// x · sigmoid(x)
    Silu,
    /// x · tanh(softplus(x))
    Mish,
    /// 1/(1+e^-x)
    Sigmoid,
    /// x / 6 + ½, held between 0 and 1
    HardSigmoid,
    /// x · hard_sigmoid(x)
    HardSwish,
    /// tanh x
    Tanh,
    /// ln(1 + e^x)
    Softplus,
    /// x / (1 + |x|)
    Softsign,
    /// e^x / Σ e^x along the last axis
    Softmax,
}

impl Activation {
    /// The activation of a tensor.
    #[track_caller]
    pub fn apply(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Relu => x.relu(),
            Activation::Relu6 => x.clamp(0.0, 6.0),
            Activation::LeakyRelu(slope) => x.leaky_relu(slope),
            Activation::Elu(alpha) => elu(x, alpha),
            Activation::Selu => elu(x, SELU_ALPHA)?.mul_scalar(SELU_SCALE),
            Activation::Gelu => x.gelu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::Silu => x.silu(),
            Activation::Mish => x.mul(&x.softplus()?.tanh()?),
            Activation::Sigmoid => x.sigmoid(),
            Activation::HardSigmoid => hard_sigmoid(x),
            Activation::HardSwish => x.mul(&hard_sigmoid(x)?),
            Activation::Tanh => x.tanh(),
            Activation::Softplus => x.softplus(),
            Activation::Softsign => x.div(&x.abs()?.add_scalar(1.0)?),
            Activation::Softmax => x.softmax(-1),
        }
    }
}

fn hard_sigmoid(x: &Tensor) -> Result<Tensor> {
    x.mul_scalar(1.0 / 6.0)?.add_scalar(0.5)?.clamp(0.0, 1.0)
}

/// The exponential sees only what is not above 0: the branch that is not taken must not overflow into the gradient.
fn elu(x: &Tensor, alpha: f64) -> Result<Tensor> {
    let zero = x.full_like(Type::new(x.dtype(), []), 0.0)?;
    let below = x.minimum(&zero)?.exp()?.add_scalar(-1.0)?.mul_scalar(alpha)?;
    x.greater(&zero)?.select(x, &below)
}

impl Net {
    /// An activation as a layer, with a name.
    #[track_caller]
    pub fn activation(&mut self, name: &str, x: &Tensor, f: Activation) -> Result<Tensor> {
        let y = self.layer(name, |_| f.apply(x));
        self.note(name, LayerKind::Activation(f), &[x], y)
    }
}
