//! What a training on a card takes of the host's memory, beside a limit of its own: everything that is not the card's.

use plimsoll_data::Dataset;
use plimsoll_device::{Bytes, Kind, Ledger, process};
use plimsoll_graph::Type;
use plimsoll_nn::{Net, Recipe};
use plimsoll_run::{HostAccount, HostInfeasible, MemoryRequest, PlanFigures, Remedy, host_program};

use super::Trainer;
use super::pipelines::{Pipelines, Share};
use crate::error::Result;

/// More host memory than pipelines have a use for.
const MUCH: Bytes = Bytes::gib(1 << 16);

impl Trainer {
    /// What a training on such data, whose batches are of these types, takes of the host's memory; nothing chosen by a plan yet. None
    /// where tensors are in the host's memory: then there is one limit.
    pub(super) fn host_account(
        &self,
        data: &Dataset,
        types: &[Type],
        share: Share,
    ) -> Result<Option<HostAccount>> {
        let device = self.on()?;
        if !device.has_own_memory() {
            return Ok(None);
        }
        let given = self.request.host_limit;
        let mut account = HostAccount {
            // A record of a card says nothing of the machine that the card is in.
            limit: given.or_else(|| process::memory_limit().filter(|_| !device.is_recorded())),
            is_given: given.is_some(),
            program: host_program(&device) + self.reserved,
            staging: self.staged_bytes(data, types)?,
            ..HostAccount::default()
        };
        account.pipeline = self.pipelines(share)?.declared(data)?;
        Ok(Some(account))
    }

    /// Host memory through which batches and weights go: a batch in pinned memory where the next is sent ahead, and a buffer as large as
    /// what is largest of all that is copied at once.
    fn staged_bytes(&self, data: &Dataset, types: &[Type]) -> Result<Bytes> {
        let sizes = || types.iter().map(Type::bytes);
        // What has fewer fields has no labels.
        let n_labels = if types.len() > self.n_labels { self.n_labels } else { 0 };
        let inputs = &types[..types.len() - n_labels];
        let params = Net::discover_in(self.request.precision, inputs, &self.model)?;
        let weights = params.iter().map(|param| param.ty.bytes()).max().unwrap_or(0);
        // Weights and averages change places through two copies of a parameter.
        let weights = weights * if self.is_averaged { 2 } else { 1 };
        let largest = sizes().max().unwrap_or(0);
        // Random numbers are made in a buffer and copied from it by the driver, which has one more.
        let (pinned, batch) = match data.is_random()? {
            true => (0, 2 * largest),
            false => (sizes().sum::<usize>(), largest),
        };
        Ok(Bytes::from(pinned + batch.max(weights)))
    }

    /// The ledger of the training, with the host's rows beside a card's: what was planned when it was compiled, and what is taken now.
    /// None before data was seen.
    pub fn ledger(&self) -> Option<Ledger> {
        let mut ledger = self.training.as_ref()?.ledger();
        let Some(host) = self.host else { return Some(ledger) };
        let pinned = Bytes::from(self.staging.pinned_bytes());
        ledger.plan(Kind::Host, "staging", host.staging);
        ledger.set(Kind::Host, "staging", pinned);
        ledger.plan(Kind::Host, "input pipelines", host.pipeline);
        // What a pipeline holds are pages like the program's own: the system counts them together.
        let rest = process::resident()
            .map(|all| all.saturating_sub(ledger.total(Kind::Host).measured.unwrap_or_default()));
        ledger.plan(Kind::Host, "program, driver and libraries", host.program);
        if let Some(rest) = rest {
            ledger.set(Kind::Host, "program, driver and libraries", rest);
        }
        Some(ledger)
    }

    /// The share with which the limit of the host's memory is kept: with pipelines that take the least where it is tight.
    ///
    /// # Errors
    /// Not even the least keeps it.
    pub(super) fn within_host(&self, data: &Dataset, share: Share) -> Result<Share> {
        let types = batch_types(data, self.batch_of(data)?)?;
        let is_over = |account: &HostAccount| account.limit.is_some_and(|limit| account.beside() > limit);
        if !self.host_account(data, &types, share)?.is_some_and(|account| is_over(&account)) {
            return Ok(share);
        }
        let lean = Share { is_lean: true, ..share };
        let Some(account) = self.host_account(data, &types, lean)?.filter(is_over) else { return Ok(lean) };
        let mut ways = Vec::new();
        if let Some(batch) = data.batch_size().filter(|batch| *batch > 1) {
            // Staging is by the sample, where weights are not larger; what a pipeline needs at least falls too, and is not counted on.
            let staging = self.staged_bytes(data, &batch_types(data, 1)?)?;
            let small = HostAccount { staging, ..account }.beside();
            if small < account.beside() {
                let change = format!("1 sample a step instead of {batch}");
                ways.push(Remedy { flag: "--batch 1".into(), change, least: small });
            }
        }
        let least = account.beside();
        Err(plimsoll_run::Error::from(Box::new(HostInfeasible { account, least, ways })).into())
    }

    /// A recipe with what the limit of the host's memory leaves for copies: nothing where nobody named one.
    pub(super) fn with_host(&self, recipe: Recipe, data: &Dataset, share: Share) -> Result<Recipe> {
        let types: Vec<Type> = recipe.inputs.iter().chain(&recipe.labels).cloned().collect();
        let Some(account) = self.host_account(data, &types, share)? else {
            // Where there is a disk beside the host's memory, that is what a step is given to copy to.
            let host_limit = self.on()?.disk().map(|disk| disk.limit());
            return Ok(Recipe { request: MemoryRequest { host_limit, ..recipe.request }, ..recipe });
        };
        // What a refusal proposes must do with the pipelines that come with it.
        let named = MemoryRequest { host_limit: Some(MUCH), ..self.request.clone() };
        let pipeline = match account.is_given {
            true => account.pipeline,
            false => Pipelines { request: &named, ..self.pipelines(share)? }.declared(data)?,
        };
        let host_beside = HostAccount { pipeline, ..account }.beside();
        let given =
            account.limit.filter(|_| account.is_given && self.on().is_ok_and(|on| on.copies_to_host()));
        let host_limit = given.map(|limit| limit.saturating_sub(host_beside));
        Ok(Recipe { request: MemoryRequest { host_limit, ..recipe.request }, host_beside, ..recipe })
    }

    /// A plan with what all of the process takes of the host's memory under it.
    pub(super) fn with_host_figures(
        &self,
        mut figures: PlanFigures,
        data: &Dataset,
        share: Share,
    ) -> Result<PlanFigures> {
        let batch = self.batch_of(data)?;
        let account = self.host_account(data, &batch_types(data, batch)?, share)?;
        let (state, copies) = (figures.hosted_bytes, figures.host_bytes.saturating_sub(figures.hosted_bytes));
        figures.host = account.map(|account| HostAccount { state, copies, ..account });
        Ok(figures)
    }
}

/// The types of a batch of so many samples.
pub(super) fn batch_types(data: &Dataset, batch: usize) -> Result<Vec<Type>> {
    let ty = |field: &plimsoll_data::FieldSpec| {
        let shape: Vec<usize> = std::iter::once(batch).chain(field.shape.iter().copied()).collect();
        Type::new(field.dtype, &shape[..])
    };
    Ok(data.spec()?.iter().map(ty).collect())
}
