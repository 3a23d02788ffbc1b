//! Layers as methods of a [`Net`]: each asks for its parameters and applies ops. One file a family.
//!
//! What has no parameters is a method of the tensor itself: pooling, resizing, joining.

mod activation;
mod attention;
mod conv;
mod dense;
mod dropout;
mod norm;
mod padding;
mod recurrent;

pub use activation::Activation;
pub use attention::MultiHead;
pub use conv::{Conv, Conv1d, Conv2d, Conv3d};
pub use recurrent::Recurrent;

use plimsoll_graph::TensorOps;
use plimsoll_run::{Result, Tensor};

use crate::Net;
use crate::error::refuse;

/// The length of the last axis: the channels.
#[track_caller]
pub(crate) fn channels(x: &Tensor) -> Result<usize> {
    x.shape()
        .last()
        .copied()
        .ok_or_else(|| refuse(format!("gives {} to a layer that takes channels", x.ty())))
}

impl Net {
    /// x + body(x), where `body` opens a scope of the given name.
    ///
    /// ```
    /// use plimsoll_graph::{DType, TensorOps, Type};
    /// use plimsoll_nn::{Net, model};
    /// let skip = model(|net, x| net.residual("block", &x[0], |net, x| net.dense("inner", x, 4, true)?.relu()));
    /// assert_eq!(Net::discover(&[Type::new(DType::F32, [8, 4])], &skip)?[0].name, "block/inner/weight");
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn residual(
        &mut self,
        name: &str,
        x: &Tensor,
        body: impl FnOnce(&mut Net, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let x = self.compute_in(name, x)?;
        self.scope(name, |net| {
            // A layer of the branch may compute in another precision than the block.
            let y = body(net, &x)?;
            let y = net.compute(&y)?;
            if y.shape() != x.shape() {
                let (x, y) = (x.shape(), y.shape());
                return Err(refuse(format!("adds a branch of {y} to a skip of {x}; make them alike")));
            }
            x.add(&y)
        })
    }
}
