//! What tests of passes share: inputs to trace with, values for them, and that a pass keeps what a graph computes.

use crate::example::{Dice, Domain};
use crate::ops::Rank;
use crate::reference::{Array, interpret};
use crate::{DType, Graph, Sym, Trace, Type};

/// Who computes where ranks do.
pub(super) const FIRST_OF_TWO: Rank = Rank::new(0, 2);

/// x, three samples of four, and so many parameters of one shape: `w0`, `w1`, ..
pub(super) fn parameters(trace: &Trace, count: usize, shape: &[usize]) -> (Sym, Vec<Sym>) {
    let input = |name: &str, shape: &[usize]| trace.input(name, Type::new(DType::F64, shape));
    (input("x", &[3, 4]), (0..count).map(|i| input(&format!("w{i}"), shape)).collect())
}

/// Values for a graph's inputs: places in a table of twelve where they are whole numbers.
pub(super) fn given(graph: &Graph) -> Vec<Array> {
    let mut dice = Dice::new(5);
    let domain = |v| if graph.ty(v).dtype == DType::I64 { Domain::Index(12) } else { Domain::Normal };
    graph.inputs().iter().map(|&v| domain(v).fill(graph.ty(v), &mut dice)).collect()
}

/// Checks that both compute the same from the same inputs.
#[track_caller]
pub(super) fn assert_same(before: &Graph, after: &Graph) {
    let inputs = given(before);
    assert_eq!(interpret(before, &inputs), interpret(after, &inputs));
}
