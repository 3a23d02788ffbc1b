//! Padding: which places of sequences are filled, for layers that must not read the others.
//!
//! A batch of sequences of several lengths is filled up with zeros to one length. Places are filled from the front of each sequence on.

use plimsoll_graph::{DType, GatherOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::Net;
use crate::error::refuse;

impl Net {
    /// Runs `body` over sequences of which some places are padding: `filled` is `bool[B, T]`, true where a sequence has something, from
    /// its front on. [`Net::lstm`] and [`Net::gru`] give the output at the last filled place and read backwards from there,
    /// [`Net::self_attention`] does not look at padding, [`Net::mean_over_time`] leaves it out. Layers that would mix padding into
    /// what is filled are errors. What layers give at padding means nothing.
    ///
    /// ```
    /// use plimsoll_graph::{DType, TensorOps, Type};
    /// use plimsoll_nn::{Net, Recurrent, model};
    /// let reader = model(|net, x| {
    ///     // Id 0 is padding.
    ///     let filled = x[0].not_equal(&x[0].full_like(x[0].ty().clone(), 0.0)?)?;
    ///     let words = net.embedding("words", &x[0], 100, 8)?;
    ///     net.padded(&filled, |net| net.lstm("lstm", &words, Recurrent::last(16)))
    /// });
    /// let found = Net::discover(&[Type::new(DType::I64, [4, 12])], &reader)?;
    /// assert_eq!(found[1].name, "lstm/input_weight");
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn padded<T>(&mut self, filled: &Tensor, body: impl FnOnce(&mut Net) -> Result<T>) -> Result<T> {
        if filled.dtype() != DType::Bool || filled.shape().rank() != 2 {
            return Err(refuse(format!("says by {} what is filled; give bool[B, T]", filled.ty())));
        }
        let outer = self.replace_filled(Some(filled.clone()));
        let result = body(self);
        self.replace_filled(outer);
        result
    }

    /// The mean over the places of sequences `[B, T, C]`; of the filled ones alone inside of [`Net::padded`].
    #[track_caller]
    pub fn mean_over_time(&mut self, name: &str, x: &Tensor) -> Result<Tensor> {
        let filled = self.filled_of(x)?;
        // One output a sequence: there is no padding behind it.
        self.replace_filled(None);
        self.layer(name, |_| {
            let Some(filled) = filled else { return x.mean(&[1], false) };
            let [b, t] = [x.shape()[0], x.shape()[1]];
            let nothing = x.full_like(x.ty().clone(), 0.0)?;
            let shown = filled.reshape([b, t, 1])?.broadcast(x.shape().clone())?;
            let sum = shown.select(x, &nothing)?.sum(&[1], false)?;
            // What is empty has a mean of 0.
            let ones = x.full_like(Type::new(DType::F32, [b, 1]), 1.0)?;
            let count = lengths(&filled)?.cast(DType::F32)?.reshape([b, 1])?.maximum(&ones)?;
            sum.div(&count.cast(x.dtype())?)
        })
    }

    /// Which places of a sequence `[B, T, ..]` are filled, where some are not.
    #[track_caller]
    pub(crate) fn filled_of(&self, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(filled) = self.filled() else { return Ok(None) };
        if x.shape().rank() < 2 || x.shape()[..2] != filled.shape()[..] {
            let what = filled.ty();
            return Err(refuse(format!("gives {} to a layer while {what} says what is filled", x.ty())));
        }
        Ok(Some(filled.clone()))
    }

    /// What a layer over sequences reads: them, and what is filled of them where that is not all.
    pub(crate) fn read(&self, x: &Tensor) -> Vec<Tensor> {
        std::iter::once(x).chain(self.filled()).cloned().collect()
    }

    /// Refuses a layer that would mix padding into what is filled.
    #[track_caller]
    pub(crate) fn refuse_padding(&self, layer: &str) -> Result<()> {
        match self.filled() {
            None => Ok(()),
            Some(_) => Err(refuse(format!(
                "gives sequences with padding to {layer}, which does not tell padding from what is filled; use it behind a layer that \
                 gives one output a sequence (a recurrent layer's last, mean_over_time), or on sequences of one length"
            ))),
        }
    }
}

/// How many places of each sequence are filled, `i64[B]`.
pub(super) fn lengths(filled: &Tensor) -> Result<Tensor> {
    filled.cast(DType::I64)?.sum(&[1], false)
}

/// The output at the last filled place of each sequence: `[B, T, C]` becomes `[B, C]`. Of an empty one, that at the first place.
pub(super) fn last_filled(all: &Tensor, filled: &Tensor) -> Result<Tensor> {
    let [b, _, c] = [all.shape()[0], all.shape()[1], all.shape()[2]];
    let first = all.full_like(Type::new(DType::I64, [b]), 0.0)?;
    let last = lengths(filled)?.add_scalar(-1.0)?.maximum(&first)?;
    let last = last.cast(DType::I32)?.reshape([b, 1, 1])?.broadcast([b, 1, c])?;
    all.take_along(&last, 1)?.reshape([b, c])
}

/// The filled places of each sequence from the last to the first, padding where it was.
pub(super) fn reversed_filled(x: &Tensor, filled: &Tensor) -> Result<Tensor> {
    let [b, t, c] = [x.shape()[0], x.shape()[1], x.shape()[2]];
    let place = x.iota_like(Type::new(DType::I64, [b, t]), 1)?;
    let length = lengths(filled)?.reshape([b, 1])?.broadcast([b, t])?;
    let order = filled.select(&length.add_scalar(-1.0)?.sub(&place)?, &place)?;
    x.take_along(&order.cast(DType::I32)?.reshape([b, t, 1])?.broadcast([b, t, c])?, 1)
}

/// What is added to the scores of attention `[B, H, Tq, Tk]`, so that nobody looks at padding: `[B, 1, 1, Tk]`.
pub(super) fn hidden_keys(filled: &Tensor, dtype: DType) -> Result<Tensor> {
    let [b, t] = [filled.shape()[0], filled.shape()[1]];
    // The least that f16 has, about: an infinity would make an empty sequence no number.
    let far = if dtype == DType::F16 { -6e4 } else { -1e9 };
    filled.cast(DType::F32)?.rsub_scalar(1.0)?.mul_scalar(far)?.cast(dtype)?.reshape([b, 1, 1, t])
}
