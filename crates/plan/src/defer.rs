//! Puts off what reads the results of ops that go on beside others, so that there are others to go on beside.
//!
//! The search knows nothing of this: a schedule frees what an exchange made as soon as it can, and so waits for it at once. Here, in the one schedule
//! that becomes a plan, readers of an exchange stand back until it should be over, and other ops go before them, as far as the budget has room for what is
//! then held longer: operands and scratch of what is under way, and whatever the readers would have freed. The ops are the same and so are their values.

use crate::indexed_problem::IndexedProblem;
use crate::lifespan::{Action, Lifespans, lifespans, profile};
use crate::place::{Places, place, usual_work};
use crate::problem::{Home, OpId, Problem, TensorId};

/// An exchange is given so many times as long as it is predicted to take: other ranks come late, and who waits for nobody has lost nothing.
const PATIENCE: u64 = 2;
/// What may be under way at once, as parts of all that ever is: the first that fits is taken.
const WINDOWS: [u64; 5] = [1, 2, 4, 8, 16];

/// A schedule whose exchanges go on beside its ops, with its offsets.
pub(crate) struct Deferred {
    pub actions: Vec<Action>,
    pub spans: Lifespans,
    pub places: Places,
    pub live: u64,
}

/// The schedule with readers of exchanges put off as far as there is room; nothing where there is none, or nothing to put off.
pub(crate) fn deferred(
    problem: &Problem,
    indexed: &IndexedProblem,
    actions: &[Action],
    budget: u64,
) -> Option<Deferred> {
    let is_beside =
        |position: u32| problem.ops.get(indexed.op_id[position as usize].index()).is_some_and(|op| op.beside);
    let runs: Option<Vec<u32>> = actions
        .iter()
        .map(|action| match action {
            Action::Run(op) => Some(*op),
            // Copies to the host have an order of their own.
            _ => None,
        })
        .collect();
    let runs = runs.filter(|runs| runs.iter().any(|op| is_beside(*op)))?;
    let beside: Vec<bool> = (0..indexed.ops).map(is_beside).collect();
    let all: u64 = runs.iter().filter(|op| beside[**op as usize]).map(|op| taken(indexed, *op)).sum();
    for part in WINDOWS {
        let order = Line::new(problem, indexed, &beside, all / part).put_off(&runs);
        if order == runs {
            return None;
        }
        let actions: Vec<Action> = order.into_iter().map(Action::Run).collect();
        let mut spans = lifespans(indexed, &actions, problem.scratch_alignment);
        hold(indexed, &beside, &actions, &mut spans);
        let live =
            indexed.resident_bytes + profile(&spans.buffers, actions.len()).into_iter().max().unwrap_or(0);
        if live > budget {
            continue;
        }
        let enough = if budget == u64::MAX { live } else { budget };
        let places = place(&spans, indexed.resident_bytes, enough, usual_work(spans.buffers.len()));
        if places.height <= budget {
            return Some(Deferred { actions, spans, places, live });
        }
    }
    None
}

/// Lets what an exchange reads and its scratch be there until something reads what it makes.
fn hold(indexed: &IndexedProblem, beside: &[bool], actions: &[Action], spans: &mut Lifespans) {
    // From the end: the first reader of each tensor behind a place.
    let mut reader = vec![actions.len() as u32; indexed.tensors() as usize];
    for (time, action) in actions.iter().enumerate().rev() {
        let Action::Run(op) = *action else { continue };
        if beside[op as usize] {
            let made = indexed.outs.of(op).iter().filter(|t| indexed.size[**t as usize] > 0);
            let end = made.map(|t| reader[*t as usize]).min().unwrap_or(actions.len() as u32);
            let outs = indexed.outs.of(op).len();
            let own = spans.start[time] as usize..spans.start[time + 1] as usize;
            let ins = indexed.ins.of(op).len();
            for (k, operand) in spans.operands[own].iter().enumerate() {
                if !(ins..ins + outs).contains(&k) {
                    let upper = &mut spans.buffers[*operand as usize].upper;
                    *upper = (*upper).max(end);
                }
            }
        }
        indexed.ins.of(op).iter().for_each(|t| reader[*t as usize] = time as u32);
    }
}

/// Which tensors and residents ops that stand back use, each as often as it is.
#[derive(Clone)]
struct Used {
    read: Vec<u32>,
    made: Vec<u32>,
    residents_read: Vec<u32>,
    residents_changed: Vec<u32>,
}

/// Residents that an op reads and changes.
type Residents = (Vec<u32>, Vec<u32>);

impl Used {
    fn new(tensors: usize, residents: usize) -> Used {
        let (none, none_resident) = (vec![0; tensors], vec![0; residents]);
        Used {
            read: none.clone(),
            made: none,
            residents_read: none_resident.clone(),
            residents_changed: none_resident,
        }
    }

    fn add(&mut self, indexed: &IndexedProblem, op: u32, (reads, changes): &Residents) {
        indexed.ins.of(op).iter().for_each(|t| self.read[*t as usize] += 1);
        indexed.outs.of(op).iter().for_each(|t| self.made[*t as usize] += 1);
        reads.iter().for_each(|r| self.residents_read[*r as usize] += 1);
        changes.iter().for_each(|r| self.residents_changed[*r as usize] += 1);
    }

    /// Whether one of them must stay before an op: what it makes is read there, or one changes a resident that the other uses. What is made anew is not made
    /// before it was used, or it would be held twice.
    fn stand_before(&self, indexed: &IndexedProblem, op: u32, (reads, changes): &Residents) -> bool {
        let any = |list: &[u32], counts: &[u32]| list.iter().any(|x| counts[*x as usize] > 0);
        let (ins, outs) = (indexed.ins.of(op), indexed.outs.of(op));
        any(ins, &self.made)
            || any(outs, &self.made)
            || any(outs, &self.read)
            || any(reads, &self.residents_changed)
            || any(changes, &self.residents_changed)
            || any(changes, &self.residents_read)
    }
}

/// Ops as they are let through, and those that stand back.
struct Line<'a> {
    indexed: &'a IndexedProblem,
    beside: &'a [bool],
    residents: Vec<Residents>,
    /// Bytes that exchanges under way may take.
    window: u64,
    order: Vec<u32>,
    back: Vec<u32>,
    used: Used,
    now: u64,
    /// When the last exchange is over.
    free: u64,
    /// Exchanges under way: when each should be over.
    under_way: Vec<(u32, u64)>,
    /// By tensor: whether one of those makes it.
    is_pending: Vec<bool>,
}

impl<'a> Line<'a> {
    fn new(problem: &Problem, indexed: &'a IndexedProblem, beside: &'a [bool], window: u64) -> Line<'a> {
        let residents = |op: &OpId| {
            let Some(op) = problem.ops.get(op.index()) else { return Residents::default() };
            let root = |t: &TensorId| problem.root(*t).0;
            let is_resident = |t: &TensorId| problem.tensors[t.index()].home == Home::Resident;
            let read = op.reads.iter().map(root).filter(is_resident).map(|t| t.0).collect();
            (read, op.updates.iter().map(root).map(|t| t.0).collect())
        };
        let tensors = indexed.tensors() as usize;
        Line {
            indexed,
            beside,
            residents: indexed.op_id.iter().map(residents).collect(),
            window,
            order: Vec::with_capacity(indexed.ops as usize),
            back: Vec::new(),
            used: Used::new(tensors, problem.tensors.len()),
            now: 0,
            free: 0,
            under_way: Vec::new(),
            is_pending: vec![false; tensors],
        }
    }

    /// The ops in another order, that works as well as the one given.
    fn put_off(mut self, runs: &[u32]) -> Vec<u32> {
        for &op in runs {
            if self.waits(op) || self.used.stand_before(self.indexed, op, &self.residents[op as usize]) {
                self.used.add(self.indexed, op, &self.residents[op as usize]);
                self.back.push(op);
            } else if self.run(op) {
                self.let_through();
            }
            while self.is_full() {
                self.end_first();
            }
        }
        while !self.under_way.is_empty() {
            self.end_first();
        }
        self.let_through();
        self.order
    }

    /// Whether it reads what an exchange under way makes.
    fn waits(&self, op: u32) -> bool {
        self.indexed.ins.of(op).iter().any(|t| self.is_pending[*t as usize])
    }

    /// Runs an op; whether an exchange is over by then.
    fn run(&mut self, op: u32) -> bool {
        self.order.push(op);
        let ns = self.indexed.ns[op as usize];
        if self.beside[op as usize] {
            self.free = self.free.max(self.now) + ns;
            self.under_way.push((op, self.free.max(self.now + PATIENCE * ns)));
            self.mark(op, true);
            return false;
        }
        self.now += ns;
        let over = self.under_way.iter().take_while(|(_, over)| *over <= self.now).count();
        let ended: Vec<(u32, u64)> = self.under_way.drain(..over).collect();
        ended.iter().for_each(|(exchange, _)| self.mark(*exchange, false));
        over > 0
    }

    /// Says of what an exchange makes whether it is still to come. What stands for the order of exchanges alone has no bytes, and is there at once.
    fn mark(&mut self, exchange: u32, is_pending: bool) {
        for t in self.indexed.outs.of(exchange).iter().filter(|t| self.indexed.size[**t as usize] > 0) {
            self.is_pending[*t as usize] = is_pending;
        }
    }

    fn is_full(&self) -> bool {
        let taken = |(op, _): &(u32, u64)| taken(self.indexed, *op);
        // One alone is waited for wherever it is read.
        self.under_way.len() > 1 && self.under_way.iter().map(taken).sum::<u64>() > self.window
    }

    /// Waits for the exchange that was started first.
    fn end_first(&mut self) {
        let (exchange, over) = self.under_way.remove(0);
        self.now = self.now.max(over);
        self.mark(exchange, false);
        self.let_through();
    }

    /// Runs what stands back and need not any more, in order.
    fn let_through(&mut self) {
        let mut is_more = true;
        while is_more {
            is_more = false;
            let back = std::mem::take(&mut self.back);
            self.used = Used::new(self.is_pending.len(), self.used.residents_read.len());
            for op in back {
                let residents = &self.residents[op as usize];
                if self.waits(op) || self.used.stand_before(self.indexed, op, residents) {
                    self.used.add(self.indexed, op, residents);
                    self.back.push(op);
                } else {
                    is_more |= self.run(op);
                }
            }
        }
    }
}

/// What an exchange takes while it is under way, beside what it reads.
fn taken(indexed: &IndexedProblem, op: u32) -> u64 {
    let made: u64 = indexed.outs.of(op).iter().map(|t| indexed.size[*t as usize]).sum();
    made + indexed.scratch[op as usize]
}

#[cfg(test)]
mod tests {
    use crate::plan::{Request, Step};
    use crate::problem::{Op, Problem, Tensor};
    use crate::{Plan, plan};

    /// Four layers back: each makes a gradient of its own, which is exchanged and then changes a weight. The backward pass of a layer and its exchange
    /// take as long.
    fn backward() -> Problem {
        let mut step = Problem::new();
        let mut last = None;
        let mut token = None;
        for layer in 0..4 {
            let weight = step.tensor(Tensor::resident(format!("w{layer}"), 256));
            let grad = step.tensor(Tensor::transient(format!("g{layer}"), 256));
            let back = step.tensor(Tensor::transient(format!("d{layer}"), 64));
            let mut reads = vec![weight];
            reads.extend(last);
            step.op(Op::new(format!("back{layer}"), &reads, &[grad, back], 100));
            let sum = step.tensor(Tensor::transient(format!("s{layer}"), 256));
            let next = step.tensor(Tensor::transient(format!("t{layer}"), 0));
            let mut reads = vec![grad];
            reads.extend(token);
            let exchange = Op {
                beside: true,
                replayable: false,
                scratch: 128,
                ..Op::new("exchange", &reads, &[sum, next], 90)
            };
            step.op(Op { in_place: vec![(grad, sum)], ..exchange });
            step.op(Op {
                updates: vec![weight],
                replayable: false,
                ..Op::new("update", &[sum, weight], &[], 10)
            });
            (last, token) = (Some(back), Some(next));
        }
        let loss = step.tensor(Tensor::output("loss", 4));
        step.op(Op::new("end", &[last.unwrap()], &[loss], 1));
        step
    }

    fn names(step: &Problem, plan: &Plan) -> Vec<String> {
        let name = |s: &Step| match s {
            Step::Run { op, .. } => step.ops[op.index()].name.clone(),
            other => format!("{other:?}"),
        };
        plan.steps.iter().map(name).collect()
    }

    /// How many exchanges are read by the very next op.
    fn read_at_once(names: &[String]) -> usize {
        names.windows(2).filter(|pair| pair[0] == "exchange" && pair[1] == "update").count()
    }

    #[test]
    fn updates_stand_back_until_their_exchange_should_be_over() {
        let step = backward();
        let found = plan(&step, &Request::within(1 << 20)).unwrap();
        let order = names(&step, &found);
        // But for the last: nothing is left to go before it.
        assert!(read_at_once(&order) <= 1, "{order:?}");
        assert!(
            order.iter().position(|name| name == "update") > order.iter().position(|name| name == "back1")
        );
    }

    #[test]
    fn where_there_is_no_room_an_exchange_is_waited_for() {
        let step = backward();
        let most = plan(&step, &Request::within(1 << 20)).unwrap().figures.arena_bytes;
        let least = plan(&step, &Request::within(1 << 20)).unwrap().figures.floor_bytes;
        assert!(least < most, "{least} {most}");
        let tight = plan(&step, &Request::within(least)).unwrap();
        assert_eq!(tight.figures.arena_bytes, least);
        assert_eq!(read_at_once(&names(&step, &tight)), 4);
        // In between some of them are.
        for budget in (least..most).step_by(64) {
            assert!(plan(&step, &Request::within(budget)).unwrap().figures.arena_bytes <= budget);
        }
    }

    #[test]
    fn an_update_stays_before_whoever_reads_the_new_value() {
        let mut step = backward();
        // The end reads the first layer's new weight.
        let weight = step.ops[0].reads[0];
        let end = step.ops.len() - 1;
        step.ops[end].reads.push(weight);
        let found = plan(&step, &Request::within(1 << 20)).unwrap();
        let order: Vec<usize> = found
            .steps
            .iter()
            .filter_map(|s| if let Step::Run { op, .. } = s { Some(op.index()) } else { None })
            .collect();
        let at = |op: usize| order.iter().position(|o| *o == op).unwrap();
        assert!(at(2) < at(end), "{order:?}");
    }
}
