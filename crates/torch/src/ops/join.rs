//! Several tensors as one, and lines as grids.

use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::elementwise::converted;
use super::{Table, Values, one, several};
use crate::call::{Call, axis};
use crate::error::refuse;

pub(super) const OPS: Table = &[
    ("aten.cat.default", |c| {
        let all = c.laids("tensors")?;
        // An empty vector joins with anything.
        let all: Vec<Laid> = all.into_iter().filter(|x| x.shape()[..] != [0]).collect();
        let rank = all.first().map_or(1, Laid::rank);
        let at = c.axis("dim", rank)?;
        let out = c.out_dtype(0)?;
        one(joined(&all, at, out)?)
    }),
    ("aten.stack.default", |c| {
        let all = c.laids("tensors")?;
        let rank = all.first().map_or(0, Laid::rank);
        let (at, out) = (axis(c.int("dim")?, rank + 1)?, c.out_dtype(0)?);
        let wide = |x: &Laid| {
            let mut shape = x.shape().to_vec();
            shape.insert(at, 1);
            x.reshape(shape)
        };
        let all = all.iter().map(wide).collect::<Result<Vec<Laid>>>()?;
        one(joined(&all, at, out)?)
    }),
    ("aten.meshgrid.default", |c| meshgrid(c, false)),
    ("aten.meshgrid.indexing", |c| {
        let is_xy = c.text("indexing")? == "xy";
        meshgrid(c, is_xy)
    }),
];

/// Joined along an axis, in the order in which the first lies.
pub(crate) fn joined(all: &[Laid], at: usize, out: DType) -> Result<Laid> {
    let Some(first) = all.iter().max_by_key(|x| x.shape().elements()) else {
        return Err(refuse("joins nothing"));
    };
    let order = first.order().to_vec();
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
    let same = |x: &Laid| -> Result<Tensor> {
        if x.rank() != order.len() {
            return Err(refuse("joins tensors of other ranks"));
        }
        converted(&x.in_order(&back)?, out)
    };
    let tensors = all.iter().map(same).collect::<Result<Vec<Tensor>>>()?;
    let lying = order[at] as isize;
    Ok(Laid::ordered(Tensor::concat(&tensors.iter().collect::<Vec<_>>(), lying)?, &order))
}

fn meshgrid(c: &mut Call<'_, '_>, is_xy: bool) -> Values {
    let mut all = c.laids("tensors")?;
    if is_xy && all.len() >= 2 {
        all.swap(0, 1);
    }
    let lengths: Vec<usize> = all.iter().map(|x| x.shape().elements()).collect();
    let grid = |(i, x): (usize, &Laid)| -> Result<Tensor> {
        let mut shape = vec![1; lengths.len()];
        shape[i] = lengths[i];
        x.plain()?.reshape(shape)?.broadcast(&lengths[..])
    };
    let mut grids = all.iter().enumerate().map(grid).collect::<Result<Vec<Tensor>>>()?;
    if is_xy && grids.len() >= 2 {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.swap(0, 1);
        grids = grids.iter().map(|grid| grid.transpose(&order)).collect::<Result<_>>()?;
        grids.swap(0, 1);
    }
    several(grids)
}
