//! Turns what layers and an optimizer say of their state into that state as a step starts with it, on the device or the host.

use plimsoll_device::Bytes;
use plimsoll_graph::{TensorOps, Type};
use plimsoll_run::{Device, Kind, Result, StateSpec, StateTensor, Tensor};

use super::layout::{Layout, Start};
use super::recipe::Recipe;
use crate::Param;

/// What is left free of a device's memory when a step's state is made: for ends of pages, and for what its code takes.
const LATER: Bytes = Bytes::mib(64);

/// All that a step keeps, as far as planning must know it.
pub(super) fn specs(recipe: &Recipe, params: &[Param], kept: Vec<(String, Type, Start)>) -> Vec<StateSpec> {
    let parameters = params.iter().map(|p| StateSpec::new(&p.name, Kind::Parameter, recipe.held_type(p)));
    parameters.chain(others(kept)).collect()
}

/// What a step keeps beside the parameters, as far as planning must know it.
pub(super) fn others(kept: Vec<(String, Type, Start)>) -> impl Iterator<Item = StateSpec> {
    kept.into_iter().map(|(name, ty, _)| StateSpec::new(name, Kind::Optimizer, ty))
}

/// The parameters as layers say that they start, one after the other: of what ranks have shards of, no more than one is whole at a time.
pub(super) fn drawn(recipe: &Recipe, params: &[Param], seed: u64) -> Result<Vec<Tensor>> {
    made(params, recipe, |p, ty| match recipe.is_elsewhere(p) {
        true => Tensor::zeros(ty),
        false => recipe.held(p, p.init.draw(&p.name, &p.ty, seed)?),
    })
}

/// The parameters as a step holds them.
pub(super) fn parameters(params: &[Param], values: Vec<Tensor>) -> Vec<StateTensor> {
    let held =
        |(p, tensor): (&Param, Tensor)| StateTensor { name: p.name.clone(), kind: Kind::Parameter, tensor };
    params.iter().zip(values).map(held).collect()
}

/// What a step holds beside the parameters, as it starts. Where the device might not hold all of it, as much as is allowed is on the
/// host: planning needs room on the device, and says only then what is kept where.
pub(super) fn beside(
    kept: &[(String, Type, Start)],
    recipe: &Recipe,
    taken: Bytes,
    seed: u64,
) -> Result<Vec<StateTensor>> {
    let mut host = recipe.request.host_limit.unwrap_or(Bytes::ZERO).saturating_sub(taken);
    let wanted = bytes_of(kept.iter().map(|(_, ty, _)| ty));
    let is_crowded =
        host > Bytes::ZERO && !has_room(wanted + wanted, recipe.request.limit, &Device::current()?);
    let held = |(name, ty, start): &(String, Type, Start)| {
        let tensor = start.tensor(ty.clone(), seed)?;
        let part = StateTensor { name: name.clone(), kind: Kind::Optimizer, tensor };
        if is_crowded { part.hosted(&mut host) } else { Ok(part) }
    };
    kept.iter().map(held).collect()
}

/// Parameters that are zeros.
pub(super) fn zeros(params: &[Param], recipe: &Recipe) -> Result<Vec<Tensor>> {
    made(params, recipe, |_, ty| Tensor::zeros(ty))
}

/// Parameters, on the host as [`beside`] has the rest: each is there before the next is made.
fn made(
    params: &[Param],
    recipe: &Recipe,
    make: impl Fn(&Param, Type) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let (_, kept) = Layout::new(recipe, params);
    let mut host = recipe.request.host_limit.unwrap_or(Bytes::ZERO);
    let rest = bytes_of(kept.iter().map(|(_, ty, _)| ty));
    let types: Vec<Type> = params.iter().map(|p| recipe.held_type(p)).collect();
    let wanted = bytes_of(types.iter()) + rest + rest;
    let is_crowded = host > Bytes::ZERO && !has_room(wanted, recipe.request.limit, &Device::current()?);
    let made = |(p, ty): (&Param, Type)| {
        let tensor = make(p, ty)?;
        let part = StateTensor { name: p.name.clone(), kind: Kind::Parameter, tensor };
        Ok(if is_crowded { part.hosted(&mut host)?.tensor } else { part.tensor })
    };
    params.iter().zip(types).map(made).collect()
}

fn bytes_of<'a>(types: impl Iterator<Item = &'a Type>) -> Bytes {
    types.map(|ty| Bytes::from(ty.bytes())).sum()
}

/// Bytes that these tensors take of the host.
pub(super) fn on_host<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Bytes {
    bytes_of(tensors.filter(|tensor| tensor.is_hosted()).map(Tensor::ty))
}

/// Whether the device holds so much more, within the limit of its memory or what it has. State is counted twice: as much again is for
/// planning.
fn has_room(wanted: Bytes, limit: Option<Bytes>, device: &Device) -> bool {
    let most = match (limit, device.capacity()) {
        (Some(limit), Some(capacity)) => limit.min(capacity),
        (limit, capacity) => limit.or(capacity).unwrap_or(Bytes::MAX),
    };
    wanted + device.counted().now + LATER <= most
}
