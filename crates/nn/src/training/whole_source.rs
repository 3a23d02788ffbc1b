//! Turns the parts that ranks have of a training's state into whole values, for whoever writes them one after the other.

use std::io;

use super::OfRanks;

/// What gives the bytes of a part of the state, all of it.
pub trait WholeSource {
    /// All bytes of a part, whatever this rank has of it.
    fn bytes(&self, part: &OfRanks<'_>) -> io::Result<Vec<u8>>;
}

/// The state of a rank that has all of it.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// use plimsoll_nn::{OwnState, Recipe, Sgd, Training, WholeSource, model};
/// let (x, y) = (Type::new(DType::F32, [4, 2]), Type::new(DType::I64, [4]));
/// let model = model(|net, x| net.dense("out", &x[0], 2, false));
/// let training = Training::new(model, Recipe::cross_entropy(Sgd::new(0.5), x, y), 42)?;
/// let part = training.whole_state().next().expect("there is a weight");
/// assert_eq!(OwnState.bytes(&part)?.len(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OwnState;

impl WholeSource for OwnState {
    fn bytes(&self, part: &OfRanks<'_>) -> io::Result<Vec<u8>> {
        match part.pieces {
            None => part.own.to_bytes().map_err(io::Error::other),
            Some(_) => Err(io::Error::other(format!(
                "no rank has all of {}, so that none writes it by itself; all of them have to hand their parts",
                part.name
            ))),
        }
    }
}
