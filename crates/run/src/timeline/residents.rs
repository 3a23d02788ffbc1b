//! What is there all the step long: state, inputs, outputs, and where the batch is split, what lies before the arena.

use plimsoll_graph::Type;
use plimsoll_record as record;
use plimsoll_record::Kind;

use super::recorder::Recorder;
use super::{Recorded, padded, shape};
use crate::choose::staged;
use crate::program::Part;

impl Recorded<'_> {
    /// Adds what stays. Returns the bytes of what does not lie in the workspace.
    pub(super) fn record_residents(&self, to: &mut Recorder) -> u64 {
        let first = self.passes.first().copied();
        for (i, state) in self.state.iter().enumerate().filter(|(i, _)| !self.hosted[*i]) {
            let reader = first.filter(|_| state.kind == Kind::Parameter).map(|part| (part, i));
            add(to, &state.name, state.kind, &state.ty, reader);
        }
        for (i, ty) in self.inputs.iter().enumerate() {
            let reader = first.map(|part| (part, self.state.len() + i));
            add(to, &format!("input {i}"), Kind::Input, ty, reader);
        }
        for (i, ty) in self.outputs.iter().enumerate() {
            add(to, &format!("output {i}"), Kind::Other, ty, None);
        }
        let outside = to.step.residents.iter().map(|r| r.bytes).sum();
        let (Some(pass), Some(_)) = (first, self.update) else { return outside };
        let graph = pass.program.graph();
        let sums = graph.inputs().len().saturating_sub(self.n_sums);
        for &v in &graph.inputs()[sums..] {
            let info = graph.info(v);
            add(to, &info.name, Kind::Gradient, &info.ty, None);
        }
        let fixed = !self.device.backend().is_host();
        for (i, ty) in self.inputs.iter().enumerate() {
            if staged(ty, self.batch, pass.samples, fixed).get() > 0 {
                let rows = ty.with_shape(ty.shape.with(0, pass.samples));
                add(to, &format!("rows of input {i}"), Kind::Input, &rows, None);
            }
        }
        for &i in &self.passed {
            let name = format!("{} before the step", self.state[i].name);
            add(to, &name, Kind::Other, &self.state[i].ty, None);
        }
        outside
    }
}

/// Adds a tensor that stays. The reader is a program, and as which argument it reads this.
fn add(to: &mut Recorder, name: &str, kind: Kind, ty: &Type, reader: Option<(&Part, usize)>) {
    let first = reader.and_then(|(part, argument)| {
        let graph = part.program.graph();
        let value = *graph.inputs().get(argument)?;
        graph.nodes().iter().find(|node| node.inputs.contains(&value))
    });
    let site = first.and_then(|node| to.site(node.site));
    let name = to.name(name);
    let (shape, dtype, bytes) = (shape(ty), ty.dtype.name().into(), padded(ty.bytes()));
    to.step.residents.push(record::Resident { name, kind, shape, dtype, bytes, site });
}
