//! Fused graphs mean what they meant, and an optimizer's update is one node.

use super::*;
use crate::methods::TensorOps;
use crate::passes::sample::random_graph;
use crate::passes::{compact, fold_tails, optimize, remove_dead, share};
use crate::reference::{Array, interpret};
use crate::trace::{Sym, Trace};
use crate::{Site, Type};

fn same(a: &[Array], b: &[Array]) -> bool {
    let equal = |x: &f64, y: &f64| x == y || x.is_nan() && y.is_nan();
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| a.shape == b.shape && a.data.iter().zip(&b.data).all(|(x, y)| equal(x, y)))
}

#[test]
fn every_pass_keeps_the_values_of_random_graphs() {
    type Pass = fn(&Graph) -> Result<Graph>;
    let passes: [(&str, Pass); 6] = [
        ("dead", remove_dead),
        ("share", share),
        ("compact", compact),
        ("tails", fold_tails),
        ("fuse", fuse),
        ("all", optimize),
    ];
    let (mut nodes, mut left) = (0, 0);
    for seed in 0..150 {
        let (graph, inputs) = random_graph(seed, DType::F32).unwrap();
        let before = interpret(&graph, &inputs);
        for (name, pass) in passes {
            let after = pass(&graph).unwrap();
            assert!(
                same(&before, &interpret(&after, &inputs)),
                "{name} changes seed {seed}:\n{graph}\n{after}"
            );
            let names =
                |g: &Graph, ids: &[ValueId]| ids.iter().map(|&v| g.info(v).name.clone()).collect::<Vec<_>>();
            assert_eq!(names(&graph, graph.inputs()), names(&after, after.inputs()), "{name}");
            assert!(after.nodes().len() <= graph.nodes().len());
        }
        nodes += graph.nodes().len();
        left += optimize(&graph).unwrap().nodes().len();
    }
    assert!(left * 2 < nodes, "{left} nodes of {nodes} are left");
}

fn adam(p: &Sym, g: &Sym, m: &Sym, v: &Sym, rate: &Sym) -> Result<[Sym; 3]> {
    let m = m.mul_scalar(0.9)?.add(&g.mul_scalar(0.1)?)?;
    let v = v.mul_scalar(0.999)?.add(&g.square()?.mul_scalar(0.001)?)?;
    let p = p.sub(&m.div(&v.sqrt()?.add_scalar(1e-8)?)?.mul(rate)?)?;
    Ok([p, m, v])
}

/// The steps of a chain, one a line.
fn listing(chain: &Chain) -> String {
    let arg = |a: &Arg| match a {
        Arg::Input(i) => format!("i{i}"),
        Arg::Step(s) => format!("s{s}"),
        Arg::Const(c) => c.to_string(),
    };
    let mut text = String::new();
    for (i, step) in chain.steps.iter().enumerate() {
        let args: Vec<String> = step.args.iter().map(arg).collect();
        text += &format!("s{i}: {} = {:?}({})\n", step.dtype, step.op, args.join(", "));
    }
    text + &format!("leave {:?}", chain.outputs)
}

#[test]
fn an_adam_update_is_one_pass_over_memory() {
    let trace = Trace::new();
    let ty = Type::new(DType::F32, [100]);
    let input = |name: &str| trace.input(name, ty.clone());
    let (p, g, m, v) = (input("p"), input("g"), input("m"), input("v"));
    let rate = trace.input("rate", Type::new(DType::F32, []));
    let [p, m, v] = adam(&p, &g, &m, &v, &rate).unwrap();
    let graph = optimize(&trace.finish(&[&p, &m, &v]).unwrap()).unwrap();
    let text = graph.to_string();
    let want = "input  %0 p: f32[100]\ninput  %1 g: f32[100]\ninput  %2 m: f32[100]\ninput  %3 v: f32[100]\n\
                input  %4 rate: f32[]\n\
                %5: f32[100], %6: f32[100], %7: f32[100] = fused(%2, %1, %3, %4, %0)\noutput %7, %5, %6\n";
    assert_eq!(text, want);
    let Op::Fused(chain) = &graph.nodes()[0].op else { panic!("{graph}") };
    let want = "\
s0: f32 = Unary(MulScalar(0.9))(i0)
s1: f32 = Unary(MulScalar(0.1))(i1)
s2: f32 = Binary(Add)(s0, s1)
s3: f32 = Unary(MulScalar(0.999))(i2)
s4: f32 = Unary(Square)(i1)
s5: f32 = Unary(MulScalar(0.001))(s4)
s6: f32 = Binary(Add)(s3, s5)
s7: f32 = Unary(Sqrt)(s6)
s8: f32 = Unary(AddScalar(1e-8))(s7)
s9: f32 = Binary(Div)(s2, s8)
s10: f32 = Binary(Mul)(s9, i3)
s11: f32 = Binary(Sub)(i4, s10)
leave [2, 6, 11]";
    assert_eq!(listing(&chain.0), want);
}

#[test]
fn constants_and_broadcasts_are_not_written() {
    let trace = Trace::new();
    let x = trace.input("x", Type::new(DType::F32, [8, 16]));
    let row = trace.input("row", Type::new(DType::F32, [16]));
    let full = Full { ty: x.ty().clone(), value: 2.0.into() };
    let two = trace.push(full.into(), &[], Site::here()).unwrap().remove(0);
    let y = x.mul(&two).unwrap().add(&row.broadcast([8, 16]).unwrap()).unwrap();
    let graph = optimize(&trace.finish(&[&y]).unwrap()).unwrap();
    assert_eq!(graph.nodes().len(), 1, "{graph}");
    assert_eq!(graph.nodes()[0].inputs.len(), 2);
}

#[test]
fn integers_stay_out_of_chains() {
    let trace = Trace::new();
    let x = trace.input("x", Type::new(DType::I64, [8]));
    let y = x.add_scalar(1.0).unwrap().mul_scalar(2.0).unwrap();
    assert_eq!(optimize(&trace.finish(&[&y]).unwrap()).unwrap().nodes().len(), 2);
}

#[test]
fn a_chain_does_not_wait_for_a_late_member_at_the_price_of_memory() {
    // The large operand of the early member would have to live until the late one runs.
    let trace = Trace::new();
    let x = trace.input("x", Type::new(DType::F32, [64, 64]));
    let w = trace.input("w", Type::new(DType::F32, [64, 64]));
    let (a, b) = (x.matmul(&w).unwrap(), w.matmul(&x).unwrap());
    let early = a.add(&b).unwrap();
    let other = x.matmul(&x).unwrap();
    let late = early.mul(&other).unwrap();
    let graph = fuse(&trace.finish(&[&late]).unwrap()).unwrap();
    assert!(graph.nodes().iter().all(|n| n.op.variant() != "Fused"), "{graph}");
}

#[test]
fn a_gradient_in_sixteen_bits_is_cast_where_it_is_used() {
    let trace = Trace::new();
    let wide = |name: &str| trace.input(name, Type::new(DType::F32, [4, 8]));
    let (p, m, v) = (wide("p"), wide("m"), wide("v"));
    let rate = trace.input("rate", Type::new(DType::F32, []));
    let x = trace.input("x", Type::new(DType::BF16, [3, 4]));
    let loss = x.matmul(&p.cast(DType::BF16).unwrap()).unwrap().tanh().unwrap().sum(&[], false).unwrap();
    let grad = crate::gradient(&loss, None, &[&p]).unwrap().remove(0).unwrap();
    let [p, m, v] = adam(&p, &grad, &m, &v, &rate).unwrap();
    let graph = optimize(&trace.finish(&[&loss, &p, &m, &v]).unwrap()).unwrap();
    let casts = graph.nodes().iter().filter(|node| matches!(node.op, Op::Cast(_))).count();
    assert_eq!(casts, 1, "only the parameter's own is left:\n{graph}");
}
