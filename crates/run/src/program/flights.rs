//! Turns exchanges that end where they stand into exchanges that go on beside what follows, and are waited for where it matters.
//!
//! Bytes that an exchange writes nobody else touches before it is over, and what it reads nobody writes. How far one reaches is how long the plan
//! leaves its bytes alone; the order in which exchanges are started is the plan's, and so the same on all ranks.

use plimsoll_graph::{Graph, NodeId, Op};
use smallvec::SmallVec;

use super::Instruction;
use crate::lower::{Place, Span};

/// Some bytes at a place.
#[derive(Clone, Copy)]
struct Bytes {
    at: Place,
    len: usize,
}

impl Bytes {
    fn overlap(self, other: Bytes) -> bool {
        if self.len == 0 || other.len == 0 {
            return false;
        }
        match (self.at, other.at) {
            (Place::Arena(a), Place::Arena(b)) => a < b + other.len && b < a + self.len,
            (Place::Arena(_), _) | (_, Place::Arena(_)) => false,
            // A result may replace an argument, in its bytes.
            (Place::Argument(_), Place::Result(_)) | (Place::Result(_), Place::Argument(_)) => true,
            (a, b) => a == b,
        }
    }
}

/// What an instruction reads and what it writes.
#[derive(Default)]
struct Touched {
    reads: SmallVec<[Bytes; 4]>,
    writes: SmallVec<[Bytes; 4]>,
}

impl Touched {
    /// Nothing where it is not known, or where everything is to be over: a check may end the run.
    fn of(instruction: &Instruction, graph: &Graph) -> Option<Touched> {
        let mut touched = Touched::default();
        match instruction {
            Instruction::Run { node, inputs, outputs, scratch, scratch_bytes, .. } => {
                let node = graph.node(*node);
                let bytes = |(v, at): (&plimsoll_graph::ValueId, &Place)| Bytes {
                    at: *at,
                    len: graph.ty(*v).bytes(),
                };
                touched.reads.extend(node.inputs.iter().zip(inputs).map(bytes));
                touched.writes.extend(node.outputs.iter().zip(outputs).map(bytes));
                touched.writes.push(Bytes { at: *scratch, len: *scratch_bytes });
            }
            Instruction::Copy { from, to, bytes } => {
                touched.reads.push(Bytes { at: *from, len: *bytes });
                touched.writes.push(Bytes { at: *to, len: *bytes });
            }
            _ => return None,
        }
        Some(touched)
    }

    /// Whether it must wait until an exchange that touches these bytes is over.
    fn awaits(&self, exchange: &Touched) -> bool {
        let any = |a: &[Bytes], b: &[Bytes]| a.iter().any(|a| b.iter().any(|b| a.overlap(*b)));
        any(&self.reads, &exchange.writes)
            || any(&self.writes, &exchange.writes)
            || any(&self.writes, &exchange.reads)
    }
}

/// The instructions with a wait for each exchange between several ranks before the first that touches its bytes; spans move along. Also which exchanges
/// those are.
pub(super) fn finish_late(
    all: Vec<Instruction>,
    spans: &mut [Span],
    graph: &Graph,
) -> (Vec<Instruction>, Vec<NodeId>) {
    let exchange = |instruction: &Instruction| match instruction {
        Instruction::Run { node, .. } => match &graph.node(*node).op {
            Op::Exchange(exchange) if exchange.of.ranks > 1 => Some(*node),
            _ => None,
        },
        _ => None,
    };
    let started: Vec<NodeId> = all.iter().filter_map(exchange).collect();
    if started.is_empty() {
        return (all, started);
    }
    let mut now: Vec<Instruction> = Vec::with_capacity(all.len() + started.len());
    let mut moved: Vec<u32> = Vec::with_capacity(all.len() + 1);
    let mut under_way: Vec<(NodeId, Touched)> = Vec::new();
    for instruction in all {
        let touched = Touched::of(&instruction, graph);
        under_way.retain(|(node, exchange)| {
            let is_over = touched.as_ref().is_none_or(|touched| touched.awaits(exchange));
            if is_over {
                now.push(Instruction::Finish { node: *node });
            }
            !is_over
        });
        moved.push(now.len() as u32);
        if let (Some(node), Some(touched)) = (exchange(&instruction), touched) {
            under_way.push((node, touched));
        }
        now.push(instruction);
    }
    moved.push(now.len() as u32);
    now.extend(under_way.iter().map(|(node, _)| Instruction::Finish { node: *node }));
    for span in spans {
        (span.from, span.to) = (moved[span.from as usize], moved[span.to as usize]);
    }
    now.shrink_to_fit();
    (now, started)
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::ops::Rank;
    use plimsoll_graph::{DType, ExchangeOps, TensorOps, Trace, Type};

    use super::*;

    /// An exchange of 16 bytes at 0 into 16 at 64 with scratch at 128, then a unary op over the places that are given.
    fn finished(reads: usize, writes: usize) -> Vec<String> {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [4]));
        let sum = x.all_reduce(Rank::new(0, 2)).unwrap();
        let y = x.exp().unwrap();
        let graph = trace.finish(&[&sum, &y]).unwrap();
        let run = |node: u32, from: usize, to: usize, scratch: usize| Instruction::Run {
            node: NodeId(node),
            inputs: [Place::Arena(from)].into_iter().collect(),
            outputs: [Place::Arena(to), Place::Arena(0)].into_iter().collect(),
            scratch: Place::Arena(128),
            scratch_bytes: scratch,
            on_host: false,
        };
        let all = vec![run(0, 0, 64, 32), run(1, reads, writes, 0), run(1, 1024, 2048, 0)];
        let (now, started) = finish_late(all, &mut [], &graph);
        assert_eq!(started, [NodeId(0)]);
        let name = |instruction: &Instruction| match instruction {
            Instruction::Finish { .. } => "finish".to_string(),
            Instruction::Run { node, .. } => graph.node(*node).op.name().to_string(),
            other => format!("{other:?}"),
        };
        now.iter().map(name).collect()
    }

    #[test]
    fn an_exchange_is_waited_for_before_its_bytes_are_touched_and_not_sooner() {
        let late = ["all_reduce", "exp", "exp", "finish"];
        let early = ["all_reduce", "finish", "exp", "exp"];
        // Reading what it reads is no matter, nor is anything elsewhere.
        assert_eq!(finished(0, 256), late);
        assert_eq!(finished(512, 80), late);
        // Its result, its result and its scratch overwritten, what it reads overwritten.
        assert_eq!(finished(64, 256), early);
        assert_eq!(finished(512, 76), early);
        assert_eq!(finished(512, 156), early);
        assert_eq!(finished(512, 12), early);
    }
}
