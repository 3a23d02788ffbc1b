//! Turns a finished plan into who holds which bytes of the arena, from which step to which.
//!
//! A plan has no instruction that frees bytes, so lifespans are read off its steps: a tensor is held from the step that makes it
//! to the last one that needs it before it is made anew. Each making is an instance of its own. An output that takes an
//! input's place holds those bytes from then on.
//!
//! The planner has lifespans of its own (`lifespan`), for schedules that have no offsets yet and are packed by them. Here only the
//! plan counts. What is not here: residents, which are held all the step long ([`Plan::residents`]).

use crate::plan::{Plan, Step};
use crate::problem::{Home, Op, OpId, Problem, TensorId};

/// What bytes are held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A tensor that was made in the step, or comes from the host.
    Tensor(TensorId),
    /// The scratch of an op while it runs.
    Scratch(OpId),
}

/// A range of the arena's bytes that is held from step `from` up to, not including, step `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// What for.
    pub content: Content,
    /// The position in [`Plan::steps`] of the step that makes it.
    pub from: usize,
    /// The position of the first step that it need not be there for.
    pub until: usize,
    /// Where it begins.
    pub offset: u64,
    /// Its bytes, with what pads them.
    pub bytes: u64,
    /// Whether the tensor was there before in this plan, and is recomputed or copied back.
    pub again: bool,
}

/// Finds what a plan holds, in the order in which it is made.
///
/// ```
/// use plimsoll_plan::{Content, Op, Problem, Request, Tensor, instances, plan};
/// let mut step = Problem::new();
/// let a = step.tensor(Tensor::transient("a", 1024));
/// let b = step.tensor(Tensor::output("b", 64));
/// step.op(Op::new("make a", &[], &[a], 10));
/// step.op(Op::new("make b", &[a], &[b], 10));
/// let plan = plan(&step, &Request::within(2048)).unwrap();
/// let held = instances(&step, &plan);
/// assert_eq!((held[0].content, held[0].from, held[0].until), (Content::Tensor(a), 0, 2));
/// assert_eq!((held[1].content, held[1].from, held[1].until), (Content::Tensor(b), 1, 2));
/// ```
pub fn instances(problem: &Problem, plan: &Plan) -> Vec<Instance> {
    let now = vec![None; problem.tensors.len()];
    let mut follow = Follow { problem, now, instances: Vec::new(), replaced: Vec::new() };
    for (time, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Run { op, writes, scratch, .. } => {
                follow.run(time, *op, writes, *scratch);
            }
            // What is copied to the host stays until the copy has been awaited, and what comes back takes its bytes from the
            // start of its copy on.
            Step::Offload { tensor, .. } | Step::Await { tensor, .. } => follow.needed(time, *tensor),
            Step::Prefetch { tensor, to, .. } => follow.made(time, *tensor, *to),
        }
    }
    follow.finish(plan.steps.len())
}

/// The bytes that are held during each of a plan's steps, residents not counted.
pub fn live_bytes(instances: &[Instance], steps: usize) -> Vec<u64> {
    let mut change = vec![0i64; steps + 1];
    for instance in instances {
        change[instance.from.min(steps)] += instance.bytes as i64;
        change[instance.until.min(steps)] -= instance.bytes as i64;
    }
    let held = change[..steps].iter().scan(0, |held, change| {
        *held += change;
        Some(*held as u64)
    });
    held.collect()
}

struct Follow<'a> {
    problem: &'a Problem,
    /// The instance of each tensor that later steps find.
    now: Vec<Option<usize>>,
    instances: Vec<Instance>,
    /// Instances whose place an output of the step takes, unless a later step still reads them.
    replaced: Vec<(usize, usize)>,
}

impl Follow<'_> {
    fn run(&mut self, time: usize, id: OpId, writes: &[u64], scratch: u64) {
        let problem = self.problem;
        let op = &problem.ops[id.index()];
        for &tensor in &op.reads {
            self.needed(time, tensor);
        }
        for (&tensor, &offset) in op.writes.iter().zip(writes) {
            self.replace(time, op, tensor, offset);
            self.made(time, tensor, offset);
        }
        if op.scratch > 0 {
            let bytes = op.scratch.next_multiple_of(problem.scratch_alignment.max(1));
            let content = Content::Scratch(id);
            let until = time + 1;
            self.instances.push(Instance {
                content,
                from: time,
                until,
                offset: scratch,
                bytes,
                again: false,
            });
        }
    }

    fn needed(&mut self, time: usize, tensor: TensorId) {
        if let Some(now) = self.now[self.problem.root(tensor).0.index()] {
            self.instances[now].until = time + 1;
        }
    }

    fn made(&mut self, time: usize, tensor: TensorId, offset: u64) {
        let bytes = self.problem.tensors[tensor.index()].padded_bytes();
        let again = self.now[tensor.index()].replace(self.instances.len()).is_some();
        let content = Content::Tensor(tensor);
        self.instances.push(Instance { content, from: time, until: time + 1, offset, bytes, again });
    }

    /// Notes which inputs of `op` lie where it writes `tensor`, as it is allowed to.
    fn replace(&mut self, time: usize, op: &Op, tensor: TensorId, offset: u64) {
        let bytes = self.problem.tensors[tensor.index()].padded_bytes();
        for (read, _) in op.in_place.iter().filter(|pair| pair.1 == tensor) {
            let Some(now) = self.now[self.problem.root(*read).0.index()] else { continue };
            let there = &self.instances[now];
            if there.offset == offset && there.bytes <= bytes {
                self.replaced.push((now, time));
            }
        }
    }

    fn finish(mut self, steps: usize) -> Vec<Instance> {
        for (tensor, now) in self.problem.tensors.iter().zip(&self.now) {
            if let (Home::Output, Some(now)) = (tensor.home, *now) {
                self.instances[now].until = steps;
            }
        }
        for (now, time) in self.replaced {
            let instance = &mut self.instances[now];
            if instance.until == time + 1 {
                instance.until = time;
            }
        }
        self.instances
    }
}
