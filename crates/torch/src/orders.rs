//! In which order of axes kept tensors are stored: as they are read at every step.

use plimsoll_graph::Type;

use rustc_hash::FxHashMap;

use crate::ops;
use crate::program::{Held, Program, short};
use crate::schema::{Argument, OptionalTensor};

/// The type in which a kept tensor is stored here.
pub fn stored_type(held: &Held, order: &[usize]) -> Type {
    let mut shape = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &axis)| shape[axis] = held.ty.shape[i]);
    Type::new(held.ty.dtype, shape)
}

/// Ops that give what they read in another element type, or as it is: under `autocast` every weight is read by way of one.
const COPIES: &[&str] =
    &["aten._to_copy.default", "aten.to.dtype", "aten.detach.default", "aten.alias.default"];

/// The order of axes in which kept tensors are stored: as they are read by every node that reads them, so that no step has to move
/// their elements.
pub fn stored_orders(program: &Program) -> Vec<Vec<usize>> {
    let mut wanted: Vec<Option<Vec<usize>>> = vec![None; program.held().len()];
    let mut other: Vec<bool> = program.held().iter().map(|held| held.is_changed).collect();
    // Copies of kept tensors, by their names.
    let mut copies: FxHashMap<&str, usize> = FxHashMap::default();
    for node in &program.graph.nodes {
        let op = short(&node.target);
        if COPIES.contains(&op)
            && let Some(Argument::AsTensor(from)) = node.inputs.first().map(|input| &input.arg)
            && let Some(&at) = program.bound.get(&from.name).or_else(|| copies.get(from.name.as_str()))
            && let Some(Argument::AsTensor(to)) = node.outputs.first()
        {
            copies.insert(&to.name, at);
            continue;
        }
        for input in &node.inputs {
            let mut see = |name: &str, listed: bool| {
                let Some(&at) = program.bound.get(name).or_else(|| copies.get(name)) else { return };
                let rank = program.held()[at].ty.shape.rank();
                match ops::read_order(op, &input.name, rank, listed) {
                    Some(order) if wanted[at].as_ref().is_none_or(|known| *known == order) => {
                        wanted[at] = Some(order);
                    }
                    _ => other[at] = true,
                }
            };
            match &input.arg {
                Argument::AsTensor(named) => see(&named.name, false),
                Argument::AsTensors(all) => all.iter().for_each(|named| see(&named.name, true)),
                Argument::AsOptionalTensor(OptionalTensor::AsTensor(named)) => see(&named.name, false),
                Argument::AsOptionalTensors(all) => all.iter().for_each(|given| {
                    if let OptionalTensor::AsTensor(named) = given {
                        see(&named.name, true);
                    }
                }),
                Argument::AsGraph(_) => {
                    // What a graph inside does with its arguments is not looked at.
                    for outer in &node.inputs {
                        if let Argument::AsTensor(named) = &outer.arg
                            && let Some(&at) =
                                program.bound.get(&named.name).or_else(|| copies.get(named.name.as_str()))
                        {
                            other[at] = true;
                        }
                    }
                }
                _ => {}
            }
        }
    }
    let plain = |at: usize| (0..program.held()[at].ty.shape.rank()).collect();
    let order = |(at, wanted): (usize, Option<Vec<usize>>)| match wanted {
        Some(order) if !other[at] => order,
        _ => plain(at),
    };
    wanted.into_iter().enumerate().map(order).collect()
}

/// The order that undoes another.
pub fn inverse(order: &[usize]) -> Vec<usize> {
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
    back
}
