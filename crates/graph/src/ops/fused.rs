//! Several elementwise ops in one pass over memory: a small straight-line program run for every element.
//!
//! Made by the fusion pass, after gradients; it has no gradient of its own.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Cost, Rule, Types, traffic};
use crate::ops::{Binary, Compare, Unary};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Shape, Type};

/// What one step of a chain computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementOp {
    /// f(a)
    Unary(Unary),
    /// a ∘ b
    Binary(Binary),
    /// a ? b, 0 or 1
    Compare(Compare),
    /// a ? b : c
    Select,
    /// a, rounded to the step's type
    Cast,
    /// b where a > 0, else slope · b
    ReluGrad(Scalar),
}

/// Where a step's operand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arg {
    /// An input of the chain.
    Input(u16),
    /// The result of an earlier step.
    Step(u16),
    /// A number.
    Const(Scalar),
}

/// One step: an op, its operands and the type its result is rounded to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// What is computed.
    pub op: ElementOp,
    /// Its operands, as many as it takes.
    pub args: SmallVec<[Arg; 3]>,
    /// The element type of the result.
    pub dtype: DType,
}

/// A straight-line program over the elements of one shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The shape that is iterated over; inputs broadcast to it, outputs have it.
    pub shape: Shape,
    /// The number of inputs.
    pub n_inputs: usize,
    /// The steps, each after those it reads.
    pub steps: Vec<Step>,
    /// The steps whose results leave the chain.
    pub outputs: Vec<u16>,
}

/// A chain as an op. Shared, because graphs are copied more often than chains are made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fused(pub Arc<Chain>);

impl ElementOp {
    /// The value of the step, in f64.
    pub fn eval(self, args: &[f64]) -> f64 {
        match self {
            ElementOp::Unary(f) => f.eval(args[0]),
            ElementOp::Binary(f) => f.eval(args[0], args[1]),
            ElementOp::Compare(f) => f64::from(f.eval(args[0], args[1])),
            ElementOp::Select => args[if args[0] != 0.0 { 1 } else { 2 }],
            ElementOp::Cast => args[0],
            ElementOp::ReluGrad(slope) => args[1] * if args[0] > 0.0 { 1.0 } else { slope.0 },
        }
    }

    /// The number of operands.
    pub fn arity(self) -> usize {
        match self {
            ElementOp::Unary(_) | ElementOp::Cast => 1,
            ElementOp::Binary(_) | ElementOp::Compare(_) | ElementOp::ReluGrad(_) => 2,
            ElementOp::Select => 3,
        }
    }
}

impl Rule for Fused {
    const NAME: &'static str = "fused";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let chain = &*self.0;
        if inputs.len() != chain.n_inputs {
            return Err(format!("its chain takes {} inputs and was given {}", chain.n_inputs, inputs.len()));
        }
        for x in inputs {
            if x.shape.broadcast(&chain.shape).as_ref() != Some(&chain.shape) {
                return Err(format!("{x} does not broadcast to the chain's shape {}", chain.shape));
            }
        }
        for (i, step) in chain.steps.iter().enumerate() {
            let known = |arg: &Arg| match *arg {
                Arg::Input(n) => usize::from(n) < chain.n_inputs,
                Arg::Step(n) => usize::from(n) < i,
                Arg::Const(_) => true,
            };
            if step.args.len() != step.op.arity() || !step.args.iter().all(known) {
                return Err(format!("step {i} of its chain reads what is not there"));
            }
        }
        let output =
            |&s: &u16| chain.steps.get(usize::from(s)).map(|step| Type::new(step.dtype, &chain.shape));
        chain
            .outputs
            .iter()
            .map(output)
            .collect::<Option<Types>>()
            .ok_or_else(|| "an output of its chain does not exist".into())
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        (0..self.0.outputs.len()).flat_map(|o| (0..self.0.n_inputs).map(move |i| (o, i))).collect()
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let element = Type::new(DType::F32, &self.0.shape);
        let work = |step: &Step| match step.op {
            ElementOp::Unary(f) => f.cost(&[&element], &[&element]).flops,
            _ => element.elements() as f64,
        };
        Cost { flops: self.0.steps.iter().map(work).sum(), bytes: traffic(inputs, outputs) }
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient("it was made by fusion; take gradients before fusing"))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let chain = &*self.0;
        let mut results: Vec<Vec<f64>> = vec![Vec::new(); outputs.len()];
        let mut steps = vec![0.0; chain.steps.len()];
        crate::reference::for_each_index(&chain.shape, |index| {
            for (i, step) in chain.steps.iter().enumerate() {
                let value = |arg: &Arg| match *arg {
                    Arg::Input(n) => inputs[usize::from(n)].broadcast_at(index),
                    Arg::Step(n) => steps[usize::from(n)],
                    Arg::Const(s) => s.0,
                };
                let args: SmallVec<[f64; 3]> = step.args.iter().map(value).collect();
                steps[i] = step.op.eval(&args);
            }
            for (result, &s) in results.iter_mut().zip(&chain.outputs) {
                result.push(steps[usize::from(s)]);
            }
        });
        results.into_iter().map(|data| Array::new(chain.shape.clone(), data)).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let (n, c) = (dice.range(1, 6), dice.range(1, 70));
        let step = |op, args: &[Arg]| Step { op, args: args.into(), dtype: DType::F32 };
        let truth = |op, args: &[Arg]| Step { op, args: args.into(), dtype: DType::Bool };
        // Two outputs over four inputs: a whole one, a row, a column and a scalar.
        let chain = Chain {
            shape: [n, c].into(),
            n_inputs: 4,
            steps: vec![
                step(ElementOp::Binary(Binary::Add), &[Arg::Input(0), Arg::Input(1)]),
                step(ElementOp::Unary(Unary::Tanh), &[Arg::Step(0)]),
                step(ElementOp::Binary(Binary::Mul), &[Arg::Step(1), Arg::Input(2)]),
                truth(ElementOp::Compare(Compare::Gt), &[Arg::Step(2), Arg::Const(Scalar(0.1))]),
                step(ElementOp::Select, &[Arg::Step(3), Arg::Input(3), Arg::Step(1)]),
                step(ElementOp::ReluGrad(Scalar(0.5)), &[Arg::Step(0), Arg::Step(4)]),
            ],
            outputs: vec![5, 2],
        };
        let f32s = |shape: &[usize]| (Type::new(DType::F32, shape), Domain::Normal);
        vec![Example::new(Fused(Arc::new(chain)), vec![f32s(&[n, c]), f32s(&[c]), f32s(&[n, 1]), f32s(&[])])]
    }
}

impl Fused {
    /// The op of a chain.
    pub fn new(chain: Chain) -> Fused {
        Fused(Arc::new(chain))
    }
}
