//! What is planned: a step, its options, and what of it is there already.
//!
//! What can be asked of it stands with the answer: its limits (`limits`), candidates (`candidate`) and what they take (`candidate_bytes`), places for its state (`placement`),
//! a refusal (`refuse`).

use plimsoll_device::Bytes;
use plimsoll_device::stopwatch::during;
use plimsoll_graph::{DType, Graph, Site, Type, ValueId};

use crate::device::{Device, blocks};
use crate::error::{Error, Result};
use crate::trace::{StateSpec, StepFn, StepOptions, Traceable};

/// A step that is to be planned.
#[derive(Clone)]
pub(crate) struct StepToPlan {
    pub(crate) step: Traceable,
    pub(crate) options: StepOptions,
    /// Whether the first output must be finite, or nothing is changed.
    pub(crate) guarded: bool,
    pub(crate) present: Present,
    /// Whether the least of a long step is looked for in haste, because it is asked for in passing: what is found is enough.
    pub(crate) in_haste: bool,
}

/// Who is refused does not wait long for advice: a step of more ops than this is long.
pub(super) const MANY_OPS: usize = 400;

/// What of a step is there when it is planned: it is counted where it lies, and what is not there is added.
#[derive(Clone, Debug, Default)]
pub(crate) struct Present {
    /// How many parts of the state are, from the first on.
    pub(crate) state: usize,
    /// Bytes of the device that are given back before the step takes its own: the workspace of a step over the same state.
    pub(crate) given_back: Bytes,
    /// Whether a batch of inputs is.
    pub(crate) inputs: bool,
    /// Whether the step has run before, and with it what was declared beside it.
    pub(crate) others: bool,
    /// Which state is on the host, where that is settled and not for this plan to choose.
    pub(crate) placement: Option<Vec<bool>>,
    /// Which state is on the host in any case, where it is for this plan to choose: another form of the step has no room for it.
    pub(crate) at_least: Option<Vec<bool>>,
}

impl StepToPlan {
    /// A step over a state and inputs of these types, on a device.
    pub(crate) fn new(
        device: &Device,
        options: &StepOptions,
        state: Vec<StateSpec>,
        inputs: &[Type],
        body: StepFn,
        present: Present,
        site: Site,
    ) -> Result<StepToPlan> {
        let batch = options.batch_of(inputs, site)?;
        let (device, inputs) = (device.clone(), inputs.to_vec());
        let step = Traceable { device, body, state, inputs, batch, site };
        Ok(StepToPlan { step, options: options.clone(), guarded: options.guarded, present, in_haste: false })
    }

    /// The same step, whose least is looked for in haste if it is long.
    pub(super) fn in_passing(&self) -> StepToPlan {
        StepToPlan { in_haste: true, ..self.clone() }
    }

    /// That f64 tensors enter a step whose other floats are narrower, which is rarely meant: their names, and what to do. Single numbers
    /// cost nothing and are not named.
    pub(crate) fn remark(&self) -> Option<String> {
        let state = self.step.state.iter().map(|part| (part.name.clone(), &part.ty));
        let inputs = self.step.inputs.iter().enumerate().map(|(i, ty)| (format!("input {i}"), ty));
        let floats = state.chain(inputs).filter(|(_, ty)| ty.dtype.is_float() && ty.elements() > 1);
        let (wide, narrow): (Vec<_>, Vec<_>) = floats.partition(|(_, ty)| ty.dtype == DType::F64);
        let other = narrow.first().map(|(_, ty)| ty.dtype)?;
        let named: Vec<String> = wide.iter().take(4).map(|(name, ty)| format!("{name} ({ty})")).collect();
        let more = match wide.len().saturating_sub(named.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!wide.is_empty()).then(|| {
            format!(
                "{}{more} in a step that otherwise holds {other}: f64 takes twice the bytes of f32 and more time; cast to f32 unless the digits are needed",
                named.join(", ")
            )
        })
    }

    /// Bytes of the device that state will take that is not there yet.
    pub(super) fn absent(&self) -> Bytes {
        blocks(&self.step.device, self.step.state.iter().skip(self.present.state).map(|part| part.ty.bytes()))
    }

    /// Bytes of the host that plans may copy to: none where the device's memory is the host's.
    pub(super) fn host(&self) -> Bytes {
        let link = self.step.device.backend().rough_link();
        self.options.request.host_limit.filter(|_| link.is_some()).unwrap_or(Bytes::ZERO)
    }
}

/// Loads the code of a graph's kernels, which kernels that are timed need, and the libraries that they call, so that what those take is
/// counted.
pub(super) fn load_kernels(graph: &Graph, device: &Device) -> Result<()> {
    during("kernels prepared", || load_each(graph, device))
}

fn load_each(graph: &Graph, device: &Device) -> Result<()> {
    let types = |ids: &[ValueId]| ids.iter().map(|&v| graph.ty(v)).collect::<Vec<&Type>>();
    let mut here = Vec::new();
    for node in graph.nodes().iter().filter(|node| !node.op.is_view()) {
        if !device.is_on_host(graph, node)? {
            here.push((&node.op, types(&node.inputs), types(&node.outputs)));
        }
    }
    device.backend().compile_ahead(&here);
    for node in graph.nodes().iter().filter(|node| !node.op.is_view()) {
        let (inputs, outputs) = (types(&node.inputs), types(&node.outputs));
        let kernels = device.kernels(&node.op, device.is_on_host(graph, node)?)?;
        if let Err(fault) = kernels.prepare(&node.op, &inputs, &outputs) {
            // Where there is no kernel at all, that says what can be done.
            device.choose_node(graph, node)?;
            return Err(Error::Fault { fault, site: node.site });
        }
    }
    Ok(())
}
