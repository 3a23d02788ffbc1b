//! Random small graphs of elementwise ops, products and reductions, with their gradients: what passes are tried on.
//!
//! Here, not in a test, because backends draw from it too: the same graph before and after a pass must give the same
//! bits on a device.

use crate::error::Result;
use crate::example::{Dice, Domain};
use crate::gradient::gradient;
use crate::graph::Graph;
use crate::methods::TensorOps;
use crate::ops::{Full, Unary};
use crate::reference::Array;
use crate::trace::{Sym, Trace};
use crate::{DType, Scalar, Site, Type};

/// A random graph with values for its inputs; floats are of one type.
///
/// ```
/// use plimsoll_graph::{DType, passes::sample::random_graph, reference::interpret};
/// let (graph, inputs) = random_graph(7, DType::F32)?;
/// assert_eq!(interpret(&graph, &inputs).len(), graph.outputs().len());
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub fn random_graph(seed: u64, dtype: DType) -> Result<(Graph, Vec<Array>)> {
    let mut dice = Dice::new(seed);
    let trace = Trace::new();
    let (n, c) = (dice.range(1, 5), dice.range(1, 40));
    let shapes: [&[usize]; 5] = [&[n, c], &[c], &[n, 1], &[], &[c, c]];
    let inputs: Vec<Sym> =
        shapes.iter().enumerate().map(|(i, s)| trace.input(&format!("x{i}"), Type::new(dtype, *s))).collect();
    let mut pool: Vec<Sym> = inputs[..4].to_vec();
    pool.push(inputs[0].add_scalar(0.5)?);
    for _ in 0..dice.range(3, 25) {
        let made = step(&trace, &mut dice, &pool, &inputs, [n, c], dtype)?;
        pool.push(made);
    }
    // A few values leave, and the gradient of one of them.
    let mut outputs: Vec<Sym> = vec![pool[pool.len() - 1].clone()];
    for _ in 0..dice.range(0, 3) {
        outputs.push(pool[dice.range(0, pool.len())].clone());
    }
    let loss = outputs[0].square()?.mean(&(0..outputs[0].shape().rank()).collect::<Vec<_>>(), false)?;
    for g in gradient(&loss, None, &inputs.iter().collect::<Vec<_>>())?.into_iter().flatten() {
        outputs.push(g);
    }
    let graph = trace.finish(&outputs.iter().collect::<Vec<_>>())?;
    let values = inputs.iter().map(|x| Domain::Normal.fill(x.ty(), &mut dice)).collect();
    Ok((graph, values))
}

/// One more value from those there are, tame enough that nothing overflows.
fn step(
    trace: &Trace,
    dice: &mut Dice,
    pool: &[Sym],
    inputs: &[Sym],
    [n, c]: [usize; 2],
    dtype: DType,
) -> Result<Sym> {
    let a = pool[dice.range(0, pool.len())].clone();
    let b = pool[dice.range(0, pool.len())].clone();
    let unary = [
        Unary::Neg,
        Unary::Abs,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Relu,
        Unary::Gelu,
        Unary::Softplus,
        Unary::MulScalar(Scalar(0.7)),
        Unary::AddScalar(Scalar(-0.2)),
        Unary::Clamp(Scalar(-1.0), Scalar(1.5)),
        Unary::LeakyRelu(Scalar(0.1)),
    ];
    match dice.range(0, 12) {
        0..=2 => {
            let f = unary[dice.range(0, unary.len())];
            Ok(trace.push(f.into(), &[&a], Site::here())?.remove(0))
        }
        3 | 4 => a.add(&b),
        5 => a.mul(&b.tanh()?),
        6 => a.maximum(&b),
        7 => a.greater(&b)?.select(&a, &b),
        8 => {
            let ty = Type::new(dtype, [n, c]);
            let full = trace.push(Full { ty, value: Scalar(0.3) }.into(), &[], Site::here())?.remove(0);
            full.sub(&a)
        }
        9 => a.broadcast([n, c])?.mul(&b.sigmoid()?),
        10 if a.shape()[..] == [n, c] => a.matmul(&inputs[4])?.add(&inputs[1])?.relu()?.mul_scalar(0.2),
        10 => a.cast(DType::F32)?.exp()?.add_scalar(1.0)?.log()?.cast(dtype),
        _ if a.shape().rank() == 2 => a.mean(&[1], true),
        _ => a.sub(&b),
    }
}
