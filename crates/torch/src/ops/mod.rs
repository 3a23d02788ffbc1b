//! What each op of PyTorch means in ops of ours: one table a family, each op by its full name.
//!
//! Ops are kept whole where the engine has a kernel for them and composed otherwise. Arguments are read by name; one that nobody reads is
//! an error (`Call::finish`). Element types of results are those that the program says.

mod angle;
mod attention;
mod bag;
mod compare;
pub(crate) mod complex;
mod conv;
mod create;
mod cut;
mod einsum;
mod elementwise;
mod experts;
mod fourier;
mod held;
mod index;
pub(crate) mod join;
mod linear;
mod loss;
mod norm;
mod pad;
mod pool;
mod pool_large;
mod pool_places;
mod random;
mod rank;
mod recurrent;
mod reduce;
mod resize;
mod shape;
mod symbolic;
mod windows;

use std::sync::LazyLock;

use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};
use rustc_hash::FxHashMap;

use crate::call::Call;
use crate::program::{Program, short};
use crate::schema::{Argument, Graph, Node};
use crate::value::Value;
use crate::walk::described;

/// What an op gives.
pub(crate) type Values = Result<Vec<Value>>;

/// What computes an op.
pub(crate) type Run = fn(&mut Call<'_, '_>) -> Values;

/// Ops by name.
pub(crate) type Table = &'static [(&'static str, Run)];

const TABLES: &[Table] = &[
    angle::OPS,
    attention::OPS,
    bag::OPS,
    compare::OPS,
    complex::OPS,
    conv::OPS,
    create::OPS,
    cut::OPS,
    elementwise::OPS,
    experts::OPS,
    fourier::OPS,
    held::OPS,
    index::OPS,
    join::OPS,
    linear::OPS,
    loss::OPS,
    norm::OPS,
    pad::OPS,
    pool::OPS,
    random::OPS,
    rank::OPS,
    recurrent::OPS,
    reduce::OPS,
    resize::OPS,
    shape::OPS,
    symbolic::OPS,
    windows::OPS,
];

static ALL: LazyLock<FxHashMap<&'static str, Run>> =
    LazyLock::new(|| TABLES.iter().flat_map(|table| table.iter().copied()).collect());

/// The ops that are known here, by PyTorch's names, in alphabetical order.
///
/// ```
/// assert!(plimsoll_torch::known_ops().contains(&"aten.conv2d.default"));
/// ```
pub fn known_ops() -> Vec<&'static str> {
    let mut names: Vec<&str> = ALL.keys().copied().collect();
    names.sort_unstable();
    names
}

pub(crate) fn find(op: &str) -> Option<Run> {
    ALL.get(op).copied()
}

/// Whether an op draws random numbers.
pub(crate) fn draws(op: &str) -> bool {
    random::OPS.iter().any(|(own, _)| *own == op)
}

/// That every op of a program is known, before any of it runs.
pub(crate) fn check(program: &Program) -> crate::Result<()> {
    let mut unknown: Vec<&Node> = Vec::new();
    let mut graphs: Vec<&Graph> = vec![&program.graph];
    while let Some(graph) = graphs.pop() {
        for node in &graph.nodes {
            for input in &node.inputs {
                if let Argument::AsGraph(inner) = &input.arg {
                    graphs.push(&inner.graph);
                }
            }
            let op = short(&node.target);
            if !op.starts_with("higher_order.") && find(op).is_none() {
                unknown.push(node);
            }
        }
    }
    let Some(first) = unknown.first() else { return Ok(()) };
    let mut others: Vec<&str> = unknown.iter().map(|node| short(&node.target)).collect();
    others.sort_unstable();
    others.dedup();
    others.retain(|op| *op != short(&first.target));
    let more = if others.is_empty() { String::new() } else { format!("; nor are {}", others.join(", ")) };
    let what = instead(short(&first.target))
        .map_or("is an op that is not known here".into(), |(why, how)| format!("{why}: {how}"));
    Err(program.wrong(format!("{} {what}{more}", described(first))))
}

/// Of ops that no plan can have: why, and what to write in their place.
fn instead(op: &str) -> Option<(&'static str, &'static str)> {
    let name = op.strip_prefix("aten.")?.split('.').next()?;
    Some(match name {
        "_local_scalar_dense" | "item" => (
            "takes a number out of a tensor (item(), tolist(), int() or a length that is in a tensor), and a plan must know all numbers before",
            "keep it a tensor, or make it a number when the module is made",
        ),
        "nonzero" | "masked_select" | "_unique2" | "unique_dim" | "unique_consecutive" | "bincount" => (
            "gives as many elements as the numbers in a tensor say, and a plan must know all sizes before",
            "keep all elements, and choose among them with torch.where or a product with the mask",
        ),
        "embedding_renorm" => (
            "changes the rows that it reads (max_norm), which is not known here",
            "leave out max_norm, and divide by the norms in forward, or clamp the rows after a step",
        ),
        _ => return None,
    })
}

/// The order in which an op reads the axes of an argument, for those that read them in another order than PyTorch has them: then
/// a weight is stored so. `listed` where it is one of a list.
pub(crate) fn read_order(op: &str, argument: &str, rank: usize, listed: bool) -> Option<Vec<usize>> {
    conv::read_order(op, argument, rank).or_else(|| recurrent::read_order(op, argument, rank, listed))
}

/// One result.
pub(crate) fn one(value: impl Into<Value>) -> Result<Vec<Value>> {
    Ok(vec![value.into()])
}

/// One result per tensor.
pub(crate) fn several(values: impl IntoIterator<Item = Tensor>) -> Result<Vec<Value>> {
    Ok(values.into_iter().map(Value::from).collect())
}

/// Something done to every element of `self`.
pub(crate) fn mapped(
    call: &mut Call<'_, '_>,
    f: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Vec<Value>> {
    let x: Laid = call.laid("self")?;
    one(x.map(f)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults;

    #[test]
    fn no_op_stands_in_two_tables_and_each_has_its_defaults() {
        let listed: usize = TABLES.iter().map(|table| table.len()).sum();
        assert_eq!(listed, ALL.len(), "an op is listed twice");
        let missing: Vec<&str> =
            known_ops().into_iter().filter(|op| op.starts_with("aten.") && !defaults::knows(op)).collect();
        assert!(missing.is_empty(), "run python/torch_defaults.py: no defaults of {missing:?}");
    }
}
