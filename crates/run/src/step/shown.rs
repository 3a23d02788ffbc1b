//! A step seen from outside: its state, figures and record.

use plimsoll_device::Bytes;
use plimsoll_graph::{Site, TensorOps, Type};
use plimsoll_record as record;
use plimsoll_record::Kind;

use super::info::NOTHING;
use super::terms::batch_of;
use super::{Step, StepInfo, StepOptions};
use crate::tensor::Tensor;
use crate::timeline::Recorded;
use crate::variant::Variant;

impl Step {
    /// The state as it stands. A clone keeps what it saw: the next run copies what is shared before it writes.
    pub fn state(&self) -> &[Tensor] {
        &self.state
    }

    /// What the parts of the state are called and for.
    pub fn names(&self) -> &[(String, Kind)] {
        &self.names
    }

    /// The outputs of the last run, then its totals.
    pub fn outputs(&self) -> &[Tensor] {
        self.variants.last().map_or(&[], |v| &v.outputs)
    }

    /// What was planned for the step itself, of the inputs that need most; of another body, if only such were run; all
    /// zeros before anything was.
    pub fn info(&self) -> &StepInfo {
        let most = self.variants.iter().max_by_key(|v| (v.body == 0, v.info.planned));
        most.map_or(&NOTHING, |v| &v.info)
    }

    /// How many compiled forms are kept.
    pub fn n_shapes(&self) -> usize {
        self.variants.len()
    }

    /// The terms of the step.
    pub fn options(&self) -> &StepOptions {
        &self.options
    }

    /// Bytes of the arena that activations, gradients and scratch share, for the inputs that need most.
    pub fn arena_bytes(&self) -> Bytes {
        let most = self.variants.iter().max_by_key(|v| (v.body == 0, v.info.planned));
        most.map_or(0, Variant::arena_bytes).into()
    }

    /// Bytes of the state.
    pub fn state_bytes(&self) -> Bytes {
        self.state.iter().map(|t| Bytes::from(t.ty().bytes())).sum()
    }

    /// The record of the step itself, for the inputs that need most; none before it was compiled. It is made anew by each
    /// call and takes memory of its own, some hundred bytes an instruction: between steps of a run under a line, there is
    /// no room for it.
    ///
    /// ```
    /// use plimsoll_run::{Step, StepResult, Tensor, TensorOps};
    /// let w = Tensor::from_slice(&[1.0f32; 1000], [1000])?;
    /// let step = Step::compile(vec![w], &[], |state, _| {
    ///     let total = state[0].exp()?.sum(&[], false)?;
    ///     Ok(StepResult { state: state.to_vec(), outputs: vec![total], totals: vec![] })
    /// })?;
    /// let timeline = step.timeline().unwrap();
    /// assert!(timeline.instructions.iter().any(|i| i.op == "exp" || i.op == "sum" || i.op == "fused"));
    /// assert_eq!(timeline.residents[0].bytes, 4032);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn timeline(&self) -> Option<record::Step> {
        let most = self.variants.iter().filter(|v| v.body == 0).max_by_key(|v| v.info.planned)?;
        let ((passes, update), (n_sums, passed)) = (most.parts(), most.sums_and_kept());
        let recorded = Recorded {
            device: &self.device,
            names: &self.names,
            state: &self.state,
            hosted: &self.hosted(),
            inputs: &most.inputs,
            outputs: &most.outputs.iter().map(|output| output.ty().clone()).collect::<Vec<Type>>(),
            batch: batch_of(&self.options, &most.inputs, Site::here()).ok().flatten().unwrap_or(1),
            passes,
            update,
            n_sums,
            passed,
            info: &most.info,
            memory_limit: self.options.memory.map(Bytes::get),
        };
        Some(recorded.timeline())
    }
}
