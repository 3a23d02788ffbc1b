//! Bags of words: rows of a table, put together bag by bag.

use plimsoll_graph::{DType, GatherOps, GradientOps, IndexPutOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::index::{SPARSE, by_frequency, largest_along};
use super::{Table, one};
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const OPS: Table = &[
    ("aten.embedding_bag.default", |c| bags(c, None)),
    ("aten.embedding_bag.padding_idx", |c| {
        let padding = c.opt_int("padding_idx")?;
        bags(c, padding)
    }),
    ("aten._embedding_bag.default", |c| {
        let padding = c.int("padding_idx")?;
        bags(c, (padding >= 0).then_some(padding))
    }),
];

fn bags(c: &mut Call<'_, '_>, padding: Option<i64>) -> Result<Vec<Value>> {
    let (table, places, starts) = (c.tensor("weight")?, c.tensor("indices")?, c.tensor("offsets")?);
    let (mode, shares) = (c.int("mode")?, c.opt_tensor("per_sample_weights")?);
    if c.flag("sparse")? {
        return Err(refuse(SPARSE));
    }
    let ranks = [&table, &places, &starts].map(|x| x.shape().rank());
    if ranks != [2, 1, 1] {
        return Err(refuse("puts bags together of words that are no list; give one list with offsets"));
    }
    let (count, width) = (places.shape()[0], table.shape()[1]);
    let starts = starts.cast(DType::I64)?;
    let starts = if c.flag("include_last_offset")? {
        starts.narrow(0, 0, starts.shape()[0].saturating_sub(1))?
    } else {
        starts
    };
    let bags = starts.shape()[0];
    // The bag of a word is the last that starts at or before it.
    let own = places.iota_like(Type::new(DType::I64, [count, 1]), 0)?;
    let begun = own.greater_equal(&starts.reshape([1, bags])?)?;
    let bag = begun.cast(DType::I64)?.sum(&[1], false)?.add_scalar(-1.0)?;
    let mut rows = table.gather(&places, 0)?;
    if c.flag("scale_grad_by_freq")? {
        rows = by_frequency(&table, &places, &rows)?;
    }
    if mode == 2 {
        return one(largest(&rows, &places, &bag, bags, padding)?);
    }
    let mut counts = c.full(table.dtype(), [count, 1], 1.0)?;
    if let Some(padding) = padding {
        let is_padding = places.equal(&places.full_like(Type::new(places.dtype(), []), padding as f64)?)?;
        let zero = c.full(table.dtype(), [], 0.0)?;
        let is_padding = is_padding.reshape([count, 1])?;
        rows = is_padding.select(&zero, &rows)?;
        counts = is_padding.select(&zero, &counts)?;
    }
    if let Some(shares) = shares {
        rows = rows.mul(&shares.reshape([count, 1])?)?;
    }
    let sums = c.full(table.dtype(), [bags, width], 0.0)?.index_add(&bag, &rows, 0)?;
    if mode == 0 {
        return one(sums);
    }
    let words = c.full(table.dtype(), [bags, 1], 0.0)?.index_add(&bag, &counts, 0)?;
    // A bag without words is 0.
    let least = c.full(table.dtype(), [], 1.0)?;
    one(sums.div(&words.stop_gradient()?.maximum(&least)?)?)
}

/// The largest of each bag, column by column; a bag without words is 0.
fn largest(
    rows: &Tensor,
    places: &Tensor,
    bag: &Tensor,
    bags: usize,
    padding: Option<i64>,
) -> Result<Tensor> {
    let (count, width) = (places.shape()[0], rows.shape()[1]);
    let scalar = |like: &Tensor, value: f64| like.full_like(Type::new(like.dtype(), []), value);
    // Words that stand for padding go to a bag that is cut off.
    let bag = match padding {
        None => bag.clone(),
        Some(padding) => {
            let is_padding = places.equal(&scalar(places, padding as f64)?)?;
            is_padding.select(&scalar(bag, bags as f64)?, bag)?
        }
    };
    let all = rows.full_like(Type::new(rows.dtype(), [bags + 1, width]), 0.0)?;
    let bag = bag.reshape([count, 1])?.broadcast([count, width])?;
    largest_along(&all, &bag, rows, 0, false)?.narrow(0, 0, bags)
}
