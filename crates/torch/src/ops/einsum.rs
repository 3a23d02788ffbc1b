//! Einstein sums as PyTorch takes them: a letter may stand twice in an operand, whose diagonal is meant, and an axis of length 1 fits to any other.

use plimsoll_graph::{EinsumOps, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};
use rustc_hash::FxHashMap;

use super::cut::diagonal;
use crate::error::refuse;

/// The sum that an equation without dots says.
pub(super) fn summed(equation: &str, operands: Vec<Laid>) -> Result<Tensor> {
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, output.to_string()),
        None => (equation, implied(equation)),
    };
    let mut terms: Vec<Vec<char>> = inputs.split(',').map(|term| term.chars().collect()).collect();
    if terms.len() != operands.len() {
        return Err(refuse(format!("has {} operands for {equation:?}", operands.len())));
    }
    let mut tensors = Vec::with_capacity(operands.len());
    for (term, operand) in terms.iter_mut().zip(operands) {
        tensors.push(without_twins(term, operand)?);
    }
    let mut lengths: FxHashMap<char, usize> = FxHashMap::default();
    for (term, tensor) in terms.iter().zip(&tensors) {
        for (&letter, &n) in term.iter().zip(tensor.shape().iter()) {
            let known = lengths.entry(letter).or_insert(n);
            *known = (*known).max(n);
        }
    }
    // An axis of length 1 says nothing of a letter that others have longer.
    for (term, tensor) in terms.iter_mut().zip(&mut tensors) {
        let is_kept: Vec<bool> =
            term.iter().zip(tensor.shape().iter()).map(|(letter, &n)| n == lengths[letter]).collect();
        if is_kept.iter().all(|&kept| kept) {
            continue;
        }
        let shape = tensor.shape().to_vec();
        let of = |at: usize| is_kept[at] || shape[at] != 1;
        let left: Vec<usize> = (0..shape.len()).filter(|&at| of(at)).map(|at| shape[at]).collect();
        *term = (0..shape.len()).filter(|&at| of(at)).map(|at| term[at]).collect();
        *tensor = tensor.reshape(left)?;
    }
    let terms: Vec<String> = terms.into_iter().map(|term| term.into_iter().collect()).collect();
    Tensor::einsum(&format!("{}->{output}", terms.join(",")), &tensors.iter().collect::<Vec<_>>())
}

/// What an equation without an output gives: letters that stand once, in alphabetical order.
fn implied(inputs: &str) -> String {
    let letters = || inputs.chars().filter(|c| c.is_alphabetic());
    let mut once: Vec<char> =
        letters().filter(|c| letters().filter(|other| other == c).count() == 1).collect();
    once.sort_unstable();
    once.into_iter().collect()
}

/// An operand with the diagonal in the place of axes that have one letter.
fn without_twins(term: &mut Vec<char>, mut x: Laid) -> Result<Tensor> {
    if term.len() != x.rank() {
        return Err(refuse(format!("names {} axes of {}", term.len(), x.shape())));
    }
    while let Some((a, b)) =
        (0..term.len()).find_map(|a| ((a + 1)..term.len()).find(|&b| term[a] == term[b]).map(|b| (a, b)))
    {
        let letter = term[a];
        if x.shape()[a] != x.shape()[b] {
            return Err(refuse(format!("has {letter} twice for axes of other lengths of {}", x.shape())));
        }
        x = diagonal(&x, a, b, 0)?.into();
        term.remove(b);
        term.remove(a);
        term.push(letter);
    }
    x.plain()
}
