//! Rows, sorted by expert, each times the matrix of its expert.
//!
//! How many rows an expert has is known only when it runs: every expert multiplies all rows, of which those of others are 0. That takes as
//! many times the work as there are experts.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::{Table, one};
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const OPS: Table = &[
    ("transformers.grouped_mm_fallback.default", |c| {
        let (x, w, ends) = (c.tensor("input")?, c.tensor("weight")?, c.tensor("offs")?);
        grouped(c, &x, &w, &ends)
    }),
    ("aten._grouped_mm.default", |c| {
        let (x, w, ends) = (c.tensor("self")?, c.tensor("mat2")?, c.tensor("offs")?);
        let _ = c.value("out_dtype");
        if c.opt_tensor("bias")?.is_some() {
            return Err(refuse("adds a bias by group, which is not known here"));
        }
        grouped(c, &x, &w, &ends)
    }),
];

fn grouped(c: &Call<'_, '_>, x: &Tensor, w: &Tensor, ends: &Tensor) -> Result<Vec<Value>> {
    let (&[rows, _], &[experts, inputs, outputs], &[given]) =
        (&x.shape()[..], &w.shape()[..], &ends.shape()[..])
    else {
        return Err(refuse("takes rows [S, K], matrices [E, K, N] and where each expert's rows end"));
    };
    if given != experts {
        return Err(refuse(format!("says of {given} experts where their rows end, and has {experts}")));
    }
    let ends = ends.cast(DType::I64)?;
    let row = x.iota_like(Type::new(DType::I64, [rows, 1]), 0)?;
    let end = |expert: usize| ends.narrow(0, expert, expert + 1)?.reshape([1, 1]);
    let zero = c.full(x.dtype(), [], 0.0)?;
    let mut sum: Option<Tensor> = None;
    for expert in 0..experts {
        let mut own = row.less(&end(expert)?)?;
        if expert > 0 {
            own = own.and(&row.greater_equal(&end(expert - 1)?)?)?;
        }
        let matrix = w.narrow(0, expert, expert + 1)?.reshape([inputs, outputs])?;
        let y = own.select(x, &zero)?.matmul(&matrix)?;
        sum = Some(match sum {
            Some(sum) => sum.add(&y)?,
            None => y,
        });
    }
    one(sum.ok_or_else(|| refuse("has no experts"))?.cast(c.out_dtype(0)?)?)
}
