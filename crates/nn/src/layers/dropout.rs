//! Dropout. A mask depends on the seed, the step, the layer's path and the sample's index: not on what else is drawn,
//! nor on how a batch is cut in pieces. It is drawn again in the backward pass and never kept.

use plimsoll_graph::{RandomOps, Shape, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;
use crate::{LayerKind, Net};

impl Net {
    /// In training, x `[N, ..]` with a share `rate` of its elements set to 0 and the others divided by 1 - rate; else
    /// x. Samples must stand along the first axis: a mask is a sample's own.
    #[track_caller]
    pub fn dropout(&mut self, name: &str, x: &Tensor, rate: f64) -> Result<Tensor> {
        if self.drops_nothing(rate)? {
            return Ok(x.clone());
        }
        let (key, stream) = self.draw(name)?;
        let y = self.layer(name, |_| x.dropout(rate, &key, stream));
        self.note(name, LayerKind::Dropout { rate }, &[x], y)
    }

    /// Whether nothing is dropped: outside of training, or at a rate of 0.
    #[track_caller]
    fn drops_nothing(&self, rate: f64) -> Result<bool> {
        check(rate)?;
        Ok(!self.is_training() || rate == 0.0)
    }

    /// Dropout of whole channels: every position of a sample `[.., C]` has the same mask.
    #[track_caller]
    pub fn spatial_dropout(&mut self, name: &str, x: &Tensor, rate: f64) -> Result<Tensor> {
        if self.drops_nothing(rate)? {
            return Ok(x.clone());
        }
        let (key, stream) = self.draw(name)?;
        let last = x.shape().rank().saturating_sub(1);
        let mask: Shape =
            x.shape().iter().enumerate().map(|(i, &n)| if i == 0 || i == last { n } else { 1 }).collect();
        let y = self.layer(name, |_| {
            let ones = x.full_like(x.ty().with_shape(mask), 1.0)?;
            x.mul(&ones.dropout(rate, &key, stream)?)
        });
        self.note(name, LayerKind::SpatialDropout { rate }, &[x], y)
    }
}

/// Checks a rate also where nothing is dropped.
#[track_caller]
fn check(rate: f64) -> Result<()> {
    if (0.0..1.0).contains(&rate) {
        return Ok(());
    }
    Err(refuse(format!("drops a share of {rate}, which is not in 0 ≤ rate < 1")))
}
