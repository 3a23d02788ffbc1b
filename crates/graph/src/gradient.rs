//! Turns a graph into the same graph with its gradient: reverse-mode, graph to graph.
//!
//! Walks the nodes backwards, asks each op's rule for the gradients of its inputs, and adds up what arrives at a
//! value from several users. The result is ordinary nodes, so it can be differentiated again.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::graph::{Node, NodeId, Phase, ValueId};
use crate::methods::TensorOps;
use crate::op::{Keep, Op};
use crate::ops::MatMulAdd;
use crate::trace::{Sym, Trace};
use crate::{Site, Type};

/// What a gradient rule sees: its node, the gradients that arrived at the outputs, and which inputs want one.
///
/// A rule may read only the values its [`Keep`] declares; liveness relies on it, so reading another is an error.
pub struct Backward<'a> {
    trace: &'a Trace,
    node: &'a Node,
    keep: Keep,
    input_types: &'a [Type],
    output_types: &'a [Type],
    grads: &'a [Option<Sym>],
    wants: &'a [bool],
    anew: &'a Anew,
}

/// How many ops a value may be away from the exchange that is made anew for it: what is gathered is cut, shaped and cast.
const AWAY: usize = 6;

/// What is exchanged anew on the way back ([`Exchange::anew`](crate::ops::Exchange::anew)): values of the way there, and what stands for them.
struct Anew {
    /// Values before this one are of the way there; 0 where nothing is exchanged anew.
    values: usize,
    made: RefCell<BTreeMap<ValueId, Sym>>,
}

impl Anew {
    fn new(trace: &Trace) -> Anew {
        let graph = trace.lock();
        let is_anew = |node: &Node| matches!(&node.op, Op::Exchange(exchange) if exchange.anew);
        let values = if graph.nodes().iter().any(is_anew) { graph.values().len() } else { 0 };
        Anew { values, made: RefCell::default() }
    }

    /// What stands for a value on the way back; nothing where it is itself there.
    fn of(&self, trace: &Trace, value: ValueId, site: Site, away: usize) -> Result<Option<Sym>> {
        if value.index() >= self.values {
            return Ok(None);
        }
        if let Some(made) = self.made.borrow().get(&value) {
            return Ok(Some(made.clone()));
        }
        let node = {
            let graph = trace.lock();
            let Some((maker, 0)) = graph.info(value).producer else { return Ok(None) };
            graph.node(maker).clone()
        };
        let made = match &node.op {
            Op::Exchange(exchange) if exchange.anew => {
                trace.push(node.op.clone(), &[&trace.value(node.inputs[0])], site)?.remove(0)
            }
            op if away > 0 && node.inputs.len() == 1 && node.outputs.len() == 1 => {
                let Some(x) = self.of(trace, node.inputs[0], site, away - 1)? else { return Ok(None) };
                trace.push(op.clone(), &[&x], site)?.remove(0)
            }
            _ => return Ok(None),
        };
        self.made.borrow_mut().insert(value, made.clone());
        Ok(Some(made))
    }
}

impl Backward<'_> {
    /// The value of input `i`.
    pub fn input(&self, i: usize) -> Result<Sym> {
        self.declared(self.keep.inputs, i, "input")?;
        let value = self.node.inputs[i];
        let anew = self.anew.of(self.trace, value, self.node.site, AWAY)?;
        Ok(anew.unwrap_or_else(|| self.trace.value(value)))
    }

    /// The value of output `i`.
    pub fn output(&self, i: usize) -> Result<Sym> {
        self.declared(self.keep.outputs, i, "output")?;
        Ok(self.trace.value(self.node.outputs[i]))
    }

    /// The type of input `i`; types need not be kept.
    pub fn input_type(&self, i: usize) -> &Type {
        &self.input_types[i]
    }

    /// The type of output `i`.
    pub fn output_type(&self, i: usize) -> &Type {
        &self.output_types[i]
    }

    /// The number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.input_types.len()
    }

    /// The gradient that arrived at output `i`, or zeros where none did.
    pub fn grad(&self, i: usize) -> Result<Sym> {
        match &self.grads[i] {
            Some(g) => Ok(g.clone()),
            None => self.full(&self.output_types[i], 0.0),
        }
    }

    /// The gradient that arrived at output `i`, if any did.
    pub fn try_grad(&self, i: usize) -> Option<&Sym> {
        self.grads[i].as_ref()
    }

    /// Whether the gradient of input `i` is needed.
    pub fn wants(&self, i: usize) -> bool {
        self.wants[i]
    }

    /// A constant of this trace.
    pub fn full(&self, ty: &Type, value: f64) -> Result<Sym> {
        let op = crate::ops::Full { ty: ty.clone(), value: value.into() };
        Ok(self.trace.push(op.into(), &[], self.node.site)?.remove(0))
    }

    /// Appends an op of the backward pass.
    pub fn push(&self, op: impl Into<Op>, inputs: &[&Sym]) -> Result<Vec<Sym>> {
        Ok(self.trace.push(op.into(), inputs, self.node.site)?.into_vec())
    }

    /// The user's line that made the node.
    pub fn site(&self) -> Site {
        self.node.site
    }

    /// The error of an op that cannot be differentiated.
    pub fn no_gradient(&self, why: &str) -> Error {
        Error::NoGradient { op: self.node.op.name(), site: self.node.site, why: why.into() }
    }

    fn declared(&self, bits: u32, i: usize, what: &str) -> Result<()> {
        if bits.checked_shr(i as u32).unwrap_or(0) & 1 == 1 {
            return Ok(());
        }
        let op = self.node.op.name();
        Err(Error::Internal(format!("the gradient rule of {op} reads {what} {i}, which it does not keep")))
    }
}

/// Adds to the trace the gradients of `target` (weighted by `seed`, by default ones) with respect to `wrt`.
///
/// An entry is `None` where the target does not depend on that value through differentiable ops.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Trace, Type, gradient};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [4]));
/// let y = x.mul(&x)?.sum(&[], false)?;
/// let dx = gradient(&y, None, &[&x])?;
/// assert_eq!(dx[0].as_ref().map(|g| g.shape().to_string()), Some("[4]".into()));
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
#[track_caller]
pub fn gradient(target: &Sym, seed: Option<&Sym>, wrt: &[&Sym]) -> Result<Vec<Option<Sym>>> {
    gradients(&[(target, seed)], wrt, Site::here())
}

/// [`gradient`] of a sum of several targets, each with its seed.
pub fn gradients(targets: &[(&Sym, Option<&Sym>)], wrt: &[&Sym], site: Site) -> Result<Vec<Option<Sym>>> {
    let Some((first, _)) = targets.first() else { return Ok(vec![None; wrt.len()]) };
    let trace = first.trace().clone();
    let n_values = trace.lock().values().len();
    let n_nodes = trace.lock().nodes().len();
    // A value is on a path when it is one of `wrt` or computed, through float values, from one.
    let mut on_path = vec![false; n_values];
    for s in wrt {
        if !s.ty().dtype.is_float() {
            let why = format!("{s:?} is not a floating-point value");
            return Err(Error::NoPath { site, why });
        }
        on_path[s.id().index()] = true;
    }
    {
        let graph = trace.lock();
        for node in graph.nodes() {
            if node.inputs.iter().any(|v| on_path[v.index()]) {
                for v in &node.outputs {
                    on_path[v.index()] |= graph.ty(*v).dtype.is_float();
                }
            }
        }
    }
    let mut grads: Vec<Option<Sym>> = vec![None; n_values];
    for (target, seed) in targets {
        let seed = match seed {
            Some(s) if s.ty() == target.ty() => (*s).clone(),
            Some(s) => {
                let why = format!("the seed is {} where the target is {}", s.ty(), target.ty());
                return Err(Error::NoPath { site, why });
            }
            None => {
                let op = crate::ops::Full { ty: target.ty().clone(), value: 1.0.into() };
                trace.push(op.into(), &[], site)?.remove(0)
            }
        };
        accumulate(&mut grads[target.id().index()], seed, usize::MAX, site)?;
    }
    let phase = trace.lock().set_phase(Phase::Backward);
    let result = backward(&trace, n_nodes, &on_path, &mut grads);
    trace.lock().set_phase(phase);
    result?;
    Ok(wrt.iter().map(|s| grads[s.id().index()].clone()).collect())
}

fn backward(trace: &Trace, n_nodes: usize, on_path: &[bool], grads: &mut [Option<Sym>]) -> Result<()> {
    let anew = Anew::new(trace);
    for index in (0..n_nodes).rev() {
        let node = {
            let graph = trace.lock();
            let node = graph.node(NodeId(index as u32));
            let arrived = node.outputs.iter().any(|v| grads[v.index()].is_some());
            let wanted = node.inputs.iter().any(|v| on_path[v.index()]);
            if !(arrived && wanted) {
                continue;
            }
            node.clone()
        };
        // Gradient nodes are filed under the layer whose gradient they are.
        trace.lock().set_scope(&node.scope);
        trace.lock().differentiate(NodeId(index as u32));
        let n_before = trace.lock().nodes().len();
        let types = |ids: &[ValueId]| -> Vec<Type> {
            let graph = trace.lock();
            ids.iter().map(|&v| graph.ty(v).clone()).collect()
        };
        let (input_types, output_types) = (types(&node.inputs), types(&node.outputs));
        let wants: Vec<bool> = node.inputs.iter().map(|v| on_path[v.index()]).collect();
        let out_grads: Vec<Option<Sym>> = node.outputs.iter().map(|v| grads[v.index()].clone()).collect();
        let at = Backward {
            trace,
            node: &node,
            keep: node.op.keep(),
            input_types: &input_types,
            output_types: &output_types,
            grads: &out_grads,
            wants: &wants,
            anew: &anew,
        };
        let input_grads = node.op.gradient(&at)?;
        // Rules call the same methods as users do, whose line would be the rule's.
        trace.lock().attribute(n_before, node.site);
        if input_grads.len() != node.inputs.len() {
            let op = node.op.name();
            return Err(Error::Internal(format!(
                "the gradient rule of {op} gives a wrong number of gradients"
            )));
        }
        for ((grad, &v), ty) in input_grads.into_iter().zip(&node.inputs).zip(&input_types) {
            let Some(grad) = grad else { continue };
            if grad.ty() != ty {
                let op = node.op.name();
                return Err(Error::Internal(format!(
                    "the gradient rule of {op} gives {} for {ty}",
                    grad.ty()
                )));
            }
            if on_path[v.index()] {
                accumulate(&mut grads[v.index()], grad, n_before, node.site)?;
            }
        }
    }
    trace.lock().set_scope("");
    Ok(())
}

/// Adds a gradient to what arrived before it. A 16-bit product that was made since node `since` is added to by the op that makes it: its sum is rounded
/// once, and needs no pass of its own.
fn accumulate(slot: &mut Option<Sym>, grad: Sym, since: usize, site: Site) -> Result<()> {
    let Some(before) = slot.take() else {
        *slot = Some(grad);
        return Ok(());
    };
    let trace = before.trace().clone();
    let sum = match product_of(&trace, &grad, since) {
        Some((op, a, b)) => trace.push(op.into(), &[&trace.value(a), &trace.value(b), &before], site)?,
        None => trace.push(crate::ops::Binary::Add.into(), &[&before, &grad], site)?,
    };
    *slot = Some(sum.into_iter().next().ok_or_else(|| Error::Internal("a sum gave no output".into()))?);
    Ok(())
}

/// The product that a 16-bit gradient is, as one that adds, with its factors; none where it is something else, was made before `since` or is read
/// elsewhere, so that it would have to be made twice.
fn product_of(trace: &Trace, grad: &Sym, since: usize) -> Option<(MatMulAdd, ValueId, ValueId)> {
    if grad.dtype().bytes() != 2 {
        return None;
    }
    let graph = trace.lock();
    let (maker, _) = graph.info(grad.id()).producer?;
    let node = graph.node(maker);
    let is_read = || graph.nodes()[maker.index()..].iter().any(|node| node.inputs.contains(&grad.id()));
    let op = MatMulAdd::adding(&node.op).filter(|_| maker.index() >= since && !is_read())?;
    Some((op, node.inputs[0], node.inputs[1]))
}
