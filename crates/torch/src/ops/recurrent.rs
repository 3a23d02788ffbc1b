//! LSTM, GRU and plain recurrent layers, of several levels and both directions.

use plimsoll_graph::{RandomOps, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_nn::blocks::recurrent::{Cell, Weights, level};
use plimsoll_run::{Result, Tensor};

use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const OPS: Table = &[
    ("aten.lstm.input", |c| layers(c, Cell::Lstm)),
    ("aten.gru.input", |c| layers(c, Cell::Gru)),
    ("aten.rnn_tanh.input", |c| layers(c, Cell::Tanh)),
    ("aten.rnn_relu.input", |c| layers(c, Cell::Relu)),
    ("aten.lstm_cell.default", |c| {
        let state = c.laids("hx")?;
        let [h, cell] = &state[..] else { return Err(refuse("gives an LSTM other than two states")) };
        let (_, h, cell) = single(c, Cell::Lstm, &h.plain()?, Some(&cell.plain()?))?;
        let cell = cell.ok_or_else(|| refuse("has no cell"))?;
        Ok(vec![h.into(), cell.into()])
    }),
    ("aten.gru_cell.default", |c| {
        let h = c.tensor("hx")?;
        let (_, h, _) = single(c, Cell::Gru, &h, None)?;
        one(h)
    }),
];

/// Weights of gates are read as `[inputs, gates]`: then they are stored so.
pub(super) fn read_order(op: &str, argument: &str, rank: usize, listed: bool) -> Option<Vec<usize>> {
    let is_layer =
        matches!(op, "aten.lstm.input" | "aten.gru.input" | "aten.rnn_tanh.input" | "aten.rnn_relu.input");
    let is_cell = matches!(op, "aten.lstm_cell.default" | "aten.gru_cell.default");
    let is_weight =
        (is_layer && argument == "params" && listed) || (is_cell && matches!(argument, "w_ih" | "w_hh"));
    match (is_weight || (is_cell && argument.starts_with("b_")), rank) {
        (true, 2) => Some(vec![1, 0]),
        (true, 1) => Some(vec![0]),
        _ => None,
    }
}

fn weights(all: &[Laid]) -> Result<Weights> {
    let matrix = |x: &Laid| x.in_order(&[1, 0]);
    let bias = |at: usize| all.get(at).map(Laid::plain).transpose();
    let [w, u, ..] = all else { return Err(refuse("gives too few weights")) };
    Ok(Weights { w: matrix(w)?, u: matrix(u)?, bias: bias(2)?, bias_u: bias(3)? })
}

/// One step of one cell.
fn single(
    c: &Call<'_, '_>,
    cell: Cell,
    h: &Tensor,
    state: Option<&Tensor>,
) -> Result<(Tensor, Tensor, Option<Tensor>)> {
    let x = c.tensor("input")?;
    let all = [c.opt_laid("w_ih")?, c.opt_laid("w_hh")?, c.opt_laid("b_ih")?, c.opt_laid("b_hh")?];
    let all: Vec<Laid> = all.into_iter().flatten().collect();
    let &[b, n] = &x.shape()[..] else { return Err(refuse("runs a cell on other than [B, I]")) };
    level(cell, &x.reshape([b, 1, n])?, &weights(&all)?, h, state, false)
}

fn layers(c: &mut Call<'_, '_>, cell: Cell) -> Values {
    let (x, params) = (c.laid("input")?, c.laids("params")?);
    let (has_biases, levels, rate) = (c.flag("has_biases")?, c.size("num_layers")?, c.float("dropout")?);
    let (train, both, batch_first) = (c.flag("train")?, c.flag("bidirectional")?, c.flag("batch_first")?);
    let states: Vec<Laid> = match cell {
        Cell::Lstm => c.laids("hx")?,
        _ => vec![c.laid("hx")?],
    };
    let is_single = x.rank() == 2;
    let x = if is_single {
        let s = x.shape();
        let shape = if batch_first { [1, s[0], s[1]] } else { [s[0], 1, s[1]] };
        x.reshape(shape)?
    } else {
        x
    };
    let mut y = if batch_first { x.plain()? } else { x.in_order(&[1, 0, 2])? };
    let batch = y.shape()[0];
    let (per, ways) = (if has_biases { 4 } else { 2 }, if both { 2 } else { 1 });
    if params.len() != levels * ways * per {
        return Err(refuse(format!("gives {} weights; projections are not known here", params.len())));
    }
    // States are [levels · ways, B, H].
    let state = |which: usize, at: usize| -> Result<Option<Tensor>> {
        let Some(all) = states.get(which) else { return Ok(None) };
        let one = super::cut::selected(all, 0, at)?.plain()?;
        let width = one.shape().last().copied().unwrap_or(0);
        one.reshape([batch, width]).map(Some)
    };
    let (mut last, mut cells) = (Vec::new(), Vec::new());
    for n in 0..levels {
        if n > 0 && rate > 0.0 && train && c.net.is_training() {
            let (key, stream) = c.draw()?;
            y = y.dropout(rate, &key, stream)?;
        }
        let mut outputs = Vec::new();
        for way in 0..ways {
            let at = n * ways + way;
            let own = weights(&params[at * per..(at + 1) * per])?;
            let h0 = state(0, at)?.ok_or_else(|| refuse("gives no first state"))?;
            let (every, h, cell_state) = level(cell, &y, &own, &h0, state(1, at)?.as_ref(), way == 1)?;
            outputs.push(every);
            let wide = |t: Tensor| {
                let s = t.shape().to_vec();
                t.reshape([1, s[0], s[1]])
            };
            last.push(wide(h)?);
            if let Some(cell_state) = cell_state {
                cells.push(wide(cell_state)?);
            }
        }
        y = match &outputs[..] {
            [only] => only.clone(),
            several => Tensor::concat(&several.iter().collect::<Vec<_>>(), 2)?,
        };
    }
    let y = if batch_first { Laid::from(y) } else { Laid::ordered(y, &[1, 0, 2]) };
    let joined = |all: &[Tensor]| Tensor::concat(&all.iter().collect::<Vec<_>>(), 0);
    let squeezed = |x: Laid, at: usize| -> Result<Laid> {
        let mut shape = x.shape().to_vec();
        if is_single {
            shape.remove(at);
        }
        x.reshape(shape)
    };
    let y = squeezed(y, if batch_first { 0 } else { 1 })?;
    let mut results: Vec<Value> = vec![y.into(), squeezed(joined(&last)?.into(), 1)?.into()];
    if cell == Cell::Lstm {
        results.push(squeezed(joined(&cells)?.into(), 1)?.into());
    }
    Ok(results)
}
