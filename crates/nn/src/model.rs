//! What a model is: something that turns inputs into outputs with parameters from a [`Net`].

use std::sync::Arc;

use plimsoll_run::{Result, Tensor};
use smallvec::{SmallVec, smallvec};

use crate::Net;

/// A model: a function of inputs over a [`Net`].
///
/// Functions and closures over `(&mut Net, &[Tensor])` that return a tensor, a vector or an array of tensors are
/// models; so are [`crate::Sequential`] and the entries of [`crate::zoo`]. The types of a closure's arguments must be
/// written out, or the closure be wrapped in [`model`].
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Type};
/// use plimsoll_nn::{Net, model};
/// // Two outputs over one trunk.
/// let two_heads = model(|net, x| {
///     let y = net.dense("trunk", &x[0], 16, true)?.relu()?;
///     Ok([net.dense("class", &y, 10, true)?, net.dense("value", &y, 1, true)?])
/// });
/// assert_eq!(Net::discover(&[Type::new(DType::F32, [8, 4])], &two_heads)?.len(), 6);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub trait Model: Send + Sync {
    /// The outputs for some inputs. Parameters come from the net, by name.
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs>;
}

/// What a model gives: one tensor, or several.
pub struct Outputs(SmallVec<[Tensor; 1]>);

impl Outputs {
    /// The only output; an error where there are several or none.
    #[track_caller]
    pub fn one(mut self) -> Result<Tensor> {
        match (self.0.len(), self.0.pop()) {
            (1, Some(output)) => Ok(output),
            (n, _) => Err(crate::error::refuse(format!("asks a model of {n} outputs for its only one"))),
        }
    }
}

impl std::ops::Deref for Outputs {
    type Target = [Tensor];

    fn deref(&self) -> &[Tensor] {
        &self.0
    }
}

impl From<Tensor> for Outputs {
    fn from(output: Tensor) -> Outputs {
        Outputs(smallvec![output])
    }
}

impl From<Vec<Tensor>> for Outputs {
    fn from(outputs: Vec<Tensor>) -> Outputs {
        Outputs(outputs.into())
    }
}

impl<const N: usize> From<[Tensor; N]> for Outputs {
    fn from(outputs: [Tensor; N]) -> Outputs {
        Outputs(outputs.into_iter().collect())
    }
}

impl<F, O> Model for F
where
    F: Fn(&mut Net, &[Tensor]) -> Result<O> + Send + Sync,
    O: Into<Outputs>,
{
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs> {
        self(net, inputs).map(Into::into)
    }
}

impl Model for Box<dyn Model> {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs> {
        (**self).forward(net, inputs)
    }
}

impl<M: Model + ?Sized> Model for Arc<M> {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs> {
        (**self).forward(net, inputs)
    }
}

/// A closure as a model, without its arguments' types being written out.
pub fn model<O: Into<Outputs>>(f: impl Fn(&mut Net, &[Tensor]) -> Result<O> + Send + Sync) -> impl Model {
    f
}

/// The only input of a model that takes one.
#[track_caller]
pub(crate) fn one(inputs: &[Tensor]) -> Result<&Tensor> {
    match inputs {
        [x] => Ok(x),
        _ => Err(crate::error::refuse(format!("gives {} inputs to a model of one", inputs.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_two_outputs_has_no_only_one() {
        let x = Tensor::from_slice(&[1.0f32], [1]).unwrap();
        assert!(Outputs::from(x.clone()).one().is_ok());
        let error = Outputs::from(vec![x.clone(), x]).one().unwrap_err().to_string();
        assert!(error.contains("2 outputs"), "{error}");
    }
}
