//! Turns who holds which bytes of a plan into who holds which bytes of a program's arena, from which instruction to which.

use plimsoll_graph::ValueId;
use plimsoll_plan::{Content, Plan, instances};
use plimsoll_record::Kind;

use super::Lowered;

/// Bytes of a program's arena that are held from one instruction up to, not including, another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The value that holds them; none for scratch and for what is only put aside.
    pub(crate) value: Option<ValueId>,
    pub(crate) kind: Kind,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl Lowered {
    /// What a plan holds in the arena, which begins at `base` of the plan's. `starts` has the first instruction of each of the
    /// plan's steps, and the one behind the last.
    pub(crate) fn spans(&self, plan: &Plan, base: u64, starts: &[u32]) -> Vec<Span> {
        let mut values: Vec<Option<ValueId>> = vec![None; self.problem.tensors.len()];
        for (v, location) in self.locations.iter().enumerate() {
            if let Some(location) = location {
                values[location.tensor.index()].get_or_insert(ValueId(v as u32));
            }
        }
        for brought in &self.brought {
            values[brought.at.tensor.index()].get_or_insert(brought.value);
        }
        let held = instances(&self.problem, plan).into_iter().filter(|instance| instance.bytes > 0);
        let span = |instance: plimsoll_plan::Instance| {
            let (from, to) = (starts[instance.from], starts[instance.until]);
            let (value, kind, to) = match instance.content {
                Content::Tensor(t) => (values[t.index()], self.problem.tensors[t.index()].kind, to),
                // A step may have more instructions than the one that runs its op.
                Content::Scratch(_) => (None, Kind::Scratch, from + 1),
            };
            let offset = instance.offset.saturating_sub(base);
            Span { value, kind, offset, bytes: instance.bytes, from, to }
        };
        held.map(span).collect()
    }
}
