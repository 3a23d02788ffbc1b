//! Which keys a query sees, where each token stands, and how that turns queries and keys.

use plimsoll_graph::{AttentionArgs, AttentionOps, DType, RotaryOps, TensorOps, Type};
use plimsoll_nn::blocks::refuse;
use plimsoll_run::{Result, Tensor};

use crate::config::Config;

/// Keys and values of tokens before those at hand.
pub(crate) trait Memory {
    /// Keys and values of a layer, those that are kept included.
    fn extended(&mut self, layer: usize, k: Tensor, v: Tensor) -> Result<(Tensor, Tensor)>;
}

/// No tokens before those at hand.
pub(crate) struct Nothing;

impl Memory for Nothing {
    fn extended(&mut self, _: usize, k: Tensor, v: Tensor) -> Result<(Tensor, Tensor)> {
        Ok((k, v))
    }
}

/// Where the tokens of a batch stand.
pub(crate) struct Sight {
    /// The position of each token within its text, f32 `[B or 1, T]`.
    positions: Tensor,
    /// The place of each token among the keys, f32 `[1, T]`.
    places: Tensor,
    /// Keys there are.
    keys: usize,
    /// The first key that each token sees, i32 `[B, T]`, where texts begin within a sequence.
    starts: Option<Tensor>,
    /// Whether queries are the last of the keys, all of them filled.
    is_whole: bool,
    /// Sines and cosines for each of the config's ropes, `[B or 1, T, 1, pairs]`.
    turns: Vec<[Tensor; 2]>,
    dtype: DType,
}

impl Sight {
    /// The tokens `[B, T]` of whole sequences, with positions `[B, T]` where several texts are packed into one.
    pub(crate) fn of_batch(
        config: &Config,
        tokens: &Tensor,
        positions: Option<&Tensor>,
        dtype: DType,
    ) -> Result<Sight> {
        let [_, length] = tokens.shape()[..] else {
            return Err(refuse(format!("gives tokens of {}; they are [B, T]", tokens.ty())));
        };
        if length > config.context {
            return Err(refuse(format!(
                "gives sequences of {length} tokens to a model that has {} positions",
                config.context
            )));
        }
        let places = tokens.iota_like(Type::new(DType::F32, [1, length]), 1)?;
        let own = match positions {
            Some(positions) if positions.shape() != tokens.shape() => {
                return Err(refuse(format!(
                    "gives positions of {} to tokens of {}",
                    positions.ty(),
                    tokens.ty()
                )));
            }
            Some(positions) => positions.cast(DType::F32)?,
            None => places.clone(),
        };
        let turns = turns(config, &own, length, dtype)?;
        let starts = positions.map(|_| places.sub(&own)?.cast(DType::I32)).transpose()?;
        Ok(Sight { positions: own, places, keys: length, starts, is_whole: true, turns, dtype })
    }

    /// Tokens `[B, T]` that follow `before` (a number, f32 `[]`) others, whose keys are kept among `keys` places.
    pub(crate) fn of_next(
        config: &Config,
        tokens: &Tensor,
        before: &Tensor,
        keys: usize,
        dtype: DType,
    ) -> Result<Sight> {
        let length = tokens.shape()[1];
        let places = tokens.iota_like(Type::new(DType::F32, [1, length]), 1)?.add(before)?;
        let turns = turns(config, &places, keys, dtype)?;
        Ok(Sight { positions: places.clone(), places, keys, starts: None, is_whole: false, turns, dtype })
    }

    /// The positions as rows of a table.
    pub(super) fn indices(&self) -> Result<Tensor> {
        self.positions.cast(DType::I64)
    }

    /// Queries or keys `[B, T, heads, features]` as their positions turn them.
    pub(super) fn turned(&self, x: &Tensor, rope: Option<usize>) -> Result<Tensor> {
        let Some([sin, cos]) = rope.and_then(|rope| self.turns.get(rope)) else { return Ok(x.clone()) };
        x.rotary(sin, cos)
    }

    /// What queries see of keys and values, as weighed means. Whole sequences need no mask: what is hidden follows from places alone.
    pub(super) fn attended(
        &self,
        [q, k, v]: [&Tensor; 3],
        window: Option<usize>,
        scale: f64,
        cap: Option<f64>,
    ) -> Result<Tensor> {
        let (scale, window) = (Some(scale), window.filter(|window| *window < self.keys));
        if self.is_whole {
            let starts = self.starts.as_ref();
            let args = AttentionArgs { causal: true, scale, starts, window, cap, ..AttentionArgs::default() };
            return q.attention_with(k, v, &args);
        }
        let hidden = self.mask(window)?;
        q.attention_with(k, v, &AttentionArgs { scale, mask: Some(&hidden), cap, ..AttentionArgs::default() })
    }

    /// What is added to scores so that all is hidden that is not to be seen, `[B or 1, 1, T, keys]`.
    pub(super) fn mask(&self, window: Option<usize>) -> Result<Tensor> {
        let (rows, columns) = (self.places.shape()[1], self.keys);
        let keys = self.places.iota_like(Type::new(DType::F32, [1, 1, 1, columns]), 3)?;
        let column = |x: &Tensor| {
            let batch = x.shape()[0];
            x.reshape([batch, 1, rows, 1])
        };
        let places = column(&self.places)?;
        let mut seen = keys.less_equal(&places)?;
        if self.starts.is_some() {
            seen = seen.and(&keys.greater_equal(&places.sub(&column(&self.positions)?)?)?)?;
        }
        if let Some(window) = window.filter(|window| *window < columns) {
            seen = seen.and(&keys.greater(&places.add_scalar(-(window as f64))?)?)?;
        }
        let of = |value: f64| seen.full_like(Type::new(self.dtype, []), value);
        seen.select(&of(0.0)?, &of(f64::NEG_INFINITY)?)
    }
}

/// Sines and cosines of positions `[B or 1, T]` for each of a config's ropes.
fn turns(config: &Config, positions: &Tensor, length: usize, dtype: DType) -> Result<Vec<[Tensor; 2]>> {
    let [b, t] = [positions.shape()[0], positions.shape()[1]];
    let column = positions.reshape([b, t, 1, 1])?;
    let turn = |rope: &crate::rope::Rope| {
        let (angles, scale) = rope.angles(length);
        let angles = column.mul(&Tensor::from_slice(&angles, [angles.len()])?)?;
        let of = |x: Tensor| if scale == 1.0 { x.cast(dtype) } else { x.mul_scalar(scale)?.cast(dtype) };
        Ok([of(angles.sin()?)?, of(angles.cos()?)?])
    };
    config.ropes.iter().map(turn).collect()
}
