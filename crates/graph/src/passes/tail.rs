//! Folds a bias and an activation into the matrix product or convolution before them: one pass over memory less.

use super::rewrite::{Rewrite, leaving, readers};
use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::ops::{Binary, Unary};
use crate::{DType, Shape};

/// The graph with single-use biases and activations folded into their products.
///
/// Only in f32 and f64, where the sum is rounded to the same bits with and without the fold; a 16-bit sum would be
/// rounded once instead of three times.
pub fn fold_tails(graph: &Graph) -> Result<Graph> {
    let (readers, leaves) = (readers(graph), leaving(graph));
    // The one reader of a value that goes nowhere else, in the same phase.
    let only_reader = |v: ValueId, node: &Node| -> Option<usize> {
        match readers[v.index()].as_slice() {
            &[reader] if !leaves[v.index()] && graph.nodes()[reader].phase == node.phase => Some(reader),
            _ => None,
        }
    };
    let mut rewrite = Rewrite::new(graph);
    let mut is_folded = vec![false; graph.nodes().len()];
    for (i, node) in graph.nodes().iter().enumerate() {
        if is_folded[i] {
            continue;
        }
        let Some(mut product) = Product::of(graph, node) else {
            rewrite.keep(node)?;
            continue;
        };
        let mut inputs = node.inputs.clone();
        let mut last = node;
        if !product.has_bias()
            && let Some(reader) = only_reader(last.outputs[0], node)
            && let Some(bias) = bias_of(graph, &graph.nodes()[reader], last.outputs[0])
            && rewrite.at(bias).is_ok()
        {
            product.add_bias();
            inputs.push(bias);
            is_folded[reader] = true;
            last = &graph.nodes()[reader];
        }
        if let Some(reader) = only_reader(last.outputs[0], node)
            && let Op::Unary(f) = graph.nodes()[reader].op
            && !matches!(f, Unary::Not | Unary::IsFinite)
        {
            product.activate(f);
            is_folded[reader] = true;
            last = &graph.nodes()[reader];
        }
        rewrite.replace(node, product.op, &inputs, &[Some(last.outputs[0])])?;
    }
    rewrite.finish()
}

/// A product whose tail is still free.
struct Product {
    op: Op,
}

impl Product {
    fn of(graph: &Graph, node: &Node) -> Option<Product> {
        let is_free = match &node.op {
            Op::MatMul(m) => m.act.is_none(),
            Op::Conv(c) => c.act.is_none(),
            _ => false,
        };
        let dtype = graph.ty(node.outputs[0]).dtype;
        let is_exact = matches!(dtype, DType::F32 | DType::F64);
        (is_free && is_exact).then(|| Product { op: node.op.clone() })
    }

    fn has_bias(&self) -> bool {
        match &self.op {
            Op::MatMul(m) => m.bias,
            Op::Conv(c) => c.bias,
            _ => true,
        }
    }

    fn add_bias(&mut self) {
        match &mut self.op {
            Op::MatMul(m) => m.bias = true,
            Op::Conv(c) => c.bias = true,
            _ => {}
        }
    }

    fn activate(&mut self, f: Unary) {
        match &mut self.op {
            Op::MatMul(m) => m.act = Some(f),
            Op::Conv(c) => c.act = Some(f),
            _ => {}
        }
    }
}

/// The bias that a node adds to `sum`: a vector along its last axis.
fn bias_of(graph: &Graph, node: &Node, sum: ValueId) -> Option<ValueId> {
    let other = match (&node.op, node.inputs.as_slice()) {
        (Op::Binary(Binary::Add), &[a, b]) if a == sum && b != sum => b,
        (Op::Binary(Binary::Add), &[a, b]) if b == sum && a != sum => a,
        _ => return None,
    };
    let (ty, sum) = (graph.ty(other), graph.ty(sum));
    let columns = sum.shape.last().copied()?;
    (ty.shape == Shape::from([columns]) && ty.dtype == sum.dtype).then_some(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::TensorOps;
    use crate::{Trace, Type};

    #[test]
    fn a_dense_layer_becomes_one_node() {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [4, 8]));
        let w = trace.input("w", Type::new(DType::F32, [8, 3]));
        let b = trace.input("b", Type::new(DType::F32, [3]));
        let y = trace.scoped("dense", || x.matmul(&w).unwrap().add(&b).unwrap().relu().unwrap());
        let graph = fold_tails(&trace.finish(&[&y]).unwrap()).unwrap();
        let [node] = graph.nodes() else { panic!("{graph}") };
        assert!(matches!(&node.op, Op::MatMul(m) if m.bias && m.act == Some(Unary::Relu)));
        assert_eq!((node.scope.as_str(), graph.info(node.outputs[0]).name.as_str()), ("dense", "dense/relu"));
    }

    #[test]
    fn a_sum_that_is_read_twice_keeps_its_activation_apart() {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [4, 8]));
        let w = trace.input("w", Type::new(DType::F32, [8, 3]));
        let s = x.matmul(&w).unwrap();
        let y = s.gelu().unwrap().mul(&s).unwrap();
        assert_eq!(fold_tails(&trace.finish(&[&y]).unwrap()).unwrap().nodes().len(), 3);
        let half = trace.input("h", Type::new(DType::BF16, [4, 8]));
        let y = half.matmul(&trace.input("v", Type::new(DType::BF16, [8, 3]))).unwrap().relu().unwrap();
        assert_eq!(
            fold_tails(&trace.finish(&[&y]).unwrap()).unwrap().nodes().len(),
            5,
            "16-bit sums stay apart"
        );
    }
}
