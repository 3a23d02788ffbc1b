//! A step seen from outside: its state, figures, record and ledger.

use plimsoll_device::{Bytes, Kind as LedgerKind, Ledger, process};
use plimsoll_graph::{Site, TensorOps, Type};
use plimsoll_plan::Kind;

use super::info::NOTHING;
use super::terms::batch_of;
use super::{Step, StepInfo, StepOptions};
use crate::account::{Account, own as own_bytes};
use crate::peak::ledger_kind;
use crate::tensor::Tensor;
use crate::timeline::{Recorded, Timeline};
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
    pub fn timeline(&self) -> Option<Timeline> {
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
            line: self.options.memory.map(Bytes::get),
        };
        Some(recorded.timeline())
    }

    /// The account of the step's memory, planned and measured side by side.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new();
        let mut row = |kind: LedgerKind, name: &str, planned: Bytes, measured: Bytes| {
            ledger.plan(kind, name, planned);
            ledger.set(kind, name, measured);
        };
        for ((name, kind), tensor) in self.names.iter().zip(&self.state) {
            let bytes = Bytes::from(tensor.ty().bytes());
            let kind = if tensor.is_hosted() { LedgerKind::Host } else { ledger_kind(*kind) };
            row(kind, name, bytes, bytes);
        }
        let most = self.variants.iter().max_by_key(|v| (v.body == 0, v.info.planned));
        let Some(variant) = most else { return ledger };
        for (i, ty) in variant.inputs.iter().enumerate() {
            let bytes = Bytes::from(ty.bytes());
            row(LedgerKind::Input, &format!("input {i}"), bytes, bytes);
            if self.options.ahead && variant.body == 0 {
                row(LedgerKind::Input, &format!("input {i} of the next batch"), bytes, bytes);
            }
        }
        let (sums, arena) = (Bytes::from(variant.sum_bytes()), Bytes::from(variant.arena_bytes()));
        if sums > Bytes::ZERO {
            row(LedgerKind::Gradient, "sums over micro-batches", sums, sums);
        }
        let before = Bytes::from(variant.workspace()).saturating_sub(arena);
        row(
            LedgerKind::Activation,
            "arena",
            arena,
            Bytes::from(self.workspace.bytes()).saturating_sub(before),
        );
        let held = self.host.as_ref().map_or(Bytes::ZERO, |host| host.bytes().into());
        let copied = variant.info.host_bytes.saturating_sub(variant.info.hosted_bytes);
        if copied > Bytes::ZERO {
            row(LedgerKind::Host, "copies to the host", copied, held);
        }
        let resident = || process::resident().unwrap_or(Bytes::ZERO);
        let own = own_bytes(&self.device)
            .unwrap_or_else(|| resident().saturating_sub(self.device.memory_info().current));
        let Account { program, beside, .. } = variant.info.account;
        row(LedgerKind::Program, "program", program, own);
        // Measured with the program: pipelines and whatever else is declared take the process's own memory.
        if beside > Bytes::ZERO {
            ledger.plan(LedgerKind::Input, "pipelines and what else stands beside", beside);
        }
        ledger
    }
}
