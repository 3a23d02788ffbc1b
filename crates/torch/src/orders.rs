//! In which order of axes kept tensors are stored: as they are read at every step.

use plimsoll_graph::Type;

use crate::ops;
use crate::program::{Held, Program, short};
use crate::schema::{Argument, OptionalTensor};

/// The type in which a kept tensor is stored here.
pub fn stored_type(held: &Held, order: &[usize]) -> Type {
    let mut shape = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &axis)| shape[axis] = held.ty.shape[i]);
    Type::new(held.ty.dtype, shape)
}

/// The order of axes in which kept tensors are stored: as they are read by every node that reads them, so that no step has to move
/// their elements.
pub fn stored_orders(program: &Program) -> Vec<Vec<usize>> {
    let mut wanted: Vec<Option<Vec<usize>>> = vec![None; program.held().len()];
    let mut other: Vec<bool> = program.held().iter().map(|held| held.is_changed).collect();
    for node in &program.graph.nodes {
        let op = short(&node.target);
        for input in &node.inputs {
            let mut see = |name: &str, listed: bool| {
                let Some(&at) = program.bound.get(name) else { return };
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
                            && let Some(&at) = program.bound.get(&named.name)
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
