//! Adds sums by index where they would be added anyway, so that no table of zeros with some sums in it is ever made.
//!
//! A language model whose first and last layer are one table has such a sum in every step: its words' gradients, and those of all words.

use super::rewrite::{Rewrite, leaving, readers};
use crate::error::Result;
use crate::graph::{Graph, ValueId};
use crate::op::Op;
use crate::ops::{Binary, ScatterAddTo};

/// The graph with [`ScatterAddTo`] for sums by index that are only read to be added to something.
pub fn add_where_indexed(graph: &Graph) -> Result<Graph> {
    let (readers, leaves) = (readers(graph), leaving(graph));
    let nodes = graph.nodes();
    // By node of an addition, that of the sums and what they are added to.
    let mut folds: Vec<Option<(usize, ValueId)>> = vec![None; nodes.len()];
    let mut is_folded = vec![false; nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        let Op::ScatterAdd(_) = &node.op else { continue };
        let sums = node.outputs[0];
        let [reader] = readers[sums.index()][..] else { continue };
        let added = match (&nodes[reader].op, nodes[reader].inputs.as_slice()) {
            (Op::Binary(Binary::Add), &[a, b]) if a == sums => b,
            (Op::Binary(Binary::Add), &[a, b]) if b == sums => a,
            _ => continue,
        };
        let is_like = graph.ty(added) == graph.ty(sums);
        // Of two sums that are added to each other, one is made.
        if is_like && !leaves[sums.index()] && folds[reader].is_none() {
            folds[reader] = Some((i, added));
            is_folded[i] = true;
        }
    }
    let mut rewrite = Rewrite::new(graph);
    for (i, node) in nodes.iter().enumerate() {
        match (folds[i], is_folded[i]) {
            (_, true) => {}
            (None, false) => rewrite.keep(node)?,
            (Some((sums, added)), false) => {
                let Op::ScatterAdd(op) = nodes[sums].op else { unreachable!("found as such") };
                let inputs = [nodes[sums].inputs[0], nodes[sums].inputs[1], added];
                rewrite.replace(node, ScatterAddTo { sums: op }.into(), &inputs, &[Some(node.outputs[0])])?;
            }
        }
    }
    rewrite.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::gradient;
    use crate::methods::TensorOps;
    use crate::ops::GatherOps;
    use crate::passes::remove_dead;
    use crate::passes::testing::assert_same;
    use crate::{DType, Trace, Type};

    fn count(graph: &Graph, is: impl Fn(&Op) -> bool) -> usize {
        graph.nodes().iter().filter(|node| is(&node.op)).count()
    }

    #[test]
    fn the_words_of_a_table_that_is_an_output_layer_too_have_their_gradients_added_to_all_words() {
        let trace = Trace::new();
        let table = trace.input("table", Type::new(DType::F64, [12, 4]));
        let words = trace.input("words", Type::new(DType::I64, [2, 3]));
        let x = table.gather(&words, 0).unwrap().tanh().unwrap();
        let loss =
            x.matmul_with(&table, None, false, true).unwrap().square().unwrap().mean(&[], false).unwrap();
        let grad = gradient(&loss, None, &[&table]).unwrap().remove(0).unwrap();
        let before = remove_dead(&trace.finish(&[&loss, &grad]).unwrap()).unwrap();
        let after = add_where_indexed(&before).unwrap();
        assert_eq!(count(&before, |op| matches!(op, Op::ScatterAdd(_))), 1);
        assert_eq!(
            count(&after, |op| matches!(op, Op::ScatterAdd(_) | Op::Binary(Binary::Add))),
            0,
            "{after}"
        );
        assert_eq!(count(&after, |op| matches!(op, Op::ScatterAddTo(_))), 1);
        assert_same(&before, &after);
    }

    #[test]
    fn of_two_sums_that_are_added_one_stays_and_sums_that_are_read_elsewhere_stay() {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F64, [3, 4]));
        let index = trace.input("index", Type::new(DType::I64, [3]));
        let sums = |x: &crate::Sym| {
            let table = trace.input("table", Type::new(DType::F64, [12, 4]));
            let picked = table.gather(&index, 0).unwrap().mul(x).unwrap().sum(&[], false).unwrap();
            gradient(&picked, None, &[&table]).unwrap().remove(0).unwrap()
        };
        let (one, two, other) = (sums(&x), sums(&x.tanh().unwrap()), sums(&x.square().unwrap()));
        let both = one.add(&two).unwrap();
        let third = other.add(&both).unwrap();
        let before = remove_dead(&trace.finish(&[&both, &third, &other]).unwrap()).unwrap();
        let after = add_where_indexed(&before).unwrap();
        assert_eq!(count(&after, |op| matches!(op, Op::ScatterAdd(_))), 2, "{after}");
        assert_same(&before, &after);
    }
}
