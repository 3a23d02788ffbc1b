//! Means over labels that count, as means over samples: how much each sample's part in them is, found for the whole batch before it runs.
//!
//! `cross_entropy` divides by the number of labels that are not ignored, or by the sum of their classes' weights, and only the whole batch
//! has that number. Labels are known before a step: so the number is computed of them first, and given to the step beside the batch.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::Net;
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result as RunResult, Tensor};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::refuse;
use crate::known::Known;
use crate::model::TorchModel;
use crate::ops;
use crate::orders::stored_type;
use crate::program::{Kind, Program, part_dtype, short};
use crate::schema::{Argument, Node, OptionalTensor};
use crate::value::Value;
use crate::walk::{Env, Run, arguments, laid_of};

const LOSSES: &[&str] = &["aten.cross_entropy_loss.default", "aten.nll_loss_nd.default"];

/// A loss that is a mean over labels that count.
#[derive(Clone, Debug)]
pub(crate) struct CountedLoss {
    /// The node's place.
    at: usize,
    /// What the node's result is called.
    pub result: String,
    labels: String,
    weight: Option<String>,
    ignored: i64,
    dtype: DType,
}

fn tensor_of<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    node.inputs.iter().filter(|input| input.name == name).find_map(|input| match &input.arg {
        Argument::AsTensor(named) | Argument::AsOptionalTensor(OptionalTensor::AsTensor(named)) => {
            Some(named.name.as_str())
        }
        _ => None,
    })
}

fn number_of(node: &Node, name: &str, default: i64) -> i64 {
    let given = node.inputs.iter().find(|input| input.name == name);
    given.map_or(default, |input| match input.arg {
        Argument::AsInt(n) => n,
        _ => default,
    })
}

impl CountedLoss {
    /// The losses of a program whose labels depend on its inputs alone.
    pub fn of(program: &Program) -> Vec<CountedLoss> {
        let nodes = program.graph.nodes.iter().enumerate();
        nodes.filter_map(|(at, node)| CountedLoss::new(program, at, node)).collect()
    }

    fn new(program: &Program, at: usize, node: &Node) -> Option<CountedLoss> {
        // 1 stands for the mean.
        if !LOSSES.contains(&short(&node.target)) || number_of(node, "reduction", 1) != 1 {
            return None;
        }
        let (labels, weight) = (tensor_of(node, "target")?, tensor_of(node, "weight"));
        let Some(Argument::AsTensor(result)) = node.outputs.first() else { return None };
        let dtype = |name: &str| part_dtype(program.graph.tensor_values.get(name)?.dtype).ok();
        let loss = CountedLoss {
            at,
            result: result.name.clone(),
            labels: labels.into(),
            weight: weight.map(str::to_owned),
            ignored: number_of(node, "ignore_index", -100),
            dtype: if dtype(&result.name)? == DType::F64 { DType::F64 } else { DType::F32 },
        };
        let is_known = dtype(labels)?.is_index() && needed(program, std::slice::from_ref(&loss)).is_some();
        is_known.then_some(loss)
    }
}

/// The nodes that labels and weights are made by; none where they depend on what is learned or drawn.
fn needed(program: &Program, losses: &[CountedLoss]) -> Option<Vec<usize>> {
    let last = losses.iter().map(|loss| loss.at).max()?;
    let mut wanted: FxHashSet<&str> = losses
        .iter()
        .flat_map(|loss| [Some(&loss.labels), loss.weight.as_ref()])
        .flatten()
        .map(String::as_str)
        .collect();
    let mut nodes = Vec::new();
    for at in (0..last).rev() {
        let node = &program.graph.nodes[at];
        let mut names = Vec::new();
        node.outputs.iter().for_each(|output| arguments(output, &mut names));
        if !names.iter().any(|name| wanted.contains(name)) {
            continue;
        }
        let op = short(&node.target);
        if op.starts_with("higher_order.") || ops::draws(op) {
            return None;
        }
        let mut read = Vec::new();
        node.inputs.iter().for_each(|input| arguments(&input.arg, &mut read));
        wanted.extend(read);
        nodes.push(at);
    }
    let is_fixed = |name: &&str| {
        program.bound.get(*name).is_none_or(|&at| {
            let held = &program.held()[at];
            held.kind != Kind::Trained && !held.is_changed
        })
    };
    nodes.reverse();
    wanted.iter().all(is_fixed).then_some(nodes)
}

/// Labels that a card counts at a time: little is held beside the step.
const AT_ONCE: usize = 1 << 20;

/// Bytes of labels that have come over from a card before it has started the kernels to count them.
const FEW: usize = 1 << 20;

/// How many labels are not ignored. On a card many are counted there, since all of them would take longer to come over than the step's own kernels take.
fn counted(labels: &Tensor, ignored: i64) -> RunResult<f64> {
    let is_near = !labels.device().is_some_and(|device| device.has_own_memory());
    if is_near || labels.ty().bytes() <= FEW {
        let labels = labels.cast(DType::I64)?.to_vec::<i64>()?;
        return Ok(labels.iter().filter(|label| **label != ignored).count() as f64);
    }
    let n = labels.ty().elements();
    let flat = labels.reshape([n])?;
    let ignored = flat.full_like(Type::new(flat.dtype(), []), ignored as f64)?;
    let mut total = 0.0;
    for start in (0..n).step_by(AT_ONCE) {
        let some = flat.narrow(0, start, (start + AT_ONCE).min(n))?.not_equal(&ignored)?;
        total += some.cast(DType::F32)?.sum(&[], false)?.item()?;
    }
    Ok(total)
}

impl TorchModel {
    /// The types of what [`TorchModel::shares`] gives for a batch of so many samples: inputs that a step takes after those of the program.
    pub fn share_types(&self, samples: usize) -> Vec<Type> {
        self.counted.iter().map(|loss| Type::new(loss.dtype, [samples])).collect()
    }

    /// For each loss that is a mean over labels that count: what a label counts for in this batch, where all would count for 1.
    ///
    /// # Errors
    /// The inputs are not those of the program.
    pub fn shares(&self, inputs: &[Tensor]) -> RunResult<Vec<f64>> {
        let program = self.program();
        let Some(nodes) = needed(program, &self.counted) else { return Ok(Vec::new()) };
        let Some(anchor) = inputs.first() else { return Err(refuse("counts the labels of no input")) };
        let mut env: Env<'_> = FxHashMap::default();
        for (input, given) in program.inputs().iter().zip(inputs) {
            env.insert(&input.name, Value::Tensor(given.clone().into(), false));
        }
        let mut net = Net::bound(&[], &[], false);
        let mut run = Run::new(&mut net, anchor, &program.graph, Known::default(), FxHashMap::default());
        for node in nodes.iter().map(|&at| &program.graph.nodes[at]) {
            let mut read = Vec::new();
            node.inputs.iter().for_each(|input| arguments(&input.arg, &mut read));
            for name in read {
                self.bind_kept(name, &mut env)?;
            }
            run.node(&program.graph, node, &mut env)?;
        }
        for name in self.counted.iter().flat_map(|loss| [Some(&loss.labels), loss.weight.as_ref()]).flatten()
        {
            self.bind_kept(name, &mut env)?;
        }
        let share = |loss: &CountedLoss| {
            let labels = laid_of(&env, &loss.labels)?.plain()?;
            let all = labels.ty().elements() as f64;
            let Some(name) = &loss.weight else { return Ok(all / counted(&labels, loss.ignored)?) };
            let weights = laid_of(&env, name)?.plain()?.cast(DType::F64)?.to_vec::<f64>()?;
            let of = |&label: &i64| match usize::try_from(label) {
                _ if label == loss.ignored => 0.0,
                Ok(at) => weights.get(at).copied().unwrap_or(f64::NAN),
                Err(_) => f64::NAN,
            };
            Ok(all / labels.cast(DType::I64)?.to_vec::<i64>()?.iter().map(of).sum::<f64>())
        };
        self.counted.iter().map(share).collect()
    }

    /// Gives a kept tensor its value, where a name is that of one.
    fn bind_kept<'a>(&'a self, name: &'a str, env: &mut Env<'a>) -> RunResult<()> {
        let program = self.program();
        let Some(&at) = program.bound.get(name).filter(|_| !env.contains_key(name)) else { return Ok(()) };
        let (held, order) = (&program.held()[at], &self.orders[at]);
        let mut tensor = Tensor::zeros(stored_type(held, order))?;
        tensor.set_bytes(&self.bytes(&held.name)?)?;
        env.insert(name, Value::Tensor(Laid::ordered(tensor, order), false));
        Ok(())
    }
}
