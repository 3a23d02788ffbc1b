//! Gives the results of a graph their places: over the argument that they replace, in it once everything is done, on the host, or
//! in bytes of their own.

use plimsoll_graph::{NodeId, ValueId};
use plimsoll_plan as plan;
use plimsoll_plan::{Home, Kind, Tensor};

use super::{Brought, Location, Lowered, Move, Phase, Place, Roles, Source, carry_ns};
use crate::device::Device;
use crate::error::Result;

/// A value that is put into its place once it is there.
pub(super) struct Commit {
    pub(super) from: From,
    pub(super) to: To,
    bytes: usize,
}

/// Where it goes: to an argument or a result, or to an argument that is on the host.
pub(super) enum To {
    Place(Location),
    Hosted(usize),
}

/// Where it comes from.
pub(super) enum From {
    Root(ValueId),
    Aside(Location),
}

impl Lowered {
    /// Arguments on the host that are results as they were given, so that they are wanted before anything runs.
    pub(super) fn wanted_at_once(
        &self,
        roles: &Roles<'_>,
        away: &[(ValueId, usize)],
    ) -> Vec<(ValueId, usize)> {
        let leaves = |v: ValueId, a: usize| {
            let outputs = self.graph.outputs().iter().enumerate();
            let same = |(r, w): (usize, &ValueId)| {
                self.roots[w.index()] == v && roles.replaces.get(r).copied().flatten() != Some(a)
            };
            outputs.into_iter().any(same)
        };
        away.iter().copied().filter(|&(v, a)| leaves(v, a)).collect()
    }

    /// Which arguments on the host may be brought once a phase: those that no plan could bring when their new value is there already.
    /// Whatever of the forward pass reads one must come before the guard, behind which alone new values go to the host; what other phases
    /// bring, the copy of the new value waits for.
    pub(super) fn may_come_again(
        &self,
        roles: &Roles<'_>,
        away: &[(ValueId, usize)],
        guard: Option<NodeId>,
    ) -> Vec<bool> {
        let graph = &self.graph;
        let mut before_guard = vec![false; graph.nodes().len()];
        let mut left: Vec<NodeId> = guard.into_iter().collect();
        while let Some(id) = left.pop() {
            if !std::mem::replace(&mut before_guard[id.index()], true) {
                let makers = graph.node(id).inputs.iter().filter_map(|v| graph.info(*v).producer);
                left.extend(makers.map(|(maker, _)| maker));
            }
        }
        let is_sure = |v: ValueId| {
            graph.nodes().iter().enumerate().all(|(i, node)| {
                let is_forward = self.phases.of(graph, NodeId(i as u32)) == Phase::Forward;
                let reads = || node.inputs.iter().any(|own| self.roots[own.index()] == v);
                !is_forward || before_guard[i] || node.op.is_view() || !reads()
            })
        };
        let is_replaced = |a: usize| roles.replaces.contains(&Some(a));
        away.iter().map(|&(v, a)| !is_replaced(a) || (guard.is_some() && is_sure(v))).collect()
    }

    /// Brings an argument from the host.
    pub(super) fn fetch(&mut self, v: ValueId, argument: usize, phase: Phase, device: &Device) -> Result<()> {
        let (at, bytes) = (self.location(v)?, self.graph.ty(v).bytes());
        let name = format!("fetch {}", self.graph.info(v).name);
        let op = plan::Op::fetch(name, at.tensor, carry_ns(device, bytes));
        let op = self.problem.op(op).index();
        self.brought.push(Brought { value: v, argument, op, at, phase });
        self.sources.push(Source::Carry { argument, at, bytes, out: false });
        Ok(())
    }

    /// Whether a value is computed from another by ops of the update alone.
    fn is_made_of(&self, made: ValueId, from: ValueId) -> bool {
        let graph = &self.graph;
        let (mut left, mut seen) = (vec![made], std::collections::BTreeSet::new());
        while let Some(v) = left.pop() {
            let Some((maker, _)) = graph.info(v).producer else { continue };
            if self.phases.of(graph, maker) != Phase::Update || !seen.insert(maker.index()) {
                continue;
            }
            let node = graph.node(maker);
            if node.inputs.iter().any(|input| self.roots[input.index()] == from) {
                return true;
            }
            left.extend(&node.inputs);
        }
        false
    }

    /// Puts a value into its place.
    pub(super) fn commit(&mut self, commit: Commit, device: &Device) -> Result<()> {
        let Commit { from, to, bytes } = commit;
        let made = match from {
            From::Root(root) => Some(root),
            From::Aside(_) => None,
        };
        let from = match from {
            From::Aside(location) => location,
            From::Root(root) => self.location(root)?,
        };
        let argument = match to {
            To::Hosted(argument) => argument,
            To::Place(to) => {
                self.copy(from, to, bytes);
                return Ok(());
            }
        };
        let name = format!("store {}", self.graph.info(self.graph.inputs()[argument]).name);
        let mut op = plan::Op::store(name, from.tensor, carry_ns(device, bytes));
        self.wait_for_guard(&mut op);
        // Nothing that is still to be brought of the old value may find the new one. What the new one was made of has been brought.
        let is_made_of = |from: ValueId| made.is_some_and(|v| self.is_made_of(v, from));
        let later = self.brought.iter().filter(|b| b.argument == argument && b.phase != Phase::Forward);
        let later = later.filter(|b| b.phase != Phase::Update || !is_made_of(b.value));
        op.reads.extend(later.map(|brought| brought.at.tensor));
        self.problem.op(op);
        self.sources.push(Source::Carry { argument, at: from, bytes, out: true });
        Ok(())
    }

    /// Finds the new values of arguments that their makers can write over the old ones: nobody else reads the old value
    /// any more, it is no result, and the op's in-place rule allows it.
    pub(super) fn updates_in_place(
        &mut self,
        replaces: &[Option<usize>],
        order: &[NodeId],
        guard: Option<NodeId>,
    ) {
        let graph = self.graph.clone();
        let mut step_of = vec![0; graph.nodes().len()];
        order.iter().enumerate().for_each(|(step, id)| step_of[id.index()] = step);
        let mut last_read = vec![0; graph.values().len()];
        for (i, node) in graph.nodes().iter().enumerate() {
            for v in &node.inputs {
                let root = self.roots[v.index()].index();
                last_read[root] = last_read[root].max(step_of[i]);
            }
        }
        for (r, &v) in graph.outputs().iter().enumerate() {
            let Some(a) = replaces.get(r).copied().flatten() else { continue };
            let (new, old) = (self.roots[v.index()], graph.inputs()[a]);
            let Some((maker, o)) = graph.info(new).producer else { continue };
            let node = graph.node(maker);
            let allowed =
                node.op.in_place().into_iter().any(|(out, i)| {
                    out == o && self.roots[node.inputs[i].index()] == old && self.alone(node, i)
                });
            let leaves = graph.outputs().iter().any(|w| self.roots[w.index()] == old);
            let fits = graph.ty(new).bytes() == graph.ty(old).bytes();
            let known = guard.is_none_or(|guard| step_of[maker.index()] > step_of[guard.index()]);
            let here = self.locations[old.index()].is_some_and(|location| location.fixed.is_some());
            if known && here && allowed && !leaves && fits && last_read[old.index()] <= step_of[maker.index()]
            {
                self.locations[new.index()] = self.locations[old.index()];
            }
        }
    }

    /// Gives every result its place. What must be copied into an argument after the last op is returned.
    pub(super) fn results(&mut self, roles: &Roles<'_>) -> Result<Vec<Commit>> {
        let graph = self.graph.clone();
        let mut commits = Vec::new();
        for (r, &v) in graph.outputs().iter().enumerate() {
            let (root, bytes) = (self.roots[v.index()], graph.ty(v).bytes());
            let argument = graph.info(root).producer.is_none();
            let present = self.locations[root.index()].and_then(|l| l.fixed);
            let Some(a) = roles.replaces.get(r).copied().flatten() else {
                let to = Place::Result(r);
                match present {
                    // An argument's old value leaves before anything is written, all else after everything is.
                    Some(from) if argument => self.first.push(Move { from, to, bytes }),
                    Some(from) => self.last.push(Move { from, to, bytes }),
                    // An argument that is on the host, as it is.
                    None if argument => {
                        let tensor = Tensor::output(self.graph.info(root).name.clone(), 0);
                        let result = Location { tensor: self.problem.tensor(tensor), fixed: Some(to) };
                        commits.push(Commit { from: From::Root(root), to: To::Place(result), bytes });
                    }
                    None => {
                        self.locate(root, Home::Output, Kind::Other, 0, Some(to));
                    }
                }
                continue;
            };
            if root == graph.inputs()[a] {
                continue;
            }
            let place = self.location(graph.inputs()[a])?;
            let to = if roles.is_hosted(a) { To::Hosted(a) } else { To::Place(place) };
            match present {
                Some(present) if Some(present) == place.fixed => {}
                Some(place) if argument => {
                    // One argument's old value becomes another's new one: put aside before either is written.
                    let from = Location { fixed: Some(place), ..self.location(root)? };
                    let name = self.graph.info(root).name.clone();
                    let aside = self
                        .problem
                        .tensor(Tensor { kind: Kind::Other, ..Tensor::transient(name, bytes as u64) });
                    let aside = Location { tensor: aside, fixed: None };
                    self.copy(from, aside, bytes);
                    commits.push(Commit { from: From::Aside(aside), to, bytes });
                }
                _ => commits.push(Commit { from: From::Root(root), to, bytes }),
            }
        }
        Ok(commits)
    }
}
