//! The figures of a step's plan as they are written ([`plimsoll_record::Plan`]): the one way from the engine's numbers to a file.

use plimsoll_device::Bytes;
use plimsoll_record as record;

use crate::choose::{FrontierPoint, PlanFigures};

/// Model, batch, device and memory limit are the caller's to add: a plan does not know them.
impl From<&PlanFigures> for record::Plan {
    fn from(info: &PlanFigures) -> record::Plan {
        let host = info.host.unwrap_or_default();
        let host = record::HostPlan {
            host_limit_bytes: host.limit.map(Bytes::get),
            host_limit_given: host.is_given,
            host_planned_bytes: info.host.map(|host| host.planned().get()),
            host_program_bytes: host.program.get(),
            host_pipeline_bytes: host.pipeline.get(),
            host_staging_bytes: host.staging.get(),
        };
        let parts = record::PlanParts {
            arena_bytes: info.arena.get(),
            live_bytes: info.live.get(),
            state_bytes: info.account.tensors.get(),
            program_bytes: info.account.program.get(),
            pipeline_bytes: info.account.reserved.get(),
            rank_bytes: info.account.ranks.get(),
            input_bytes: info.account.inputs.get(),
        };
        record::Plan {
            parts,
            host,
            planned_bytes: info.planned.get(),
            floor_bytes: info.floor.get(),
            unlimited_bytes: info.unlimited.get(),
            unshared_bytes: Some(info.unshared.get()),
            outside_bytes: Some(info.outside.get()),
            predicted_ms: info.predicted_seconds * 1e3,
            unlimited_ms: info.unlimited_seconds * 1e3,
            micro_batches: info.micro_batches as u64,
            recomputed_ops: info.recomputed_ops,
            exactness: Some(info.exactness.to_string().into()),
            plan_seconds: info.plan_seconds,
            host_bytes: info.taken_elsewhere().0.get(),
            disk_bytes: info.taken_elsewhere().1.get(),
            hosted_bytes: info.hosted_bytes.get(),
            offloaded_bytes: info.offloaded_bytes.get(),
            offloaded_copies: info.offloaded_copies,
            ..record::Plan::default()
        }
    }
}

impl From<&FrontierPoint> for record::Point {
    fn from(point: &FrontierPoint) -> record::Point {
        record::Point {
            planned_bytes: point.planned.get(),
            predicted_ms: point.predicted_seconds * 1e3,
            micro_batches: point.micro_batches as u64,
            recomputed_ops: point.recomputed_ops as u64,
            exactness: None,
        }
    }
}
